"""Which stored vectors the queries of a version meet as they are: those that lie in one space with its own.

A cosine between vectors of two models means nothing unless somebody saw to it. It was seen to

    between versions of the registry   which are trained to stay compatible; how well is the gate's affair
    for NAME@v1                        whoever names vectors so says that they lie in v1's space: a stored adapter
                                       does, and so does an import of vectors that v1's model made elsewhere
    for old vectors of a width         that a version, or one before it, was trained to agree with (``bct-vectors``)

and only where the full widths are one, or one has grown from the other. Anything else needs an adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fixstar.gallery import VersionSpace
from fixstar.workspace.registry import Registry

__all__ = ["OLD_WIDTH", "Reach"]

OLD_WIDTH = "old_vectors_width"  # of a card's ``about``: the width of the vectors that it was trained to agree with


class Reach:
    """Who meets whom in one workspace. Cards never change, so an answer is kept as long as the versions are the same.

    Threads may share it.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._kept: tuple[tuple[VersionSpace, ...], dict[str, frozenset[str]]] = ((), {})

    def met(self, version: str, spaces: Sequence[VersionSpace]) -> frozenset[str]:
        """Of the gallery versions in ``spaces``, those whose vectors queries of a version meet as they are."""
        kept, answers = self._kept
        if kept != tuple(spaces):
            kept, answers = self._kept = tuple(spaces), {}
        if version not in answers:
            known = {*self._registry.names(), *self._registry.retired()}
            widths = {space.name: space.full_width for space in spaces}
            answers[version] = frozenset(
                name for name in widths if name == version or self._meet(version, name, widths, known)
            )
        return answers[version]

    def _meet(self, one: str, other: str, widths: dict[str, int], known: set[str]) -> bool:
        homes = _home(one, known), _home(other, known)
        if homes[0] is not None and homes[1] is not None:
            mine, theirs = widths.get(one, widths[other]), widths[other]  # no room yet: its first encoder makes it
            return mine == theirs or self._grown((homes[0], mine), (homes[1], theirs))
        if homes[0] is not None:
            return self._agrees(homes[0], widths[other])
        return homes[1] is not None and one in widths and self._agrees(homes[1], widths[one])

    def _grown(self, one: tuple[str, int], other: tuple[str, int]) -> bool:
        """Whether one space is the other with simplices added: vectors of the smaller are zero in these."""
        first, second = (_parts(self._registry.card(name)) for name, _ in (one, other))
        shared = min(len(first), len(second))
        whole = sum(first) == one[1] and sum(second) == other[1]
        return shared > 0 and whole and first[:shared] == second[:shared]

    def _agrees(self, version: str, width: int) -> bool:
        """Whether a version, or one before it, was trained to agree with stored vectors of a width."""
        for name in self._registry.lineage(version):
            about = self._registry.card(name)["about"]
            if about.get(OLD_WIDTH) == width:
                return True
            first = about.get("parent") is None and about.get("method", {}).get("name") == "bct-vectors"
            if first and OLD_WIDTH not in about:  # trained before the width was kept
                return True
        return False


def _home(name: str, known: set[str]) -> str | None:
    """The version whose space vectors of this name lie in, if anybody says so.

    >>> _home("v1", {"v1"}), _home("clip@v1", {"v1"}), _home("clip", {"v1"}), _home("clip@v9", {"v1"})
    ('v1', 'v1', None, None)
    """
    if name in known:
        return name
    said, at, version = name.rpartition("@")
    return version if said and at and version in known else None


def _parts(card: dict[str, Any]) -> tuple[int, ...]:
    """The widths of the simplices that a version's feature is made of; none where its classifier is another."""
    if card["classifier"]["kind"] != "simplex":
        return ()
    options = card["classifier"]["options"]
    return tuple(capacity - 1 for capacity in (options["capacity"], *options.get("added", ())))
