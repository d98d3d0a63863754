"""Which gallery a path or URL stands for."""

from __future__ import annotations

from pathlib import Path

from fixstar.errors import GalleryError
from fixstar.gallery.memory import MemoryGallery
from fixstar.gallery.sqlite import SqliteGallery
from fixstar.gallery.store import Gallery

__all__ = ["open_gallery"]

_SERVERS = {"postgresql": "PostgreSQL", "postgres": "PostgreSQL", "qdrant": "Qdrant"}


def open_gallery(url: str | Path, create: bool = True, read_only: bool = False) -> Gallery:
    """A gallery by its address: a path is an SQLite file, made if it is absent; ":memory:" is kept nowhere.

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
    if scheme in _SERVERS:
        raise GalleryError(
            f"this fixstar cannot keep a gallery on a {_SERVERS[scheme]} server yet ({scheme}://...); "
            "give a path for a gallery in one SQLite file"
        )
    raise GalleryError(f'{url} is no gallery: give a path for an SQLite file, or ":memory:"')
