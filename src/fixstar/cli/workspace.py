"""fixstar demo, init, index, search, status, snapshot, restore: a workspace and its content."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import fixstar
from fixstar.cli.app import AsJson, Device, LabelOption, Trust, WorkspacePath, verb
from fixstar.cli.gallery import confirm
from fixstar.cli.next_steps import next_lines
from fixstar.cli.output import (
    GAP,
    Cell,
    print_json,
    print_result,
    print_table,
    print_wrapped,
    say,
    terminal_width,
    visible,
    wrapped,
)
from fixstar.cli.rollout import print_searched_by
from fixstar.errors import DataError, InputError, ItemError, NextStep, plural
from fixstar.progress import progress_bar
from fixstar.trust import is_trusted, module_of, remember, remembered, trusting
from fixstar.versions import named_in_space
from fixstar.wording import percent, points, rounded
from fixstar.workspace.checks import checks_on_one_set
from fixstar.workspace.registry import FIRST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fixstar.demo import DemoResult
    from fixstar.gallery import Hit, SearchResult
    from fixstar.images import ImageSource
    from fixstar.models import Encoder
    from fixstar.workspace import CatalogueItem, Check, Indexed, Status, Workspace
    from fixstar.workspace.items import Embedder

_SHOWN = 10  # maximum number of ids that are named
_SNIPPET = 72  # maximum characters of a found text
_LEAST_SNIPPET = 24
_ENOUGH = 100  # with fewer queries, a check does not show what has no match
_COLOURS = {"pass": "green", "refuse": "red", "missing evidence": "yellow"}


@verb("fixstar demo", "fixstar demo --out pictures --seed 1 --json")
def demo(
    out: Annotated[Path, typer.Option(help="Directory for models and pictures.")] = Path(
        "fixstar-demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the weights.")] = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train v1, index, upgrade, check, deploy: v2 searches v1's vectors, untouched. Then re-embed them step by step."""
    started = time.monotonic()
    from fixstar.demo import run_demo

    result = run_demo(out, seed, device, progress=not as_json, say=say)
    seconds = time.monotonic() - started
    if as_json:
        print_json({**asdict(result), "seconds": round(seconds, 1)})
    else:
        _print_demo(result, seconds)


def _print_demo(result: DemoResult, seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    print()
    table = Table("who asks", "what is stored", "found first", min_width=60)
    table.add_row("v1", "v1's vectors", percent(result.now))
    table.add_row("v2, without translation", "the same, untouched", percent(result.untranslated))
    table.add_row("v2, translated", "the same, untouched", f"[bold]{percent(result.at_once)}[/]")
    for share, found in result.curve[1:]:
        table.add_row("v2", f"{share:.0%} re-embedded", percent(found))
    console.print(table)
    console.print(result.sentence, highlight=False)
    console.print(f"\nPictures: {', '.join(result.pictures)}   ({seconds:.0f} s)", highlight=False)
    space = f"{result.directory}/workspace"
    print(f"Explore the workspace:\n  fixstar status -w {space}")
    print(f"  fixstar search --like 7 --sheet found.png -w {space}")
    print(f"  fixstar rollback -w {space}\n  fixstar serve -w {space}")


@verb("fixstar init shop", "fixstar init copied --trust shop.models")
def init(
    path: Annotated[Path, typer.Argument(help="The directory to create.")] = Path(),
    trust: Trust = None,
) -> None:
    """Create a workspace: a directory for the versions of one model and everything that belongs to them."""
    from fixstar.workspace.files import create_mark
    from fixstar.workspace.registry import Registry

    existed = (path / "workspace.json").exists()
    create_mark(path, None)
    for module in trust or ():
        remember(path, module)
    registry = Registry(path)
    versions = registry.names()
    training = registry.unfinished()
    if versions:
        print(f"workspace {path} exists already, with {', '.join(versions)}")
        print(f"Next: fixstar index CATALOGUE -w {path}\n      fixstar status -w {path}")
    elif training:
        print(f"workspace {path} exists already. {_unfinished(training)}")
    elif existed:
        print(
            f"workspace {path} exists already, with no version yet",
            *next_lines(FIRST, path),
            sep="\n",
        )
    else:
        print(f"workspace {path} is ready", *next_lines(FIRST, path), sep="\n")


def _unfinished(version: str) -> str:
    """The message for a version whose training has a checkpoint but no result."""
    return f"The training of {version} is running, or was interrupted: then the same command resumes it"


@verb(
    "fixstar index catalogue/ -w shop",
    "fixstar index items.csv -w shop --prefix paris/",
    "fixstar index cifar-100-binary -w shop --labelled",
    "fixstar index notes.jsonl -w notes --text body --id url",
)
def index(
    items: Annotated[
        Path,
        typer.Argument(
            help="A folder of images, a list (.csv: path, id, anything), or one image. For a model of texts: a .jsonl, "
            ".csv, .tsv or .parquet file, or a folder of .txt and .md files."
        ),
    ],
    workspace: WorkspacePath = Path(),
    prefix: Annotated[str, typer.Option(help="Put this before every id.")] = "",
    text: Annotated[
        str | None, typer.Option(help="The field that holds the text.", show_default="text")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--id", help="The field that holds the id.", show_default="id")
    ] = None,
    label: LabelOption = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Replace items with the same id and a different image, without asking.",
        ),
    ] = False,
    sync: Annotated[
        bool,
        typer.Option(
            "--sync",
            help="Also delete items whose image is no longer in the folder; lists them first.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --sync: do not ask before deleting.")
    ] = False,
    again: Annotated[
        bool, typer.Option(help="Also embed items whose image has not changed.")
    ] = False,
    labelled: Annotated[
        bool,
        typer.Option(help="Read a labelled dataset as train does; pixels without a file are kept."),
    ] = False,
    cluster: Annotated[
        str | None, typer.Option(help="Embed on a Ray cluster: its address, or local.")
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Embed images or texts with the deployed version. Items that are indexed already and unchanged are skipped.

    An item with a known id and a different image is replaced only with --replace, or if you confirm it.
    Unreadable images and broken rows of a file of texts are listed and skipped. Exit code 1 if none is usable.
    """
    from fixstar.workspace.items import vanished_items

    if sync and (labelled or not items.is_dir()):
        raise InputError(
            f"--sync compares a folder of images with the gallery, and {items} is not one"
        )

    with fixstar.Workspace(workspace, device) as space:
        broken: list[DataError] = []
        version = space.deployed()  # read once: embedder and gallery must use the same version
        if labelled:
            found = _labelled(space, items, prefix=prefix, label=label)
        else:
            found = _catalogue(
                space, items, prefix, label=label, text=text, key=key, on_bad=broken.append
            )
        if not replace:
            _ask_to_replace(space, found)
        gone: list[str] = []
        if sync:
            gone = vanished_items(space.gallery, items, prefix=prefix, items=found)
        if gone:
            print(f"No longer in {items}:", *_listed(gone), sep="\n", file=sys.stderr)
            confirm(yes, f"Delete {plural(len(gone), 'item')}?")
        with (
            _embedder(space, version, cluster) as embedder,
            progress_bar("embedding", len(found), "items", show=not as_json) as advance,
        ):
            done = space.index(found, embedder, again=again, progress=advance, version=version)
        deleted = space.gallery.delete(gone)
        spent = _spent(space.serving.encoder(version))
        total = sum(space.gallery.count().values())
        done = dataclasses.replace(done, bad=(*_skipped_rows(broken), *done.bad))
        for bad in done.bad:
            print(f"left out {visible(bad.name)}: {bad.reason}", file=sys.stderr)
        if as_json:
            print_json(_indexed_json(done, deleted=deleted, total=total))
        else:
            _print_indexed(done, deleted=deleted, total=total, space=space)
        if spent and done.added and not as_json:
            print(spent)
    if done.bad and not (done.added or done.unchanged):
        raise typer.Exit(1)


def _skipped_rows(broken: Sequence[DataError]) -> list[ItemError]:
    """Broken rows of a file as skipped items, with file and line."""
    found = []
    for error in broken:
        place, _, reason = str(error).partition(": ")
        found.append(ItemError(place, reason))
    return found


def _spent(encoder: Encoder) -> str:
    """The tokens that a server counted, and their price; empty for other models."""
    from fixstar.models.backbones.endpoint import EndpointBackbone

    backbone = encoder.backbone
    if not isinstance(backbone, EndpointBackbone) or not backbone.tokens:
        return ""
    counted = f"The server counted {backbone.tokens:,} tokens"
    cost = backbone.cost(backbone.tokens)
    if cost is None:
        return counted
    return f"{counted}, {cost:.6g} at the given price per million tokens"


def _catalogue(
    space: Workspace,
    items: Path,
    prefix: str,
    *,
    label: str | None,
    text: str | None,
    key: str | None,
    on_bad: Callable[[DataError], None],
) -> list[CatalogueItem]:
    """The items of a file or folder: images, or texts if the models read texts."""
    from fixstar.data.texts import TABLES, TEXT_EXTENSIONS
    from fixstar.workspace.items import catalogue, text_catalogue

    if space.registry.reads() == "texts":
        if label is not None:
            raise InputError(
                "--label is for folders of images; the label of a text is its field label"
            )
        return list(text_catalogue(items, prefix, text=text, key=key, on_bad=on_bad))
    if text is not None or key is not None:
        raise InputError(
            f"--text and --id are for texts, and the models of {space.path} read images"
        )
    if items.is_file() and items.suffix.lower() in (TABLES | TEXT_EXTENSIONS) - {".csv"}:
        raise InputError(
            f"{items} holds texts, and the models of {space.path} read images",
            NextStep("init", {"path": ...}, "a workspace for texts; then add a text model"),
        )
    return list(catalogue(items, prefix, label))


def _ask_to_replace(space: Workspace, found: list[CatalogueItem]) -> None:
    """Ask for confirmation if the gallery has different images under some of these ids."""
    from fixstar.workspace.items import IMAGE, replaced_items

    twice = replaced_items(space.gallery, found)
    if not twice:
        return
    here = {item.id: item.payload.get(IMAGE) for item in found}
    lines = [
        f"the gallery holds other {space.registry.reads()} under {plural(len(twice), 'id')} of these:"
    ]
    for name, item in space.gallery.get(twice[:_SHOWN]).items():
        lines.append(f"  {name}: {item.payload.get(IMAGE, 'a vector')} would become {here[name]}")
    if len(twice) > _SHOWN:
        lines.append(f"  ... and {len(twice) - _SHOWN:,} more")
    seen = "\n".join(lines)
    if not sys.stdin.isatty():
        raise InputError(
            seen,
            NextStep("repeat", {"replace": True}, "replace them"),
            NextStep("repeat", {"prefix": ...}, "keep both, with other ids"),
        )
    print(seen, file=sys.stderr)
    typer.confirm("Replace them?", abort=True, err=True)


def _listed(names: list[str]) -> list[str]:
    lines = [f"  {name}" for name in names[:_SHOWN]]
    if len(names) > _SHOWN:
        lines.append(f"  ... and {len(names) - _SHOWN:,} more")
    return lines


def _labelled(
    space: Workspace, data: Path, *, prefix: str, label: str | None
) -> list[CatalogueItem]:
    """The items of a dataset. Pixels without a file are stored in the workspace, for later re-embedding."""
    from fixstar.data import open_images
    from fixstar.workspace import labelled_items
    from fixstar.workspace.items import STAMP

    items = []
    for item in labelled_items(open_images(data, label=label), prefix):
        if STAMP not in item.payload:
            kept = space.images.keep(item.image)
            item = dataclasses.replace(item, payload={**item.payload, **kept})
        items.append(item)
    return items


def _embedder(
    space: Workspace, version: str, cluster: str | None
) -> AbstractContextManager[Embedder | None]:
    """The embedder for a cluster; None: embed in this process."""
    if cluster is None:
        return nullcontext()
    from fixstar.workspace.cluster import RayEmbedder

    return RayEmbedder(space.registry.directory(version).absolute(), cluster)


def _indexed_json(done: Indexed, deleted: int, total: int) -> dict[str, Any]:
    return {
        "version": done.version,
        "added": done.added,
        "changed": done.changed,
        "replaced": done.replaced,
        "unchanged": done.unchanged,
        "updated": done.updated,
        "deleted": deleted,
        "items": total,
        "bad": [{"id": item.name, "reason": item.reason} for item in done.bad],
    }


def _print_indexed(done: Indexed, deleted: int, total: int, space: Workspace) -> None:
    unchanged = "unchanged"
    if done.updated:
        unchanged = f"unchanged (labels or fields of {done.updated:,} updated)"
    counts = {
        "new": done.added - done.changed - done.replaced,
        "changed": done.changed,
        "replaced": done.replaced,
        unchanged: done.unchanged,
        "unreadable": len(done.bad),
        "deleted": deleted,
    }
    told = (
        ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "nothing to do"
    )
    print_wrapped(
        f"{plural(done.added, 'item')} embedded with {done.version}: {told}. The gallery holds {total:,}"
    )
    reads = space.registry.reads()
    if done.added or done.unchanged:
        query = "TEXT" if reads == "texts" else "IMAGE"
        print(f"Next: fixstar search {query} -w {space.path}")
    elif done.bad:
        print(f"Next: repair or replace the {reads} named above, then run the same command again")


@verb(
    "fixstar search shoe.jpg -w shop",
    "fixstar search shoe.jpg bag.jpg -k 5 --sheet found.png",
    "fixstar search --like shoes/17.jpg --where label=shoes --where 'price={\"lt\": 20}'",
    "fixstar search 'how do I return shoes' -w notes",
    "fixstar search 'how do I return shoes' --fresh 50 -w notes",
)
def search(
    images: Annotated[
        list[str] | None,
        typer.Argument(help="One or more image files; for a text model, one or more texts."),
    ] = None,
    workspace: WorkspacePath = Path(),
    k: Annotated[int, typer.Option("-k", help="Results per image.")] = 10,
    like: Annotated[
        str | None, typer.Option(help="Search with a stored item instead of an image: its id.")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="FIELD=VALUE of the payload; may be repeated.")
    ] = None,
    approximate: Annotated[
        bool, typer.Option(help="Use the index if there is one; may miss a hit.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Rank hits of several versions by plain scores.")
    ] = False,
    fresh: Annotated[
        int,
        typer.Option(
            help="Read through before answering: embed the best so many items again where their vectors are older, and "
            "keep that. One embedding per item, when it is first met. Needs a passed check.",
            show_default="none",
        ),
    ] = 0,
    sheet: Annotated[
        Path | None, typer.Option(help="Draw queries and results as one picture (.png).")
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Show the nearest items, the version that made their vectors, and their score.

    The score is a cosine, or the weighted sum of two where old vectors are translated. If the gallery holds vectors of
    several versions and the check has calibrated them, it is a relative score, which makes them comparable: at 0.5 the
    query's class and another are equally likely, if the gallery holds the query's class at all. If 95 % of the queries
    with a match have a better hit, as the check measured, the query is probably not in the catalogue.
    """
    if bool(images) == (like is not None):
        raise InputError("search takes images or texts, or --like ID; give one of them")
    if sheet is not None and sheet.suffix.lower() != ".png":
        raise InputError(f"--sheet {sheet}: a contact sheet is a .png file")
    if fresh and like is not None:
        raise InputError(
            "--fresh is for a search with images or texts; --like searches with a stored vector"
        )
    from fixstar.gallery import SearchRequest
    from fixstar.workspace.items import unknown_fields

    request = SearchRequest(k, parse_where(where), exact=not approximate, calibrate=not raw)
    with fixstar.Workspace(workspace, device) as space:
        if like is not None:
            names = [like]
            answer = space.like(like, request)
        else:
            names = list(images or ())
            answer = space.search(_queries(space, names), request, fresh=fresh)
        if sheet is not None and space.registry.reads() == "texts":
            raise InputError("--sheet draws images, and these are texts")
        if sheet is not None:
            from fixstar.workspace.contact_sheet import draw_result

            draw_result(space.serving, names, answer, stored=like is not None, path=sheet)
        asking = answer.models[0]
        trained = asking in space.versions()
        checked_on = 0
        if trained:
            last = space.last_check(asking)
            if last is not None:
                checked_on = last.queries
        reads = space.registry.reads()
        unknown: Iterable[str] = ()
        if not any(answer.hits):
            unknown = unknown_fields(space.gallery, request.where or {})
    if as_json:
        print_json(
            {
                "version": answer.version,
                "calibrated": answer.calibrated,
                "models": list(answer.models),
                "thresholds": dict(answer.thresholds),
                "queries": [
                    _hits_json(name, hits, answer)
                    for name, hits in zip(names, answer.hits, strict=True)
                ],
                "left_out": list(answer.left_out),
                "embedded": answer.embedded,
            }
        )
    else:
        _print_hits(names, answer)
        if fresh:
            told = f"{plural(answer.embedded, 'item')} embedded again with {answer.version} before this answer"
            print(told, file=sys.stderr)
        if trained and not answer.thresholds and any(answer.hits) and checked_on < _ENOUGH:
            step = NextStep(
                "check", {"version": asking, "data": ...}, f"with 100 labelled {reads} or more"
            )
            said = f"Not measured: below which score {asking}'s queries probably have no match. A check does that"
            print(wrapped(said), *next_lines([step], workspace), sep="\n", file=sys.stderr)
    for field in unknown:
        print(f"No item has the field {field!r}", file=sys.stderr)
    for name in answer.left_out:
        print(
            _left_out(name, answer.version, trained=trained, workspace=workspace), file=sys.stderr
        )
    if sheet is not None and not as_json:
        print(f"\nPicture: {sheet}")


def _queries(space: Workspace, names: list[str]) -> list[ImageSource]:
    """The queries as inputs of the deployed version: texts, or paths of images."""
    if space.registry.reads() == "texts":
        return list(names)
    for name in names:
        if "://" in name:
            raise InputError(
                f"{name} is an address, but search takes image files; download the image first"
            )
    return [Path(name) for name in names]


def parse_where(words: list[str] | None) -> dict[str, Any] | None:
    """Parse conditions FIELD=VALUE. A value that is JSON is read as JSON, anything else as a string.

    >>> parse_where(["shop=paris", "size=5", "price={\\"lt\\": 20}"])
    {'shop': 'paris', 'size': {'in': ['5', 5]}, 'price': {'lt': 20}}
    """
    parsed: dict[str, Any] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise InputError(
                f"--where {word!r} is not FIELD=VALUE, such as label=shoes or 'price={{\"lt\": 20}}'"
            )
        try:
            known = json.loads(value)
        except ValueError as error:
            if value.startswith(("{", "[", '"')):
                raise InputError(
                    f"--where {word!r}: {value!r} looks like JSON but does not parse ({error}). Write it as in "
                    f"'price={{\"lt\": 20}}'. If it is plain text, write it as a JSON string: {json.dumps(value)}"
                ) from error
            known = value
        if isinstance(known, (int, float)) or known is None:
            known = {"in": [value, known]}  # a folder named 5 gives the label "5"
        parsed[name] = known
    return parsed or None


def _hits_json(name: str, hits: list[Hit], answer: SearchResult) -> dict[str, Any]:
    rows = [
        {**hit._asdict(), "payload": dict(hit.payload), "unlikely": answer.is_unlikely(hit)}
        for hit in hits
    ]
    return {"query": name, "hits": rows}


def _left_out(name: str, version: str, trained: bool, workspace: Path) -> str:
    """The hint for vectors that were not searched; ``trained``: ``version`` is a version of the workspace."""
    if not trained:
        return f"not searched: vectors of {name}. {version} items are compared only with {version} items"
    return (
        f"not searched: vectors of {name}, because nothing connects them with queries of {version}. "
        f"If {version}'s own model made them elsewhere, import them as {named_in_space(name, version)} instead\n"
        f"Next: fixstar check {version} -w {workspace}"
    )


def _print_hits(names: list[str], answer: SearchResult) -> None:
    from fixstar.workspace.items import text_of

    found = [hit for hits in answer.hits for hit in hits]
    shows_text = any(text_of(hit) is not None for hit in found)
    score = "relative score" if answer.calibrated else "score"
    heads = ("", score, "item", "text" if shows_text else "label", "version")
    room = _room_for_text(heads, found)
    for name, hits in zip(names, answer.hits, strict=True):
        if not hits:
            print(f"{visible(name)}: nothing found")
            continue
        print(f"{visible(name)} (query by {' and '.join(answer.models)})")
        rows = []
        for place, hit in enumerate(hits, start=1):
            shown = str(hit.payload.get("label", ""))
            if shows_text:
                shown = _beginning(text_of(hit) or "", room)
            rows.append((str(place), rounded(hit.score, 3), hit.id, shown, hit.version))
        if all(map(answer.is_unlikely, hits)):
            print("Probably not in the catalogue; the nearest:")
        print_table(heads, rows, right=heads[:2])
    if answer.calibrated and any(answer.hits):
        print_wrapped(
            "Relative score: how much likelier the query's class is than another, if the gallery holds that class. It "
            "does not say whether it does"
        )


def _room_for_text(heads: Sequence[str], found: Sequence[Hit]) -> int:
    """The number of characters left for a text beside the other columns of a table of hits."""
    places = len(str(len(found)))
    scores = max([len(heads[1]), *(len(rounded(hit.score, 3)) for hit in found)])
    ids = max([len(heads[2]), *(len(visible(hit.id)) for hit in found)])
    versions = max([len(heads[4]), *(len(hit.version) for hit in found)])
    others = places + scores + ids + versions + len(heads) * GAP
    return max(_LEAST_SNIPPET, min(_SNIPPET, terminal_width() - others))


def _beginning(text: str, longest: int = _SNIPPET) -> str:
    """The first words of a text, on one line.

    >>> _beginning("one\\ntwo"), _beginning("three words here", 8)
    ('one two', 'three w…')
    """
    line = visible(" ".join(text.split()))
    if len(line) > longest:
        return f"{line[: longest - 1]}…"
    return line


@verb("fixstar status -w shop", "fixstar status -w shop --json")
def status(workspace: WorkspacePath = Path(), as_json: AsJson = False) -> None:
    """Show the versions, which one is deployed, what was checked, and whose vectors the gallery holds."""
    with fixstar.Workspace(workspace, "cpu") as space:
        state = space.status()
        if as_json:
            print_json(
                {
                    **asdict(state),
                    "checks": dict(state.checks),
                    "deployment": asdict(space.rollout.current_move()),
                }
            )
        else:
            _print_status(space, state)


def _print_status(space: Workspace, state: Status) -> None:
    if not state.versions:
        print(f"{state.path}: no version yet")
        if state.training:
            print(_unfinished(state.training))
        else:
            print(*next_lines(FIRST, space.path), sep="\n")
        return
    heads = (
        "version",
        "from",
        "made",
        "method",
        "backbone",
        "classes",
        "vectors",
        "check",
        "alone",
        "on old",
    )
    measured = {check.version: check for check in checks_on_one_set(space.path, state.versions)}
    rows = [
        _status_row(space, state, name=name, measured=measured.get(name)) for name in state.versions
    ]
    print_table(
        heads, rows, right=("classes", "vectors", *heads[-2:]), optional=("made", "from", "classes")
    )
    move = space.rollout.current_move()
    deployed = f"{move.version} is deployed"
    if move.when:
        deployed += f" since {move.when[:16].replace('T', ' ')} UTC"
    if move.by:
        deployed += f", by {move.by}"
    print_wrapped(deployed)
    if move.reason is not None:
        print_wrapped(f"FORCED, without a passed check: {move.reason}")
    if measured:
        images = next(iter(measured.values())).images
        print_wrapped(
            f"check: the one that counts. Figures of one set of {space.registry.reads()} ({images}). alone: accuracy "
            "on own vectors. on old: the worst difference on vectors of other versions, in points"
        )
    for name, count in state.vectors.items():
        if count and name not in state.versions:
            kind = "retired" if name in state.retired else "imported"
            print(f"{plural(count, 'vector')} of {name} ({kind}: no encoder)")
    print_searched_by(state)
    for name in state.left_out:
        print_wrapped(
            f"vectors of {name} are not searched: nothing connects them with {state.deployed}"
        )
    if state.training:
        print(_unfinished(state.training))


def _status_row(
    space: Workspace, state: Status, *, name: str, measured: Check | None
) -> tuple[Cell, ...]:
    """The row of a version; ``measured`` is its check on the common set of images."""
    card = space.registry.card(name)
    check = space.last_check(name)
    made = datetime.fromtimestamp(space.registry.card_file(name).stat().st_mtime, UTC)
    shown: Cell = name
    if name == state.deployed:
        shown = (f"{name} *", "bold")
    outcome: Cell = "not checked"
    if check is not None:
        outcome = (check.outcome, _COLOURS[check.outcome])
    elif name == state.versions[0]:
        outcome = ""
    alone = ""
    worst = ""
    if measured is not None and measured.self_test is not None:
        alone = percent(measured.self_test)
    if measured is not None and measured.cells:
        worst = points(min(cell.difference for cell in measured.cells))
    return (
        shown,
        card["about"].get("parent") or "",
        f"{made:%Y-%m-%d}",
        card["about"].get("method", {}).get("name", ""),
        card["backbone"]["name"],
        f"{len(card['slots']['by_class']):,}",
        f"{state.vectors.get(name, 0):,}",
        outcome,
        alone,
        worst,
    )


@verb("fixstar snapshot /backup/shop -w shop", "fixstar snapshot /backup/monday.tar -w shop")
def snapshot(
    target: Annotated[
        Path, typer.Argument(help="A folder, or FILE.tar. A folder's older snapshot is updated.")
    ],
    workspace: WorkspacePath = Path(),
    as_json: AsJson = False,
) -> None:
    """Copy a workspace, also while it is being served. Images that the folder already has are not copied again."""
    from fixstar.workspace.files import read_mark
    from fixstar.workspace.snapshot import take_snapshot

    read_mark(workspace)
    done = take_snapshot(workspace, target)
    new = f"{done.copied:,} new ({done.copied_bytes / 1e6:,.1f} MB)"
    line = f"{plural(done.files, 'file')} ({done.bytes / 1e6:,.1f} MB) in {target}, {new}"
    print_result(as_json, done._asdict(), line)


@verb("fixstar restore /backup/shop -w shop", "fixstar restore monday.tar -w shop --replace")
def restore(
    source: Annotated[
        Path, typer.Argument(metavar="SNAPSHOT", help="A folder or FILE.tar of fixstar snapshot.")
    ],
    workspace: WorkspacePath = Path(),
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace the existing workspace; it must not be served."),
    ] = False,
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Restore a workspace from a snapshot. Everything is checked first; a damaged snapshot changes nothing."""
    from fixstar.workspace.registry import Registry
    from fixstar.workspace.snapshot import restore_snapshot

    done = restore_snapshot(source, workspace, replace)
    for module in trust or ():
        remember(workspace, module)
    with trusting(*remembered(workspace)):
        untrusted = {
            name: code
            for name, code in Registry(workspace).code().items()
            if not is_trusted(module_of(code))
        }
    told = [f"{plural(done.files, 'file')} of {done.when} restored to {workspace}"]
    for name, code in untrusted.items():
        told.append(f"{name} is made by {code}, which does not run until you trust it")
    for module in sorted({module_of(code) for code in untrusted.values()}):
        told.append(f"Next: fixstar init {workspace} --trust {module}   # if you know this code")
    print_result(as_json, {**done._asdict(), "untrusted": untrusted}, *told)
