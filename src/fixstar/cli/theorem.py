"""fixstar theorem: that stationarity implies compatibility, checked by Monte Carlo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fixstar.cli.options import AsJson, picture_path, print_json
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
    out: Annotated[Path, typer.Option(help="Write the picture to this PNG, SVG or PDF.")] = Path("theorem.png"),
    seed: Annotated[int, typer.Option(help="Another seed, other features.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Check eqs. 1a and 1b of the stationarity theorem on features drawn around fixed simplex prototypes."""
    from dataclasses import asdict
    from math import radians

    from fixstar.evaluation.theorem import check_theorem, draw_theorem

    _require_degrees("--old-angle", old_angle)
    _require_degrees("--new-angle", new_angle)
    picture = picture_path(out, "theorem.png")
    checks = check_theorem(_whole_numbers(dimensions), radians(old_angle), radians(new_angle), samples, seed)
    assumed = new_angle <= old_angle
    change = "narrow" if assumed else "widen"
    title = f"Classes {change} from {old_angle:g} to {new_angle:g} degrees around prototypes that stay"
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw_theorem(checks, picture, title)
    if as_json:
        angles = {"old_angle": old_angle, "new_angle": new_angle, "assumption_met": assumed, "samples": samples}
        print_json({**angles, "picture": str(picture), "dimensions": [asdict(check) for check in checks]})
        return
    _show(checks)
    if not assumed:
        print(
            f"\nThe theorem assumes that classes get no wider. From {old_angle:g} to {new_angle:g} degrees they do: "
            "what is violated here says nothing against it."
        )
    print(f"\nPicture: {picture}")


def _require_degrees(option: str, angle: float) -> None:
    if not 0 < angle <= 180:
        raise InputError(f"{option} {angle:g}: a class is wider than 0 and at most 180 degrees wide, like {option} 45")


def _whole_numbers(words: str) -> list[int]:
    try:
        return [int(word) for word in words.split(",")]
    except ValueError:
        raise InputError(f"--dimensions takes whole numbers with commas between, like 10,100; got {words!r}") from None


def _show(checks: list[DimensionCheck]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("d", "case", "E old-old", "E new-old", "kept by", "exactly", "", box=None, pad_edge=False)
    verdicts = {True: "[green]holds[/green]", False: "[red]violated[/red]", None: "too close"}
    for check in checks:
        for name, case in (("one class, 1a", check.same), ("two, 1b", check.different)):
            kept, exact = f"{case.margin:+.5f}±{case.error:.5f}", f"{case.exact_margin:+.5f}"
            row = (f"{case.old:.4f}", f"{case.cross:.4f}", kept, exact, verdicts[case.holds])
            table.add_row(str(check.dimension), name, *row)
    Console().print(table, highlight=False)
