"""fixstar bench list: the papers' experiments, and which of them can be run here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fixstar.cli.options import AsJson, print_json

if TYPE_CHECKING:
    from fixstar.benchmarks import Benchmark

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "list"
EXAMPLES = "Examples:  fixstar bench list --data DATA   |   fixstar bench list cifar100-10/7 --json"


def command(
    name: Annotated[str | None, typer.Argument(help="Show all of this one.")] = None,
    data: Annotated[Path, typer.Option(help="The folder that the datasets lie in.")] = Path("data"),
    as_json: AsJson = False,
) -> None:
    """List the benchmarks: what each is, where it is printed, and whether it can be run with the data that is here."""
    from fixstar.benchmarks import benchmark, catalogue

    if name is not None:
        shown = _whole(benchmark(name), data)
        print_json(shown) if as_json else _print_whole(shown)
        return
    rows = [_row(entry, data) for entry in catalogue().values()]
    print_json(rows) if as_json else _print_rows(rows, data)


def _row(entry: Benchmark, data: Path) -> dict[str, Any]:
    from fixstar.benchmarks.readiness import missing_data, obstacles

    blocked, missing = obstacles(entry), missing_data(entry, data)
    return {
        "name": entry.name,
        "what": entry.title,
        "sources": list(entry.sources),
        "protocols": list(entry.protocols),
        "tasks": entry.tasks.count,
        "ready": not blocked and not missing,
        "obstacles": blocked,
        "missing": missing,
    }


def _whole(entry: Benchmark, data: Path) -> dict[str, Any]:
    from dataclasses import asdict

    from fixstar.benchmarks.readiness import datasets_of

    return {
        **_row(entry, data),
        "scenario": entry.scenario,
        "classes a task": entry.tasks.sizes or entry.tasks.class_shares or entry.tasks.sample_shares,
        "backbone": entry.backbone,
        "capacity": entry.capacity,
        "recipe": asdict(entry.recipe),
        "replay a class": entry.replay_per_class,
        "queries": f"{entry.evaluation}, {entry.query_split}",
        "gallery": f"{entry.evaluation}, {entry.gallery_split}",
        "pairs": entry.pairs,
        "methods": {key: choice.options for key, choice in entry.methods.items() if choice.available},
        "methods that are in the tables only": [key for key, c in entry.methods.items() if not c.available],
        "class orders": [order or 0 for order in entry.orders],
        "variants": {key: list(values) for key, values in entry.ablations.items()},
        "note": entry.note,
        "datasets": {source.title: source.instructions() for source in datasets_of(entry)},
    }


def _print_rows(rows: list[dict[str, Any]], data: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("benchmark", no_wrap=True)  # it is what is typed next
    for head in ("what", "printed in", "protocols", "tasks", "here"):
        table.add_column(head, overflow="fold")
    for row in rows:
        sources, protocols = "; ".join(row["sources"]), ", ".join(row["protocols"])
        table.add_row(row["name"], row["what"], sources, protocols, str(row["tasks"]), _state(row))
    console = Console()
    console.print(table)
    ready = sum(row["ready"] for row in rows)
    print(
        f"{ready} of {len(rows)} are ready with the data in {data} (--data FOLDER). All of one: fixstar bench list NAME"
    )


def _state(row: dict[str, Any]) -> str:
    if row["ready"]:
        return "ready"
    first, *others = row["obstacles"] or [f"missing: {row['missing'][0]}", *row["missing"][1:]]
    return f"{first}, and {len(others)} more" if others else str(first)


def _print_whole(shown: dict[str, Any]) -> None:
    for key, value in shown.items():
        if key == "datasets" or value in ([], {}, "", None):
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{name} {_words(inside)}".strip() for name, inside in value.items())
        elif isinstance(value, (list, tuple)):
            value = ("\n" + " " * 18 if key == "missing" else ", ").join(map(str, value))
        print(f"{key:<18}{value}")
    for instructions in shown["datasets"].values():
        print(f"\n{instructions}")


def _words(value: object) -> str:
    if isinstance(value, dict):
        return f"({', '.join(f'{key}={inside}' for key, inside in value.items())})" if value else ""
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
