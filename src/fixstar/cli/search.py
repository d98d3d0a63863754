"""fixstar search: the nearest items of an image."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fixstar.cli.options import AsJson, Device, WorkspacePath, print_json
from fixstar.errors import InputError

if TYPE_CHECKING:
    from fixstar.gallery import Hit, SearchResult
    from fixstar.workspace import Workspace

__all__ = ["EXAMPLES", "NAME", "command", "parse_where"]

NAME = "search"
EXAMPLES = (
    "Examples:  fixstar search shoe.jpg -w shop   |   fixstar search shoe.jpg bag.jpg -k 5 --sheet found.png   |   "
    "fixstar search --like shoes/17.jpg --where label=shoes --where 'price={\"lt\": 20}'"
)


def command(
    images: Annotated[list[Path] | None, typer.Argument(help="One image or more.")] = None,
    workspace: WorkspacePath = Path(),
    k: Annotated[int, typer.Option("-k", help="Results for each image.")] = 10,
    like: Annotated[str | None, typer.Option(help="Search with a stored item instead of an image: its id.")] = None,
    where: Annotated[list[str] | None, typer.Option(help="FIELD=VALUE of the payload; may be repeated.")] = None,
    approximate: Annotated[bool, typer.Option(help="Ask the index where there is one; a hit may be missing.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Merge hits of several versions by cosine, uncalibrated.")] = False,
    sheet: Annotated[Path | None, typer.Option(help="Draw queries and results as one picture (.png).")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Show the nearest items, whatever version made their vectors, with that version and their score.

    It is the cosine. Where vectors of several versions live and the check has calibrated them, it is the probability
    that both show the same class.
    """
    if bool(images) == (like is not None):
        raise InputError("search takes images, or --like ID; give one of them")
    from fixstar.gallery import SearchRequest
    from fixstar.workspace import Workspace

    request = SearchRequest(k, parse_where(where), exact=not approximate, calibrate=not raw)
    with Workspace(workspace, device) as space:
        if like is not None:
            names, answer = [like], space.like(like, request)
        else:
            names = [str(path) for path in images or ()]
            answer = space.search(list(images or ()), request)
        drawn = None if sheet is None else _draw(space, names, answer, like, sheet)
        trained = answer.version in space.versions()
    if as_json:
        rows = [_row(name, hits) for name, hits in zip(names, answer.hits, strict=True)]
        left_out = list(answer.left_out)
        print_json({"version": answer.version, "calibrated": answer.calibrated, "queries": rows, "left_out": left_out})
    else:
        _print(names, answer)
    for name in answer.left_out:
        print(_left_out(name, answer.version, trained, workspace), file=sys.stderr)
    if drawn is not None and not as_json:
        print(f"\ndrawn: {drawn}")


def parse_where(words: list[str] | None) -> dict[str, Any] | None:
    """Conditions written FIELD=VALUE; a value that is JSON is read as such, anything else is a string.

    >>> parse_where(["shop=paris", "size=5", "price={\\"lt\\": 20}"])
    {'shop': 'paris', 'size': {'in': ['5', 5]}, 'price': {'lt': 20}}
    """
    if not words:
        return None
    parsed: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise InputError(f"--where {word!r} is not FIELD=VALUE, such as label=shoes or 'price={{\"lt\": 20}}'")
        try:
            known = json.loads(value)
        except ValueError as error:
            if value.startswith(("{", "[", '"')):
                raise InputError(
                    f"--where {word!r}: {value!r} begins like JSON and is none ({error}). Write it as in "
                    f"'price={{\"lt\": 20}}'; if it is the text itself, as a JSON string: {json.dumps(value)}"
                ) from error
            known = value
        plain = isinstance(known, (int, float)) or known is None
        parsed[name] = {"in": [value, known]} if plain else known  # a folder named 5 gives the label "5"
    return parsed


def _row(name: str, hits: list[Hit]) -> dict[str, Any]:
    return {"query": name, "hits": [{**hit._asdict(), "payload": dict(hit.payload)} for hit in hits]}


def _left_out(name: str, version: str, trained: bool, workspace: Path) -> str:
    """What to do about vectors that were not searched; ``trained`` says that ``version`` is one of the workspace."""
    if not trained:
        return f"not searched: vectors of {name}. An item of {version} is compared with its own kind only"
    return (
        f"not searched: vectors of {name}, which no adapter connects with queries of {version}. "
        f"Next: fixstar adapt {name} --for {version} -w {workspace}. "
        f"If {version}'s own model made them elsewhere, import them as {name.partition('@')[0]}@{version} instead"
    )


def _print(names: list[str], answer: SearchResult) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for name, hits in zip(names, answer.hits, strict=True):
        table = Table(box=None, pad_edge=False)
        for heading, side in (
            ("", "right"),
            ("probability" if answer.calibrated else "cosine", "right"),
            ("item", "left"),
            ("label", "left"),
            ("version", "left"),
        ):
            table.add_column(heading, justify=side)  # type: ignore[arg-type]
        for place, hit in enumerate(hits, start=1):
            label = str(hit.payload.get("label", ""))
            table.add_row(str(place), f"{hit.score:.4f}", *map(escape, (hit.id, label, hit.version)))
        title = f"{name} (query by {answer.version})" if hits else f"{name}: nothing found"
        console.print(title, highlight=False, markup=False, soft_wrap=True)  # paths stay whole
        if hits:
            console.print(table, highlight=False)


def _draw(space: Workspace, names: list[str], answer: SearchResult, like: str | None, path: Path) -> Path:
    """Queries and what was found, as one picture."""
    from fixstar.workspace.search import draw_answer

    if path.suffix.lower() != ".png":
        raise InputError(f"--sheet {path}: a contact sheet is a .png file")
    return draw_answer(space.gallery, space.images, names, answer, like is not None, path)
