"""Galleries: vectors of several model versions, searched together by exact scores. Needs no torch."""

from fixstar.gallery.filters import Payload, Where
from fixstar.gallery.foreign import postgres_table, qdrant_collection
from fixstar.gallery.memory import MemoryGallery
from fixstar.gallery.milvus import MilvusGallery
from fixstar.gallery.opening import open_gallery
from fixstar.gallery.postgres import PostgresGallery
from fixstar.gallery.sqlite import SqliteGallery
from fixstar.gallery.store import (
    Gallery,
    Hit,
    IndexState,
    Item,
    Question,
    SearchOptions,
    SearchRequest,
    SearchResult,
    Vectors,
    VersionSpace,
    measured_recall,
    verify_gallery,
)
from fixstar.gallery.transfer import copy_gallery, export_version, import_version

__all__ = [
    "Gallery",
    "Hit",
    "IndexState",
    "Item",
    "MemoryGallery",
    "MilvusGallery",
    "Payload",
    "PostgresGallery",
    "Question",
    "SearchOptions",
    "SearchRequest",
    "SearchResult",
    "SqliteGallery",
    "Vectors",
    "VersionSpace",
    "Where",
    "copy_gallery",
    "export_version",
    "import_version",
    "measured_recall",
    "open_gallery",
    "postgres_table",
    "qdrant_collection",
    "verify_gallery",
]
