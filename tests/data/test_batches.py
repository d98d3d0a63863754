"""Batches: reproducible, the same resident or streamed, on CPU arithmetic or GPU arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from wording import refuses

from fixstar.data import Augmentation, Batches, BatchSource, ImageSet, from_arrays, pixel_source
from fixstar.data.formats import image_folder
from fixstar.data.pixels import ResidentPixels, StreamedPixels, _cut_numpy, _cut_torch
from fixstar.errors import DataError, InputError
from fixstar.images import Preprocessing

CPU = torch.device("cpu")
RGB = Preprocessing(size=(6, 6), mean=(0.5,) * 3, std=(0.5,) * 3)
PLAIN = Augmentation(crop_padding=0, flip=False)


def images(count: int, seed: int = 0) -> ImageSet:
    pixels = np.random.default_rng(seed).integers(1, 256, (count, 6, 6, 3), dtype=np.uint8)
    return from_arrays(pixels, np.arange(count) % 3)


def lane(
    source: ImageSet, augmentation: Augmentation = PLAIN, replay: bool = False, first: int = 0
) -> BatchSource:
    pixels, _ = pixel_source(source, RGB, augmentation, CPU)
    return BatchSource(pixels, torch.arange(first, first + len(source)), replay)


def slow_crop(image: Any, down: int, right: int, flip: bool, padding: int, fill: int) -> Any:
    """Pad, cut, turn around: one image at a time."""
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)), constant_values=fill)
    cut = padded[down : down + 6, right : right + 6]
    return (cut[:, ::-1] if flip else cut).transpose(2, 0, 1)


def test_crops_and_flips_equal_the_slow_way_on_both_paths() -> None:
    rng = np.random.default_rng(1)
    source, augmentation = images(10), Augmentation(crop_padding=2, fill=9)
    padded = ResidentPixels(source, augmentation, CPU).padded
    index, down, right = rng.integers(0, 10, 30), rng.integers(0, 5, 30), rng.integers(0, 5, 30)
    flip = rng.random(30) < 0.5
    expected = np.stack(
        [
            slow_crop(source.images[i], d, r, f, 2, 9)
            for i, d, r, f in zip(index, down, right, flip, strict=True)
        ]
    )
    np.testing.assert_array_equal(
        _cut_numpy(padded.numpy(), index, down, right, flip, (6, 6)), expected
    )
    tensors = [torch.from_numpy(part) for part in (index, down, right, flip)]
    np.testing.assert_array_equal(
        _cut_torch(padded, tensors[0], tensors[1], tensors[2], tensors[3], (6, 6)), expected
    )


def test_an_epoch_shows_every_image_once_with_its_target() -> None:
    source = images(12)
    batches = Batches([lane(source)], 4, PLAIN, seed=0)
    assert batches.per_epoch == 3
    seen = [(b.targets.tolist(), b.pixels.numpy()) for b in batches.epoch(0)]
    assert sorted(target for targets, _ in seen for target in targets) == list(range(12))
    for targets, pixels in seen:
        np.testing.assert_array_equal(
            pixels, np.asarray(source.images)[targets].transpose(0, 3, 1, 2)
        )


def test_the_last_incomplete_batch_is_dropped_and_a_small_set_is_one_batch() -> None:
    assert [len(b.targets) for b in Batches([lane(images(11))], 4, PLAIN, 0).epoch(0)] == [4, 4]
    assert [len(b.targets) for b in Batches([lane(images(3))], 4, PLAIN, 0).epoch(0)] == [3]


def test_seed_and_epoch_alone_decide() -> None:
    augmentation = Augmentation(crop_padding=1)

    def pixels(seed: int, epoch: int) -> Any:
        batches = Batches([lane(images(12), augmentation)], 4, augmentation, seed)
        list(batches.epoch(0))  # what came before makes no difference
        return torch.cat([b.pixels for b in batches.epoch(epoch)])

    assert torch.equal(pixels(1, 2), pixels(1, 2))
    assert not torch.equal(pixels(1, 2), pixels(1, 3))
    assert not torch.equal(pixels(1, 2), pixels(2, 2))


def test_replay_takes_half_of_every_batch() -> None:
    """Batches an epoch = (new + replay) // batch; no image comes twice before all of its lane came once."""
    batches = Batches([lane(images(20)), lane(images(6, 1), replay=True, first=100)], 8, PLAIN, 0)
    epoch = list(batches.epoch(0))
    assert len(epoch) == (20 + 6) // 8
    for batch in epoch:
        assert batch.replay.tolist() == [False] * 4 + [True] * 4
        assert (batch.targets >= 100).tolist() == batch.replay.tolist()
    replayed = torch.cat([b.targets[b.replay] for b in epoch]).tolist()
    assert sorted(replayed[:6]) == list(range(100, 106))
    new = torch.cat([b.targets[~b.replay] for b in epoch]).tolist()
    assert len(set(new)) == 12


def test_the_lanes_of_a_batch_are_drawn_apart() -> None:
    """As many images and places in both lanes: one generator for both would show the same rows, crops and flips."""
    augmentation = Augmentation(crop_padding=2)
    lanes = [lane(images(16), augmentation), lane(images(16, 1), augmentation, replay=True)]
    plan = Batches(lanes, 8, augmentation, seed=3).plan_on_device(2)
    for what, new, replayed in zip(
        ("image", "down", "right", "flip"), plan[:4], plan[4:], strict=True
    ):
        assert new.shape == replayed.shape == (4, 4)
        assert not torch.equal(new, replayed), what


@pytest.mark.parametrize(("views", "rotated"), [(1, False), (2, False), (2, True)])
def test_batches_cut_by_their_number_are_those_of_the_epoch(views: int, rotated: bool) -> None:
    augmentation = Augmentation(crop_padding=2)
    lanes = [
        lane(images(20), augmentation),
        lane(images(6, 1), augmentation, replay=True, first=100),
    ]
    batches = Batches(lanes, 8, augmentation, seed=4, views=views, rotated=rotated)
    assert batches.resident
    plan = batches.plan_on_device(2)
    for step, expected in enumerate(batches.epoch(2)):
        batch = batches.cut_at(plan, torch.tensor([step]))
        assert (batch.turns is not None) == (expected.turns is not None) == rotated
        for ours, theirs in zip(batch, expected, strict=True):
            assert ours is theirs or (
                ours is not None and theirs is not None and torch.equal(ours, theirs)
            )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i, image in enumerate(np.asarray(images(9).images)):
        path = tmp_path / f"class{i % 3}" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(path)
    return tmp_path


def test_streamed_batches_equal_resident_ones(folder: Path) -> None:
    augmentation = Augmentation(crop_padding=2, fill=7)
    epochs = []
    for budget, kind in ((10**9, ResidentPixels), (0, StreamedPixels)):
        source, kept = pixel_source(image_folder(folder), RGB, augmentation, CPU, budget=budget)
        assert isinstance(source, kind)
        batches = Batches(
            [BatchSource(source, torch.from_numpy(kept.labels))], 4, augmentation, seed=5
        )
        epochs.append(list(batches.epoch(3)))
    for resident, streamed in zip(*epochs, strict=True):
        assert torch.equal(resident.pixels, streamed.pixels)
        assert torch.equal(resident.targets, streamed.targets)


def test_arrays_that_do_not_fit_are_streamed_too() -> None:
    augmentation = Augmentation(crop_padding=1)
    sources = [
        pixel_source(images(9), RGB, augmentation, CPU, budget=budget)[0] for budget in (10**9, 0)
    ]
    assert [type(source) for source in sources] == [ResidentPixels, StreamedPixels]
    epochs = [
        list(Batches([BatchSource(s, torch.arange(9))], 4, augmentation, 2).epoch(1))
        for s in sources
    ]
    for resident, streamed in zip(*epochs, strict=True):
        assert torch.equal(resident.pixels, streamed.pixels)


@pytest.mark.parametrize("budget", [10**9, 0])
def test_bad_images_are_refused_before_training_or_left_out_by_name(
    folder: Path, budget: int
) -> None:
    (folder / "class1" / "4.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"4\.png"):
        pixel_source(image_folder(folder), RGB, PLAIN, CPU, budget=budget)
    with pytest.warns(UserWarning, match=r"left out .*4\.png"):
        source, kept = pixel_source(image_folder(folder), RGB, PLAIN, CPU, "skip", budget=budget)
    assert len(source) == len(kept) == 8
    assert kept.counts() == {"class0": 3, "class1": 2, "class2": 3}


def test_an_image_that_breaks_during_training_is_named(folder: Path) -> None:
    source, kept = pixel_source(image_folder(folder), RGB, PLAIN, CPU, budget=0)
    (folder / "class2" / "5.png").unlink()
    batches = Batches([BatchSource(source, torch.from_numpy(kept.labels))], 9, PLAIN, seed=0)
    with refuses(DataError):
        list(batches.epoch(0))


def test_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(InputError, match="at least 2 images"):
        Batches([lane(images(1))], 4, PLAIN, 0)
