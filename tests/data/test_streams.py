from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from wording import refuses

from fixstar.data import (
    ImageSet,
    class_and_sample_stream,
    class_order,
    class_stream,
    from_arrays,
    sample_stream,
)
from fixstar.errors import InputError


def numbered(classes: int = 6, per_class: int = 4) -> ImageSet:
    """Every image carries its own number in its pixels."""
    count = classes * per_class
    pixels = np.arange(count, dtype=np.uint8)[:, None, None] * np.ones((1, 2, 2), np.uint8)
    return from_arrays(
        pixels, np.repeat(np.arange(classes), per_class), [f"c{i}" for i in range(classes)]
    )


def ids(images: ImageSet) -> list[int]:
    return [int(image[0, 0, 0]) for image in np.asarray(images.images)]


def truth(images: ImageSet, per_class: int = 4) -> bool:
    """Whether every image still has the class that its number says."""
    return [images.classes[label] for label in images.labels] == [
        f"c{i // per_class}" for i in ids(images)
    ]


def test_cifar_in_seven_tasks_has_ten_classes_and_then_fifteen() -> None:
    stream = class_stream(numbered(100, 1), 10, 15, order_seed=1)
    assert [len(task.images.classes) for task in stream] == [10, 15, 15, 15, 15, 15, 15]
    assert [task.number for task in stream] == [1, 2, 3, 4, 5, 6, 7]


def test_the_class_order_is_torchs_permutation() -> None:
    expected = torch.randperm(100, generator=torch.Generator().manual_seed(1)).tolist()
    assert class_order([str(i) for i in range(100)], 1) == tuple(str(i) for i in expected)
    assert class_order(["b", "a"], None) == ("b", "a")


@given(initial=st.integers(1, 6), seed=st.one_of(st.none(), st.integers(0, 50)))
def test_class_tasks_share_no_class_and_lose_no_image(initial: int, seed: int | None) -> None:
    stream = class_stream(numbered(), initial, 1, seed)
    assert sorted(i for task in stream for i in ids(task.images)) == list(range(24))
    assert all(truth(task.images) for task in stream)
    names = [name for task in stream for name in task.images.classes]
    assert names == list(stream.class_order)
    assert sorted(ids(stream.seen(len(stream)))) == list(range(24))
    assert truth(stream.seen(len(stream)))


def test_sample_tasks_split_every_class_alike() -> None:
    stream = sample_stream(numbered(), [0.5, 0.25], seed=3)
    assert [list(task.images.counts().values()) for task in stream] == [[2] * 6, [1] * 6]
    seen = [set(ids(task.images)) for task in stream]
    assert not seen[0] & seen[1]
    assert all(truth(task.images) for task in stream)
    assert ids(sample_stream(numbered(), [0.5], seed=3)[0].images) == ids(stream[0].images)
    assert ids(sample_stream(numbered(), [0.5], seed=4)[0].images) != ids(stream[0].images)


def test_old_and_new_classes_together() -> None:
    stream = class_and_sample_stream(numbered(), 3, 0.5)
    assert stream[0].images.counts() == {"c0": 2, "c1": 2, "c2": 2}
    assert stream[1].images.counts() == {"c0": 2, "c1": 2, "c2": 2, "c3": 4, "c4": 4, "c5": 4}
    assert sorted(ids(stream.seen(2))) == list(range(24))
    assert truth(stream.seen(2))


def test_splits_that_do_not_come_out_even_are_refused() -> None:
    with refuses(InputError):
        class_stream(numbered(), 2, 3)
    with refuses(InputError):
        sample_stream(numbered(), [0.6, 0.6])
    with refuses(InputError):
        sample_stream(numbered(6, 1), [0.3, 0.7])
    with pytest.raises(InputError, match="1 <= initial < 6"):
        class_and_sample_stream(numbered(), 6)
