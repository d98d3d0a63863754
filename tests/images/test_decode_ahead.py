from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from example_images import distance, encoded, grey, noise, rgb
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fixstar.errors import ImageError, InputError
from fixstar.images import ImageSource, decode_ahead, read_pixels


def flat(shade: int) -> npt.NDArray[np.uint8]:
    return np.full((300, 300), shade, np.uint8)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.one_of(st.integers(0, 255), st.none()), max_size=30),
    st.integers(1, 4),
    st.integers(1, 6),
)
def test_decode_ahead_keeps_the_order(shades: list[int | None], workers: int, ahead: int) -> None:
    sources: list[ImageSource] = [b"broken" if shade is None else flat(shade) for shade in shades]
    results = list(decode_ahead(sources, grey(4, 4), workers, ahead))
    assert len(results) == len(shades)
    for position, (shade, result) in enumerate(zip(shades, results, strict=True)):
        if shade is None:
            assert isinstance(result, ImageError)
            assert (result.index, result.name) == (position, f"image #{position}")
        else:
            assert (np.asarray(result) == shade).all()


class Counting(Sequence[Any]):
    """Remembers how far it was read."""

    def __init__(self) -> None:
        self.furthest = -1

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, position: Any) -> Any:
        self.furthest = max(self.furthest, position)
        return flat(position % 256)


def decoding_threads() -> int:
    return sum(thread.name.startswith("fixstar-decode") for thread in threading.enumerate())


def test_decode_ahead_looks_only_so_far_and_stops_when_closed() -> None:
    sources = Counting()
    results = decode_ahead(sources, grey(4, 4), workers=3, ahead=5)
    assert sources.furthest == -1
    for taken in range(1, 20):
        next(results)
        assert sources.furthest < taken + 5
    assert decoding_threads() > 0
    results.close()
    assert decoding_threads() == 0
    assert sources.furthest < 25


def test_decode_ahead_leaves_no_thread_when_done_or_unused() -> None:
    unused = decode_ahead([flat(1)], grey(4, 4), workers=2)
    assert decoding_threads() == 0
    del unused
    assert len(list(decode_ahead([flat(1)] * 9, grey(4, 4), workers=2))) == 9
    assert decoding_threads() == 0


def test_one_lazy_image_may_stand_in_the_list_many_times() -> None:
    whole = noise(900, 900)
    lazy = Image.open(io.BytesIO(encoded(whole, "PNG", compress_level=1)))
    results = list(decode_ahead([lazy] * 6, rgb(900, 900), workers=6))
    assert all(
        not isinstance(result, ImageError) and distance(result, whole) == 0 for result in results
    )


def test_small_arrays_need_no_threads_and_give_the_same() -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 10, 10, 3), dtype=np.uint8)
    for p in (rgb(10, 10), grey(5, 5)):
        results = decode_ahead(images, p, workers=4)
        assert distance(np.asarray(next(results)), read_pixels(images[0], p)) == 0
        assert decoding_threads() == 0
        assert len(list(results)) == 5


def test_decode_ahead_refuses_no_workers() -> None:
    with pytest.raises(InputError, match="got 0 and 3"):
        decode_ahead([], grey(4, 4), workers=0, ahead=3)
