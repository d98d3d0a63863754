"""The results of the gate for a version. A deployment requires a passed check.

checks/v2.json                the current check: the last one that is not weaker than the one before
checks/v2/check-NUMBER-*.json  all checks of v2; never deleted
checks/v2/flips-*             pictures of the flips of the current check; the images themselves may be gone

A check covers only the versions it was made against. If vectors of another version arrive later, it is incomplete.
Versions are never rewritten, so an old check stays valid.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fixstar.durable import WatchedFile, document, parse_document, replace_json, write_arrays
from fixstar.errors import GateError, ModelError, NextStep, plural
from fixstar.evaluation import Difference, Thumbnails
from fixstar.evaluation.evidence import Verdict
from fixstar.translation.calibrate import Threshold
from fixstar.wording import percent

Outcome = Literal["pass", "refuse", "missing evidence"]
Shown = Literal["query", "old", "new"]


HELD_OUT_WORDS = "held out from training"  # labelled images without a name


@dataclass(frozen=True)
class FlippedAnswer:
    """A query that only one of two versions answers correctly; ``rows``: query, image found before, image found now."""

    label: str
    found: str
    rows: tuple[int, int, int] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class ClassChange:
    """The number of queries of a class, and how many are lost and won."""

    label: str
    queries: int
    lost: int
    won: int


@dataclass(frozen=True)
class OneModel:
    """The result with one model per query (the new version alone), if two models were judged."""

    cross_test: float
    low: float
    high: float
    verdict: Verdict
    weight: float


@dataclass(frozen=True)
class CheckedCell:
    """New queries on the vectors of ``version``: cross-test minus that version's self-test, with its interval.

    ``translation`` is the file of the judged translation, None if both versions share a space. ``weight`` is its w, and
    ``models`` are the versions that embed a query. ``one_model`` is the result with the new version alone, if two
    models were judged. ``lost`` and ``won`` list some of the flips. ``classes`` lists the classes that lose and win
    most, largest net loss first. With known relevant items all figures are nDCG@10, and ``measured`` has more
    measures by name: before, after, and with everything re-embedded.
    """

    version: str
    self_test: float
    cross_test: float
    low: float
    high: float
    verdict: Verdict
    differing: int
    negative_flips: int
    positive_flips: int
    lost: tuple[FlippedAnswer, ...] = ()
    won: tuple[FlippedAnswer, ...] = ()
    classes: tuple[ClassChange, ...] = ()
    translation: str | None = None
    weight: float = 0.0
    models: tuple[str, ...] = ()
    reembedded: float | None = None
    one_model: OneModel | None = None
    measured: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def difference(self) -> float:
        """The gain of the new queries on these vectors; negative for a loss."""
        return self.cross_test - self.self_test

    @property
    def judged(self) -> Difference:
        """The difference with its interval and verdict."""
        return Difference(
            mean=self.difference,
            low=self.low,
            high=self.high,
            verdict=self.verdict,
            differing=self.differing,
        )

    @property
    def share_at_once(self) -> float | None:
        """The share of the full gain (everything re-embedded) that is reached at once; None without a full gain."""
        if self.reembedded is None or self.reembedded <= self.self_test:
            return None
        return self.difference / (self.reembedded - self.self_test)


@dataclass(frozen=True)
class Check:
    """The verdict on one version's queries. ``reasons`` is the evidence in sentences, ``notes`` are further remarks.

    ``report`` and ``pictures`` are paths in the workspace. ``calibrations`` (slope and offset by gallery version) turn
    scores into probabilities. Below ``thresholds`` a hit is probably not a match. ``self_test`` is the accuracy with
    everything re-embedded.
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
    next_steps: tuple[NextStep, ...] = ()
    thresholds: dict[str, Threshold] = field(default_factory=dict)

    @property
    def against(self) -> tuple[str, ...]:
        """The versions whose vectors the new queries were tested on."""
        return tuple(cell.version for cell in self.cells)

    @property
    def translations(self) -> dict[str, str]:
        """The files of the judged translations, by the version whose vectors they translate."""
        return {
            cell.version: cell.translation for cell in self.cells if cell.translation is not None
        }

    @property
    def classes(self) -> int:
        """The number of classes of the labelled images."""
        return int(self.data.get("classes", 0))

    @property
    def images(self) -> str:
        """The labelled images of the check, in words."""
        if self.data.get("source") == "held out":
            return HELD_OUT_WORDS
        return str(self.data.get("name") or ("given" if self.data else "no images"))

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "next_steps": [step.to_json() for step in self.next_steps]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Check:
        """The check that ``to_json`` wrote."""
        parts: dict[str, Any] = {key: tuple(content[key]) for key in ("reasons", "notes")}
        parts["cells"] = tuple(map(_cell, content["cells"]))
        parts["calibrations"] = {
            name: _calibration(*pair) for name, pair in content["calibrations"].items()
        }
        parts["thresholds"] = {
            name: Threshold(**one) for name, one in content["thresholds"].items()
        }
        parts["next_steps"] = tuple(map(NextStep.from_json, content["next_steps"]))
        return cls(**{**content, **parts})


def _cell(content: dict[str, Any]) -> CheckedCell:
    alone = content["one_model"]
    parts: dict[str, Any] = {
        "lost": tuple(map(_flipped_answer, content["lost"])),
        "won": tuple(map(_flipped_answer, content["won"])),
        "classes": tuple(ClassChange(**one) for one in content["classes"]),
        "models": tuple(content["models"]),
        "one_model": None if alone is None else OneModel(**alone),
    }
    return CheckedCell(**{**content, **parts})


def _flipped_answer(content: dict[str, Any]) -> FlippedAnswer:
    rows = content["rows"]
    return FlippedAnswer(
        content["label"], content["found"], None if rows is None else (rows[0], rows[1], rows[2])
    )


def _calibration(slope: float, offset: float) -> tuple[float, float]:
    if not slope > 0:
        raise ValueError(f"the slope of a calibration must be above zero, got {slope}")
    return float(slope), float(offset)


def is_weaker(check: Check, other: Check, galleries: Iterable[str]) -> bool:
    """Whether ``check`` is weaker than an earlier check ``other``, which then stays current, over ``galleries``.

    ``other`` must have judged all of them with at least as many queries. It stays if it decided and ``check`` did not.
    If both decided, it stays with more queries, unless its question was easier. A check that did not pass says nothing
    about another way to search these vectors, such as a translation fitted since.
    """
    asked = set(galleries)
    if not _speaks_of(other, asked) or check.queries > other.queries:
        return False
    if other.outcome != "pass" and _ways(other, asked) != _ways(check, asked):
        return False
    if check.outcome == "missing evidence" != other.outcome:
        return True
    as_strict = other.tolerance <= check.tolerance and other.confidence >= check.confidence
    more = (other.queries, other.classes) > (check.queries, check.classes)
    alike = (
        bool(asked) or not other.against
    )  # results on deleted vectors do not apply to existing ones
    return alike and more and as_strict


def _ways(check: Check, galleries: set[str]) -> dict[str, tuple[bool, tuple[str, ...]]]:
    """How vectors of these galleries were searched: translated or not, and by which models."""
    judged = [cell for cell in check.cells if cell.version in galleries]
    return {cell.version: (cell.translation is not None, cell.models) for cell in judged}


def _speaks_of(check: Check, galleries: set[str]) -> bool:
    """Whether a check judged all these galleries and did not fail because of another gallery."""
    judged = set(check.against)
    return galleries <= judged and (check.outcome == "pass" or not galleries or galleries == judged)


def strongest_check(checks: Sequence[Check], searched: Iterable[str]) -> Check | None:
    """The strongest of a version's checks (oldest first) over these versions' vectors, else the newest."""
    galleries = set(searched)
    found = None
    for check in checks:
        if _speaks_of(check, galleries) and (
            found is None or not is_weaker(check, found, galleries)
        ):
            found = check
    return found or (checks[-1] if checks else None)


def save_check(workspace: Path, check: Check) -> Path:
    """Append a check to the history, and make it current unless it is weaker than the current one."""
    path = workspace / "checks" / f"{check.version}.json"
    content = document("check", check.to_json())
    folder = workspace / "checks" / check.version
    number = 1 + len(list(folder.glob("check-*.json")))  # clocks may be set back
    replace_json(folder / f"check-{number:06}-{uuid.uuid4().hex[:6]}.json", content)
    if outweighing_check(workspace, check) is not None:
        return path
    replace_json(path, content)
    return path


def last_check(workspace: Path, version: str) -> Check | None:
    """The current check of a version, if there is one."""
    path = workspace / "checks" / f"{version}.json"
    if path.is_file():
        return _read_check(path, version)
    return None


def check_history(workspace: Path, version: str) -> list[Check]:
    """All checks of a version, oldest first. Damaged files are skipped."""
    found = []
    for path in sorted((workspace / "checks" / version).glob("check-*.json")):
        with contextlib.suppress(ModelError):
            found.append(_read_check(path, version))
    return found


def checks_on_one_set(workspace: Path, versions: Iterable[str]) -> list[Check]:
    """Checks on the same set of images, one per version, newest first, so that their figures are comparable.

    The set is that of the newest current check. For each version this is its current check if it used the set, else
    the newest check that did. Damaged checks are ignored.
    """
    counting: dict[str, Check | None] = {}
    for version in versions:
        counting[version] = LastChecks(workspace).of(version)
    measured = [
        check for check in counting.values() if check is not None and check.self_test is not None
    ]
    if not measured:
        return []
    images = _images_of(max(measured, key=lambda check: check.when))
    found = []
    for version, check in counting.items():
        if check is None or _images_of(check) != images:
            earlier = [
                one for one in check_history(workspace, version) if _images_of(one) == images
            ]
            check = earlier[-1] if earlier else None
        if check is not None:
            found.append(check)
    return sorted(found, key=lambda check: check.when, reverse=True)


def _images_of(check: Check) -> tuple[str, str]:
    """The identity of the labelled images that a check used."""
    return str(check.data.get("fingerprint", "")), check.images


def _read_check(path: Path, version: str) -> Check:
    try:
        return parse_document(path, "check", Check.from_json)
    except ModelError as error:
        raise ModelError(str(error), NextStep("check", {"version": version})) from error


def outweighing_check(workspace: Path, check: Check) -> Check | None:
    """The earlier check of the same version that stays current after a new one; None if the new one is current."""
    try:
        other = last_check(workspace, check.version)
    except ModelError:  # damaged: the new one replaces it
        return None
    if other is not None and is_weaker(check, other, check.against):
        return other
    return None


class LastChecks:
    """The current checks of versions. A read costs one ``stat``, so every search can afford it."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._files: dict[str, WatchedFile[Check | None]] = {}

    def of(self, version: str) -> Check | None:
        """The current check; None if there is none or it is unreadable."""
        if version not in self._files:
            file = self._workspace / "checks" / f"{version}.json"
            self._files[version] = WatchedFile(file, lambda _: self._read(version), None)
        try:
            return self._files[version].content()
        except (OSError, ValueError):  # not a valid file name
            return None

    def _read(self, version: str) -> Check | None:
        with contextlib.suppress(ModelError):
            return last_check(self._workspace, version)
        return None


def require_passed_check(check: Check | None, version: str, searched: Iterable[str]) -> Check:
    """The check if it allows deploying ``version`` over vectors of the versions ``searched``; else ``GateError``."""
    again = NextStep("check", {"version": version})
    force = NextStep("deploy", {"version": version, "force": ...}, "deploy anyway, with a reason")
    if check is None:
        raise GateError(f"{version} was never checked", again, force)
    if check.outcome != "pass":
        on = f"{plural(check.queries, 'query')}, {check.images}"
        verdict = f"the check of {version} did not pass: {check.outcome} ({on})"
        steps = [
            _with_images(step, check) if step.action == "check" else step
            for step in check.next_steps
        ]
        raise GateError("\n- ".join([verdict, *check.reasons]), *steps, force)
    if unseen := [name for name in searched if name != version and name not in check.against]:
        raise GateError(
            f"{version} was checked before vectors of {', '.join(unseen)} were searchable",
            again,
            force,
        )
    return check


def _with_images(step: NextStep, check: Check) -> NextStep:
    """Add the images of the first check to the step that repeats it: by name, or to be given again."""
    if "data" in step.arguments or check.data.get("source") == "held out":
        return step
    named = check.data.get("source") == "named"
    return replace(
        step, arguments={**step.arguments, **({"name": check.images} if named else {"data": ...})}
    )


def require_one_model(check: Check, version: str) -> None:
    """Raise ``GateError`` unless one model per query was shown to find as much as before."""
    two = NextStep("deploy", {"version": version}, "two models per query")
    for cell in check.cells:
        alone = cell.one_model
        if cell.version not in cell.models or (alone is not None and alone.verdict == "compatible"):
            continue
        if alone is None:
            found = "was not judged"
        else:
            found = f"finds {percent(alone.cross_test)}: {alone.verdict}"
        force = NextStep(
            "deploy",
            {"version": version, "queries": "one", "force": ...},
            "deploy anyway, with a reason",
        )
        raise GateError(
            f"among vectors of {cell.version} one model per query {found}; {cell.version}'s own queries find "
            f"{percent(cell.self_test)}, and two models {percent(cell.cross_test)}",
            two,
            force,
        )


def gain_sentence(version: str, cell: CheckedCell) -> str:
    """Accuracy now, at once after deploying, and after re-embedding everything."""
    if cell.reembedded is None:
        return ""
    told = (
        f"Now {percent(cell.self_test)}; at once {percent(cell.cross_test)}; with everything embedded again "
        f"{percent(cell.reembedded)}"
    )
    share = cell.share_at_once
    if share is None:
        return f"{told}. {version} is no better than {cell.version} here: keep {cell.version}"
    if share <= 0:
        return told
    return f"{told}: {min(share, 9.99):.0%} of the whole gain is reached at once"


def listed_flips(check: Check) -> list[tuple[CheckedCell, Literal["lost", "won"], FlippedAnswer]]:
    """The listed flips of a check, in the order of their pictures: lost, then won, gallery by gallery."""
    kinds: tuple[Literal["lost"], Literal["won"]] = ("lost", "won")
    return [
        (cell, kind, one) for cell in check.cells for kind in kinds for one in getattr(cell, kind)
    ]


def save_flips(workspace: Path, check: Check, thumbnails: Thumbnails | None) -> str | None:
    """Save three pictures per listed flip (query, found before, found now); returns the path, or None without any."""
    rows = [one.rows for *_, one in listed_flips(check) if one.rows is not None]
    if not rows or thumbnails is None:
        return None
    shown = [
        np.stack(
            [
                np.asarray(thumbnails.query(query)),
                *(np.asarray(thumbnails.gallery(row)) for row in found),
            ]
        )
        for query, *found in rows
    ]
    name = f"checks/{check.version}/flips-{uuid.uuid4().hex[:12]}.safetensors"  # readers of the last check keep theirs
    write_arrays(workspace / name, name="flips", content={}, arrays={"flips": np.stack(shown)})
    return name


def delete_old_flips(workspace: Path, check: Check) -> None:
    """Delete the pictures of earlier checks of the same version."""
    for path in (workspace / "checks" / check.version).glob("flips-*.safetensors"):
        if check.pictures is None or path.name != Path(check.pictures).name:
            path.unlink(missing_ok=True)


def flip_picture(workspace: Path, check: Check, number: int, which: Shown) -> NDArray[Any] | None:
    """Pixels [height, width, 3] of one picture; ``number`` counts the flips of all cells. None if there is none."""
    from safetensors import SafetensorError, safe_open

    if check.pictures is None or number < 0:
        return None
    try:
        with safe_open(workspace / check.pictures, "numpy") as file:
            kept = file.get_slice("flips")
            if number >= kept.get_shape()[0]:
                return None
            pixels: NDArray[Any] = kept[number, get_args(Shown).index(which)]
            return pixels
    except FileNotFoundError:  # a newer check has just replaced it
        return None
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{check.pictures} is damaged ({error})", NextStep("check", {"version": check.version})
        ) from error
