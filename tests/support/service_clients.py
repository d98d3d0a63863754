"""The service over a small workspace, asked without a network."""

from __future__ import annotations

import io
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the service extra is not installed")

import httpx
from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image

from fixstar.service.app import create_app
from fixstar.service.settings import ServiceSettings
from fixstar.workspace import Workspace

ADDRESS = "http://127.0.0.1:8080"


@contextmanager
def client(space: Workspace, **settings: Any) -> Iterator[TestClient]:
    """A client on this machine; faults of the service come as 500, as they would over the network."""
    app = create_app(space, ServiceSettings(**settings))
    with TestClient(
        app, ADDRESS, raise_server_exceptions=False, client=("127.0.0.1", 50000)
    ) as http:
        yield http


@asynccontextmanager
async def async_client(
    space: Workspace, **settings: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, FastAPI]]:
    """The same for many requests at a time, with the application."""
    app = create_app(space, ServiceSettings(**settings))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(
            app, raise_app_exceptions=False, client=("127.0.0.1", 50000)
        )
        async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as http:
            yield http, app


def ended(http: TestClient, job: dict[str, Any], **request: Any) -> dict[str, Any]:
    """A job as it is told once it is over, within 120 s; ``request`` goes with every look at it."""
    end = time.monotonic() + 120
    while (seen := http.get(f"/v1/jobs/{job['id']}", **request).json())["state"] in (
        "queued",
        "running",
    ):
        assert time.monotonic() < end, seen
        time.sleep(0.02)
    return dict(seen)


def picture(seed: int = 0, size: tuple[int, int] = (40, 30), kind: str = "PNG") -> bytes:
    """An image file of noise around a colour."""
    rng = np.random.default_rng(seed)
    pixels = (rng.integers(0, 200, 3) + rng.integers(0, 55, (size[1], size[0], 3))).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()
