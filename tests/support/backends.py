"""What a connector may stand on: a workspace in this process, or a client of its service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from service_clients import client
from shops import passed, pictures, shop
from text_models import bert_folder

from fixstar.service.client import Client
from fixstar.workspace import Workspace

KINDS = ("workspace", "service")


@contextmanager
def backend(kind: str, folder: Path) -> Iterator[tuple[Workspace | Client, Workspace]]:
    """The backend of an empty shop, and its workspace; photos lie in folder/photos."""
    pictures(folder / "photos")
    with shop(folder / "shop") as space:
        if kind == "workspace":
            yield space, space
        else:
            with client(space) as http:
                asking = Client()
                asking.close()
                asking._http = http  # type: ignore[assignment]
                yield asking, space


@contextmanager
def text_backend(kind: str, folder: Path) -> Iterator[Workspace | Client]:
    """The backend of an empty workspace for texts."""
    with Workspace.create(folder / "notes", device="cpu") as space:
        space.add_version(f"hf:{bert_folder(folder / 'bert')}")
        if kind == "workspace":
            yield space
        else:
            with client(space) as http:
                asking = Client()
                asking.close()
                asking._http = http  # type: ignore[assignment]
                yield asking


def upgrade(space: Workspace) -> None:
    """Deploy v2; the vectors of v1 stay."""
    passed(space, "v2", "v1")
    space.deploy("v2")


def vector(space: Workspace, image: Path) -> list[float]:
    """The query vector of an image by the deployed version."""
    return [float(number) for number in np.ravel(space.serving.embed(space.deployed(), [image]))]
