"""fixstar gallery: the stored vectors, of a workspace or of any gallery by its address."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import fixstar
from fixstar.cli.app import AsJson, Verbs, WorkspacePath, app, examples, verb
from fixstar.cli.output import print_result
from fixstar.errors import DamagedItemError, FixstarError, InputError, plural
from fixstar.progress import progress_bar
from fixstar.versions import is_version_name
from fixstar.workspace.registry import Registry

if TYPE_CHECKING:
    from fixstar.gallery import Gallery
    from fixstar.gallery.store import IndexState
    from fixstar.workspace import Workspace

_BATCH = 1024
_NAMED = 20  # maximum number of unknown ids in a message

GalleryAddress = Annotated[
    str | None,
    typer.Option(
        "--gallery",
        help="A gallery by its address instead of the workspace's: a file, or a server's URL.",
    ),
]
gallery_app = typer.Typer(
    cls=Verbs,
    help="The stored vectors: count, verify, import, export, move to another store; delete unused images.",
    no_args_is_help=True,
    epilog=examples(
        "fixstar gallery stats -w shop", "fixstar gallery move postgresql://host/db -w shop"
    ),
)
app.add_typer(gallery_app, name="gallery")


def _opened(workspace: Path, address: str | None) -> Gallery:
    """The gallery at the address, or the workspace's."""
    from fixstar.gallery import open_gallery
    from fixstar.workspace.files import open_workspace_gallery

    if address is None:
        return open_workspace_gallery(workspace)
    return open_gallery(address, create=False)


@verb(
    "fixstar gallery stats -w shop",
    "fixstar gallery stats --gallery old.db --json",
    group=gallery_app,
)
def stats(
    workspace: WorkspacePath = Path(), gallery: GalleryAddress = None, as_json: AsJson = False
) -> None:
    """Count the items per version, and show the width of their vectors and the state of the index."""
    with _opened(workspace, gallery) as store:
        counts = store.count()
        spaces = store.versions()
        indexes = {state.version: state for state in store.indexes()}
    rows = []
    lines = [plural(sum(counts.values()), "item")]
    for space in spaces:
        index = indexes.get(space.name)
        rows.append(
            {
                "version": space.name,
                "items": counts[space.name],
                "width": space.width,
                "full_width": space.full_width,
                "index": None if index is None else index._asdict(),
            }
        )
        width = f"{space.width}"
        if space.width != space.full_width:
            width = f"{space.width} of {space.full_width}"
        vectors = plural(counts[space.name], "vector")
        lines.append(f"  {space.name}: {vectors} of {width} numbers, {_how_searched(index)}")
    print_result(as_json, {"items": sum(counts.values()), "versions": rows}, *lines)


def _how_searched(index: IndexState | None) -> str:
    if index is None:
        return "exact search"
    told = f"{index.kind} over {index.items:,}"
    if index.recall is not None:
        told += f", recall {index.recall:.3f}"
    return told


@verb("fixstar gallery verify -w shop", group=gallery_app)
def verify(
    workspace: WorkspacePath = Path(), gallery: GalleryAddress = None, as_json: AsJson = False
) -> None:
    """Read everything and report what is damaged: a workspace's other files too. Changes nothing.

    Exit code 1 if there are problems.
    """
    from fixstar.gallery import verify_gallery

    count = 0
    problems: list[str] = []
    if gallery is None:
        from fixstar.workspace.files import read_mark
        from fixstar.workspace.verify import verify_workspace

        read_mark(workspace)
        problems = list(verify_workspace(workspace))
    try:
        with _opened(workspace, gallery) as store:
            count = sum(store.count().values())
            if gallery is not None:
                problems += verify_gallery(store)
    except FixstarError:  # already reported
        if not problems:
            raise
    lines = problems or [f"{plural(count, 'item')}, no problems"]
    print_result(as_json, {"items": count, "problems": problems}, *lines)
    if problems:
        raise typer.Exit(1)


@verb("fixstar gallery build-index -w shop", group=gallery_app, name="build-index")
def build_index(
    workspace: WorkspacePath = Path(),
    gallery: GalleryAddress = None,
    version: Annotated[str | None, typer.Option(help="Only this version's vectors.")] = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild the approximate index and wait for it. The vectors are not changed."""
    with _opened(workspace, gallery) as store:
        made = store.build_index(version)
    lines = []
    for state in made:
        recall = "not measured"
        if state.recall is not None:
            recall = f"{state.recall:.3f}, measured with stored vectors"
        lines.append(
            f"{state.version}: {state.kind} over {plural(state.items, 'vector')}, recall@10 {recall}"
        )
    nothing = ["nothing to index: this gallery always searches exactly, or is empty"]
    print_result(as_json, [state._asdict() for state in made], *(lines or nothing))


@verb(
    "fixstar gallery delete shoe/17.png hat/3.png -w shop",
    "fixstar gallery delete --version old-system --yes -w shop",
    group=gallery_app,
)
def delete(
    ids: Annotated[
        list[str] | None, typer.Argument(help="The items; - reads their ids from standard input.")
    ] = None,
    workspace: WorkspacePath = Path(),
    gallery: GalleryAddress = None,
    version: Annotated[
        str | None, typer.Option(help="All items with a vector of this version.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete items from the gallery: by id, or all of a version. Their images and the version's model stay."""
    if (version is None) == (not ids):
        raise InputError(
            "name the items: their ids, or --version NAME for all items of a version, not both"
        )
    with _opened(workspace, gallery) as store:
        if version is not None:
            store.projection(version)  # refuses an unknown name and lists the known ones
            confirm(
                yes, f"Delete all {plural(store.count().get(version, 0), 'item')} of {version}?"
            )
        wanted = _ids(store, ids or [], version)
        deleted = 0
        unknown: list[str] = []
        while batch := list(islice(wanted, _BATCH)):
            if version is None:
                unknown += _unknown(store, batch)
            deleted += store.delete(batch)
        left = sum(store.count().values())
    lines = [f"{plural(deleted, 'item')} deleted; the gallery holds {left:,}"]
    if unknown:
        named = ", ".join(unknown[:_NAMED])
        if len(unknown) > _NAMED:
            named += f" and {len(unknown) - _NAMED:,} more"
        lines.append(f"Not in the gallery: {named}")
    print_result(as_json, {"deleted": deleted, "items": left, "unknown": unknown}, *lines)


def _ids(store: Gallery, ids: list[str], version: str | None) -> Iterator[str]:
    if version is not None:
        return (item.id for item in store.iterate(version))
    if ids == ["-"]:
        lines = (line.rstrip("\r\n") for line in sys.stdin)
        return filter(None, lines)
    return iter(ids)


def _unknown(store: Gallery, ids: list[str]) -> list[str]:
    """The ids that the gallery does not have. A damaged item counts as known: it can be deleted."""
    try:
        known = store.get(ids)
    except DamagedItemError:  # find it by bisection
        middle = len(ids) // 2
        if not middle:
            return []
        return _unknown(store, ids[:middle]) + _unknown(store, ids[middle:])
    return [name for name in dict.fromkeys(ids) if name not in known]


def confirm(yes: bool, question: str) -> None:
    """Ask for confirmation at the terminal, unless --yes is given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError(f"{question} Confirm with --yes")
    typer.confirm(question, abort=True, err=True)


@verb(
    "fixstar gallery export v1 v1.npz -w shop",
    "fixstar gallery export v1 v1.parquet",
    group=gallery_app,
    name="export",
)
def export_vectors(
    version: Annotated[str, typer.Argument(help="The version whose vectors to write.")],
    file: Annotated[Path, typer.Argument(help="FILE.npz, FILE.npy or FILE.parquet.")],
    workspace: WorkspacePath = Path(),
    gallery: GalleryAddress = None,
    as_json: AsJson = False,
) -> None:
    """Write the vectors, ids and payloads of a version to a file."""
    from fixstar.gallery import export_version

    with (
        _opened(workspace, gallery) as store,
        progress_bar(
            "exporting", store.count().get(version, 0), "items", show=not as_json
        ) as advance,
    ):
        origin = None
        if not gallery:
            origin = _origin(workspace, version)
        count = export_version(store, version, file, progress=advance, origin=origin)
    content = {"version": version, "items": count, "file": str(file)}
    print_result(as_json, content, f"{plural(count, 'item')} in {file}")


@verb(
    "fixstar gallery import old.parquet --as old-system -w shop",
    "fixstar gallery import clip.parquet --as clip --id-column sku --vector-column embedding",
    "fixstar gallery import 'postgresql://me@host/db?table=photos' --as clip",
    "fixstar gallery import 'qdrant://host:6333?collection=photos' --as clip",
    group=gallery_app,
    name="import",
)
def import_vectors(
    file: Annotated[
        str,
        typer.Argument(
            help="FILE.npz, .npy, .parquet or .faiss with vectors; postgresql://...?table=NAME (pgvector), or "
            "qdrant://, chroma:// or milvus://...?collection=NAME; lancedb:///FOLDER?table=NAME."
        ),
    ],
    name: Annotated[str, typer.Option("--as", help="Name of the version that made them.")],
    workspace: WorkspacePath = Path(),
    gallery: GalleryAddress = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            help="The column with the ids: of FILE.parquet, a table, or payloads.",
            show_default="id",
        ),
    ] = None,
    vector_column: Annotated[
        str | None,
        typer.Option(
            help="The column with the vectors, or the name of a named vector.",
            show_default="vector",
        ),
    ] = None,
    prefix: Annotated[str, typer.Option(help="Put this before every id.")] = "",
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Replace the vectors of items that other versions hold."),
    ] = False,
    trust_images: Annotated[
        bool,
        typer.Option(
            "--trust-images",
            help="Keep the payload fields image and stamp: a backfill reads the files that they name, and the "
            "service shows them. Only for files from a trusted source: they can name any image on this machine.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Store vectors of any system and width as a separate version. Everything is checked first.

    Names such as v1 are reserved for the workspace: only its own exports can be imported under them. The name old@v1
    means that the vectors are in v1's space: they are then searched together with v1's.
    """
    from fixstar.gallery import import_version
    from fixstar.gallery.addresses import without_secret
    from fixstar.gallery.transfer import open_vectors
    from fixstar.workspace.items import IMAGE, STAMP

    typed = {
        "gallery": gallery and without_secret(gallery),
        "id_column": id_column,
        "vector_column": vector_column,
        "prefix": prefix or None,
        "take_over": take_over,
        "trust_images": trust_images,
    }
    with _keeping(without_secret(file), name, typed), _opened(workspace, gallery) as store:
        vectors = open_vectors(file, id_column, vector_column)
        if gallery is None:
            _require_own(workspace, name, file=without_secret(file), origin=vectors.origin)
        with progress_bar("importing", len(vectors.ids), "items", show=not as_json) as advance:
            count = import_version(
                store,
                name,
                vectors,
                progress=advance,
                take_over=take_over,
                without=() if trust_images else (IMAGE, STAMP),
                prefix=prefix,
            )
    print_result(
        as_json,
        {"version": name, "items": count},
        f"{plural(count, 'item')} stored as version {name}",
    )


@contextmanager
def _keeping(file: str, name: str, typed: Mapping[str, str | bool | None]) -> Iterator[None]:
    """Keep the typed address and options in imports that an error suggests."""
    given = {option: value for option, value in typed.items() if value is not None}
    try:
        yield
    except FixstarError as error:
        steps = []
        for step in error.next_steps:
            if step.action == "import-vectors":
                step = replace(
                    step, arguments={**given, **step.arguments, "file": file, "name": name}
                )
            steps.append(step)
        error.next_steps = tuple(steps)
        raise


def _origin(workspace: Path, name: str) -> str | None:
    """The origin that an export records for the workspace's own vectors: version and checksum of the weights.

    None for vectors of other systems.
    """
    if not is_version_name(name):
        return None
    try:  # read only the file: checking the card would import torch
        card = json.loads(Registry(workspace).card_file(name).read_text(encoding="utf-8"))
        return f"{name} {card['weights']['sha256']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _require_own(workspace: Path, name: str, file: str, origin: str | None) -> None:
    """Refuse vectors under the name of one of the workspace's versions, unless that version made them."""
    if not is_version_name(name) or (origin is not None and origin == _origin(workspace, name)):
        return
    if origin is None:
        seen = f"{file} does not say that it holds {name} of this workspace"
    else:
        made = origin.partition(" ")[0]
        seen = f"{file} holds {made}"
        if made == name:
            seen += " of another workspace"
    raise InputError(
        f"{name!r} is reserved for vectors that the workspace made itself, and {seen}. Choose another name, such as "
        f"--as old-system, or old-system@{name} if they are in its space. Only an export by this workspace (fixstar "
        f"gallery export {name} FILE.npz or FILE.parquet) can be imported as {name}"
    )


@verb("fixstar gallery move postgresql://host/db?gallery=shop -w shop", group=gallery_app)
def move(
    target: Annotated[
        str, typer.Argument(help="The new place of the gallery: a file, or a server's URL.")
    ],
    workspace: WorkspacePath = Path(),
    gallery: GalleryAddress = None,
    as_json: AsJson = False,
) -> None:
    """Copy a gallery to another store; a workspace then uses the new one. The old one is not changed.

    Stop all writers first. After an interruption run the same command again.
    """
    from fixstar.gallery import copy_gallery, open_gallery
    from fixstar.gallery.addresses import without_secret
    from fixstar.workspace.files import gallery_url, refuse_secret, set_gallery

    source = gallery or gallery_url(workspace)
    target = _address(target)
    if gallery is None:
        refuse_secret(target)
    if _same(source, target):
        raise InputError(f"the gallery is already at {without_secret(target)}")
    with _opened(workspace, gallery) as old, open_gallery(target) as new:
        total = sum(old.count().values())
        with progress_bar("copying", total, "items", show=not as_json) as advance:
            count = copy_gallery(old, new, advance)
        if _counted(new) != _counted(old):
            raise InputError(
                f"the target now counts {_counted(new)}, the source {_counted(old)}: there was another writer, or the "
                "target was not empty. The workspace still uses the old gallery; run again without other writers"
            )
    if gallery is None:
        set_gallery(workspace, _kept(workspace, target))
    lines = [f"{plural(count, 'item')} copied to {without_secret(target)}"]
    if gallery is None:
        lines[0] += "; the workspace now uses it"
        back = shlex.join(
            ["fixstar", "gallery", "use", without_secret(source), "-w", str(workspace)]
        )
        lines.append(f"The old one stays as it is. To return to it: {back}")
    print_result(
        as_json,
        {"items": count, "from": without_secret(source), "to": without_secret(target)},
        *lines,
    )


@verb("fixstar gallery use shop/gallery.db -w shop", group=gallery_app)
def use(
    target: Annotated[str, typer.Argument(help="An existing gallery: a file, or a server's URL.")],
    workspace: WorkspacePath = Path(),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first if it holds less.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let a workspace use another gallery, such as the one that it was moved from. Copies and deletes nothing.

    It must hold vectors of the workspace's versions. It is compared with the current gallery first, if that can be
    opened. Restart a running service afterwards.
    """
    from fixstar.gallery import open_gallery
    from fixstar.gallery.addresses import without_secret
    from fixstar.workspace.files import gallery_url, refuse_secret, set_gallery

    before = gallery_url(workspace)
    target = _address(target)
    refuse_secret(target)
    if _same(before, target):
        raise InputError(f"the workspace uses {without_secret(target)} already")
    with open_gallery(target, create=False, read_only=True) as chosen:
        own = _own_versions(workspace, chosen)
        there = _counted(chosen)
    current, unreadable = _current_counts(before)
    differences = _differences(own, there, current)
    if differences:
        confirm(
            yes,
            f"{target} has {'; '.join(differences)}. Use it anyway? The other gallery stays as it is.",
        )
    set_gallery(workspace, _kept(workspace, target))
    counted = [f"{plural(count, 'item')} of {name}" for name, count in there.items()]
    lines = [f"the workspace now uses {target}: {', '.join(counted) or 'no items yet'}"]
    if unreadable:
        lines.append(f"It could not be compared with the gallery used before: {unreadable}")
        lines.append(
            "Items written only there are missing here until you return to it or index them again"
        )
    comparison = {"vectors": there, "compared": not unreadable, "differences": differences}
    print_result(
        as_json, {"gallery": target, "before": without_secret(before), **comparison}, *lines
    )


def _address(target: str) -> str:
    """A server's URL unchanged, a file as its absolute path."""
    if target == ":memory:":
        raise InputError(
            "a gallery in memory ends with the command; give a file, or a server's URL"
        )
    if "://" in target:
        return target
    return str(Path(target).absolute())


def _same(one: str, other: str) -> bool:
    if "://" in one or "://" in other:
        return one == other
    return Path(one).resolve() == Path(other).resolve()


def _kept(workspace: Path, target: str) -> str:
    """The address in workspace.json: relative for a file inside the workspace, so that both can be moved."""
    if "://" not in target and Path(target).resolve().is_relative_to(workspace.resolve()):
        return str(Path(target).resolve().relative_to(workspace.resolve()))
    return target


def _own_versions(workspace: Path, gallery: Gallery) -> list[str]:
    """The versions of a workspace; refuses a gallery with vectors of other models under their names."""
    from fixstar.workspace.items import ensure_version

    registry = Registry(workspace)
    held = {space.name for space in gallery.versions()}
    for name in registry.names():
        if name in held:
            ensure_version(gallery, name, registry.encoder(name))  # refuses another space
    return registry.known()


def _counted(gallery: Gallery) -> dict[str, int]:
    return {name: count for name, count in gallery.count().items() if count}


def _current_counts(address: str) -> tuple[Mapping[str, int] | None, str]:
    """The counts of the current gallery, or why it cannot be read."""
    from fixstar.gallery import open_gallery

    try:
        with open_gallery(address, create=False, read_only=True) as gallery:
            return _counted(gallery), ""
    except FixstarError as error:
        return None, str(error)


def _differences(
    own: Sequence[str], there: Mapping[str, int], current: Mapping[str, int] | None
) -> list[str]:
    """What a gallery lacks, compared with the current one, else with the versions; and its foreign versions.

    ``current`` is None if the current gallery cannot be read.
    """
    found = []
    if current is not None:
        for name in (name for name, count in current.items() if there.get(name, 0) < count):
            found.append(
                f"{plural(there.get(name, 0), 'item')} of {name}, the current gallery {current[name]:,}"
            )
    elif own and not set(own) & there.keys():
        found.append(f"no vectors of this workspace's versions ({', '.join(own)})")
    foreign = [name for name in there if is_version_name(name) and name not in own]
    return found + [
        f"vectors of {name}, a version that this workspace does not have" for name in foreign
    ]


@verb(
    "fixstar gallery prune-images -w shop --dry-run",
    "fixstar gallery prune-images -w shop --days 7",
    group=gallery_app,
    name="prune-images",
)
def prune_images(
    workspace: WorkspacePath = Path(),
    days: Annotated[
        float, typer.Option(min=0.01, help="Skip images stored within this many days.")
    ] = 1.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be deleted.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete uploaded images that no item and no waiting job needs. Files that you indexed are not touched."""
    with fixstar.Workspace(workspace) as space:
        before = time.time() - days * 86400
        unused = space.images.unused(_names_in_use(space), before)
        size = sum(path.stat().st_size for path in unused)
        images = len(unused)
        if not dry_run:
            images, size = space.images.prune(unused, before)
    done = "To be deleted" if dry_run else "Deleted"
    told = f"{done}: {plural(images, 'unused image')}, {size / 1e6:,.1f} MB"
    print_result(as_json, {"images": images, "bytes": size, "deleted": not dry_run}, told)


def _names_in_use(space: Workspace) -> Iterator[str]:
    """The names of images that items or unfinished jobs need."""
    from fixstar.service.jobs import JobFiles
    from fixstar.workspace.items import IMAGE

    for job in JobFiles(
        space.path
    ).load():  # before the items, as a job may end and store its items in between
        yield from (str(item["image"]) for item in job.parameters.get("items", ()))
    for item in space.gallery.iterate():
        name = item.payload.get(IMAGE)
        if isinstance(name, str):
            yield name
