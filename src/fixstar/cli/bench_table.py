"""fixstar bench table: ours beside the paper's."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fixstar.cli.options import AsJson, print_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fixstar.benchmarks.comparison import Comparison, Line

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "table"
EXAMPLES = "Example:  fixstar bench table cifar100-10/7 --markdown cifar.md --pictures pictures"


def command(
    name: Annotated[str, typer.Argument(help="See: fixstar bench list")],
    results: Annotated[Path, typer.Option(help="Where the results of the runs are.")] = Path("benchmarks/results"),
    markdown: Annotated[
        Path | None, typer.Option(help="Write a complete section to this file, in place of the one that it holds.")
    ] = None,
    pictures: Annotated[Path | None, typer.Option(help="Write matrices and curves into this folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Set the runs of a benchmark beside the published figures: mean and deviation over class orders and seeds."""
    from fixstar.benchmarks import benchmark
    from fixstar.benchmarks.comparison import compare, read_results

    entry = benchmark(name)
    comparison = compare(entry, read_results(entry, results))
    drawn = _draw(comparison, pictures)
    if markdown is not None:
        from fixstar.benchmarks.table_text import markdown as section
        from fixstar.benchmarks.table_text import put_section
        from fixstar.durable import replace_file

        text = put_section(_text_of(markdown), entry.name, section(comparison, drawn, markdown.parent))
        replace_file(markdown, lambda partial: partial.write_text(text, encoding="utf-8"))
    if as_json:
        print_json(_content(comparison, drawn))
    else:
        _print(comparison, drawn)


def _text_of(path: Path) -> str:
    """What a file holds already; nothing where there is none."""
    from fixstar.errors import InputError

    try:
        return path.read_text(encoding="utf-8") if path.exists() else ""
    except UnicodeDecodeError:
        raise InputError(f"{path} holds no UTF-8 text, so no section can be put into it; name another file") from None


def _draw(comparison: Comparison, folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    from fixstar.benchmarks.table_pictures import draw

    return draw(comparison, folder)


def _content(comparison: Comparison, drawn: list[Path]) -> dict[str, Any]:
    return {
        "benchmark": comparison.benchmark.name,
        "sources": list(comparison.benchmark.sources),
        "columns": list(comparison.columns),
        "lines": [_line(line) for line in comparison.lines],
        "pictures": [str(path) for path in drawn],
    }


def _line(line: Line) -> dict[str, Any]:
    printed = line.printed
    return {
        "method": line.method,
        "special": list(line.special),
        "epochs": line.epochs,
        "runs": [{"class_order": run.class_order, "seed": run.seed, "seconds": run.seconds} for run in line.runs],
        "ours": {
            protocol: {name: asdict(spread) for name, spread in metrics.items()}
            for protocol, metrics in line.ours.items()
        },
        "paper": None
        if printed is None
        else {
            "source": printed.source,
            **{name: None if figure.below else figure.fraction for name, figure in printed.values.items()},
            "uncertain": sorted(printed.uncertain),
        },
    }


def _print(comparison: Comparison, drawn: list[Path]) -> None:
    from rich.console import Console

    from fixstar.benchmarks.table_text import parts_of, table_of, what_differs

    console = Console()
    console.print(f"{comparison.benchmark.name}: {comparison.benchmark.title}", style="bold")
    for columns in parts_of(comparison):
        for table in _tables(*table_of(comparison, columns, ("[bold]", "[/bold]")), console):
            console.print(table)
    for line in what_differs(comparison):
        console.print(f"- {line}", highlight=False)
    if not any(line.runs for line in comparison.lines):
        console.print(f"Nothing was run yet. Next: fixstar bench run {comparison.benchmark.name} --data DATA")
    for path in drawn:
        console.print(str(path), highlight=False)


def _tables(head: list[str], body: list[list[str]], console: Console) -> list[Table]:
    """One table, or where the window is too narrow for its figures one for the paper's and one for each protocol."""
    from rich.table import Table
    from rich.text import Text

    def table_with(places: list[int]) -> Table:
        table = Table(box=None, pad_edge=False)
        for place in places:
            table.add_column(head[place].replace(": ", "\n"), no_wrap=place > 0, min_width=needed[place] * (place > 0))
        for row in body:
            table.add_row(*(row[place] for place in places))
        return table

    columns = zip(*(row for row in body), strict=True)
    titles = [max(map(len, name.split(": "))) for name in head]
    widest = (max(Text.from_markup(cell).cell_len for cell in column) for column in columns)
    needed = [max(pair) for pair in zip(titles, widest, strict=True)]
    if sum(needed) + 2 * (len(head) - 1) <= console.width:
        return [table_with(list(range(len(head))))]
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(head[3:], start=3):  # after the method, its runs and epochs
        groups.setdefault(name.partition(":")[0], []).append(place)
    first, *others = groups.values()
    return [table_with([0, 1, 2, *first]), *(table_with([0, *places]) for places in others)]
