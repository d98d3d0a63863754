"""Fitting adapters on pairs: vectors that two models made of the same images, or at least of the same classes.

A few thousand pairs are plenty; labels are not needed. All kinds but the perceptron are closed forms, and share one
decomposition of the pairs. x and y are unit vectors of one image in two spaces, [a] and [b]; w is its weight.
Hyper-parameters are never chosen on rows that were fitted, except for the ridge penalty, which generalised
cross-validation chooses without held-out rows.

Procrustes, a low-rank affine map and a residual perceptron between versions of a vector database: Vejendla 2025
("Drift-Adapter"). Rigid against affine maps, and what lies between: Ricci et al. 2025 ("lambda-Orthogonality").
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import InputError, UnknownNameError, plural
from fixstar.evaluation import nearest
from fixstar.geometry import slerp, unit
from fixstar.workspace.adapters.maps import VectorAdapter

Floats = NDArray[np.floating[Any]]
Labels = NDArray[Any]  # integers or strings
Matrix = NDArray[np.float64]

_LENGTH_TOLERANCE = 1e-3  # as in the gallery: half precision passes, features that nobody normalised do not
_BLOCK_ROWS = 65536  # at a time
_NOTHING = 1e-12  # of the largest eigenvalue: a direction that no pair has
_PENALTIES = np.logspace(-6, 2, 33)  # in units of the mean eigenvalue of the scatter
_STEPS = np.linspace(0, 1, 21)  # of t
_PATIENCE, _MLP_BATCH = 15, 256  # epochs without a gain on the judged pairs; pairs per step
_MLP_WORK = 10**11  # multiplications of a training at most: seconds, where both spaces are wide


# --- pairs


@dataclass(frozen=True, eq=False)
class Pairs:
    """Checked pairs [N, a] and [N, b], their weights [N] (mean 1), and groups [N] that no split takes apart."""

    X: Floats
    Y: Floats
    weights: Matrix
    groups: NDArray[Any] | None = None
    seed: int = 0

    def split(self, share: float = 0.2) -> tuple[Pairs, Pairs]:
        """Pairs to fit on, and a share of the pairs to choose or to judge by, drawn by the seed."""
        if not 0 < share < 1:
            raise InputError(f"the share of held-out pairs lies between 0 and 1, such as 0.2; got {share}")
        labels = np.arange(len(self.X)) if self.groups is None else self.groups
        names, inverse = np.unique(labels, return_inverse=True)
        if len(names) < 2:
            raise InputError(
                f"{plural(len(labels), 'pair')} of one group cannot be split; pass groups of which some can be held out"
            )
        out = min(len(names) - 1, max(1, round(share * len(names))))
        judged = np.isin(inverse, np.random.default_rng(self.seed).permutation(len(names))[:out])
        return self._rows(~judged), self._rows(judged)

    def _rows(self, chosen: NDArray[np.bool_]) -> Pairs:
        groups = None if self.groups is None else self.groups[chosen]
        weights = self.weights[chosen]
        return Pairs(self.X[chosen], self.Y[chosen], weights / weights.mean(), groups, self.seed)

    @cached_property
    def inner(self) -> tuple[Pairs, Pairs]:
        """Four fifths to fit on while a hyper-parameter is chosen by the rest."""
        return self.split()

    @cached_property
    def spectrum(self) -> Spectrum:
        """The pairs along the principal directions of X.

        By the eigenvectors of the smaller of Xc^T Xc [a, a], summed in blocks, and Xc Xc^T [N, N]; in float64.
        """
        X, Y, w = self.X, self.Y, self.weights
        x, y = ((w @ part) / w.sum() for part in (X, Y))
        if len(X) < X.shape[1]:
            root = np.sqrt(w)[:, None]
            dx, dy = root * (X - x), root * (Y - y)
            values, U = _eigen(dx @ dx.T)
            lengths = np.sqrt(values)
            directions, targets = (dx.T @ U) / lengths, lengths[:, None] * (U.T @ dy)
            return Spectrum(len(X), x, y, directions, values, targets, float((dy * dy).sum()))
        xx, xy, yy = np.zeros((X.shape[1], X.shape[1])), np.zeros((X.shape[1], Y.shape[1])), 0.0
        for start in range(0, len(X), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            dx, dy, weighted = X[rows] - x, Y[rows] - y, w[rows, None]
            xx += dx.T @ (weighted * dx)
            xy += dx.T @ (weighted * dy)
            yy += float((weighted * dy * dy).sum())
        values, vectors = _eigen(xx)
        return Spectrum(len(X), x, y, vectors, values, vectors.T @ xy, yy)

    @cached_property
    def rotation(self) -> Matrix:
        """R [a, b] of largest sum w (x R) . y among partial isometries of the span of the pairs.

        U V^T, with U S V^T the SVD of sum w x y^T; of few pairs by the SVD of a small core between two bases.
        """
        X, Y = (part.astype(np.float64) for part in (self.X, self.Y))
        weighted = self.weights[:, None] * X
        if len(X) >= min(X.shape[1], Y.shape[1]):
            U, _, Vt = np.linalg.svd(weighted.T @ Y, full_matrices=False)
            return np.asarray(U @ Vt)
        (left, one), (right, other) = np.linalg.qr(weighted.T), np.linalg.qr(Y.T)
        U, S, Vt = np.linalg.svd(one @ other.T)
        kept = _NOTHING * S[0] < S
        return np.asarray((left @ U[:, kept]) @ (Vt[kept] @ right.T))


def _eigen(scatter: Matrix) -> tuple[Matrix, Matrix]:
    """Eigenvalues and eigenvectors, without the directions that no pair has."""
    values, vectors = np.linalg.eigh(scatter)
    kept = values > _NOTHING * max(values[-1], 1e-300)
    return values[kept], vectors[:, kept]


def checked_pairs(X: ArrayLike, Y: ArrayLike, weights: ArrayLike | None, groups: ArrayLike | None, seed: int) -> Pairs:
    """Unit vectors [N, a] and [N, b], row by row of the same image; anything else is refused."""
    x, y = _checked_vectors(X, "the first space"), _checked_vectors(Y, "the second space")
    if len(x) != len(y):
        raise InputError(
            f"{plural(len(x), 'vector')} of one space and {len(y)} of the other are not pairs: row i of both must "
            "come from the same image. Embed a sample of images with both models; or, if only labelled vectors are "
            "left, fit on paired_by_class(X, labels_x, Y, labels_y). Vectors without pairs and without labels cannot "
            "be adapted"
        )
    w = np.ones(len(x)) if weights is None else np.asarray(weights, np.float64)
    if w.shape != (len(x),) or not np.isfinite(w).all() or (w <= 0).any():
        raise InputError(f"weights are one finite number > 0 per pair, ({len(x)},); got shape {w.shape}")
    labels = None if groups is None else _as_labels(groups)
    if labels is not None and labels.shape != (len(x),):
        raise InputError(f"groups are one label per pair, ({len(x)},); got shape {labels.shape}")
    return Pairs(x, y, w / w.mean(), labels, seed)


def _checked_vectors(vectors: ArrayLike, whose: str) -> Floats:
    array = np.asarray(vectors)
    if array.dtype.kind not in "fiu" or array.ndim != 2 or 0 in array.shape:
        raise InputError(
            f"vectors of {whose} are a matrix of real numbers [images, components], not empty; "
            f"got {array.dtype} of shape {array.shape}"
        )
    lengths = np.sqrt(np.einsum("ij,ij->i", array, array, dtype=np.float64, casting="unsafe"))
    if not np.isfinite(lengths).all():
        row = int(np.flatnonzero(~np.isfinite(lengths))[0])
        raise InputError(f"vectors of {whose} hold NaN or infinity in row {row}; leave that image out of both spaces")
    if wrong := np.flatnonzero(np.abs(lengths - 1) >= _LENGTH_TOLERANCE).tolist():
        raise InputError(
            f"{len(wrong)} of {len(array)} vectors of {whose} are not of length 1: row {wrong[0]} has length "
            f"{lengths[wrong[0]]:.4g}. Divide by the length (fixstar.geometry.unit)"
        )
    return array if array.dtype.kind == "f" else array.astype(np.float32)


class ClassPairs(NamedTuple):
    """Pseudo-pairs: the unit class means in both spaces [C, a] and [C, b], their weights [C], and the classes [C]."""

    X: NDArray[np.float32]
    Y: NDArray[np.float32]
    weights: NDArray[np.float64]
    classes: Labels


def paired_by_class(X: ArrayLike, labels_x: ArrayLike, Y: ArrayLike, labels_y: ArrayLike) -> ClassPairs:
    """One pseudo-pair for each class that both spaces have, if no image was embedded by both models.

    A mean of n vectors errs by tr(S) / n, S the pooled and shrunk covariance within classes, so the pair of class c
    weighs 1 / (tr(S_x) / n_x + tr(S_y) / n_y), scaled to a mean of 1. Pass the weights to the fit.
    """
    x, y = _checked_vectors(X, "the first space"), _checked_vectors(Y, "the second space")
    one, other = _checked_labels(labels_x, x, "first"), _checked_labels(labels_y, y, "second")
    if "U" in one.dtype.kind + other.dtype.kind:
        one, other = one.astype(str), other.astype(str)
    classes = np.intersect1d(one, other)
    if len(classes) < 2:
        raise InputError(
            f"the two spaces share {plural(len(classes), 'class')} ({len(np.unique(one))} and "
            f"{len(np.unique(other))} in all); pairing by class needs at least two, and a useful adapter about as many "
            "as a vector has components"
        )
    first, error_x = _class_means(x, one, classes)
    second, error_y = _class_means(y, other, classes)
    weights = 1 / np.maximum(error_x + error_y, 1e-12)
    return ClassPairs(first, second, weights / weights.mean(), classes)


def _as_labels(labels: ArrayLike) -> Labels:
    """Integers or strings; what a data frame holds as objects becomes strings."""
    array = np.asarray(labels)
    return array.astype(str) if array.dtype.kind in "OS" else array


def _checked_labels(labels: ArrayLike, vectors: Floats, which: str) -> Labels:
    array = _as_labels(labels)
    if array.shape != (len(vectors),) or array.dtype.kind not in "iuU":
        raise InputError(
            f"labels of the {which} space are one integer or string for each of {len(vectors)} vectors; "
            f"got {array.dtype} of shape {array.shape}"
        )
    return array


def _class_means(vectors: Floats, labels: Labels, classes: Labels) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Unit means [C, d], and the expected squared error of each [C]: tr(S) / n, tr(S) shrunk towards the pooled one."""
    kept = np.isin(labels, classes)
    place = np.searchsorted(classes, labels[kept])
    rows = vectors[kept][np.argsort(place, kind="stable")]
    counts = np.bincount(place)
    means = np.add.reduceat(rows, np.cumsum(counts) - counts, axis=0, dtype=np.float64) / counts[:, None]
    lengths = np.linalg.norm(means, axis=1)
    if (lengths < 1e-6).any():
        raise InputError(f"the vectors of class {classes[int(lengths.argmin())]} cancel out; leave that class out")
    scatter = counts * np.maximum(1 - lengths**2, 0)  # sum of |x - mean|^2, for unit vectors
    pooled = scatter.sum() / max(1, int((counts - 1).sum()))
    traces = (scatter + 2 * pooled) / (counts + 1)  # n - 1 degrees of freedom, and two of the pooled estimate
    return unit(means).astype(np.float32), traces / counts


class Agreement(NamedTuple):
    """The mean cosine of adapted vectors with their partners, and the share whose nearest is right."""

    mean_cosine: float
    top1: float


def agreement(adapted: Floats, partners: Floats, classes: ArrayLike | None = None) -> Agreement:
    """Compare adapted vectors [N, b] with the vectors [N, b] they should be; ``classes`` [N] if they are known.

    >>> agreement(np.eye(2), np.eye(2)[::-1])
    Agreement(mean_cosine=0.0, top1=0.0)
    """
    cosines = np.einsum("ij,ij->i", unit(adapted), unit(partners))
    rows = np.arange(len(partners))
    if classes is None or len(partners) < 2:
        right = nearest(adapted, partners)[0][:, 0] == rows
    else:
        two, labels = nearest(adapted, partners, k=2)[0], np.asarray(classes)
        right = labels[np.where(two[:, 0] == rows, two[:, 1], two[:, 0])] == labels
    return Agreement(float(cosines.mean()), float(right.mean()))


# --- one fit per kind


class Fitted(NamedTuple):
    """The arrays of a fitted adapter, and the hyper-parameters that were chosen."""

    weights: dict[str, Matrix]
    chosen: dict[str, float]


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


def _fit_procrustes(pairs: Pairs) -> Fitted:
    """R = U V^T with U S V^T the SVD of sum w x y^T: the R of largest sum w (x R) . y with orthonormal rows or columns.

    For a = b a rotation or reflection that keeps all cosines. Fewer pairs than components determine R on their span
    only.
    """
    return Fitted({"W": pairs.rotation, "c": np.zeros(pairs.Y.shape[1])}, {})


def _fit_ridge(pairs: Pairs, penalty: float | None = None) -> Fitted:
    """min over W, c of sum w |x W + c - y|^2 + penalty |W|^2; the penalty by cross-validation unless given."""
    found, penalty = pairs.spectrum, _penalty(pairs.spectrum, penalty)
    W = found.ridge(penalty)
    return Fitted({"W": W, "c": found.y - found.x @ W}, {"penalty": penalty})


def _penalty(found: Spectrum, given: float | None) -> float:
    if given is not None and not 0 <= given < np.inf:
        raise InputError(f"the penalty of a ridge is a number >= 0, got {given}")
    return gcv_penalty(found) if given is None else float(given)


def gcv_penalty(found: Spectrum) -> float:
    """The penalty of least N |y - H y|^2 / (N - tr H)^2 (Golub, Heath and Wahba 1979), on a grid; H includes c."""
    explained = (found.targets**2).sum(axis=1) / found.values  # |u_i^T y|^2 of each direction, [r]
    penalties = _PENALTIES * found.mean_value
    shrink = found.values / (found.values + penalties[:, None])  # [penalties, r]
    error = np.maximum(found.yy - (shrink * (2 - shrink)) @ explained, 1e-12 * found.yy)
    freedom = np.maximum(found.pairs - 1 - shrink.sum(axis=1), 1e-9 * found.pairs)
    return float(penalties[np.argmin(error / freedom**2)])


def _fit_low_rank(pairs: Pairs, rank: int | None = None, penalty: float | None = None) -> Fitted:
    """Reduced-rank ridge regression: of all W of rank r, the one of least ridge error.

    W_r = W V V^T, with W the ridge solution and V the r leading eigenvectors of W^T (X^T X + penalty) W (Mukherjee and
    Zhu 2011; without a penalty, classic reduced-rank regression). Unless given, the rank is the one whose fit on a
    part of the pairs has the largest mean cosine on the rest; then all pairs are fitted with it.
    """
    largest = min(pairs.X.shape[1], pairs.Y.shape[1])
    if rank is not None and not 1 <= rank <= largest:
        raise InputError(f"the rank is a number from 1 to {largest}, the narrower width; got {rank}")
    if rank is None:
        shown, judged = pairs.inner
        A, B, c, _ = _factors(shown, penalty)
        inner = judged.X @ A

        def mean_cosine(r: int) -> float:
            adapted = unit(inner[:, :r] @ B[:r] + c(r))
            return float(np.average(np.einsum("ij,ij->i", adapted, judged.Y), weights=judged.weights))

        steps = sorted({round(base * 2**power) for power in range(16) for base in (1, 1.5)})  # 1, 2, 3, 4, 6, 8, 12
        rank = max([r for r in steps if r < largest] + [largest], key=mean_cosine)  # the smaller wins a tie
    A, B, c, penalty = _factors(pairs, penalty)
    rank = min(rank, len(B))
    return Fitted({"A": A[:, :rank], "B": B[:rank], "c": c(rank)}, {"rank": rank, "penalty": penalty})


def _factors(pairs: Pairs, penalty: float | None) -> tuple[Matrix, Matrix, Callable[[int], Matrix], float]:
    """A [a, s], B [s, b] whose first r columns and rows make the best map of rank r, c(r) [b], and the penalty.

    V are the right singular vectors of F = (S^2 + penalty)^-1/2 S U^T Y: W^T (X^T X + penalty) W = F^T F.
    """
    found, penalty = pairs.spectrum, _penalty(pairs.spectrum, penalty)
    F = found.targets / np.sqrt(found.values + penalty)[:, None]  # [r, b]
    if len(F) < F.shape[1]:
        _, U = np.linalg.eigh(F @ F.T)
        Vt = unit(U[:, ::-1].T @ F)
    else:
        Vt = np.linalg.eigh(F.T @ F)[1][:, ::-1].T
    Vt = Vt[: min(pairs.X.shape[1], pairs.Y.shape[1])]
    A = (found.directions / (found.values + penalty)) @ (found.targets @ Vt.T)
    return A, Vt, lambda r: found.y - (found.x @ A[:, :r]) @ Vt[:r], penalty


def _fit_slerp(pairs: Pairs, t: float | None = None) -> Fitted:
    """slerp(unit(x R), unit(x W + c), t): between Procrustes (t = 0), which keeps geometry, and ridge (t = 1).

    Unless given, t is the one whose fit on a part of the pairs searches best on the rest (``agreement``).
    """
    if t is not None and not 0 <= t <= 1:
        raise InputError(f"t is a share of the way, 0 (Procrustes) to 1 (ridge); got {t}")
    if t is None:
        shown, judged = pairs.inner
        ends = _two_ends(shown)
        p, q = unit(judged.X @ ends["R"]), unit(judged.X @ ends["W"] + ends["c"])
        scores = [agreement(slerp(p, q, float(step)), judged.Y, judged.groups)[::-1] for step in _STEPS]
        t = float(_STEPS[max(range(len(_STEPS)), key=scores.__getitem__)])
    return Fitted({**_two_ends(pairs), "t": np.array([t])}, {"t": t})


def _two_ends(pairs: Pairs) -> dict[str, Matrix]:
    return {"R": pairs.rotation, **_fit_ridge(pairs).weights}


def _fit_mlp(pairs: Pairs, hidden: int = 256, epochs: int = 200, learning_rate: float = 2e-3) -> Fitted:
    """Minimise 1 - cos(adapted x, y) by Adam, starting from ridge; on the CPU, the same for the same seed.

    The map is x W + c + relu(x A + e) B, with B zero at first. A part of the pairs is only judged by: the epoch of
    largest mean cosine there is kept, and training ends early without a gain. Epoch 0 is the ridge map of the others,
    so on the judged pairs the result is never worse than ridge. Many wide pairs get fewer epochs, at least 3.
    """
    import torch

    if hidden < 1 or epochs < 0 or not learning_rate > 0:
        raise InputError(
            f"an mlp needs hidden >= 1, epochs >= 0 and learning_rate > 0; got {hidden}, {epochs}, {learning_rate}"
        )
    shown, judged = pairs.inner
    generator = torch.Generator().manual_seed(pairs.seed)
    x, y, w, judged_x, judged_y, judged_w = (
        torch.tensor(np.asarray(part), dtype=torch.float32)
        for part in (shown.X, shown.Y, shown.weights, judged.X, judged.Y, judged.weights)
    )
    start = _fit_ridge(shown).weights
    model = {
        "W": torch.tensor(start["W"], dtype=torch.float32),
        "c": torch.tensor(start["c"], dtype=torch.float32),
        "A": torch.randn(x.shape[1], hidden, generator=generator) * 2**0.5,  # unit x: activations of order 1
        "e": torch.zeros(hidden),
        "B": torch.zeros(hidden, y.shape[1]),
    }

    def cosines(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        adapted = x @ model["W"] + model["c"] + torch.relu(x @ model["A"] + model["e"]) @ model["B"]
        return torch.cosine_similarity(adapted, y)

    def judge() -> float:
        with torch.no_grad():
            return float((judged_w * cosines(judged_x, judged_y)).mean())

    def snapshot() -> dict[str, Matrix]:
        return {name: value.detach().numpy().astype(np.float64) for name, value in model.items()}

    best, kept, best_epoch = judge(), snapshot(), 0
    optimizer = torch.optim.Adam([value.requires_grad_() for value in model.values()], lr=learning_rate)
    work = 3 * len(x) * sum(value.numel() for value in model.values())  # forward, and two products backward
    with torch.enable_grad():
        for epoch in range(1, min(epochs, max(3, _MLP_WORK // work)) + 1):
            for rows in torch.split(torch.randperm(len(x), generator=generator), _MLP_BATCH):
                loss = (w[rows] * (1 - cosines(x[rows], y[rows]))).mean()
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
            if (score := judge()) > best:
                best, kept, best_epoch = score, snapshot(), epoch
            elif epoch - best_epoch >= _PATIENCE:
                break
    return Fitted(kept, {"hidden": hidden, "epoch": best_epoch})


@dataclass(frozen=True)
class AdapterKind:
    """A way to fit an adapter: what it is, its fit, and the least number of pairs."""

    summary: str
    fit: Callable[..., Fitted]
    least: int

    @property
    def options(self) -> list[str]:
        """What can be fixed instead of chosen."""
        return list(inspect.signature(self.fit).parameters)[1:]


ADAPTERS: dict[str, AdapterKind] = {
    "procrustes": AdapterKind("rotation (SVD); keeps all cosines of its source space", _fit_procrustes, least=8),
    "ridge": AdapterKind("affine map by least squares, penalty by generalised cross-validation", _fit_ridge, least=8),
    "low-rank": AdapterKind(
        "affine map of low rank (reduced-rank regression), rank by held-out pairs", _fit_low_rank, least=20
    ),
    "mlp": AdapterKind(
        "ridge plus a small perceptron, cosine loss, stopped early by held-out pairs", _fit_mlp, least=100
    ),
    "slerp": AdapterKind(
        "on the great circle from Procrustes to ridge, how far by held-out pairs", _fit_slerp, least=20
    ),
}
"""Kinds of adapters by name."""


def fit_adapter(
    kind: str,
    X: ArrayLike,
    Y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    seed: int = 0,
    source: str = "",
    target: str = "",
    **options: Any,
) -> VectorAdapter:
    """Fit an adapter on unit vectors X [N, a] and Y [N, b], row by row of the same image.

    ``weights`` [N] say how much a pair counts. ``groups`` [N] are the classes of the images, if they are known: no
    inner split takes a class apart, and choices are made by searching for the class instead of the very image.
    ``options`` fix what is otherwise chosen: see ``ADAPTERS[kind].options``.

    >>> X = np.eye(4)[[0, 1, 2, 3, 0, 1, 2, 3]]
    >>> adapter = fit_adapter("procrustes", X, X[:, [1, 2, 3, 0]])
    >>> adapter(X[:1]).round(3).tolist()
    [[0.0, 0.0, 0.0, 1.0]]
    """
    if kind not in ADAPTERS:
        raise UnknownNameError("adapter", kind, ADAPTERS)
    pairs = checked_pairs(X, Y, weights, groups, seed)
    if short := lacking_pairs(kind, pairs):
        raise InputError(short)
    if unknown := [name for name in options if name not in ADAPTERS[kind].options]:
        raise UnknownNameError(f"option of a {kind} adapter", unknown[0], ADAPTERS[kind].options)
    return fit_checked(kind, pairs, source, target, **options)


def fit_checked(kind: str, pairs: Pairs, source: str, target: str, **options: Any) -> VectorAdapter:
    """``fit_adapter`` on pairs that are checked already; several kinds share what they compute of them."""
    fitted = ADAPTERS[kind].fit(pairs, **options)
    about = {"pairs": len(pairs.X), "seed": pairs.seed, **fitted.chosen}
    return VectorAdapter(kind, {n: w.astype(np.float32) for n, w in fitted.weights.items()}, source, target, about)


def lacking_pairs(kind: str, pairs: Pairs) -> str:
    """Why there are too few pairs for a kind; empty if there are enough."""
    if len(pairs.X) >= ADAPTERS[kind].least:
        return ""
    others = [name for name, other in ADAPTERS.items() if other.least <= len(pairs.X)]
    return (
        f"a {kind} adapter needs at least {plural(ADAPTERS[kind].least, 'pair')}, got {len(pairs.X)}; embed more "
        f"images with both models{', or use ' + ' or '.join(others) if others else ''}"
    )


class Ranked(NamedTuple):
    """An adapter fitted on the shown pairs, and how it did on the held-out ones."""

    adapter: VectorAdapter
    held_out: Agreement


@dataclass(frozen=True)
class Comparison:
    """All kinds on the same held-out pairs, best first; ``unadapted`` if widths agree; why kinds are ``left_out``."""

    ranked: tuple[Ranked, ...]
    unadapted: Agreement | None
    left_out: dict[str, str]

    @property
    def best(self) -> VectorAdapter:
        """The winner, as it was measured; ``fit_adapter`` with its kind fits it on all pairs."""
        return self.ranked[0].adapter

    def __str__(self) -> str:
        shown = ", ".join(f"{one.adapter.kind} {one.held_out.top1:.1%}" for one in self.ranked)
        return f"best adapter by search among held-out pairs: {shown}"


def best_adapter(
    X: ArrayLike,
    Y: ArrayLike,
    *,
    kinds: Sequence[str] | None = None,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    held_out: float = 0.2,
    seed: int = 0,
    source: str = "",
    target: str = "",
) -> Comparison:
    """Fit all kinds on a part of the pairs and rank them on the rest: by search (``agreement``), then by mean cosine.

    Every choice within a kind is made on the shown pairs alone, so the figures are fair. Whether the winner is good
    enough to deploy is for the cross-test to say.
    """
    names = list(ADAPTERS) if kinds is None else list(kinds)
    if unknown := [name for name in names if name not in ADAPTERS]:
        raise UnknownNameError("adapter", unknown[0], ADAPTERS)
    pairs = checked_pairs(X, Y, weights, groups, seed)
    shown, judged = pairs.split(held_out)
    fitting, left_out = fitting_kinds(names, shown)
    adapters = (fit_checked(name, shown, source, target) for name in fitting)
    ranked = [Ranked(one, agreement(one(judged.X), judged.Y, judged.groups)) for one in adapters]
    ranked.sort(key=lambda one: (one.held_out.top1, one.held_out.mean_cosine), reverse=True)
    same = pairs.X.shape[1] == pairs.Y.shape[1]
    return Comparison(tuple(ranked), agreement(judged.X, judged.Y, judged.groups) if same else None, left_out)


def fitting_kinds(kinds: Sequence[str], pairs: Pairs) -> tuple[list[str], dict[str, str]]:
    """The kinds that have enough pairs, and why others do not; an error without any."""
    left_out = {kind: short for kind in kinds if (short := lacking_pairs(kind, pairs))}
    if len(left_out) == len(kinds):
        least = ", ".join(f"{kind} {ADAPTERS[kind].least}" for kind in kinds)
        raise InputError(
            f"no adapter can be fitted on {plural(len(pairs.X), 'pair')}; needed are, by kind: {least}. "
            "Embed more images with both models"
        )
    return [kind for kind in kinds if kind not in left_out], left_out
