"""Search results as one picture: each query with its hits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import ImageError
from fixstar.gallery import SearchResult
from fixstar.images import Preprocessing, read_pixels
from fixstar.workspace.items import LABEL, ImageStore

if TYPE_CHECKING:
    from fixstar.workspace.search import Serving

_THUMBNAIL = Preprocessing(size=(96, 96), mean=(0, 0, 0), std=(1, 1, 1), fit="pad")


def draw_result(
    serving: Serving, queries: Sequence[str], result: SearchResult, stored: bool, path: Path
) -> Path:
    """Draw each query with its hits; frames are green where labels agree. With ``stored``, queries are item ids."""
    from fixstar.evaluation import HitPicture, contact_sheet

    images = ImageStore(serving.path)
    items = serving.gallery.get(
        [hit.id for hits in result.hits for hit in hits] + (list(queries) if stored else [])
    )
    labels = [
        items[name].payload.get(LABEL) if stored and name in items else None for name in queries
    ]

    def picture(name: str) -> NDArray[Any]:
        return _pixels(images.find(items[name]) if name in items else None)

    shown = [picture(name) if stored else _pixels(Path(name)) for name in queries]
    rows = [
        [
            HitPicture(picture(hit.id), label is not None and hit.payload.get(LABEL) == label)
            for hit in hits
        ]
        for hits, label in zip(result.hits, labels, strict=True)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    contact_sheet(shown, {f"found by {result.version}": rows}, path)
    return path


def _pixels(path: Path | None) -> NDArray[Any]:
    """An image, or a grey square if the file is missing."""
    if path is not None:
        try:
            return read_pixels(path, _THUMBNAIL)
        except ImageError:
            pass
    return np.full((96, 96, 3), 225, np.uint8)
