"""Features of any system, from NumPy files.

A version is one ``.npz`` file with the arrays ``queries`` [N, d] and ``gallery`` [M, d] (and ``projection`` [d, m], if
they are short forms), or two ``.npy`` files, one for each. All versions embed the same images in the same order.

Labels are one ``.npz`` file with the arrays ``query_labels`` [N] and ``gallery_labels`` [M], or two ``.npy`` files.
They are integers, or strings, which are then the names of the classes.

Stored vectors with their classes, all that may be left of an old system, are one ``.npz`` file with the arrays
``vectors`` [N, d] and ``classes`` [N], names. Nothing is ever unpickled.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import DataError, InputError
from fixstar.evaluation.cross_test import VersionFeatures

__all__ = ["LabelFile", "read_features", "read_labelled_vectors", "read_labels"]

Array = NDArray[Any]
Labels = NDArray[np.int64]

_GIVE_LABELS = ". Say what the images show: --labels FILE.npz or --labels QUERY_LABELS.npy,GALLERY_LABELS.npy"


class LabelFile(NamedTuple):
    """The classes of the queries [N] and of the gallery [M], and the name that each number stands for."""

    queries: Labels
    gallery: Labels
    classes: dict[int, str]


def read_features(name: str, files: str) -> VersionFeatures:
    """One version, from ``FILE.npz`` or ``QUERIES.npy,GALLERY.npy``; refused if it is no matrix of finite numbers."""
    arrays = _read(files, ("queries", "gallery"), optional=("projection",))
    for which, array in arrays.items():
        _require_features(array, f"{which} of version {name!r} ({files})")
    return VersionFeatures(name, arrays["queries"], arrays["gallery"], arrays.get("projection"))


def read_labelled_vectors(file: str) -> tuple[NDArray[np.float32], Labels, tuple[str, ...]]:
    """Stored vectors [N, d], the class number of each [N], and the names of the classes."""
    if not file.endswith(".npz"):
        raise InputError(f"{file!r} is not an .npz file; save np.savez(FILE, vectors=..., classes=...)")
    arrays = _read(file, ("vectors", "classes"))
    vectors, names = arrays["vectors"], arrays["classes"]
    _require_features(vectors, f"vectors ({file})")
    if names.shape != (len(vectors),) or names.dtype.kind not in "iuU":
        raise DataError(
            f"classes ({file}) are one name for each of {len(vectors)} vectors, got {names.dtype} of {names.shape}"
        )
    classes, labels = np.unique(names.astype(str), return_inverse=True)
    return vectors.astype(np.float32), labels.astype(np.int64), tuple(classes.tolist())


def _require_features(array: Array, where: str) -> None:
    if array.dtype.kind not in "fiu" or array.ndim != 2 or 0 in array.shape:
        raise DataError(
            f"{where}: features are a matrix of real numbers [images, components], not empty; "
            f"got {array.dtype} of shape {array.shape}"
        )
    if wrong := np.flatnonzero(~np.isfinite(array).all(axis=1)).tolist():
        raise DataError(
            f"{where}: {len(wrong)} of {len(array)} rows hold NaN or infinity, the first is row {wrong[0]}. "
            "Embed those images again, or leave them out of every version"
        )


def read_labels(files: str) -> LabelFile:
    """The labels, from ``FILE.npz`` or ``QUERY_LABELS.npy,GALLERY_LABELS.npy``."""
    arrays = _read(files, ("query_labels", "gallery_labels"), others=True, remedy=_GIVE_LABELS)
    pair = [arrays["query_labels"], arrays["gallery_labels"]]
    for array, which in zip(pair, ("query", "gallery"), strict=True):
        if array.ndim != 1 or array.dtype.kind not in "iuU" or not len(array):
            raise DataError(
                f"{which} labels ({files}) are one integer or string an image, not empty; "
                f"got {array.dtype} of shape {array.shape}"
            )
    if any(array.dtype.kind == "U" for array in pair):
        names, numbers = np.unique(np.concatenate([array.astype(str) for array in pair]), return_inverse=True)
        pair = [numbers[: len(pair[0])], numbers[len(pair[0]) :]]
        classes = dict(enumerate(names.tolist()))
    else:
        classes = {}
    queries, gallery = (array.astype(np.int64) for array in pair)
    return LabelFile(queries, gallery, classes)


def _read(
    files: str, names: Sequence[str], optional: Sequence[str] = (), others: bool = False, remedy: str = ""
) -> dict[str, Array]:
    """The named arrays of one .npz file, or of as many .npy files with commas between."""
    if files.endswith(".npz"):
        arrays = _load(Path(files))
        if not isinstance(arrays, dict):
            raise DataError(f"{files} holds one bare array; save it with np.savez, or call it .npy")
        missing = [name for name in names if name not in arrays]
        odd = [name for name in arrays if name not in (*names, *optional)]
        if missing or (odd and not others and set(odd) - {"query_labels", "gallery_labels"}):
            raise DataError(f"{files} holds {', '.join(arrays) or 'nothing'}; it needs {' and '.join(names)}{remedy}")
        return {name: arrays[name] for name in (*names, *optional) if name in arrays}
    paths = files.split(",")
    if len(paths) != len(names) or not all(path.endswith(".npy") for path in paths):
        wanted = ",".join(f"{name.upper()}.npy" for name in names)
        raise InputError(f"{files!r} is neither one FILE.npz nor {wanted}")
    loaded = {name: _load(Path(path)) for name, path in zip(names, paths, strict=True)}
    found = {name: array for name, array in loaded.items() if not isinstance(array, dict)}
    if len(found) < len(loaded):
        raise DataError(f"{files}: a .npy file holds one array, and one of these is an .npz file by its content")
    return found


def _load(path: Path) -> Array | dict[str, Array]:
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.lib.npyio.NpzFile):
                with content:
                    return dict(content)
            array: Array = content
            return array
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        if "pickle" in str(error):
            raise DataError(
                f"{path} holds Python objects, or is no NumPy file; objects are never unpickled. Save plain numbers: "
                "np.save(path, np.asarray(features, dtype=np.float32))"
            ) from error
        raise DataError(f"{path} is damaged, or no NumPy file: {error}") from error
