"""A gallery on Qdrant for tests: the client's engine in memory, or the server that FIXSTAR_QDRANT_URL names.

    FIXSTAR_QDRANT_URL=http://localhost:6333 pytest tests/gallery -k qdrant

Collections are called fixstar-test-... and removed afterwards. QDRANT_API_KEY is sent if it is set.
"""

from __future__ import annotations

import os
import threading
import uuid
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import pytest

from fixstar.gallery.qdrant import QdrantGallery

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

URL = os.environ.get("FIXSTAR_QDRANT_URL")


def qdrant_client() -> QdrantClient:
    module = pytest.importorskip(
        "qdrant_client", reason="qdrant-client is not installed: pip install 'fixstar[qdrant]'"
    )
    make = module.QdrantClient
    if URL:
        return cast("QdrantClient", make(url=URL, api_key=os.environ.get("QDRANT_API_KEY")))
    return cast("QdrantClient", _OneAtATime(make(":memory:")))


class _OneAtATime:
    """The engine does one request at a time, as a server does with a point: it is not made for threads."""

    def __init__(self, client: QdrantClient) -> None:
        self._client, self._lock = client, threading.RLock()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not callable(found):
            return found

        def locked(*arguments: Any, **named: Any) -> Any:
            with self._lock:
                return found(*arguments, **named)

        return locked


class QdrantTestGallery(QdrantGallery):
    """Leaves nothing behind."""

    def __init__(self, client: QdrantClient | None = None, **options: Any) -> None:
        self.client, self.prefix = client or qdrant_client(), f"fixstar-test-{uuid.uuid4().hex}"
        super().__init__(self.client, prefix=self.prefix, **options)

    def __enter__(self) -> QdrantTestGallery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        for collection in self.client.get_collections().collections:
            if collection.name.startswith(self.prefix):
                self.client.delete_collection(collection.name)


def qdrant_gallery(_: Path) -> QdrantGallery:
    return QdrantTestGallery()
