"""Open a gallery by a path or URL."""

from __future__ import annotations

import os
from pathlib import Path

from fixstar.errors import GalleryError, NextStep
from fixstar.gallery.addresses import MILVUS_SCHEMES, QDRANT_SCHEMES, parse_milvus_address
from fixstar.gallery.memory import MemoryGallery
from fixstar.gallery.milvus import MilvusGallery
from fixstar.gallery.postgres import PostgresGallery
from fixstar.gallery.sqlite import SqliteGallery
from fixstar.gallery.store import Gallery

MAP_VECTORS = (
    "FIXSTAR_MAP_VECTORS"  # an environment variable, as available memory depends on the machine
)


def open_gallery(url: str | Path, create: bool = True, read_only: bool = False) -> Gallery:
    """Open a gallery: a path is an SQLite file, created if it does not exist; ":memory:" is not stored.
    If the environment variable FIXSTAR_MAP_VECTORS names a folder, an SQLite gallery keeps its vectors in files there
    and not in memory.

    postgresql://user:password@host:port/database?gallery=NAME is a schema of a PostgreSQL database.
    milvus://host:19530/database?items=ADDRESS is a gallery of either kind, searched by a Milvus server.

    >>> with open_gallery(":memory:") as gallery:
    ...     gallery.create_version("v1", 3)
    ...     gallery.count()
    {'v1': 0}
    """
    if str(url) == ":memory:":
        return MemoryGallery()
    scheme, divider, _ = str(url).partition("://")
    if not divider:
        return SqliteGallery(
            url, create=create, read_only=read_only, map_vectors=os.environ.get(MAP_VECTORS) or None
        )
    if scheme in ("postgresql", "postgres"):
        return PostgresGallery(str(url), create=create, read_only=read_only)
    if scheme in MILVUS_SCHEMES:
        address = parse_milvus_address(str(url))
        items = open_gallery(address.items, create=create, read_only=read_only)
        try:
            return MilvusGallery(address, items, read_only=read_only)
        except BaseException:
            items.close()
            raise
    kept = 'the path of an SQLite file, ":memory:", postgresql://... or milvus://...'
    if scheme in QDRANT_SCHEMES:
        source = f"{scheme}://host:6333?collection=NAME"
        raise GalleryError(
            f"a gallery cannot be kept in Qdrant; use {kept}. A collection there can be read: import its vectors into "
            f"a gallery as {source}, or bridge from it to another model",
            NextStep(
                "import-vectors", {"file": source, "name": ...}, "copies the collection's vectors"
            ),
        )
    raise GalleryError(
        f"{scheme}://... is not a gallery; use {kept}"
    )  # the rest may contain a password
