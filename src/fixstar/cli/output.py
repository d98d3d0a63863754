"""Output of verbs: JSON, wrapped sentences, and tables that fit any terminal width."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal
from unicodedata import category

if TYPE_CHECKING:
    from rich.text import Text

Cell = str | tuple[str, str]  # text, or text and its rich style
STYLES = {"compatible": "green", "incompatible": "red", "not decided": "yellow"}  # of verdicts
GAP = 2  # spaces between columns


def visible(text: str) -> str:
    r"""A name on one line: control characters as escapes. File names may contain anything, even terminal commands.

    >>> print(visible("new\nline\x1b[31m"))
    new\nline\x1b[31m
    """
    return "".join(repr(char)[1:-1] if category(char) == "Cc" else char for char in text)


def print_json(content: Any) -> None:
    """One JSON document on standard output; everything else goes to standard error."""
    json.dump(content, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def say(text: str) -> None:
    """Print a line that is not part of the result, on standard error."""
    print(text, file=sys.stderr)


def print_result(as_json: bool, content: Any, *lines: str) -> None:
    """Print a verb's result, as JSON or as lines of text."""
    if as_json:
        print_json(content)
    else:
        print(*lines, sep="\n")


def wrapped(text: str, bullet: str = "", indent: str = "  ") -> str:
    """A sentence at the terminal's width, later lines indented; no word is broken."""
    width = shutil.get_terminal_size().columns
    return textwrap.fill(
        text,
        width,
        initial_indent=bullet,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def print_wrapped(text: str, bullet: str = "", indent: str = "  ") -> None:
    """Print a sentence at the terminal's width."""
    print(wrapped(text, bullet, indent))


def print_list(entries: Iterable[tuple[Sequence[str], str]]) -> None:
    """Print entries as a line of aligned fields and, below it, a sentence."""
    listed = list(entries)
    widths = [
        max(map(len, column)) for column in zip(*(fields for fields, _ in listed), strict=True)
    ]
    for fields, sentence in listed:
        print(
            "  ".join(
                f"{field:<{width}}" for field, width in zip(fields, widths, strict=True)
            ).rstrip()
        )
        print_wrapped(sentence, "    ", "    ")


def column_blocks(widths: Sequence[int], room: int) -> list[range]:
    """Split columns of these widths into blocks that fit into ``room``, at least one column each.

    >>> column_blocks([10, 10, 10], 25)
    [range(0, 2), range(2, 3)]
    """
    blocks = []
    start = 0
    for end in range(1, len(widths) + 1):
        if end == len(widths) or sum(width + GAP for width in widths[start : end + 1]) > room:
            blocks.append(range(start, end))
            start = end
    return blocks


def terminal_width() -> int:
    """The width of the terminal in characters."""
    from rich.console import Console

    return Console().width


def print_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    right: Collection[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Print rows under their headings; the columns headed by one of ``right`` are aligned to the right.

    Columns that do not fit follow below, with the first column repeated, so that no cell is truncated. Before that,
    ``optional`` columns are dropped in their order. Empty columns are dropped too.
    """
    from rich.console import Console
    from rich.table import Table

    body = [[_text(cell) for cell in row] for row in rows]
    full = [
        place for place in range(len(heads)) if place == 0 or any(row[place].plain for row in body)
    ]
    heads = [heads[place] for place in full]
    body = [[row[place] for place in full] for row in body]
    widths = [
        max([*map(len, head.split("\n")), *(row[place].cell_len for row in body)])
        for place, head in enumerate(heads)
    ]
    room = terminal_width()
    for name in optional:
        if name in heads and sum(widths) + GAP * (len(widths) - 1) > room:
            place = heads.index(name)
            heads = [*heads[:place], *heads[place + 1 :]]
            widths = [*widths[:place], *widths[place + 1 :]]
            body = [[*row[:place], *row[place + 1 :]] for row in body]
    for number, block in enumerate(column_blocks(widths[1:], room - widths[0])):
        places = [0, *(place + 1 for place in block)]
        table = Table(box=None, pad_edge=False)
        for place in places:
            side: Literal["left", "right"] = "right" if heads[place] in right else "left"
            table.add_column(heads[place], justify=side, no_wrap=True)
        for row in body:
            if number == 0 or any(row[place].plain for place in places[1:]):
                table.add_row(*(row[place] for place in places))
        needed = sum(
            widths[place] + GAP for place in places
        )  # exceeds the terminal only for a single wide column
        Console(width=max(room, needed)).print(table, highlight=False)


def _text(cell: Cell) -> Text:
    from rich.text import Text

    if isinstance(cell, str):
        return Text(visible(cell))
    text, style = cell
    return Text(visible(text), style)
