"""Which images are compared: seeded verification pairs, and a seeded split into gallery and queries.

A seed fixes them on one NumPy version; a saved file fixes them for ever. Both hold row numbers of one image set, so
every version is measured on the same images.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from fixstar.durable import replace_file
from fixstar.errors import DataError, InputError

__all__ = ["Pairs", "Split", "draw_pairs", "gallery_query_split", "sample_pairs"]

Labels = NDArray[np.integer[Any]]
Rows = NDArray[np.int64]
T = TypeVar("T", bound="Pairs | Split")

_CONTENTS = {  # the arrays of a file: what they are, and the option of fixstar evaluate that takes them
    frozenset({"first", "second", "same"}): ("pairs", "--pairs-file"),
    frozenset({"gallery", "queries"}): ("a split into gallery and queries", "--split-file"),
}


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of images for 1:1 verification: row numbers ``first`` [N] and ``second`` [N], and ``same`` [N] bool.

    The first image of a pair is the query, the second one the gallery's (section 5.1 of CoReS). A pair of one class is
    **genuine**, a pair of two classes an **impostor**.
    """

    first: Rows
    second: Rows
    same: NDArray[np.bool_]

    def __post_init__(self) -> None:
        _require_rows(self.first, "first")
        _require_rows(self.second, "second")
        if self.same.ndim != 1 or self.same.dtype != np.bool_:
            raise InputError(f"same is one bool a pair, got {self.same.dtype} of shape {self.same.shape}")
        if not len(self.first) == len(self.second) == len(self.same):
            seen = f"{len(self.first)} first, {len(self.second)} second and {len(self.same)} same"
            raise InputError(f"pairs need as many first as second images as answers; got {seen}")

    def __len__(self) -> int:
        return len(self.same)

    def save(self, path: str | Path) -> None:
        """Write the pairs to one .npz file, which is whole or absent whatever happens."""
        _save(Path(path), {"first": self.first, "second": self.second, "same": self.same})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what ``save`` wrote; ``DataError`` if the file is missing, damaged or something else."""
        return _load(cls, Path(path), "sample_pairs")


@dataclass(frozen=True, eq=False)
class Split:
    """Images divided for 1:N search: row numbers of the ``gallery`` [G] and of the ``queries`` [Q], ascending."""

    gallery: Rows
    queries: Rows

    def __post_init__(self) -> None:
        _require_rows(self.gallery, "gallery")
        _require_rows(self.queries, "queries")
        rows = np.concatenate([self.gallery, self.queries])
        if len(np.unique(rows)) < len(rows):
            raise InputError("an image stands once, in the gallery or among the queries; this split repeats one")

    def save(self, path: str | Path) -> None:
        """Write the split to one .npz file, which is whole or absent whatever happens."""
        _save(Path(path), {"gallery": self.gallery, "queries": self.queries})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what ``save`` wrote; ``DataError`` if the file is missing, damaged or something else."""
        return _load(cls, Path(path), "gallery_query_split")


def sample_pairs(labels: Labels, genuine: int = 3000, impostor: int = 3000, seed: int = 0) -> Pairs:
    """Draw pairs of images, the genuine ones first; CoReS takes 3,000 + 3,000 from the CIFAR-10 test images.

    Uniform over all pairs of the kind. No image is paired with itself, and no two images are paired twice, in either
    order. Which of the two comes first is drawn too.

    >>> labels = np.array([4, 4, 4, 9])
    >>> pairs = sample_pairs(labels, genuine=2, impostor=3)
    >>> np.array_equal(labels[pairs.first] == labels[pairs.second], pairs.same), pairs.same.sum()
    (True, np.int64(2))
    """
    classes = _classes(labels)
    order = np.argsort(classes, kind="stable")
    position = np.arange(len(order))
    end = np.searchsorted(classes[order], classes[order], side="right")  # where the class of each position stops
    rng = np.random.default_rng(seed)
    drawn = [
        # The later images of the same class, and all images of later classes: every pair has one number.
        _draw_pairs(position + 1, end, genuine, "genuine", rng),
        _draw_pairs(end, np.full_like(end, len(order)), impostor, "impostor", rng),
    ]
    both = order[np.concatenate(drawn, axis=1)]
    turned = rng.random(both.shape[1]) < 0.5
    first, second = np.where(turned, both[::-1], both)
    return Pairs(first, second, classes[first] == classes[second])


def draw_pairs(labels: Labels, genuine: int = 3000, impostor: int = 3000, seed: int = 0) -> Pairs:
    """Draw two images at a time until both kinds are full, in the order of drawing, as the code of CoReS and CL2R does.

    Most draws are impostors, so these are full first and the end of the list is genuine pairs alone: cut into folds as
    it stands, it gives figures to compare with theirs. An image may be paired with itself, and a pair may come twice.

    >>> draw_pairs(np.arange(100) % 10, genuine=40, impostor=40).same[-20:].all()
    np.True_
    """
    classes = _classes(labels)
    if min(genuine, impostor) < 1:
        raise InputError(f"ask for at least one pair of each kind, got {genuine} genuine and {impostor} impostors")
    if len(np.unique(classes)) < 2:
        raise InputError("impostor pairs need images of two classes; these are all of one")
    rng, room, parts = np.random.default_rng(seed), {True: genuine, False: impostor}, []
    while any(room.values()):
        drawn = rng.integers(len(classes), size=(10 * (genuine + impostor), 2))
        same = classes[drawn[:, 0]] == classes[drawn[:, 1]]
        kept = np.where(same, np.cumsum(same) <= room[True], np.cumsum(~same) <= room[False])
        room = {kind: count - int((same[kept] == kind).sum()) for kind, count in room.items()}
        parts.append(drawn[kept])
    first, second = np.concatenate(parts).T
    return Pairs(first, second, classes[first] == classes[second])


def gallery_query_split(labels: Labels, share: float = 0.5, seed: int = 0) -> Split:
    """Put ``share`` of the images of every class into the gallery, and the others among the queries.

    Rounded within each class, but a class of two images or more is in both. A class of one image is in the gallery
    only: as a query it could not be found.

    >>> split = gallery_query_split(np.array([7, 7, 7, 7, 8]), share=0.75)
    >>> len(split.gallery), len(split.queries), 4 in split.gallery
    (4, 1, True)
    """
    classes = _classes(labels)
    if not 0 < share < 1:
        raise InputError(f"share is the gallery's share of each class, between 0 and 1; got {share:g}")
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(classes))
    order = shuffled[np.argsort(classes[shuffled], kind="stable")]  # class by class, in random order within it
    _, starts, counts = np.unique(classes[order], return_index=True, return_counts=True)
    wanted = np.clip(np.floor(share * counts + 0.5), 1, np.maximum(counts - 1, 1))
    place = np.arange(len(order)) - np.repeat(starts, counts)
    chosen = place < np.repeat(wanted, counts)
    if chosen.all():
        raise InputError(f"all {counts.size} classes have one image: there is nothing left to query with")
    return Split(np.sort(order[chosen]), np.sort(order[~chosen]))


def _draw_pairs(start: Rows, stop: Rows, count: int, kind: str, rng: np.random.Generator) -> Rows:
    """[2, count]: pairs (p, q) with start[p] <= q < stop[p], all different, all equally likely."""
    if count < 1:
        raise InputError(f"ask for at least one {kind} pair, got {count}")
    ends = np.cumsum(stop - start)
    if count > ends[-1]:
        raise InputError(
            f"these labels allow {ends[-1]} {kind} pairs, {count} were asked for. Ask for fewer, or pass more images"
        )
    numbers = rng.choice(int(ends[-1]), size=count, replace=False)
    p = np.searchsorted(ends, numbers, side="right")
    return np.stack([p, stop[p] - (ends[p] - numbers)])


def _classes(labels: Labels) -> Labels:
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
        raise InputError(f"labels are one integer an image, not empty; got {array.dtype} of shape {array.shape}")
    return array


def _require_rows(rows: Rows, name: str) -> None:
    if rows.ndim != 1 or rows.dtype != np.int64 or not len(rows):
        raise InputError(f"{name} holds row numbers, int64 and not empty; got {rows.dtype} of shape {rows.shape}")
    if rows.min() < 0:
        raise InputError(f"{name} holds row numbers, from 0 upwards; got {rows.min()}")


def _save(path: Path, arrays: Mapping[str, Any]) -> None:
    def write(partial: Path) -> None:
        with partial.open("wb") as file:  # an open file: NumPy adds .npz to bare names
            np.savez(file, **arrays)

    replace_file(path, write)


def _load(kind: type[T], path: Path, maker: str) -> T:
    expected = frozenset(kind.__dataclass_fields__)
    again = f"{maker}(...).save({path.name!r})"
    remedy = (
        f"If it held {_CONTENTS[expected][0]}, delete it: fixstar evaluate makes it again, and so does {again}"
        if path.exists()
        else f"Make it with {again}"
    )
    try:
        with path.open("rb") as file:
            arrays = _read_arrays(file)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}. {remedy}") from error
    except (ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is damaged, or no .npz file: {error}. {remedy}") from error
    if arrays.keys() != expected:
        raise DataError(_other_content(path, expected, frozenset(arrays)))
    try:
        return kind(**arrays)
    except InputError as error:
        raise DataError(f"{path} is damaged: {error}. {remedy}") from error


def _other_content(path: Path, expected: frozenset[str], seen: frozenset[str]) -> str:
    """What is said of a good file of something else, which nobody should be told to replace."""
    wanted, option = _CONTENTS[expected]
    held, its_option = _CONTENTS.get(seen, (", ".join(sorted(seen)) or "nothing", ""))
    whole = f"{path} holds {held}, not {wanted}. Name another file with {option}; one that is missing is made"
    protocol = " --protocol verification" if its_option == "--pairs-file" else ""
    return f"{whole}. This one goes with{protocol} {its_option} {path}" if its_option else whole


def _read_arrays(file: IO[bytes]) -> dict[str, Any]:
    content = np.load(file, allow_pickle=False)
    if not isinstance(content, np.lib.npyio.NpzFile):
        raise ValueError("it holds one bare array")
    with content:
        return dict(content)
