"""fixstar demo, init, index, search, status: a workspace and what is in it."""

from __future__ import annotations

import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fixstar.cli.app import AsJson, Device, WorkspacePath, app
from fixstar.cli.output import print_json, print_table
from fixstar.cli.rollout import print_blend
from fixstar.errors import InputError

if TYPE_CHECKING:
    from fixstar.demo import DemoResult
    from fixstar.gallery import Hit, SearchResult
    from fixstar.workspace import CatalogueItem, Indexed, Status, Workspace
    from fixstar.workspace.items import Embedder


@app.command(epilog="Examples:  fixstar demo   |   fixstar demo --out pictures --seed 1 --json")
def demo(
    out: Annotated[Path, typer.Option(help="Directory for models and pictures.")] = Path("fixstar-demo"),
    seed: Annotated[int, typer.Option(help="Seed of the weights.")] = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train v1, index, upgrade, check, deploy, search v1's vectors with v2; and a control that is not compatible."""
    started = time.monotonic()
    from fixstar.demo import run_demo

    result = run_demo(out, seed, device, progress=not as_json, say=lambda text: print(text, file=sys.stderr))
    seconds = time.monotonic() - started
    if as_json:
        print_json({**asdict(result), "seconds": round(seconds, 1)})
    else:
        _print_demo(result, seconds)


def _print_demo(result: DemoResult, seconds: float) -> None:
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
    print(f"Explore the workspace:\n  fixstar status -w {shop}")
    print(f"  fixstar search --like 7 --sheet found.png -w {shop}")
    print(f"  fixstar backfill --budget 20% -w {shop}\n  fixstar serve -w {shop}")


@app.command(epilog="Example:  fixstar init shop")
def init(path: Annotated[Path, typer.Argument(help="The directory to create.")] = Path()) -> None:
    """Create a workspace: a directory for the versions of one model and everything that belongs to them."""
    from fixstar.training.run_directory import RunDirectory
    from fixstar.workspace import Workspace

    workspace = Workspace.create(path)
    if versions := workspace.versions():
        print(f"workspace {path} exists already, with {', '.join(versions)}")
        print(f"Next: fixstar index CATALOGUE -w {path}\n      fixstar status -w {path}")
    elif RunDirectory(workspace.path).checkpoint(1).exists():
        print(f"workspace {path} exists already. {_unfinished('v1')}")
    else:
        print(f"workspace {path} is ready\nNext: fixstar train IMAGES -w {path}")


def _unfinished(version: str) -> str:
    """For a version whose training has left a checkpoint and no result."""
    return f"The training of {version} is running, or was interrupted: then the same command resumes it"


@app.command(
    epilog="Examples:  fixstar index catalogue/ -w shop   |   fixstar index items.csv -w shop --prefix paris/   |   "
    "fixstar index cifar-100-binary -w shop --labelled"
)
def index(
    items: Annotated[Path, typer.Argument(help="A folder of images, a list (.csv: path, id, anything), or one image.")],
    workspace: WorkspacePath = Path(),
    prefix: Annotated[str, typer.Option(help="Put this before every id.")] = "",
    again: Annotated[bool, typer.Option(help="Also embed items whose image has not changed.")] = False,
    labelled: Annotated[
        bool, typer.Option(help="Read a labelled dataset as train does; pixels without a file are kept.")
    ] = False,
    cluster: Annotated[str | None, typer.Option(help="Embed on a Ray cluster: its address, or local.")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Embed images with the deployed version. Items that are indexed already and unchanged are skipped.

    Images that cannot be read are named and left out. Exit code 1 if no image can be read.
    """
    from fixstar.progress import progress_bar
    from fixstar.workspace import Workspace

    with Workspace(workspace, device) as space:
        version = space.deployed()  # once: embedder and gallery must agree, whatever is deployed meanwhile
        found = _labelled(space, items, prefix) if labelled else _catalogued(items, prefix)
        with (
            _embedder(space, version, cluster) as embedder,
            progress_bar("embedding", len(found), "items", show=not as_json) as advance,
        ):
            done = space.index(found, embedder, again, advance, version)
        _print_indexed(done, sum(space.gallery.count().values()), space.path, as_json)
    raise typer.Exit(1 if done.bad and not (done.added or done.unchanged) else 0)


def _catalogued(items: Path, prefix: str) -> list[CatalogueItem]:
    from fixstar.workspace import catalogue

    return list(catalogue(items, prefix))


def _labelled(space: Workspace, data: Path, prefix: str) -> list[CatalogueItem]:
    """The items of a dataset. Pixels without a file are kept in the workspace, to be embedded again later."""
    from fixstar.data import open_images
    from fixstar.workspace import labelled_items
    from fixstar.workspace.items import STAMP

    return [
        item if STAMP in item.payload else replace(item, payload={**item.payload, **space.images.keep(item.image)})
        for item in labelled_items(open_images(data), prefix)
    ]


def _embedder(space: Workspace, version: str, cluster: str | None) -> AbstractContextManager[Embedder | None]:
    """What embeds; None stands for this process."""
    if cluster is None:
        return nullcontext()
    from fixstar.workspace.cluster import RayEmbedder

    return RayEmbedder(space.registry.directory(version).absolute(), cluster)


def _print_indexed(done: Indexed, total: int, workspace: Path, as_json: bool) -> None:
    for image in done.bad:
        print(f"left out {image.name}: {image.reason}", file=sys.stderr)
    if as_json:
        bad = [{"id": image.name, "reason": image.reason} for image in done.bad]
        counts = {"added": done.added, "unchanged": done.unchanged, "items": total}
        print_json({"version": done.version, **counts, "bad": bad})
        return
    print(
        f"{done.added:,} items embedded with {done.version}, {done.unchanged:,} unchanged, "
        f"{len(done.bad):,} could not be read. The gallery holds {total:,}"
    )
    if done.added or done.unchanged:
        print(f"Next: fixstar search IMAGE -w {workspace}")
    elif done.bad:
        print("Next: repair or replace the images named above, then run the same command again")


@app.command(
    epilog="Examples:  fixstar search shoe.jpg -w shop   |   fixstar search shoe.jpg bag.jpg -k 5 --sheet found.png"
    "   |   fixstar search --like shoes/17.jpg --where label=shoes --where 'price={\"lt\": 20}'"
)
def search(
    images: Annotated[list[Path] | None, typer.Argument(help="One image or more.")] = None,
    workspace: WorkspacePath = Path(),
    k: Annotated[int, typer.Option("-k", help="Results per image.")] = 10,
    like: Annotated[str | None, typer.Option(help="Search with a stored item instead of an image: its id.")] = None,
    where: Annotated[list[str] | None, typer.Option(help="FIELD=VALUE of the payload; may be repeated.")] = None,
    approximate: Annotated[bool, typer.Option(help="Use the index if there is one; may miss a hit.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Merge hits of several versions by cosine, uncalibrated.")] = False,
    sheet: Annotated[Path | None, typer.Option(help="Draw queries and results as one picture (.png).")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Show the nearest items, the version that made their vectors, and their score.

    The score is the cosine. If the gallery holds vectors of several versions and the check has calibrated them, it is
    the probability that both images show the same class.
    """
    if bool(images) == (like is not None):
        raise InputError("search takes images, or --like ID; give one of them")
    if sheet is not None and sheet.suffix.lower() != ".png":
        raise InputError(f"--sheet {sheet}: a contact sheet is a .png file")
    from fixstar.gallery import SearchRequest
    from fixstar.workspace import Workspace

    request = SearchRequest(k, parse_where(where), exact=not approximate, calibrate=not raw)
    with Workspace(workspace, device) as space:
        if like is not None:
            names, answer = [like], space.like(like, request)
        else:
            names = [str(path) for path in images or ()]
            answer = space.search(list(images or ()), request)
        if sheet is not None:
            from fixstar.workspace.search import draw_result

            draw_result(space.serving, names, answer, like is not None, sheet)
        trained = answer.version in space.versions()
    if as_json:
        rows = [_hits_json(name, hits) for name, hits in zip(names, answer.hits, strict=True)]
        told = {"version": answer.version, "calibrated": answer.calibrated, "blend": dict(answer.blend)}
        print_json({**told, "queries": rows, "left_out": list(answer.left_out)})
    else:
        _print_hits(names, answer)
    for name in answer.left_out:
        print(_left_out(name, answer.version, trained, workspace), file=sys.stderr)
    if sheet is not None and not as_json:
        print(f"\nPicture: {sheet}")


def parse_where(words: list[str] | None) -> dict[str, Any] | None:
    """Conditions written FIELD=VALUE; a value that is JSON is read as such, anything else is a string.

    >>> parse_where(["shop=paris", "size=5", "price={\\"lt\\": 20}"])
    {'shop': 'paris', 'size': {'in': ['5', 5]}, 'price': {'lt': 20}}
    """
    parsed: dict[str, Any] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise InputError(f"--where {word!r} is not FIELD=VALUE, such as label=shoes or 'price={{\"lt\": 20}}'")
        try:
            known = json.loads(value)
        except ValueError as error:
            if value.startswith(("{", "[", '"')):
                raise InputError(
                    f"--where {word!r}: {value!r} looks like JSON but does not parse ({error}). Write it as in "
                    f"'price={{\"lt\": 20}}'. If it is plain text, write it as a JSON string: {json.dumps(value)}"
                ) from error
            known = value
        plain = isinstance(known, (int, float)) or known is None
        parsed[name] = {"in": [value, known]} if plain else known  # a folder named 5 gives the label "5"
    return parsed or None


def _hits_json(name: str, hits: list[Hit]) -> dict[str, Any]:
    return {"query": name, "hits": [{**hit._asdict(), "payload": dict(hit.payload)} for hit in hits]}


def _left_out(name: str, version: str, trained: bool, workspace: Path) -> str:
    """What to do about vectors that were not searched; ``trained`` if ``version`` is one of the workspace's own."""
    if not trained:
        return f"not searched: vectors of {name}. {version} items are compared only with {version} items"
    return (
        f"not searched: vectors of {name}, because no adapter connects them with queries of {version}. "
        f"If {version}'s own model made them elsewhere, import them as {name.partition('@')[0]}@{version} instead\n"
        f"Next: fixstar adapt {name} --for {version} -w {workspace}"
    )


def _print_hits(names: list[str], answer: SearchResult) -> None:
    heads = ("", "probability" if answer.calibrated else "cosine", "item", "label", "version")
    for name, hits in zip(names, answer.hits, strict=True):
        print(f"{name} (query by {answer.version})" if hits else f"{name}: nothing found")
        rows = [
            (str(place), f"{hit.score:.4f}", hit.id, str(hit.payload.get("label", "")), hit.version)
            for place, hit in enumerate(hits, start=1)
        ]
        if rows:
            print_table(heads, rows, right=heads[:2])


@app.command(epilog="Examples:  fixstar status -w shop   |   fixstar status -w shop --json")
def status(workspace: WorkspacePath = Path(), as_json: AsJson = False) -> None:
    """Show the versions, which one is deployed, what was checked, and whose vectors the gallery holds."""
    from fixstar.workspace import Workspace

    with Workspace(workspace, "cpu") as space:
        state = space.status()
        if as_json:
            print_json({**asdict(state), "checks": dict(state.checks)})
        else:
            _print_status(space, state)


def _print_status(space: Workspace, state: Status) -> None:
    if not state.versions:
        print(f"{state.path}: no version yet")
        print(_unfinished(state.training) if state.training else f"Next: fixstar train IMAGES -w {state.path}")
        return
    heads = ("version", "from", "method", "backbone", "classes", "check", "vectors", "")
    rows = []
    for name in state.versions:
        card = space.registry.card(name)
        about = card["about"]
        rows.append(
            (
                name,
                about.get("parent") or "",
                about.get("method", {}).get("name", ""),
                card["backbone"]["name"],
                str(len(card["slots"]["by_class"])),
                state.checks.get(name, "" if name == state.versions[0] else "not checked"),
                f"{state.vectors.get(name, 0):,}",
                "deployed" if name == state.deployed else "",
            )
        )
    print_table(heads, rows, right=("classes", "vectors"))
    for name, count in state.vectors.items():
        if count and name not in state.versions:
            print(f"{count:,} vectors of {name} ({'retired' if name in state.retired else 'imported'}: no encoder)")
    for name, versions in state.adapters.items():
        if state.vectors.get(name):
            print(f"vectors of {name} are searched through an adapter by queries of: {', '.join(versions) or 'none'}")
    print_blend(state.blend, state.deployed or "")
    if state.training:
        print(_unfinished(state.training))
