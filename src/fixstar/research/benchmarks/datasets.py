"""The datasets of the papers: where to get them, the expected layout of the data folder, and what is missing there."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.data import ImageSet
from fixstar.data.formats import (
    IMAGE_EXTENSIONS,
    OMNIGLOT_PARTS,
    check_split,
    cifar10,
    cifar100,
    class_folders,
    find_images,
    idx_images,
    image_folder,
    omniglot_folder,
)
from fixstar.errors import DataError, UnknownNameError, plural
from fixstar.evaluation import VerificationPairs

Loader = Callable[[Path, str], ImageSet]

_SHOWN = 5  # names that a message lists


@dataclass(frozen=True)
class DatasetFile:
    """A file (of ``size`` bytes) or folder (of ``classes``, or with ``images``) that must be there, or ``instead``."""

    path: str
    size: int | None = None
    classes: int | tuple[str, ...] | None = None
    images: bool = False
    instead: str = ""

    def missing(self, folder: Path) -> list[str]:
        """What is missing or wrong, in readable lines."""
        place = folder / self.path
        if self.instead and (folder / self.instead).exists():
            return []
        if self.classes is not None or self.images:
            if place.is_dir():
                return self._missing_images(place)
            return [f"{self.path}: no such folder"]
        if not place.is_file():
            return [f"{self.path}: no such file"]
        size = place.stat().st_size
        if self.size is not None and size != self.size:
            return [f"{self.path}: {size:,} bytes, expected {self.size:,}; copy the file again"]
        return []

    def _missing_images(self, place: Path) -> list[str]:
        if self.classes is None:
            if _has_image(place):
                return []
            return [f"{self.path}: no images inside"]
        if isinstance(self.classes, int):
            found = sum(_has_image(child) for child in class_folders(place))
            wrong = found != self.classes
            if wrong:
                return [
                    f"{self.path}: {found:,} class folders with images, expected {self.classes:,}"
                ]
            return []
        lacking = [name for name in self.classes if not _has_image(place / name)]
        if lacking:
            return [
                f"{self.path}: {len(lacking)} of {len(self.classes)} classes missing: {_first_of(lacking)}"
            ]
        return []


@dataclass(frozen=True)
class Dataset:
    """A dataset that the user downloads. ``layout`` describes the data folder."""

    name: str
    title: str
    about: str
    page: str
    url: str
    licence: str
    layout: str
    parts: tuple[DatasetFile, ...]
    load: Loader

    def check(self, folder: str | Path) -> list[str]:
        """What is missing in the data folder."""
        return [line for part in self.parts for line in part.missing(Path(folder))]

    def instructions(self) -> str:
        """Where to get it, and its layout in the data folder."""
        return f"{self.title}: {self.page}, {self.url} ({self.licence}). Expected layout:\n  {self.layout}"

    def require(self, folder: str | Path) -> None:
        """Raise if something is missing in the data folder, and say where to get it."""
        if missing := self.check(folder):
            lines = "\n  ".join(missing)
            raise DataError(
                f"{folder}: {self.title} is not complete:\n  {lines}\n{self.instructions()}"
            )

    def open(self, folder: str | Path, split: str) -> ImageSet:
        """The labelled images of a split, "train" or "test", after a check of the layout."""
        self.require(folder)
        return self.load(Path(folder), split)

    def protocol(self, folder: str | Path, queries: ImageSet, gallery: ImageSet) -> Protocol:
        """How its owners say that it is measured; nothing for most datasets."""
        make = _PROTOCOLS.get(self.name)
        if make is None:
            return Protocol()
        return make(Path(folder), queries, gallery)


def _has_image(folder: Path) -> bool:
    return any(
        path.suffix.lower() in IMAGE_EXTENSIONS and not path.name.startswith(".")
        for path in folder.rglob("*")
    )


def train_folder(path: str) -> Loader:
    """One folder of class folders, all for training."""

    def load(folder: Path, split: str) -> ImageSet:
        if split != "train":
            raise DataError(f"{folder / path}: no split {split!r}, all its images are for training")
        return image_folder(folder / path)

    return load


def divide_classes(images: ImageSet, count: int) -> tuple[ImageSet, ImageSet]:
    """The first ``count`` images of each class, and the others."""
    place = np.empty(len(images), np.int64)  # of each image in its class
    for label in range(len(images.classes)):
        rows = np.flatnonzero(images.labels == label)
        place[rows] = np.arange(len(rows))
    return images.take(place < count), images.take(place >= count)


def tinyimagenet(held_out: bool) -> Loader:
    """Every tenth class of Tiny-ImageNet, or the other 180: its classes are sorted by kind, its last 20 mostly food."""
    load = train_folder("tiny-imagenet-200/train")

    def part(folder: Path, split: str) -> ImageSet:
        images = load(folder, split)
        return images.of_classes(
            [name for i, name in enumerate(images.classes) if (i % 10 == 9) == held_out]
        )

    return part


def _imagenet(folder: Path, split: str) -> ImageSet:
    check_split(split)
    return image_folder(folder / "imagenet" / ("train" if split == "train" else "val"))


def imagenet_list(listed: bool) -> Loader:
    """The classes that imagenet/imagenet100.txt lists, or all the others."""

    def load(folder: Path, split: str) -> ImageSet:
        images = _imagenet(folder, split)
        lines = (folder / "imagenet" / "imagenet100.txt").read_text(encoding="utf-8").split()
        if listed:
            return images.of_classes(lines)
        return images.of_classes([name for name in images.classes if name not in set(lines)])

    return load


def imagenet32(folder: Path, split: str) -> ImageSet:
    """ImageNet at 32x32 in its NumPy batches; classes are "1" to "1000", as its labels are."""
    check_split(split)
    place = folder / "imagenet32"
    if split == "train":
        parts = [f"train_data_batch_{i}.npz" for i in range(1, 11)]
    else:
        parts = ["val_data.npz"]
    images = []
    labels = []
    for name in parts:
        with np.load(place / name, allow_pickle=False) as batch:
            planes = batch["data"]
            numbers = batch["labels"]
        if (
            planes.dtype != np.uint8
            or planes.shape[1:] != (3072,)
            or numbers.min() < 1
            or numbers.max() > 1000
        ):
            raise DataError(
                f"{place / name}: not ImageNet32: expected uint8 data [N, 3072] and labels 1 to 1000"
            )
        images.append(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels.append(numbers.astype(np.int64) - 1)
    classes = tuple(str(i) for i in range(1, 1001))
    return ImageSet(np.concatenate(images), np.concatenate(labels), classes, f"imagenet32 {split}")


def cub(first: int, last: int) -> Loader:
    """CUB's classes ``first`` to ``last``, counted from 1, in its official split into train and test."""

    def load(folder: Path, split: str) -> ImageSet:
        check_split(split)
        root = folder / "CUB_200_2011"
        images = image_folder(root / "images")
        names = dict(line.split() for line in (root / "images.txt").read_text().splitlines())
        training = dict(
            line.split() for line in (root / "train_test_split.txt").read_text().splitlines()
        )
        wanted = {
            root / "images" / name
            for i, name in names.items()
            if (training[i] == "1") == (split == "train")
        }
        assert isinstance(images.images, tuple), "image_folder names files"
        chosen = images.take(np.array([path in wanted for path in images.images]))
        return chosen.of_classes(images.classes[first - 1 : last])

    return load


# Faces, people, landmarks and exhibits. Their owners list images in text files, which damage must not make shorter.


def _table(
    file: Path, columns: int, separator: str | None = None, header: bool = False
) -> list[list[str]]:
    """The cells of a text file, line by line; a line with other than ``columns`` cells is reported."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as text ({error}); copy it again") from error
    rows = [
        (number, line.split(separator))
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if header:
        rows = rows[1:]
    for number, cells in rows:
        if len(cells) != columns:
            raise DataError(
                f"{file}: line {number} has {len(cells)} columns, expected {columns}; copy the file again"
            )
    if not rows:
        raise DataError(f"{file}: no lines; copy it again")
    return [cells for _, cells in rows]


def _first_of(names: Sequence[object]) -> str:
    """The first names of a list that may be long."""
    shown = [str(name) for name in names[:_SHOWN]]
    if len(names) > _SHOWN:
        shown.append("...")
    return ", ".join(shown)


def _listed_images(
    paths: Sequence[Path], labels: Sequence[str], source: Path, name: str
) -> ImageSet:
    """Images that a file lists, with the label of each; all must be there. Classes are sorted by name."""
    lacking = [path for path in paths if not path.is_file()]
    if lacking:
        raise DataError(
            f"{source} lists {plural(len(lacking), 'missing image')}: {_first_of(lacking)}"
        )
    classes, numbers = np.unique(np.array(labels), return_inverse=True)
    return ImageSet(
        tuple(paths), numbers.astype(np.int64), tuple(str(one) for one in classes), name
    )


def _lfw_image(folder: Path, person: str, number: str, source: Path) -> Path:
    if not number.isdecimal():
        raise DataError(
            f"{source}: {number!r} is not the number of an image of {person}; copy the file again"
        )
    return folder / "lfw" / person / f"{person}_{int(number):04}.jpg"


def lfw_pairs(folder: Path) -> tuple[list[tuple[Path, Path]], NDArray[np.bool_]]:
    """The images of LFW's 6,000 pairs, in the order of pairs.txt, and which pairs are of one person."""
    file = next(
        place for place in (folder / "pairs.txt", folder / "lfw" / "pairs.txt") if place.is_file()
    )
    lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines or len(lines[0]) != 2 or not all(cell.isdecimal() for cell in lines[0]):
        raise DataError(
            f"{file}: the first line must be the number of folds and of pairs, such as 10 300"
        )
    folds, each = (int(cell) for cell in lines[0])
    if len(lines) - 1 != 2 * folds * each:
        raise DataError(
            f"{file}: {len(lines) - 1:,} pairs, its first line says {2 * folds * each:,}; copy it again"
        )
    pairs = []
    same = []
    for number, cells in enumerate(lines[1:], start=2):
        if len(cells) not in (3, 4):
            raise DataError(
                f"{file}: line {number} has {len(cells)} columns, expected 3 or 4; copy the file again"
            )
        one = cells[0]
        other = cells[0] if len(cells) == 3 else cells[2]
        pairs.append(
            (_lfw_image(folder, one, cells[1], file), _lfw_image(folder, other, cells[-1], file))
        )
        same.append(len(cells) == 3)
    return pairs, np.array(same)


def lfw(folder: Path, split: str) -> ImageSet:
    """The images that occur in LFW's pairs, labelled by person: all are for testing."""
    if split != "test":
        raise DataError(f"{folder / 'lfw'}: no split {split!r}, all its images are for testing")
    pairs, _ = lfw_pairs(folder)
    paths = sorted({path for pair in pairs for path in pair})
    return _listed_images(paths, [path.parent.name for path in paths], folder / "pairs.txt", "lfw")


_MARKET = {"train": "bounding_box_train", "test": "bounding_box_test", "query": "query"}
_MARKET_NAME = re.compile(r"(-1|[0-9]{4})_c([1-6])s[0-9]_[0-9]{6}_[0-9]{2}\.jpg")


def market1501(folder: Path, split: str) -> ImageSet:
    """Market-1501's bounding boxes, labelled by person. Junk (-1) is left out; the distractors (0000) are a class."""
    if split not in _MARKET:
        raise UnknownNameError("split of Market-1501", split, _MARKET)
    place = folder / "Market-1501-v15.09.15" / _MARKET[split]
    paths = find_images(place)
    if wrong := [path.name for path in paths if not _MARKET_NAME.fullmatch(path.name)]:
        raise DataError(f"{place}: {wrong[0]} is not named like 0002_c1s1_000451_03.jpg")
    kept = [path for path in paths if not path.name.startswith("-1")]
    if not kept:
        raise DataError(f"{place}: no images of people")
    return _listed_images(kept, [path.name[:4] for path in kept], place, f"market1501 {split}")


def market_cameras(images: ImageSet) -> NDArray[np.int64]:
    """The camera of each image, from its name."""
    assert isinstance(images.images, tuple), "Market-1501 names files"
    return np.array([int(path.name.split("_c")[1][0]) for path in images.images])


def celeba(folder: Path, split: str) -> ImageSet:
    """CelebA's aligned faces, labelled by person, in its official partition."""
    check_split(split)
    root = folder / "celeba"
    people = dict(_table(root / "identity_CelebA.txt", 2))
    parts = dict(_table(root / "list_eval_partition.txt", 2))
    if missing := sorted(people.keys() ^ parts.keys()):
        raise DataError(
            f"{root}: identity_CelebA.txt and list_eval_partition.txt differ in {missing[0]}; copy them again"
        )
    wanted = {"train": "0", "test": "2"}[split]
    names = [name for name, part in parts.items() if part == wanted]
    paths = [root / "img_align_celeba" / name for name in names]
    return _listed_images(
        paths, [people[name] for name in names], root / "identity_CelebA.txt", f"celeba {split}"
    )


def _landmark_image(folder: Path, part: str, name: str) -> Path:
    return folder / "gldv2" / part / Path(*name[:3]) / f"{name}.jpg"


def gldv2(folder: Path, split: str) -> ImageSet:
    """GLDv2: the cleaned training images by landmark; "index" and "test" are searched by ``gldv2_solution``."""
    if split == "train":
        file = folder / "gldv2" / "train_clean.csv"
        rows = [
            (landmark, name)
            for landmark, names in _table(file, 2, ",", header=True)
            for name in names.split()
        ]
        paths = [_landmark_image(folder, "train", name) for _, name in rows]
        return _listed_images(paths, [landmark for landmark, _ in rows], file, "gldv2 train")
    if split == "index":
        index = find_images(folder / "gldv2" / "index")
        return ImageSet(tuple(index), np.zeros(len(index), np.int64), ("index",), "gldv2 index")
    if split != "test":
        raise UnknownNameError("split of GLDv2", split, ("train", "index", "test"))
    paths = [_landmark_image(folder, "test", name) for name in gldv2_solution(folder)]
    return _listed_images(
        paths,
        ["query"] * len(paths),
        folder / "gldv2" / "retrieval_solution_v2.1.csv",
        "gldv2 test",
    )


def gldv2_solution(folder: Path) -> dict[str, list[str]]:
    """The index images that each query should find, for all queries that count."""
    rows = _table(folder / "gldv2" / "retrieval_solution_v2.1.csv", 3, ",", header=True)
    return {name: found.split() for name, found, usage in rows if usage.strip() != "Ignored"}


def met(folder: Path, split: str) -> ImageSet:
    """The Met's exhibits: studio photographs as "train", visitors' photographs of them as "test"."""
    check_split(split)
    listed = "testset.json"
    key = "MET_id"
    if split == "train":
        listed = "mini_MET_database.json"
        key = "id"
    file = folder / "met" / "ground_truth" / listed
    try:
        entries = [
            (entry["path"], str(entry[key]))
            for entry in json.loads(file.read_text())
            if key in entry
        ]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{file}: not a list of objects with path and {key} ({error}); copy it again"
        ) from error
    if not entries:
        raise DataError(f"{file}: no object has {key}; copy it again")
    paths = [folder / "met" / path for path, _ in entries]
    return _listed_images(paths, [exhibit for _, exhibit in entries], file, f"met {split}")


def ijbc(folder: Path, split: str) -> ImageSet:
    """IJB-C's faces in the order of ijbc_face_tid_mid.txt, labelled by template."""
    if split != "test":
        raise DataError(f"{folder / 'IJBC'}: no split {split!r}, all its images are for testing")
    file = folder / "IJBC" / "meta" / "ijbc_face_tid_mid.txt"
    rows = _table(file, 3)
    paths = [folder / "IJBC" / "loose_crop" / name for name, _, _ in rows]
    return _listed_images(paths, [template for _, template, _ in rows], file, "ijbc")


# What evaluation needs beside images and labels.


@dataclass(frozen=True, eq=False)
class Protocol:
    """How a dataset's owners say that it is measured; all parts are optional.

    ``searches`` are rows of templates (queries, their people, gallery, their people), each gallery searched apart;
    ``media`` are what the frames of a template come from.
    """

    pairs: VerificationPairs | None = None
    cameras: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    relevant: Sequence[NDArray[np.int64]] | None = None
    media: NDArray[np.int64] | None = None
    searches: Sequence[tuple[NDArray[np.int64], ...]] = ()


def lfw_protocol(folder: Path, queries: ImageSet, _: ImageSet) -> Protocol:
    """LFW's 6,000 pairs as rows."""
    pairs, same = lfw_pairs(folder)
    row = {path: i for i, path in enumerate(queries.images)}
    first, second = (np.array([row[pair[side]] for pair in pairs], np.int64) for side in (0, 1))
    return Protocol(VerificationPairs(first, second, same))


def gldv2_protocol(folder: Path, queries: ImageSet, gallery: ImageSet) -> Protocol:
    """The index rows of each query's landmarks."""
    assert isinstance(queries.images, tuple), "GLDv2 names files"
    assert isinstance(gallery.images, tuple), "GLDv2 names files"
    row = {path.stem: i for i, path in enumerate(gallery.images)}
    solution = gldv2_solution(folder)
    if unknown := next(
        (name for found in solution.values() for name in found if name not in row), None
    ):
        raise DataError(
            f"{folder / 'gldv2' / 'index'}: {unknown}.jpg is not there, and a query should find it"
        )
    wanted = [
        np.array([row[name] for name in solution[path.stem]], np.int64) for path in queries.images
    ]
    return Protocol(relevant=wanted)


def ijbc_protocol(folder: Path, queries: ImageSet, _: ImageSet) -> Protocol:
    """IJB-C: 1:1 pairs of templates, and 1:N with its two galleries."""
    meta = folder / "IJBC" / "meta"
    row = {template: i for i, template in enumerate(queries.classes)}

    def rows_of(file: Path, templates: Sequence[str]) -> NDArray[np.int64]:
        if unknown := next((one for one in templates if one not in row), None):
            raise DataError(f"{file}: template {unknown} has no face in ijbc_face_tid_mid.txt")
        return np.array([row[one] for one in templates], np.int64)

    file = meta / "ijbc_template_pair_label.txt"
    first, second, same = zip(*_table(file, 3), strict=True)
    pairs = VerificationPairs(rows_of(file, first), rows_of(file, second), np.array(same) == "1")

    def people(file: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Templates as rows and whose they are; the file has a line per face."""
        cells = [
            line.split(",")[:2]
            for line in file.read_text(encoding="utf-8").splitlines()[1:]
            if line.strip()
        ]
        if not cells or not all(
            len(line) == 2 and all(cell.strip().isdecimal() for cell in line) for line in cells
        ):
            raise DataError(
                f"{file}: expected TEMPLATE_ID,SUBJECT_ID,... on each line; copy it again"
            )
        owners = {template.strip(): int(person) for template, person in cells}
        return rows_of(file, list(owners)), np.array(list(owners.values()), np.int64)

    probes = people(meta / "ijbc_1N_probe_mixed.csv")
    searches = [(*probes, *people(meta / f"ijbc_1N_gallery_{name}.csv")) for name in ("G1", "G2")]
    media = np.unique(
        [medium for _, _, medium in _table(meta / "ijbc_face_tid_mid.txt", 3)], return_inverse=True
    )[1]
    return Protocol(pairs, media=media, searches=searches)


def omniglot(folder: Path, split: str) -> ImageSet:
    """Omniglot's background characters as "train", those of its evaluation set as "test"."""
    check_split(split)
    return omniglot_folder(folder / "omniglot" / OMNIGLOT_PARTS[split])


_CONTENT = tomllib.loads(
    files("fixstar.research.benchmarks").joinpath("datasets.toml").read_text(encoding="utf-8")
)
_LISTS: dict[str, tuple[str, ...]] = {
    name: tuple(classes) for name, classes in _CONTENT.pop("class_lists").items()
}
TINYIMAGENET20 = _LISTS["tinyimagenet20"]
IMAGENET20 = _LISTS["imagenet20"]

_LOADERS: dict[str, Loader] = {
    "cifar100": cifar100,
    "cifar100rest": lambda folder, split: divide_classes(cifar100(folder, split), 300)[
        1
    ],  # what CIFAR-100R leaves
    "cifar10": cifar10,
    "imagenet32": imagenet32,
    "tinyimagenet200": train_folder("tiny-imagenet-200/train"),
    "tinyimagenet180": tinyimagenet(held_out=False),
    "tinyimagenet-tenth": tinyimagenet(held_out=True),
    "tinyimagenet20": lambda folder, split: _imagenet(folder, split).of_classes(TINYIMAGENET20),
    "imagenet20": lambda folder, split: _imagenet(folder, split).of_classes(IMAGENET20),
    "imagenet100": imagenet_list(True),
    "imagenet900": imagenet_list(False),
    "cub180": cub(1, 180),
    "cub20": cub(181, 200),
    "casia-webface": train_folder("casia-webface"),
    "imdbface": train_folder("imdb-face"),
    "celeba": celeba,
    "celeba200": train_folder("celeba-identities"),
    "gldv2": gldv2,
    "ijbc": ijbc,
    "lfw": lfw,
    "market1501": market1501,
    "met": met,
    "mnist": lambda folder, split: idx_images(folder / "mnist", split),
    "omniglot": omniglot,
}
_PROTOCOLS: dict[str, Callable[[Path, ImageSet, ImageSet], Protocol]] = {
    "gldv2": gldv2_protocol,
    "ijbc": ijbc_protocol,
    "lfw": lfw_protocol,
    "market1501": lambda _, queries, gallery: Protocol(
        cameras=(market_cameras(queries), market_cameras(gallery))
    ),
}


def _part(classes: int | str | None = None, **fields: Any) -> DatasetFile:
    return DatasetFile(**fields, classes=_LISTS[classes] if isinstance(classes, str) else classes)


DATASETS: dict[str, Dataset] = {
    name: Dataset(
        name,
        **{**entry, "parts": tuple(_part(**part) for part in entry["parts"])},
        load=_LOADERS[name],
    )
    for name, entry in _CONTENT.items()
}
"""The datasets of ``datasets.toml`` by name."""


def dataset(name: str) -> Dataset:
    """The dataset of that name.

    >>> dataset("cifar100").url
    'https://www.cs.toronto.edu/~kriz/cifar.html'
    """
    if name not in DATASETS:
        raise UnknownNameError("dataset", name, DATASETS)
    return DATASETS[name]
