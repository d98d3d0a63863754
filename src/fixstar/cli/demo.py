"""fixstar demo: the whole story in about a minute."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fixstar.cli.options import AsJson, Device, print_json

if TYPE_CHECKING:
    from fixstar.demo import DemoResult

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "demo"
EXAMPLES = "Examples:  fixstar demo   |   fixstar demo --out pictures --seed 1 --json"


def command(
    out: Annotated[Path, typer.Option(help="Where models and pictures go.")] = Path("fixstar-demo"),
    seed: Annotated[int, typer.Option(help="Another seed, other weights.")] = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train v1, index, upgrade, check, deploy, and search v1's vectors with v2: beside models that share nothing."""
    started = time.monotonic()
    from fixstar.demo import run_demo

    result = run_demo(out, seed, device, progress=not as_json, say=lambda text: print(text, file=sys.stderr))
    if as_json:
        from dataclasses import asdict

        print_json({**asdict(result), "seconds": round(time.monotonic() - started, 1)})
    else:
        _show(result, time.monotonic() - started)


def _show(result: DemoResult, seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table

    from fixstar.demo import TITLES

    console = Console()
    print()
    for kind, matrix in result.matrices.items():
        table = Table("", "gallery by v1", "gallery by v2", title=TITLES[kind], title_justify="left", min_width=52)
        outcome = result.gate[kind]
        mark = f"[{'green' if outcome == 'pass' else 'red'}]gate: {outcome}[/]"
        table.add_row("queries by v1", f"{matrix[0][0]:.1%}", "")
        table.add_row("queries by v2", f"{matrix[1][0]:.1%}  {mark}", f"{matrix[1][1]:.1%}")
        console.print(table)
    console.print(result.sentence, highlight=False)
    console.print(f"\nPictures: {', '.join(result.pictures)}   ({seconds:.0f} s)", highlight=False)
    shop = f"{result.directory}/compatible"
    console.print(f"The workspace is yours to explore: fixstar status -w {shop}", highlight=False)
    console.print(f"  fixstar search --like 7 --sheet found.png -w {shop}", highlight=False)
    console.print(f"  fixstar backfill --budget 20% -w {shop}   |   fixstar serve -w {shop}", highlight=False)
