"""Which gallery a path or URL stands for."""

from __future__ import annotations

import os
from pathlib import Path

from fixstar.errors import GalleryError
from fixstar.gallery.addresses import QDRANT_SCHEMES, parse_qdrant_address
from fixstar.gallery.memory import MemoryGallery
from fixstar.gallery.postgres import PostgresGallery
from fixstar.gallery.qdrant import QdrantGallery
from fixstar.gallery.sqlite import SqliteGallery
from fixstar.gallery.store import Gallery

MAP_VECTORS = "FIXSTAR_MAP_VECTORS"  # how much memory there is depends on the machine, not on the gallery


def open_gallery(url: str | Path, create: bool = True, read_only: bool = False) -> Gallery:
    """Open a gallery: a path is an SQLite file, created if it does not exist; ":memory:" is kept nowhere.
    If the environment variable FIXSTAR_MAP_VECTORS names a folder, an SQLite gallery's vectors are in files there and
    not in memory.

    postgresql://user:password@host:port/database?gallery=NAME is a schema of a PostgreSQL database.
    qdrant://host:port?prefix=NAME, or qdrant+https://..., is a set of collections on a Qdrant server.

    >>> with open_gallery(":memory:") as gallery:
    ...     gallery.create_version("v1", 3)
    ...     gallery.count()
    {'v1': 0}
    """
    if str(url) == ":memory:":
        return MemoryGallery()
    scheme, divider, _ = str(url).partition("://")
    if not divider:
        return SqliteGallery(url, create=create, read_only=read_only, map_vectors=os.environ.get(MAP_VECTORS) or None)
    if scheme in ("postgresql", "postgres"):
        return PostgresGallery(str(url), create=create, read_only=read_only)
    if scheme in QDRANT_SCHEMES:
        server, options = parse_qdrant_address(str(url))
        return QdrantGallery(server, create=create, read_only=read_only, **options)
    raise GalleryError(  # without the rest, which may hold a password
        f'{scheme}://... is not a gallery; use the path of an SQLite file, ":memory:", postgresql://... or qdrant://...'
    )
