"""Every look at cases and class orders that were set aside: ``benchmarks/looks.json``, one line per run.

    python benchmarks/looks.py
    python benchmarks/looks.py --merge OTHER.json     append the looks of a ledger that was written on another machine

The runners write the ledger (``fixstar bench run`` and ``benchmarks/upgrades.py``, option ``--ledger``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fixstar.errors import FixstarError
from fixstar.research.benchmarks.ledger import Entry, default_path, missing_from, note, read_ledger


def described(entry: Entry) -> str:
    setting = entry["setting"]
    options = " ".join(f"{key}={value}" for key, value in setting["options"].items())
    where = f"{entry['benchmark']}, {entry['set']}, seed {entry['seed']}"
    how = f"{setting['method']} {options} K={setting['capacity']} epochs={setting['epochs']}"
    protocols = [name for name in ("template", "image") if name in entry["result"]]
    figures = [f"{name} {_figures(entry['result'][name])}" for name in protocols]
    return f"{entry['date'][:10]}  {where}: {how}: {'; '.join(figures)}"


def _figures(found: dict[str, float]) -> str:
    return " ".join(f"{key} {value:.3f}" for key, value in found.items())


def main(words: Sequence[str] | None = None) -> None:
    """Print the ledger, after merging another one into it if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ledger", type=Path, default=default_path())
    parser.add_argument(
        "--merge", type=Path, metavar="OTHER", help="a ledger whose looks are appended"
    )
    given = parser.parse_args(words)
    if given.merge is not None:
        added = missing_from(read_ledger(given.ledger), read_ledger(given.merge))
        note(given.ledger, added)
        print(f"{len(added)} looks of {given.merge} appended")
    for entry in read_ledger(given.ledger):
        print(described(entry))


if __name__ == "__main__":
    try:
        main()
    except FixstarError as error:
        sys.exit(f"looks.py: {error}")
