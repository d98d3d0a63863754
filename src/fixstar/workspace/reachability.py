"""Which stored vectors can queries of a version search, directly or through an adapter? Everybody asks here.

A cosine between vectors of two models means nothing unless the two were connected. Vectors are directly searchable

    between versions trained here      which are trained to stay compatible; how well is for the gate to say
    with an added version              only from versions that were said to be compatible with it, and those after them
    if they are named NAME@v1          the name says that they lie in v1's space: a stored adapter put them there, or
                                       they were imported as vectors that v1's model made elsewhere
    if a version, or one before it,    was trained to agree with old vectors of their width (``bct-vectors``)

and only if the full widths are equal, or one has grown from the other. A version with an adapter is isolated: only
queries with an adapter to it, and its own, search its vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from fixstar.gallery import Gallery, VersionSpace
from fixstar.workspace.adapters.maps import AdapterEntry, AdapterRegistry
from fixstar.workspace.registry import Card, Registry, lineage

OLD_WIDTH = "old_vectors_width"  # of a card's ``about``: the width of the vectors that it was trained to agree with


class Reach(NamedTuple):
    """The gallery versions whose vectors a query searches directly, those it searches through an adapter, the rest."""

    direct: tuple[str, ...]
    adapted: tuple[str, ...]
    unreachable: tuple[str, ...]

    def among(self, names: Sequence[str]) -> Reach:
        """Only these versions."""
        direct, adapted, unreachable = (tuple(name for name in part if name in names) for part in self)
        return Reach(direct, adapted, unreachable)


class Reachability:
    """The answers for one workspace, kept while versions and adapters stay the same. Threads may share it."""

    def __init__(self, registry: Registry, adapters: AdapterRegistry, gallery: Gallery) -> None:
        self._registry, self._adapters, self._gallery = registry, adapters, gallery
        self._known: tuple[tuple[VersionSpace, ...], tuple[AdapterEntry, ...], dict[str, Reach]] = ((), (), {})

    def of(self, version: str) -> Reach:
        """What queries of a version can search."""
        spaces, entries = tuple(self._gallery.versions()), self._adapters.entries()
        if self._known[:2] != (spaces, entries):
            self._known = spaces, entries, {}
        answers = self._known[2]
        if version not in answers:
            answers[version] = self._compute(version, spaces, entries)
        return answers[version]

    def _compute(self, version: str, spaces: Sequence[VersionSpace], entries: Sequence[AdapterEntry]) -> Reach:
        isolated = {entry.version for entry in entries}
        with_adapter = {e.version for e in entries if (e.queries_by, e.applied) == (version, "queries")}
        comparable = directly_searchable(self._registry, version, spaces)
        direct, adapted, unreachable = list[str](), list[str](), list[str]()
        for name in (space.name for space in spaces):
            if name == version or (name in comparable and not isolated & {name, version}):
                direct.append(name)
            else:
                (adapted if name in with_adapter else unreachable).append(name)
        return Reach(tuple(direct), tuple(adapted), tuple(unreachable))


def directly_searchable(registry: Registry, version: str, spaces: Sequence[VersionSpace]) -> frozenset[str]:
    """Of the gallery versions in ``spaces``, those whose vectors can be compared with a version's, adapters aside."""
    known, card = {*registry.names(), *registry.retired()}, cache(registry.card)
    widths = {space.name: space.full_width for space in spaces}
    return frozenset(name for name in widths if name == version or _comparable(card, version, name, widths, known))


def _comparable(card: Card, one: str, other: str, widths: dict[str, int], known: set[str]) -> bool:
    my_home, their_home = _home(one, known), _home(other, known)
    if my_home is not None and their_home is not None:
        mine, theirs = widths.get(one, widths[other]), widths[other]  # its first encoder makes room in the gallery
        return _space(card, my_home) == _space(card, their_home) and (
            mine == theirs or _grown((card(my_home), mine), (card(their_home), theirs))
        )
    if my_home is not None:
        return _agrees(card, my_home, widths[other])
    return their_home is not None and one in widths and _agrees(card, their_home, widths[one])


def _space(card: Card, version: str) -> str | None:
    """The added version that a version's space comes from; None for versions trained here, which share one."""
    root = lineage(card, version)[0]
    return root if "added" in card(root)["about"] else None


def _home(name: str, known: set[str]) -> str | None:
    """The version whose space vectors of this name lie in, if the name says so.

    >>> _home("v1", {"v1"}), _home("clip@v1", {"v1"}), _home("clip", {"v1"}), _home("clip@v9", {"v1"})
    ('v1', 'v1', None, None)
    """
    if name in known:
        return name
    prefix, at, version = name.rpartition("@")
    return version if prefix and at and version in known else None


def _grown(one: tuple[dict[str, Any], int], other: tuple[dict[str, Any], int]) -> bool:
    """Whether one space, by its card and width, is the other with simplices added: smaller vectors are zero there."""
    first, second = _simplex_widths(one[0]), _simplex_widths(other[0])
    shared = min(len(first), len(second))
    whole = sum(first) == one[1] and sum(second) == other[1]
    return shared > 0 and whole and first[:shared] == second[:shared]


def _simplex_widths(card: dict[str, Any]) -> tuple[int, ...]:
    """The widths of the simplices that a version's feature is made of; empty for other classifiers."""
    if card["classifier"]["kind"] != "simplex":
        return ()
    options = card["classifier"]["options"]
    return tuple(capacity - 1 for capacity in (options["capacity"], *options.get("added", ())))


def _agrees(card: Card, version: str, width: int) -> bool:
    """Whether a version, or one before it, was trained to agree with stored vectors of a width."""
    return any(card(name)["about"].get(OLD_WIDTH) == width for name in lineage(card, version))
