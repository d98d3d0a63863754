"""Search results of a workspace as one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import ImageError
from fixstar.evaluation import Found, contact_sheet
from fixstar.images import Preprocessing, read_pixels
from fixstar.lifecycle import Answer
from fixstar.workspace.workspace import Workspace

__all__ = ["draw_answer"]

_SMALL = Preprocessing(size=(96, 96), mean=(0, 0, 0), std=(1, 1, 1), fit="pad")


def draw_answer(space: Workspace, queries: Sequence[str], answer: Answer, stored: bool, path: Path) -> Path:
    """Draw each query with its hits; a frame is green where labels agree. ``stored`` says that queries are item ids."""
    gallery = space.gallery
    items = gallery.get([hit.id for hits in answer.hits for hit in hits] + (list(queries) if stored else []))
    labels = [items[name].payload.get("label") if stored and name in items else None for name in queries]

    def picture(name: str) -> NDArray[Any]:
        return _pixels(space.images.find(items[name]) if name in items else None)

    shown = [picture(name) if stored else _pixels(Path(name)) for name in queries]
    rows = [
        [Found(picture(hit.id), label is not None and hit.payload.get("label") == label) for hit in hits]
        for hits, label in zip(answer.hits, labels, strict=True)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    contact_sheet(shown, {f"found by {answer.version}": rows}, path)
    return path


def _pixels(path: Path | None) -> NDArray[Any]:
    """An image, or a grey square where it is gone."""
    if path is not None:
        try:
            return read_pixels(path, _SMALL)
        except ImageError:
            pass
    return np.full((96, 96, 3), 225, np.uint8)
