"""Queries by two models over a gallery of several versions: searches against slow code, deployments and their end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixstar.workspace.adapters.fitting import fit_adapter
from forked import fork
from shops import pictures, shop

from fixstar.errors import GateError, InputError
from fixstar.gallery import Calibration
from fixstar.geometry import unit
from fixstar.images import read_pixels
from fixstar.workspace import Check, Workspace, catalogue
from fixstar.workspace.checks import Blend, CheckedCell, save_check
from fixstar.workspace.deployment import Rollout

ALPHA = 0.4


@pytest.fixture
def space(tmp_path: Path) -> Any:
    """Two versions whose short forms lie in different subspaces, and a gallery by both."""
    photos = pictures(tmp_path / "photos", 4)
    with shop(tmp_path / "shop", capacity=400) as space:
        items = list(catalogue(photos))
        space.index(items)
        space.index(items[::3], again=True, version="v2")
        assert space.gallery.count() == {"v1": 8, "v2": 4}
        yield space


def queries(space: Workspace, count: int = 3) -> list[Any]:
    rng = np.random.default_rng(7)
    size = space.encoder("v2").preprocessing.size
    return [rng.integers(0, 255, (*size, 3)).astype(np.uint8) for _ in range(count)]


def judged(space: Workspace, *blends: Blend, outcome: Any = "refuse", **more: Any) -> None:
    """Let v2 have been checked, with these results for queries by two models."""
    cells = tuple(CheckedCell(one.version, 0.5, 0.4, -0.2, -0.1, "incompatible", 40, 12, 2) for one in blends)
    save_check(space.path, Check("v2", outcome, ("it loses",), cells, 0.7, 100, 100, 0.95, 0.0, blends=blends, **more))


def blend(version: str = "v1", alpha: float = ALPHA, tried: float = ALPHA, verdict: str = "compatible") -> Blend:
    return Blend(version, alpha, tried, 0.5, 0.55, 0.01, 0.09, verdict, 50)


def slow_scores(space: Workspace, image: Any, alpha: float) -> dict[str, float]:
    """Full features, the textbook's slerp, and what of it v1's space can hold; item by item."""
    full = {name: unit(space.encoder(name).encode([image]).astype(np.float64))[0] for name in ("v1", "v2")}
    angle = np.arccos(full["v1"] @ full["v2"])
    both = np.sin((1 - alpha) * angle) * full["v1"] + np.sin(alpha * angle) * full["v2"]
    found = {}
    for item in space.gallery.iterate():
        P = space.gallery.projection(item.version)
        assert P is not None
        Q = np.linalg.qr(P.astype(np.float64))[0]
        Q = Q * np.sign((Q.T @ P).diagonal())
        asked = Q.T @ (both if item.version == "v1" else full["v2"])
        if item.version == "v1":
            asked = asked / np.linalg.norm(asked)
        found[item.id] = float(asked @ item.vector)
    return found


@pytest.mark.parametrize("alpha", [0.0, ALPHA, 0.9])
def test_a_mixed_gallery_is_searched_as_slow_code_does(space: Workspace, alpha: float) -> None:
    space.deploy("v2", force="test", blend=alpha)
    images = queries(space)
    result = space.search(images, k=12)
    assert (result.version, dict(result.blend), result.calibrated) == ("v2", {"v1": alpha}, False)
    for image, hits in zip(images, result.hits, strict=True):
        expected = slow_scores(space, image, alpha)
        assert {hit.id: hit.score for hit in hits} == pytest.approx(expected, abs=1e-5)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    some = space.search(images, k=12, versions=["v1"])
    assert {hit.version for hit in some.hits[0]} == {"v1"}
    assert space.search(images, k=12, versions=["v2"]).blend == {}
    assert space.search([], k=3).hits == []
    assert len(space.search(images[:1], k=2, where={"label": "hat"}).hits[0]) == 2


def test_each_model_embeds_a_batch_once(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []
    embed = space.serving.embed

    def counted(name: str, images: Any) -> Any:
        asked.append((name, len(images)))
        return embed(name, images)

    monkeypatch.setattr(space.serving, "embed", counted)
    space.deploy("v2", force="test", blend=ALPHA)
    space.search(queries(space))
    assert asked == [("v2", 3), ("v1", 3)]
    asked.clear()
    space.index(catalogue(space.path.parent / "photos"), again=True)  # all of v1's vectors are replaced
    assert space.gallery.count()["v1"] == 0
    assert space.search(queries(space)).blend == {}
    assert asked == [("v2", 3)]


def test_calibrations_of_the_deployment_merge_hits(space: Workspace) -> None:
    pairs = {"v1": (10.0, -9.0), "v2": (5.0, 3.0)}
    judged(space, blend(), blend_calibrations=pairs)
    move = space.deploy("v2", blend="auto")
    assert (move.blend, move.calibrations) == ({"v1": ALPHA}, pairs)
    judged(space, blend(alpha=0.7, tried=0.7))  # a later check does not change what is deployed
    image = queries(space, 1)[0]
    result = space.search([image], k=12)
    assert result.calibrated
    version = {item.id: item.version for item in space.gallery.iterate()}
    for hit in result.hits[0]:
        cosine = slow_scores(space, image, ALPHA)[hit.id]
        expected = float(Calibration(*pairs[version[hit.id]]).probability(cosine))
        assert hit.score == pytest.approx(expected, abs=1e-4)
    space.rollback()
    assert not space.search([image]).calibrated


def test_a_vector_and_a_stored_item_are_queries_of_one_model(space: Workspace) -> None:
    space.deploy("v2", force="test", blend=ALPHA)
    vectors = space.serving.embed("v2", queries(space, 1))
    plain = space.serving.search_vectors("v2", vectors, k=12)
    assert plain.blend == {}
    assert plain.hits == space.gallery.search("v2", vectors, k=12)
    assert space.like(next(space.gallery.iterate("v1")).id).blend == {}


def test_an_adapter_stands_between_models_of_other_spaces(space: Workspace) -> None:
    vectors = np.stack([item.vector for item in space.gallery.iterate("v1")])
    pairs = unit(np.random.default_rng(0).normal(size=(100, vectors.shape[1])))
    adapter = fit_adapter("procrustes", pairs, np.roll(pairs, 1, axis=1), source="v2", target="v1")
    space.adapters.use(adapter, "queries")
    space.deploy("v2", force="test", blend=0.5)
    images = queries(space, 2)
    old, new = (space.serving.embed(name, images) for name in ("v1", "v2"))
    expected = unit(old + adapter(new)) @ vectors.T  # halfway between unit vectors is their mean
    names = [item.id for item in space.gallery.iterate("v1")]
    for row, hits in enumerate(space.search(images, k=12, versions=["v1"]).hits):
        assert {hit.id: hit.score for hit in hits} == pytest.approx(
            dict(zip(names, expected[row].tolist(), strict=True)), abs=1e-5
        )


def test_vectors_that_nothing_connects_are_searched_by_their_own_model(tmp_path: Path) -> None:
    with shop(tmp_path / "shop", versions=1) as space:
        with shop(tmp_path / "other", versions=2, capacity=30) as other:
            (other.path / "versions" / "v2").rename(space.path / "versions" / "v2")
        space.index(catalogue(pictures(tmp_path / "photos")))
        space.serving.encoder("v2")
        assert space.unreachable_vectors("v2") == {"v1": 9}
        judged(space, blend(alpha=0.0, tried=0.0, verdict="apart"))
        images = queries(space)
        before = space.search(images, k=9).hits
        move = space.deploy("v2", blend="auto")
        assert move.blend == {"v1": 0.0}
        assert space.unreachable_vectors("v2") == {}
        result = space.search(images, k=9)
        assert (result.version, result.left_out) == ("v2", ())
        assert result.hits == before  # nothing is lost, whatever v2 is


def test_the_gate_accepts_what_it_judged_and_nothing_else(space: Workspace) -> None:
    with pytest.raises(GateError, match="never checked"):
        space.deploy("v2", blend="auto")
    with pytest.raises(InputError, match="no alpha to choose"):
        space.deploy("v2", blend="auto", force="test")
    judged(space, blend())
    with pytest.raises(GateError, match="did not pass"):
        space.deploy("v2")
    with pytest.raises(
        GateError, match=r"alpha 0.3 were not shown .* not judged. The check tried alpha 0.4"
    ) as refused:
        space.deploy("v2", blend=0.3)
    assert [step.arguments.get("blend") for step in refused.value.next_steps] == [0.3, "auto", 0.3]
    for wrong in (-0.1, 1.5, float("nan"), True):
        with pytest.raises(InputError, match="blend is auto"):
            space.deploy("v2", blend=wrong)
    assert space.deployed() == "v1"
    assert space.deploy("v2", blend=ALPHA).blend == {"v1": ALPHA}
    with pytest.raises(InputError, match="deployed already"):
        space.deploy("v2", blend=ALPHA)
    judged(space, blend(verdict="not decided", alpha=0.0))
    with pytest.raises(GateError, match="not decided"):
        space.deploy("v2", blend=ALPHA)
    assert space.deploy("v2", blend="auto").blend == {"v1": 0.0}
    judged(space, blend(alpha=1.0, tried=0.2, verdict="not decided"))  # v2's queries alone are compatible
    assert space.deploy("v2", blend="auto").blend == {}


def test_a_check_from_before_there_were_old_vectors_is_not_enough(space: Workspace) -> None:
    judged(space)
    with pytest.raises(GateError, match="has not tried blended queries on vectors of v1"):
        space.deploy("v2", blend="auto")


def test_a_rollback_takes_back_the_blend_too(space: Workspace) -> None:
    space.deploy("v2", force="test")
    space.deploy("v2", force="slow but better", blend=ALPHA)
    assert space.status().blend == {"v1": ALPHA}
    assert space.rollback().version == "v2"
    assert space.status().blend == {}
    assert space.rollback().version == "v1"
    assert [move.blend for move in space.rollout.history()] == [{}, {"v1": ALPHA}, {}, {}]
    assert [move.blend for move in Rollout(space.path).history()] == [{}, {"v1": ALPHA}, {}, {}]
    space.deploy("v2", force="test", blend=0.0)
    (space.path / "state" / "deployment.json").touch()
    assert space.rollout.current_move().blend == {"v1": 0.0}


def test_weights_that_blended_queries_need_are_not_deleted(space: Workspace) -> None:
    space.deploy("v2", force="test", blend=ALPHA)
    space.deploy("v2", force="once more", blend=0.5)
    with pytest.raises(InputError, match="queries for them are blended with v1's, which takes its weights"):
        space.retire("v1")
    space.index(catalogue(space.path.parent / "photos"), again=True)  # no vector of v1 is left
    before = space.search(queries(space)).hits
    space.registry.retire("v1")
    assert space.search(queries(space)).hits == before
    space.gallery.upsert("v1", ["late"], unit(np.ones((1, space.gallery.space("v1").width))))  # imported later
    assert space.search(queries(space)).blend == {}  # no model that could help


def test_all_models_of_a_deployment_stay_in_memory(tmp_path: Path) -> None:
    with shop(tmp_path / "shop", versions=5) as space:
        items = list(catalogue(pictures(tmp_path / "photos")))
        for number in range(4):
            space.index(items[number::4], version=f"v{number + 1}")
        space.deploy("v5", force="test", blend=0.5)
        image = read_pixels(items[0].image, space.encoder("v5").preprocessing)
        space.search([image])
        loaded = dict(space.serving._encoders)
        assert loaded.keys() == {"v1", "v2", "v3", "v4", "v5"}
        space.search([image])
        assert dict(space.serving._encoders) == loaded


def _keep_deploying(path: Path) -> None:
    rollout = Rollout(path)
    while True:
        rollout.deploy("v2", blend={"v1": 0.25})
        rollout.deploy("v3", blend={"v1": 0.5, "v2": 0.75}, calibrations={"v1": (1.0, 2.0)})


def test_a_kill_leaves_one_whole_deployment(tmp_path: Path) -> None:
    allowed = {"v1": {}, "v2": {"v1": 0.25}, "v3": {"v1": 0.5, "v2": 0.75}}
    for _ in range(3):
        process = fork(_keep_deploying, tmp_path)
        moves = len(Rollout(tmp_path).history())
        while len(Rollout(tmp_path).history()) < moves + 5:
            time.sleep(0.01)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        move = Rollout(tmp_path).current_move()
        assert move.blend == allowed[move.version]
