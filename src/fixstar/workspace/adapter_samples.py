"""What adapters are fitted on and judged by: vectors of the same images by two models, from a gallery or a file."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import DataError, InputError
from fixstar.evaluation import nearest
from fixstar.gallery import Gallery, Item
from fixstar.geometry import short_basis, unit
from fixstar.lifecycle import LocalEmbedder
from fixstar.lifecycle.adapter_gate import BothSpaces
from fixstar.lifecycle.adapter_pairs import ClassPairs, paired_by_class
from fixstar.lifecycle.catalogue import LABEL
from fixstar.progress import progress_bar

if TYPE_CHECKING:
    from fixstar.workspace.workspace import Workspace

__all__ = ["Sample", "class_pairs", "gallery_sample", "pairs_of_file", "unlike"]

_BATCH = 256
_SAME = 1e-6  # below 1: the cosine of two vectors that are one, up to rounding
_ROUNDING = 0.01  # of a unit vector: how far a full feature, even in half precision, may lie outside its version's span


class Sample(NamedTuple):
    """Vectors by both models, and how many items of the gallery they could have been drawn from."""

    both: BothSpaces
    of: int


def gallery_sample(
    space: Workspace,
    version: str,
    queries_by: str,
    most: int,
    seed: int,
    progress: bool = True,
    labelled: bool = False,
) -> Sample:
    """Items of a gallery version whose images can be found, drawn at random, as another version embeds them.

    ``labelled`` draws only from those with a label. Images that cannot be read are left out.
    """
    find = space.images.find
    items, of = _drawn(
        space, version, lambda i: (_label(i) is not None or not labelled) and find(i) is not None, most, seed
    )
    embedder = LocalEmbedder(space.serving.encoder(queries_by))
    made = [np.empty((0, _width(space, queries_by)), np.float32)]
    with progress_bar(f"embedding with {queries_by}", len(items), "items", show=progress and bool(items)) as advance:
        for start in range(0, len(items), _BATCH):
            paths = [find(item) or Path("gone") for item in items[start : start + _BATCH]]
            made.append(embedder.one(paths).vectors)
            advance(len(paths))
    new = np.concatenate(made)
    old = _vectors(items, _width(space, version))
    read = np.flatnonzero(~np.isnan(new).any(axis=1))
    return Sample(BothSpaces(old, new, [_label(item) for item in items]).take(read), of)


def pairs_of_file(path: Path, gallery: Gallery, version: str, queries_by: str) -> BothSpaces:
    """The arrays ``old`` and ``new`` of FILE.npz, row by row of the same image, and ``labels`` if it has them.

    ``old`` are vectors of ``version``, ``new`` of ``queries_by``: as the gallery stores them, or full features.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}; pairs are FILE.npz with arrays old and new")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read as FILE.npz: {error}") from error
    if missing := {"old", "new"} - set(arrays):
        there = ", ".join(arrays) or "none"
        raise DataError(f"{path} lacks {' and '.join(sorted(missing))}; it takes arrays old and new, and has: {there}")
    old, new = (
        _as_stored(_checked(arrays[key], key, path), f"{path}: {key}", gallery, name)
        for key, name in (("old", version), ("new", queries_by))
    )
    labels: list[str | None] = [None] * len(old)
    if "labels" in arrays:
        labels = [_known(label) for label in arrays["labels"].tolist()]
    if not len(old) == len(new) == len(labels):
        raise DataError(f"{path}: {len(old)} rows of old, {len(new)} of new, {len(labels)} labels; row i is one image")
    return BothSpaces(old, new, labels)


def _checked(array: NDArray[Any], name: str, path: Path) -> NDArray[np.float32]:
    """A matrix of unit vectors; other lengths are divided out, as an import does."""
    if array.dtype.kind not in "fiu" or array.ndim != 2 or 0 in array.shape:
        raise DataError(f"{path}: {name} is a matrix [images, components] of numbers; got {array.dtype} {array.shape}")
    lengths = np.linalg.norm(array.astype(np.float64), axis=1)
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        row = int(np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))[0])
        raise DataError(f"{path}: row {row} of {name} is zero, NaN or infinite; leave that image out of both")
    rows: NDArray[np.float32] = unit(array.astype(np.float64)).astype(np.float32)
    return rows


def _as_stored(rows: NDArray[np.float32], where: str, gallery: Gallery, version: str) -> NDArray[np.float32]:
    """Unit vectors as the gallery stores them. A full feature is z = Q u, u its short form, so u = Q^T z exactly."""
    stored = next(one for one in gallery.versions() if one.name == version)
    seen = rows.shape[1]
    if seen == stored.width:
        return rows
    Q = short_basis(gallery.projection(version))  # [full width, width]
    if Q is None or seen != len(Q):
        full = "" if Q is None else f" in the short form (encode(images, form='short')) and {len(Q)} in full"
        raise DataError(f"{where} has {seen} components, vectors of {version} have {stored.width}{full}")
    short = rows.astype(np.float64) @ Q
    outside = np.linalg.norm(rows - short @ Q.T, axis=1)
    if (far := np.flatnonzero(outside > _ROUNDING)).size:
        raise DataError(
            f"{where} has {seen} components as full features of {version} have, but row {far[0]} is none: "
            f"{outside[far[0]]:.2f} of its length lies where {version} has no features. Make them with {version}"
        )
    u: NDArray[np.float32] = unit(short).astype(np.float32)
    return u


def class_pairs(space: Workspace, version: str, queries_by: str, most: int, seed: int) -> ClassPairs:
    """Class means of two gallery versions that have no image in common, by the labels of their items."""
    old, _ = _drawn(space, version, lambda item: _label(item) is not None, most, seed)
    new, _ = _drawn(space, queries_by, lambda item: _label(item) is not None, most, seed)
    number = {name: i for i, name in enumerate(sorted({_named(item) for item in [*old, *new]}))}
    if not old or not new:
        raise InputError(
            f"no image of {version}'s items can be found, and for class means {len(old):,} of them have a label and "
            f"{len(new):,} items by {queries_by} do. Index labelled images with {queries_by} (fixstar index), give "
            f"pairs (--pairs FILE.npz), or store paths of images in {version}'s payloads (field image)"
        )
    X, Y = _vectors(new, _width(space, queries_by)), _vectors(old, _width(space, version))
    return paired_by_class(X, [number[_named(item)] for item in new], Y, [number[_named(item)] for item in old])


def unlike(both: BothSpaces, fitted: BothSpaces) -> BothSpaces:
    """Without images that are among the fitted ones, told by their old vectors."""
    if not len(both) or not len(fitted):
        return both
    closest = nearest(both.old, fitted.old)[0][:, 0]
    cosines = np.einsum("ij,ij->i", both.old, fitted.old[closest], dtype=np.float64)
    return both.take(np.flatnonzero(cosines < 1 - _SAME))


def _drawn(
    space: Workspace, version: str, wanted: Callable[[Item], bool], most: int, seed: int
) -> tuple[list[Item], int]:
    """Up to ``most`` of the wanted items, each as likely as any other (reservoir sampling), and how many there are."""
    rng, kept, seen = np.random.default_rng(seed), list[Item](), 0
    for item in space.gallery.iterate(version):
        if not wanted(item):
            continue
        seen += 1
        if len(kept) < most:
            kept.append(item)
        elif (place := int(rng.integers(seen))) < most:
            kept[place] = item
    return kept, seen


def _label(item: Item) -> str | None:
    return _known(item.payload.get(LABEL))


def _known(label: object) -> str | None:
    """A label by its name; an empty cell of a table or an array is none, and images without one are no class."""
    unknown = label is None or label in ("", b"") or (isinstance(label, float) and math.isnan(label))
    return None if unknown else str(label)


def _named(item: Item) -> str:
    return str(item.payload[LABEL])


def _vectors(items: list[Item], width: int) -> NDArray[np.float32]:
    return np.stack([item.vector for item in items]) if items else np.empty((0, width), np.float32)


def _width(space: Workspace, version: str) -> int:
    return next(one.width for one in space.gallery.versions() if one.name == version)
