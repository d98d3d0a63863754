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

from fixstar.durable import WatchedFile, document, read_document, replace_json, write_arrays
from fixstar.errors import GateError, ModelError, NextStep, plural
from fixstar.evaluation import Difference, Thumbnails
from fixstar.evaluation.evidence import Verdict

Outcome = Literal["pass", "refuse", "missing evidence"]
Shown = Literal["query", "old", "new"]


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
class CheckedCell:
    """New queries on the gallery of ``version``: cross-test minus that version's self-test, with its interval.

    ``lost`` and ``won`` list some of the flips, ``classes`` those that lose most and win most, heaviest net loss first.
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

    @property
    def difference(self) -> float:
        """What the new queries gain on that gallery; a loss is negative."""
        return self.cross_test - self.self_test

    @property
    def judged(self) -> Difference:
        """The difference with its interval and verdict."""
        return Difference(self.difference, self.low, self.high, self.verdict, self.differing)


@dataclass(frozen=True)
class Blend:
    """Queries by two models on the gallery of ``version``: slerp(its own query, the new version's, alpha).

    ``tried`` is the alpha that half of the queries chose (0 if none is better); the other half, ``queries``, judges it.
    The verdict may also be "unchanged" (0), or "apart" if nothing connects the models. ``alpha`` may be deployed:
    ``tried`` if compatible, else 1 if the new queries alone are, else 0.
    """

    version: str
    alpha: float
    tried: float
    self_test: float
    cross_test: float
    low: float
    high: float
    verdict: str
    queries: int

    @property
    def difference(self) -> float:
        """What queries blended with ``tried`` gain on that gallery; a loss is negative."""
        return self.cross_test - self.self_test


@dataclass(frozen=True)
class Threshold:
    """The cosine under which a query's best hit says that its class is probably not in the gallery.

    ``false_alarms`` is the share under it with the class in the gallery, ``detected`` without it.
    """

    cosine: float
    false_alarms: float
    detected: float
    queries: int


@dataclass(frozen=True)
class Check:
    """The verdict on one version's queries. ``reasons`` is the evidence in sentences, ``notes`` is worth knowing.

    ``report`` and ``pictures`` are paths in the workspace. ``calibrations`` (slope and offset by gallery version) turn
    cosines into probabilities; ``blend_calibrations`` are those of the ``blends``. ``thresholds`` tell hits from what
    is probably not in the gallery.
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
    blends: tuple[Blend, ...] = ()
    blend_calibrations: dict[str, tuple[float, float]] = field(default_factory=dict)
    thresholds: dict[str, Threshold] = field(default_factory=dict)

    @property
    def against(self) -> tuple[str, ...]:
        """The versions whose galleries the new queries were tried on."""
        return tuple(cell.version for cell in self.cells)

    @property
    def classes(self) -> int:
        """How many classes the labelled images are of."""
        return int(self.data.get("classes", 0))

    @property
    def images(self) -> str:
        """Which labelled images it used, in words."""
        if self.data.get("source") == "held out":
            return "held out from training"
        return str(self.data.get("name") or ("given" if self.data else "no images"))

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "next_steps": [step.to_json() for step in self.next_steps]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Check:
        """The check that ``to_json`` wrote."""
        parts: dict[str, Any] = {key: tuple(content[key]) for key in ("reasons", "notes")}
        parts["cells"] = tuple(
            CheckedCell(
                **{
                    **cell,
                    "lost": tuple(map(_flipped_answer, cell["lost"])),
                    "won": tuple(map(_flipped_answer, cell.get("won", ()))),
                    "classes": tuple(ClassChange(**one) for one in cell.get("classes", ())),
                }
            )
            for cell in content["cells"]
        )
        parts["blends"] = tuple(Blend(**blend) for blend in content["blends"])
        for fitted in ("calibrations", "blend_calibrations"):
            parts[fitted] = {name: _calibration(*pair) for name, pair in content[fitted].items()}
        parts["thresholds"] = {name: Threshold(**one) for name, one in content.get("thresholds", {}).items()}
        parts["next_steps"] = tuple(map(NextStep.from_json, content["next_steps"]))
        return cls(**{**content, **parts})


def _flipped_answer(content: dict[str, Any]) -> FlippedAnswer:
    rows = content["rows"]
    return FlippedAnswer(content["label"], content["found"], None if rows is None else (rows[0], rows[1], rows[2]))


def _calibration(slope: float, offset: float) -> tuple[float, float]:
    if not slope > 0:
        raise ValueError(f"the slope of a calibration is above zero, not {slope}")
    return float(slope), float(offset)


def is_weaker(check: Check, other: Check, galleries: Iterable[str]) -> bool:
    """Whether an earlier check ``other`` keeps its place against ``check``, as far as ``galleries`` are concerned.

    It must have judged them all with as many queries and classes, and not have asked an easier question. With equal
    evidence it stays only if it decided and ``check`` did not.
    """
    mine, others = (check.queries, check.classes), (other.queries, other.classes)
    if not _speaks_of(other, set(galleries)) or mine[0] > others[0] or mine[1] > others[1]:
        return False
    if check.outcome == "missing evidence" != other.outcome:
        return True
    return (
        bool(set(galleries))
        and mine != others
        and other.tolerance <= check.tolerance
        and other.confidence >= check.confidence
    )


def _speaks_of(check: Check, galleries: set[str]) -> bool:
    """Whether a check judged all these galleries, and did not fail because of another one."""
    judged = set(check.against)
    return galleries <= judged and (check.outcome == "pass" or not galleries or galleries == judged)


def strongest_check(checks: Sequence[Check], searched: Iterable[str]) -> Check | None:
    """Of a version's checks, oldest first, the one that counts over these versions' vectors, else the newest."""
    galleries, found = set(searched), None
    for check in checks:
        if _speaks_of(check, galleries) and (found is None or not is_weaker(check, found, galleries)):
            found = check
    return found or (checks[-1] if checks else None)


def save_check(workspace: Path, check: Check, name: str | None = None) -> Path:
    """Keep a check for ever, and as the one that counts unless weaker; with a ``name``, in that file alone."""
    path, content = workspace / "checks" / f"{name or check.version}.json", document("check", check.to_json())
    if name is None:
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
    return _read_check(path, version) if path.is_file() else None


def check_history(workspace: Path, version: str) -> list[Check]:
    """All checks of a version, oldest first. Damaged files are left out."""
    found = []
    for path in sorted((workspace / "checks" / version).glob("check-*.json")):
        with contextlib.suppress(ModelError):
            found.append(_read_check(path, version))
    return found


def _read_check(path: Path, version: str) -> Check:
    try:
        return Check.from_json(read_document(path, "check"))
    except (ModelError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ModelError(f"{path} is damaged ({error})", NextStep("check", {"version": version})) from error


def outweighing_check(workspace: Path, check: Check) -> Check | None:
    """The earlier check of the same version that still counts after a new one; None if the new one does."""
    try:
        other = last_check(workspace, check.version)
    except ModelError:  # damaged: the new one replaces it
        return None
    return other if other is not None and is_weaker(check, other, check.against) else None


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


def judged_blend(
    check: Check | None, version: str, searched: Iterable[str], wanted: float | Literal["auto"]
) -> dict[str, float]:
    """Alpha by gallery version, if the check allows to deploy ``version`` with such queries; else ``GateError``.

    ``wanted`` is "auto", or one alpha, which must be the one that was judged; 0, the old query, needs no evidence.
    """
    auto = NextStep(
        "deploy", {"version": version, "blend": "auto"}, "the alpha that the check chose, or the old queries"
    )
    force = NextStep("deploy", {"version": version, "blend": wanted, "force": ...}, "deploy anyway, with a reason")
    if check is None:
        raise GateError(f"{version} was never checked", NextStep("check", {"version": version}), force)
    known = {blend.version for blend in check.blends}
    if unseen := [name for name in searched if name != version and name not in known]:
        raise GateError(
            f"the check of {version} has not tried blended queries on vectors of {', '.join(unseen)}: they are newer "
            "than the check, or their model is not here",
            NextStep("check", {"version": version}),
            force,
        )
    if wanted == "auto":
        return {blend.version: blend.alpha for blend in check.blends}
    for blend in check.blends:
        judged = "apart" if blend.verdict == "apart" else blend.verdict if blend.tried == wanted else "not judged"
        if wanted and judged not in ("compatible", "apart"):
            raise GateError(
                f"queries blended with {blend.version}'s at alpha {wanted:g} were not shown to find as much as before "
                f"among vectors of {blend.version}: {judged}. The check tried alpha {blend.tried:g}: {blend.verdict}",
                NextStep("check", {"version": version, "blend": wanted}, "judge this alpha"),
                auto,
                force,
            )
    return {blend.version: 0.0 if blend.verdict == "apart" else wanted for blend in check.blends}


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
    write_arrays(workspace / name, "flips", {}, {"flips": np.stack(shown)})
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
