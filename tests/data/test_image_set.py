from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from wording import refuses

from fixstar.data.image_set import ImageSet, concatenate, from_arrays
from fixstar.errors import DataError, ImageError, InputError, UnknownNameError
from fixstar.images import Preprocessing

GREY = Preprocessing(size=(2, 2), channels=1, mean=(0.5,), std=(0.5,))


def numbered(
    labels: list[int], classes: tuple[str, ...] = ("ant", "bee", "cat"), first: int = 0
) -> ImageSet:
    """Images whose every pixel is their number, so that a pair of image and label can be told from all others."""
    numbers = np.arange(first, first + len(labels), dtype=np.uint8)
    images = np.broadcast_to(numbers[:, None, None, None], (len(labels), 2, 2, 1)).copy()
    return ImageSet(images, np.array(labels, np.int64), classes)


def pairs(images: ImageSet) -> list[tuple[int, str]]:
    assert isinstance(images.images, np.ndarray)
    numbers = images.images[:, 0, 0, 0].tolist()
    return list(zip(numbers, (images.classes[label] for label in images.labels), strict=True))


def photo_files(folder: Path, shades: list[int], size: int = 2) -> tuple[Path, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    for i, shade in enumerate(shades):
        Image.new("L", (size, size), shade).save(folder / f"{i:03}.png")
    return tuple(folder / f"{i:03}.png" for i in range(len(shades)))


def labels(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


# Making one


@pytest.mark.parametrize(
    ("images", "numbers", "classes"),
    [
        (np.zeros((2, 4, 4, 3)), labels(0, 0), ("a",)),
        (np.zeros((2, 4, 4), np.uint8), labels(0, 0), ("a",)),
        (np.zeros((2, 4, 4, 3), np.uint8), labels(0), ("a",)),
        (np.zeros((2, 4, 4, 3), np.uint8), labels(0, 1), ("a",)),
        (np.zeros((2, 4, 4, 3), np.uint8), labels(0, -1), ("a",)),
        (np.zeros((2, 4, 4, 3), np.uint8), np.array([0, 0], np.int32), ("a",)),
        (np.zeros((2, 4, 4, 3), np.uint8), labels(0, 1), ("a", "b", "b", "a")),
        (np.zeros((2, 4, 4, 3), np.uint8), labels(0, 0), ["a"]),
        (["a.jpg"], labels(0), ("a",)),
    ],
)
def test_inconsistent_sets_are_refused(images: Any, numbers: Any, classes: Any) -> None:
    with refuses(InputError):
        ImageSet(images, numbers, classes)


def test_from_arrays_takes_what_people_have() -> None:
    grey = np.array([[[0.0, 1.0]], [[0.5, 0.2]]])
    made = from_arrays(grey, [7, 3], name="toys")
    assert isinstance(made.images, np.ndarray)
    assert made.images.tolist() == [[[[0], [255]]], [[[128], [51]]]]
    assert (made.classes, made.labels.tolist(), made.name) == (("3", "7"), [1, 0], "toys")
    assert from_arrays(grey, [10, 9]).classes == ("9", "10")  # sorted as numbers
    assert from_arrays(grey, np.array(["b", "a"], object)).classes == ("a", "b")
    assert from_arrays(grey, ["b", "c"], classes=["c", "b", "a"]).labels.tolist() == [1, 0]
    assert from_arrays(grey, [2, 0], classes=["c", "b", "a"]).labels.tolist() == [2, 0]


def test_from_arrays_composites_alpha_and_copies_no_bytes() -> None:
    clear = from_arrays(np.zeros((1, 2, 2, 4), np.uint8), [0])
    assert isinstance(clear.images, np.ndarray)
    assert clear.images.tolist() == [[[[255] * 3] * 2] * 2]
    pixels = np.zeros((3, 2, 2, 3), np.uint8)
    assert np.shares_memory(np.asarray(from_arrays(pixels, [0, 0, 0]).images), pixels)


@pytest.mark.parametrize(
    ("images", "numbers", "classes", "error"),
    [
        (np.zeros((2, 3, 8, 8)), [0, 1], None, InputError),
        (np.full((2, 8, 8), 2.0), [0, 1], None, ImageError),
        (np.zeros((2, 8, 8), np.int32), [0, 1], None, ImageError),
        (np.zeros((2, 8, 8)), [0.5, 1.5], None, InputError),
        (np.zeros((2, 8, 8)), [["a"], ["b"]], None, InputError),
        (np.zeros((2, 8, 8)), np.array(["a", 1], object), None, InputError),
        (np.zeros((2, 8, 8)), ["a", "z"], ["a", "b"], UnknownNameError),
        (np.zeros((2, 8, 8)), [0, 2], ["a", "b"], InputError),
    ],
)
def test_from_arrays_refuses(
    images: Any, numbers: Any, classes: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        from_arrays(images, numbers, classes)


# Choosing and joining


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=12), st.data())
def test_take_and_of_classes_keep_pairs(numbers: list[int], data: st.DataObject) -> None:
    images = numbered(numbers)
    chosen = data.draw(st.lists(st.integers(0, len(numbers) - 1), max_size=9)) if numbers else []
    taken = images.take(chosen)
    assert pairs(taken) == [pairs(images)[i] for i in chosen]
    assert taken.classes == images.classes
    names = data.draw(st.permutations(images.classes))[: data.draw(st.integers(0, 3))]
    kept = images.of_classes(names)
    assert pairs(kept) == [pair for pair in pairs(images) if pair[1] in names]
    assert kept.classes == tuple(names)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.permutations(["ant", "bee", "cat", "dog"]), st.lists(st.integers(0, 3), max_size=5)
        ),
        min_size=1,
        max_size=4,
    )
)
def test_concatenate_keeps_pairs(parts: list[tuple[list[str], list[int]]]) -> None:
    sets = [
        numbered(numbers, tuple(names), first=10 * i) for i, (names, numbers) in enumerate(parts)
    ]
    joined = concatenate(sets)
    assert pairs(joined) == [pair for one in sets for pair in pairs(one)]
    assert joined.classes == tuple(parts[0][0])


def test_concatenate_unites_classes_in_order_of_appearance(tmp_path: Path) -> None:
    files = photo_files(tmp_path, [1, 2])
    one = ImageSet(files[:1], labels(0), ("zebra",), "one")
    two = ImageSet(files[1:], labels(1), ("zebra", "ant"), "two")
    joined = concatenate([one, two, one])
    assert joined.images == (*files, files[0])
    assert (joined.classes, joined.labels.tolist(), joined.name) == (
        ("zebra", "ant"),
        [0, 1, 0],
        "one+two",
    )
    with pytest.raises(InputError, match=r"load\(\)"):
        concatenate([one, numbered([0])])
    with pytest.raises(InputError, match="different sizes"):
        concatenate([numbered([0]), from_arrays(np.zeros((1, 3, 3)), [0])])
    with pytest.raises(InputError, match="empty"):
        concatenate([])


def test_taking_copies_only_what_is_chosen() -> None:
    images = numbered([0, 1, 2, 0])
    taken = images.take(np.array([True, False, False, True]))
    assert pairs(taken) == [(0, "ant"), (3, "ant")]
    assert not np.shares_memory(np.asarray(taken.images), np.asarray(images.images))
    assert np.asarray(taken.images).base is None  # it does not hold on to the whole


@pytest.mark.parametrize("indices", [[4], [-1], [0.5], [[0]], [True, False]])
def test_take_refuses_other_positions(indices: Any) -> None:
    with pytest.raises(InputError, match="0 to 3"):
        numbered([0, 1, 2, 0]).take(indices)


def test_of_classes_refuses_unknown_repeated_and_single_names() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'bee'"):
        numbered([0]).of_classes(["ant", "bees"])
    with pytest.raises(InputError, match="twice"):
        numbered([0]).of_classes(["ant", "ant"])
    with pytest.raises(InputError, match=r"\['ant'\]"):
        numbered([0]).of_classes("ant")


def test_counts_and_names(tmp_path: Path) -> None:
    assert numbered([0, 2, 2]).counts() == {"ant": 1, "bee": 0, "cat": 2}
    files = ImageSet(photo_files(tmp_path, [1]), labels(0), ("a",))
    assert (len(files), files.resident, numbered([0]).resident) == (1, False, True)


# Loading


def test_load_decodes_files_in_order_with_progress(tmp_path: Path) -> None:
    told: list[int] = []
    images = ImageSet(
        photo_files(tmp_path, list(range(30)), size=6),
        labels(*[i % 3 for i in range(30)]),
        ("a", "b", "c"),
    )
    loaded, bad = images.load(GREY, progress=lambda count=1, note=None: told.append(count))  # noqa: ARG005
    assert pairs(loaded) == [(i, "abc"[i % 3]) for i in range(30)]
    assert bad == ()
    assert told == [1] * 30


def test_load_of_what_is_ready_copies_nothing() -> None:
    images = numbered([0, 1])
    assert images.load(GREY).images is images
    assert images.load(
        Preprocessing(size=(4, 4), mean=(0, 0, 0), std=(1, 1, 1))
    ).images.images.shape == (2, 4, 4, 3)  # type: ignore[union-attr]


def damaged_set(tmp_path: Path, broken: range) -> ImageSet:
    files = photo_files(tmp_path, list(range(20)))
    for i in broken:
        files[i].write_bytes(files[i].read_bytes()[:45])
    return ImageSet(files, labels(*[i % 2 for i in range(20)]), ("even", "odd"))


def test_load_skips_what_cannot_be_read_and_says_so(tmp_path: Path) -> None:
    loaded, bad = damaged_set(tmp_path, range(3, 6)).load(GREY, bad="skip")
    assert pairs(loaded) == [(i, ("even", "odd")[i % 2]) for i in range(20) if i not in (3, 4, 5)]
    assert [image.index for image in bad] == [3, 4, 5]
    assert bad[0].name == str(tmp_path / "003.png")
    assert "truncated" in bad[0].reason


def test_load_refuses_after_looking_at_all(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        damaged_set(tmp_path, range(3, 15)).load(GREY)
    message = str(caught.value)
    assert message.startswith("12 of 20 images cannot be read:")
    assert f"{tmp_path / '003.png'}: " in message
    assert "012.png" in message
    assert "013.png" not in message
    assert "... and 2 more" in message
    assert 'bad="skip"' in message


def test_nothing_left_to_load(tmp_path: Path) -> None:
    with refuses(DataError):
        damaged_set(tmp_path, range(20)).load(GREY, bad="skip")
    with pytest.raises(DataError, match="no images"):
        numbered([]).load(GREY)
    with pytest.raises(InputError, match="'refuse' or 'skip'"):
        numbered([0]).load(GREY, bad="ignore")  # type: ignore[arg-type]


def test_more_than_the_memory_holds_is_said_plainly(tmp_path: Path) -> None:
    many = tuple(photo_files(tmp_path, [1])) * 2**22
    images = ImageSet(many, np.zeros(len(many), np.int64), ("a",))
    huge = Preprocessing(size=(2**12, 2**12), mean=(0, 0, 0), std=(1, 1, 1))
    with pytest.raises(DataError, match=r"196608\.0 GiB"):
        images.load(huge)


# Fingerprints


def test_fingerprint_of_pixels_depends_on_content_only() -> None:
    base = numbered([0, 1, 2])
    assert (
        base.fingerprint()
        == ImageSet(base.images, base.labels, base.classes, "other name").fingerprint()
    )
    strided = np.asarray(base.images)[::-1].copy()[::-1]
    assert base.fingerprint() == ImageSet(strided, base.labels, base.classes).fingerprint()
    changed = np.asarray(base.images).copy()
    changed[2, 1, 1, 0] ^= 1
    others = [
        ImageSet(changed, base.labels, base.classes),
        ImageSet(np.asarray(base.images).reshape(3, 4, 1, 1), base.labels, base.classes),
        ImageSet(base.images, labels(0, 1, 1), base.classes),
        ImageSet(base.images, base.labels, ("ant", "bee", "cow")),
        base.take([1, 0, 2]),
    ]
    assert len({images.fingerprint() for images in (base, *others)}) == 6


def test_fingerprint_of_pixels_is_the_same_everywhere() -> None:
    assert (
        numbered([0, 1, 2]).fingerprint()
        == "69534df48c7d0570c111dd90141d968aa3b783edbfc7e5399c4720760c8c7bf7"
    )


def test_fingerprint_of_files_moves_with_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def here(root: Path) -> str:
        return ImageSet(
            (root / "a/000.png", root / "b/000.png"), labels(0, 1), ("a", "b")
        ).fingerprint()

    photo_files(tmp_path / "one/a", [1])
    photo_files(tmp_path / "one/b", [2])
    shutil.copytree(tmp_path / "one", tmp_path / "elsewhere/two")
    first = here(tmp_path / "one")
    assert first == here(tmp_path / "elsewhere/two")
    monkeypatch.chdir(tmp_path)
    assert first == here(Path("one"))
    (tmp_path / "one/b/000.png").write_bytes(b"longer or shorter")
    assert first != here(tmp_path / "one")
    (tmp_path / "one/b/000.png").unlink()
    assert first != here(tmp_path / "one")  # reading it raises, or leaves it out
