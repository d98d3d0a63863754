"""The order in which a backfill re-embeds items: those that gain most come first.

Items with an old vector are found through a translation. Some are translated well, others gain much from re-embedding.
A vector of the new version also attracts new queries more strongly than the translated vectors around it, so a partial
backfill in a bad order can mislead queries of other classes. This hardly happens if searches rank by calibrations. Then
the order decides how much is gained.

    gain        labelled queries q of the new version show where help is needed. With b the cosine of q's best match
                now, item i pulls q by w(q, i) = exp((cos(q, i) - b) / 0.05). Its gain is the sum of w over the
                queries of its class, minus the sum over queries of other classes that are answered correctly now:
                those could be misled. Queries count as often as items of their class are found (``usage``).
                Without labels: certain items and frequently found items first.
    classes     round robin: the best item of every class by gain, then the second best of every class, and so on
    certain     items whose nearest neighbour is clearly closer than the ten nearest on average
    uncertain   items with the largest expected translation error, weighted by hit count (after FastFill,
                Jaeckle et al. 2023); without such an estimate the reverse of certain
    queried     items found most often
    oldest      items of the oldest version first
    random      random order

``benchmarks/backfill_planner.py`` and ``benchmarks/upgrades.py`` compare them. None is always best: "uncertain" lost
least between pre-trained models, made no difference after a default upgrade, and lost there by class template. So
"auto" tries the orders in ``TRIED`` on held-out images and takes the best one at the given budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import UnknownNameError
from fixstar.gallery import Gallery
from fixstar.geometry import carry, short_basis, unit
from fixstar.translation import Translation
from fixstar.workspace.items import LABEL, ImageStore
from fixstar.workspace.options import Order

ORDERS: tuple[Order, ...] = get_args(Order)
TRIED = ("gain", "classes", "certain", "uncertain")
BLIND = ("queried", "oldest", "random")  # orders that do not look at vectors

NEIGHBOURS = 10
COMPARED = 4096  # maximum number of items that each item is compared with
QUERIES = 2000  # maximum number of labelled queries
REACH = 0.05  # cosine difference at which the pull of a new vector falls to 1/e
_BLOCK = 2048

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OldItems:
    """Items older than the target: ``vectors`` [N, s] in its space, ``ages``, labels ("" unknown), hit ``counts``.

    ``uncertainty`` [N] is the expected error of each translated vector, NaN if unknown. ``places`` are where
    their originals are (``ImageStore.place``). ``versions[age]`` is the version of an age.
    """

    ids: list[str]
    ages: Indices
    vectors: NDArray[np.float32]
    labels: list[str]
    counts: NDArray[np.float64]
    uncertainty: NDArray[np.float64]
    places: list[str] = field(default_factory=list)
    versions: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class LabelledQueries:
    """Unit vectors [Q, s] of the target version, and the name of each one's class."""

    vectors: Floats
    labels: list[str]


def old_items(
    gallery: Gallery,
    images: ImageStore,
    target: str,
    ways: Mapping[str, Translation],
    newer: Collection[str] = (),
    usage: Mapping[str, int] | None = None,
    vectors: bool = True,
) -> OldItems:
    """The items that a backfill to ``target`` may re-embed, each read once, with everything a plan needs.

    ``ways`` are the translations of other versions' vectors to the target. Vectors without a translation are zero.
    ``vectors=False`` is for orders that ignore vectors: vectors [N, 0] and uncertainties are left out.
    """
    spaces = {space.name: space for space in gallery.versions()}
    basis = short_basis(gallery.projection(target))
    width = spaces[target].width
    ids: list[str] = []
    labels: list[str] = []
    places: list[str] = []
    ages: list[int] = []
    room = sum(
        count for name, count in gallery.count().items() if name != target and name not in newer
    )
    carried = np.zeros(
        (room, width if vectors else 0), np.float32
    )  # allocated once: it takes most of the memory
    unsure: list[NDArray[np.float64]] = [np.zeros(0)]
    for age, name in enumerate(spaces):
        if name == target or name in newer:
            continue
        own = short_basis(gallery.projection(name))
        way = ways.get(name)
        stored = gallery.iterate(name)
        while found := list(islice(stored, _BLOCK)):
            start = len(ids)
            ids += [item.id for item in found]
            labels += [str(item.payload.get(LABEL) or "") for item in found]
            places += [images.place(item) for item in found]
            ages += [age] * len(found)
            if len(ids) > len(carried):  # others wrote items meanwhile
                more = np.zeros((len(ids) - len(carried), carried.shape[1]), np.float32)
                carried = np.concatenate([carried, more])
            if not vectors:
                unsure.append(np.full(len(found), np.nan))
                continue
            rows = np.stack([item.vector for item in found])
            unsure.append(uncertainty_of(way, rows))
            if way is not None and way.forward is not None:
                carried[start : len(ids)] = way.forward(rows)
            elif way is not None and way.shared:
                carried[start : len(ids)] = carry(
                    rows, Q_from=own, Q_to=basis, width=spaces[target].full_width
                )
    known = usage or {}
    counts = np.array([known.get(name, 0) for name in ids], np.float64)
    return OldItems(
        ids=ids,
        ages=np.array(ages, np.int64),
        vectors=carried[: len(ids)],
        labels=labels,
        counts=counts,
        uncertainty=np.concatenate(unsure),
        places=places,
        versions=tuple(spaces),
    )


def uncertainty_of(way: Translation | None, vectors: Floats) -> NDArray[np.float64]:
    """The expected error of each stored vector's translation, [N]; NaN if unknown."""
    if way is None or way.uncertainty is None:
        return np.full(len(vectors), np.nan)
    return way.uncertainty(vectors)


def with_images(
    images: ImageStore, items: OldItems, order: Indices, most: int
) -> tuple[list[int], int]:
    """The first ``most`` rows of an order whose images exist, and how many rows without an image were skipped."""
    chosen: list[int] = []
    without = 0
    for row in order.tolist():
        if len(chosen) == most:
            break
        if images.has(items.places[row]):
            chosen.append(row)
        else:
            without += 1
    return chosen, without


def planned_order(
    kind: str, items: OldItems, queries: LabelledQueries | None = None, seed: int = 0
) -> Indices:
    """The rows of ``items`` in the order of re-embedding; ties are broken at random with ``seed``."""
    if kind not in ORDERS:
        raise UnknownNameError("order", kind, ORDERS)
    shuffled: Indices = np.random.default_rng(seed).permutation(len(items))
    if kind == "random" or len(items) < 2:
        return shuffled
    scores = _scores("gain" if kind == "classes" else kind, items=items, queries=queries, seed=seed)
    best: Indices = shuffled[np.argsort(-scores[shuffled], kind="stable")]
    if kind == "classes":
        return _by_turns(best, items.labels)
    return best


def _by_turns(rows: Indices, labels: list[str]) -> Indices:
    """Round robin over classes: the first row of each, then the second of each; otherwise the order is kept."""
    seen: Counter[str] = Counter()
    turns = []
    for row in rows.tolist():
        turns.append(seen[labels[row]])
        seen[labels[row]] += 1
    return rows[np.argsort(turns, kind="stable")]


def _scores(
    kind: str, items: OldItems, queries: LabelledQueries | None, seed: int
) -> NDArray[np.float64]:
    if kind == "oldest":
        return -items.ages.astype(np.float64)
    if kind == "queried":
        return items.counts
    if kind == "gain" and queries is not None and set(queries.labels) & set(items.labels):
        return expected_gain(items, queries, seed)
    if kind == "uncertain" and not np.isnan(items.uncertainty).any():
        expected: NDArray[np.float64] = items.uncertainty * (1 + np.log1p(items.counts))
        return expected
    sure = certainty(items.vectors, seed)
    if kind == "gain":
        found: NDArray[np.float64] = np.log1p(items.counts) + 0.3 * (sure - sure.mean()) / max(
            sure.std(), 1e-12
        )
        return found
    return sure if kind == "certain" else -sure


def certainty(vectors: Floats, seed: int = 0) -> NDArray[np.float64]:
    """How clear each item's nearest neighbour among ``COMPARED`` others is, [N]: its cosine minus the mean of ten."""
    rows = unit(np.asarray(vectors, np.float32))
    others = np.sort(np.random.default_rng(seed).permutation(len(rows))[:COMPARED])
    near = min(NEIGHBOURS, len(others) - 1)
    if near < 1:
        return np.zeros(len(rows))
    margins = []
    for start in range(0, len(rows), _BLOCK):
        block = slice(start, start + _BLOCK)
        cosines = rows[block] @ rows[others].T
        mine = np.flatnonzero((others >= start) & (others < start + _BLOCK))
        cosines[others[mine] - start, mine] = -1.0  # an item is not its own neighbour
        best = np.partition(cosines, -near, axis=1)[:, -near:]
        margins.append(best.max(axis=1) - best.mean(axis=1))
    return np.concatenate(margins).astype(np.float64)


def expected_gain(items: OldItems, queries: LabelledQueries, seed: int = 0) -> NDArray[np.float64]:
    """The gain of each item [N], as the module docstring defines it."""
    rows = np.random.default_rng(seed).permutation(len(queries.labels))[:QUERIES]
    asked = unit(np.asarray(queries.vectors, np.float32)[rows])
    numbers = {name: number for number, name in enumerate(dict.fromkeys(items.labels))}
    truth = np.array([numbers.get(queries.labels[row], -1) for row in rows.tolist()])
    known = truth >= 0  # the gallery has no answer for the others
    asked = asked[known]
    truth = truth[known]
    owners = np.array([numbers[name] for name in items.labels])
    weights = _traffic(truth, owners=owners, counts=items.counts, classes=len(numbers))
    best, found = _best_now(asked, items.vectors)
    right = owners[found] == truth
    gains = []
    for start in range(0, len(items), _BLOCK):
        block = slice(start, start + _BLOCK)
        pull = (
            np.exp((asked @ items.vectors[block].T - best[:, None]) / REACH) * weights[:, None]
        )  # [Q, n]
        same = truth[:, None] == owners[block]
        gains.append(np.where(same, pull, np.where(right[:, None], -pull, 0.0)).sum(axis=0))
    return np.concatenate(gains).astype(np.float64)


def _traffic(
    truth: Indices, owners: Indices, counts: NDArray[np.float64], classes: int
) -> NDArray[np.float32]:
    """The weight of each query [Q]: the searches that found its class, divided among the queries of that class."""
    found = np.bincount(owners, counts, minlength=classes)
    asked = np.bincount(truth, minlength=classes)
    smooth = max(
        1.0, float(found.mean()) / 10
    )  # a class that was never found still gets a small weight
    if counts.any():
        shares = (found + smooth) / np.maximum(asked, 1)
    else:
        shares = np.ones(classes)
    return shares[truth].astype(np.float32)


def _best_now(asked: Floats, vectors: Floats) -> tuple[Floats, Indices]:
    """The best cosine of each query [Q] among the old vectors, and its row."""
    best = np.full(len(asked), -np.inf, np.float32)
    found = np.zeros(len(asked), np.int64)
    for start in range(0, len(vectors), _BLOCK):
        cosines = asked @ vectors[start : start + _BLOCK].T
        rows = cosines.argmax(axis=1)
        values = cosines[np.arange(len(asked)), rows]
        better = values > best
        best = np.where(better, values, best)
        found = np.where(better, rows + start, found)
    return best, found
