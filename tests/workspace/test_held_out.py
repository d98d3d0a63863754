"""The gate asks only about images that no version in question has learnt."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wording import check_wording

from fixstar.data import Augmentation, ImageSet
from fixstar.data.image_set import concatenate, from_arrays
from fixstar.errors import NextStep
from fixstar.evaluation.labelled_vectors import searchable
from fixstar.methods import create_method
from fixstar.models.backbones.base import cifar_inputs
from fixstar.training import Settings, paper_recipe
from fixstar.workspace import UpgradeOptions, Workspace, labelled_items
from fixstar.workspace.backfill.planning import labelled_images
from fixstar.workspace.held_out import _draw, held_out_images, split_off, unlearnt_images

METHOD = create_method("hoc")
RECIPE = replace(paper_recipe(METHOD.scenario).shortened(1), batch_size=16)
PLAIN = UpgradeOptions(device="cpu", progress=False)


def patches(count: int = 40) -> ImageSet:
    """Four classes, already at the model's size, so that what is kept is what was drawn."""
    pixels = np.random.default_rng(0).integers(0, 255, (4 * count, 32, 32, 3)).astype(np.uint8)
    return from_arrays(pixels, np.repeat(np.arange(4), count), list("abcd"))


IMAGES = patches()


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with v1, which held out three tenths, and one item."""
    path = tmp_path_factory.mktemp("held") / "space"
    settings = Settings(
        backbone="tiny",
        capacity=8,
        recipe=RECIPE,
        augmentation=Augmentation(flip=False),
        replay_per_class=2,
        device="cpu",
    )
    with Workspace.create(path, device="cpu") as space:
        space.train(IMAGES, settings, METHOD, progress=False, hold_out=0.3)
        space.index(list(labelled_items(IMAGES))[:1])
    return path


@pytest.fixture
def space(first: Path, tmp_path: Path) -> Any:
    with Workspace(shutil.copytree(first, tmp_path / "space"), device="cpu") as space:
        yield space


def share(space: Workspace, name: str) -> Any:
    return space.registry.card(name)["about"]["hold_out"]


def drawn(images: ImageSet | None) -> list[float]:
    return [] if images is None else sorted(_draw(pixels) for pixels in images.images)


@pytest.mark.parametrize("options", [replace(PLAIN, keep_images=False), PLAIN])
def test_where_the_candidate_held_out_nothing_the_evidence_is_missing(
    space: Workspace, options: UpgradeOptions
) -> None:
    space.upgrade(IMAGES, options)
    assert (share(space, "v1"), share(space, "v2")) == (0.3, 0.0)
    check = space.check("v2", report=False, progress=False)
    assert (check.outcome, check.cells, check.queries, check.data) == (
        "missing evidence",
        (),
        0,
        {},
    )
    check_wording(check.reasons[0])
    assert check.next_steps[0] == NextStep(
        "check", {"version": "v2", "data": ...}, check.next_steps[0].note
    )
    assert labelled_images(space.serving, None, "v2") is None
    given = space.check("v2", IMAGES, report=False, progress=False)
    assert given.data["source"] == "given"
    assert (
        space.check("v1", report=False, progress=False).queries > 0
    )  # nobody learnt what v1 held out before it


def test_a_smaller_share_leaves_the_images_that_both_held_out(space: Workspace) -> None:
    space.upgrade(IMAGES, replace(PLAIN, hold_out=0.15))
    check = space.check("v2", report=False, progress=False)
    both = [number for number in drawn(IMAGES) if number < 0.15]
    assert check.data["images"] == len(both) == check.queries + check.gallery
    assert any("v2 has learnt" in note for note in check.notes)
    preprocessing = space.encoder("v2").preprocessing
    found = unlearnt_images(space.registry, "v2", ["v1", "imported"], preprocessing)
    assert (drawn(found.images), found.learnt_by) == (both, ("v2",))
    assert drawn(labelled_images(space.serving, None, "v2")) == both


def test_a_larger_share_leaves_what_the_old_version_had_not_learnt(space: Workspace) -> None:
    space.upgrade(IMAGES, replace(PLAIN, hold_out=0.5))
    found = unlearnt_images(space.registry, "v2", ["v1"], space.encoder("v2").preprocessing)
    assert drawn(found.images) == [number for number in drawn(IMAGES) if number < 0.3]
    assert found.learnt_by == ("v1",)


def test_the_same_share_asks_about_all(space: Workspace) -> None:
    space.upgrade(IMAGES, replace(PLAIN, hold_out=0.3))
    preprocessing = space.encoder("v2").preprocessing
    found = unlearnt_images(space.registry, "v2", ["v1"], preprocessing)
    held = split_off(IMAGES, 0.3).held
    assert (drawn(found.images), found.learnt_by) == (drawn(held), ())
    assert drawn(held_out_images(space.path, ["v1", "v2"], preprocessing)) == drawn(held)
    check = space.check("v2", report=False, progress=False)
    assert (check.data["images"], [note for note in check.notes if "learnt" in note]) == (
        len(drawn(held)),
        [],
    )


def others(count: int = 20) -> ImageSet:
    """Other photos, of two classes that are known and two that are new."""
    pixels = np.random.default_rng(1).integers(0, 255, (4 * count, 32, 32, 3)).astype(np.uint8)
    return from_arrays(pixels, np.repeat(np.arange(4), count), list("cdef"))


def test_an_upgrade_on_other_photos_leaves_all_that_was_held_out_before(space: Workspace) -> None:
    space.upgrade(others(), replace(PLAIN, keep_images=False))  # it holds out nothing
    found = unlearnt_images(space.registry, "v2", ["v1"], space.encoder("v2").preprocessing)
    assert (drawn(found.images), found.learnt_by) == (drawn(split_off(IMAGES, 0.3).held), ())
    check = space.check("v2", report=False, progress=False)
    assert check.data["images"] == len(drawn(found.images))
    assert not any("learnt" in note for note in check.notes)


def test_an_image_that_was_the_only_one_of_its_class_is_known_to_be_learnt(
    space: Workspace,
) -> None:
    """Training keeps the last image of a class, whatever it drew: the share alone does not say so."""
    held = split_off(IMAGES, 0.3).held
    assert held is not None
    alone = held.take([0])
    both = concatenate([alone, others()])
    space.upgrade(both, replace(PLAIN, hold_out=0.3))
    found = unlearnt_images(space.registry, "v2", ["v1"], space.encoder("v2").preprocessing)
    assert drawn(alone)[0] not in drawn(found.images)
    assert set(drawn(held)) - set(drawn(found.images)) == set(drawn(alone))
    assert found.learnt_by == ("v2",)


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\x93NUMPY\x01\x00"])
def test_where_it_cannot_be_read_what_was_learnt_the_share_decides(
    space: Workspace, damage: bytes
) -> None:
    space.upgrade(others(), PLAIN)
    (space.path / "held-out" / "v2-learnt.safetensors").write_bytes(damage)
    found = unlearnt_images(space.registry, "v2", ["v1"], space.encoder("v2").preprocessing)
    assert (drawn(found.images), found.learnt_by) == ([], ("v2",))


def test_a_class_that_cannot_be_measured_alarms_nobody() -> None:
    images = from_arrays(np.zeros((3, 8, 8, 3), np.uint8), np.array([0, 0, 1]), ["hat", "shoe"])
    with pytest.warns(
        UserWarning,
        match=r"1 class with only one image to measure with, not measured: shoe\. Training",
    ):
        assert searchable(images, cifar_inputs(3), "skip").counts()["hat"] == 2
