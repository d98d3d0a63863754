"""The cross-test against cells worked by hand, and short forms against full features."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from wording import REASON, refuses

from fixstar import geometry
from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation import compatibility, search
from fixstar.evaluation.cross_test import cross_test
from fixstar.evaluation.features import VersionFeatures, stored_galleries
from fixstar.evaluation.search import PROTOCOLS, image_search

Array = NDArray[Any]
cross_test_module = importlib.import_module(
    "fixstar.evaluation.cross_test"
)  # the package exports a function of that name

QUERY_LABELS = np.arange(120) % 4
GALLERY_LABELS = np.arange(40) % 4


def make_pair(seed: int, d: int, m: int) -> tuple[VersionFeatures, VersionFeatures]:
    """One version twice, in short form and in full: weak classes, so that accuracies lie well inside (0, 1)."""
    rng = np.random.default_rng(seed)
    P = (
        rng.normal(size=(d, m)) + 1.5 * np.random.default_rng(0).normal(size=(40, 20))[:d, :m]
    )  # related versions
    centres = np.random.default_rng(1).normal(size=(4, 20))[:, :m]
    queries = centres[QUERY_LABELS] + 2 * rng.normal(size=(120, m))
    gallery = centres[GALLERY_LABELS] + 2 * rng.normal(size=(40, m))
    short = VersionFeatures(
        f"v{seed}", geometry.short_form(queries, P), geometry.short_form(gallery, P), projection=P
    )
    return short, VersionFeatures(
        f"v{seed}", geometry.unit(queries @ P.T), geometry.unit(gallery @ P.T)
    )


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_short_forms_give_the_cross_test_of_the_full_features(protocol: str, upper: bool) -> None:
    """Three backbones of different width under one d = 15; the last needs no short form."""
    pairs = [make_pair(seed, 15, m) for seed, m in [(1, 6), (2, 9), (3, 20)]]
    short, full = (
        cross_test(versions, QUERY_LABELS, GALLERY_LABELS, protocol, upper)
        for versions in zip(*pairs, strict=True)
    )
    mixed = cross_test(
        [pairs[0][0], pairs[1][1], pairs[2][0]], QUERY_LABELS, GALLERY_LABELS, protocol, upper
    )
    for answer in (short, mixed):
        assert np.array_equal(answer.matrix, full.matrix, equal_nan=True)
        assert all(np.array_equal(answer.hits[cell], full.hits[cell]) for cell in full.hits)
    measured = full.matrix[~np.isnan(full.matrix)]
    assert measured.size == (9 if upper else 6)
    assert ((measured > 0) & (measured < 1)).all()


@pytest.mark.parametrize("widths", [(12, 18), (18, 12)])
def test_shared_components_count_the_others_as_zero(widths: tuple[int, int]) -> None:
    (short_1, full_1), (short_2, full_2) = make_pair(1, widths[0], 6), make_pair(2, widths[1], 9)
    padded = [
        replace(v, queries=np.pad(v.queries, missing), gallery=np.pad(v.gallery, missing))
        for v, missing in ((v, ((0, 0), (0, 18 - v.width))) for v in (full_1, full_2))
    ]
    expected = cross_test(padded, QUERY_LABELS, GALLERY_LABELS, "image", upper=True)
    for versions in ([short_1, short_2], [full_1, full_2], [short_1, full_2], [full_1, short_2]):
        shared = [replace(version, shared_components=True) for version in versions]
        found = cross_test(shared, QUERY_LABELS, GALLERY_LABELS, "image", upper=True)
        assert np.array_equal(found.matrix, expected.matrix)
        with pytest.raises(
            InputError, match=f"v1 {widths[0]}, v2 {widths[1]}.*shared_components=True"
        ):
            cross_test(versions, QUERY_LABELS, GALLERY_LABELS)


def test_rows_are_queries_and_columns_are_galleries() -> None:
    """Two classes on two axes. v2 swaps them in its gallery only; v1 misses its second query."""
    straight, swapped = np.eye(2), np.eye(2)[::-1]
    v1 = VersionFeatures("v1", np.array([[1.0, 0.0], [1.0, 0.1]]), straight)
    v2 = VersionFeatures("v2", straight, swapped)
    labels = np.array([0, 1])
    answer = cross_test([v1, v2], labels, labels, "image", upper=True)
    assert answer.matrix.tolist() == [[0.5, 0.5], [1.0, 0.0]]
    assert {cell: hits.tolist() for cell, hits in answer.hits.items()} == {
        (0, 0): [True, False],
        (0, 1): [False, True],
        (1, 0): [True, True],
        (1, 1): [False, False],
    }
    assert answer.names == ("v1", "v2")
    assert answer.protocol == "image"
    assert answer.summary() == compatibility.summary(answer.matrix)
    assert answer.summary()["AC"] == 1.0


def test_lower_triangle_only_unless_asked() -> None:
    versions = [make_pair(seed, 15, 6)[1] for seed in (1, 2, 3)]
    answer = cross_test(versions, QUERY_LABELS, GALLERY_LABELS, "image")
    assert sorted(answer.hits) == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    assert np.array_equal(np.isnan(answer.matrix), np.triu(np.ones((3, 3), dtype=bool), 1))
    for (t, k), hits in answer.hits.items():
        direct = image_search(
            versions[t].queries, QUERY_LABELS, versions[k].gallery, GALLERY_LABELS
        )
        assert np.array_equal(hits, direct)
        assert answer.matrix[t, k] == direct.mean()


def adapting_chain() -> list[VersionFeatures]:
    """Plain features of 15, 15, 12, 12 components; v2 and v3 adapt, v4 takes the galleries as v3 left them."""
    rng = np.random.default_rng(20)
    turn, squeeze = rng.normal(size=(15, 15)), rng.normal(size=(15, 12))
    adapters = [None, lambda x: np.tanh(3 * x @ turn), lambda x: x @ squeeze, None]
    plain = [make_pair(seed, d, 6)[1] for seed, d in [(1, 15), (2, 15), (3, 12), (4, 12)]]
    return [replace(version, adapt=adapt) for version, adapt in zip(plain, adapters, strict=True)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_adapters_move_the_stored_galleries_and_compose(protocol: str) -> None:
    versions = adapting_chain()
    answer = cross_test(versions, QUERY_LABELS, GALLERY_LABELS, protocol)
    assert len(answer.hits) == 10
    for (t, k), hits in answer.hits.items():
        gallery = versions[k].gallery
        for later in versions[k + 1 : t + 1]:
            gallery = gallery if later.adapt is None else later.adapt(gallery)
        expected = PROTOCOLS[protocol](versions[t].queries, QUERY_LABELS, gallery, GALLERY_LABELS)
        assert np.array_equal(hits, expected), (t, k)
    still = cross_test(
        [replace(v, adapt=None) for v in versions[:2]], QUERY_LABELS, GALLERY_LABELS, protocol
    )
    assert still.matrix[1, 0] != answer.matrix[1, 0]


def test_old_queries_meet_newer_galleries_as_they_were_made() -> None:
    versions = adapting_chain()[:2]
    answer = cross_test(versions, QUERY_LABELS, GALLERY_LABELS, "image", upper=True)
    bare = cross_test(
        [replace(v, adapt=None) for v in versions],
        QUERY_LABELS,
        GALLERY_LABELS,
        "image",
        upper=True,
    )
    assert answer.matrix[0].tolist() == bare.matrix[0].tolist()
    assert answer.matrix[1, 0] != bare.matrix[1, 0]


def test_wrong_adapters_are_named() -> None:
    versions = adapting_chain()
    with pytest.raises(InputError, match=r"different feature width.*v2 15, v3 12"):
        cross_test(versions, QUERY_LABELS, GALLERY_LABELS, upper=True)
    short = make_pair(1, 15, 6)[0]
    with refuses(InputError):
        cross_test([short, versions[1]], QUERY_LABELS, GALLERY_LABELS)
    flat = replace(versions[1], adapt=lambda x: x[:, :7])
    with refuses(InputError):
        stored_galleries([versions[0], flat])
    with refuses(InputError):
        cross_test([versions[0], flat], QUERY_LABELS, GALLERY_LABELS)


def test_each_version_is_factorised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = [make_pair(seed, 15, 6)[0] for seed in (1, 2, 3, 4)]
    factored: list[int] = []
    original = geometry.short_factors

    def counted(P: Array) -> tuple[Array, Array]:
        factored.append(id(P))
        return original(P)

    monkeypatch.setattr(geometry, "short_factors", counted)
    cross_test(versions, QUERY_LABELS, GALLERY_LABELS)
    assert sorted(factored) == sorted(id(version.projection) for version in versions)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_gallery_is_prepared_once_and_again_when_it_is_adapted(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four galleries made; v2 adapts one of them and v3 two. torch gives the same answers."""
    prepared: list[int] = []
    original = search.searcher

    def counted(name: str, gallery: Array, gallery_labels: Array, device: str | None) -> Any:
        prepared.append(len(gallery))
        return original(name, gallery, gallery_labels, device)

    plain = cross_test(adapting_chain(), QUERY_LABELS, GALLERY_LABELS, protocol)
    monkeypatch.setattr(cross_test_module, "searcher", counted)
    by_torch = cross_test(adapting_chain(), QUERY_LABELS, GALLERY_LABELS, protocol, device="cpu")
    assert len(prepared) == 4 + 1 + 2
    assert all(np.array_equal(by_torch.hits[cell], plain.hits[cell]) for cell in plain.hits)


def test_progress_is_reported_after_every_cell() -> None:
    seen: list[tuple[int, int]] = []
    versions = [make_pair(seed, 15, 6)[1] for seed in (1, 2)]
    cross_test(
        versions,
        QUERY_LABELS,
        GALLERY_LABELS,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("which", ["queries", "gallery"])
def test_rows_without_a_direction_are_refused_by_number(which: str) -> None:
    """Their cosines would all be zero, and ties go to the first image: hits that nobody earned."""
    rows = np.eye(4, dtype=np.float32)
    rows[1], rows[3] = 0, 1e-20
    with refuses(InputError):
        replace(VersionFeatures("v2", np.eye(4), np.eye(4)), **{which: rows})  # type: ignore[arg-type]


def test_a_query_that_an_older_space_cannot_hold_is_no_mistake() -> None:
    """It is carried there as zero, and finds nothing but by chance."""
    v1 = VersionFeatures("v1", np.eye(2), np.eye(2))
    v2 = VersionFeatures("v2", np.eye(3)[1:], np.eye(3)[:2], shared_components=True)
    labels = np.array([1, 7])
    assert cross_test([v1, v2], labels, np.array([0, 1]), "image").matrix[1, 0] == 0.5


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused() -> None:
    version = VersionFeatures("v1", np.eye(2), np.eye(2))
    labels = np.array([0, 1])
    with refuses(InputError, varies=REASON):
        cross_test([version], labels, labels, device="cuda")
    assert cross_test([version], labels, labels, device="auto").matrix[0, 0] == 1


def test_wrong_input_is_named() -> None:
    short, full = make_pair(1, 15, 6)
    with refuses(UnknownNameError):
        cross_test([full], QUERY_LABELS, GALLERY_LABELS, "templates")
    with refuses(InputError):
        cross_test([], QUERY_LABELS, GALLERY_LABELS)
    with refuses(InputError):
        cross_test([full, short], QUERY_LABELS, GALLERY_LABELS)
    with pytest.raises(InputError, match=r"120 queries .* for 7"):
        cross_test([full], QUERY_LABELS[:7], GALLERY_LABELS)
    with pytest.raises(InputError, match=r"'v1'.*same width"):
        VersionFeatures("v1", full.queries, short.gallery)
    with refuses(InputError):
        VersionFeatures("v1", full.queries, full.gallery, short.projection)
    with pytest.raises(InputError, match="two versions"):
        cross_test([full], QUERY_LABELS, GALLERY_LABELS).summary()
