"""fixstar bridge: from one model's vectors to another model that was never trained with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fixstar.cli.app import AsJson, Confidence, Tolerance, verb
from fixstar.cli.output import STYLES, Cell, print_json, print_result, print_table, print_wrapped
from fixstar.cli.rollout import EXIT_CODES
from fixstar.durable import replace_file
from fixstar.errors import InputError, plural
from fixstar.wording import percent, points

if TYPE_CHECKING:
    from fixstar.workspace.adapters.bridge import Bridged, Candidate


@verb(
    "fixstar bridge old.npz new.npz --labels labels.csv --out new-to-old.npz",
    "fixstar bridge 'postgresql://me@host/db?table=photos&id=sku' new.parquet --out bridge.npz",
    "fixstar bridge old.onnx?size=224 shop/versions/v2 --images photos --out bridge.npz",
    "fixstar bridge old.npz new.npz --use bridge.npz --out queries.npz",
)
def bridge(
    old: Annotated[
        str,
        typer.Argument(
            help="The old model's vectors: FILE.npy, .npz, .parquet, .faiss; postgresql://...?table=NAME; "
            "qdrant://...?collection=NAME. Or the model: MODEL.onnx?size=224, hf:NAME, the folder of a version."
        ),
    ],
    new: Annotated[str, typer.Argument(help="The new model's vectors, or the model; the same kinds.")],
    out: Annotated[Path | None, typer.Option(help="Write the best bridge to this FILE.npz, unless refused.")] = None,
    images: Annotated[Path | None, typer.Option(help="Images for models to embed: a folder, or a CSV list.")] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="CSV of id and label.", show_default="payload field label, or the image's folder"),
    ] = None,
    relevant: Annotated[
        Path | None, typer.Option(help="CSV of query and item: what each query should find, instead of labels.")
    ] = None,
    kinds: Annotated[str | None, typer.Option(help="Adapters to try, comma separated.", show_default="all")] = None,
    sample: Annotated[int, typer.Option(help="Maximum number of images by both models to use.")] = 8000,
    held_out: Annotated[
        float, typer.Option(help="Share of labelled images that judge; 1: labelled ones judge, the others are fitted.")
    ] = 0.4,
    confidence: Confidence = 0.95,
    tolerance: Tolerance = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of all random splits.")] = 0,
    use: Annotated[
        Path | None, typer.Option(help="Fit nothing; apply this bridge to the vectors and write them to --out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the best way to search an old model's vectors with a new model, or say that the old one should stay.

    Vectors are paired by their ids; files without ids row by row. All kinds of adapters are fitted on the pairs, on
    queries and on stored vectors, alone and blended with old queries, and judged on held-out labelled images. The file
    that is written works without fixstar: NumPy, ONNX, and a card. Exit code 0: better. 2: keep the old model.
    3: unproven.
    """
    from fixstar.workspace import GateRules
    from fixstar.workspace.adapters.bridge import BridgeOptions
    from fixstar.workspace.adapters.bridge import bridge as find_bridge
    from fixstar.workspace.adapters.portable import checked_path, save_bridge

    if use is not None:
        _apply(use, old, new, out, as_json)
        return
    if out is not None:
        checked_path(out)  # before the work
    rules = GateRules(confidence, tolerance, seed)
    chosen = {} if kinds is None else {"kinds": tuple(part.strip() for part in kinds.split(","))}
    options = BridgeOptions(sample=sample, held_out=held_out, rules=rules, **chosen)
    found = find_bridge(
        old, new, labels=labels, relevant=relevant, images=images, options=options, progress=not as_json
    )
    written = out if out is not None and found.outcome != "refuse" else None
    if written is not None:
        save_bridge(found.bridge, written)
    if as_json:
        print_json({**found.to_json(), "file": None if written is None else str(written)})
    else:
        _print_bridged(found, out, written)
    raise typer.Exit(EXIT_CODES[found.outcome])


def _print_bridged(found: Bridged, out: Path | None, written: Path | None) -> None:
    print_wrapped(found.sentence, indent="")
    if found.candidates:
        print()
        measured = "same\nneighbours" if found.evidence == "old neighbours" else "finds"
        numbers: tuple[str, ...] = ("alpha", measured, "difference", "from", "to", "lost", "won")
        if found.evidence == "old neighbours":
            numbers = ("alpha", measured, "from", "to")
        rows = [_row(one, found) for one in found.candidates]
        if found.old is not None and found.evidence != "old neighbours":
            rows.insert(0, ("old model", "", percent(found.old), *[""] * 5, "the one to beat"))
        if found.reembedded is not None:
            rows.append((*_row(found.reembedded, found)[:-1], "all re-embedded"))
        print_table(("way", *numbers, "verdict"), rows, right=numbers)
        print_wrapped(
            f"Fitted on {found.fitted_on}. Judged by {plural(found.queries, 'query')} among "
            f"{plural(found.gallery, 'item')}; as many others chose alphas and the order. Intervals are of one way "
            "each; the verdict is on the first",
            indent="",
        )
    for kind, reason in found.left_out.items():
        print_wrapped(f"Left out: {kind}. {reason}")
    if written is not None:
        lines = len(found.bridge.numpy_lines())
        print_wrapped(
            f"Written: {written}. It works without fixstar: plain arrays for NumPy, bridge.onnx, and card.json with "
            f"all figures and the {lines} lines of NumPy that apply it",
            indent="",
        )
    elif out is not None:
        print("Nothing was written: the old model is better")


def _row(one: Candidate, found: Bridged) -> tuple[Cell, ...]:
    name, alpha = one.kind, "" if one.alpha is None else f"{one.alpha:g}"
    if one.kind != "re-embedded":
        name = f"{one.kind}, {one.way}"
    if found.evidence == "old neighbours" or found.old is None:
        return name, alpha, percent(one.result), percent(one.low), percent(one.high), one.verdict
    figures = (points(value) for value in (one.result - found.old, one.low, one.high))
    return (
        *(name, alpha, percent(one.result), *figures),
        *(f"{one.lost:,}", f"{one.won:,}"),
        (one.verdict, STYLES[one.verdict]),
    )


def _apply(use: Path, old: str, new: str, out: Path | None, as_json: bool) -> None:
    import numpy as np

    from fixstar.workspace.adapters.bridge import apply_bridge
    from fixstar.workspace.adapters.portable import load_bridge

    if out is None or out.suffix != ".npz":
        raise InputError("name the file to write: --out FILE.npz")
    made = load_bridge(use)
    ids, vectors = apply_bridge(made, old, new)

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            np.savez(file, vectors=vectors, ids=np.array(ids))

    replace_file(out, write)
    report = {"file": str(out), "vectors": len(ids), "width": vectors.shape[1], "space": made.adapter.target}
    told = f"{plural(len(ids), 'vector')} in {made.adapter.target}'s space, {vectors.shape[1]} components: {out}"
    print_result(as_json, report, told)
