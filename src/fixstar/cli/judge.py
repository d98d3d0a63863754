"""fixstar judge: compare a migration with keeping the old model and with re-embedding."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fixstar.cli.app import AsJson, Confidence, verb
from fixstar.cli.bridge import RelevantFiles
from fixstar.cli.output import Cell, print_json, print_table, print_wrapped
from fixstar.errors import plural
from fixstar.evaluation.verdicts import GateRules
from fixstar.wording import MINUS, percent, points

if TYPE_CHECKING:
    from fixstar.translation.judge import Compared, Judged

STYLES = {"better": "green", "no worse": "green", "worse": "red", "cannot be told": "yellow"}


@verb(
    "fixstar judge --old old.npz --new new.npz --migrated mapped.npz --labels labels.csv",
    "fixstar judge --old docs-a.npz --new docs-b.npz --migrated mapped.npz --queries-old queries-a.npz "
    "--queries-new queries-b.npz --relevant qrels/test.tsv",
    "fixstar judge --old old.npz --new new.npz --migrated mapped.npz --at-least no-worse --tolerance 0.02 --json",
)
def judge(
    old: Annotated[
        str,
        typer.Option(
            help="The old model's vectors of the stored items: FILE.npy, .npz, .parquet, .faiss; "
            "postgresql://...?table=NAME; qdrant://, chroma:// or milvus://...?collection=NAME; "
            "lancedb:///FOLDER?table=NAME."
        ),
    ],
    migrated: Annotated[
        str, typer.Option(help="The same items' vectors after migration to the new model's space.")
    ],
    new: Annotated[
        str | None,
        typer.Option(help="The same items embedded by the new model: the result of re-embedding."),
    ] = None,
    queries_old: Annotated[
        str | None,
        typer.Option(help="Queries' vectors by the old model, if they are not among the items."),
    ] = None,
    queries_new: Annotated[
        str | None, typer.Option(help="The same queries' vectors by the new model.")
    ] = None,
    queries_migrated: Annotated[
        str | None,
        typer.Option(
            help="The same queries as they search the migrated vectors, for a tool that maps queries too.",
            show_default="those of the new model",
        ),
    ] = None,
    relevant: RelevantFiles = None,
    labels: Annotated[
        Path | None, typer.Option(help="CSV of id and label.", show_default="labels in the files")
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(
            help="What decides: nDCG@K, Recall@K, MRR, MRR@K or top-1.",
            show_default="nDCG@10 with --relevant, top-1 with labels",
        ),
    ] = None,
    at_least: Annotated[
        str, typer.Option(help="The required verdict for exit code 0: better or no-worse.")
    ] = "better",
    confidence: Confidence = GateRules.confidence,
    tolerance: Annotated[
        float, typer.Option(help="A loss that still counts as no worse: 0.01 is one point.")
    ] = 0.01,
    seed: Annotated[
        int, typer.Option(help="Seed of the bootstrap, and of the split by labels.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Judge a migration to a new model, made by any tool: is it better than keeping the old model?

    Compares, query by query, the old model, the migrated vectors searched by the new model's queries, and everything
    re-embedded with the new model. Files are matched by ids. Items that the migration was fitted on should not be
    queries. Exit code 0: better (or what --at-least asks for). 2: not better. 3: cannot be told.
    """
    from fixstar.errors import UnknownNameError
    from fixstar.translation.judge import AT_LEAST
    from fixstar.translation.judge import judge as judge_migration

    if at_least not in AT_LEAST:
        raise UnknownNameError("demand", at_least, AT_LEAST)
    found = judge_migration(
        old,
        migrated,
        new,
        queries_old=queries_old,
        queries_new=queries_new,
        queries_migrated=queries_migrated,
        relevant=relevant or None,
        labels=labels,
        measure=measure,
        rules=GateRules(confidence, tolerance, seed),
    )
    reached = found.reaches(at_least)
    if as_json:
        print_json({**found.to_json(), "at_least": at_least, "reached": reached})
    else:
        _print_judged(found)
    if not reached:
        raise typer.Exit(2 if found.gain.high <= 0 else 3)


def _print_judged(found: Judged) -> None:
    print_wrapped(found.sentence, indent="")
    print()
    heads = ("value", "difference", "from", "to", "share")
    rows: list[tuple[Cell, ...]] = []
    for measure, searches in found.measured.items():
        for place, (search, row) in enumerate(searches.items()):
            style = ""
            if measure == found.measure and search == "migrated":
                style = STYLES[found.verdict]
            head = measure if place == 0 else ""
            rows.append((head, (search, style), *_figures(search, row)))
    print_table(("measure", "search", *heads), rows, right=heads)
    print()
    by = "labels" if found.evidence == "labels" else "known relevant items"
    print_wrapped(
        f"{plural(found.queries, 'query')} among {plural(found.gallery, 'item')}, judged by {by}; {found.measure} "
        "decides. Differences are points over the old model; the share is that of the gain of re-embedding",
        indent="",
    )
    for reason, count in found.skipped.items():
        print_wrapped(f"Left out: {count:,} {reason}")


def _figures(search: str, row: Compared) -> tuple[Cell, ...]:
    if search == "old":
        return percent(row.value), "", "", "", ""
    share = ""
    if row.share is not None and search == "migrated":
        share = f"{100 * row.share:.0f} %".replace("-", MINUS)
    return percent(row.value), points(row.difference), points(row.low), points(row.high), share
