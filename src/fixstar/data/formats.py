"""The layouts in which labelled images and texts are stored on disk, and ``open_images``, which recognises them."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from fixstar.data.image_set import ImageSet
from fixstar.data.texts import TEXT_EXTENSIONS, has_texts, labelled_texts
from fixstar.errors import DataError, ImageError, InputError, NextStep, UnknownNameError, plural
from fixstar.images.reading import READS_HEIC, upright_size

IMAGE_EXTENSIONS = frozenset(
    (
        *(".avif", ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".mpo"),
        *(".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"),
        *((".heic", ".heif") if READS_HEIC else ()),
    )
)
LABELS = (
    "top",
    "parent",
    "path",
)  # which parent folders give the label of an image: the first, the last, or all
OMNIGLOT_PARTS = {"train": "images_background", "test": "images_evaluation"}

_SHOWN = 10  # lines that an error lists
_OTHER_IMAGES = {  # unsupported image formats, and what to do about them
    **dict.fromkeys((".heic", ".heif"), "HEIC needs pillow-heif (the extra heic)"),
    ".svg": "a drawing without pixels; convert it to PNG",
    **dict.fromkeys(
        (".eps", ".jp2", ".jxl", ".psd"), "this format is not supported; convert it to PNG or JPEG"
    ),
    **dict.fromkeys(
        (".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".raf"), "a raw file; develop it to JPEG"
    ),
}
_SPLITS = ("test", "train", "val", "valid", "validation")
_ACCEPTED = (
    "labelled images: a folder with one folder per class, a list (.csv with the columns path and label), or the folder "
    "of CIFAR, idx or Omniglot files"
)
_FOLDER_LAYOUT = (
    "expected one folder per class with its images inside, such as {root}/shoes/0001.jpg"
)
_CIFAR_PIXELS = 3 * 32 * 32
_CIFAR10_BATCHES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
_IDX_IMAGES = re.compile(r"(?P<prefix>.*?)(?P<split>train|t10k|test)-images[-.]idx3-ubyte(\.gz)?")
_OMNIGLOT_CHARACTER = re.compile(r"character\d+")
_CHUNK = 1 << 24  # bytes


class _Layout(NamedTuple):
    description: str
    recognise: Callable[[Path], object]
    open: Callable[..., ImageSet]  # of path and split, and of the label folder if ``by_folder``
    by_folder: bool = False


def open_images(
    path: str | Path, split: str = "train", label: str | None = None, text: str | None = None
) -> ImageSet:
    """The labelled images or texts at ``path``, in any known layout; without splits there is only "train".

    ``text`` names the field of a file that holds the text, if it is not text.
    """
    root = Path(path)
    if root.is_file() and has_texts(root, text):
        return _unsplit(partial(labelled_texts, text=text, label=label))(root, split)
    if text is not None:
        raise InputError(
            f"{root} is not a file with a field {text!r}; give a .jsonl, .csv, .tsv or .parquet file"
        )
    if root.is_file() and root.suffix.lower() == ".csv":
        _refuse_label(root, label)
        return _unsplit(image_list)(root, split)
    if not root.is_dir():
        seen = "is a file, but not a list" if root.exists() else "does not exist"
        raise DataError(f"{root} {seen}; give {_ACCEPTED}")
    datasets = [name for name, layout in _DATASETS.items() if layout.recognise(root)]
    if len(datasets) > 1:
        raise DataError(
            f"{root}: more than one dataset ({', '.join(datasets)}); give the folder of the one you mean"
        )
    found = datasets or [name for name, layout in _GENERAL.items() if layout.recognise(root)]
    if not found and any(one.suffix.lower() in TEXT_EXTENSIONS for one in root.glob("*/**/*")):
        return _unsplit(partial(labelled_texts, label=label))(root, split)
    if not found:
        known = [layout.description for layout in (_DATASETS | _GENERAL).values()]
        folders = [f"{entry.name}/" for entry in root.iterdir() if entry.is_dir()]
        files = [entry.name for entry in root.iterdir() if not entry.is_dir()]
        seen_here = sorted([*folders, *files]) or ["nothing, it is empty"]
        raise DataError(
            f"{root}: no known layout of labelled images. Known:{_listed(known)}\nFound here:{_listed(seen_here)}"
        )
    layout = (_DATASETS | _GENERAL)[found[0]]
    if layout.by_folder:
        return layout.open(root, split, label)
    _refuse_label(root, label)
    return layout.open(root, split)


def open_images_within(folder: str | Path) -> ImageSet:
    """The same for a folder with untrusted content: refused if a link, or a path in a list, points outside of it."""
    root = Path(folder).absolute()
    outside = [
        Path(os.path.relpath(link, root)) for link in _links_out(root, os.path.realpath(root))
    ]
    if not outside:
        images = open_images(root)
        outside = [
            source
            for source in images.images
            if isinstance(source, Path) and not _is_below(root, source)
        ]
        if not outside:
            return images
    named = ", ".join(repr(str(path)) for path in outside[:3])
    raise DataError(
        f"{root}: {plural(len(outside), 'path')} would lead out of it, such as {named}; put the images there instead"
    )


def _links_out(folder: Path | str, root: str) -> Iterator[str]:
    """The links below a folder, also hidden ones, to anything outside of ``root``."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                target = os.path.realpath(entry.path)
                if os.path.commonpath([root, target]) != root:
                    yield entry.path
            elif entry.is_dir():
                yield from _links_out(entry.path, root)


def _is_below(root: Path, source: Path) -> bool:
    if ".." in source.parts:
        return source.resolve().is_relative_to(root.resolve())
    return source.absolute().is_relative_to(root)


def _refuse_label(path: Path, label: str | None) -> None:
    if label is not None:
        raise DataError(
            f"{path} names the class of every image itself; label={label!r} is only for a folder of images"
        )


def check_split(split: str) -> None:
    """Raise unless ``split`` is "train" or "test": published datasets have no other."""
    if split not in ("train", "test"):
        raise UnknownNameError("split", split, ("train", "test"))


def _unsplit(read: Callable[..., ImageSet]) -> Callable[..., ImageSet]:
    def opened(path: Path, split: str, *label: str | None) -> ImageSet:
        if split != "train":
            raise DataError(
                f"{path}: no split {split!r}, it is not divided; give another path or split='train'"
            )
        return read(path, *label)

    return opened


def _existing_folder(path: str | Path) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        seen = "a file, not a folder" if folder.exists() else "no such folder"
        raise DataError(f"{folder}: {seen}")
    return folder


def _listed(lines: Sequence[str]) -> str:
    """The first ten lines, and how many more there are."""
    shown = list(lines[:_SHOWN])
    if len(lines) > _SHOWN:
        shown.append(f"... and {len(lines) - _SHOWN} more")
    return "".join(f"\n  {line}" for line in shown)


# One folder per class.


def image_folder(path: str | Path, label: str | None = "top") -> ImageSet:
    """The images below ``path``, at any depth, labelled by folder, sorted by name.

    The label of 2024/shoes/1.jpg is "2024" with ``top``, "shoes" with ``parent``, and "2024/shoes" with ``path``. None
    takes the top folder, but raises with the alternatives if another level could be intended.
    """
    root = _existing_folder(path)
    if loose := [
        entry.name
        for entry in _visible(root)
        if _has_image_extension(entry.name) and entry.is_file()
    ]:
        raise DataError(
            f"{root}: images without a class folder:{_listed(loose)}\n{_FOLDER_LAYOUT.format(root=root)}"
        )
    images, others = list_images(root)
    folders = [folder.name for folder in class_folders(root)]
    full = {below(root, image)[0] for image in images}
    empty = [name for name in folders if name not in full]
    if not images:
        where = " and no class folders"
        if empty:
            where = f" in any of its {len(empty)} class folders ({', '.join(empty[:10])})"
        raise DataError(f"{root}: no images{where}; {_FOLDER_LAYOUT.format(root=root)}")
    if empty:
        warnings.warn(
            f"{root}: classes left out because they have no image:{_listed(empty)}", stacklevel=2
        )
    warn_skipped(root, others)
    if label is None and (seen := other_labels(root, images)):
        raise DataError(
            f"{root}: {seen}. Say which folder is the class",
            NextStep("repeat", {"label": "parent"}, "the folder that holds the image"),
            NextStep("repeat", {"label": "top"}, "the first folder"),
            NextStep("repeat", {"label": "path"}, "all folders above the image"),
        )
    files: dict[str, list[Path]] = {}
    for image in images:
        files.setdefault(folder_label(below(root, image), label or "top"), []).append(image)
    return _labelled_files(dict(sorted(files.items())), root.name)


def below(root: Path, image: Path) -> tuple[str, ...]:
    """The parts of an image's path relative to a folder."""
    return image.relative_to(root).parts


def folder_label(parts: Sequence[str], label: str) -> str:
    """The label of an image by the folders above it.

    >>> [folder_label(("2024", "shoes", "1.jpg"), label) for label in ("top", "parent", "path")]
    ['2024', 'shoes', '2024/shoes']
    """
    if label not in LABELS:
        raise UnknownNameError("label", label, LABELS)
    return {"top": parts[0], "parent": parts[-2], "path": "/".join(parts[:-1])}[label]


def other_labels(root: Path, images: Sequence[Path]) -> str | None:
    """Other possible labels than the top folder, in words; None if there are none."""
    parts = [found for image in images if len(found := below(root, image)) > 1]
    plain = {found[0] for found in parts if len(found) == 2}
    nested = [found for found in parts if found[0] not in plain]
    if len({found[-2] for found in nested}) < 2:
        return None
    kinds = {label: sorted({folder_label(found, label) for found in parts}) for label in LABELS}
    seen = "; ".join(
        f"by {label} there are {len(names):,} labels ({_first_three(names)})"
        for label, names in kinds.items()
    )
    return f"folders are nested, as in {'/'.join(nested[0])}: {seen}"


def _first_three(names: Sequence[str]) -> str:
    """
    >>> _first_three(["a", "b", "c", "d"])
    'a, b, c, ...'
    """
    shown = ", ".join(names[:3])
    if len(names) > 3:
        return f"{shown}, ..."
    return shown


def _labelled_files(files: dict[str, list[Path]], name: str) -> ImageSet:
    if wrong := [repr(label) for label in files if not _is_text(label)]:
        raise DataError(
            f"{name}: {plural(len(wrong), 'class name')} cannot be read as UTF-8; rename the folders:{_listed(wrong)}"
        )
    labels = np.repeat(np.arange(len(files)), [len(of_class) for of_class in files.values()])
    paths = tuple(path for of_class in files.values() for path in of_class)
    return ImageSet(paths, labels.astype(np.int64), tuple(files), name)


def _is_text(name: str) -> bool:
    """Whether a name is valid text: a file name that is not UTF-8 has lone surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def class_folders(root: Path) -> list[Path]:
    """The visible folders directly in ``root``, sorted by name. Links to parent folders are skipped."""
    return [
        entry for entry in _visible(root) if entry.is_dir() and not _leads_up(entry, frozenset())
    ]


def find_images(folder: str | Path) -> list[Path]:
    """Every visible file below ``folder`` with an image's extension, sorted by its path."""
    return list_images(_existing_folder(folder))[0]


def list_images(root: Path) -> tuple[list[Path], list[Path]]:
    """The files below a folder, sorted by path: those with an image's extension, and the others."""
    images = list[Path]()
    others = list[Path]()
    for path in _files(root):
        if _has_image_extension(path.name):
            images.append(path)
        else:
            others.append(path)
    return images, others


def warn_skipped(root: Path, others: Sequence[Path]) -> None:
    """Warn of files among ``others`` that are unsupported images, and of broken links."""
    lines = []
    for path in others:
        why = _OTHER_IMAGES.get(path.suffix.lower())
        if not path.suffix and _is_image(path):
            why = "an image without an extension; give it one, such as .jpg"
        elif path.is_symlink() and not path.exists():
            why = "a link to a folder or file that is not there"
        if why:
            lines.append(f"{'/'.join(below(root, path))}: {why}")
    if lines:
        warnings.warn(
            f"{root}: {plural(len(lines), 'file')} left out:{_listed(lines)}", stacklevel=3
        )


def _is_image(path: Path) -> bool:
    try:
        return path.is_file() and bool(upright_size(path))
    except ImageError:
        return False


def _has_images(root: Path) -> bool:
    return any(_has_image_extension(path.name) for path in _files(root))


def _files(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Every visible file below a folder, sorted by its path. Links are followed, except to parent folders."""
    above |= {folder.resolve()}
    for entry in _visible(folder):
        if not entry.is_dir():
            yield entry
        elif not _leads_up(entry, above):
            yield from _files(entry, above)


def _leads_up(entry: Path, above: frozenset[Path]) -> bool:
    """Whether an entry is a link to a folder that contains it, or to one of ``above``, the folders on the way."""
    if not entry.is_symlink():
        return False
    target = entry.resolve()
    return target in above or entry.parent.resolve().is_relative_to(target)


def _visible(root: Path) -> list[Path]:
    try:
        entries = list(root.iterdir())
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be listed ({error.strerror})") from error
    return sorted(
        (entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name
    )


def _has_image_extension(name: str) -> bool:
    return Path(name).suffix.lower() in IMAGE_EXTENSIONS


def _split_folders(root: Path) -> list[str]:
    """The splits of a dataset such as train/shoes/1.jpg, test/shoes/2.jpg. A class may also be called "train"."""
    folders = class_folders(root)
    splits = [folder.name for folder in folders if folder.name in _SPLITS and class_folders(folder)]
    if len(splits) > 1 or len(splits) == len(folders):
        return splits
    return []


def _split_lists(root: Path) -> list[str]:
    return [split for split in _SPLITS if (root / f"{split}.csv").is_file()]


def _known_split(root: Path, split: str, splits: list[str]) -> str:
    if split not in splits:
        raise DataError(f"{root}: no split {split!r}; it has {', '.join(splits)}")
    return split


# A CSV that names images and their classes.


class _CsvRow(NamedTuple):
    line: int
    cells: list[str]


def image_list(csv_path: str | Path, root: str | Path | None = None) -> ImageSet:
    """The images of a CSV with the columns ``path`` and ``label`` (others are ignored), grouped by class.

    Paths are relative to ``root``, by default the CSV's own folder. Mistakes are reported with line numbers.
    """
    source = Path(csv_path)
    root = source.parent if root is None else Path(root)
    header, *rows = _rows(source) or [_CsvRow(1, [])]
    names = [name.lower() for name in header.cells]
    if names.count("path") != 1 or names.count("label") != 1:
        seen = ",".join(header.cells)
        raise DataError(
            f"{source}: line {header.line}: the header must have the columns path,label; got {seen!r}. A table of "
            "texts has the columns text,label; another name of the field with the text has to be given"
        )
    path_column = names.index("path")
    label_column = names.index("label")
    if wrong := list(_wrong_rows(rows, len(names), path_column, label_column)):
        raise DataError(f"{source}: {len(wrong)} lines are wrong:{_listed(wrong)}")
    if not rows:
        raise DataError(f"{source}: no images are listed below the header")
    files: dict[str, list[Path]] = {
        label: [] for label in sorted({row.cells[label_column] for row in rows})
    }
    missing = []
    for line, cells in rows:
        path = root / cells[path_column]
        files[cells[label_column]].append(path)
        if not path.is_file():
            missing.append(f"line {line}: {path}")
    if missing:
        raise DataError(
            f"{source}: {len(missing)} of {len(rows)} files are missing:{_listed(missing)}"
        )
    return _labelled_files(files, source.stem)


def _rows(source: Path) -> list[_CsvRow]:
    """All rows that are not blank, with the number of their last line."""
    try:
        text = source.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{source}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{source}: not UTF-8 text ({error.reason} at byte {error.start})"
        ) from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        return [
            _CsvRow(reader.line_num, [cell.strip() for cell in cells])
            for cells in reader
            if any(cells)
        ]
    except csv.Error as error:
        raise DataError(f"{source}: line {reader.line_num}: {error}") from error


def _wrong_rows(
    rows: list[_CsvRow], width: int, path_column: int, label_column: int
) -> Iterator[str]:
    for line, cells in rows:
        if len(cells) != width:
            yield f"line {line}: {len(cells)} columns, but the header has {width}"
        elif not cells[path_column] or not cells[label_column]:
            yield f"line {line}: the {'label' if cells[path_column] else 'path'} is empty"


# Omniglot: alphabet/character/drawing.png.


def _is_omniglot(root: Path) -> bool:
    """Whether a folder has Omniglot's two parts or, inside its alphabets, folders like character01."""
    if any((root / part).is_dir() for part in OMNIGLOT_PARTS.values()):
        return True
    inner = (
        character for alphabet in class_folders(root)[:1] for character in class_folders(alphabet)
    )
    return any(_OMNIGLOT_CHARACTER.fullmatch(folder.name) for folder in inner)


def _open_omniglot(root: Path, split: str) -> ImageSet:
    if not any((root / part).is_dir() for part in OMNIGLOT_PARTS.values()):
        return _unsplit(omniglot_folder)(root, split)
    check_split(split)
    return omniglot_folder(root / OMNIGLOT_PARTS[split])


def omniglot_folder(path: str | Path) -> ImageSet:
    """All drawings in a folder of alphabets, or in images_background and images_evaluation, by character."""
    root = _existing_folder(path)
    parts = [root / part for part in OMNIGLOT_PARTS.values() if (root / part).is_dir()] or [root]
    files: dict[str, list[Path]] = {}
    for alphabet in (alphabet for part in parts for alphabet in class_folders(part)):
        for character in class_folders(alphabet):
            if drawings := find_images(character):
                files.setdefault(f"{alphabet.name}/{character.name}", []).extend(drawings)
    if not files:
        raise DataError(
            f"{root}: no drawings; expected alphabet/character/*.png, such as {root}/Greek/character01/a.png"
        )
    return _labelled_files(dict(sorted(files.items())), root.name)


# CIFAR-10 and CIFAR-100 in their official binary layout: label bytes, then 1024 red, 1024 green, 1024 blue.


def _find_cifar10(path: Path) -> Path | None:
    names = (*_CIFAR10_BATCHES, "data_batch.bin", "test_batch.bin")
    return _folder_with(path, "cifar-10-batches-bin", names)


def _find_cifar100(path: Path) -> Path | None:
    folder = _folder_with(path, "cifar-100-binary", ("train.bin", "test.bin"))
    certain = folder and (
        folder.name == "cifar-100-binary" or any(folder.glob("*_label_names.txt"))
    )
    if certain:
        return folder
    return None


def _folder_with(path: Path, name: str, files: Sequence[str]) -> Path | None:
    """``path/name`` or ``path`` itself, if it holds one of these files."""
    folders = (
        folder for folder in (path / name, path) if any((folder / file).is_file() for file in files)
    )
    return next(folders, None)


def cifar10(path: str | Path, split: str) -> ImageSet:
    """CIFAR-10, "train" or "test"; the training images are in the five official batches or in one data_batch.bin."""
    check_split(split)
    folder = _find_cifar10(_existing_folder(path)) or _no_cifar(
        path, "CIFAR-10", "cifar-10-batches-bin"
    )
    classes = _cifar_names(folder / "batches.meta.txt", 10)
    whole = (folder / "data_batch.bin").is_file()
    if split == "test":
        files = ["test_batch.bin"]
    elif whole:
        files = ["data_batch.bin"]
    else:
        files = list(_CIFAR10_BATCHES)
    images, labels = _read_cifar([folder / file for file in files], 1, 0, classes)
    return ImageSet(images, labels, classes, f"cifar10 {split}")


def cifar100(path: str | Path, split: str, labels: Literal["fine", "coarse"] = "fine") -> ImageSet:
    """CIFAR-100, "train" or "test", with its 100 fine or 20 coarse labels."""
    check_split(split)
    if labels not in ("fine", "coarse"):
        raise UnknownNameError("CIFAR-100 labels", labels, ("coarse", "fine"))
    folder = _find_cifar100(_existing_folder(path)) or _no_cifar(
        path, "CIFAR-100", "cifar-100-binary"
    )
    count = 20
    column = 0
    if labels == "fine":
        count = 100
        column = 1
    classes = _cifar_names(folder / f"{labels}_label_names.txt", count)
    images, numbers = _read_cifar([folder / f"{split}.bin"], 2, column, classes)
    return ImageSet(images, numbers, classes, f"cifar100 {split}")


def _read_cifar(
    files: list[Path], label_bytes: int, which: int, classes: tuple[str, ...]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images [N, 32, 32, 3] and labels [N] of all files; ``which`` of the leading bytes is the label."""
    if missing := [file.name for file in files if not file.is_file()]:
        raise DataError(f"{files[0].parent}: {', '.join(missing)} missing")
    records = [_cifar_records(file, label_bytes, which, len(classes)) for file in files]
    labels = np.concatenate([of_file[:, which] for of_file in records]).astype(np.int64)
    images = np.empty((len(labels), 32, 32, 3), np.uint8)
    ends = np.cumsum([len(of_file) for of_file in records])
    for of_file, part in zip(records, np.split(images, ends[:-1]), strict=True):
        planes = of_file[:, label_bytes:].reshape(-1, 3, 32, 32)
        for channel in range(3):  # five times as fast as one transposed copy
            part[..., channel] = planes[:, channel]
    return images, labels


def _cifar_records(file: Path, label_bytes: int, which: int, classes: int) -> npt.NDArray[np.uint8]:
    length = label_bytes + _CIFAR_PIXELS
    size = file.stat().st_size
    if size == 0 or size % length:
        raise DataError(
            f"{file}: {size} bytes are not a whole number of images of {length} bytes; copy the file again"
        )
    records = np.fromfile(file, np.uint8).reshape(-1, length)
    wrong = np.flatnonzero(records[:, which] >= classes)
    if len(wrong):
        label = records[wrong[0], which]
        raise DataError(
            f"{file}: image {wrong[0]} has label {label}, allowed are 0 to {classes - 1}; is it CIFAR?"
        )
    return records


def _cifar_names(file: Path, count: int) -> tuple[str, ...]:
    try:
        names = tuple(
            line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()
        )
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: the class names cannot be read ({error})") from error
    if len(names) != count or len(set(names)) != count:
        raise DataError(
            f"{file}: expected {count} different class names, one per line, got {len(names)}"
        )
    return names


def _no_cifar(path: str | Path, name: str, folder: str) -> NoReturn:
    pickled = ("data_batch_1", "meta", "cifar-10-batches-py", "cifar-100-python")
    hint = "; the Python version found here is never unpickled, download the binary version"
    found = any((Path(path) / file).exists() for file in pickled)
    raise DataError(
        f"{path}: no {name} in its binary layout, neither here nor in {folder}/{hint * found}"
    )


# MNIST and its relatives (Fashion-MNIST, KMNIST, EMNIST) as idx files, compressed or not.


def _find_idx(folder: Path) -> list[re.Match[str]]:
    names = sorted(entry.name for entry in folder.iterdir())
    return [match for match in map(_IDX_IMAGES.fullmatch, names) if match]


def idx_images(folder: str | Path, split: str) -> ImageSet:
    """The "train" or "test" images [N, H, W, 1] of a folder with idx files. Classes are "0", "1", ... to at least "9".

    EMNIST stores its images transposed; files with its prefix are transposed back.
    """
    check_split(split)
    root = _existing_folder(folder)
    prefix, stem = _idx_stem(root, split)
    images = _read_idx(_idx_file(root, stem, "images", 3), 3)
    labels = _read_idx(_idx_file(root, stem, "labels", 1), 1).astype(np.int64)
    if len(images) != len(labels):
        raise DataError(
            f"{root / stem}: {plural(len(images), 'image')} but {plural(len(labels), 'label')}; the files do "
            "not belong together"
        )
    if prefix.startswith("emnist"):
        images = np.ascontiguousarray(images.transpose(0, 2, 1))
    classes = tuple(str(i) for i in range(max(10, int(labels.max()) + 1)))
    return ImageSet(images[..., None], labels, classes, f"{prefix.strip('-') or root.name} {split}")


def _idx_stem(root: Path, split: str) -> tuple[str, str]:
    """The prefix ("emnist-letters-" or nothing) and the common start of the image and label files of a split."""
    wanted = ("train",) if split == "train" else ("t10k", "test")
    found = _find_idx(root)
    stems = sorted(
        {
            (match["prefix"], match["prefix"] + match["split"])
            for match in found
            if match["split"] in wanted
        }
    )
    if not stems:
        seen = ", ".join(match.string for match in found) or "none at all"
        raise DataError(
            f"{root}: no {split} images such as {wanted[0]}-images-idx3-ubyte(.gz); idx images here: {seen}"
        )
    if len(stems) > 1:
        names = ", ".join(stem for _, stem in stems)
        raise DataError(f"{root}: more than one dataset ({names}); give each its own folder")
    return stems[0]


def _idx_file(root: Path, stem: str, kind: str, dimensions: int) -> Path:
    names = [f"{stem}-{kind}{dot}idx{dimensions}-ubyte{gz}" for gz in ("", ".gz") for dot in "-."]
    found = next((root / name for name in names if (root / name).is_file()), None)
    if found is None:
        raise DataError(f"{root}: {kind} missing, none of {', '.join(names)}")
    return found


def _read_idx(file: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """The array in an idx file: 0, 0, 8 (unsigned bytes), the number of dimensions, each as 4 bytes, then the data."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            shape = _idx_shape(file, stream.read(4 + 4 * dimensions), dimensions)
            expected = int(np.prod(shape, dtype=object))
            data = (
                bytearray()
            )  # read in chunks, so that memory is bounded by the file and not by its header
            while len(data) <= expected and (chunk := stream.read(_CHUNK)):
                data += chunk
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{file}: damaged or truncated ({error})") from error
    if len(data) != expected:
        seen = f"only {len(data)}" if len(data) < expected else "more"
        raise DataError(
            f"{file}: the header promises {expected} bytes for {list(shape)}, but there are {seen}"
        )
    return np.frombuffer(data, np.uint8).reshape(shape)


def _idx_shape(file: Path, header: bytes, dimensions: int) -> tuple[int, ...]:
    magic = bytes([0, 0, 8, dimensions])
    if header[:4] != magic or len(header) != 4 + 4 * dimensions:
        raise DataError(
            f"{file}: not an idx file of bytes in {dimensions} dimensions; it begins with "
            f"{header[:4].hex(' ') or 'nothing'} instead of {magic.hex(' ')}"
        )
    shape = tuple(int(side) for side in np.frombuffer(header[4:], ">u4"))
    if 0 in shape:
        raise DataError(f"{file}: empty, its header says {list(shape)}")
    return shape


_DATASETS = {
    "cifar10": _Layout(
        "CIFAR-10: cifar-10-batches-bin/data_batch_1.bin, ...", _find_cifar10, cifar10
    ),
    "cifar100": _Layout("CIFAR-100: cifar-100-binary/train.bin, ...", _find_cifar100, cifar100),
    "idx": _Layout("MNIST and relatives: train-images-idx3-ubyte(.gz), ...", _find_idx, idx_images),
    "omniglot": _Layout(
        "Omniglot: images_background/alphabet/character01/*.png", _is_omniglot, _open_omniglot
    ),
}
_GENERAL = {  # the first that matches
    "split lists": _Layout(
        "one CSV per split, columns path,label: train.csv",
        _split_lists,
        lambda root, split: image_list(
            root / f"{_known_split(root, split, _split_lists(root))}.csv"
        ),
    ),
    "split folders": _Layout(
        "one folder per split: train/shoes/0001.jpg",
        _split_folders,
        lambda root, split, label: image_folder(
            root / _known_split(root, split, _split_folders(root)), label
        ),
        by_folder=True,
    ),
    "folder": _Layout(
        "one folder per class: shoes/0001.jpg", _has_images, _unsplit(image_folder), by_folder=True
    ),
}
