"""Galleries: vectors of several model versions, searched together by exact cosine. Needs no torch."""

from fixstar.gallery.calibration import Calibration, calibrated_search, fit_calibration
from fixstar.gallery.memory import MemoryGallery
from fixstar.gallery.opening import open_gallery
from fixstar.gallery.sqlite import SqliteGallery
from fixstar.gallery.store import Gallery, Hit, Item, VersionSpace
from fixstar.gallery.transfer import copy_gallery, export_version, import_version
from fixstar.gallery.verification import verify_gallery

__all__ = [
    "Calibration",
    "Gallery",
    "Hit",
    "Item",
    "MemoryGallery",
    "SqliteGallery",
    "VersionSpace",
    "calibrated_search",
    "copy_gallery",
    "export_version",
    "fit_calibration",
    "import_version",
    "open_gallery",
    "verify_gallery",
]
