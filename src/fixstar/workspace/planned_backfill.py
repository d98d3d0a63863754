"""A planned backfill with what it will bring, and the refusal of one that would lose."""

from __future__ import annotations

from dataclasses import dataclass

from fixstar.errors import GateError
from fixstar.lifecycle.backfill_curves import PredictedCurve
from fixstar.lifecycle.backfill_plan import BackfillPlan

__all__ = ["PlannedBackfill", "demand_gain"]


@dataclass(frozen=True, eq=False)
class PlannedBackfill:
    """A plan, how many of its items have been dealt with, and what it will bring; None where no labels tell."""

    plan: BackfillPlan
    position: int
    predicted: PredictedCurve | None

    @property
    def share(self) -> float:
        """The plan's share of the items with older vectors."""
        return len(self.plan.ids) / max(1, self.plan.old)

    @property
    def loses(self) -> bool:
        """Whether it is predicted to lower the accuracy, and nothing of it was done yet."""
        if self.predicted is None or self.position:
            return False
        return self.predicted.at(self.share)[0] < float(self.predicted.planned.accuracy[0])


def demand_gain(planned: PlannedBackfill) -> None:
    """Refuse a plan that would lower the accuracy: vectors that it replaces are not kept."""
    if planned.predicted is None or not planned.loses:
        return
    curve = planned.predicted.planned
    now, then = float(curve.accuracy[0]), planned.predicted.at(planned.share)[0]
    larger = [share for share, value in zip(curve.shares, curve.accuracy, strict=True) if value >= now]
    larger = [f"{100 * share:g}%" if share < 1 else "all" for share in larger if share > planned.share]
    take = (
        f"with a larger --budget ({', '.join(larger)})" if larger else "(no larger budget is predicted to gain, either)"
    )
    raise GateError(
        f"this plan is predicted to lower the accuracy from {now:.1%} to {then:.1%}, and the old vectors would not be "
        f"kept; nothing was embedded. Leave all as it is, or type the same command {take}, with --plan-only to look, "
        "or with --anyway to do it all the same (in Python BackfillOptions(anyway=True))"
    )
