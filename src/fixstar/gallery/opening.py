"""Which gallery a path or URL stands for."""

from __future__ import annotations

from pathlib import Path

from fixstar.errors import GalleryError
from fixstar.gallery.memory import MemoryGallery
from fixstar.gallery.qdrant.address import QDRANT_SCHEMES, parse_qdrant_address
from fixstar.gallery.sqlite.gallery import SqliteGallery
from fixstar.gallery.store import Gallery

__all__ = ["open_gallery"]

_POSTGRES = ("postgresql", "postgres")


def open_gallery(url: str | Path, create: bool = True, read_only: bool = False) -> Gallery:
    """A gallery by its address: a path is an SQLite file, made if it is absent; ":memory:" is kept nowhere.

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
        return SqliteGallery(url, create=create, read_only=read_only)
    if scheme in _POSTGRES:
        from fixstar.gallery.postgres.gallery import PostgresGallery

        return PostgresGallery(str(url), create=create, read_only=read_only)
    if scheme in QDRANT_SCHEMES:
        from fixstar.gallery.qdrant.gallery import QdrantGallery

        server, options = parse_qdrant_address(str(url))
        return QdrantGallery(server, create=create, read_only=read_only, **options)
    raise GalleryError(  # without the rest, which may hold a password
        f'{scheme}://... is no gallery: give a path for an SQLite file, ":memory:", postgresql://... or qdrant://...'
    )
