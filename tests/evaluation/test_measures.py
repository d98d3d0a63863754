"""The cross-test by every measure, against slow and obvious code on full features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from wording import refuses

from fixstar import geometry
from fixstar.errors import InputError
from fixstar.evaluation.cross_test import cross_test, cross_test_cmc, cross_test_scores
from fixstar.evaluation.evidence import verdicts
from fixstar.evaluation.features import VersionFeatures
from fixstar.evaluation.verification import kfold_accuracy, sample_pairs

Array = NDArray[Any]
T, N, M, WIDTH = 3, 60, 36, 9
QUERY_LABELS, GALLERY_LABELS = np.arange(N) % 4, np.arange(M) % 4


def embedded() -> tuple[list[VersionFeatures], list[VersionFeatures]]:
    """Three related versions in short form and in full; the old spaces cannot hold all of a new query."""
    rng = np.random.default_rng(0)
    shared, centres = rng.normal(size=(WIDTH, 4)), rng.normal(size=(4, 4))
    short, full = [], []
    for t in range(T):
        P = shared + 0.6 * rng.normal(size=(WIDTH, 4))
        q, g = (
            centres[y] + 1.2 * rng.normal(size=(len(y), 4)) for y in (QUERY_LABELS, GALLERY_LABELS)
        )
        short.append(
            VersionFeatures(f"v{t + 1}", geometry.short_form(q, P), geometry.short_form(g, P), P)
        )
        full.append(VersionFeatures(f"v{t + 1}", geometry.unit(q @ P.T), geometry.unit(g @ P.T)))
    return short, full


SHORT, FULL = embedded()
CELLS = [(t, k) for t in range(T) for k in range(t + 1)]


def cosines(t: int, k: int) -> Array:
    """[N, M], from the full features."""
    return np.asarray(FULL[t].queries @ FULL[k].gallery.T)


def nearest_labels(t: int, k: int) -> Array:
    return np.asarray(GALLERY_LABELS[np.argsort(-cosines(t, k), axis=1)])


@pytest.mark.parametrize("k", [1, 3])
def test_rank_k(k: int) -> None:
    result = cross_test(SHORT, QUERY_LABELS, GALLERY_LABELS, f"rank{k}")
    for cell in CELLS:
        expected = (nearest_labels(*cell)[:, :k] == QUERY_LABELS[:, None]).any(axis=1)
        assert np.array_equal(result.hits[cell], expected)
        assert result.matrix[cell] == expected.mean()
    assert np.isnan(result.matrix[0, 1])
    assert result.protocol == f"rank{k}"


def test_knn() -> None:
    from sklearn.neighbors import KNeighborsClassifier

    result = cross_test(SHORT, QUERY_LABELS, GALLERY_LABELS, "knn5")
    for t, k in CELLS:
        weights = (
            KNeighborsClassifier(5)
            .fit(FULL[k].gallery, GALLERY_LABELS)
            .predict_proba(FULL[t].queries)
        )
        clear = (
            np.sort(weights, axis=1)[:, -1] > np.sort(weights, axis=1)[:, -2]
        )  # ties are broken otherwise there
        assert np.array_equal(
            result.hits[t, k][clear], (weights.argmax(axis=1) == QUERY_LABELS)[clear]
        )
        assert clear.mean() > 0.5


def test_average_precision_leaves_queries_without_a_positive_out() -> None:
    from sklearn.metrics import average_precision_score

    labels = np.where(QUERY_LABELS == 3, 99, QUERY_LABELS)
    result = cross_test(SHORT, labels, GALLERY_LABELS, "map")
    kept = np.flatnonzero(labels != 99)
    for cell in CELLS:
        expected = [
            average_precision_score(labels[i] == GALLERY_LABELS, cosines(*cell)[i]) for i in kept
        ]
        assert np.allclose(result.hits[cell], expected)
        assert result.matrix[cell] == pytest.approx(np.mean(expected))
    assert verdicts(result)[1, 0].mean == pytest.approx(result.matrix[1, 0] - result.matrix[0, 0])
    first = cross_test(SHORT, labels, GALLERY_LABELS, "map1")
    assert first.matrix[2, 0] == (nearest_labels(2, 0)[kept, 0] == labels[kept]).mean()


def test_verification_uses_full_cosines_and_fold_thresholds() -> None:
    both = [VersionFeatures(v.name, v.gallery, v.gallery, v.projection) for v in SHORT]
    pairs = sample_pairs(GALLERY_LABELS, 60, 60)
    scores = cross_test_scores(both, pairs)
    result = cross_test(both, GALLERY_LABELS, GALLERY_LABELS, "verification", pairs=pairs)
    for t, k in CELLS:
        expected = (FULL[t].gallery[pairs.first] * FULL[k].gallery[pairs.second]).sum(axis=1)
        assert np.allclose(scores[t, k], expected, atol=1e-5)
        folds = kfold_accuracy(scores[t, k], pairs.same)
        assert result.matrix[t, k] == pytest.approx(folds.mean)
        assert np.array_equal(result.hits[t, k], folds.right)
    bases = [geometry.short_basis(version.projection) for version in both]
    lengths = np.linalg.norm(geometry.carry(both[1].queries, bases[1], bases[0], WIDTH), axis=1)
    assert lengths.max() < 0.99  # so normalising the carried query would have shown


def test_rank_tables_search_every_gallery_once() -> None:
    table = cross_test_cmc(SHORT, QUERY_LABELS, GALLERY_LABELS, (1, 4))
    for cell in CELLS:
        right = nearest_labels(*cell)[:, :4] == QUERY_LABELS[:, None]
        assert table[cell] == {1: right[:, 0].mean(), 4: right.any(axis=1).mean()}


def test_adapted_galleries_are_searched_where_they_were_moved() -> None:
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    old = VersionFeatures("v1", np.eye(2), np.eye(2))
    plain = VersionFeatures("v2", turn, turn)
    moving = VersionFeatures("v2", turn, turn, adapt=lambda vectors: vectors @ turn)
    labels = np.array([0, 1])
    assert cross_test([old, moving], labels, labels, "rank1").matrix[1, 0] == 1
    assert cross_test([old, plain], labels, labels, "rank1").matrix[1, 0] < 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: cross_test(SHORT, QUERY_LABELS, GALLERY_LABELS, "rank"),
        lambda: cross_test(SHORT, QUERY_LABELS, GALLERY_LABELS, "rank0"),
        lambda: cross_test(SHORT, QUERY_LABELS, GALLERY_LABELS, "images"),
        lambda: cross_test([], QUERY_LABELS, GALLERY_LABELS, "map"),
        lambda: cross_test(SHORT, QUERY_LABELS + 9, GALLERY_LABELS, "map"),
        lambda: cross_test(SHORT, QUERY_LABELS[:5], GALLERY_LABELS, "map"),
        lambda: cross_test(SHORT, QUERY_LABELS, GALLERY_LABELS, "verification"),
    ],
)
def test_wrong_input_is_named(call: Callable[[], object]) -> None:
    with refuses(InputError):
        call()


@pytest.mark.parametrize("far", [0.05, 0.3])
def test_tar_at_far(far: float) -> None:
    """The threshold is for all pairs: queries that an old space holds in part must not count as longer."""
    pairs = sample_pairs(GALLERY_LABELS, 40, 60)
    short, full = ([replace(v, queries=v.gallery) for v in versions] for versions in (SHORT, FULL))
    result = cross_test(short, GALLERY_LABELS, GALLERY_LABELS, f"TAR@FAR={far}", pairs=pairs)
    for t, k in CELLS:
        scores = (full[t].queries[pairs.first] * full[k].gallery[pairs.second]).sum(axis=1)
        impostors = np.sort(scores[~pairs.same])[::-1]
        expected = scores[pairs.same] > impostors[int(far * len(impostors))]
        assert np.array_equal(result.hits[t, k], expected)
    with pytest.raises(InputError, match="needs pairs"):
        cross_test(SHORT, QUERY_LABELS, GALLERY_LABELS, "TAR@FAR=0.1")


@pytest.mark.parametrize("fpir", ["1e-1", "0.5"])
def test_tpir_at_fpir(fpir: str) -> None:
    """Class 3 is in no gallery: its queries must find nothing."""
    kept = GALLERY_LABELS < 3
    short, full = (
        [replace(v, gallery=v.gallery[kept]) for v in versions] for versions in (SHORT, FULL)
    )
    labels, mated = GALLERY_LABELS[kept], QUERY_LABELS < 3
    result = cross_test(short, QUERY_LABELS, labels, f"TPIR@FPIR={fpir}")
    for t, k in CELLS:
        found = full[t].queries @ full[k].gallery.T
        best = found.max(axis=1)
        strangers = np.sort(best[~mated])[::-1]
        right = (labels[found.argmax(axis=1)] == QUERY_LABELS) & (
            best > strangers[int(float(fpir) * len(strangers))]
        )
        assert np.array_equal(result.hits[t, k].astype(bool), right[mated])


def test_cameras_and_listed_images_reach_average_precision() -> None:
    cameras = np.arange(N) // 4 % 3, np.arange(M) // 4 % 2
    by_camera = cross_test(SHORT, QUERY_LABELS, GALLERY_LABELS, "map", cameras=cameras)
    listed = [
        np.flatnonzero((y == GALLERY_LABELS) & (cameras[1] != c))
        for y, c in zip(QUERY_LABELS, cameras[0], strict=True)
    ]
    by_list = cross_test(SHORT, QUERY_LABELS, GALLERY_LABELS, "map10", relevant=listed)
    for t, k in CELLS:
        for query in range(0, N, 7):
            places = np.argsort(-cosines(t, k)[query], kind="stable")
            ignored = (QUERY_LABELS[query] == GALLERY_LABELS) & (cameras[1] == cameras[0][query])
            right = np.isin(places[~ignored[places]], listed[query])
            expected = np.mean([right[: i + 1].mean() for i in np.flatnonzero(right)])
            assert by_camera.hits[t, k][query] == pytest.approx(expected)
            right = np.isin(places[:10], listed[query])
            total = sum(right[: i + 1].mean() for i in np.flatnonzero(right))
            assert by_list.hits[t, k][query] == pytest.approx(total / min(10, len(listed[query])))
    with refuses(InputError):
        cross_test(SHORT, QUERY_LABELS, GALLERY_LABELS, "map", relevant=listed[1:])
