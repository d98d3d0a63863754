"""fixstar migrate: translate an old model's vectors in your own store, and write them beside the old ones."""

from __future__ import annotations

import shlex
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fixstar.cli.app import AsJson, Verbs, app, examples, verb
from fixstar.cli.output import print_json, print_result, print_table, print_wrapped
from fixstar.errors import plural
from fixstar.wording import points

if TYPE_CHECKING:
    from fixstar.translation.migrate import MigrationPlan

migrate_app = typer.Typer(
    cls=Verbs,
    help="Write translated vectors into your own store, beside the old ones: plan, run, switch, undo.",
    no_args_is_help=True,
    epilog=examples(
        "fixstar migrate plan 'postgresql://me@host/db?table=photos' old-to-new.npz --to photos_new",
        "fixstar migrate run 'postgresql://me@host/db?table=photos' old-to-new.npz --to photos_new",
    ),
)
app.add_typer(migrate_app, name="migrate")

Old = Annotated[
    str,
    typer.Argument(
        help="The old vectors: postgresql://...?table=NAME, qdrant://...?collection=NAME, "
        "chroma:// or milvus://...?collection=NAME, lancedb:///FOLDER?table=NAME, FILE.faiss, .npz, .npy or .parquet. "
        "They are never changed."
    ),
]
Way = Annotated[Path, typer.Argument(help="The translation, written by fixstar bridge.")]
To = Annotated[str, typer.Option(help="The table, collection or file for the translated vectors.")]
Alias = Annotated[
    str | None,
    typer.Option(
        help="The view (PostgreSQL) or alias (Qdrant) that your searches name.",
        show_default="OLD_current",
    ),
]


@verb(
    "fixstar migrate plan 'postgresql://me@host/db?table=photos' old-to-new.npz --to photos_new",
    "fixstar migrate plan 'qdrant://host:6333?collection=docs' old-to-new.npz --to docs-new --price 20",
    group=migrate_app,
)
def plan(
    old: Old,
    translation: Way,
    to: To,
    price: Annotated[
        float | None,
        typer.Option(
            help="What embedding a million items again would cost. A price per million tokens, times the tokens of an "
            "average item: a store of vectors does not say how long its texts are."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a migration would write, how long it takes, and its measured gain. Nothing is written."""
    from fixstar.translation.migrate import plan_migration

    found = plan_migration(old, translation, to, price)
    if as_json:
        print_json(found.to_json())
    else:
        _print_plan(found, old, translation, to)


@verb(
    "fixstar migrate run 'postgresql://me@host/db?table=photos' old-to-new.npz --to photos_new",
    "fixstar migrate run 'chroma://localhost:8000?collection=docs' old-to-new.npz --to docs_new",
    "fixstar migrate run old.faiss old-to-new.npz --to new.faiss",
    group=migrate_app,
)
def run(
    old: Old,
    translation: Way,
    to: To,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Run even if a loss was measured.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Translate the old vectors, and write them beside the old ones. Run it again for new or changed items.

    The same command resumes a killed run. Items that are gone from the old store are also removed from the new
    table, collection or file. Rows that you wrote there yourself, with the new model, are not touched.
    """
    from fixstar.translation.migrate import migrate

    done = migrate(old, translation, to, anyway=anyway, progress=not as_json)
    told = f"{plural(done.written, 'vector')} written to {to}, {done.unchanged:,} were already up to date"
    if done.own:
        told += f", {done.own:,} of your own not touched"
    if done.removed:
        told += f", {done.removed:,} removed: their items are gone"
    print_result(as_json, done._asdict(), told)


@verb(
    "fixstar migrate switch 'postgresql://me@host/db?table=photos' old-to-new.npz --to photos_new",
    "fixstar migrate switch 'qdrant://host:6333?collection=docs' old-to-new.npz --to docs-new --alias docs-live",
    group=migrate_app,
)
def switch(
    old: Old,
    translation: Way,
    to: To,
    alias: Alias = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Switch even without evidence of a gain.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let searches use the translated vectors: by a view or an alias, or prints what to do for stores without them.

    Refused if items are missing or changed, or without evidence that the translated vectors alone find more.
    """
    from fixstar.translation.migrate import switch_migration

    told = switch_migration(old, translation, to, alias=alias, anyway=anyway)
    print_result(as_json, {"done": told}, told)


@verb(
    "fixstar migrate undo 'postgresql://me@host/db?table=photos' --to photos_new", group=migrate_app
)
def undo(old: Old, to: To, alias: Alias = None, as_json: AsJson = False) -> None:
    """Let searches use the old vectors again. Nothing is deleted."""
    from fixstar.translation.migrate import undo_migration

    told = undo_migration(old, to, alias=alias)
    print_result(as_json, {"done": told}, told)


def _print_plan(found: MigrationPlan, old: str, translation: Path, to: str) -> None:
    models = " -> ".join(found.models)
    made = "" if found.made is None else f", made {found.made}"
    print_wrapped(found.sentence, indent="")
    print()
    if found.measured:
        heads = ("difference", "from", "to")
        rows = [
            (name, points(row["difference"]), points(row["low"]), points(row["high"]))
            for name, row in found.measured.items()
        ]
        print_table(("points over the old model", *heads), rows, right=heads)
        print()
    lines = [
        f"from         {found.source}: {plural(found.items, 'item')} of {found.widths[0]} components",
        f"to           {found.target}: {found.widths[1]} components, {found.bytes / 1e6:,.1f} MB of vectors, "
        f"{found.there:,} there already",
        f"translation  {models}{made}",
        f"time         about {timedelta(seconds=round(found.seconds))} to read and map, plus the time to write",
    ]
    if found.cost is not None:
        lines.append(f"re-embedding would cost {found.cost:,.2f} at the given price")
    for line in lines:
        print_wrapped(line)
    print_wrapped(
        "Among classes that no map was fitted on, translated vectors alone mostly found less than the old model, and "
        "both sides together more: import the old vectors into a workspace, or add both scores as shown in the "
        "translation's card",
        indent="",
    )
    words = ["fixstar", "migrate", "run", old, str(translation), "--to", to]
    if found.forecast == "loses":
        words.append("--anyway")
    print(f"Nothing was written. To do it: {shlex.join(words)}")
