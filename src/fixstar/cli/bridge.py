"""fixstar bridge: search one model's vectors with another model that was never trained with it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fixstar.cli.app import AsJson, Confidence, Tolerance, verb
from fixstar.cli.output import STYLES, Cell, print_json, print_result, print_table, print_wrapped
from fixstar.cli.rollout import EXIT_CODES
from fixstar.durable import replace_file
from fixstar.errors import InputError, NextStep, plural
from fixstar.evaluation.verdicts import GateRules
from fixstar.wording import percent, points

if TYPE_CHECKING:
    from fixstar.translation.bridge import Bridged, Measured


_VECTORS = (".faiss", ".npy", ".npz", ".parquet")  # files that ``migrate`` reads


RelevantFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--relevant",
        help="What each query should find, instead of labels: qrels of BEIR (query-id, corpus-id, score) or TREC, or a "
        "CSV of query and item. Given a second time with BEIR's queries.jsonl, it names queries' vectors without ids.",
        show_default=False,
    ),
]


@verb(
    "fixstar bridge old.npz new.npz --labels labels.csv --out old-to-new.npz",
    "fixstar bridge 'postgresql://me@host/db?table=photos&id=sku' new.parquet --out bridge.npz",
    "fixstar bridge docs-a.npz docs-b.npz --queries-old queries-a.npz --queries-new queries-b.npz "
    "--relevant qrels/test.tsv",
    "fixstar bridge old.onnx?size=224 shop/versions/v2 --images photos --out bridge.npz",
    "fixstar bridge st:./old-model st:./new-model --images notes.jsonl --out bridge.npz",
    "fixstar bridge old.npz new.npz --use bridge.npz --out mapped.npz",
)
def bridge(
    old: Annotated[
        str,
        typer.Argument(
            help="The old model's vectors: FILE.npy, .npz, .parquet, .faiss; postgresql://...?table=NAME; "
            "qdrant://, chroma:// or milvus://...?collection=NAME; lancedb:///FOLDER?table=NAME. "
            "Or the model: MODEL.onnx?size=224, hf:NAME, st:NAME, the folder of a version."
        ),
    ],
    new: Annotated[
        str, typer.Argument(help="The new model's vectors, or the model; the same kinds.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Write the translation to this FILE.npz, unless refused.")
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            help="What models embed. Images: a folder, or a CSV list. Texts: a .jsonl, .csv, .tsv or .parquet file "
            "with a field text, or a folder."
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="CSV of id and label.", show_default="payload field label, or the image's folder"
        ),
    ] = None,
    relevant: RelevantFiles = None,
    queries_old: Annotated[
        str | None,
        typer.Option(help="Queries' vectors by the old model, if they are not among its vectors."),
    ] = None,
    queries_new: Annotated[
        str | None, typer.Option(help="The same queries' vectors by the new model.")
    ] = None,
    one_model: Annotated[
        bool,
        typer.Option(
            "--one-model", help="The old model is not kept: only the new one embeds queries."
        ),
    ] = False,
    kinds: Annotated[
        str | None, typer.Option(help="Kinds of maps to try, comma separated.", show_default="all")
    ] = None,
    sample: Annotated[
        int, typer.Option(help="Maximum number of items by both models to use.")
    ] = 8000,
    held_out: Annotated[
        float,
        typer.Option(
            help="Share of labelled items that judge; 1: labelled ones judge, the others are fitted."
        ),
    ] = 0.4,
    confidence: Confidence = GateRules.confidence,
    tolerance: Tolerance = GateRules.tolerance,
    seed: Annotated[int, typer.Option(help="Seed of all random splits.")] = 0,
    use: Annotated[
        Path | None,
        typer.Option(
            help="Fit nothing; map vectors with this translation and write them to --out."
        ),
    ] = None,
    side: Annotated[
        str,
        typer.Option(
            help="With --use: forward maps the old vectors, backward maps the new ones to the old space."
        ),
    ] = "forward",
    as_json: AsJson = False,
) -> None:
    """Find the best way to search an old model's vectors with a new model, or recommend to keep the old one.

    Vectors are paired by their ids; files without ids row by row. A translation is fitted on the pairs: stored vectors
    are mapped forward, queries are mapped back or embedded by the old model too, and both scores are added. Held-out
    items with labels, or queries with known relevant items, judge it against the old model. The written file
    works without fixstar: NumPy, ONNX, and a card. Exit code 0: better. 2: keep the old model. 3: unproven.
    """
    from fixstar.translation.bridge import BridgeOptions
    from fixstar.translation.bridge import bridge as find_bridge
    from fixstar.translation.file import checked_path, save_translation

    if use is not None:
        _apply(use, old, new, side, out, as_json)
        return
    if out is not None:
        checked_path(out)  # fail early
    chosen: dict[str, Any] = {}
    if kinds is not None:
        chosen["kinds"] = tuple(part.strip() for part in kinds.split(","))
    rules = GateRules(confidence, tolerance, seed)
    options = BridgeOptions(
        sample=sample, held_out=held_out, one_model=one_model, rules=rules, **chosen
    )
    found = find_bridge(
        old,
        new,
        labels=labels,
        relevant=relevant or None,
        queries=both_queries(queries_old, queries_new),
        images=images,
        options=options,
        progress=not as_json,
    )
    written = None
    if out is not None and found.outcome != "refuse":
        written = out
        save_translation(found.translation, written)
    if as_json:
        print_json({**found.to_json(), "file": None if written is None else str(written)})
    else:
        _print_bridged(found, old, out=out, written=written)
    raise typer.Exit(EXIT_CODES[found.outcome])


def both_queries(old: str | None, new: str | None) -> tuple[str, str] | None:
    """The files of the queries' vectors: both or none."""
    if old is not None and new is not None:
        return old, new
    if old is None and new is None:
        return None
    lacking = "queries_old" if old is None else "queries_new"
    raise InputError(
        "queries need vectors by both models, and only one file of them was given",
        NextStep("repeat", {lacking: ...}),
    )


def _print_bridged(found: Bridged, old: str, out: Path | None, written: Path | None) -> None:
    print_wrapped(found.sentence, indent="")
    if found.measured:
        print()
        _print_measured(found)
        maps = [
            f"{kind} {side}"
            for side, kind in found.translation.about["maps"].items()
            if kind is not None
        ]
        told = (
            f"Maps: {', '.join(maps)}, fitted on {found.fitted_on}. Judged by {plural(found.queries, 'query')} among "
            f"{plural(found.gallery, 'item')}"
        )
        if found.chosen is not None:
            told += "; as many others chose maps and weights"
        print_wrapped(
            told,
            indent="",
        )
    for kind, reason in found.left_out.items():
        print_wrapped(f"Left out: {kind}. {reason}")
    if written is not None:
        print_wrapped(
            f"Written: {written}. It works without fixstar: plain arrays for NumPy, all maps as ONNX, and card.json "
            "with all figures and the lines of NumPy that score with it",
            indent="",
        )
        print(f"Next: {_migration(old, written)}")
    elif out is not None:
        print("Nothing was written: the old model is better")
    elif found.outcome != "refuse":
        print("Next: the same command with --out FILE.npz   # writes the translation")


def _migration(old: str, written: Path) -> str:
    """The command that plans a migration with a translation; a model as ``old`` has no stored vectors."""
    is_file = Path(old).suffix.lower() in _VECTORS
    source = shlex.quote(old) if is_file or "://" in old else "OLD_VECTORS"
    target = "TRANSLATED.npz" if is_file else "NEW_NAME"
    return f"fixstar migrate plan {source} {shlex.quote(str(written))} --to {target}   # writes nothing yet"


def _print_measured(found: Bridged) -> None:
    if found.evidence == "old neighbours":
        heads: tuple[str, ...] = ("same\nneighbours", "from", "to", "w")
    else:
        heads = (
            "finds" if found.evidence == "labels" else found.measure,
            "difference",
            "from",
            "to",
            "w",
            "lost",
            "won",
        )
    rows = [
        (name, *_figures(row), (row.verdict, STYLES.get(row.verdict, "")))
        for name, row in found.measured.items()
    ]
    print_table(("search", *heads, "verdict"), rows, right=heads, optional=("lost", "won"))


def _figures(row: Measured) -> tuple[Cell, ...]:
    weight = ""
    if row.weight is not None:
        weight = f"{row.weight:g}"
    if row.difference is None:
        return percent(row.finds), percent(row.low), percent(row.high), weight
    if row.verdict == "the one to beat":
        return percent(row.finds), "", "", "", weight, "", ""
    interval = (points(row.difference), points(row.low), points(row.high))
    return percent(row.finds), *interval, weight, f"{row.lost:,}", f"{row.won:,}"


def _apply(use: Path, old: str, new: str, side: str, out: Path | None, as_json: bool) -> None:
    import numpy as np

    from fixstar.translation import load_translation
    from fixstar.translation.bridge import apply_translation

    if out is None or out.suffix != ".npz":
        raise InputError("name the file to write: --out FILE.npz")
    if out.exists():
        raise InputError(f"{out} exists already; choose another name")
    way = load_translation(use)
    ids, vectors = apply_translation(way, old, new, side)

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            np.savez(file, vectors=vectors, ids=np.array(ids))

    replace_file(out, write)
    space = way.target if side == "forward" else way.source
    report = {"file": str(out), "vectors": len(ids), "width": vectors.shape[1], "space": space}
    told = f"{plural(len(ids), 'vector')} in {space}'s space, {vectors.shape[1]} components: {out}"
    print_result(as_json, report, told)
