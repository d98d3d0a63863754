"""Fitting maps on pairs: vectors that two models made of the same items.

A few thousand pairs are plenty; labels are not needed. x and y are unit vectors of one item in two spaces, [a] and [b];
w is its weight. Kinds of maps:

    rotation    x R, R = U V^T from the SVD of sum w x y^T: keeps all cosines of its source space (Procrustes)
    ridge       x W + c by least squares, its penalty by generalised cross-validation
    residual    ridge, plus a perceptron of one layer that starts at zero, trained with 1 - cos
    contrast    ridge, trained further so that x finds its own y among those of other classes: for queries

What is chosen within a kind is chosen on pairs that were not fitted, except for the penalty, which cross-validation
chooses without held-out pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import InputError, UnknownNameError, plural
from fixstar.translation.maps import Layer, Map
from fixstar.translation.translation import USUAL, Translation, Uncertainty

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.floating[Any]]
Matrix = NDArray[np.float64]

_LENGTH_TOLERANCE = (
    1e-3  # as in the gallery: half precision passes, features that were not normalised do not
)
_BLOCK_ROWS = 65536  # at a time
_NOTHING = 1e-12  # of the largest eigenvalue: a direction that no pair has
_PENALTIES = np.logspace(-6, 2, 33)  # in units of the mean eigenvalue of the scatter
_FLOOR = (
    1e-3  # of the largest variance: whitening does not stretch a direction with less any further
)
HIDDEN = 512  # of the perceptron
_EPOCHS = 200
_RATE = 2e-3
_PATIENCE = 15  # epochs without a gain on the pairs that are only judged by
_BATCH = 512  # pairs per step
_WORK = 3 * 10**10  # multiplications of a training on a CPU, at most: seconds
_CONTRAST_EPOCHS = 30
_CONTRAST_RATE = 1e-3
_CONTRAST = 0.3  # weight of the contrast beside 1 - cos
_RHO = 5.0  # its inverse temperature, as in training


@dataclass(frozen=True, eq=False)
class Pairs:
    """Unit vectors X [N, a] and Y [N, b], row by row of the same item; weights [N], mean 1.

    ``groups`` [N] are the classes, if they are known: no split takes a class apart.
    """

    X: Floats
    Y: Floats
    weights: Matrix
    groups: NDArray[Any] | None = None
    seed: int = 0

    @classmethod
    def checked(
        cls,
        X: ArrayLike,
        Y: ArrayLike,
        *,
        weights: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        seed: int = 0,
    ) -> Pairs:
        """Pairs of unit vectors; anything else is refused."""
        x = checked_vectors(X, "the first space")
        y = checked_vectors(Y, "the second space")
        if len(x) != len(y):
            raise InputError(
                f"{plural(len(x), 'vector')} of one space and {len(y)} of the other are not pairs: row i of both must "
                "come from the same item. Embed a sample of items with both models"
            )
        if weights is None:
            w = np.ones(len(x))
        else:
            w = np.asarray(weights, np.float64)
        if w.shape != (len(x),) or not np.isfinite(w).all() or (w <= 0).any():
            raise InputError(
                f"weights are one finite number > 0 per pair, ({len(x)},); got shape {w.shape}"
            )
        if groups is None:
            labels = None
        else:
            labels = as_labels(groups)
        if labels is not None and labels.shape != (len(x),):
            raise InputError(
                f"groups are one label per pair, ({len(x)},); got shape {labels.shape}"
            )
        return cls(x, y, w / w.mean(), labels, seed)

    def __len__(self) -> int:
        return len(self.X)

    @property
    def reversed(self) -> Pairs:
        """The same pairs, to fit a map the other way."""
        return Pairs(X=self.Y, Y=self.X, weights=self.weights, groups=self.groups, seed=self.seed)

    def take(self, rows: NDArray[Any]) -> Pairs:
        """Some of them, by row or by mask."""
        weights = self.weights[rows]
        if self.groups is None:
            groups = None
        else:
            groups = self.groups[rows]
        return Pairs(
            X=self.X[rows],
            Y=self.Y[rows],
            weights=weights / weights.mean(),
            groups=groups,
            seed=self.seed,
        )

    def split(self, share: float = 0.2) -> tuple[Pairs, Pairs]:
        """Pairs to fit on, and a share of them to choose or to judge by, drawn by the seed; whole groups if known."""
        if not 0 < share < 1:
            raise InputError(
                f"the share of held-out pairs lies between 0 and 1, such as 0.2; got {share}"
            )
        labels = np.arange(len(self)) if self.groups is None else self.groups
        names, inverse = np.unique(labels, return_inverse=True)
        if len(names) < 2:
            raise InputError(
                f"{plural(len(self), 'pair')} of one group cannot be split; pass groups of which some can be held out"
            )
        out = min(len(names) - 1, max(1, round(share * len(names))))
        drawn = np.random.default_rng(self.seed).permutation(len(names))[:out]
        judged = np.isin(inverse, drawn)
        return self.take(~judged), self.take(judged)

    @cached_property
    def inner(self) -> tuple[Pairs, Pairs]:
        """Four fifths to fit on while something is chosen by the rest."""
        return self.split()

    @cached_property
    def spectrum(self) -> Spectrum:
        """The pairs along the principal directions of X.

        By the eigenvectors of the smaller of Xc^T Xc [a, a], summed in blocks, and Xc Xc^T [N, N]; in float64.
        """
        X = self.X
        Y = self.Y
        w = self.weights
        x = (w @ X) / w.sum()
        y = (w @ Y) / w.sum()
        if len(X) < X.shape[1]:
            root = np.sqrt(w)[:, None]
            dx = root * (X - x)
            dy = root * (Y - y)
            values, U = _eigen(dx @ dx.T)
            lengths = np.sqrt(values)
            directions = (dx.T @ U) / lengths
            targets = lengths[:, None] * (U.T @ dy)
            return Spectrum(
                pairs=len(X),
                x=x,
                y=y,
                directions=directions,
                values=values,
                targets=targets,
                yy=float((dy * dy).sum()),
            )
        xx = np.zeros((X.shape[1], X.shape[1]))
        xy = np.zeros((X.shape[1], Y.shape[1]))
        yy = 0.0
        for start in range(0, len(X), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            dx = X[rows] - x
            dy = Y[rows] - y
            weighted = w[rows, None]
            xx += dx.T @ (weighted * dx)
            xy += dx.T @ (weighted * dy)
            yy += float((weighted * dy * dy).sum())
        values, vectors = _eigen(xx)
        return Spectrum(
            pairs=len(X), x=x, y=y, directions=vectors, values=values, targets=vectors.T @ xy, yy=yy
        )

    @cached_property
    def rotation(self) -> Matrix:
        """R [a, b] of largest sum w (x R) . y among partial isometries of the span of the pairs.

        U V^T, with U S V^T the SVD of sum w x y^T; of few pairs by the SVD of a small core between two bases.
        """
        X = self.X.astype(np.float64)
        Y = self.Y.astype(np.float64)
        weighted = self.weights[:, None] * X
        if len(X) >= min(X.shape[1], Y.shape[1]):
            U, _, Vt = np.linalg.svd(weighted.T @ Y, full_matrices=False)
            return np.asarray(U @ Vt)
        left, one = np.linalg.qr(weighted.T)
        right, other = np.linalg.qr(Y.T)
        U, S, Vt = np.linalg.svd(one @ other.T)
        kept = _NOTHING * S[0] < S
        return np.asarray((left @ U[:, kept]) @ (Vt[kept] @ right.T))


def _eigen(scatter: Matrix) -> tuple[Matrix, Matrix]:
    """Eigenvalues and eigenvectors, without the directions that no pair has."""
    values, vectors = np.linalg.eigh(scatter)
    kept = values > _NOTHING * max(values[-1], 1e-300)
    return values[kept], vectors[:, kept]


def checked_vectors(vectors: ArrayLike, whose: str) -> Floats:
    """Unit vectors [N, width], not empty; anything else is refused."""
    array = np.asarray(vectors)
    if array.dtype.kind not in "fiu" or array.ndim != 2 or 0 in array.shape:
        raise InputError(
            f"vectors of {whose} are a matrix of real numbers [items, components], not empty; "
            f"got {array.dtype} of shape {array.shape}"
        )
    lengths = np.sqrt(np.einsum("ij,ij->i", array, array, dtype=np.float64, casting="unsafe"))
    if not np.isfinite(lengths).all():
        row = int(np.flatnonzero(~np.isfinite(lengths))[0])
        raise InputError(
            f"vectors of {whose} hold NaN or infinity in row {row}; leave that item out of both spaces"
        )
    wrong = np.flatnonzero(np.abs(lengths - 1) >= _LENGTH_TOLERANCE)
    if len(wrong):
        raise InputError(
            f"{len(wrong)} of {len(array)} vectors of {whose} are not of length 1: row {wrong[0]} has length "
            f"{lengths[wrong[0]]:.4g}. Divide by the length (fixstar.geometry.unit)"
        )
    if array.dtype.kind == "f":
        return array
    return array.astype(np.float32)


def as_labels(labels: ArrayLike) -> NDArray[Any]:
    """Integers or strings; what a data frame holds as objects becomes strings."""
    array = np.asarray(labels)
    if array.dtype.kind in "OS":
        return array.astype(str)
    return array


class Spectrum(NamedTuple):
    """Weighted, centred pairs along the principal directions of X, from which a ridge of any penalty is one product.

    With Xc = U S V^T: ``directions`` V [a, r], ``values`` S^2 [r], ``targets`` S U^T Yc [r, b], and the trace ``yy`` of
    Yc^T Yc; ``x`` [a] and ``y`` [b] are the means. Directions that no pair has are left out.
    """

    pairs: int
    x: Matrix
    y: Matrix
    directions: Matrix
    values: Matrix
    targets: Matrix
    yy: float

    @property
    def mean_value(self) -> float:
        """The mean eigenvalue of the scatter [a, a], those of 0 included."""
        return float(self.values.sum()) / len(self.directions)

    def ridge(self, penalty: float) -> Matrix:
        """W [a, b] of the least sum w |x W + c - y|^2 + penalty |W|^2."""
        return (self.directions / (self.values + penalty)) @ self.targets


class Fitted(NamedTuple):
    """A fitted map, and what was chosen on the way."""

    map: Map
    chosen: Mapping[str, float]


def _fit_rotation(pairs: Pairs) -> Fitted:
    """For a = b a rotation or reflection. Fewer pairs than components determine it on their span only."""
    return Fitted(Map.linear(pairs.rotation), {})


def _fit_ridge(pairs: Pairs, penalty: float | None = None) -> Fitted:
    """min over W, c of sum w |x W + c - y|^2 + penalty |W|^2; the penalty by cross-validation unless given."""
    found = pairs.spectrum
    if penalty is None:
        penalty = gcv_penalty(found)
    elif not 0 <= penalty < np.inf:
        raise InputError(f"the penalty of a ridge is a number >= 0, got {penalty}")
    W = found.ridge(penalty)
    return Fitted(Map.linear(W, found.y - found.x @ W), {"penalty": float(penalty)})


def gcv_penalty(found: Spectrum) -> float:
    """The penalty of least N |y - H y|^2 / (N - tr H)^2 (Golub, Heath and Wahba 1979), on a grid; H includes c."""
    explained = (found.targets**2).sum(axis=1) / found.values  # |u_i^T y|^2 of each direction, [r]
    penalties = _PENALTIES * found.mean_value
    shrink = found.values / (found.values + penalties[:, None])  # [penalties, r]
    error = np.maximum(found.yy - (shrink * (2 - shrink)) @ explained, 1e-12 * found.yy)
    freedom = np.maximum(found.pairs - 1 - shrink.sum(axis=1), 1e-9 * found.pairs)
    return float(penalties[np.argmin(error / freedom**2)])


def _fit_residual(
    pairs: Pairs,
    hidden: int = HIDDEN,
    epochs: int = _EPOCHS,
    learning_rate: float = _RATE,
    device: str = "cpu",
) -> Fitted:
    """Minimise 1 - cos(mapped x, y) by Adam, starting from ridge; the same for the same seed on one device.

    The map is x W + c + relu(x A + e) B, with B zero at first. A part of the pairs is only judged by: the epoch of
    largest mean cosine there is kept, and training ends early without a gain. Epoch 0 is the ridge of the others, so on
    the judged pairs the result is never worse than ridge. On a CPU many wide pairs get fewer epochs, at least 3.
    """
    import torch

    if hidden < 1 or epochs < 0 or not learning_rate > 0:
        raise InputError(
            "a residual map needs hidden >= 1, epochs >= 0 and learning_rate > 0; "
            f"got {hidden}, {epochs}, {learning_rate}"
        )
    shown, judged = pairs.inner
    generator = torch.Generator().manual_seed(pairs.seed)
    x, y, w = _tensors(shown, device)
    judged_x, judged_y, judged_w = _tensors(judged, device)
    start = _fit_ridge(shown).map.layers[0]
    scale = 2**0.5  # x has unit length, so activations are of order 1
    model = {
        "W": torch.tensor(start.W, device=device),
        "c": torch.tensor(start.c, device=device),
        "A": torch.randn(x.shape[1], hidden, generator=generator).to(device) * scale,
        "e": torch.zeros(hidden, device=device),
        "B": torch.zeros(hidden, y.shape[1], device=device),
    }

    def cosines(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        mapped = x @ model["W"] + model["c"] + torch.relu(x @ model["A"] + model["e"]) @ model["B"]
        return torch.cosine_similarity(mapped, y)

    def judge() -> float:
        with torch.no_grad():
            return float((judged_w * cosines(judged_x, judged_y)).mean())

    def snapshot() -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in model.items()}

    best = judge()
    kept = snapshot()
    best_epoch = 0
    optimizer = torch.optim.Adam(
        [value.requires_grad_() for value in model.values()], lr=learning_rate
    )
    work = (
        3 * len(x) * sum(value.numel() for value in model.values())
    )  # forward, and two products backward
    with torch.enable_grad():
        for epoch in range(1, _affordable(epochs, work, device) + 1):
            order = torch.randperm(len(x), generator=generator).to(device)
            for rows in torch.split(order, _BATCH):
                loss = (w[rows] * (1 - cosines(x[rows], y[rows]))).mean()
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
            score = judge()
            if score > best:
                best = score
                kept = snapshot()
                best_epoch = epoch
            elif epoch - best_epoch >= _PATIENCE:
                break
    layer = Layer(**{name: value.cpu().numpy() for name, value in kept.items()})
    return Fitted(Map((layer,)), {"hidden": hidden, "epoch": best_epoch})


def _fit_contrast(
    pairs: Pairs,
    contrast: float = _CONTRAST,
    epochs: int = _CONTRAST_EPOCHS,
    learning_rate: float = _CONTRAST_RATE,
    device: str = "cpu",
) -> Fitted:
    """Minimise 1 - cos(mapped x_i, y_i) + contrast (log sum_j exp(rho cos(x_i, y_j)) - rho cos(x_i, y_i)) by Adam.

    j runs over the pairs of other groups in a batch, or over all others where groups are not known. A query that is
    mapped like this finds its own stored vector more often than one that is merely close to it. Starts from ridge.
    """
    import torch
    from torch.nn import functional

    if contrast < 0 or epochs < 0 or not learning_rate > 0:
        raise InputError(
            "a contrast map needs contrast >= 0, epochs >= 0 and learning_rate > 0; "
            f"got {contrast}, {epochs}, {learning_rate}"
        )
    start = _fit_ridge(pairs).map.layers[0]
    if pairs.groups is None:
        labels = np.arange(len(pairs))
    else:
        labels = np.unique(pairs.groups, return_inverse=True)[1]
    generator = torch.Generator().manual_seed(pairs.seed)
    x, y, w = _tensors(pairs, device)
    group = torch.tensor(labels, device=device)
    W = torch.tensor(start.W, device=device).requires_grad_()
    c = torch.tensor(start.c, device=device).requires_grad_()
    optimizer = torch.optim.Adam([W, c], lr=learning_rate)
    work = 3 * len(x) * (W.numel() + _BATCH * y.shape[1])
    with torch.enable_grad():
        for _ in range(_affordable(epochs, work, device)):
            order = torch.randperm(len(x), generator=generator).to(device)
            for rows in torch.split(order, _BATCH):
                cosines = functional.normalize(x[rows] @ W + c) @ y[rows].T
                own = cosines.diagonal()
                same = group[rows][:, None] == group[rows][None, :]
                alone = same.all(dim=1)
                others = (
                    (_RHO * cosines.masked_fill(same, -torch.inf))
                    .masked_fill(alone[:, None], 0.0)
                    .logsumexp(dim=1)
                )
                found = (others - _RHO * own).where(~alone, 0.0)
                loss = (w[rows] * (1 - own + contrast * found)).mean()
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
    found_map = Map.linear(W.detach().cpu().numpy(), c.detach().cpu().numpy())
    return Fitted(found_map, {"contrast": contrast})


def _tensors(pairs: Pairs, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """X [N, a], Y [N, b] and the weights [N], to train on."""
    import torch

    x = torch.tensor(np.asarray(pairs.X), dtype=torch.float32, device=device)
    y = torch.tensor(np.asarray(pairs.Y), dtype=torch.float32, device=device)
    w = torch.tensor(pairs.weights, dtype=torch.float32, device=device)
    return x, y, w


def _affordable(epochs: int, work: int, device: str) -> int:
    """The number of epochs of ``work`` multiplications each; on a CPU it may be lower, but is at least 3."""
    if device == "cpu":
        return min(epochs, max(3, _WORK // work))
    return epochs


@dataclass(frozen=True)
class Kind:
    """A kind of map: what it is, how it is fitted, and the fewest pairs that determine it."""

    summary: str
    fit: Callable[..., Fitted]
    least: int
    options: tuple[str, ...] = ()


KINDS: dict[str, Kind] = {
    "rotation": Kind(
        "rotation (SVD); keeps all cosines of its source space", _fit_rotation, least=8
    ),
    "ridge": Kind(
        "affine map by least squares, penalty by generalised cross-validation",
        _fit_ridge,
        least=8,
        options=("penalty",),
    ),
    "residual": Kind(
        "ridge plus a perceptron, cosine loss, stopped early by held-out pairs",
        _fit_residual,
        least=100,
        options=("hidden", "epochs", "learning_rate", "device"),
    ),
    "contrast": Kind(
        "ridge, trained further so that a query finds its own stored vector",
        _fit_contrast,
        least=100,
        options=("contrast", "epochs", "learning_rate", "device"),
    ),
}
"""Kinds of maps by name."""


def fit_map(kind: str, pairs: Pairs, **options: Any) -> Fitted:
    """Fit a map of a kind on pairs; ``options`` fix what is otherwise chosen.

    >>> X = np.eye(4)[[0, 1, 2, 3, 0, 1, 2, 3]]
    >>> found = fit_map("rotation", Pairs.checked(X, X[:, [1, 2, 3, 0]]))
    >>> found.map(X[:1]).round(3).tolist()
    [[0.0, 0.0, 0.0, 1.0]]
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of map", kind, KINDS)
    if short := lacking_pairs(kind, len(pairs)):
        raise InputError(short)
    if unknown := [name for name in options if name not in KINDS[kind].options]:
        raise UnknownNameError(f"option of a {kind} map", unknown[0], KINDS[kind].options)
    return KINDS[kind].fit(pairs, **options)


def lacking_pairs(kind: str, pairs: int) -> str:
    """Why there are too few pairs for a kind; empty if there are enough."""
    if pairs >= KINDS[kind].least:
        return ""
    others = [name for name, other in KINDS.items() if other.least <= pairs]
    instead = ""
    if others:
        instead = f", or use {' or '.join(others)}"
    return (
        f"a {kind} map needs at least {plural(KINDS[kind].least, 'pair')}, got {pairs}; embed more items with both "
        f"models{instead}"
    )


# --- both maps of a translation

PAIRS_PER_COMPONENT = (
    10  # of both spaces together: a residual map of fewer pairs finds less than a linear one
)


def fit_translations(
    pairs: Pairs,
    source: str,
    target: str,
    *,
    shared: bool = False,
    old_model: bool = True,
    whiten: bool = False,
    device: str = "cpu",
) -> list[Translation]:
    """Translations from X, vectors of ``source``, to Y, those of ``target``: the preferred one first.

    They differ in the kind of their forward map. Versions that share a space need no map back. ``old_model`` says that
    queries by ``source`` can be had too, ``whiten`` that evidence may choose to half whiten the old side.
    """
    least = KINDS["ridge"].least
    if len(pairs) < least:
        raise InputError(
            f"a translation from {source} to {target} is fitted on {least} pairs or more, got {len(pairs)}; embed more "
            "items with both models"
        )
    enough = PAIRS_PER_COMPONENT * (pairs.X.shape[1] + pairs.Y.shape[1])
    if len(pairs) < enough:
        kinds = ["ridge"]
    else:
        kinds = ["residual", "ridge"]
    backward = None
    if not shared:
        if len(pairs) >= KINDS["contrast"].least:
            backward = fit_map("contrast", pairs.reversed, device=device).map
        else:
            backward = fit_map("ridge", pairs.reversed).map
    uncertainty = fit_uncertainty(pairs)
    whitening = fit_whitening(pairs) if whiten else None
    found = []
    for kind in kinds:
        options = {}
        if kind == "residual":
            options["device"] = device
        fitted = fit_map(kind, pairs, **options)
        about = {"kind": kind, "pairs": len(pairs), **fitted.chosen}
        found.append(
            Translation(
                source,
                target,
                forward=fitted.map,
                backward=backward,
                one=USUAL,
                two=USUAL if old_model else None,
                shared=shared,
                uncertainty=uncertainty,
                about=about,
                whitening=whitening,
            )
        )
    return found


def fit_whitening(pairs: Pairs) -> Map | None:
    """V: vectors of X centred, each principal direction divided by the root of its deviation: half whitened.

    So (x - mean) C^(-1/4), with C the covariance. Only X is used. None if all vectors are equal.
    """
    found = pairs.spectrum
    largest = found.values[-1] if len(found.values) else 0.0
    if largest <= _NOTHING * len(pairs):
        return None
    scales = np.maximum(found.values / largest, _FLOOR) ** -0.25
    rest = _FLOOR**-0.25  # of directions that no pair has
    W = rest * np.eye(len(found.directions))
    W += (found.directions * (scales - rest)) @ found.directions.T
    return Map.linear(W, -found.x @ W)


def fit_uncertainty(pairs: Pairs) -> Uncertainty | None:
    """How far a ridge is off on pairs it was not fitted on, regressed on the vector; None with too few pairs."""
    least = KINDS["ridge"].least
    if len(pairs) < 10 * least:
        return None
    shown, judged = pairs.inner
    if min(len(shown), len(judged)) < least:
        return None
    mapped = _fit_ridge(shown).map(judged.X)
    off = 1 - np.einsum("ij,ij->i", mapped, judged.Y, dtype=np.float64)
    found = Pairs(judged.X, off[:, None], judged.weights).spectrum
    slope = found.ridge(gcv_penalty(found))
    offset = float((found.y - found.x @ slope)[0])
    return Uncertainty(slope[:, 0].astype(np.float32), offset)
