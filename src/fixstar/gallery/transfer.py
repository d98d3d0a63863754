"""Moving vectors: between galleries, from and to files, from collections of others. Memory stays flat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import DataError, GalleryError, GalleryUnavailableError, InputError
from fixstar.gallery.arguments import checked_ids, payload_texts
from fixstar.gallery.parquet_files import ParquetFile, write_parquet
from fixstar.gallery.store import Gallery, Item, VersionSpace
from fixstar.gallery.vector_files import VectorFile, VectorSource, write_vector_file
from fixstar.progress import Advance

__all__ = ["copy_gallery", "export_version", "import_version", "made_or_same", "open_vectors"]

BATCH = 1024
_PARQUET = ".parquet"
_ROUNDING = 5e-7  # of a length in float32
_TINY = 1e-150  # the squares of what is smaller are too small to tell a length by


def copy_gallery(source: Gallery, target: Gallery, progress: Advance | None = None) -> int:
    """Copy all versions and items; how many items. What the target has already is replaced, so it can be repeated.

    Equal scores come in the order of ids afterwards, because that is the order of copying.
    """
    copied = 0
    for space in source.versions():
        _make_version(target, space.name, space.width, source.projection(space.name), copied=True)
        for batch in _batches(source.iterate(space.name)):
            vectors = np.stack([item.vector for item in batch])
            target.upsert(space.name, [item.id for item in batch], vectors, [item.payload for item in batch])
            copied += len(batch)
            if progress is not None:
                progress(len(batch))
    with suppress(GalleryUnavailableError):  # all is stored and safe, whoever holds the log
        target.flush()
    return copied


def export_version(
    gallery: Gallery, version: str, path: str | Path, progress: Advance | None = None, origin: str | None = None
) -> int:
    """Write the items of one version to FILE.parquet, FILE.npz, or FILE.npy and FILE.jsonl; how many.

    ``origin`` says what made the vectors; FILE.parquet and FILE.npz keep it.
    """
    if (space := _space(gallery, version)) is None:
        gallery.projection(version)  # says which versions there are
        raise GalleryError(f"version {version!r} came into the gallery this moment; export it again")
    items = _counted(gallery.iterate(version), progress)
    write = write_parquet if Path(path).suffix == _PARQUET else write_vector_file
    return write(Path(path), space.width, items, gallery.projection(version), origin)


def import_version(
    gallery: Gallery,
    version: str,
    source: str | Path | VectorSource,
    progress: Advance | None = None,
    id_column: str = "id",
    vector_column: str = "vector",
    take_over: bool = False,
) -> int:
    """Store the vectors of a file, or of another ``VectorSource``, of any length and width, as a version; how many.

    Everything is checked before anything is stored. A version that exists must have the same width, so that an
    interrupted import can be repeated. An item has one vector: ids that other versions hold are refused, unless
    ``take_over`` moves them to this one. The columns are those of a Parquet file.
    """
    opened = open_vectors(source, id_column, vector_column) if isinstance(source, (str, Path)) else source
    checked_ids(opened.ids)
    _check(opened)
    if not take_over:
        _refuse_held(gallery, version, opened)
    _make_version(gallery, version, opened.width, opened.projection)
    stored = 0
    for ids, vectors, payloads in opened.blocks(BATCH):
        gallery.upsert(version, ids, _unit_rows(vectors), payloads)
        stored += len(ids)
        if progress is not None:
            progress(len(ids))
    with suppress(GalleryUnavailableError):  # likewise
        gallery.flush()
    return stored


def open_vectors(path: str | Path, id_column: str = "id", vector_column: str = "vector") -> VectorFile | ParquetFile:
    """A file of vectors, by its ending; the columns are those of a Parquet file."""
    if Path(path).suffix == _PARQUET:
        return ParquetFile(path, id_column, vector_column)
    if (id_column, vector_column) != ("id", "vector"):
        raise InputError(
            f"{path} has no columns: id_column and vector_column (--id-column, --vector-column) are for FILE.parquet"
        )
    return VectorFile(path)


def _check(source: VectorSource) -> None:
    """Refuse vectors that have no direction, and payloads that are none: all that a gallery would refuse later."""
    start = 0
    for ids, vectors, payloads in source.blocks(BATCH):
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
        if wrong := np.flatnonzero(~(np.isfinite(lengths) & (lengths > _TINY))).tolist():
            raise DataError(
                f"{source.name}: row {start + wrong[0]} ({ids[wrong[0]]!r}) is zero, NaN or infinite; nothing was "
                "stored. Embed that image again, or leave it out"
            )
        if odd := [i for i, payload in enumerate(payloads) if not isinstance(payload, dict)]:
            raise DataError(f"{source.name}: the payload of row {start + odd[0]} is no object; nothing was stored")
        try:
            payload_texts(ids, len(vectors), payloads)
        except (GalleryError, RecursionError) as error:
            raise DataError(f"{source.name}: {error}; nothing was stored") from error
        start += len(ids)


def _unit_rows(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Vectors of length 1; those that have it are left as they are, so that copies are equal to the bit."""
    rows = vectors.astype(np.float32)
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    off = np.flatnonzero(np.abs(lengths - 1) > _ROUNDING)
    rows[off] = vectors[off] / lengths[off, None]
    return rows


def _refuse_held(gallery: Gallery, version: str, source: VectorSource) -> None:
    """Refuse ids of other versions' items: these would lose the vectors that they have."""
    held: dict[str, int] = {}
    example = ""
    for start in range(0, len(source.ids), BATCH):
        for item in gallery.get(source.ids[start : start + BATCH]).values():
            if item.version != version:
                held[item.version] = held.get(item.version, 0) + 1
                example = example or item.id
    if held:
        counted = ", ".join(f"{count:,} of {name}" for name, count in held.items())
        raise GalleryError(
            f"{source.name}: the gallery has items of these ids already ({counted}; {example!r} is one), and an item "
            "has one vector; nothing was stored. Give other ids, or replace their vectors by take_over (--take-over)"
        )


def _make_version(
    gallery: Gallery, name: str, width: int, projection: NDArray[np.float32] | None, copied: bool = False
) -> None:
    """Create a version, or see that the one of this name is the same."""
    if not made_or_same(gallery, name, width, projection, copied):
        raise GalleryError(
            f"the gallery has a version {name!r} of another kind: {_difference(gallery, name, width, projection)}. "
            "Versions never change: choose another name, or another gallery"
        )


def _difference(gallery: Gallery, name: str, width: int, projection: NDArray[np.float32] | None) -> str:
    """How a version's space differs from this one, in words."""
    there = next(space.width for space in gallery.versions() if space.name == name)
    if there != width:
        return f"its vectors have {there} numbers, these {width}"
    kept = gallery.projection(name)
    if kept is None or projection is None:
        kinds = ["full features" if matrix is None else "short forms" for matrix in (kept, projection)]
        return f"its vectors are {kinds[0]}, these {kinds[1]}"
    if kept.shape != projection.shape:
        return f"its short forms stand for features of {len(kept)} numbers, these for {len(projection)}"
    return "both hold short forms of the same width, under different projections: another model made them"


def made_or_same(
    gallery: Gallery, name: str, width: int, projection: NDArray[np.float32] | None, copied: bool = False
) -> bool:
    """Create a version where there is none of that name; whether the one there is now has this very space.

    Others may be about to create it too: who comes second finds it there, which is no fault.
    """
    if (known := _space(gallery, name)) is None:
        try:
            gallery.create_version(name, width, projection, copied)
            return True
        except GalleryError:
            if (known := _space(gallery, name)) is None:
                raise
    there = gallery.projection(name)
    same = there is projection if there is None or projection is None else np.array_equal(there, projection)
    return known.width == width and same


def _space(gallery: Gallery, name: str) -> VersionSpace | None:
    return next((space for space in gallery.versions() if space.name == name), None)


def _batches(items: Iterator[Item]) -> Iterator[list[Item]]:
    while batch := list(islice(items, BATCH)):
        yield batch


def _counted(items: Iterable[Item], progress: Advance | None) -> Iterator[Item]:
    for item in items:
        yield item
        if progress is not None:
            progress(1)
