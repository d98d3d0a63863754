"""fixstar evaluate: every version's queries against every older version's gallery."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from fixstar.cli.options import AsJson, BadImages, DataPath, Device, WorkspacePath, print_json

if TYPE_CHECKING:
    from fixstar.data import ImageSet
    from fixstar.evaluation import CrossTest
    from fixstar.images import Preprocessing

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "evaluate"
EXAMPLES = "Example:  fixstar evaluate photos/held-out --workspace shop --picture matrix.png"
PICTURES = (".pdf", ".png", ".svg")


def command(
    data: DataPath,
    workspace: WorkspacePath = Path(),
    protocol: Annotated[
        str, typer.Option(help="image: nearest gallery image; template: nearest class mean.")
    ] = "image",
    picture: Annotated[Path | None, typer.Option(help="Write the heat map to this PNG, SVG or PDF.")] = None,
    split: Annotated[str, typer.Option(help="Which part of a data set that is divided: train or test.")] = "train",
    seed: Annotated[int, typer.Option(help="Splits the images into gallery and queries.")] = 0,
    bad_images: BadImages = "refuse",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure compatibility on labelled images: half of each class is the gallery, half are queries."""
    from fixstar.data import open_images, sample_stream
    from fixstar.evaluation import compatibility_heat_map
    from fixstar.workspace import Workspace

    space = Workspace(workspace)
    first = space.encoder(space.newest())
    _check_picture(picture, len(space.versions()))
    images = _searchable(open_images(data, split), first.preprocessing, bad_images)
    gallery, queries = (task.images for task in sample_stream(images, [0.5, 0.5], seed))
    result = space.evaluate(queries, gallery, protocol, device, progress=not as_json)
    if picture is not None:
        compatibility_heat_map(result.matrix, list(result.names), f"{protocol} search", picture)
    if as_json:
        lower = [[float(value) for value in row[: t + 1]] for t, row in enumerate(result.matrix)]
        summary = result.summary() if len(result.names) > 1 else {}
        print_json({"protocol": protocol, "versions": result.names, "matrix": lower, **summary})
    else:
        _print_matrix(result)


def _check_picture(path: Path | None, versions: int) -> None:
    """Say what is wrong with the picture before anything is computed for it."""
    from fixstar.errors import InputError

    if path is None:
        return
    if path.suffix.lower() not in PICTURES:
        raise InputError(f"--picture {path} must end in one of {', '.join(PICTURES)}")
    if not path.parent.is_dir():
        raise InputError(f"--picture {path}: there is no directory {path.parent}")
    if versions < 2:
        raise InputError("a heat map needs two versions; train the second with: fixstar upgrade MORE_IMAGES")


def _searchable(images: ImageSet, preprocessing: Preprocessing, bad: str) -> ImageSet:
    """The images that can be read, of classes with at least one for the gallery and one for a query."""
    from fixstar.errors import InputError

    if bad not in ("refuse", "skip"):
        raise InputError(f"--bad-images {bad} is not one of refuse, skip")
    kept, unreadable = images.readable(preprocessing, cast(Literal["refuse", "skip"], bad))
    for image in unreadable:
        warnings.warn(f"left out {image.name}: {image.reason}", stacklevel=2)
    counts = kept.counts()
    if single := [name for name in kept.classes if counts[name] < 2]:
        warnings.warn(f"left out classes with fewer than two images: {', '.join(single[:10])}", stacklevel=2)
    if len(single) == len(kept.classes):
        raise InputError("every class has fewer than two images; search needs one in the gallery and one as a query")
    return kept.of_classes([name for name in kept.classes if counts[name] >= 2])


def _print_matrix(result: CrossTest) -> None:
    from rich.console import Console
    from rich.table import Table

    from fixstar.evaluation import compatible_cells

    table = Table("queries by", *(f"gallery {name}" for name in result.names), box=None, pad_edge=False)
    for t, name in enumerate(result.names):
        cells = [f"{result.matrix[t, k]:.1%}" for k in range(t + 1)]
        marks = ["" if k == t or result.matrix[t, k] > result.matrix[k, k] else " [red]x[/red]" for k in range(t + 1)]
        table.add_row(name, *(cell + mark for cell, mark in zip(cells, marks, strict=True)))
    console = Console()
    console.print(table)
    if len(result.names) > 1:
        passed = int(compatible_cells(result.matrix).sum())
        failed = len(result.names) * (len(result.names) - 1) // 2 - passed
        queries = len(next(iter(result.hits.values())))
        console.print("  ".join(f"{key} {value:.3f}" for key, value in result.summary().items()))
        console.print(f"{passed} of {passed + failed} upgrades are compatible, measured with {queries:,} queries")
        if failed:
            console.print("x: not compatible, the cross-test is not above the old version's self-test", style="dim")
