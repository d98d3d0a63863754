"""One threshold for all versions.

Cosines of different versions are not comparable: 0.6 may be certain among v1's vectors and a guess among v2's. A
calibration, fitted on held-out pairs of known identity, turns a cosine into the probability that both show the same
class: p = 1 / (1 + exp(-(slope * cosine + offset))). It rises with the cosine, so the order within a version is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import InputError
from fixstar.gallery.store import Gallery, Hit, SearchOptions, SearchRequest, Vectors


class Calibration(NamedTuple):
    """Cosines between queries of one version and vectors of another, as probabilities."""

    slope: float
    offset: float

    def probability(self, cosines: NDArray[Any] | float) -> NDArray[np.float64]:
        """The probability that query and item show the same class.

        >>> float(Calibration(slope=10.0, offset=-5.0).probability(0.5))
        0.5
        """
        return np.asarray(0.5 * (1 + np.tanh(0.5 * self.logit(cosines))))  # the logistic function, without overflow

    def logit(self, cosines: NDArray[Any] | float) -> NDArray[np.float64]:
        """The score that ranks items of several versions: probabilities near 1 are all rounded to 1, these are not."""
        return np.asarray(self.slope * np.asarray(cosines, np.float64) + self.offset)


def fit_calibration(cosines: NDArray[Any], same: NDArray[np.bool_], prior: float | None = None) -> Calibration:
    """Logistic regression on pairs: ``cosines`` [N], ``same`` [N]. Newton's method; targets are Platt's, never 0 or 1.

    ``prior`` is the share of same-class pairs in use, if it differs from that of these pairs.
    """
    x, y = np.asarray(cosines, np.float64), np.asarray(same)
    positive = int(y.sum()) if y.dtype == bool else -1
    if x.ndim != 1 or x.shape != y.shape or not np.isfinite(x).all() or not 0 < positive < len(y):
        raise InputError(
            "a calibration takes one finite cosine and one True (same class) or False per pair, and some of each; got "
            f"cosines {x.shape}, same {y.dtype} {y.shape} with {max(positive, 0)} True"
        )
    if prior is not None and not 0 < prior < 1:
        raise InputError(f"prior is a share of pairs, between 0 and 1; got {prior}")
    target = np.where(y, (positive + 1) / (positive + 2), 1 / (len(y) - positive + 2))
    slope, offset = _newton(x, target)
    if slope <= 0:
        raise InputError(
            "pairs of the same class do not have higher cosines than others: there is nothing to calibrate"
        )
    shift = 0.0 if prior is None else _logit(prior) - _logit(positive / len(y))
    return Calibration(slope, offset + shift)


def _logit(share: float) -> float:
    return float(np.log(share / (1 - share)))


def _newton(x: NDArray[np.float64], target: NDArray[np.float64], steps: int = 100) -> tuple[float, float]:
    """The maximum-likelihood slope and offset; steps are halved until they improve it."""
    design = np.stack([x, np.ones_like(x)], axis=1)

    def loss(w: NDArray[np.float64]) -> float:
        logit = design @ w
        return float(np.sum(np.logaddexp(0, logit) - target * logit))

    weights = np.array([0.0, _logit(float(target.mean()))])
    for _ in range(steps):
        p = Calibration(*weights).probability(x)
        gradient = design.T @ (p - target)
        curvature = (design * (p * (1 - p))[:, None]).T @ design + 1e-9 * np.eye(2)
        step, now = np.linalg.solve(curvature, gradient), loss(weights)
        while loss(weights - step) > now and np.abs(step).max() > 1e-12:
            step = step / 2
        weights = weights - step
        if np.abs(step).max() < 1e-9 * (1 + np.abs(weights).max()):
            break
    return float(weights[0]), float(weights[1])


def calibrated_search(
    gallery: Gallery,
    version: str,
    queries: Vectors,
    calibrations: Mapping[str, Calibration],
    request: SearchRequest | None = None,
    own: Mapping[str, Vectors] | None = None,
    **options: Unpack[SearchOptions],
) -> list[list[Hit]]:
    """The k items of each query that are most likely of its class; the score is that probability.

    ``calibrations`` has one entry for each version to be searched, fitted on queries of ``version`` against it. Items
    of versions without one are not found: no probability of theirs is known. Each version searched gives its k nearest,
    so none that belongs among the best is missing; versions are searched in the order
    given: an item that moves from one to a later one meanwhile is found, once. ``own`` are other vectors of the same
    queries, in the space of the version that they search: blended ones, or those that an adapter makes.
    """
    if not calibrations:
        raise InputError("calibrations is empty, so no version would be searched; fit one with fit_calibration")
    wanted = SearchRequest.of(request, **options)
    asked = {name: (name, own[name]) if own and name in own else (version, queries) for name in calibrations}
    found = {name: gallery.search(*asked[name], wanted, versions=[name]) for name in calibrations}
    return [_merged([hits[i] for hits in found.values()], calibrations, wanted.k) for i in range(len(queries))]


def _merged(parts: Sequence[list[Hit]], calibrations: Mapping[str, Calibration], k: int) -> list[Hit]:
    last = {hit.id: hit for part in parts for hit in part}  # of an item that moved, the hit found last
    best = sorted(last.values(), key=lambda hit: -float(calibrations[hit.version].logit(hit.score)))[:k]
    return [hit._replace(score=float(calibrations[hit.version].probability(hit.score))) for hit in best]
