"""Searches through translations over a gallery of several versions, against slow code; deployments and their end."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import rewrite
from forked import fork
from shops import passed, pictures, shop
from wording import refuses

from fixstar.errors import GateError, InputError, ModelError
from fixstar.gallery import MemoryGallery, SearchResult
from fixstar.geometry import unit
from fixstar.images import read_pixels
from fixstar.models import Encoder
from fixstar.translation import Calibration, Threshold, Translation
from fixstar.translation.maps import Map
from fixstar.workspace import Check, Workspace, catalogue
from fixstar.workspace.checks import CheckedCell, LastChecks, OneModel, last_check, save_check
from fixstar.workspace.deployment import Rollout
from fixstar.workspace.registry import Registry
from fixstar.workspace.search import Examples, Serving
from fixstar.workspace.translations import OWN_SPACE

WEIGHT = 0.4


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Workspace]:
    """A gallery of 8 vectors by v1 and 4 by v2."""
    photos = pictures(tmp_path / "photos", 4)
    with shop(tmp_path / "shop", capacity=40, free=True) as space:
        items = list(catalogue(photos))
        space.index(items)
        space.index(items[::3], again=True, version="v2")
        assert space.gallery.count() == {"v1": 8, "v2": 4}
        yield space


def queries(space: Workspace, count: int = 3) -> list[Any]:
    rng = np.random.default_rng(7)
    size = space.encoder("v2").preprocessing.size
    return [rng.integers(0, 255, (*size, 3)).astype(np.uint8) for _ in range(count)]


def translation(
    space: Workspace, one: float | None = WEIGHT, two: float | None = WEIGHT
) -> Translation:
    """Maps that are no identity, between spaces that have nothing to do with each other."""
    width = space.gallery.space("v1").width
    rng = np.random.default_rng(3)
    turn, back = (np.linalg.qr(rng.normal(size=(width, width)))[0] for _ in range(2))
    return Translation(
        "v1",
        "v2",
        forward=Map.linear(turn),
        backward=Map.linear(back),
        one=one,
        two=two,
        about={"fit": "a"},
    )


def slow_scores(space: Workspace, image: Any, way: Translation, *, own: bool) -> dict[str, float]:
    """w cos(q, F(z)) + (1 - w) cos(b, z) for v1's items, cos(q, z) for v2's, item by item in float64."""
    asked = {
        name: space.serving.embed(name, [image])[0].astype(np.float64) for name in ("v1", "v2")
    }
    assert way.forward is not None
    assert way.backward is not None
    found = {}
    for item in space.gallery.iterate():
        stored = item.vector.astype(np.float64)
        if item.version == "v2":
            found[item.id] = float(asked["v2"] @ stored)
            continue
        ahead = way.forward(item.vector[None])[0].astype(np.float64)
        back = (
            asked["v1"]
            if own
            else way.backward(asked["v2"][None].astype(np.float32))[0].astype(np.float64)
        )
        if way.whitened:
            assert way.whitening is not None
            back = way.whitening(back[None])[0].astype(np.float64)
            stored = way.whitening(stored[None])[0].astype(np.float64)
        found[item.id] = way.weight * float(asked["v2"] @ ahead) + (1 - way.weight) * float(
            back @ stored
        )
    return found


@pytest.mark.parametrize("weight", [0.0, WEIGHT, 1.0])
@pytest.mark.parametrize("own", [True, False])
def test_a_mixed_gallery_is_searched_as_slow_code_does(
    space: Workspace, weight: float, own: bool
) -> None:
    way = translation(space, one=weight, two=weight if own else None)
    space.translations.keep(way)
    space.deploy("v2", force="test")
    images = queries(space)
    result = space.search(images, k=12)
    assert (result.version, result.calibrated, result.left_out) == ("v2", False, ())
    assert result.models == (("v2", "v1") if own else ("v2",))
    for image, hits in zip(images, result.hits, strict=True):
        expected = slow_scores(space, image, way, own=own)
        assert {hit.id: hit.score for hit in hits} == pytest.approx(expected, abs=1e-5)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    some = space.search(images, k=12, versions=["v1"])
    assert {hit.version for hit in some.hits[0]} == {"v1"}
    assert space.search(images, k=12, versions=["v2"]).models == ("v2",)
    assert space.search([], k=3).hits == []
    assert len(space.search(images[:1], k=2, where={"label": "hat"}).hits[0]) == 2


@pytest.mark.parametrize("own", [True, False])
def test_a_whitened_old_side_is_searched_as_slow_code_does(space: Workspace, own: bool) -> None:
    way = translation(space, two=WEIGHT if own else None)
    width = space.gallery.space("v1").width
    rng = np.random.default_rng(4)
    whitening = Map.linear(rng.normal(size=(width, width)), 0.1 * rng.normal(size=width))
    way = replace(way, whitening=whitening, whitened=True)
    space.translations.keep(way)
    space.deploy("v2", force="test")
    images = queries(space)
    for exact in (True, False):  # so few items that all are candidates
        result = space.search(images, k=12, exact=exact)
        assert result.models == (("v2", "v1") if own else ("v2",))
        for image, hits in zip(images, result.hits, strict=True):
            expected = slow_scores(space, image, way, own=own)
            assert {hit.id: hit.score for hit in hits} == pytest.approx(expected, abs=1e-5)


def test_each_model_embeds_a_batch_once(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []
    embed = space.serving.embed

    def counted(name: str, images: Any) -> Any:
        asked.append((name, len(images)))
        return embed(name, images)

    monkeypatch.setattr(space.serving, "embed", counted)
    space.translations.keep(translation(space))
    space.deploy("v2", force="test")
    space.search(queries(space))
    assert asked == [("v2", 3), ("v1", 3)]
    asked.clear()
    space.index(
        catalogue(space.path.parent / "photos"), again=True
    )  # all of v1's vectors are replaced
    assert space.gallery.count()["v1"] == 0
    assert space.search(queries(space)).models == ("v2",)
    assert asked == [("v2", 3)]


def test_what_is_asked_by_its_own_model_needs_no_query_by_the_deployed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = pictures(tmp_path / "photos", 2)
    with shop(tmp_path / "shop", capacity=40, free=True) as space:
        items = list(catalogue(photos))
        space.index(items)
        images = queries(space)
        before = space.search(images)
        space.deploy("v2", queries="old")
        embedded: list[str] = []
        embed = Serving.embed

        def noted(serving: Serving, version: str, *arguments: Any) -> Any:
            embedded.append(version)
            return embed(serving, version, *arguments)

        monkeypatch.setattr(Serving, "embed", noted)
        after = space.search(images)
        assert embedded == ["v1"]
        assert (after.version, after.models, after.left_out) == ("v2", ("v1",), ())
        assert after.hits == before.hits
        assert space.status().searched_by == {"v1": ("v1",)}
        space.index(items[:1], again=True)  # now something is v2's
        assert space.search(images).models == ("v2", "v1")
        assert embedded == ["v1", "v2", "v1"]
        assert space.status().searched_by == {"v1": ("v1",), "v2": ("v2",)}


def test_an_empty_gallery_is_asked_by_the_deployed_version(tmp_path: Path) -> None:
    with shop(tmp_path / "shop", capacity=40, free=True) as space:
        space.serving.encoder("v1")  # makes room for its vectors
        space.deploy("v2", force="nothing is stored")
        answer = space.search(queries(space))
        assert (answer.models, answer.hits) == (("v2",), [[], [], []])


def test_a_vector_and_a_stored_item_are_queries_of_one_model(space: Workspace) -> None:
    way = translation(space)
    space.translations.keep(way)
    space.deploy("v2", force="test")
    image = queries(space, 1)[0]
    plain = space.serving.search_vectors("v2", space.serving.embed("v2", [image]), k=12)
    assert plain.models == ("v2",)
    expected = slow_scores(space, image, way, own=False)
    assert {hit.id: hit.score for hit in plain.hits[0]} == pytest.approx(expected, abs=1e-5)
    assert space.like(next(space.gallery.iterate("v1")).id).models == ("v1",)


def test_a_fit_between_versions_of_one_space_changes_nothing_before_a_check_chose_it(
    tmp_path: Path,
) -> None:
    with shop(tmp_path / "shop") as space:
        space.index(catalogue(pictures(tmp_path / "photos", 4)))
        space.deploy("v2", force="test")
        before = space.search(queries(space)).hits
        name = space.translations.keep(translation(space))
        assert space.search(queries(space)).hits == before
        judged(space, name)
        space.deploy("v2")
        assert space.search(queries(space)).hits != before


def test_models_of_other_widths_are_asked_by_their_own_queries(tmp_path: Path) -> None:
    """Nothing was fitted: the old model's own queries find what they found before, whatever v2 is."""
    with shop(tmp_path / "shop", versions=1) as space:
        with shop(tmp_path / "other", versions=2, capacity=30) as other:
            (other.path / "versions" / "v2").rename(space.path / "versions" / "v2")
        space.index(catalogue(pictures(tmp_path / "photos")))
        space.serving.encoder("v2")
        assert space.left_out_vectors("v2") == {}
        images = queries(space)
        before = space.search(images, k=9).hits
        with pytest.raises(GateError, match="never checked"):
            space.deploy("v2")
        space.deploy("v2", queries="old")  # needs no check: it cannot lose
        result = space.search(images, k=9)
        assert (result.version, result.left_out, result.models) == ("v2", (), ("v1",))
        assert result.hits == before


# --- deployments


def judged(
    space: Workspace, name: str, outcome: Any = "pass", alone: Any = "incompatible", **more: Any
) -> None:
    """Let v2 have been checked through the translation of a file."""
    one = OneModel(0.4, -0.2, -0.1, alone, WEIGHT)
    cell = CheckedCell("v1", 0.5, 0.6, 0.05, 0.15, "compatible", 40, 2, 12)
    cell = replace(
        cell, translation=name, weight=WEIGHT, models=("v2", "v1"), reembedded=0.7, one_model=one
    )
    save_check(
        space.path, Check("v2", outcome, ("it gains",), (cell,), 0.7, 100, 100, 0.95, 0.0, **more)
    )


def test_calibrations_of_the_deployment_merge_hits(space: Workspace) -> None:
    pairs = {"v1": (10.0, -9.0), "v2": (5.0, 3.0)}
    way = translation(space)
    name = space.translations.keep(way)
    judged(space, name, calibrations=pairs)
    move = space.deploy("v2")
    assert (move.translations, move.calibrations) == ({"v1": name}, pairs)
    judged(
        space, space.translations.keep(replace(way, two=0.9))
    )  # a later check does not change what is deployed
    image = queries(space, 1)[0]
    result = space.search([image], k=12)
    assert result.calibrated
    expected = slow_scores(space, image, way, own=True)
    version = {item.id: item.version for item in space.gallery.iterate()}
    for hit in result.hits[0]:
        probability = float(Calibration(*pairs[version[hit.id]]).probability(expected[hit.id]))
        assert hit.score == pytest.approx(probability, abs=1e-4)
    space.rollback()
    assert not space.search([image]).calibrated


def test_calibrations_of_two_models_are_not_used_for_queries_of_one(space: Workspace) -> None:
    """A vector that a client sends is a query of one model: its scores have another scale."""
    pairs = {"v1": (10.0, -9.0), "v2": (5.0, 3.0)}
    scales = {"scale": [1.0, 0.0], "scale_one": [1.0, 9.0], "target_scale": [1.0, 0.0], "fit": "a"}
    way = replace(translation(space), about=scales)
    judged(space, space.translations.keep(way), calibrations=pairs)
    space.deploy("v2")
    image = queries(space, 1)[0]
    assert space.search([image], k=12).calibrated
    alone = space.serving.search_vectors("v2", space.serving.embed("v2", [image]), k=12)
    assert not alone.calibrated
    assert [hit.version for hit in alone.hits[0]] == ["v1"] * 8 + [
        "v2"
    ] * 4  # the scale of one model lifts them by 9


def test_the_gate_accepts_what_it_judged_and_nothing_else(space: Workspace) -> None:
    name = space.translations.keep(translation(space))
    judged(space, name, outcome="refuse")
    with pytest.raises(GateError, match="did not pass"):
        space.deploy("v2")
    judged(space, name)
    with refuses(GateError, "deploy", "deploy") as refused:
        space.deploy("v2", queries="one")
    assert [step.arguments.get("queries") for step in refused.value.next_steps] == [None, "one"]
    assert space.deployed() == "v1"
    assert space.deploy("v2").translations == {"v1": name}
    with pytest.raises(InputError, match="deployed already"):
        space.deploy("v2")
    judged(space, name, alone="compatible")
    alone = space.deploy("v2", queries="one")
    assert space.translations.load(alone.translations["v1"]).two is None
    assert space.search(queries(space)).models == ("v2",)


def test_a_rollback_takes_back_the_translation_too(space: Workspace) -> None:
    name = space.translations.keep(translation(space))
    judged(space, name)
    space.deploy("v2", queries="old")
    old = space.search(queries(space)).hits
    space.deploy("v2")
    assert space.search(queries(space)).hits != old
    assert space.status().searched_by["v1"] == ("v2", "v1")
    assert space.rollback().version == "v2"
    assert space.search(queries(space)).hits == old
    assert space.rollback().version == "v1"
    history = [move.translations.get("v1") for move in Rollout(space.path).history()]
    assert history[1] == name
    assert history[0] == history[2] != name


def test_weights_that_queries_need_are_not_deleted(space: Workspace) -> None:
    way = translation(space)
    space.translations.keep(way)
    space.deploy("v2", force="test")
    with pytest.raises(InputError, match="v1"):
        space.retire("v1")
    space.index(catalogue(space.path.parent / "photos"), again=True)  # no vector of v1 is left
    before = space.search(queries(space)).hits
    space.registry.retire("v1")
    assert space.search(queries(space)).hits == before
    stored = unit(np.ones((1, space.gallery.space("v1").width))).astype(np.float32)
    space.gallery.upsert("v1", ["late"], stored)  # imported later: v2 asks alone
    late = space.search(queries(space), k=50)
    assert late.models == ("v2",)
    assert any(hit.id == "late" for hit in late.hits[0])


def test_all_models_of_a_deployment_stay_in_memory(tmp_path: Path) -> None:
    with shop(tmp_path / "shop", versions=5) as space:
        items = list(catalogue(pictures(tmp_path / "photos")))
        for number in range(5):
            space.index(items[number::5], version=f"v{number + 1}")
        space.deploy("v5", queries="old")
        image = read_pixels(items[0].image, space.encoder("v5").preprocessing)
        space.search([image])
        loaded = dict(space.serving._encoders)
        assert loaded.keys() == {"v1", "v2", "v3", "v4", "v5"}
        space.search([image])
        assert dict(space.serving._encoders) == loaded


def _keep_deploying(path: Path) -> None:
    rollout = Rollout(path)
    while True:
        rollout.deploy("v2", translations={"v1": "v1-v2-1.npz"})
        rollout.deploy("v3", translations={"v1": "a", "v2": "b"}, calibrations={"v1": (1.0, 2.0)})


def test_a_kill_leaves_one_whole_deployment(tmp_path: Path) -> None:
    allowed: dict[str, dict[str, str]] = {
        "v1": {},
        "v2": {"v1": "v1-v2-1.npz"},
        "v3": {"v1": "a", "v2": "b"},
    }
    for _ in range(3):
        process = fork(_keep_deploying, tmp_path)
        moves = len(Rollout(tmp_path).history())
        while len(Rollout(tmp_path).history()) < moves + 5:
            time.sleep(0.01)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        move = Rollout(tmp_path).current_move()
        assert move.translations == allowed[move.version]


# --- one scale

STEEP = {"v1": (10.0, -5.0), "v2": (10.0, -8.0)}  # 0.6 in v1 is more than 0.8 in v2
QUERY = np.array([[1.0, 0.0]], np.float32)


def checked(path: Path, version: str, calibrations: dict[str, tuple[float, float]]) -> None:
    save_check(
        path, Check(version, "pass", (), (), 0.5, 100, 100, 0.95, 0.0, calibrations=calibrations)
    )


def small_serving(path: Path, free: bool = False) -> Serving:
    gallery = MemoryGallery()
    for name in ("v1", "v2", "v3"):
        encoder = Encoder.create("tiny", classes=["a"], capacity=8)
        encoder.about = {OWN_SPACE: True} if free else {}
        encoder.save(path / "versions" / name)
        gallery.create_version(name, 2)
    gallery.upsert("v1", ["right"], np.array([[0.6, 0.8]]), [{"label": "a"}])
    gallery.upsert("v2", ["wrong"], np.array([[0.8, 0.6]]), [{"label": "b"}])
    return Serving(Registry(path), Rollout(path), gallery)


def found(answer: SearchResult) -> list[str]:
    return [hit.id for hit in answer.hits[0]]


def test_hits_of_two_versions_are_merged_by_probability(tmp_path: Path) -> None:
    serving = small_serving(tmp_path)
    raw = serving.search_vectors("v2", QUERY)
    assert (found(raw), raw.calibrated) == (["wrong", "right"], False)  # nobody has checked v2
    checked(tmp_path, "v2", STEEP)
    answer = serving.search_vectors("v2", QUERY)
    assert (found(answer), answer.calibrated) == (["right", "wrong"], True)
    assert [hit.score for hit in answer.hits[0]] == pytest.approx(
        [1 / (1 + np.exp(-1)), 0.5], abs=1e-6
    )
    assert [hit.version for hit in answer.hits[0]] == ["v1", "v2"]
    assert found(serving.search_vectors("v2", QUERY, k=1, exact=False)) == ["right"]
    assert found(serving.search_vectors("v2", QUERY, where={"label": "b"})) == ["wrong"]
    assert found(serving.search_vectors("v2", QUERY, min_score=0.6)) == ["right"]
    assert serving.search_vectors("v2", QUERY, calibrate=False) == raw
    assert serving.search_vectors("v2", np.zeros((0, 2), np.float32)).hits == []
    like = serving.like("wrong")
    assert (found(like), like.calibrated) == (["right"], True)
    assert not serving.like("wrong", calibrate=False).calibrated
    assert not serving.like("right").calibrated  # v1 asks, and its check has none


def test_without_labels_standardised_scores_merge_hits(tmp_path: Path) -> None:
    """A translation that was fitted but never checked knows how large scores of unrelated items are."""
    serving = small_serving(tmp_path, free=True)
    turn = Map.linear(np.eye(2))
    scales = {"scale": [10.0, -5.0], "target_scale": [10.0, -8.0], "fit": "a"}
    way = Translation("v1", "v2", forward=turn, backward=turn, one=0.5, about=scales)
    serving.translations.keep(way)
    answer = serving.search_vectors("v2", QUERY)
    assert (found(answer), answer.calibrated) == (["right", "wrong"], False)
    assert [hit.score for hit in answer.hits[0]] == pytest.approx(
        [0.6, 0.8]
    )  # scores stay what they are


def test_hits_under_the_measured_threshold_are_unlikely(tmp_path: Path) -> None:
    serving = small_serving(tmp_path)
    assert not any(
        map(
            serving.search_vectors("v2", QUERY).is_unlikely,
            serving.search_vectors("v2", QUERY).hits[0],
        )
    )
    thresholds = {name: Threshold(0.7, 0.05, 0.9, 100) for name in ("v1", "v2")}
    save_check(
        tmp_path, Check("v2", "pass", (), (), 0.5, 100, 100, 0.95, 0.0, thresholds=thresholds)
    )

    def unlikely(answer: SearchResult) -> dict[str, bool]:
        return {hit.id: answer.is_unlikely(hit) for hit in answer.hits[0]}

    assert unlikely(serving.search_vectors("v2", QUERY)) == {
        "wrong": False,
        "right": True,
    }  # cosines 0.8 and 0.6
    check = Check(
        "v2", "pass", (), (), 0.5, 100, 100, 0.95, 0.0, calibrations=STEEP, thresholds=thresholds
    )
    save_check(tmp_path, check)
    answer = serving.search_vectors("v2", QUERY)
    assert (answer.calibrated, unlikely(answer)) == (True, {"right": True, "wrong": False})
    assert answer.thresholds["v1"] == pytest.approx(1 / (1 + np.exp(-2)))  # 10 * 0.7 - 5
    serving.gallery.upsert("v2", ["other"], np.array([[0.0, 1.0]]))
    assert serving.like("wrong").thresholds == answer.thresholds
    assert (
        serving.by_examples(Examples(ids=["wrong", "other"])).thresholds == {}
    )  # measured with single images


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


def test_a_damaged_check_does_not_stop_a_search(tmp_path: Path) -> None:
    serving = small_serving(tmp_path)
    checked(tmp_path, "v2", STEEP)
    path = tmp_path / "checks" / "v2.json"
    for broken in (
        '"calibrations": {"v1": [0, 1]}',
        '"calibrations": {"v1": ["x", 1]}',
        '"calibrations": [1]',
    ):
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


def test_probabilities_that_round_to_one_keep_their_order(tmp_path: Path) -> None:
    serving = small_serving(tmp_path)
    serving.gallery.upsert("v1", ["right"], np.array([[0.8, 0.6]]))
    checked(tmp_path, "v2", {"v1": (200.0, 0.0), "v2": (201.0, 0.0)})
    hits = serving.search_vectors("v2", QUERY).hits[0]
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
        assert sorted(hit.id for hit in answer.hits[0]) == sorted(
            item.id for item in space.gallery.iterate()
        )
        raw = space.search([image], k=9, calibrate=False)
        cosines = {hit.id: hit.score for hit in raw.hits[0]}
        for hit in answer.hits[0]:
            offset = {"v1": -4.0, "v2": -3.0}[hit.version]
            assert hit.score == pytest.approx(
                1 / (1 + np.exp(-(5 * cosines[hit.id] + offset))), abs=1e-6
            )
        space.rollback()
        assert not space.search([image]).calibrated
        checked(space.path, "v1", {"v1": (5.0, -4.0), "v2": (5.0, -3.0)})
        assert space.search([image]).calibrated
