"""Vectors by both models, from a file: as the gallery stores them, or as full features."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shops import foreign, pictures, shop
from wording import check_wording, refuses

from fixstar.errors import DataError, InputError
from fixstar.geometry import unit
from fixstar.workspace import Workspace, catalogue
from fixstar.workspace.options import FitOptions
from fixstar.workspace.pairs import (
    Sample,
    by_class_means,
    from_file,
    from_gallery,
    judges,
    together,
    unlabelled_images,
)

OLD = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Workspace]:
    """Versions whose full features, 199 numbers, are wider than their backbone's; and a system of 5."""
    with shop(tmp_path / "shop", capacity=200) as space:
        space.serving.encoder("v1")
        space.gallery.create_version("old", 5)
        yield space


def read(space: Workspace, path: Path, **arrays: Any) -> Any:
    np.savez(path / "pairs.npz", **arrays)
    return from_file(path / "pairs.npz", space.gallery, "old", "v1")


def test_full_features_become_the_short_forms_that_are_stored(
    space: Workspace, tmp_path: Path
) -> None:
    images = [item.image for item in catalogue(pictures(tmp_path / "photos"))]
    encoder = space.encoder("v1")
    short, full, raw = (encoder.encode(images, form=form) for form in ("short", "full", "raw"))
    assert full.shape[1] == 199 > short.shape[1]
    for given in (short, full, raw, full.astype(np.float16)):
        both = read(space, tmp_path, old=OLD, new=given)
        assert both.new.shape == short.shape
        assert np.allclose(both.new, short, atol=2e-3 if given.dtype == np.float16 else 1e-5)
        assert np.allclose(np.linalg.norm(both.new, axis=1), 1, atol=1e-5)


def test_rows_that_are_no_features_of_the_version_are_refused(
    space: Workspace, tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    width = next(one.width for one in space.gallery.versions() if one.name == "v1")
    with refuses(DataError):
        read(space, tmp_path, old=OLD, new=rng.normal(size=(9, 199)))
    with refuses(DataError):
        read(space, tmp_path, old=OLD, new=rng.normal(size=(9, 77)))
    with refuses(DataError):
        read(space, tmp_path, old=rng.normal(size=(9, 7)), new=rng.normal(size=(9, width)))


def test_an_empty_label_is_none(space: Workspace, tmp_path: Path) -> None:
    """Images without a label are no class of their own: finding one of them shows nothing."""
    width = next(one.width for one in space.gallery.versions() if one.name == "v1")
    new = np.random.default_rng(2).normal(size=(9, width))
    kinds: list[Any] = [
        ["hat", "hat", "shoe", *[""] * 6],
        [1.0, 1.0, 2.0, *[np.nan] * 6],
        [b"hat", b"hat", *[b""] * 7],
    ]
    for labels in kinds:
        both = read(space, tmp_path, old=OLD, new=new, labels=np.array(labels))
        assert len(both.searchable()) == 2
        assert both.labels[3:] == [None] * 6


def test_class_means_leave_items_without_a_label_out(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    width = space.gallery.space("v1").width
    payloads = [{"label": ""}, {"label": "hat"}, {"label": "shoe"}]
    space.gallery.upsert("old", ["1", "2", "3"], np.eye(5)[:3], payloads)
    space.gallery.upsert("v1", ["4", "5", "6"], np.eye(width)[:3], payloads)
    with refuses(InputError, "check") as refused:
        by_class_means(space.serving, "old", "v1")
    assert [set(step.arguments) for step in refused.value.next_steps] == [{"version", "pairs"}]
    check_wording(str(refused.value))  # so it cannot embed images
    monkeypatch.setattr("fixstar.workspace.pairs.LEAST_CLASSES", 2)
    means = by_class_means(space.serving, "old", "v1")
    np.testing.assert_allclose(means.old, np.eye(5)[1:3])
    np.testing.assert_allclose(means.new, np.eye(width)[1:3])


def test_files_that_are_no_pairs(space: Workspace, tmp_path: Path) -> None:
    width = space.gallery.space("v1").width

    def told(**arrays: Any) -> str:
        with pytest.raises(DataError) as error:
            read(space, tmp_path, **arrays)
        return str(error.value)

    good = np.ones((50, 5))
    mine = np.ones((50, width))
    assert "lacks new" in told(old=good)
    assert "49 of new" in told(old=good, new=mine[1:])
    check_wording(told(old=good, new=0 * mine))
    assert "cannot be read" in told(old=np.array([{}], object), new=mine)
    (tmp_path / "text.npz").write_text("no vectors")
    with pytest.raises(DataError, match=r"text\.npz"):
        from_file(tmp_path / "text.npz", space.gallery, "old", "v1")
    with refuses(InputError):
        from_file(tmp_path / "none.npz", space.gallery, "old", "v1")


def test_a_damaged_file_of_pairs_is_refused(space: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "pairs.npz"
    np.savez(path, old=np.ones((50, 5)), new=np.ones((50, space.gallery.space("v1").width)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # in the values of an array: its checksum is wrong
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"pairs\.npz"):
        from_file(path, space.gallery, "old", "v1")


def test_an_item_is_fitted_or_judged_by_and_never_both(space: Workspace, tmp_path: Path) -> None:
    """The id decides, for ever; labelled items judge, the rest is fitted."""
    photos = list(catalogue(pictures(tmp_path / "photos", 20)))
    vectors = unit(np.random.default_rng(0).normal(size=(len(photos), 5))).astype(np.float32)
    payloads = [{**item.payload, "image": str(item.image)} for item in photos]
    space.gallery.upsert("old", [item.id for item in photos], vectors, payloads)
    fitted, of_fitted = from_gallery(space.serving, "old", "v1", judging=False)
    judging, of_judging = from_gallery(space.serving, "old", "v1", judging=True)
    everything, of_all = from_gallery(space.serving, "old", "v1", judging=None)
    assert of_fitted + of_judging == of_all == len(photos)
    assert len(judging) == sum(judges(item.id) for item in photos) > 0
    assert len(judging.without(fitted)) == len(judging)
    assert len(judging.without(everything)) == 0
    by_v1 = {
        tuple(row)
        for row in space.serving.embed("v1", [item.image for item in photos]).round(4).tolist()
    }
    assert {tuple(row) for row in everything.new.round(4).tolist()} == by_v1


def test_labelled_pairs_judge_where_the_model_and_the_images_are_gone(
    space: Workspace, tmp_path: Path
) -> None:
    """The old vectors hardly know the classes and the new ones do: a pass, by items that were not fitted."""
    foreign(space, "gone", 3)
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 40)
    width = space.gallery.space("v1").width
    classes = rng.normal(size=(12, width))
    new = unit(classes[labels] + 0.05 * rng.normal(size=(480, width)))
    old = unit(new @ rng.normal(size=(width, 5)) + 0.3 * rng.normal(size=(480, 5)))
    np.savez(tmp_path / "labelled.npz", old=old, new=new, labels=labels.astype(str))
    np.savez(tmp_path / "plain.npz", old=old, new=new)

    def checked(name: str) -> Any:
        return space.check(
            "v2", fitting=FitOptions(pairs=tmp_path / name), report=False, progress=False
        )

    assert [cell.version for cell in checked("plain.npz").cells if cell.version == "gone"] == []
    (cell,) = [cell for cell in checked("labelled.npz").cells if cell.version == "gone"]
    assert cell.cross_test > cell.self_test
    (way, *_) = space.translations.fitted("gone", "v2")
    assert way.about["fitted_on"] == "288 pairs of labelled.npz"  # the other 192 judge


def test_a_translation_is_fitted_on_all_pairs_that_can_be_had(
    space: Workspace, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    width = space.gallery.space("v1").width
    space.gallery.upsert("old", ["x"], np.eye(1, 5))
    np.savez(tmp_path / "pairs.npz", old=rng.normal(size=(80, 5)), new=rng.normal(size=(80, width)))
    ways = space.fit_translations("old", "v1", FitOptions(pairs=tmp_path / "pairs.npz"))
    assert ways[0].about["pairs"] == 80
    assert ways[0].about["fitted_on"] == "80 pairs of pairs.npz"
    assert all(way.two is None for way in ways)  # the model that made them is not here
    assert [way.key for way in space.translations.fitted("old", "v1")] == [way.key for way in ways]
    assert space.left_out_vectors("v1") == {}
    with refuses(InputError, "check"):
        space.fit_translations(
            "old", "v1", FitOptions(images=unlabelled_images(pictures(tmp_path / "more")))
        )


def test_samples_together_and_apart() -> None:
    rng = np.random.default_rng(0)
    rows = unit(rng.normal(size=(10, 4))).astype(np.float32)
    labels = ["a", "a", "b", None, "c", "c", "b", "b", None, "d"]
    whole = together(
        [Sample(rows[:6], rows[:6], labels[:6]), Sample(rows[6:], rows[6:], labels[6:])]
    )
    assert (len(whole), list(whole.labels)) == (10, labels)
    assert list(whole.searchable().labels) == ["a", "a", "b", "c", "c", "b", "b"]
    fitted, judged = whole.divided(0.3, seed=0)
    assert (len(fitted), len(judged)) == (7, 3)
    twice = together([whole, whole])
    fitted, judged = twice.divided(0.5, seed=0)
    assert len(judged.without(fitted)) == len(judged)
