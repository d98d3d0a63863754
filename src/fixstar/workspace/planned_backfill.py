"""A planned backfill with what it will bring, and the refusal of one that would lose."""

from __future__ import annotations

from dataclasses import dataclass

from fixstar.errors import GateError
from fixstar.lifecycle.backfill_curves import PredictedCurve
from fixstar.lifecycle.backfill_plan import BackfillPlan
from fixstar.workspace.replaced import Replaced

__all__ = ["PlannedBackfill", "demand_gain"]


@dataclass(frozen=True, eq=False)
class PlannedBackfill:
    """A plan, how many of its items have been dealt with, and what it will bring; None where no labels tell.

    ``replaced`` is what that was predicted from, or could not be; None where nobody looked.
    """

    plan: BackfillPlan
    position: int
    predicted: PredictedCurve | None
    replaced: Replaced | None = None

    @property
    def share(self) -> float:
        """The plan's share of the items with older vectors; where some are not found by searches, of the others."""
        if self.replaced is not None and self.replaced.old is not None:
            return self.replaced.share
        return len(self.plan.ids) / max(1, self.plan.old)

    @property
    def unpredicted(self) -> str | None:
        """Why nothing is predicted though there are labelled images, in words; None where that is not so."""
        return None if self.replaced is None else self.replaced.unpredicted

    @property
    def loss(self) -> str | None:
        """The loss that is predicted, be it by chance, in words; None where there is none, or part of it was done."""
        if self.predicted is None or self.position:
            return None
        now, then = float(self.predicted.planned.accuracy[0]), self.predicted.at(self.share)[0]
        queries = self.predicted.images[1]
        return f"lower the accuracy from {now:.1%} to {then:.1%} of {queries:,} queries" if then < now else None

    @property
    def loses(self) -> bool:
        """Whether it is predicted to lose in earnest (``PredictedCurve.loses``), and nothing of it was done yet."""
        return self.predicted is not None and self.loss is not None and self.predicted.loses(self.share)

    @property
    def larger_budgets(self) -> list[str]:
        """Larger budgets that are predicted not to lower the accuracy."""
        if self.predicted is None:
            return []
        curve = self.predicted.planned
        kept = [share for share, value in zip(curve.shares, curve.accuracy, strict=True) if value >= curve.accuracy[0]]
        return [f"{100 * share:g}%" if share < 1 else "all" for share in kept if share > self.share]


def demand_gain(planned: PlannedBackfill) -> None:
    """Refuse a plan that would lower the accuracy: vectors that it replaces are not kept."""
    if not planned.loses:
        return
    larger = ", ".join(planned.larger_budgets)
    take = f"with a larger --budget ({larger})" if larger else "(no larger budget is predicted to gain, either)"
    raise GateError(
        f"this plan is predicted to {planned.loss}, and the old vectors would not be kept; "
        f"nothing was embedded. Leave all as it is, or type the same command {take}, with --plan-only to look, or with "
        "--anyway to do it all the same (in Python BackfillOptions(anyway=True))"
    )
