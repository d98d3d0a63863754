"""fixstar methods: what can be trained."""

from __future__ import annotations

from fixstar.cli.options import AsJson, print_json

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "methods"
EXAMPLES = "Example:  fixstar methods --json"


def command(as_json: AsJson = False) -> None:
    """List the training methods: what each does, what it needs from the past, where it comes from."""
    from fixstar.methods import METHODS

    made = [factory() for factory in METHODS.values()]
    rows = [
        {
            "name": m.name,
            "summary": m.summary,
            "scenario": m.scenario,
            "classifier": m.classifier,
            "needs": sorted(m.needs),
            "options": dict(m.options),
            "source": m.source,
        }
        for m in made
    ]
    if as_json:
        print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("method", "what it does", "scenario", "needs", "source", box=None, pad_edge=False)
    for m in made:
        table.add_row(m.name, m.summary, m.scenario, ", ".join(sorted(m.needs)) or "-", m.source)
    Console().print(table)
