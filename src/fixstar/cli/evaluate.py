"""fixstar evaluate: every version's queries against every older version's gallery."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fixstar.cli.options import AsJson, DataPath, Device, WorkspacePath, print_json

if TYPE_CHECKING:
    from fixstar.evaluation import CrossTest

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "evaluate"
EXAMPLES = "Example:  fixstar evaluate photos/held-out --workspace shop --picture matrix.png"


def command(
    data: DataPath,
    workspace: WorkspacePath = Path(),
    protocol: Annotated[
        str, typer.Option(help="image: nearest gallery image; template: nearest class mean.")
    ] = "image",
    picture: Annotated[Path | None, typer.Option(help="Write the heat map to this PNG.")] = None,
    seed: Annotated[int, typer.Option(help="Splits the images into gallery and queries.")] = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure compatibility on labelled images: half of each class is the gallery, half are queries."""
    from fixstar.data import open_images
    from fixstar.data.streams import sample_stream
    from fixstar.evaluation import compatibility_heat_map
    from fixstar.workspace import Workspace

    gallery, queries = (task.images for task in sample_stream(open_images(data), [0.5, 0.5], seed))
    result = Workspace(workspace).evaluate(queries, gallery, protocol, device, progress=not as_json)
    if picture is not None:
        compatibility_heat_map(result.matrix, list(result.names), f"{protocol} search", picture)
    if as_json:
        lower = [[float(value) for value in row[: t + 1]] for t, row in enumerate(result.matrix)]
        summary = result.summary() if len(result.names) > 1 else {}
        print_json({"protocol": protocol, "versions": result.names, "matrix": lower, **summary})
    else:
        _print_matrix(result)


def _print_matrix(result: CrossTest) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("queries by", *(f"gallery {name}" for name in result.names), box=None, pad_edge=False)
    for t, name in enumerate(result.names):
        cells = [f"{result.matrix[t, k]:.1%}" for k in range(t + 1)]
        marks = ["" if k == t or result.matrix[t, k] > result.matrix[k, k] else " [red]x[/red]" for k in range(t + 1)]
        table.add_row(name, *(cell + mark for cell, mark in zip(cells, marks, strict=True)))
    console = Console()
    console.print(table)
    if len(result.names) > 1:
        console.print("  ".join(f"{key} {value:.3f}" for key, value in result.summary().items()))
        console.print("x: not compatible, the cross-test is not above the old version's self-test", style="dim")
