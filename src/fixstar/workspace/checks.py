"""What the gate found about a version. A deployment requires it.

checks/v2.json                the check that counts: the last one that is not weaker than the one before
checks/v2/check-NUMBER-*.json  every check of v2, for ever
checks/v2/flips-*             pictures of the negative flips of the check that counts; the images may be gone

A check counts only for the versions it was made against: vectors of another version that arrive later make it
incomplete. Versions are never rewritten, so an old check stays true.
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


HELD_OUT_WORDS = "held out from training"  # labelled images that have no name


@dataclass(frozen=True)
class FlippedAnswer:
    """A query that one of two versions answers correctly; ``rows`` are query, image found before, and found now."""

    label: str
    found: str
    rows: tuple[int, int, int] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class ClassChange:
    """How many queries of a class there are, and how many of them are lost and won."""

    label: str
    queries: int
    lost: int
    won: int


@dataclass(frozen=True)
class OneModel:
    """What one model per query finds where two were judged: queries by the new version alone."""

    cross_test: float
    low: float
    high: float
    verdict: Verdict
    weight: float


@dataclass(frozen=True)
class CheckedCell:
    """New queries on the vectors of ``version``: cross-test minus that version's self-test, with its interval.

    ``translation`` is the file of the translation that was judged, None where both versions share a space and none is
    needed; ``weight`` is its w, and ``models`` are the versions that embed a query. ``one_model`` is the same with the
    new version alone, if two models were judged. ``lost`` and ``won`` list some of the flips, ``classes`` those that
    lose most and win most, heaviest net loss first. With known relevant items all figures are nDCG@10, and ``measured``
    has further measures by name: before, after, and with everything embedded again.
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
        """What the new queries gain on these vectors; a loss is negative."""
        return self.cross_test - self.self_test

    @property
    def judged(self) -> Difference:
        """The difference with its interval and verdict."""
        return Difference(
            mean=self.difference, low=self.low, high=self.high, verdict=self.verdict, differing=self.differing
        )

    @property
    def share_at_once(self) -> float | None:
        """The share of the gain of re-embedding everything that is reached without it; None if there is no gain."""
        if self.reembedded is None or self.reembedded <= self.self_test:
            return None
        return self.difference / (self.reembedded - self.self_test)


@dataclass(frozen=True)
class Check:
    """The verdict on one version's queries. ``reasons`` is the evidence in sentences, ``notes`` is worth knowing.

    ``report`` and ``pictures`` are paths in the workspace. ``calibrations`` (slope and offset by gallery version) turn
    scores into probabilities. ``thresholds`` tell hits from what is probably not in the gallery. ``self_test`` is what
    the version finds if everything is embedded again.
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
        """The versions whose galleries the new queries were tried on."""
        return tuple(cell.version for cell in self.cells)

    @property
    def translations(self) -> dict[str, str]:
        """The files of the translations that were judged, by the version whose vectors they carry."""
        return {cell.version: cell.translation for cell in self.cells if cell.translation is not None}

    @property
    def classes(self) -> int:
        """How many classes the labelled images are of."""
        return int(self.data.get("classes", 0))

    @property
    def images(self) -> str:
        """Which labelled images it used, in words."""
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
        parts["calibrations"] = {name: _calibration(*pair) for name, pair in content["calibrations"].items()}
        parts["thresholds"] = {name: Threshold(**one) for name, one in content["thresholds"].items()}
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
    return FlippedAnswer(content["label"], content["found"], None if rows is None else (rows[0], rows[1], rows[2]))


def _calibration(slope: float, offset: float) -> tuple[float, float]:
    if not slope > 0:
        raise ValueError(f"the slope of a calibration is above zero, not {slope}")
    return float(slope), float(offset)


def is_weaker(check: Check, other: Check, galleries: Iterable[str]) -> bool:
    """Whether an earlier check ``other`` keeps its place against ``check``, as far as ``galleries`` are concerned.

    It must have judged them all with as many queries. It keeps its place if it decided and ``check`` did not. If both
    decided, it keeps its place with more queries, unless it asked an easier question. One that did not pass says
    nothing about another way to search these vectors, such as a translation that was fitted since.
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
    alike = bool(asked) or not other.against  # vectors that are gone say nothing about those that are there
    return alike and more and as_strict


def _ways(check: Check, galleries: set[str]) -> dict[str, tuple[bool, tuple[str, ...]]]:
    """How vectors of these galleries were searched: whether translated, and which models embedded the queries."""
    judged = [cell for cell in check.cells if cell.version in galleries]
    return {cell.version: (cell.translation is not None, cell.models) for cell in judged}


def _speaks_of(check: Check, galleries: set[str]) -> bool:
    """Whether a check judged all these galleries, and did not fail because of another one."""
    judged = set(check.against)
    return galleries <= judged and (check.outcome == "pass" or not galleries or galleries == judged)


def strongest_check(checks: Sequence[Check], searched: Iterable[str]) -> Check | None:
    """Of a version's checks, oldest first, the one that counts over these versions' vectors, else the newest."""
    galleries = set(searched)
    found = None
    for check in checks:
        if _speaks_of(check, galleries) and (found is None or not is_weaker(check, found, galleries)):
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
    """The last check of a version that counts, if there was one."""
    path = workspace / "checks" / f"{version}.json"
    if path.is_file():
        return _read_check(path, version)
    return None


def check_history(workspace: Path, version: str) -> list[Check]:
    """All checks of a version, oldest first. Damaged files are left out."""
    found = []
    for path in sorted((workspace / "checks" / version).glob("check-*.json")):
        with contextlib.suppress(ModelError):
            found.append(_read_check(path, version))
    return found


def checks_on_one_set(workspace: Path, versions: Iterable[str]) -> list[Check]:
    """What checks measured on one set of images, newest first, one check per version: their figures compare.

    It is the set of the newest check that counts. Of each version the check that counts is taken if it used this set,
    else the newest one that did. A damaged check is as good as none.
    """
    counting: dict[str, Check | None] = {}
    for version in versions:
        counting[version] = LastChecks(workspace).of(version)
    measured = [check for check in counting.values() if check is not None and check.self_test is not None]
    if not measured:
        return []
    images = _images_of(max(measured, key=lambda check: check.when))
    found = []
    for version, check in counting.items():
        if check is None or _images_of(check) != images:
            earlier = [one for one in check_history(workspace, version) if _images_of(one) == images]
            check = earlier[-1] if earlier else None
        if check is not None:
            found.append(check)
    return sorted(found, key=lambda check: check.when, reverse=True)


def _images_of(check: Check) -> tuple[str, str]:
    """Which labelled images a check used."""
    return str(check.data.get("fingerprint", "")), check.images


def _read_check(path: Path, version: str) -> Check:
    try:
        return parse_document(path, "check", Check.from_json)
    except ModelError as error:
        raise ModelError(str(error), NextStep("check", {"version": version})) from error


def outweighing_check(workspace: Path, check: Check) -> Check | None:
    """The earlier check of the same version that still counts after a new one; None if the new one does."""
    try:
        other = last_check(workspace, check.version)
    except ModelError:  # damaged: the new one replaces it
        return None
    if other is not None and is_weaker(check, other, check.against):
        return other
    return None


class LastChecks:
    """The checks of versions that count. Reading costs one ``stat`` of a file, so every search may ask."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._files: dict[str, WatchedFile[Check | None]] = {}

    def of(self, version: str) -> Check | None:
        """None without a readable check: a search then ranks by cosine."""
        if version not in self._files:
            file = self._workspace / "checks" / f"{version}.json"
            self._files[version] = WatchedFile(file, lambda _: self._read(version), None)
        try:
            return self._files[version].content()
        except (OSError, ValueError):  # not a name that a file can have
            return None

    def _read(self, version: str) -> Check | None:
        with contextlib.suppress(ModelError):
            return last_check(self._workspace, version)
        return None


def require_passed_check(check: Check | None, version: str, searched: Iterable[str]) -> Check:
    """The check, if it allows to deploy ``version`` over vectors of the versions ``searched``; else ``GateError``."""
    again = NextStep("check", {"version": version})
    force = NextStep("deploy", {"version": version, "force": ...}, "deploy anyway, with a reason")
    if check is None:
        raise GateError(f"{version} was never checked", again, force)
    if check.outcome != "pass":
        on = f"{plural(check.queries, 'query')}, {check.images}"
        verdict = f"the check of {version} did not pass: {check.outcome} ({on})"
        steps = [_with_images(step, check) if step.action == "check" else step for step in check.next_steps]
        raise GateError("\n- ".join([verdict, *check.reasons]), *steps, force)
    if unseen := [name for name in searched if name != version and name not in check.against]:
        raise GateError(f"{version} was checked before vectors of {', '.join(unseen)} were searchable", again, force)
    return check


def _with_images(step: NextStep, check: Check) -> NextStep:
    """A repeated check needs the images of the first: by name, or given again."""
    if "data" in step.arguments or check.data.get("source") == "held out":
        return step
    named = check.data.get("source") == "named"
    return replace(step, arguments={**step.arguments, **({"name": check.images} if named else {"data": ...})})


def require_one_model(check: Check, version: str) -> None:
    """Refuse a deployment with one model per query that was not shown to find as much as before; ``GateError``."""
    two = NextStep("deploy", {"version": version}, "two models per query")
    for cell in check.cells:
        alone = cell.one_model
        if cell.version not in cell.models or (alone is not None and alone.verdict == "compatible"):
            continue
        if alone is None:
            found = "was not judged"
        else:
            found = f"finds {percent(alone.cross_test)}: {alone.verdict}"
        force = NextStep("deploy", {"version": version, "queries": "one", "force": ...}, "deploy anyway, with a reason")
        raise GateError(
            f"among vectors of {cell.version} one model per query {found}; {cell.version}'s own queries find "
            f"{percent(cell.self_test)}, and two models {percent(cell.cross_test)}",
            two,
            force,
        )


def gain_sentence(version: str, cell: CheckedCell) -> str:
    """Three numbers on one scale: now, at once after deploying, after embedding everything again."""
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
    return f"{told}: {min(share, 9.99):.0%} of the whole gain is had at once"


def listed_flips(check: Check) -> list[tuple[CheckedCell, Literal["lost", "won"], FlippedAnswer]]:
    """The flips that a check lists, in the order of their pictures: those lost on each gallery, then those won."""
    kinds: tuple[Literal["lost"], Literal["won"]] = ("lost", "won")
    return [(cell, kind, one) for cell in check.cells for kind in kinds for one in getattr(cell, kind)]


def save_flips(workspace: Path, check: Check, thumbnails: Thumbnails | None) -> str | None:
    """Save three pictures per listed flip (query, found before, found now); the path, None without any."""
    rows = [one.rows for *_, one in listed_flips(check) if one.rows is not None]
    if not rows or thumbnails is None:
        return None
    shown = [
        np.stack([np.asarray(thumbnails.query(query)), *(np.asarray(thumbnails.gallery(row)) for row in found)])
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
