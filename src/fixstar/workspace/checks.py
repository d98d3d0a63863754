"""What the gate found out about a version, kept beside it: checks/v2.json. A deployment asks for it.

A check counts only for what it was made against: vectors that came into the gallery from a version it did not look at
make it incomplete.

Pictures of the negative flips that a check names: the query, what the old version found, what the new one finds.

They are kept beside the check, so that they can be shown wherever its images came from and wherever those went since.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fixstar.durable import WatchedFile, replace_file, replace_json
from fixstar.errors import GateError, ModelError
from fixstar.evaluation import Thumbnails
from fixstar.gallery import Calibration

__all__ = [
    "Check",
    "CheckedCalibrations",
    "CheckedCell",
    "LostAnswer",
    "Outcome",
    "Shown",
    "demand",
    "flip_picture",
    "forget_flips",
    "keep_flips",
    "last_check",
    "save_check",
]

Outcome = Literal["pass", "refuse", "missing evidence"]


@dataclass(frozen=True)
class LostAnswer:
    """A negative flip: the class of a query that the old version answered rightly, and the class found instead.

    ``rows`` are those of the query, of the gallery image found before, and of the one found now.
    """

    label: str
    found: str
    rows: tuple[int, int, int] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class CheckedCell:
    """New queries on the gallery of ``version``: cross-test minus that version's self-test, with its interval.

    ``lost`` lists some of the negative flips, one of each class in turn, heaviest loss first.
    """

    version: str
    self_test: float
    cross_test: float
    low: float
    high: float
    verdict: str
    differing: int
    negative_flips: int
    positive_flips: int
    lost: tuple[LostAnswer, ...] = ()

    @property
    def difference(self) -> float:
        """What the new queries gain on that gallery; below zero they lose."""
        return self.cross_test - self.self_test


@dataclass(frozen=True)
class Check:
    """One verdict on one version. ``reasons`` say in words what it rests on, ``notes`` what else is worth knowing.

    ``report`` is the page with the curves, ``pictures`` the lost queries' images, by their paths in the workspace.
    ``self_test`` is the version's own accuracy, None where it was not measured. ``calibrations`` have slope and offset
    by gallery version: how its queries' cosines with that version's vectors become probabilities.
    """

    version: str
    outcome: Outcome
    reasons: tuple[str, ...]
    cells: tuple[CheckedCell, ...]
    self_test: float | None
    queries: int
    gallery: int
    confidence: float
    tolerance: float
    data: dict[str, Any] = field(default_factory=dict)
    when: str = ""
    report: str | None = None
    notes: tuple[str, ...] = ()
    pictures: str | None = None
    calibrations: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def against(self) -> tuple[str, ...]:
        """The versions whose galleries the new queries were tried on."""
        return tuple(cell.version for cell in self.cells)


def save_check(workspace: Path, check: Check, name: str | None = None) -> Path:
    """Keep a check; the last one counts. ``name`` is that of its file, unless it is the version's."""
    path = workspace / "checks" / f"{name or check.version}.json"
    replace_json(path, {"format": "fixstar-check", **asdict(check)})
    return path


def last_check(workspace: Path, version: str) -> Check | None:
    """The last check of a version, if there was one."""
    path = workspace / "checks" / f"{version}.json"
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        content.pop("format")
        parts: dict[str, Any] = {key: tuple(content[key]) for key in ("reasons", "notes")}
        parts["cells"] = tuple(_cell(cell) for cell in content["cells"])
        parts["calibrations"] = {name: _pair(*pair) for name, pair in content.get("calibrations", {}).items()}
        return Check(**{**content, **parts})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is damaged ({error}); make it anew with: fixstar check {version}") from error


def _cell(content: dict[str, Any]) -> CheckedCell:
    return CheckedCell(**{**content, "lost": tuple(map(_lost, content["lost"]))})


def _pair(slope: float, offset: float) -> tuple[float, float]:
    if not slope > 0:
        raise ValueError(f"a calibration has a slope above zero, not {slope}")
    return float(slope), float(offset)


def _lost(content: dict[str, Any]) -> LostAnswer:
    rows = content.get("rows")
    return LostAnswer(content["label"], content["found"], None if rows is None else (rows[0], rows[1], rows[2]))


class CheckedCalibrations:
    """The calibrations of versions' last checks. Reading costs one look at a file's stamp, so every search may ask."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._files: dict[str, WatchedFile[Mapping[str, Calibration]]] = {}

    def of(self, version: str) -> Mapping[str, Calibration]:
        """By gallery version. None where there is no check, or no readable one: a search does without, then."""
        if version not in self._files:
            file = self._workspace / "checks" / f"{version}.json"
            self._files[version] = WatchedFile(file, lambda _: self._parsed(version), {})
        try:
            return self._files[version].content()
        except (OSError, ValueError):  # a name that no file can have is no version of ours
            return {}

    def _parsed(self, version: str) -> Mapping[str, Calibration]:
        try:
            check = last_check(self._workspace, version)
        except ModelError:
            return {}
        return {} if check is None else {name: Calibration(*pair) for name, pair in check.calibrations.items()}


def demand(check: Check | None, version: str, live: Iterable[str]) -> Check:
    """The check, if it allows to deploy ``version`` over vectors of the ``live`` versions; else why not."""
    repeat = f"run: fixstar check {version}"
    force = f'or deploy all the same with a reason: fixstar deploy {version} --force "REASON"'
    if check is None:
        raise GateError(f"{version} was never checked; {repeat}, {force}")
    if check.outcome != "pass":
        why = "; ".join(check.reasons) or check.outcome
        raise GateError(f"the check of {version} did not pass ({check.outcome}): {why}. Train it better, {force}")
    if unseen := [name for name in live if name != version and name not in check.against]:
        raise GateError(
            f"{version} was checked before vectors of {', '.join(unseen)} were there to be searched; "
            f"{repeat} again, {force}"
        )
    return check


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
