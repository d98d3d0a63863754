"""Files of texts: JSON lines, comma- or tab-separated values, Parquet, and folders of .txt and .md files.

A row has a text, maybe an id and a label, and any other fields, which are kept. Everything is checked before anything
is used: a broken row is named by its line, a broken file of a folder by its path, and it is refused or left out.
"""

from __future__ import annotations

import codecs
import csv
import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np

from fixstar.data.image_set import ImageSet
from fixstar.errors import DataError, InputError, MissingExtraError
from fixstar.texts import MOST_CHARACTERS, too_long

TEXT = "text"  # the usual name of the field that holds the text
ID = "id"
LABEL = "label"
TEXT_EXTENSIONS = frozenset({".txt", ".md"})
TABLES = frozenset({".jsonl", ".csv", ".tsv", ".parquet"})

_ACCEPTED = (
    "a .jsonl, .csv, .tsv or .parquet file, a folder of .txt and .md files, or one such file"
)
_LONGEST_LINE = 64 << 20  # bytes of a row of JSON lines
_LONGEST_CELL = (1 << 31) - 1  # characters; the module csv allows 131,072 otherwise
_MOST_COUNTED = 1 << 30  # bytes of a file that are read to say how long its text is
_CHUNK = 1 << 20  # bytes
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # what stands for a byte that is not
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",  # before UTF-16, which begins alike
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


@dataclass(frozen=True)
class TextRow:
    """One text with its id and its other fields."""

    id: str
    text: str
    fields: Mapping[str, Any]


OnBad = Callable[[DataError], None]
"""Is told about a row, or a file of a folder, that is left out."""


def text_rows(
    source: str | Path, text: str | None = None, key: str | None = None, on_bad: OnBad | None = None
) -> list[TextRow]:
    """All texts at ``source``. ``text`` and ``key`` name the fields of a text and of its id.

    Without ``key`` it is the field id, else the name of the file and the line. In a folder the id is the path below
    it, and the first folder below it is the label. A broken row of a table, or a broken file of a folder, raises; with
    ``on_bad`` it is left out, as long as one is good. Two rows with one id always raise: which of them is meant cannot
    be known.
    """
    path = Path(source)
    if path.is_dir():
        _refuse_fields(path, text, key)
        return _folder(path, on_bad)
    if not path.exists():
        raise InputError(f"{path} does not exist; give {_ACCEPTED}")
    suffix = path.suffix.lower()
    if suffix in TEXT_EXTENSIONS:
        _refuse_fields(path, text, key)
        return [TextRow(path.name, _content(path), {})]
    if suffix not in TABLES:
        raise InputError(f"{path} is not a file of texts; give {_ACCEPTED}")
    _refuse_other_encoding(path)
    return _checked(path, _READERS[suffix](path), text or TEXT, key, on_bad)


def labelled_texts(
    source: str | Path, text: str | None = None, label: str | None = None
) -> ImageSet:
    """Texts with a label each, as a labelled set."""
    named = label or LABEL
    rows = text_rows(source, text)
    missing = next((row for row in rows if row.fields.get(named) in (None, "")), None)
    if missing is not None:
        raise DataError(
            f"{source}: {missing.id} has no {named}. Labelled texts have one each: say which field it is, or leave "
            "out texts without one"
        )
    names = [str(row.fields[named]) for row in rows]
    classes = tuple(dict.fromkeys(names))
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.array([numbers[name] for name in names], np.int64)
    return ImageSet(tuple(row.text for row in rows), labels, classes, Path(source).name)


def has_texts(source: str | Path, text: str | None = None) -> bool:
    """Whether a file, by its name and its first row, holds texts and not a list of images; ``text`` names their field.

    A .csv is either: it holds texts if the field was named, or if it has a column text and none named path.
    """
    path = Path(source)
    suffix = path.suffix.lower()
    if suffix in (".jsonl", ".tsv", ".parquet"):
        return True
    if suffix != ".csv" or not path.is_file():
        return False
    if text is not None:
        return True
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            columns = next(csv.reader(file), [])
    except csv.Error:
        return False  # reading it as a list of images says what is wrong
    return TEXT in columns and "path" not in columns


def _refuse_fields(path: Path, text: str | None, key: str | None) -> None:
    if text is not None or key is not None:
        raise InputError(f"{path} has no fields: its files are the texts, and their names the ids")


# --- folders


def _folder(folder: Path, on_bad: OnBad | None) -> list[TextRow]:
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in TEXT_EXTENSIONS and path.is_file()
    )
    rows: list[TextRow] = []
    broken: list[DataError] = []
    for path in found:
        below = path.relative_to(folder)
        if any(part.startswith(".") for part in below.parts):
            continue
        try:
            content = _content(path)
        except DataError as error:
            broken.append(error)
            continue
        fields = {LABEL: below.parts[0]} if len(below.parts) > 1 else {}
        rows.append(TextRow(below.as_posix(), content, fields))
    if not rows and not broken:
        raise DataError(f"{folder} holds no texts ({', '.join(sorted(TEXT_EXTENSIONS))})")
    _leave_out(broken, on_bad, some_are_good=bool(rows))
    return rows


def _leave_out(broken: list[DataError], on_bad: OnBad | None, some_are_good: bool) -> None:
    """Tell of what is left out; the first one raises if nothing may be left out, or nothing is good."""
    if broken and (on_bad is None or not some_are_good):
        raise broken[0]
    for one in broken:
        assert on_bad is not None
        on_bad(one)


def _content(path: Path) -> str:
    try:
        _refuse_other_encoding(path)
        with path.open("rb") as file:
            content = file.read(4 * MOST_CHARACTERS + 1)
            if len(content) <= 4 * MOST_CHARACTERS:  # a character takes 4 bytes at most
                return content.decode("utf-8-sig")
            file.seek(0)
            characters, whole = _counted(file)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: it is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: it cannot be read: {error.strerror or error}") from error
    raise DataError(f"{path}: {too_long(characters, at_least=not whole)}")


def _counted(file: BinaryIO) -> tuple[int, bool]:
    """How many characters a file has, and whether that is all of them: a huge one is not read to its end."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    characters = 0
    while chunk := file.read(_CHUNK):
        if file.tell() > _MOST_COUNTED:
            return characters, False
        characters += len(decoder.decode(chunk))
    characters += len(decoder.decode(b"", final=True))
    return characters, True


def _refuse_other_encoding(path: Path) -> None:
    """Refuse a file that says itself that it is not UTF-8: parts of it may look as if they were."""
    with path.open("rb") as file:
        first = file.read(4)
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if first.startswith(mark):
            raise DataError(
                f"{path}: it is {encoding}, not UTF-8, by its first bytes; save it as UTF-8"
            )


# --- tables


Row = tuple[int, dict[str, Any]]  # the number of its line, and its fields


def _checked(
    path: Path, rows: Iterator[Row | DataError], text: str, key: str | None, on_bad: OnBad | None
) -> list[TextRow]:
    found: list[TextRow] = []
    broken: list[DataError] = []
    seen: dict[str, int] = {}
    for row in rows:
        if isinstance(row, DataError):
            broken.append(row)
            continue
        line, fields = row
        try:
            good = _row(path, line, fields, text, key)
        except DataError as error:
            broken.append(error)
            continue
        if seen.setdefault(good.id, line) != line:
            raise DataError(
                f"{path}, line {line}: duplicate id {good.id!r} (first used on line {seen[good.id]}). Ids must be "
                "distinct"
            )
        found.append(good)
    if not found and not broken:
        raise DataError(f"{path} has no rows")
    _leave_out(broken, on_bad, some_are_good=bool(found))
    return found


def _row(path: Path, line: int, fields: Mapping[str, Any], text: str, key: str | None) -> TextRow:
    if text not in fields:
        there = ", ".join(sorted(fields)) or "nothing"
        raise DataError(
            f"{path}, line {line}: no field {text!r}; it has {there}. Say which field is the text"
        )
    item = _id(path, line, fields, key)
    content = fields[text]
    if not isinstance(content, str):
        raise DataError(f"{path}, line {line}: {text} is {content!r}, not a text")
    others = {
        field: value
        for field, value in fields.items()
        if field not in (text, key or ID) and value is not None
    }
    if TEXT in others:
        raise DataError(
            f"{path}, line {line}: the field {TEXT} is where the text is kept; give yours another name"
        )
    return TextRow(item, content, others)


def _id(path: Path, line: int, fields: Mapping[str, Any], key: str | None) -> str:
    if key is None and fields.get(ID) in (None, ""):
        return f"{path.name}:{line}"
    value = fields.get(key or ID)
    if value is None or value == "" or isinstance(value, (dict, list, bool)):
        raise DataError(f"{path}, line {line}: {key or ID} is {value!r}, not an id")
    return str(value)


def _jsonl(path: Path) -> Iterator[Row | DataError]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LONGEST_LINE + 1):
            number += 1
            if len(line) > _LONGEST_LINE:
                while line and not line.endswith(b"\n"):
                    line = file.readline(_LONGEST_LINE)
                yield DataError(
                    f"{path}, line {number}: it is longer than {_LONGEST_LINE >> 20} MB"
                )
            elif line.strip():
                yield _json_row(path, number, line)


def _json_row(path: Path, number: int, line: bytes) -> Row | DataError:
    """The fields of a line; the error, if it is broken: other lines may be fine."""
    try:
        row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        return DataError(
            f"{path}, line {number}: it is not UTF-8 ({error.reason}); save it as UTF-8"
        )
    except (ValueError, RecursionError) as error:
        return DataError(f"{path}, line {number}: it is not JSON: {error}")
    if not isinstance(row, dict):
        return DataError(f"{path}, line {number}: expected an object, got {type(row).__name__}")
    return number, row


class _Lines:
    """The lines of a file. ``ended`` says that a reader asked for more than there are: it is inside a quote."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.ended = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._file.readline()
        if not line:
            self.ended = True
            raise StopIteration
        return line


def _separated(path: Path, by: str) -> Iterator[Row | DataError]:
    csv.field_size_limit(
        max(csv.field_size_limit(), _LONGEST_CELL)
    )  # of the whole process: csv has no other
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        lines = _Lines(file)
        rows = csv.DictReader(lines, delimiter=by)
        if any(_NOT_UTF8.search(name) for name in rows.fieldnames or ()):
            raise DataError(f"{path}: the names of its columns are not UTF-8; save it as UTF-8")
        while True:
            first = rows.line_num + 1
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                yield DataError(f"{path}, line {rows.line_num}: {error}")
                continue
            if lines.ended:
                yield DataError(
                    f'{path}, lines {first} to {rows.line_num}: a quote (") is opened and never closed, so all of '
                    "them are one row"
                )
                return
            yield _cells(path, rows.line_num, row)


def _cells(path: Path, line: int, row: dict[str | Any, str | Any]) -> Row | DataError:
    """The fields of a row of a table; cells that are empty or missing are left out."""
    if None in row:
        return DataError(f"{path}, line {line}: more cells than columns")
    filled = {name: value for name, value in row.items() if value not in (None, "")}
    if any(_NOT_UTF8.search(value) for value in filled.values()):
        return DataError(f"{path}, line {line}: it is not UTF-8; save it as UTF-8")
    return line, filled


def _parquet(path: Path) -> Iterator[Row]:
    try:
        pyarrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet", "reading a .parquet file") from None
    try:
        number = 0
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(1024):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error


_READERS: dict[str, Callable[[Path], Iterator[Row | DataError]]] = {
    ".jsonl": _jsonl,
    ".csv": lambda path: _separated(path, ","),
    ".tsv": lambda path: _separated(path, "\t"),
    ".parquet": _parquet,
}
