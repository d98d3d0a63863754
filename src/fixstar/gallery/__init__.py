"""Galleries: vectors of several model versions, searched together by exact cosine. Needs no torch."""

from fixstar.gallery.memory import MemoryGallery
from fixstar.gallery.store import Gallery, Hit

__all__ = ["Gallery", "Hit", "MemoryGallery"]
