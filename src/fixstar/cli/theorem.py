"""fixstar theorem: that stationarity implies compatibility, checked by Monte Carlo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fixstar.cli.options import AsJson, print_json
from fixstar.errors import InputError

if TYPE_CHECKING:
    from fixstar.evaluation.theorem import DimensionCheck

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "theorem"
EXAMPLES = "Examples:  fixstar theorem   |   fixstar theorem --dimensions 10,100 --new-angle 45 --json"


def command(
    dimensions: Annotated[str, typer.Option(help="Of the simplex, d = K - 1.")] = "10,32,100,316,1000",
    samples: Annotated[int, typer.Option(help="Pairs of features drawn in each dimension.")] = 40_000,
    old_angle: Annotated[float, typer.Option(help="How wide a class is before the upgrade, in degrees.")] = 45.0,
    new_angle: Annotated[float, typer.Option(help="And after it; the theorem assumes no wider.")] = 30.0,
    out: Annotated[Path, typer.Option(help="Write the picture to this PNG.")] = Path("theorem.png"),
    seed: Annotated[int, typer.Option(help="Another seed, other features.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Check eqs. 1a and 1b of the stationarity theorem on features drawn around fixed simplex prototypes."""
    from dataclasses import asdict
    from math import radians

    from fixstar.evaluation.theorem import check_theorem, draw_theorem

    checks = check_theorem(_whole_numbers(dimensions), radians(old_angle), radians(new_angle), samples, seed)
    title = f"Classes narrow from {old_angle:g} to {new_angle:g} degrees around prototypes that stay"
    draw_theorem(checks, out, title)
    if as_json:
        angles = {"old_angle": old_angle, "new_angle": new_angle, "samples": samples}
        print_json({**angles, "picture": str(out), "dimensions": [asdict(check) for check in checks]})
    else:
        _show(checks, out)


def _whole_numbers(words: str) -> list[int]:
    try:
        return [int(word) for word in words.split(",")]
    except ValueError:
        raise InputError(f"--dimensions takes whole numbers with commas between, like 10,100; got {words!r}") from None


def _show(checks: list[DimensionCheck], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("d", "case", "E old-old", "E new-old", "kept by", "exactly", "", box=None, pad_edge=False)
    verdicts = {True: "[green]holds[/green]", False: "[red]violated[/red]", None: "too close"}
    for check in checks:
        for name, case in (("one class, 1a", check.same), ("two, 1b", check.different)):
            kept, exact = f"{case.margin:+.5f}±{case.error:.5f}", f"{case.exact_margin:+.5f}"
            row = (f"{case.old:.4f}", f"{case.cross:.4f}", kept, exact, verdicts[case.holds])
            table.add_row(str(check.dimension), name, *row)
    console = Console()
    console.print(table, highlight=False)
    console.print(f"\nPicture: {out}", highlight=False)
