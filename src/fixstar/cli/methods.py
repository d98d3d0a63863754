"""fixstar methods: what can be trained, and what to take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fixstar.cli.options import AsJson, print_json

if TYPE_CHECKING:
    from fixstar.methods import Method

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "methods"
EXAMPLES = "Examples:  fixstar methods --json   |   fixstar methods --have old-model,replay"


def command(
    have: Annotated[
        str | None,
        typer.Option(
            help="What is left of the past, by commas: old-model, old-classifier, old-vectors, replay, all-images."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods: what each does, what it needs from the past, what it costs; and say which one to take."""
    from fixstar.methods import METHODS
    from fixstar.methods.advice import advise, parse_needs

    methods = {name: factory() for name, factory in METHODS.items()}
    advice = None if have is None else advise(parse_needs(have), methods)
    shown = [m for name, m in methods.items() if advice is None or name in advice.possible]
    if as_json:
        rows = [_row(m) for m in shown]
        print_json(rows if advice is None else {"possible": rows, **advice._asdict() | {"possible": rows}})
        return
    _print(shown)
    if advice is not None:
        print(f"\nTake {advice.recommended}: {advice.reason}." if advice.recommended else f"\n{advice.reason}.")


def _row(m: Method) -> dict[str, Any]:
    return {
        "name": m.name,
        "summary": m.summary,
        "scenario": m.scenario,
        "classifier": m.classifier,
        "needs": sorted(m.needs),
        "cost": round(m.cost, 2),
        "options": dict(m.options),
        "source": m.source,
    }


def _print(methods: list[Method]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("method", "what it does", "scenario", "needs", "cost", "source"):
        # A name is typed as it stands here: it is never cut, and words only where nothing else is left.
        table.add_column(column, no_wrap=column in ("method", "scenario", "cost"), overflow="fold")
    for m in methods:
        table.add_row(m.name, m.summary, m.scenario, ", ".join(sorted(m.needs)), f"{m.cost:.2f}", m.source)
    console = Console()
    console.print(table)
    console.print("cost: passes through a network, relative to plain training on the same images", style="dim")
