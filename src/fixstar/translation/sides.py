"""The two sides of a bridge: vectors of one model each, with ids and labels.

They come from a matrix, a file, a vector store, or from the model itself, which then embeds images or texts. Vectors of
both sides are paired by their ids; where a side has none, row by row.
"""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import DataError, InputError, NextStep, UnknownNameError, plural
from fixstar.gallery.transfer import BATCH, open_vectors
from fixstar.gallery.vector_files import VectorSource
from fixstar.progress import progress_bar

if TYPE_CHECKING:
    from fixstar.images import Preprocessing
    from fixstar.models import Encoder

Vectors = NDArray[np.float32]
Indices = NDArray[np.int64]
Side = ArrayLike | str | Path | VectorSource
"""Vectors [N, width], or the address of vectors or of a model."""
Labels = Sequence[Any] | NDArray[Any] | Mapping[str, Any] | str | Path
"""One per row of the old side, by id, or a CSV file of id and label."""

_FILES = (".npy", ".npz", ".parquet", ".faiss", ".index")
_LABEL = "label"  # the field of a payload
_IMAGENET = {"mean": "0.485,0.456,0.406", "std": "0.229,0.224,0.225"}
_OWN_PREPARATION = ("hf:", "open_clip:", "st:")  # models that say how their images are prepared
_PARAMETERS = ("size", "mean", "std", "fit", "crop_fraction", "interpolation", "output")
_EMBED_BATCH = 64


class Embedded(NamedTuple):
    """Vectors of one model: unit rows, their ids, and the labels that are known. ``counted``: ids are row numbers."""

    name: str
    ids: list[str]
    vectors: Vectors
    labels: dict[str, str]
    counted: bool


def read_side(
    side: Side,
    name: str,
    *,
    images: str | Path | None = None,
    sample: int = 0,
    seed: int = 0,
    progress: bool = False,
) -> Embedded:
    """One side. A model embeds up to ``sample`` of the ``images``, or texts; ``name`` is for a matrix without one."""
    if isinstance(side, (str, Path)):
        place = str(side).partition("?")[0]
        if "://" not in place and not place.endswith(_FILES):
            return _embedded(str(side), images=images, sample=sample, seed=seed, progress=progress)
        return _from_source(open_vectors(side), Path(place).stem, progress)
    if hasattr(side, "blocks"):
        return _from_source(side, name, progress)  # type: ignore[arg-type]
    vectors = unit_rows(np.asarray(side), name)
    ids = [str(row) for row in range(len(vectors))]
    return Embedded(name, ids, vectors, labels={}, counted=True)


def read_queries(queries: Side, of: Embedded | None, ids: Sequence[str] | None = None) -> Embedded:
    """Queries by the model that made the items ``of``: as wide as these. ``ids`` name rows that have no id."""
    found = read_side(queries, "queries")
    if of is not None and found.vectors.shape[1] != of.vectors.shape[1]:
        raise InputError(
            f"queries of {of.name} have {plural(found.vectors.shape[1], 'component')}, its stored vectors "
            f"{of.vectors.shape[1]}: another model made them. Embed queries and items with the same model"
        )
    if not found.counted or ids is None:
        return found
    if len(ids) != len(found.ids):
        raise InputError(
            f"{found.name}: {plural(len(found.ids), 'query')} without ids, and {plural(len(ids), 'name')} for them; "
            "each needs one, in the same order"
        )
    return found._replace(ids=list(ids), counted=False)


def unit_rows(array: NDArray[Any], where: str) -> Vectors:
    """A matrix of unit vectors; other lengths are divided out."""
    if array.dtype.kind not in "fiu" or array.ndim != 2 or 0 in array.shape:
        raise DataError(
            f"{where}: vectors are a matrix [items, components] of numbers, not empty; got {array.dtype} {array.shape}"
        )
    lengths = np.linalg.norm(array.astype(np.float64), axis=1)
    wrong = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if len(wrong):
        raise DataError(
            f"{where}: row {wrong[0]} of the vectors is zero, NaN or infinite; leave that item out of both sides"
        )
    rows: Vectors = (array / lengths[:, None]).astype(np.float32)
    return rows


def _from_source(source: VectorSource, name: str, progress: bool) -> Embedded:
    count = len(source.ids)
    if not count:
        raise DataError(f"{source.name} holds no vectors")
    if len(set(source.ids)) < count:
        raise DataError(f"{source.name} has an id twice; ids must be distinct")
    parts = []
    labels: dict[str, str] = {}
    with progress_bar(f"reading {name}", count, "vectors", show=progress) as advance:
        for ids, vectors, payloads in source.blocks(BATCH):
            parts.append(np.asarray(vectors, np.float32))
            labels |= _known_labels(
                zip(ids, (payload.get(_LABEL) for payload in payloads), strict=True)
            )
            advance(len(ids))
    vectors = unit_rows(np.concatenate(parts), source.name)
    counted = source.ids[0].endswith("/0") and source.ids[-1].endswith(f"/{count - 1}")
    if not counted:
        return Embedded(
            name=name, ids=list(source.ids), vectors=vectors, labels=labels, counted=False
        )
    by_row = {item.rpartition("/")[2]: label for item, label in labels.items()}
    return Embedded(
        name=name,
        ids=[str(row) for row in range(count)],
        vectors=vectors,
        labels=by_row,
        counted=True,
    )


def _known_labels(given: Any) -> dict[str, str]:
    """Labels as text, by id; an empty cell of a table or an array is not a class."""
    found = {}
    for item, label in given:
        unknown = (
            label is None or label in ("", b"") or (isinstance(label, float) and math.isnan(label))
        )
        if not unknown:
            found[str(item)] = str(label)
    return found


# --- a model embeds images or texts


class _Original(NamedTuple):
    id: str
    content: Path | str
    label: str | None


def _embedded(
    text: str, images: str | Path | None, sample: int, seed: int, progress: bool
) -> Embedded:
    """Up to ``sample`` originals, the same for every model, as a model embeds them; unreadable ones are left out."""
    if images is None:
        raise InputError(
            f"{text} is a model: give images or texts for it to embed",
            NextStep("repeat", {"images": ...}, "a folder of photos, or a file of texts"),
        )
    encoder = open_model(text)
    kind = encoder.reads
    name = Path(text.partition("?")[0]).stem
    if kind == "texts":
        listed = _listed_texts(Path(images))
    else:
        listed = _listed_images(Path(images))
    if len(listed) > sample:
        drawn = np.random.default_rng(seed).permutation(len(listed))[:sample]
        listed = [listed[row] for row in sorted(drawn.tolist())]
    parts = []
    with progress_bar(f"embedding with {name}", len(listed), kind, show=progress) as advance:
        for start in range(0, len(listed), _EMBED_BATCH):
            batch = [one.content for one in listed[start : start + _EMBED_BATCH]]
            parts.append(encoder.encode(batch, form="short", bad="skip"))
            advance(len(batch))
    vectors = np.concatenate(parts)
    readable = np.flatnonzero(~np.isnan(vectors).any(axis=1))
    if not len(readable):
        raise DataError(f"none of the {len(listed):,} {kind} of {images} can be read")
    kept = [listed[row] for row in readable.tolist()]
    ids = [one.id for one in kept]
    labels = _known_labels((one.id, one.label) for one in kept)
    return Embedded(
        name=name, ids=ids, vectors=unit_rows(vectors[readable], name), labels=labels, counted=False
    )


def _listed_texts(source: Path) -> list[_Original]:
    """The texts of a file with a field ``text``, or of a folder. What is broken is left out, with a warning."""
    from fixstar.data.texts import text_rows

    broken: list[DataError] = []
    rows = text_rows(source, on_bad=broken.append)
    if broken:
        warnings.warn(f"{plural(len(broken), 'text')} left out, such as {broken[0]}", stacklevel=2)
    return [_Original(row.id, row.text, row.fields.get(_LABEL)) for row in rows]


def _listed_images(source: Path) -> list[_Original]:
    """The images of a folder, labelled by its subfolders, or of a CSV list with a column ``path``."""
    if source.is_dir():
        return _images_below(source)
    if source.is_file() and source.suffix.lower() == ".csv":
        return _images_of_list(source)
    raise InputError(
        f"{source} is not a folder of images or a list of them (.csv with a column path)"
    )


def _images_below(folder: Path) -> list[_Original]:
    from fixstar.data.formats import below, list_images, warn_skipped

    paths, others = list_images(folder)
    warn_skipped(folder, others)
    if not paths:
        raise DataError(f"{folder} holds no images")
    found = []
    for path in paths:
        parts = below(folder, path)
        label = parts[0] if len(parts) > 1 else None
        found.append(_Original("/".join(parts), path, label))
    return found


def _images_of_list(source: Path) -> list[_Original]:
    found = []
    try:
        with source.open(newline="", encoding="utf-8-sig") as file:
            for row in csv.DictReader(file):
                path = row.get("path")
                if not path:
                    raise DataError(
                        f"{source}: every row of a list of images needs a path; got {row}"
                    )
                found.append(
                    _Original(row.get("id") or path, source.parent / path, row.get(_LABEL))
                )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{source} cannot be read as a list of images: {error}") from error
    if not found:
        raise DataError(f"{source} lists no images")
    if len({image.id for image in found}) < len(found):
        raise DataError(
            f"{source} has an id twice; ids must be distinct. Without a column id, the path is the id"
        )
    return found


def open_model(text: str) -> Encoder:
    """The encoder of a saved version's folder, or of ``MODEL?size=224&mean=0.5,0.5,0.5&std=0.5,0.5,0.5&output=NAME``.

    ``fit``, ``crop_fraction`` and ``interpolation`` are understood too. The mean and std of ImageNet are the default.
    """
    from fixstar.models import Encoder
    from fixstar.models.backbones import PRETRAINED

    place, _, query = text.partition("?")
    if (Path(place) / "card.json").is_file():
        return Encoder.load(place)
    given = dict(part.split("=", 1) for part in query.split("&") if "=" in part)
    unknown = [name for name in given if name not in _PARAMETERS]
    if unknown:
        raise UnknownNameError("parameter of a model's address", unknown[0], _PARAMETERS)
    if "size" not in given and place not in PRETRAINED and not place.startswith(_OWN_PREPARATION):
        raise InputError(
            f"{text} does not say how its images are prepared: write {place}?size=224, with mean and std unless they "
            "are ImageNet's"
        )
    output = given.pop("output", None)
    if "size" in given:
        prepared = _preparation(text, {**_IMAGENET, **given})
    else:
        prepared = None
    return Encoder.wrap(place, prepared, output=output)


def _preparation(text: str, given: dict[str, str]) -> Preprocessing:
    from fixstar.images import Preprocessing

    try:
        sides = [int(side) for side in given.pop("size").lower().split("x")]
        mean = _numbers(given.pop("mean"))
        std = _numbers(given.pop("std"))
        share = float(given.pop("crop_fraction", 1.0))
        return Preprocessing(
            size=(sides[0], sides[-1]),
            channels=len(mean),
            mean=mean,
            std=std,
            crop_fraction=share,
            **given,  # type: ignore[arg-type]
        )
    except ValueError as error:
        raise InputError(f"{text}: {error}") from error


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


# --- what is known about the items


def read_labels(labels: Labels | None, old: Embedded, new: Embedded) -> dict[str, str]:
    """Labels by id: those given, else those that came with the vectors or the images."""
    if labels is None:
        return {**new.labels, **old.labels}
    if isinstance(labels, (str, Path)):
        return _known_labels(_csv_rows(Path(labels), ("id", _LABEL)))
    if isinstance(labels, Mapping):
        return _known_labels(labels.items())
    if len(labels) != len(old.ids):
        raise InputError(
            f"labels are one for each of {len(old.ids):,} old vectors; got {len(labels):,}"
        )
    return _known_labels(zip(old.ids, labels, strict=True))


def _csv_rows(path: Path, heads: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Two columns, with or without their heads."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            for line, row in enumerate(csv.reader(file), start=1):
                if len(row) != 2 or not all(row):
                    raise DataError(
                        f"{path}, line {line}: two columns are needed, {' and '.join(heads)}; got {row}"
                    )
                if line > 1 or tuple(row) != heads:
                    yield row[0], row[1]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path} cannot be read as a list of {' and '.join(heads)}: {error}"
        ) from error


def common_rows(old: Embedded, new: Embedded) -> tuple[Indices, Indices] | None:
    """The rows of both sides that are of one item; None if there are none."""
    if old.counted != new.counted:
        return None
    if old.counted and len(old.ids) != len(new.ids):
        return None
    place = {item: row for row, item in enumerate(new.ids)}
    both = [(row, place[item]) for row, item in enumerate(old.ids) if item in place]
    if not both:
        return None
    rows = np.array(both, np.int64)
    return rows[:, 0], rows[:, 1]
