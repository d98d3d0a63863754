"""Calibrations: what the gate fits, what a search makes of them, and what a prediction does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import rewrite
from fixstar.workspace.adapters.fitting import fit_adapter
from fixstar.workspace.calibrations import _drawn, catalogue_thresholds, class_folds, fit_calibrations, search_curve
from numpy.typing import NDArray
from shops import passed, pictures, shop

from fixstar.data import ImageSet, from_arrays, open_images
from fixstar.errors import InputError, ModelError
from fixstar.evaluation import VersionFeatures, backfill_curve, mixed_gallery_search
from fixstar.evaluation.trial import Trial
from fixstar.gallery import Calibration, Gallery, Hit, MemoryGallery, SearchResult, calibrated_search
from fixstar.models import Encoder
from fixstar.workspace import BackfillOptions, Check, Workspace, catalogue
from fixstar.workspace.backfill.orders import LabelledQueries
from fixstar.workspace.backfill.planning import gallery_accuracy, predicted_curve
from fixstar.workspace.checks import LastChecks, Threshold, last_check, save_check
from fixstar.workspace.deployment import Rollout
from fixstar.workspace.gate import judge
from fixstar.workspace.registry import Registry
from fixstar.workspace.search import Examples, Serving

CLASSES = 10
MEANS = {"v1": (0.05, 0.2), "v2": (0.15, 0.35)}  # cosines between two classes, and within one
SPREAD = 0.05


def known(low: float, high: float) -> tuple[float, float]:
    """Slope and offset of log(density within a class / density between classes) of two normal distributions."""
    return (high - low) / SPREAD**2, -(high**2 - low**2) / (2 * SPREAD**2)


def two_versions(queries: int = 4000) -> tuple[list[VersionFeatures], NDArray[np.int64], NDArray[np.int64]]:
    """Each gallery vector is an axis, so that a query's numbers are its cosines: normal ones, of known means."""
    truth, rng = np.arange(queries) % CLASSES, np.random.default_rng(0)
    means = [np.where(truth[:, None] == np.arange(CLASSES), high, low) for low, high in MEANS.values()]
    cosines = np.hstack(means) + SPREAD * rng.standard_normal((queries, 2 * CLASSES))
    asked = np.hstack([cosines, np.sqrt(1 - (cosines**2).sum(axis=1, keepdims=True))])
    axes = np.split(np.eye(2 * CLASSES, 2 * CLASSES + 1), 2)
    versions = [VersionFeatures(name, asked, part) for name, part in zip(MEANS, axes, strict=True)]
    return versions, truth, np.arange(CLASSES)


def test_a_known_logistic_curve_is_found_again_for_each_version() -> None:
    fitted = fit_calibrations(*two_versions())
    assert list(fitted) == ["v1", "v2"]
    for name, means in MEANS.items():
        np.testing.assert_allclose(fitted[name], known(*means), rtol=0.1)


def test_a_threshold_separates_queries_whose_class_is_in_the_gallery_from_the_others() -> None:
    versions, truth, owners = two_versions(queries=1000)
    found = catalogue_thresholds(versions, truth, owners)
    assert list(found) == ["v1", "v2"]
    for version in versions:
        cosines = np.asarray(version.queries) @ np.asarray(version.gallery).T
        inside = [max(row) for row in cosines]
        outside = [max(np.delete(row, own)) for row, own in zip(cosines, truth, strict=True)]
        one = found[version.name]
        assert one.queries == 1000
        assert one.false_alarms == pytest.approx(np.mean(np.array(inside) < one.cosine), abs=2e-3)
        assert one.detected == pytest.approx(np.mean(np.array(outside) < one.cosine), abs=2e-3)
        assert 0.045 <= one.false_alarms <= 0.05 < one.detected
    assert catalogue_thresholds(versions, truth[:0], owners) == {}
    alone = [VersionFeatures(one.name, one.queries, one.gallery[:1]) for one in versions]
    assert catalogue_thresholds(alone, truth, owners[:1]) == {}  # no other class could be found instead


def test_the_gate_keeps_calibrations_and_its_verdict_does_not_rest_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions, truth, owners = two_versions()
    trial = Trial(versions, truth, owners, dict(enumerate("abcdefghij")), {})
    check = judge(trial).check
    for name, means in MEANS.items():
        np.testing.assert_allclose(check.calibrations[name], known(*means), rtol=0.1)
    assert judge(trial).check.calibrations == check.calibrations
    save_check(tmp_path, check)
    assert last_check(tmp_path, "v2") == check
    assert list(check.thresholds) == ["v1", "v2"]
    monkeypatch.setattr("fixstar.workspace.calibrations.LEAST", 10**6)
    bare = judge(trial).check
    assert (bare.outcome, bare.reasons, bare.cells) == (check.outcome, check.reasons, check.cells)
    assert (bare.calibrations, bare.thresholds) == ({}, {})
    assert bare.notes[-1].startswith("no calibrations: they need")


def test_too_few_pairs_or_none_that_are_closer_make_no_calibration() -> None:
    versions, truth, owners = two_versions(queries=40)
    assert fit_calibrations(versions, truth, owners) == {}
    versions, truth, owners = two_versions(queries=90)  # 90, but not 50 in each half
    assert fit_calibrations(versions, truth, owners)
    assert class_folds(versions, truth, owners) == []
    assert fit_calibrations(versions, (truth + 1) % CLASSES, owners) == {}  # no closer within a class


@pytest.mark.parametrize("most", [10_000, 30])
def test_pairs_are_all_there_are_or_some_of_them(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fixstar.workspace.calibrations.PAIRS", most)
    rng = np.random.default_rng(0)
    truth, classes = rng.integers(0, 5, 30), np.array([1, 2, 3, 4, 7])  # class 0 is not in the gallery, 7 not asked for
    asked, own, rows, others = _drawn(truth, classes, rng)
    assert asked.tolist() == np.flatnonzero(truth > 0).tolist()
    assert classes[own].tolist() == truth[asked].tolist()
    every = {(q, c) for q, row in enumerate(asked) for c in range(5) if classes[c] != truth[row]}
    found = list(zip(rows.tolist(), others.tolist(), strict=True))
    assert len(found) == min(most, len(every))
    assert set(found) == every if most > len(every) else set(found) < every
    monkeypatch.setattr("fixstar.workspace.calibrations.QUERIES", 7)
    assert len(set(_drawn(truth, classes, rng)[0].tolist())) == 7


def test_the_nearest_image_of_a_class_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that are further off than the nearest of their class change nothing, in whatever order they come."""
    monkeypatch.setattr("fixstar.workspace.calibrations._BLOCK", 100)
    versions, truth, owners = two_versions(queries=1000)
    shuffled = np.random.default_rng(0).permutation(2 * CLASSES)
    more = [
        VersionFeatures(v.name, v.queries, np.concatenate([v.gallery, -v.queries[:CLASSES]])[shuffled])
        for v in versions
    ]
    again = fit_calibrations(more, truth, np.tile(owners, 2)[shuffled])
    for name, fitted in fit_calibrations(versions, truth, owners).items():
        np.testing.assert_allclose(again[name], fitted, rtol=1e-4)


def test_folds_see_no_image_of_the_classes_they_are_tried_on() -> None:
    versions, truth, owners = two_versions()
    folds = class_folds(versions, truth, owners, seed=3)
    assert sorted(np.concatenate([fold.rows for fold in folds]).tolist()) == list(range(len(truth)))
    for fold in folds:
        tried = set(truth[fold.rows].tolist())
        assert len(tried) == CLASSES // 2
        others, learnt = ~np.isin(truth, list(tried)), ~np.isin(owners, list(tried))
        parts = [VersionFeatures(v.name, v.queries[others], v.gallery[learnt]) for v in versions]
        assert fold.calibrations == fit_calibrations(parts, truth[others], owners[learnt], seed=3)


def test_a_mixture_by_calibrations_against_slow_code() -> None:
    versions, truth, owners = two_versions(queries=1000)
    folds = class_folds(versions, truth, owners)
    order = np.random.default_rng(1).permutation(CLASSES)
    curve = search_curve((versions[0], versions[1]), truth, owners, [0.4, 1.0], folds, order)
    new, right = np.isin(np.arange(CLASSES), order[:4]), []
    for fold in folds:
        slopes, offsets = (np.array([one[i] for one in fold.calibrations.values()]) for i in (0, 1))
        for row in fold.rows.tolist():
            cosines = [version.gallery @ versions[1].queries[row] for version in versions]
            scores = [slopes[held] * cosines[held][i] + offsets[held] for i, held in enumerate(new.astype(int))]
            right.append(owners[np.argmax(scores)] == truth[row])
    assert curve.accuracy[0] == pytest.approx(np.mean(right))
    assert curve.hits is not None
    assert curve.hits[0, 0].tolist() == right  # fold by fold
    raw = backfill_curve(versions[0], versions[1], truth, owners, [0.4, 1.0], order).accuracy
    assert curve.accuracy[0] > raw[0] + 0.1
    assert curve.accuracy[1] == raw[1]  # within one version nothing changes places
    assert search_curve((versions[0], versions[1]), truth, owners, [0.4], [], order).accuracy[0] == raw[0]
    one = folds[0].calibrations
    hits = mixed_gallery_search(versions, new.astype(int), truth, owners, scores=one)
    expected = backfill_curve(versions[0], versions[1], truth, owners, [0.4], order, scores=one).accuracy[0]
    assert hits.mean() == pytest.approx(expected)
    with pytest.raises(InputError, match="template"):
        mixed_gallery_search(versions, new.astype(int), truth, owners, protocol="template", scores=one)
    with pytest.raises(InputError, match="positive slope"):
        mixed_gallery_search(versions, new.astype(int), truth, owners, scores={"v1": (1.0, 0.0), "v2": (-1.0, 0.0)})


# --- searches

STEEP = {"v1": (10.0, -5.0), "v2": (10.0, -8.0)}  # 0.6 in v1 is more than 0.8 in v2


def checked(path: Path, version: str, calibrations: dict[str, tuple[float, float]]) -> None:
    save_check(path, Check(version, "pass", (), (), 0.5, 100, 100, 0.95, 0.0, calibrations=calibrations))


def small_serving(path: Path, gallery: Gallery | None = None) -> Serving:
    gallery = gallery or MemoryGallery()
    for name in ("v1", "v2", "v3"):
        if not (path / "versions" / name).exists():
            Encoder.create("tiny", classes=["a"], capacity=8).save(path / "versions" / name)
        gallery.create_version(name, 2)
    gallery.upsert("v1", ["right"], np.array([[0.6, 0.8]]), [{"label": "a"}])
    gallery.upsert("v2", ["wrong"], np.array([[0.8, 0.6]]), [{"label": "b"}])
    return Serving(Registry(path), Rollout(path), gallery)


def found(answer: SearchResult) -> list[str]:
    return [hit.id for hit in answer.hits[0]]


QUERY = np.array([[1.0, 0.0]])


def test_hits_of_two_versions_are_merged_by_probability(tmp_path: Path) -> None:
    serving = small_serving(tmp_path)
    raw = serving.search_vectors("v2", QUERY)
    assert (found(raw), raw.calibrated) == (["wrong", "right"], False)  # nobody has checked v2
    checked(tmp_path, "v2", STEEP)
    answer = serving.search_vectors("v2", QUERY)
    assert (found(answer), answer.calibrated) == (["right", "wrong"], True)
    assert [hit.score for hit in answer.hits[0]] == pytest.approx([1 / (1 + np.exp(-1)), 0.5], abs=1e-6)
    assert [hit.version for hit in answer.hits[0]] == ["v1", "v2"]
    assert found(serving.search_vectors("v2", QUERY, k=1, exact=False)) == ["right"]
    assert found(serving.search_vectors("v2", QUERY, where={"label": "b"})) == ["wrong"]
    assert serving.search_vectors("v2", QUERY, calibrate=False) == raw
    assert serving.search_vectors("v2", np.zeros((0, 2))).hits == []
    like = serving.like("wrong")
    assert (found(like), like.calibrated) == (["right"], True)
    assert not serving.like("wrong", calibrate=False).calibrated
    assert not serving.like("right").calibrated  # v1 asks, and its check has none


def test_hits_under_the_measured_threshold_are_unlikely(tmp_path: Path) -> None:
    serving = small_serving(tmp_path)
    assert not any(map(serving.search_vectors("v2", QUERY).is_unlikely, serving.search_vectors("v2", QUERY).hits[0]))
    thresholds = {name: Threshold(0.7, 0.05, 0.9, 100) for name in ("v1", "v2")}
    save_check(tmp_path, Check("v2", "pass", (), (), 0.5, 100, 100, 0.95, 0.0, thresholds=thresholds))

    def unlikely(answer: SearchResult) -> dict[str, bool]:
        return {hit.id: answer.is_unlikely(hit) for hit in answer.hits[0]}

    assert unlikely(serving.search_vectors("v2", QUERY)) == {"wrong": False, "right": True}  # cosines 0.8 and 0.6
    check = Check("v2", "pass", (), (), 0.5, 100, 100, 0.95, 0.0, calibrations=STEEP, thresholds=thresholds)
    save_check(tmp_path, check)
    answer = serving.search_vectors("v2", QUERY)
    assert (answer.calibrated, unlikely(answer)) == (True, {"right": True, "wrong": False})
    assert answer.thresholds["v1"] == pytest.approx(1 / (1 + np.exp(-2)))  # 10 * 0.7 - 5
    serving.gallery.upsert("v2", ["other"], np.array([[0.0, 1.0]]))
    assert serving.like("wrong").thresholds == answer.thresholds
    assert serving.by_examples(Examples(ids=["wrong", "other"])).thresholds == {}  # measured with single images


def test_cosines_decide_where_a_calibration_is_missing_or_needless(tmp_path: Path) -> None:
    serving = small_serving(tmp_path)
    checked(tmp_path, "v2", {"v2": STEEP["v2"]})
    assert found(serving.search_vectors("v2", QUERY)) == ["wrong", "right"]
    checked(tmp_path, "v2", STEEP)  # read again, since it has changed
    assert serving.search_vectors("v2", QUERY).calibrated
    serving.gallery.upsert("v3", ["third"], np.array([[0.0, 1.0]]))
    answer = serving.search_vectors("v2", QUERY)
    assert (found(answer), answer.calibrated) == (["wrong", "right", "third"], False)
    serving.gallery.delete(["third", "right"])
    alone = serving.search_vectors("v2", QUERY)
    assert not alone.calibrated
    assert alone.hits[0][0].score == pytest.approx(0.8)


def test_cosines_decide_where_a_live_version_has_a_space_of_its_own(tmp_path: Path) -> None:
    """Calibrations are fitted without adapters: what an adapter makes of a query is another matter."""
    checked(tmp_path, "v2", STEEP)
    serving, pairs = small_serving(tmp_path), np.tile(np.eye(2), (4, 1))
    serving.adapters.use(fit_adapter("procrustes", pairs, pairs, source="v9", target="v1"))
    answer = serving.search_vectors("v2", QUERY)
    assert (found(answer), answer.calibrated, answer.left_out) == (["wrong"], False, ("v1",))
    serving.adapters.remove("v1", "v9", "queries")
    serving.adapters.use(fit_adapter("procrustes", pairs, pairs, source="v9", target="v3"))  # it has no vectors
    assert serving.search_vectors("v2", QUERY).calibrated


def test_a_damaged_check_does_not_stop_a_search(tmp_path: Path) -> None:
    serving = small_serving(tmp_path)
    checked(tmp_path, "v2", STEEP)
    path = tmp_path / "checks" / "v2.json"
    for broken in ('"calibrations": {"v1": [0, 1]}', '"calibrations": {"v1": ["x", 1]}', '"calibrations": [1]'):
        rewrite(path, dict.update, json.loads("{" + broken + "}"))
        with pytest.raises(ModelError, match="is damaged"):
            last_check(tmp_path, "v2")
        assert not serving.search_vectors("v2", QUERY).calibrated
    assert LastChecks(tmp_path).of("no\0file") is None


def test_the_check_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serving = small_serving(tmp_path)
    checked(tmp_path, "v2", STEEP)
    assert serving.search_vectors("v2", QUERY).calibrated
    monkeypatch.setattr("fixstar.workspace.checks.last_check", None)  # reading it again would fail
    assert serving.search_vectors("v2", QUERY).calibrated


class MovingGallery(MemoryGallery):
    """An item moves to v2 between the searches among two versions' vectors."""

    def search(self, *words: Any, **options: Any) -> list[list[Hit]]:
        hits = super().search(*words, **options)
        if options.get("versions") == ["v1"]:
            self.upsert("v2", ["right"], np.array([[0.9, np.sqrt(0.19)]]))
        return hits


def test_an_item_that_is_re_embedded_meanwhile_is_found_once(tmp_path: Path) -> None:
    serving = small_serving(tmp_path, MovingGallery())
    Rollout(tmp_path).deploy("v2")
    checked(tmp_path, "v2", dict(reversed(STEEP.items())))
    answer = serving.search_vectors("v2", QUERY)
    assert [(hit.id, hit.version) for hit in answer.hits[0]] == [("right", "v2"), ("wrong", "v2")]
    back = small_serving(tmp_path / "back", MovingGallery())  # v1 is deployed: it is searched last
    checked(tmp_path / "back", "v2", STEEP)
    first = back.search_vectors("v2", QUERY).hits[0][0]
    assert (first.id, first.version) == ("right", "v1")


def test_probabilities_that_round_to_one_keep_their_order() -> None:
    gallery = MemoryGallery()
    for name in ("v1", "v2"):
        gallery.create_version(name, 2)
        gallery.upsert(name, [f"{name} item"], np.array([[0.8, 0.6]]))
    calibrations = {"v1": Calibration(200, 0), "v2": Calibration(201, 0)}
    (hits,) = calibrated_search(gallery, "v1", QUERY, calibrations)
    assert [(hit.version, hit.score) for hit in hits] == [("v2", 1.0), ("v1", 1.0)]


def test_a_deployment_changes_which_calibrations_apply(tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos")
    with shop(tmp_path / "shop") as space:
        space.index(list(catalogue(photos))[:5])
        passed(space, "v2", "v1")
        space.deploy("v2")
        space.index(catalogue(photos))
        image = photos / "bag" / "0.png"
        assert not space.search([image]).calibrated
        checked(space.path, "v2", {"v1": (5.0, -4.0), "v2": (5.0, -3.0)})
        answer = space.search([image], k=9)
        assert answer.calibrated
        assert sorted(hit.id for hit in answer.hits[0]) == sorted(item.id for item in space.gallery.iterate())
        raw = space.search([image], k=9, calibrate=False)
        cosines = {hit.id: hit.score for hit in raw.hits[0]}
        for hit in answer.hits[0]:
            offset = {"v1": -4.0, "v2": -3.0}[hit.version]
            assert hit.score == pytest.approx(1 / (1 + np.exp(-(5 * cosines[hit.id] + offset))), abs=1e-6)
        space.rollback()
        assert not space.search([image]).calibrated
        checked(space.path, "v1", {"v1": (5.0, -4.0), "v2": (5.0, -3.0)})
        assert space.search([image]).calibrated


# --- predictions


def images_of(classes: int, each: int) -> ImageSet:
    """Images whose first pixel says their class."""
    labels = np.repeat(np.arange(classes), each)
    pixels = np.zeros((len(labels), 8, 8, 3), np.uint8)
    pixels[:, 0, 0, 0] = labels
    return from_arrays(pixels, labels)


def prepared(name: str, _: Any, queries: ImageSet, gallery: ImageSet) -> VersionFeatures:
    """New vectors of two classes are closer (0.6) than a new one and an old one of the same (0.5)."""
    e = np.eye(CLASSES + 2)
    fresh = np.sqrt(0.4) * e[:CLASSES] + np.sqrt(0.6) * e[CLASSES]
    stored = 0.5 / np.sqrt(0.4) * e[:CLASSES] + np.sqrt(1 - 0.625) * e[CLASSES + 1]
    made = {"v1": stored, "v2": fresh}[name]
    return VersionFeatures(name, made[queries.labels], made[gallery.labels])


def test_a_prediction_merges_as_searches_will(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fixstar.workspace.backfill.planning.version_features", prepared)
    encoder: Any = None
    ends = ("v1", encoder), ("v2", encoder), images_of(CLASSES, 20)
    raw = predicted_curve(*ends, "random", [0.0, 0.05, 1.0])
    calibrated = predicted_curve(*ends, "random", [0.0, 0.05, 1.0], calibrate=True)
    assert (raw.calibrated, calibrated.calibrated) == (False, True)
    assert raw.random.accuracy[[0, 2]].tolist() == calibrated.random.accuracy[[0, 2]].tolist() == [1, 1]
    assert calibrated.random.accuracy[1] == calibrated.planned.accuracy[1] == 1
    assert max(raw.random.accuracy[1], raw.planned.accuracy[1]) < 0.6
    few = predicted_curve(*ends[:2], images_of(4, 3), "random", [0.5], calibrate=True)
    assert not few.calibrated


def test_the_accuracy_on_the_gallery_is_that_of_searches(tmp_path: Path) -> None:
    gallery = small_serving(tmp_path).gallery
    queries = LabelledQueries(QUERY, ["a"])
    assert gallery_accuracy(gallery, "v2", queries) == 0
    assert gallery_accuracy(gallery, "v2", queries, {name: Calibration(*pair) for name, pair in STEEP.items()}) == 1


def test_a_workspace_predicts_with_calibrations_where_its_check_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def predicted(*_: Any, calibrate: bool, **__: Any) -> Any:
        asked.append(calibrate)
        raise InputError("enough is known")

    monkeypatch.setattr("fixstar.workspace.backfill.planning.predicted_curve", predicted)
    photos = pictures(tmp_path / "photos")
    with shop(tmp_path / "shop") as space:
        space.index(catalogue(photos))
        space.deploy("v2", force="test")
        options = BackfillOptions("5", "random", data=open_images(photos))
        space.plan_backfill(options)
        checked(space.path, "v2", STEEP)
        space.plan_backfill(options)
        assert asked == [False, True]
        assert_measured_as_searched(space, options, monkeypatch)


def assert_measured_as_searched(space: Workspace, options: BackfillOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []

    def accuracy(*given: Any) -> float:
        seen.append(set(given[3]))
        assert set(given[4]) == {"v1", "v2"}
        return 0.5

    monkeypatch.setattr("fixstar.workspace.backfill.planning.gallery_accuracy", accuracy)
    space.backfill(options)
    assert seen[0] == set()  # all vectors are v1's still
    assert seen[-1] == {"v1", "v2"}
