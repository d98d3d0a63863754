"""Compatibility against accuracy: every method and setting that was run on CIFAR-100/10 in 7 tasks, as one picture.

Each point is the mean of AC and AA over the class orders that were run (templates). Up and to the right is better.

    python benchmarks/frontier.py --picture docs/pictures/frontier.png
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

RESULTS = Path(__file__).parent / "results"
PUBLISHED = (
    Path(__file__).parents[1]
    / "src"
    / "fixstar"
    / "research"
    / "benchmarks"
    / "published"
    / "hoc.json"
)
TASKS = 7
TARGET = (0.95, 51.7)  # AC, AA


def runs() -> Iterator[tuple[str, int, float, float]]:
    """(setting, class order, AC, AA) of every finished run."""
    for path in sorted(RESULTS.glob(f"cifar100-10_{TASKS}__*.json")):
        run = json.loads(path.read_text())
        setting = path.stem.split("__", 1)[1].split("__order")[0]
        found = run["protocols"]["template"]
        yield setting, run["class_order"], found["AC"], 100 * found["AA"]
    for run in json.loads((RESULTS / "polaris_rates.json").read_text())["runs"]:
        if run["benchmark"] == f"cifar100-10/{TASKS}" and run["versions"] == TASKS:
            yield (
                _polaris(run["options"]),
                run["class_order"],
                run["template"]["AC"],
                run["template"]["AA"],
            )


def _polaris(options: dict[str, Any]) -> str:
    usual = {
        "hold": 40.0,
        "contrast": 2.0,
        "teachers": "previous and first",
        "old views": "the image itself",
    }
    special = (f"{key}={value}" for key, value in options.items() if usual.get(key) != value)
    return "__".join(["polaris", *special])


def printed() -> dict[str, tuple[float, float]]:
    """AC and AA of the papers' methods."""
    tables = json.loads(PUBLISHED.read_text())
    rows = (
        row
        for table in _lists(tables)
        for row in table
        if isinstance(row, dict) and "values" in row
    )
    chosen = (
        row
        for row in rows
        if row.get("benchmark") == f"cifar100-10/{TASKS}" and "AA" in row["values"]
    )
    return {row["printed"]: (row["values"]["AC"], row["values"]["AA"]) for row in chosen}


def _lists(content: Any) -> Iterator[list[Any]]:
    if isinstance(content, list):
        yield content
    for value in (
        content.values()
        if isinstance(content, dict)
        else content
        if isinstance(content, list)
        else ()
    ):
        yield from _lists(value)


def settings() -> dict[str, tuple[float, float, list[int]]]:
    """Mean AC and AA of every setting, and its class orders."""
    by_setting = defaultdict[str, list[tuple[int, float, float]]](list)
    for setting, order, ac, aa in runs():
        by_setting[setting].append((order, ac, aa))
    return {
        name: (
            *np.mean([cell[1:] for cell in cells], axis=0).tolist(),
            sorted(order for order, *_ in cells),
        )
        for name, cells in by_setting.items()
    }


def main() -> None:
    """Print the points, draw them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--picture", type=Path, help="where to draw them, such as docs/pictures/frontier.png"
    )
    arguments = parser.parse_args()
    points = settings()
    for name, (ac, aa, orders) in sorted(points.items(), key=lambda point: -point[1][0]):
        print(f"{ac:5.2f} {aa:6.1f}   orders {','.join(map(str, orders)):12} {name}")
    if arguments.picture is not None:
        draw(points).savefig(arguments.picture, dpi=110, bbox_inches="tight")


def draw(points: dict[str, tuple[float, float, list[int]]]) -> Any:
    """The picture: one colour per family of methods; the outermost points are labelled."""
    figure, axes = plt.subplots(figsize=(8.5, 5.5))
    families = {"polaris": "tab:red", "hoc": "tab:blue", "fd": "tab:green"}
    edge = {
        name
        for name, (ac, aa, _) in points.items()
        if not any(a >= ac and b >= aa and (a, b) != (ac, aa) for a, b, _ in points.values())
    }
    for name, (ac, aa, _) in points.items():
        family = name.split("__")[0]
        axes.scatter(
            aa, ac, s=45, color=families.get(family, "lightgrey"), edgecolor="white", zorder=3
        )
        if name in edge or "__" not in name:
            axes.annotate(
                name.replace("__", " "),
                (aa, ac),
                textcoords="offset points",
                xytext=(5, 4),
                fontsize=7,
            )
    for title, (ac, aa) in printed().items():
        axes.scatter(aa, ac, s=60, facecolor="none", edgecolor="black", zorder=4)
        axes.annotate(
            f"{title}, printed", (aa, ac), textcoords="offset points", xytext=(5, -10), fontsize=7
        )
    axes.scatter(TARGET[1], TARGET[0], marker="*", s=140, color="gold", edgecolor="black", zorder=4)
    axes.annotate("target", TARGET[::-1], textcoords="offset points", xytext=(6, 5), fontsize=8)
    axes.set(title="CIFAR-100/10, 7 tasks, templates", xlim=(40, 57))
    axes.set(xlabel="average accuracy (AA), per cent", ylabel="compatible pairs (AC)")
    axes.grid(alpha=0.3)
    return figure


if __name__ == "__main__":
    main()
