"""The compatibility matrix as text, whole at any width of the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fixstar.evaluation import CrossTest, Difference

__all__ = ["column_blocks", "print_matrix"]

GAP = 2  # between columns
STYLES = {"": "", "x": " [red]x[/red]", "?": " [yellow]?[/yellow]"}


def column_blocks(widths: Sequence[int], room: int) -> list[range]:
    """Columns of these widths in blocks that fit into ``room``, at least one in each.

    >>> column_blocks([10, 10, 10], 25)
    [range(0, 2), range(2, 3)]
    """
    blocks, start = [], 0
    for end in range(1, len(widths) + 1):
        if end == len(widths) or sum(width + GAP for width in widths[start : end + 1]) > room:
            blocks.append(range(start, end))
            start = end
    return blocks


def print_matrix(result: CrossTest, evidence: Mapping[tuple[int, int], Difference]) -> None:
    """Rows are queries, columns galleries. Galleries that do not fit follow below: no name and no figure is cut."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fixstar.evaluation.report import MARKS

    first, heads = "queries by", [f"gallery {name}" for name in result.names]
    room = Console().width
    left = max(len(word) for word in (first, *result.names))
    for block in column_blocks([len(head) for head in heads], room - left):
        table = Table(first, *(escape(heads[k]) for k in block), box=None, pad_edge=False)
        for t in range(block.start, len(result.names)):
            marks = {k: STYLES[MARKS[evidence[t, k].verdict]] if k < t else "" for k in block if k <= t}
            table.add_row(escape(result.names[t]), *(f"{result.matrix[t, k]:.1%}{mark}" for k, mark in marks.items()))
        needed = left + sum(len(heads[k]) + GAP for k in block)  # more than the terminal has only if one name is
        Console(width=max(room, needed)).print(table)
