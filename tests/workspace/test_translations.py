"""Translations in a workspace: who asks old vectors, from a fit over deployments to rollbacks and retired models."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import kill_at_call
from numpy.typing import NDArray
from shops import CLASSES, fitted, foreign, pictures, shop
from wording import refuses

from fixstar.data import open_images
from fixstar.errors import InputError, ModelError
from fixstar.models import Encoder
from fixstar.translation import Map, Translation, load_translation, save_translation
from fixstar.translation.bridge import bridge
from fixstar.workspace import BackfillOptions, Workspace, catalogue
from fixstar.workspace.options import FitOptions
from fixstar.workspace.pairs import Sample, from_gallery, keep_fitted
from fixstar.workspace.translations import CHOSEN, SCALE, TARGET_SCALE, translation_files

PER_CLASS = 12
ITEMS = 3 * PER_CLASS

Vectors = NDArray[np.float64]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictures(tmp_path_factory.mktemp("photos") / "photos", PER_CLASS)


@pytest.fixture
def space(tmp_path: Path, photos: Path) -> Iterator[Workspace]:
    """All photos by v1, and v2: another model of the same width, which nobody said to be compatible."""
    with shop(tmp_path / "shop", versions=1) as space:
        space.index(catalogue(photos))
        assert space.add_version(stranger(1)) == "v2"
        yield space


def stranger(seed: int, capacity: int = 8) -> Encoder:
    torch.manual_seed(seed)
    return Encoder.create("tiny", classes=list(CLASSES), capacity=capacity)


def files(photos: Path) -> list[Path]:
    return sorted(photos.rglob("*.png"))


def found(space: Workspace, photo: Path) -> set[str]:
    """What a search for everything finds."""
    answer = space.search([photo], k=2 * ITEMS)
    assert answer.left_out == ()
    assert len(answer.hits[0]) == len({hit.id for hit in answer.hits[0]})
    return {hit.id for hit in answer.hits[0]}


def all_ids(space: Workspace) -> set[str]:
    return {item.id for item in space.gallery.iterate()}


def slow_map(part: Map, vector: Any) -> Vectors:
    """One vector through a map, layer by layer."""
    x = np.asarray(vector, np.float64)
    for layer in part.layers:
        y = x @ layer.W + layer.c
        if layer.A is not None and layer.e is not None and layer.B is not None:
            y = y + np.maximum(x @ layer.A + layer.e, 0) @ layer.B
        x = y / np.linalg.norm(y)
    return x


def cosine(one: Any, other: Any) -> float:
    a = np.asarray(one, np.float64)
    b = np.asarray(other, np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def slow_score(way: Translation, new: Any, old: Any, stored: Any) -> float:
    """w cos(q, F z) + (1 - w) cos(b, z)."""
    weight = way.one if way.two is None else way.two
    assert weight is not None
    if way.two is None:
        assert way.backward is not None
        old = slow_map(way.backward, new)
    score = (1 - weight) * cosine(old, stored)
    if weight:
        assert way.forward is not None
        score += weight * cosine(new, slow_map(way.forward, stored))
    return score


# --- a model of the same width that is not compatible


def test_a_stranger_of_the_same_width_finds_everything_that_is_stored(
    space: Workspace, photos: Path
) -> None:
    check = space.check("v2", open_images(photos), progress=False, report=False)
    assert check.against == ("v1",)
    move = space.deploy("v2", force="few images")
    assert move.translations == check.translations  # what the gate judged is what searches use
    way = space.translations.of("v2")["v1"]
    assert way.scores_like(space.translations.load(check.translations["v1"]))
    assert not way.shared
    assert found(space, files(photos)[0]) == all_ids(space)
    queries = {name: space.serving.embed(name, files(photos)[:3]) for name in ("v1", "v2")}
    answer = space.search(files(photos)[:3], k=ITEMS)
    assert set(answer.models) == set(way.models)
    for row, hits in enumerate(answer.hits):
        for hit in hits:
            stored = space.gallery.get([hit.id])[hit.id].vector
            assert hit.score == pytest.approx(
                slow_score(way, queries["v2"][row], queries["v1"][row], stored), abs=1e-5
            )


def test_without_any_fit_old_queries_ask_what_their_model_stored(
    space: Workspace, photos: Path
) -> None:
    before = space.search(files(photos), k=ITEMS)
    space.deploy("v2", force="test")
    after = space.search(files(photos), k=ITEMS)
    assert (after.version, after.models, after.left_out) == ("v2", ("v1",), ())
    assert after.hits == before.hits
    (name,) = space.rollout.current_move().translations.values()
    assert space.translations.load(name).about[CHOSEN]


def test_evidence_may_whiten_the_old_side_of_a_model_that_was_brought_along(
    space: Workspace, tmp_path: Path, photos: Path
) -> None:
    """Not of one that was trained here: that was not measured."""
    for way in space.fit_translations("v1", "v2"):
        assert way.whitening is not None
        assert not way.whitened
    with shop(tmp_path / "free", free=True) as trained:
        trained.index(catalogue(photos), version="v1")
        for way in trained.fit_translations("v1", "v2"):
            assert way.whitening is None


def test_vectors_of_a_model_that_is_not_here_are_left_out_until_a_translation_leads_to_them(
    space: Workspace, photos: Path
) -> None:
    foreign(space)
    assert space.search(files(photos)[:1]).left_out == ("other",)
    rng = np.random.default_rng(0)
    there, back = Map.linear(rng.normal(size=(5, 7))), Map.linear(rng.normal(size=(7, 5)))
    space.translations.keep(
        Translation("other", "v1", forward=there, backward=back, one=0.5, about={"fit": "a"})
    )
    assert found(space, files(photos)[0]) == all_ids(space)


# --- kills


def fit_until_killed(path: Path, sample: Sample, calls: int) -> int:
    """Fit in a process of its own, which kills itself at a call into the system or the database; how it ended."""
    child = os.fork()
    if child == 0:
        try:
            with Workspace(path, device="cpu") as space:
                sys.setprofile(kill_at_call(calls))
                keep_fitted(space.serving, sample, "v1", "v2")
                sys.setprofile(None)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def test_a_killed_fit_leaves_a_whole_translation_or_none(space: Workspace, photos: Path) -> None:
    sample, _ = from_gallery(space.serving, "v1", "v2")
    query = space.serving.embed("v2", files(photos)[:1])
    kept = left_none = left_one = 0
    calls = 90  # before these it has written nothing
    status = signal.SIGKILL.value
    while status:
        calls += 3
        status = fit_until_killed(space.path, sample, calls)
        assert status in (0, signal.SIGKILL)
        names = translation_files(space.path)
        left_none += len(names) == kept
        left_one += len(names) == kept + 1
        kept = len(names)
        for file in names:
            way = load_translation(file)
            assert (way.source, way.target) == ("v1", "v2")
        answer = space.serving.search_vectors("v2", query, k=ITEMS)
        assert len(answer.hits[0]) == (
            ITEMS if kept else 0
        )  # a vector alone needs a map to v1's space
    assert left_none > 5
    assert left_one > 1
    assert left_none + left_one == (calls - 90) // 3
    space.deploy("v2", force="test")
    assert found(space, files(photos)[0]) == all_ids(space)


# --- rollbacks and retired models


@pytest.mark.parametrize("checked", [True, False])
def test_a_rollback_after_a_full_backfill_finds_everything(
    space: Workspace, photos: Path, checked: bool
) -> None:
    everything = all_ids(space)
    if checked:
        space.check("v2", open_images(photos), progress=False, report=False)
    space.deploy("v2", force="test")
    assert space.backfill(BackfillOptions("all", "random", anyway=True)).done == ITEMS
    assert space.gallery.count() == {"v1": 0, "v2": ITEMS}
    assert found(space, files(photos)[0]) == everything
    space.rollback()
    assert found(space, files(photos)[0]) == everything
    way = space.translations.of("v1")["v2"]
    queries = {name: space.serving.embed(name, files(photos)[:1])[0] for name in ("v1", "v2")}
    answer = space.search(files(photos)[:1], k=ITEMS)
    assert answer.version == "v1"
    for hit in answer.hits[0]:
        stored = space.gallery.get([hit.id])[hit.id].vector
        assert hit.score == pytest.approx(
            slow_score(way, queries["v1"], queries["v2"], stored), abs=1e-5
        )
    if checked:
        (there, *_) = space.translations.fitted("v1", "v2")
        assert way.scores_like(there.reversed)
        assert there.about.keys() >= {SCALE, TARGET_SCALE}
        assert not way.about.keys() & {
            SCALE,
            TARGET_SCALE,
        }  # they were measured in the other direction


def test_a_rollback_takes_the_translations_of_the_deployment_before(
    space: Workspace, photos: Path
) -> None:
    fitted(space)
    space.deploy("v2", force="test", queries="one")
    before = space.search(files(photos)[:4], k=ITEMS)
    assert before.models == ("v2",)
    space.deploy("v2", force="test", queries="old")
    assert space.search(files(photos)[:4], k=ITEMS).models == ("v1",)
    assert space.rollback().version == "v2"
    assert space.search(files(photos)[:4], k=ITEMS) == before


def test_vectors_of_a_retired_model_are_found_with_one_model(
    space: Workspace, photos: Path
) -> None:
    everything = all_ids(space)
    space.add_version(stranger(2, capacity=5))
    for target in ("v2", "v3"):
        space.fit_translations("v1", target)
        space.deploy(target, force="test")
        with pytest.raises(InputError, match="v1 cannot be retired"):
            space.retire("v1")
    with refuses(InputError, "backfill", "delete-items"):
        space.retire("v1")
    space.deploy("v3", force="test", queries="one")
    with refuses(InputError, "backfill", "delete-items"):
        space.retire("v1")  # before, two models asked
    space.deploy("v2", force="test", queries="one")
    before = space.search(files(photos)[:2], k=ITEMS)
    space.retire("v1")
    after = space.search(files(photos)[:2], k=ITEMS)
    assert after == before
    assert (after.models, found(space, files(photos)[0])) == (("v2",), everything)
    space.rollback()
    assert (space.search(files(photos)[:1]).models, found(space, files(photos)[0])) == (
        ("v3",),
        everything,
    )


def test_a_deployment_asks_with_one_model_where_the_other_was_retired(
    space: Workspace, photos: Path
) -> None:
    """Vectors of v1 come back after its model is gone."""
    stored = list(space.gallery.iterate())
    space.add_version(stranger(2))
    for target in ("v2", "v3"):
        fitted(space, "v1", target)
    space.gallery.delete([item.id for item in stored])
    space.deploy("v2", force="test")
    space.deploy("v3", force="test")
    space.retire("v1")
    space.gallery.upsert(
        "v1", [item.id for item in stored], np.stack([item.vector for item in stored])
    )
    assert space.search(files(photos)[:1]).models == ("v3",)
    space.deploy("v2", force="test")
    name = space.rollout.current_move().translations["v1"]
    assert space.translations.load(name).models == ("v2",)
    assert found(space, files(photos)[0]) == all_ids(space)


# --- chains


def test_in_a_chain_of_five_spaces_the_newest_finds_everything(
    tmp_path: Path, photos: Path
) -> None:
    items = list(catalogue(photos))
    share = len(items) // 5
    with shop(tmp_path / "shop", versions=1) as space:
        space.index(items)  # all pairs come from the images of these
        for number in range(2, 6):
            name = space.add_version(stranger(number, capacity=6 + number))
            space.fit_translations(f"v{number - 1}", name)
            space.deploy(name, force="test")
            space.index(items[(number - 1) * share :], again=True)
        counts = {"v1": share, "v2": share, "v3": share, "v4": share, "v5": len(items) - 4 * share}
        assert space.gallery.count() == counts
        ways = space.translations.of("v5")
        lengths = {
            name: len(way.forward.layers) for name, way in ways.items() if way.forward is not None
        }
        assert lengths == {"v1": 4, "v2": 3, "v3": 2, "v4": 1}
        assert found(space, files(photos)[0]) == all_ids(space)
        asked = files(photos)[:3]
        queries = {name: space.serving.embed(name, asked) for name in counts}
        for row, hits in enumerate(space.search(asked, k=ITEMS).hits):
            for hit in hits:
                stored = space.gallery.get([hit.id])[hit.id].vector
                if hit.version == "v5":
                    expected = cosine(queries["v5"][row], stored)
                else:
                    way = ways[hit.version]
                    expected = slow_score(
                        way, queries["v5"][row], queries[hit.version][row], stored
                    )
                assert hit.score == pytest.approx(expected, abs=1e-5)


def test_a_row_of_translations_leads_over_fitted_ones_only(space: Workspace, photos: Path) -> None:
    space.deploy("v2", force="test")  # keeps that v1's own queries ask v1's vectors: no map
    space.index(catalogue(pictures(photos.parent / "more", 4)))
    space.add_version(stranger(2))
    space.fit_translations("v2", "v3")
    assert space.translations.of("v3")["v1"].scores_like(Translation.by_old_queries("v1", "v3"))
    space.deploy("v3", force="test")
    assert found(space, files(photos)[0]) == all_ids(space)


# --- files from elsewhere


def test_a_bridge_file_is_installed_and_used(
    space: Workspace, photos: Path, tmp_path: Path
) -> None:
    rows = {name: space.serving.embed(name, files(photos)) for name in ("v1", "v2")}
    made = bridge(rows["v1"], rows["v2"])
    assert made.translation is not None
    save_translation(made.translation, tmp_path / "bridge.npz")
    name = space.install_translation(tmp_path / "bridge.npz", "v1", "v2")
    way = space.translations.of("v2")["v1"]
    assert way is space.translations.load(name)
    assert (way.source, way.target, way.about["fitted_on"]) == (
        "v1",
        "v2",
        "installed from bridge.npz",
    )
    assert way.scores_like(replace(made.translation, source="v1", target="v2"))
    space.deploy("v2", force="test")
    assert found(space, files(photos)[0]) == all_ids(space)


def test_a_bridge_with_its_card_connects_vectors_whose_model_is_not_here(
    space: Workspace, tmp_path: Path
) -> None:
    """As ``fixstar bridge`` writes it: its card says which way it chose, which is no check's choice."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 12)
    old = (np.eye(10, 5)[labels] + rng.normal(size=(120, 5)) / 4).astype(np.float32)
    new = np.asarray(old @ rng.normal(size=(5, space.gallery.space("v1").width)), np.float32)
    made = bridge(old, new, labels=[str(label) for label in labels])
    assert made.translation is not None
    assert made.chosen
    save_translation(made.translation, tmp_path / "bridge.npz")
    assert "chosen" in load_translation(tmp_path / "bridge.npz").about
    foreign(space, "old", 2)
    assert "old" not in space.translations.of("v2")
    name = space.install_translation(tmp_path / "bridge.npz", "old", "v2")
    assert space.translations.of("v2")["old"] is space.translations.load(name)
    assert [way.about["fit"] for way in space.translations.fitted("old", "v2")]  # a check judges it


def test_a_bridge_of_other_widths_is_refused(space: Workspace, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    wrong = Translation(
        "a",
        "b",
        forward=Map.linear(rng.normal(size=(7, 6))),
        backward=Map.linear(rng.normal(size=(6, 7))),
        one=0.5,
    )
    save_translation(wrong, tmp_path / "wrong.npz")
    with refuses(InputError):
        space.install_translation(tmp_path / "wrong.npz", "v1", "v2")
    save_translation(Translation.by_old_queries("a", "b"), tmp_path / "none.npz")
    with refuses(InputError):
        space.install_translation(tmp_path / "none.npz", "v1", "v2")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "wrong.npz").read_bytes()[:-40])
    with pytest.raises(ModelError, match="damaged"):
        space.install_translation(tmp_path / "cut.npz", "v1", "v2")
    assert translation_files(space.path) == []


def test_whose_vectors_a_bridge_translates_is_found_by_their_width(
    space: Workspace, tmp_path: Path
) -> None:
    width = space.gallery.space("v1").width
    rng = np.random.default_rng(0)

    def saved(name: str, a: int) -> Path:
        there = Map.linear(rng.normal(size=(a, width)))
        back = Map.linear(rng.normal(size=(width, a)))
        save_translation(
            Translation("a", "b", forward=there, backward=back, one=0.5), tmp_path / name
        )
        return tmp_path / name

    space.serving.encoder("v2")
    foreign(space, "old", 2)
    assert (
        space.translations.load(space.install_translation(saved("five.npz", 5), None, "v2")).source
        == "old"
    )
    assert (
        space.translations.load(
            space.install_translation(saved("same.npz", width), None, "v2")
        ).source
        == "v1"
    )
    with refuses(InputError):
        space.install_translation(saved("six.npz", 6), None, "v2")


def test_pairs_of_a_file_are_fitted_before_any_model_was_loaded(
    space: Workspace, photos: Path, tmp_path: Path
) -> None:
    rows = {name: space.serving.embed(name, files(photos)) for name in ("v1", "v2")}
    np.savez(tmp_path / "pairs.npz", old=rows["v1"], new=rows["v2"])
    with Workspace.create(tmp_path / "empty", device="cpu") as empty:
        for name in ("v1", "v2"):
            empty.add_version(space.encoder(name))
        (way, *_) = empty.fit_translations("v1", "v2", FitOptions(pairs=tmp_path / "pairs.npz"))
        assert way.about["pairs"] == ITEMS
