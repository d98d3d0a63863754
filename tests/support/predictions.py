"""Predictions of a backfill that are written by hand, query by query."""

from __future__ import annotations

import numpy as np

from fixstar.evaluation import BackfillCurve
from fixstar.workspace.backfill.planning import PredictedCurve

SHARES = (0.0, 0.05, 0.1, 0.5, 1.0)
QUERIES, RIGHT = 300, 200  # of the queries so many find their class while nothing is re-embedded


def predicted(lost: int, gained: int = 0) -> PredictedCurve:
    """At 5 % and at 10 % so many queries lose and gain their class; at the half and at the end it is as before."""
    hits = np.tile(np.arange(QUERIES) < RIGHT, (len(SHARES), 1))
    hits[1:3, :lost] = False
    hits[1:3, RIGHT : RIGHT + gained] = True
    curve = BackfillCurve(np.array(SHARES), hits.mean(axis=1)[None], hits[None])
    return PredictedCurve("random", curve, curve, (0.6, 0.7), (QUERIES, QUERIES))
