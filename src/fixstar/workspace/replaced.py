"""What a backfill replaces of the vectors that searches find: what a prediction of it is made from.

Vectors that no search reaches, such as imported ones without an adapter, have no part in the accuracy before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from fixstar.lifecycle.backfill_plan import BackfillPlan, budget_items
from fixstar.workspace.backfill_outlook import older_counts

if TYPE_CHECKING:
    from fixstar.workspace.workspace import Workspace

__all__ = ["Replaced", "adapted_versions", "expected_replaced", "planned_replaced"]

_BLOCK = 2048  # items that are looked up at a time


class Replaced(NamedTuple):
    """``old`` is the version that most vectors to be replaced are of, of those that searches find; None without any.

    ``share`` is their share of all older vectors that searches find. ``calibrated`` says that searches will merge hits
    of all versions by calibrations. ``unpredicted`` says in words why nothing can be predicted, where that is so.
    """

    old: str | None
    share: float
    calibrated: bool
    unpredicted: str | None


def planned_replaced(space: Workspace, plan: BackfillPlan) -> Replaced:
    """By the versions that the items of a plan are of now; those that are done count for the share."""
    versions: Counter[str] = Counter()
    for start in range(0, len(plan.ids), _BLOCK):
        versions.update(item.version for item in space.gallery.get(plan.ids[start : start + _BLOCK]).values())
    older, done = _found_older(space, plan.target), versions[plan.target]
    planned = {name: versions[name] for name in older if versions[name]}
    share = (sum(planned.values()) + done) / max(1, sum(older.values()) + done)
    return _replaced(space, plan.target, planned, share)


def expected_replaced(space: Workspace, target: str, budget: str) -> Replaced:
    """Before there is a plan: as if all that it replaces were found by searches. Other items seldom have images."""
    older = _found_older(space, target)
    items = budget_items(budget, sum(older_counts(space, target, space.gallery.count()).values()))
    return _replaced(space, target, older, min(1.0, items / max(1, sum(older.values()))))


def _replaced(space: Workspace, target: str, planned: Mapping[str, int], share: float) -> Replaced:
    old = max(planned, key=lambda name: planned[name], default=None)
    adapted, checked = adapted_versions(space, target), space.last_check(target)
    known = set() if checked is None else checked.calibrations.keys()
    calibrated = not adapted and {*_found(space, target), target} <= known
    why = None
    if old is None:
        why = "searches find none of the vectors that it replaces, so nothing is predicted"
    elif old in adapted:
        why = f"vectors of {old} are reached through an adapter, so nothing is predicted"
    elif old not in space.versions():
        why = f"the weights of {old} are not here, so nothing is predicted"
    return Replaced(old, share, calibrated, why)


def adapted_versions(space: Workspace, target: str) -> set[str]:
    """The versions with vectors that searches of ``target`` reach through an adapter."""
    reached = space.adapters.reached(target) - {target}
    return {name for name, count in space.gallery.count().items() if count and name in reached}


def _found(space: Workspace, target: str) -> dict[str, int]:
    """How many vectors of each version searches of ``target`` reach, as they are or through an adapter."""
    reached = {*space.serving.met(target), *adapted_versions(space, target)}
    return {name: count for name, count in space.gallery.count().items() if count and name in reached}


def _found_older(space: Workspace, target: str) -> dict[str, int]:
    return older_counts(space, target, _found(space, target))
