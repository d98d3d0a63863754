"""A CSV that names images and their classes, for data that does not lie in class folders."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import NamedTuple

from fixstar.data.formats.folder import labelled_files
from fixstar.data.formats.places import shortened
from fixstar.data.image_set import ImageSet
from fixstar.errors import DataError

__all__ = ["image_list"]


class _Row(NamedTuple):
    line: int
    cells: list[str]


def image_list(csv_path: str | Path, root: str | Path | None = None) -> ImageSet:
    """The images of a CSV with the columns ``path`` and ``label`` (others are passed over), grouped by class.

    Paths are relative to ``root``, by default the CSV's own folder. Mistakes are reported with their lines.
    """
    source = Path(csv_path)
    root = source.parent if root is None else Path(root)
    header, *rows = _rows(source) or [_Row(1, [])]
    path_column, label_column = _columns(source, header)
    _check_cells(source, rows, len(header.cells), path_column, label_column)
    _check_files(source, rows, root, path_column)
    files: dict[str, list[Path]] = {label: [] for label in sorted({row.cells[label_column] for row in rows})}
    for row in rows:
        files[row.cells[label_column]].append(root / row.cells[path_column])
    return labelled_files(files, source.stem)


def _rows(source: Path) -> list[_Row]:
    """All lines that are not blank, with the number of their last line."""
    try:
        text = source.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{source}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        return [_Row(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(cells)]
    except csv.Error as error:
        raise DataError(f"{source}: line {reader.line_num}: {error}") from error


def _columns(source: Path, header: _Row) -> tuple[int, int]:
    names = [name.lower() for name in header.cells]
    if names.count("path") != 1 or names.count("label") != 1:
        seen = ",".join(header.cells)
        raise DataError(f"{source}: line {header.line}: the header must have the columns path,label; got {seen!r}")
    return names.index("path"), names.index("label")


def _check_cells(source: Path, rows: list[_Row], width: int, path_column: int, label_column: int) -> None:
    mistakes = []
    for line, cells in rows:
        if len(cells) != width:
            mistakes.append(f"line {line}: {len(cells)} columns, but the header has {width}")
        elif not cells[path_column] or not cells[label_column]:
            mistakes.append(f"line {line}: the {'label' if cells[path_column] else 'path'} is empty")
    if mistakes:
        raise DataError(f"{source}: {len(mistakes)} lines are wrong:{shortened(mistakes)}")
    if not rows:
        raise DataError(f"{source}: no images are listed below the header")


def _check_files(source: Path, rows: list[_Row], root: Path, path_column: int) -> None:
    paths = [(row.line, root / row.cells[path_column]) for row in rows]
    if missing := [f"line {line}: {path}" for line, path in paths if not path.is_file()]:
        raise DataError(f"{source}: {len(missing)} of {len(rows)} files are missing:{shortened(missing)}")
