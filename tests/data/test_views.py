"""Two crops of each image in a batch, and images that are held out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from test_batches import PLAIN, images, lane
from wording import refuses

from fixstar.data import Augmentation, Batches, ImageSet, augmented_views, from_arrays
from fixstar.data.batches import BatchSource
from fixstar.data.formats import image_folder
from fixstar.data.pixels import ResidentPixels
from fixstar.data.replay import HeldOut, hold_out
from fixstar.errors import InputError
from fixstar.images import Preprocessing

CROPPED = Augmentation(crop_padding=2)


def batches(views: int, augmentation: Augmentation = CROPPED, seed: int = 3) -> Batches:
    lanes = [
        lane(images(9), augmentation),
        lane(images(5, 1), augmentation, replay=True, first=100),
    ]
    return Batches(lanes, 6, augmentation, seed, views)


def test_the_second_half_of_a_batch_is_the_first_half_again() -> None:
    for batch in batches(2).epoch(0):
        assert len(batch.targets) == len(batch.pixels) == len(batch.replay) == 12
        assert batch.targets[:6].tolist() == batch.targets[6:].tolist()
        assert batch.replay.tolist() == 2 * ([False] * 3 + [True] * 3)
        assert (batch.targets >= 100).tolist() == batch.replay.tolist()


def test_without_augmentation_both_views_are_the_image_itself() -> None:
    new, old = np.asarray(images(9).images), np.asarray(images(5, 1).images)
    for batch in batches(2, PLAIN).epoch(0):
        assert torch.equal(batch.pixels[:6], batch.pixels[6:])
        for pixels, target in zip(batch.pixels.numpy(), batch.targets.tolist(), strict=True):
            image = old[target - 100] if target >= 100 else new[target]
            np.testing.assert_array_equal(pixels, image.transpose(2, 0, 1))


def test_the_views_are_different_crops() -> None:
    halves = [(batch.pixels[:6], batch.pixels[6:]) for batch in batches(2).epoch(0)]
    differ = [
        not torch.equal(a, b)
        for first, second in halves
        for a, b in zip(first, second, strict=True)
    ]
    assert np.mean(differ) > 0.8  # 5 x 5 offsets and a flip: one pair in fifty is the same


def test_views_of_images_are_crops_of_the_padded_image_drawn_by_the_seed() -> None:
    pixels = np.asarray(images(9).images)
    augmentation = Augmentation(crop_padding=2, fill=7)
    views = augmented_views(pixels, augmentation, 3, seed=4)
    height, width = pixels.shape[1:3]
    assert views.shape == (27, *pixels.shape[1:])
    padded = np.pad(pixels, ((0, 0), (2, 2), (2, 2), (0, 0)), constant_values=7)
    flipped = 0
    for row, view in enumerate(views):
        source = padded[row % 9]  # view by view
        crops = [source[y : y + height, x : x + width] for y in range(5) for x in range(5)]
        upright = any(np.array_equal(view, crop) for crop in crops)
        mirrored = any(np.array_equal(view, crop[:, ::-1]) for crop in crops)
        assert upright or mirrored
        flipped += not upright
    assert 4 < flipped < 23
    assert np.array_equal(views, augmented_views(pixels, augmentation, 3, seed=4))
    assert not np.array_equal(views, augmented_views(pixels, augmentation, 3, seed=5))
    still = augmented_views(pixels, Augmentation(crop_padding=0, flip=False), 2)
    assert np.array_equal(still, np.concatenate([pixels, pixels]))


def test_the_second_view_is_rotated_by_its_turns() -> None:
    lanes = [lane(images(9), PLAIN), lane(images(5, 1), PLAIN, replay=True, first=100)]
    seen = set()
    for batch in Batches(lanes, 6, PLAIN, seed=3, views=2, rotated=True).epoch(0):
        assert batch.turns is not None
        assert batch.turns[:6].tolist() == [0] * 6
        for upright, rotated, turn in zip(
            batch.pixels[:6], batch.pixels[6:], batch.turns[6:].tolist(), strict=True
        ):
            np.testing.assert_array_equal(np.rot90(upright.numpy(), turn, (1, 2)), rotated.numpy())
            seen.add(turn)
    assert seen <= {1, 2, 3}


def test_rotating_leaves_crops_as_they_were() -> None:
    lanes = [lane(images(9), CROPPED)]
    plain, rotated = (Batches(lanes, 6, CROPPED, 3, 2, turned).epoch(1) for turned in (False, True))
    for a, b in zip(plain, rotated, strict=True):
        assert torch.equal(a.pixels[:6], b.pixels[:6])
        assert torch.equal(a.targets, b.targets)


def test_only_the_second_of_two_views_of_square_images_is_rotated() -> None:
    with refuses(InputError):
        Batches([lane(images(9), PLAIN)], 6, PLAIN, 3, views=1, rotated=True)
    wide = from_arrays(np.zeros((4, 6, 8, 3), np.uint8), np.zeros(4, int))
    with pytest.raises(InputError, match="square"):
        next(
            Batches(
                [
                    BatchSource(
                        ResidentPixels(wide, PLAIN, torch.device("cpu")),
                        torch.zeros(4, dtype=torch.long),
                    )
                ],
                4,
                PLAIN,
                3,
                views=2,
                rotated=True,
            ).epoch(0)
        )


def test_views_depend_on_seed_and_epoch_alone_and_leave_the_order_of_the_images_alone() -> None:
    def epoch(views: int, number: int, seed: int = 3) -> tuple[Any, Any]:
        made = list(batches(views, seed=seed).epoch(number))
        return torch.cat([b.pixels for b in made]), torch.cat([b.targets[:6] for b in made])

    assert torch.equal(epoch(2, 1)[0], epoch(2, 1)[0])
    assert not torch.equal(epoch(2, 1)[0], epoch(2, 2)[0])
    assert not torch.equal(epoch(2, 1)[0], epoch(2, 1, seed=4)[0])
    assert torch.equal(epoch(2, 1)[1], epoch(1, 1)[1])


def test_one_view_is_drawn_as_it_always_was() -> None:
    """Order, offsets and flips from one generator for each lane: a run of an earlier release is repeated exactly."""
    source = images(9)
    made = list(Batches([lane(source, CROPPED)], 4, CROPPED, seed=5).epoch(7))
    rng = np.random.default_rng([5, 7, 0])
    order = rng.permutation(9)[:8].reshape(2, 4)
    offsets = rng.integers(0, 5, (2, 2, 4))
    flips = rng.random((2, 4)) < 0.5
    for b, batch in enumerate(made):
        for i in range(4):
            padded = np.pad(np.asarray(source.images)[order[b, i]], ((2, 2), (2, 2), (0, 0)))
            down, right = offsets[0, b, i], offsets[1, b, i]
            crop = padded[down : down + 6, right : right + 6]
            crop = crop[:, ::-1] if flips[b, i] else crop
            np.testing.assert_array_equal(batch.pixels[i].numpy(), crop.transpose(2, 0, 1))


# Held out


def numbered(names: str, per_class: int | dict[str, int], first: int = 0) -> ImageSet:
    """Images whose pixels say who they are."""
    counts = [per_class if isinstance(per_class, int) else per_class[name] for name in names]
    labels = np.repeat(np.arange(len(names)), counts)
    pixels = (first + np.arange(len(labels), dtype=np.uint8))[:, None, None] * np.ones(
        (1, 4, 4), np.uint8
    )
    return from_arrays(pixels, labels, list(names))


def content(part: ImageSet | None) -> list[tuple[int, str]]:
    """Number and class of each image."""
    if part is None:
        return []
    return sorted(
        (int(i.flat[0]), part.classes[label])
        for i, label in zip(part.images, part.labels, strict=True)
    )


def held(new: ImageSet, memory: ImageSet | None, share: float = 0.2, seed: int = 0) -> HeldOut:
    return hold_out(new, memory, share, seed, lambda part: part)


def test_held_out_images_are_balanced_apart_and_nothing_is_lost() -> None:
    new, memory = numbered("cd", 12), numbered("ab", 10, first=100)
    shown = held(new, memory)
    assert shown.held_out is not None
    assert shown.memory is not None
    assert {name: n for name, n in shown.held_out.counts().items() if n} == dict.fromkeys("abcd", 2)
    assert shown.images.counts() == {"c": 10, "d": 10}
    assert shown.memory.counts() == {"a": 8, "b": 8}
    parts = content(shown.images) + content(shown.memory) + content(shown.held_out)
    assert sorted(parts) == sorted(content(new) + content(memory))


def test_the_seed_decides_who_is_held_out() -> None:
    new, memory = numbered("cd", 12), numbered("ab", 10, first=100)
    chosen = [content(held(new, memory, seed=seed).held_out) for seed in (1, 1, 2)]
    assert chosen[0] == chosen[1] != chosen[2]


def test_a_remembered_class_that_comes_again_is_not_held_out_twice() -> None:
    shown = held(numbered("bc", 12), numbered("ab", 10, first=100))
    assert shown.held_out is not None
    assert {name: n for name, n in shown.held_out.counts().items() if n} == dict.fromkeys("abc", 2)
    assert shown.images.counts() == {"b": 12, "c": 10}
    only_old = held(numbered("ab", 12), numbered("ab", 10, first=100))
    assert only_old.held_out is not None
    assert only_old.held_out.counts() == {"a": 2, "b": 2}


@pytest.mark.parametrize(
    ("share", "new", "memory", "each"),
    [
        (0.0, 12, 10, 0),  # not asked for
        (0.01, 12, 10, 1),  # at least one
        (0.9, 12, 10, 9),  # one image of each class stays
        (0.9, 3, 10, 2),  # the scarcest class decides
        (0.2, 1, 10, 0),  # a class would lose its last image
        (0.2, 12, 1, 0),
    ],
)
def test_how_many_are_held_out(share: float, new: int, memory: int, each: int) -> None:
    shown = held(numbered("cd", new), numbered("ab", memory, first=100), share)
    assert (shown.held_out is None) == (each == 0)
    assert len(content(shown.held_out)) == 4 * each
    assert len(shown.images) == 2 * (new - each)


def test_without_a_memory_nothing_is_held_out_and_emptied_classes_do_not_count() -> None:
    new = numbered("cd", 12)
    assert held(new, None) == HeldOut(new, None, None)
    memory = numbered("abe", {"a": 10, "b": 10, "e": 0}, first=100)
    shown = held(new, memory)
    assert shown.held_out is not None
    assert {name for name, n in shown.held_out.counts().items() if n} == set("abcd")


def test_files_are_read_when_they_are_held_out(tmp_path: Path) -> None:
    for i in range(12):
        (tmp_path / "cd"[i % 2]).mkdir(exist_ok=True)
        Image.new("L", (8, 8), i).save(tmp_path / "cd"[i % 2] / f"{i}.png")
    grey = Preprocessing(size=(4, 4), channels=1, mean=(0.5,), std=(0.5,))
    memory = numbered("ab", 10, first=100)
    shown = hold_out(image_folder(tmp_path), memory, 0.2, 0, lambda part: part.load(grey).images)
    assert shown.held_out is not None
    assert shown.held_out.resident
    assert not shown.images.resident
    assert len(shown.images) == 8
    assert {"c": 2, "d": 2}.items() <= shown.held_out.counts().items()
