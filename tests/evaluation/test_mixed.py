"""Mixed galleries and partial backfill against slow loops over the full features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from wording import refuses

from fixstar import geometry
from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation.cross_test import cross_test
from fixstar.evaluation.features import VersionFeatures
from fixstar.evaluation.mixed import backfill_curve, mixed_gallery_search, mixed_nearest
from fixstar.evaluation.search import PROTOCOLS

Array = NDArray[Any]

QUERY_LABELS = np.arange(60) % 4 + 5
GALLERY_LABELS = np.arange(36) % 4 + 5


def make(seed: int, d: int, m: int) -> tuple[VersionFeatures, VersionFeatures]:
    """One version in short form and in full; versions are related, and classes overlap."""
    rng = np.random.default_rng(seed)
    P = rng.normal(size=(d, m)) + 1.5 * np.random.default_rng(0).normal(size=(40, 20))[:d, :m]
    centres = np.random.default_rng(1).normal(size=(4, 20))[:, :m]
    q, g = (
        centres[labels - 5] + 1.5 * rng.normal(size=(len(labels), m))
        for labels in (QUERY_LABELS, GALLERY_LABELS)
    )
    short = VersionFeatures(
        f"v{seed}", geometry.short_form(q, P), geometry.short_form(g, P), projection=P
    )
    return short, VersionFeatures(f"v{seed}", geometry.unit(q @ P.T), geometry.unit(g @ P.T))


def padded(features: Array, width: int) -> Array:
    return np.pad(features, ((0, 0), (0, width - features.shape[1])))


def slow_found(
    full: list[VersionFeatures], held: Array, t: int, protocol: str
) -> list[tuple[int, float]]:
    """For each query the class (template) or the gallery row (image) it finds, and the cosine."""
    width = max(version.width for version in full)
    rows = np.array([padded(full[v].gallery, width)[i] for i, v in enumerate(held)])
    if protocol == "template":
        classes = sorted(set(GALLERY_LABELS.tolist()))
        rows = np.array(
            [
                np.mean([rows[i] for i in np.flatnonzero(c == GALLERY_LABELS)], axis=0)
                for c in classes
            ]
        )
    found = []
    for query in padded(full[t].queries, width):
        cosines = [float(query @ row / np.linalg.norm(query) / np.linalg.norm(row)) for row in rows]
        best = cosines.index(max(cosines))
        found.append((classes[best] if protocol == "template" else best, cosines[best]))
    return found


def slow_hits(full: list[VersionFeatures], held: Array, t: int, protocol: str) -> list[bool]:
    names = [
        row if protocol == "template" else GALLERY_LABELS[row]
        for row, _ in slow_found(full, held, t, protocol)
    ]
    return [bool(name == label) for name, label in zip(names, QUERY_LABELS, strict=True)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_versions_held_may_be_a_list(protocol: str) -> None:
    versions, held = [make(seed, 30, 12)[0] for seed in (1, 2)], np.arange(36) % 2
    listed: Any = held.tolist()
    expected, found = (
        mixed_gallery_search(versions, given, QUERY_LABELS, GALLERY_LABELS, protocol=protocol)
        for given in (held, listed)
    )
    assert np.array_equal(found, expected)


def queries_by(
    t: int, versions: list[VersionFeatures], held: NDArray[Any]
) -> tuple[list[VersionFeatures], Any]:
    """The versions with number t last, and ``held`` by their new numbers."""
    order = [*(k for k in range(len(versions)) if k != t), t]
    return [versions[k] for k in order], np.argsort(order)[held]


@pytest.mark.parametrize("t", [0, 1, 2])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_three_versions_agree_with_full_features(protocol: str, t: int) -> None:
    """Backbones of different width under one d = 15; the last needs no short form."""
    pairs = [make(seed, 15, m) for seed, m in [(1, 6), (2, 9), (3, 20)]]
    short, full = (list(versions) for versions in zip(*pairs, strict=True))
    held = np.random.default_rng(4).integers(0, 3, 36)
    expected = slow_hits(full, held, t, protocol)
    assert 0.3 < np.mean(expected) < 1
    for versions in (short, full, [short[0], full[1], short[2]]):
        asking, numbers = queries_by(t, versions, held)
        found = mixed_gallery_search(
            asking, numbers, QUERY_LABELS, GALLERY_LABELS, protocol=protocol
        )
        assert found.tolist() == expected
        assert found.dtype == np.bool_


def test_the_nearest_image_comes_with_its_full_cosine() -> None:
    pairs = [make(seed, 15, 6) for seed in (1, 2)]
    held = np.arange(36) % 2
    indices, cosines = mixed_nearest([short for short, _ in pairs], held)
    slow = slow_found([full for _, full in pairs], held, 1, "image")
    assert indices.tolist() == [row for row, _ in slow]
    assert np.allclose(cosines, [cosine for _, cosine in slow], atol=1e-6)
    assert {0, 1} == set(held[indices])


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("widths", [(12, 18), (18, 12)])
def test_components_that_a_version_lacks_count_as_zero(
    widths: tuple[int, int], protocol: str
) -> None:
    pairs = [make(seed, d, m) for seed, d, m in zip((1, 2), widths, (6, 9), strict=True)]
    held = np.arange(36) // 2 % 2
    expected = slow_hits([full for _, full in pairs], held, 1, protocol)
    for versions in (
        [short for short, _ in pairs],
        [full for _, full in pairs],
        [pairs[0][0], pairs[1][1]],
    ):
        shared = [replace(version, shared_components=True) for version in versions]
        found = mixed_gallery_search(shared, held, QUERY_LABELS, GALLERY_LABELS, protocol=protocol)
        assert found.tolist() == expected
        with pytest.raises(
            InputError, match=f"v1 {widths[0]}, v2 {widths[1]}.*shared_components=True"
        ):
            mixed_gallery_search(versions, held, QUERY_LABELS, GALLERY_LABELS, protocol=protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_gallery_of_one_version_is_a_cell_of_the_cross_test(protocol: str) -> None:
    versions = [make(seed, 15, 6)[0] for seed in (1, 2)]
    cells = cross_test(versions, QUERY_LABELS, GALLERY_LABELS, protocol, upper=True).hits
    for (t, k), hits in cells.items():
        asking, held = queries_by(t, versions, np.full(36, k))
        found = mixed_gallery_search(asking, held, QUERY_LABELS, GALLERY_LABELS, protocol=protocol)
        assert np.array_equal(found, hits)


def test_versions_compete_on_one_scale() -> None:
    """In the old space the query keeps a tenth of its length: its cosine there is 0.1, not 1 after normalising."""
    old = VersionFeatures(
        "v1", np.ones((1, 1)), np.ones((2, 1)), projection=np.array([[1.0], [0.0]])
    )
    direction = np.array([[0.1, np.sqrt(0.99)]])
    new = VersionFeatures("v2", direction, np.array([[0.0, 1.0], [0.6, 0.8]]))
    indices, cosines = mixed_nearest([old, new], np.array([0, 1]))
    assert indices.tolist() == [1]
    assert cosines[0] == pytest.approx(0.06 + 0.8 * np.sqrt(0.99))
    assert mixed_nearest([old, new], np.array([0, 0]))[1][0] == pytest.approx(0.1)


def test_equal_cosines_go_to_the_lowest_row_whatever_its_version() -> None:
    version = VersionFeatures("v1", np.eye(2), np.ones((4, 2)))
    twin = replace(version, name="v2")
    for held in ([1, 0, 1, 0], [0, 1, 1, 0]):
        assert mixed_nearest([version, twin], np.array(held))[0].tolist() == [0, 0]


def test_lengths_and_float_types_do_not_matter() -> None:
    _, one = make(1, 15, 6)
    _, two = make(2, 15, 6)
    held = np.arange(36) % 2
    long = [
        replace(v, queries=(v.queries * 7).astype(np.float32), gallery=v.gallery * 0.01)
        for v in (one, two)
    ]
    for protocol in PROTOCOLS:
        ways = {"protocol": protocol}
        expected = mixed_gallery_search([one, two], held, QUERY_LABELS, GALLERY_LABELS, **ways)  # type: ignore[arg-type]
        found = mixed_gallery_search(long, held, QUERY_LABELS, GALLERY_LABELS, **ways)  # type: ignore[arg-type]
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_adapters_move_older_vectors_into_the_space_of_the_query(protocol: str) -> None:
    """Three versions in turned spaces; each adapter undoes its turn. So it is as if no version had turned."""
    straight = [make(seed, 15, 6)[1] for seed in (1, 2, 3)]
    rng = np.random.default_rng(8)
    turns = [np.linalg.qr(rng.normal(size=(15, 15)))[0] for _ in range(3)]

    def moved(t: int) -> VersionFeatures:
        adapt = None if t == 0 else (lambda vectors: vectors @ turns[t - 1].T @ turns[t])
        old = straight[t]
        return VersionFeatures(
            old.name, old.queries @ turns[t], old.gallery @ turns[t], adapt=adapt
        )

    moving = [moved(t) for t in range(3)]
    held = rng.integers(0, 3, 36)
    for t, mixture in ((2, held), (1, held.clip(0, 1))):
        found, expected = (
            mixed_gallery_search(
                versions[: t + 1], mixture, QUERY_LABELS, GALLERY_LABELS, protocol=protocol
            )
            for versions in (moving, straight)
        )
        assert np.array_equal(found, expected)
    one, other = (
        backfill_curve(old, new, QUERY_LABELS, GALLERY_LABELS, [0, 0.5, 1], protocol=protocol)
        for old, new, _ in (moving, straight)
    )
    assert np.array_equal(one.runs, other.runs)
    with pytest.raises(InputError, match="plain features"):
        mixed_gallery_search([make(1, 15, 6)[0], moving[1]], held % 2, QUERY_LABELS, GALLERY_LABELS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_backfill_curve_agrees_with_a_slow_loop(protocol: str) -> None:
    (old, old_full), (new, new_full) = make(1, 15, 6), make(2, 15, 9)
    order = np.random.default_rng(9).permutation(36)
    shares = [
        0.5,
        0.0,
        1.0,
        0.25,
        0.26,
        0.25,
        0.97,
    ]  # in any order, repeated, and rounded to whole images
    curve = backfill_curve(old, new, QUERY_LABELS, GALLERY_LABELS, shares, order, protocol=protocol)
    hits = []
    for count in (18, 0, 36, 9, 9, 9, 35):
        held = np.zeros(36, int)
        held[order[:count]] = 1
        hits.append(np.array(slow_hits([old_full, new_full], held, 1, protocol)))
    expected = [one.mean() for one in hits]
    assert curve.accuracy.tolist() == pytest.approx(expected)
    assert curve.hits is not None
    assert np.array_equal(curve.hits, [hits])
    assert curve.shares.tolist() == shares
    assert len(set(expected)) >= 4
    matrix = cross_test([old, new], QUERY_LABELS, GALLERY_LABELS, protocol).matrix
    assert curve.accuracy[1] == matrix[1, 0]
    assert curve.accuracy[2] == matrix[1, 1]


def test_old_vectors_may_be_searched_with_other_queries() -> None:
    (old, old_full), (new, new_full) = make(2, 40, 12), make(3, 40, 8)
    asked = geometry.unit(
        old.queries + 0.3 * np.random.default_rng(5).normal(size=old.queries.shape)
    )
    asking = replace(new, asked={old.name: asked})
    order = np.random.default_rng(4).permutation(len(GALLERY_LABELS))
    shares, scores = [0.0, 0.5, 1.0], {"v2": (4.0, -1.0), "v3": (3.0, -2.0)}
    curve = backfill_curve(old, asking, QUERY_LABELS, GALLERY_LABELS, shares, order, scores=scores)
    Q = geometry.short_basis(old.projection)
    assert Q is not None
    in_full = asked @ Q.T
    expected = []
    for share in shares:
        renewed = set(order[: round(share * len(order))].tolist())
        right = 0
        for row, label in enumerate(QUERY_LABELS):
            values = []
            for item in range(len(GALLERY_LABELS)):
                name, asked, stored = (
                    ("v3", new_full.queries[row], new_full.gallery[item])
                    if item in renewed
                    else ("v2", in_full[row], old_full.gallery[item])
                )
                values.append(scores[name][0] * float(asked @ stored) + scores[name][1])
            right += GALLERY_LABELS[int(np.argmax(values))] == label
        expected.append(right / len(QUERY_LABELS))
    np.testing.assert_allclose(curve.accuracy, expected)
    plain = backfill_curve(old, new, QUERY_LABELS, GALLERY_LABELS, shares, order, scores=scores)
    assert curve.accuracy[0] != plain.accuracy[0]
    assert curve.accuracy[-1] == plain.accuracy[-1]
    with pytest.raises(InputError, match="by protocol 'image' only"):
        backfill_curve(
            old, asking, QUERY_LABELS, GALLERY_LABELS, shares, order, protocol="template"
        )


def test_whole_classes_are_backfilled_at_once() -> None:
    old, new = make(1, 15, 6)[0], make(2, 15, 9)[0]
    shares = np.linspace(0, 1, 9)
    curve = backfill_curve(old, new, QUERY_LABELS, GALLERY_LABELS, shares, "classes", seed=3)
    classes = np.random.default_rng(3).permutation(4)  # the turn of each class
    for share, accuracy in zip(shares, curve.accuracy, strict=True):
        held = (classes[GALLERY_LABELS - 5] < round(share * 4)).astype(int)
        assert (
            accuracy == mixed_gallery_search([old, new], held, QUERY_LABELS, GALLERY_LABELS).mean()
        )


def test_random_orders_are_averaged() -> None:
    old, new = make(1, 15, 6)[0], make(2, 15, 9)[0]

    def curve(**ways: int) -> Any:
        return backfill_curve(old, new, QUERY_LABELS, GALLERY_LABELS, [0, 0.3, 0.6, 1], **ways)  # type: ignore[arg-type]

    several = curve(orders=5, seed=10)
    assert several.runs.shape == (5, 4)
    assert np.array_equal(several.runs, np.concatenate([curve(seed=10 + i).runs for i in range(5)]))
    assert np.allclose(several.accuracy, several.runs.mean(axis=0))
    assert len(np.unique(several.runs[:, 1])) > 1
    assert len(np.unique(several.runs[:, 3])) == 1


def test_each_version_is_factorised_a_fixed_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = make(1, 15, 6)[0], make(2, 15, 9)[0]
    factored: list[Array] = []
    original = geometry.short_factors

    def counted(P: Array) -> tuple[Array, Array]:
        factored.append(P)
        return original(P)

    monkeypatch.setattr(geometry, "short_factors", counted)
    backfill_curve(old, new, QUERY_LABELS, GALLERY_LABELS, np.linspace(0, 1, 20))
    assert len(factored) == 2


PAIR = make(1, 15, 6)[0], make(2, 15, 6)[0]
HELD = np.zeros(36, int)
LABELS = QUERY_LABELS, GALLERY_LABELS


def broken() -> VersionFeatures:
    return replace(PAIR[1], gallery=np.full((36, 6), np.nan))


@pytest.mark.parametrize(
    "call",
    [
        lambda: mixed_gallery_search(PAIR, HELD[:3], *LABELS),
        lambda: mixed_gallery_search(PAIR, HELD[:3], *LABELS, protocol="template"),
        lambda: mixed_gallery_search(PAIR, HELD + 2, *LABELS),
        lambda: mixed_gallery_search(PAIR, HELD - 1, *LABELS),
        lambda: mixed_gallery_search(PAIR, HELD / 1, *LABELS),  # type: ignore[arg-type]
        lambda: mixed_gallery_search([], HELD, *LABELS),
        lambda: mixed_gallery_search(PAIR, HELD, QUERY_LABELS[:7], GALLERY_LABELS),
        lambda: mixed_gallery_search(PAIR, HELD, QUERY_LABELS[:0], GALLERY_LABELS),
        lambda: mixed_gallery_search(PAIR, HELD, QUERY_LABELS / 2, GALLERY_LABELS),  # type: ignore[arg-type]
        lambda: mixed_gallery_search([PAIR[0], broken()], HELD, *LABELS),
        lambda: backfill_curve(PAIR[0], broken(), *LABELS, [0.5]),
        lambda: backfill_curve(*PAIR, *LABELS, [0, 50]),
        lambda: backfill_curve(*PAIR, *LABELS, [np.nan]),
        lambda: backfill_curve(*PAIR, *LABELS, []),
        lambda: backfill_curve(*PAIR, *LABELS, [0.5], np.zeros(36, int)),
        lambda: backfill_curve(*PAIR, *LABELS, [0.5], np.arange(35)),
        lambda: backfill_curve(*PAIR, *LABELS, [0.5], np.arange(36), orders=2),
        lambda: backfill_curve(*PAIR, *LABELS, [0.5], orders=0),
    ],
)
def test_wrong_input_is_named(call: Callable[[], object]) -> None:
    with refuses(InputError):
        call()


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="Known: image, template"):
        mixed_gallery_search(PAIR, HELD, *LABELS, protocol="nearest")
    with pytest.raises(UnknownNameError, match="Known: image, template"):
        backfill_curve(*PAIR, *LABELS, [0.5], protocol="nearest")
    with pytest.raises(UnknownNameError, match="Known: classes, images"):
        backfill_curve(*PAIR, *LABELS, [0.5], "class")  # type: ignore[arg-type]
