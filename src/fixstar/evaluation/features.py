"""The feature vectors of a version, their comparison between versions, and reading them from NumPy files.

As in a real upgrade, stored galleries do not change. The query is carried into the space of the older version. Only a
version with ``adapt`` (FAN) changes the stored vectors instead.

**Files.** Each is one ``.npz`` file, or one ``.npy`` file per array. A version: ``queries`` [N, d] and ``gallery``
[M, d] (and ``projection`` [d, m] for short forms). Labels: ``query_labels`` [N] and ``gallery_labels`` [M], integers
or strings. Stored vectors with their classes (possibly all that is left of an old system): ``vectors`` [N, d] and
``classes`` [N], ``.npz`` only. All versions embed the same images in the same order. Nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar import geometry
from fixstar.durable import (
    DAMAGED_ARCHIVE,
    open_regular_file,
    replace_file,
    require_plausible_archive,
)
from fixstar.errors import DataError, InputError, NextStep
from fixstar.texts import Role

if TYPE_CHECKING:
    from fixstar.data import ImageSet
    from fixstar.models import Encoder

Array = NDArray[Any]
Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]

_SHORTEST = 1e-12  # ``geometry.unit`` does not normalise shorter rows


@dataclass(frozen=True, eq=False)
class VersionFeatures:
    """The feature vectors of the query and gallery images, as one version embedded them.

    With ``projection`` P [d, m] they are short forms (see ``fixstar.geometry``), [images, min(d, m)], else plain
    features. ``adapt`` (FAN) maps vectors stored under the predecessor into this version's space. ``parts`` are the
    widths of the simplices in the full feature: a version whose first parts are those of another one has grown from it.
    With ``shared_components`` it is compared with versions of another width over their common first components, as in
    BCT. ``asked`` holds other queries [N, s] for some galleries, by the name of their version: the queries of a
    translation (``fixstar.translation.score``).
    """

    name: str
    queries: Floats
    gallery: Floats
    projection: Floats | None = None
    adapt: Callable[[Floats], Floats] | None = None
    parts: tuple[int, ...] = ()
    shared_components: bool = False
    asked: Mapping[str, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for side in ("queries", "gallery"):
            _check_vectors(getattr(self, side), f"{side} of version {self.name!r}")
        if self.queries.shape[1] != self.gallery.shape[1]:
            seen = f"queries {self.queries.shape}, gallery {self.gallery.shape}"
            raise InputError(
                f"version {self.name!r} needs queries and gallery of the same width; got {seen}"
            )
        if self.projection is not None and not (
            self.projection.ndim == 2 and np.isfinite(self.projection).all()
        ):
            raise InputError(
                f"version {self.name!r}: a projection is a matrix [d, m] of finite numbers"
            )
        if self.projection is not None and min(self.projection.shape) != self.queries.shape[1]:
            raise InputError(
                f"version {self.name!r}: a projection {self.projection.shape} has short forms of "
                f"{min(self.projection.shape)} components, got {self.queries.shape[1]}. Pass plain features without it"
            )
        if self.parts and sum(self.parts) != self.width:
            raise InputError(
                f"version {self.name!r}: parts {self.parts} do not add up to the width {self.width}"
            )

    @property
    def width(self) -> int:
        """The number of components of the full feature, d."""
        if self.projection is None:
            return int(self.queries.shape[1])
        return int(self.projection.shape[0])

    @cached_property
    def basis(self) -> Floats | None:
        """The basis Q [d, s] of the short form; None for plain features."""
        return geometry.short_basis(self.projection)

    def comparable_with(self, other: VersionFeatures) -> bool:
        """Whether cosines with another version are exact: same width, one grown from the other, or queries for it."""
        if other.name in self.asked:
            return True
        shared = min(len(self.parts), len(other.parts))
        return self.width == other.width or (
            shared > 0 and self.parts[:shared] == other.parts[:shared]
        )

    def carry(self, queries: Floats, to: VersionFeatures) -> Floats:
        """Queries [n, s] of this version in the space in which version ``to`` is stored."""
        if to is self:
            return queries
        if not (self.shared_components or self.comparable_with(to)):
            raise incomparable_widths([to, self])
        return geometry.carry(queries, self.basis, to.basis, to.width)

    def queries_in(self, to: VersionFeatures) -> Floats:
        """The unit queries in the space of another version, [N, s]; shorter than 1 if they do not fully lie in it."""
        if to.name in self.asked:
            return self.asked[to.name]
        return self.carry(
            geometry.unit(np.asarray(self.queries).astype(np.float32, copy=False)), to
        )

    def searching(self, to: VersionFeatures) -> Floats:
        """The queries, of any length, that search the gallery of a version, [N, s]."""
        if to.name in self.asked:
            return self.asked[to.name]
        return self.carry(self.queries, to)

    def take(self, queries: NDArray[Any], gallery: NDArray[Any] | None = None) -> VersionFeatures:
        """A subset of the queries, and optionally of the gallery."""
        stored = self.gallery if gallery is None else self.gallery[gallery]
        asked = {name: other[queries] for name, other in self.asked.items()}
        return replace(self, queries=self.queries[queries], gallery=stored, asked=asked)

    def adapted(self, vectors: Floats) -> Floats:
        """Vectors stored under the predecessor, moved into this version's space; unchanged without ``adapt``."""
        if self.adapt is None:
            return vectors
        found = np.asarray(self.adapt(vectors))
        if found.shape != (len(vectors), self.width):
            raise InputError(
                f"adapt of version {self.name!r} turned {vectors.shape} into {found.shape}; "
                f"it must return one vector of {self.width} components per input vector"
            )
        return found


def _check_vectors(vectors: Array, name: str) -> None:
    """Raise unless the vectors are a matrix of finite numbers without zero rows, which have no direction."""
    if vectors.dtype.kind not in "fiu" or vectors.ndim != 2:
        raise InputError(
            f"{name}: features are a matrix of real numbers [images, components]; "
            f"got {vectors.dtype} of shape {vectors.shape}"
        )
    if not vectors.size:
        return  # a search reports it
    # NaN propagates to both
    lowest = vectors.min(axis=1)
    highest = vectors.max(axis=1)
    for wrong, what in (
        (~(np.isfinite(lowest) & np.isfinite(highest)), "contain NaN or infinity"),
        (np.maximum(highest, -lowest) < _SHORTEST, "are zero and have no direction"),
    ):
        if wrong.any():
            raise InputError(
                f"{name}: {wrong.sum()} of {len(vectors)} rows {what}, the first is row {wrong.argmax()}. "
                "Embed those images again, or leave them out of every version"
            )


def version_features(
    name: str,
    encoder: Encoder,
    queries: ImageSet,
    gallery: ImageSet,
    progress: bool = False,
    made: Callable[[Encoder, Any], Any] | None = None,
) -> VersionFeatures:
    """A version's short forms of images; ``made`` gives the features of a frozen backbone, if it is frozen.

    Its card says whether it is compared with versions of another width over the first components.
    """
    sets: list[tuple[ImageSet, Role]] = [(queries, "query")]
    if queries is not gallery or encoder.reads == "texts":
        sets.append((gallery, "item"))
    vectors = []
    for part, role in sets:
        shown = part.images if made is None else made(encoder, part.images)
        vectors.append(encoder.encode(shown, form="short", progress=progress, role=role))
    adapt = None if encoder.adapter is None else encoder.adapter.adapt
    projection = encoder.projection_matrix()
    parts = encoder.classifier.parts
    return VersionFeatures(
        name=name,
        queries=vectors[0],
        gallery=vectors[-1],
        projection=projection,
        adapt=adapt,
        parts=parts,
        shared_components=bool(encoder.about.get("method", {}).get("shared_components")),
    )


def incomparable_widths(versions: Sequence[VersionFeatures]) -> InputError:
    """The error for versions whose full features differ in width."""
    seen = ", ".join(f"{version.name} {version.width}" for version in versions)
    return InputError(
        f"versions of different feature width cannot be compared ({seen}). "
        "Versions with shared_components=True are compared over the first components that both have"
    )


def stored_over_time(versions: Iterable[VersionFeatures]) -> Iterator[list[VersionFeatures]]:
    """After each version: all versions so far, with their galleries as stored at that time (``adapt`` moves them)."""
    stored: list[VersionFeatures] = []
    for version in versions:
        if version.adapt is not None:
            stored = [_moved(older, version) for older in stored]
        stored = [*stored, version]
        yield stored


def stored_galleries(versions: Sequence[VersionFeatures]) -> list[VersionFeatures]:
    """All versions, with their galleries as they are stored when the last one searches."""
    if not versions:
        raise InputError("a mixed gallery needs at least one version")
    *_, stored = stored_over_time(versions)
    return stored


def _moved(older: VersionFeatures, version: VersionFeatures) -> VersionFeatures:
    if short := [v.name for v in (older, version) if v.projection is not None]:
        raise InputError(
            f"adapt of version {version.name!r} moves plain features, but {', '.join(short)} came as short forms under "
            "a projection. Pass the full features, without projection"
        )
    return replace(version, name=older.name, gallery=version.adapted(older.gallery), adapt=None)


def check_images(
    versions: Sequence[VersionFeatures], query_labels: Labels, gallery_labels: Labels
) -> None:
    """Raise unless all versions embedded the same labelled images."""
    for labels, side in ((query_labels, "query"), (gallery_labels, "gallery")):
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
            raise InputError(
                f"{side} labels are one integer per image, not empty; got {labels.dtype} {labels.shape}"
            )
    expected = len(query_labels), len(gallery_labels)
    for version in versions:
        seen = len(version.queries), len(version.gallery)
        if seen != expected:
            raise InputError(
                f"version {version.name!r} has {seen[0]} queries and {seen[1]} gallery images for {expected[0]} and "
                f"{expected[1]} labels; every version must embed the same images"
            )


class LabelFile(NamedTuple):
    """The class numbers of the queries [N] and of the gallery [M], and the class names, if any."""

    queries: NDArray[np.int64]
    gallery: NDArray[np.int64]
    classes: dict[int, str]


def read_features(name: str, files: str, shared_components: bool = False) -> VersionFeatures:
    """One version, from ``FILE.npz`` or ``QUERIES.npy,GALLERY.npy``: finite numbers only."""
    arrays = _read(files, ("queries", "gallery"), ("projection", "query_labels", "gallery_labels"))
    try:
        return VersionFeatures(
            name,
            arrays["queries"],
            arrays["gallery"],
            arrays.get("projection"),
            shared_components=shared_components,
        )
    except InputError as error:
        raise DataError(f"{files}: {error}") from error


def read_labels(files: str) -> LabelFile:
    """The labels, from ``FILE.npz`` or ``QUERY_LABELS.npy,GALLERY_LABELS.npy``."""
    arrays = _read(files, ("query_labels", "gallery_labels"), optional=None)
    pair = [arrays["query_labels"], arrays["gallery_labels"]]
    for array, side in zip(pair, ("query", "gallery"), strict=True):
        if array.ndim != 1 or array.dtype.kind not in "iuU" or not len(array):
            raise DataError(
                f"{side} labels ({files}) are one integer or string per image, not empty; "
                f"got {array.dtype} of shape {array.shape}"
            )
    classes = {}
    if any(array.dtype.kind == "U" for array in pair):
        names, numbers = np.unique(
            np.concatenate([array.astype(str) for array in pair]), return_inverse=True
        )
        pair = [numbers[: len(pair[0])], numbers[len(pair[0]) :]]
        classes = dict(enumerate(names.tolist()))
    queries, gallery = (array.astype(np.int64) for array in pair)
    return LabelFile(queries, gallery, classes)


def read_labelled_vectors(
    file: str,
) -> tuple[NDArray[np.float32], NDArray[np.int64], tuple[str, ...]]:
    """Stored vectors [N, d], the class number of each [N], and the class names."""
    if not file.endswith(".npz"):
        raise InputError(
            f"{file!r} is not an .npz file; save np.savez(FILE, vectors=..., classes=...)"
        )
    arrays = _read(file, ("vectors", "classes"))
    vectors = arrays["vectors"]
    names = arrays["classes"]
    try:
        _check_vectors(vectors, "vectors")
    except InputError as error:
        raise DataError(f"{file}: {error}") from error
    if names.shape != (len(vectors),) or names.dtype.kind not in "iuU":
        raise DataError(
            f"classes ({file}) must be one name for each of the {len(vectors)} vectors, got {names.dtype} {names.shape}"
        )
    classes, labels = np.unique(names.astype(str), return_inverse=True)
    return vectors.astype(np.float32), labels.astype(np.int64), tuple(classes.tolist())


def load_arrays(path: Path) -> Array | dict[str, Array]:
    """The array of an .npy file, or the arrays of an .npz file by name; ``DataError`` if it cannot be read."""
    try:
        with open_regular_file(path) as file:
            require_plausible_archive(path)
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.lib.npyio.NpzFile):
                with content:
                    return dict(content)
            array: Array = content
            return array
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except DAMAGED_ARCHIVE as error:
        if "pickle" in str(error):
            raise DataError(
                f"{path} holds Python objects, or is not a NumPy file; objects are never unpickled. Save plain "
                "numbers: np.save(path, np.asarray(features, dtype=np.float32))"
            ) from error
        raise DataError(f"{path} is damaged or not a NumPy file: {error}") from error


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays to one .npz file, atomically."""

    def write(partial: Path) -> None:
        with partial.open("wb") as file:  # an open file, as NumPy adds .npz to names
            np.savez(file, **arrays)

    replace_file(path, write)


def _read(
    files: str, names: Sequence[str], optional: Sequence[str] | None = ()
) -> dict[str, Array]:
    """The named arrays of one .npz file, which may hold ``optional`` ones (None: any), or of one .npy file each."""
    if files.endswith(".npz"):
        arrays = load_arrays(Path(files))
        if not isinstance(arrays, dict):
            raise DataError(
                f"{files} holds one bare array; save it with np.savez, or rename it to .npy"
            )
        unknown = set() if optional is None else arrays.keys() - {*names, *optional}
        if unknown or not arrays.keys() >= set(names):
            steps = []
            if "query_labels" in names:
                steps.append(
                    NextStep("repeat", {"labels": ...}, "if the labels are in another file")
                )
            raise DataError(
                f"{files} holds {', '.join(arrays) or 'nothing'}; it needs {' and '.join(names)}",
                *steps,
            )
        return arrays
    paths = files.split(",")
    if len(paths) != len(names) or not all(path.endswith(".npy") for path in paths):
        expected = ",".join(f"{name.upper()}.npy" for name in names)
        raise InputError(f"{files!r} is neither one FILE.npz nor {expected}")
    loaded = {name: load_arrays(Path(path)) for name, path in zip(names, paths, strict=True)}
    found = {name: array for name, array in loaded.items() if not isinstance(array, dict)}
    if len(found) < len(loaded):
        raise DataError(
            f"{files}: an .npy file holds one array, but the content of one of these is an .npz file"
        )
    return found
