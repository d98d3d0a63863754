"""How do queries of a version search what every other version stored? Gate, search, backfill, status and page ask here.

translations/v1-v2-1.npz, ...    translations that were fitted or chosen; never rewritten

Each version with vectors has one answer, the first of these that exists:

    the same space       the version itself; for v1 also NAME@v1, vectors that v1's model made elsewhere
    deployed             the translation that the deployment names
    checked              the translation that the version's last check chose
    a shared space       versions trained to share one space, or declared compatible: a translation
                         between these is used only where a check chose it
    fitted               the newest translation fitted between the two, in either direction
    through others       a chain of translations, from version to version
    old queries          the other version's own queries, if its model is available

A version without any answer is left out of a search, and the result says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from fixstar.durable import exclusive, file_stamp
from fixstar.errors import InputError
from fixstar.gallery import Gallery, VersionSpace
from fixstar.translation import Calibration, Translation, load_translation, save_translation
from fixstar.versions import home_of
from fixstar.workspace.checks import LastChecks
from fixstar.workspace.deployment import Move, Rollout
from fixstar.workspace.registry import Card, Registry, lineage

FOLDER = "translations"
OLD_WIDTH = "old_vectors_width"  # of a card's ``about``: the width of the vectors that it was trained to agree with
OWN_SPACE = "own_space"  # of a card's ``about``: trained freely, so its space is not its parent's
CHOSEN = "chosen by a check"
"""In a translation's ``about``: chosen among fitted ones. In a bridge, "chosen" means a way to search."""
SCALE = "scale"  # of a translation's ``about``: slope and offset that standardise its scores
ONE_SCALE = "scale_one"  # the same with one model per query, if two are the default
TARGET_SCALE = "target_scale"  # those of the target's queries among its own vectors

_WAIT = 10.0  # seconds to wait for another process that writes here
_LONGEST = 4  # maximum length of a chain of translations
_PLANS = 100  # kept per version, at most


class Scales(NamedTuple):
    """Slope and offset that make scores comparable, by version; ``calibrated``: the scores become probabilities."""

    by_version: Mapping[str, Calibration]
    calibrated: bool = False


@dataclass(frozen=True)
class SearchPlan:
    """How queries of one version search the vectors that are stored now; a search only follows it.

    ``asked`` are the translations by the version that stored the vectors, the version's own vectors last.
    ``left_out`` are versions whose vectors these queries cannot reach. ``embedding`` are the models that should embed
    each query, ``models`` those that the search uses, both with the version itself first. ``thresholds`` are the
    scores, by version searched, under which a hit is probably no match.
    """

    asked: Mapping[str, Translation]
    left_out: tuple[str, ...]
    embedding: tuple[str, ...]
    models: tuple[str, ...]
    scales: Scales
    thresholds: Mapping[str, float]


class _Known(NamedTuple):
    """What the answers for a version depend on, and the answers; a plan also depends on what is asked of it."""

    seen: tuple[object, ...]
    ways: dict[str, Translation]
    plans: dict[tuple[object, ...], SearchPlan]


class Translations:
    """The answers for one workspace, cached while their inputs do not change. Threads and processes may share it."""

    def __init__(self, registry: Registry, rollout: Rollout, gallery: Gallery) -> None:
        self._registry = registry
        self._rollout = rollout
        self._gallery = gallery
        self._checks = LastChecks(registry.path)
        self._directory = registry.path / FOLDER
        self._folders = (self._directory, registry.files.finished, registry.files.retired)
        self._loaded: dict[str, Translation] = {}
        self._known: dict[str, _Known] = {}

    # --- the question

    def of(self, version: str, move: Move | None = None) -> Mapping[str, Translation]:
        """How queries of a version search the vectors of each gallery version, itself included; some may be missing.

        The source of a translation is the version whose space the vectors lie in: v1 for those called NAME@v1.
        ``move`` is the deployment, if the caller has read it: a search reads it once.
        """
        move = move or self._rollout.current_move()
        return self._now(version, move, stored=self._gallery.count()).ways

    def _now(self, version: str, move: Move, stored: Collection[str]) -> _Known:
        """The answers for queries of a version, where the gallery has these versions, which never change."""
        check = self._checks.of(version)
        deployed = move if move.version == version else None
        seen = (tuple(stored), deployed, check, *map(file_stamp, self._folders))
        known = self._known.get(version)
        if known is None or known.seen != seen:
            known = _Known(seen, self._answers(version, self._gallery.versions(), deployed), {})
            self._known[version] = known
        return known

    def after(self, move: Move) -> Mapping[str, Translation]:
        """How queries would search under this deployment, such as the one that a rollback restores."""
        return self._answers(move.version, self._gallery.versions(), move)

    def _answers(
        self, version: str, spaces: Sequence[VersionSpace], deployed: Move | None
    ) -> dict[str, Translation]:
        check = self._checks.of(version)
        chosen = {} if check is None else check.translations
        named = {**chosen, **(deployed.translations if deployed is not None else {})}
        shared = sharing_space(self._registry, version, spaces)
        homes = self._registry.homes(space.name for space in spaces)
        found = {}
        for space in spaces:
            home = homes[space.name]
            if home != space.name and space.name not in sharing_space(self._registry, home, spaces):
                continue  # its width differs from that of the version it is named after
            way = self._answer(home, version, named, shared=space.name in shared)
            if way is not None:
                found[space.name] = way
        return found

    def _answer(
        self, source: str, version: str, named: Mapping[str, str], shared: bool
    ) -> Translation | None:
        if source == version:
            return Translation.between_shared(source, version)
        if source in named:
            return self.load(named[source])
        if shared:
            return Translation.between_shared(source, version)
        newest = next(iter(self.fitted(source, version)), None)
        if newest is not None:
            return newest
        back = next(iter(self.fitted(version, source)), None)
        if back is not None:
            return _backwards(back)
        through = self._through_others(source, version)
        if through is not None:
            return through
        if source in self._registry.names():
            return Translation.by_old_queries(source, version)
        return None

    def _through_others(self, source: str, version: str) -> Translation | None:
        """The shortest chain of fitted translations between two versions, composed; None without one."""
        fitted = self._fitted_pairs()
        known = sorted({*fitted, *((target, origin) for origin, target in fitted)})
        rows: list[list[str]] = [[source]]
        reached = {source}
        while rows and len(rows[0]) <= _LONGEST:
            row = rows.pop(0)
            for origin, target in known:
                if origin != row[-1] or target in reached:
                    continue
                if target == version:
                    return self._composed([*row, target])
                reached.add(target)
                rows.append([*row, target])
        return None

    def _composed(self, row: Sequence[str]) -> Translation | None:
        way: Translation | None = None
        for origin, target in pairwise(row):
            step = next(iter(self.fitted(origin, target)), None)
            if step is None:
                step = _backwards(next(iter(self.fitted(target, origin))))
            try:
                way = step if way is None else way.then(step)
            except InputError:  # a map is missing
                return None
        return way

    # --- a search

    def plan(
        self,
        version: str,
        move: Move,
        embedded: Set[str] | None = None,
        only: Collection[str] | None = None,
        calibrate: bool = True,
    ) -> SearchPlan:
        """How queries of a version search now, under a deployment; kept as long as nothing that it depends on changes.

        ``embedded`` are the models that embedded the queries; by default all that are here and help. ``only`` are the
        versions to search, and ``calibrate`` makes scores of several versions comparable, as in ``SearchRequest``.
        """
        counts = self._gallery.count()
        known = self._now(version, move, stored=counts)
        live = tuple(
            name for name, count in counts.items() if count and (only is None or name in only)
        )
        key = (live, embedded, calibrate)
        plan = known.plans.get(key)
        if plan is None:
            plan = self._planned(
                version, move, known.ways, live=live, embedded=embedded, calibrate=calibrate
            )
            if len(known.plans) == _PLANS:  # one per set of versions that clients search
                known.plans.clear()
            known.plans[key] = plan
        return plan

    def _planned(
        self,
        version: str,
        move: Move,
        ways: Mapping[str, Translation],
        *,
        live: Sequence[str],
        embedded: Set[str] | None,
        calibrate: bool,
    ) -> SearchPlan:
        if embedded is None:
            embedded = self._wanted(version, [ways[name] for name in live if name in ways])
        asked: dict[str, Translation] = {}
        for name in sorted(
            live, key=lambda name: name == version
        ):  # an item that moves to it is found once
            way = usable(ways.get(name), embedded)
            if way is not None:
                asked[name] = way
        scales = Scales({})
        if calibrate:
            scales = self.scales(version, asked, move)
        check = self._checks.of(version)
        thresholds: dict[str, float] = {}
        if check is not None:
            thresholds = {
                name: found.score for name, found in check.thresholds.items() if name in asked
            }
        if scales.calibrated:
            thresholds = {
                name: float(scales.by_version[name].probability(score))
                for name, score in thresholds.items()
            }
        used = {model for way in asked.values() for model in way.models}
        return SearchPlan(
            asked=asked,
            left_out=tuple(name for name in live if name not in asked),
            embedding=_own_first(embedded, version),
            models=_own_first(used or {version}, version),
            scales=scales,
            thresholds=thresholds,
        )

    def _wanted(self, version: str, ways: Sequence[Translation]) -> set[str]:
        """The models that should embed queries. Where all vectors are asked by their own models, the version need not.

        A translation whose other model was retired is asked by the version alone.
        """
        here = set(self._registry.names())
        wanted: set[str] = set()
        for way in ways:
            if here.issuperset(way.models):
                wanted.update(way.models)
            else:
                wanted.add(version)
        return wanted or {version}

    # --- one scale

    def scales(
        self, version: str, asked: Mapping[str, Translation], move: Move | None = None
    ) -> Scales:
        """How scores of several versions, each searched through a translation, are made comparable.

        Calibrations, if all versions have them for the same number of models per query. Else scales without labels,
        from the scores of unrelated items. Empty if neither is known, or if only one version is searched.
        ``move`` as in ``of``.
        """
        if len(asked) < 2:
            return Scales({})
        move = move or self._rollout.current_move()
        fitted = self._calibrations(version, asked, move)
        if fitted:
            return Scales({name: Calibration(*fitted[name]) for name in asked}, calibrated=True)
        return self._standardised(version, asked, move)

    def _calibrations(
        self, version: str, asked: Mapping[str, Translation], move: Move
    ) -> Mapping[str, tuple[float, float]]:
        """Calibrations of the deployment, else of the last check, if they apply to these translations; else empty."""
        if move.version == version and asked.keys() <= move.calibrations.keys():
            deployed = self.of(version, move)
            if all(deployed[name].models == way.models for name, way in asked.items()):
                return move.calibrations
        check = self._checks.of(version)
        if check is None or not asked.keys() <= check.calibrations.keys():
            return {}
        judged = {cell.version: cell.models for cell in check.cells if cell.models}
        if any(judged.get(way.source, way.models) != way.models for way in asked.values()):
            return {}
        return check.calibrations

    def _standardised(self, version: str, asked: Mapping[str, Translation], move: Move) -> Scales:
        found: dict[str, Calibration] = {}
        for name, way in asked.items():
            if way.two is None and ONE_SCALE in way.about:
                key = ONE_SCALE
            else:
                key = SCALE
            if name != version and key in way.about:
                found[name] = Calibration(*way.about[key])
        ways = self.of(version, move).values()
        own = [
            way.about[TARGET_SCALE]
            for way in ways
            if TARGET_SCALE in way.about and way.target == version
        ]
        if own:
            found[version] = Calibration(*own[0])
        complete = asked.keys() <= found.keys()
        return Scales({name: found[name] for name in asked} if complete else {})

    # --- files

    def load(self, name: str) -> Translation:
        """The translation of a file's name, loaded the first time."""
        if name not in self._loaded:
            self._loaded[name] = load_translation(self._directory / name)
        return self._loaded[name]

    def fitted(self, source: str, target: str) -> list[Translation]:
        """The translations of the newest fit from one version to another, the preferred one first."""
        files = self._files(source, target)
        ways = [self.load(files[number]) for number in sorted(files, reverse=True)]
        fitted = [way for way in ways if not way.about.get(CHOSEN)]
        if not fitted:
            return []
        newest = fitted[0].about.get("fit")
        return [way for way in fitted if way.about.get("fit") == newest][::-1]

    def keep(self, way: Translation) -> str:
        """Store a translation; returns its file name."""
        seen = f"another process has been writing in {self._directory} for {_WAIT:.0f} s; try again when it is done"
        with exclusive(self._directory, _WAIT, InputError(seen)):
            number = 1 + max(self._files(way.source, way.target), default=0)
            name = f"{_quoted(way.source)}-{_quoted(way.target)}-{number}.npz"
            save_translation(way, self._directory / name, onnx=False)
        self._loaded[name] = way
        return name

    def _files(self, source: str, target: str) -> dict[int, str]:
        """The names of the files of translations between two versions, by their numbers."""
        stem = f"{_quoted(source)}-{_quoted(target)}-"
        found: dict[int, str] = {}
        for file in self._directory.glob("*.npz"):
            rest = file.stem.removeprefix(stem)
            if rest != file.stem and rest.isdigit():
                found[int(rest)] = file.name
        return found

    def _fitted_pairs(self) -> set[tuple[str, str]]:
        """Pairs of versions with a fitted translation. Chosen ones do not count: they may be old queries alone."""
        ways = [self.load(file.name) for file in self._directory.glob("*.npz")]
        return {(way.source, way.target) for way in ways if not way.about.get(CHOSEN)}


def usable(way: Translation | None, embedded: Set[str]) -> Translation | None:
    """A translation for queries that these models embedded: with one model where only one did; None if none can."""
    if way is None or embedded >= set(way.models):
        return way
    if way.one is None or way.target not in embedded:
        return None
    return way.with_one_model()


def _own_first(models: Set[str], version: str) -> tuple[str, ...]:
    """Models that embed a query, in the order in which they are named."""
    return tuple(sorted(models, key=lambda name: (name != version, name)))


def _backwards(way: Translation) -> Translation:
    """The inverse translation, without the scales, which were measured in this direction."""
    about = {
        name: value
        for name, value in way.about.items()
        if name not in (SCALE, ONE_SCALE, TARGET_SCALE)
    }
    return replace(way.reversed, about=about)


def _quoted(version: str) -> str:
    """A version's name for use in a file name: quoted, without the hyphen that separates the parts."""
    return quote(version, safe="@").replace("-", "%2D")


def translation_files(workspace: Path) -> list[Path]:
    """All files of translations."""
    return sorted((workspace / FOLDER).glob("*.npz"))


# --- spaces


def sharing_space(
    registry: Registry, version: str, spaces: Sequence[VersionSpace]
) -> frozenset[str]:
    """The gallery versions in ``spaces`` that share a version's space.

    Versions trained here share a space as long as each was trained to be compatible with the one before. A version
    that was trained freely starts a new space, and so does an added model unless it was declared compatible. Full
    widths must be equal, or one grown from the other, or BCT held their first components together. Vectors that a
    version was trained to agree with (``bct-vectors``) share its space if their width is right.
    """
    known = registry.known()
    card = cache(registry.card)
    widths = {space.name: space.full_width for space in spaces}
    return frozenset(
        name
        for name in widths
        if name == version or _is_shared(card, one=version, other=name, widths=widths, known=known)
    )


def _is_shared(
    card: Card, one: str, other: str, widths: Mapping[str, int], known: Sequence[str]
) -> bool:
    my_home = home_of(one, known)
    their_home = home_of(other, known)
    if my_home is not None and their_home is not None:
        theirs = widths[other]
        mine = widths.get(one, theirs)  # not in the gallery before its encoder is first used
        if space_root(card, my_home) != space_root(card, their_home):
            return False
        return (
            mine == theirs
            or _is_grown(card(my_home), width=mine, other=card(their_home), other_width=theirs)
            or (
                (my_home, their_home) == (one, other)
                and _share_first_components(card, one, other, widths)
            )
        )
    if my_home is not None:
        return _agrees(card, my_home, widths[other])
    return their_home is not None and one in widths and _agrees(card, their_home, widths[one])


def space_root(card: Card, version: str) -> str | None:
    """The first version of a version's space; None for the space of the first version that was trained here."""
    for name in reversed(lineage(card, version)):
        about = card(name)["about"]
        if "added" in about and about.get("parent") is None:
            return name
        if about.get(OWN_SPACE):
            return name
    return None


def _is_grown(
    one: Mapping[str, Any], width: int, other: Mapping[str, Any], other_width: int
) -> bool:
    """Whether one space is the other with added simplices, by cards and widths: smaller vectors are zero there."""
    first = _simplex_widths(one)
    second = _simplex_widths(other)
    shared = min(len(first), len(second))
    whole = sum(first) == width and sum(second) == other_width
    return shared > 0 and whole and first[:shared] == second[:shared]


def _share_first_components(card: Card, one: str, other: str, widths: Mapping[str, int]) -> bool:
    """Whether every version after the older one, up to the newer, was held to its predecessor's first components.

    No version in between may be narrower than both: what lies beyond its components was held to nothing older.
    """
    line = max(lineage(card, one), lineage(card, other), key=len)
    if one not in line or other not in line:
        return False
    first, last = sorted((line.index(one), line.index(other)))
    later = line[first + 1 : last + 1]
    between = [widths[name] for name in later if name in widths]
    held = all(card(name)["about"].get("method", {}).get("shared_components") for name in later)
    return held and min(between) >= min(widths[one], widths[other])


def _simplex_widths(card: Mapping[str, Any]) -> tuple[int, ...]:
    """The widths of the simplices in a version's feature; empty for other classifiers."""
    if card["classifier"]["kind"] != "simplex":
        return ()
    options = card["classifier"]["options"]
    return tuple(capacity - 1 for capacity in (options["capacity"], *options.get("added", ())))


def _agrees(card: Card, version: str, width: int) -> bool:
    """Whether a version, or one before it, was trained to agree with stored vectors of a width."""
    return any(card(name)["about"].get(OLD_WIDTH) == width for name in lineage(card, version))
