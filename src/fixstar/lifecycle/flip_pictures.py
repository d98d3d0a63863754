"""Pictures of the negative flips that a check names: the query, what the old version found, what the new one finds.

They are kept beside the check, so that they can be shown wherever its images came from and wherever those went since.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fixstar.durable import replace_file
from fixstar.errors import ModelError
from fixstar.evaluation import Thumbnails
from fixstar.lifecycle.checks import Check

__all__ = ["Shown", "flip_picture", "forget_flips", "keep_flips"]

Shown = Literal["query", "old", "new"]


def keep_flips(workspace: Path, check: Check, thumbnails: Thumbnails | None) -> str | None:
    """Keep the pictures of all flips that the cells of a check name; their path in the workspace, None without any."""
    rows = [lost.rows for cell in check.cells for lost in cell.lost if lost.rows is not None]
    if not rows or thumbnails is None:
        return None
    shown = [
        np.stack([np.asarray(thumbnails.query(query)), *(np.asarray(thumbnails.gallery(row)) for row in found)])
        for query, *found in rows
    ]
    name = (
        f"checks/{check.version}/flips-{uuid.uuid4().hex[:12]}.safetensors"  # a reader of the last check keeps its own
    )
    replace_file(workspace / name, lambda partial: save_file({"flips": np.stack(shown)}, partial))
    return name


def forget_flips(workspace: Path, check: Check) -> None:
    """Remove the pictures of checks that this one took the place of."""
    for path in (workspace / "checks" / check.version).glob("flips-*.safetensors"):
        if check.pictures is None or path.name != Path(check.pictures).name:
            path.unlink(missing_ok=True)


def flip_picture(workspace: Path, check: Check, number: int, which: Shown) -> NDArray[Any] | None:
    """Pixels [height, width, 3] of one picture; ``number`` counts the flips of all cells. None where there is none."""
    if check.pictures is None or number < 0:
        return None
    try:
        with safe_open(workspace / check.pictures, "numpy") as file:
            kept = file.get_slice("flips")
            if number >= kept.get_shape()[0]:
                return None
            pixels: NDArray[Any] = kept[number, get_args(Shown).index(which)]
            return pixels
    except FileNotFoundError:  # another check has just taken its place
        return None
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{check.pictures} is damaged ({error}); make it anew: fixstar check {check.version}"
        ) from error
