"""fixstar evaluate: every version's queries against every older version's gallery."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fixstar.cli.options import PICTURES, AsJson, BadImages, Device, WorkspacePath, print_json

if TYPE_CHECKING:
    from fixstar.evaluation import CrossTest, Difference

    Evidence = Mapping[tuple[int, int], Difference]

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "evaluate"
EXAMPLES = (
    "Examples:  fixstar evaluate photos/held-out --workspace shop --picture matrix.png   |   "
    "fixstar evaluate photos/held-out -w shop --protocol template --by-class --report report   |   "
    "fixstar evaluate --features v1=old.npz --features v2=new.npz --labels labels.npz   |   "
    "fixstar evaluate --features v1=q1.npy,g1.npy --features v2=q2.npy,g2.npy --labels ql.npy,gl.npy"
)

Data = Annotated[
    Path | None, typer.Argument(help="Labelled images: one folder a class, a CSV list, CIFAR, idx or Omniglot files.")
]
Protocol = Annotated[
    str,
    typer.Option(
        help="image: nearest gallery image; template: nearest class mean; or rank5, knn10, map, map100, verification."
    ),
]
Features = Annotated[
    list[str] | None,
    typer.Option(help="Another system's version, oldest first: NAME=FILE.npz or NAME=QUERIES.npy,GALLERY.npy."),
]
LabelFiles = Annotated[str | None, typer.Option(help="Labels of the features: FILE.npz or QUERY.npy,GALLERY.npy.")]
Shared = Annotated[
    bool, typer.Option("--shared-components", help="Compare features of different width over what both have.")
]
Confidence = Annotated[float, typer.Option(help="Of each verdict, between 0 and 1.")]
ByClass = Annotated[
    bool, typer.Option("--by-class", help="Evidence for classes other than these: whole classes are drawn.")
]
ReportFolder = Annotated[Path | None, typer.Option(help="Write report.html, pictures and report.json here.")]
Picture = Annotated[Path | None, typer.Option(help="Write the heat map to this PNG, SVG or PDF.")]
Part = Annotated[str, typer.Option(help="Which part of a data set that is divided: train or test.")]
SplitFile = Annotated[
    Path | None, typer.Option(help="Keep the split into gallery and queries in this .npz; made if it is missing.")
]
PairsFile = Annotated[Path | None, typer.Option(help="Keep the pairs of verification in this .npz; likewise.")]
Seed = Annotated[int, typer.Option(help="Splits the images into gallery and queries, and draws the pairs.")]


def command(
    data: Data = None,
    workspace: WorkspacePath = Path(),
    protocol: Protocol = "image",
    features: Features = None,
    labels: LabelFiles = None,
    shared_components: Shared = False,
    confidence: Confidence = 0.95,
    by_class: ByClass = False,
    report: ReportFolder = None,
    picture: Picture = None,
    split: Part = "train",
    split_file: SplitFile = None,
    pairs_file: PairsFile = None,
    seed: Seed = 0,
    bad_images: BadImages = "refuse",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure compatibility on labelled images, half of each class the gallery, or on features of another system.

    A cross-test is compatible, incompatible (x) or not decided (?), by paired bootstrap over the queries.
    """
    from fixstar.cli.evaluation_input import from_files, require_two_classes
    from fixstar.evaluation import compatibility_heat_map, cross_test, needed_resamples, verdicts
    from fixstar.evaluation.trial import searchable, trial_of_images

    resamples = needed_resamples(confidence)
    _check_source(data, features, labels, shared_components, split_file)
    _check_protocol(protocol, split_file, pairs_file)
    if features:
        _check_outputs(picture, report, len(features))
        given = from_files(features, labels, protocol, seed, pairs_file, shared_components)
    else:
        from fixstar.data import open_images
        from fixstar.workspace import Workspace

        space = Workspace(workspace)
        _check_outputs(picture, report, len(space.versions()))
        inputs = space.encoder(space.newest()).preprocessing
        images = searchable(open_images(data or Path(), split), inputs, bad_images)
        require_two_classes(images.classes, str(data))
        embed = partial(space.features, device=device, progress=not as_json)
        given = trial_of_images(embed, images, protocol, seed, split_file, pairs_file)
    result = cross_test(*given.images, protocol, pairs=given.pairs, shared_components=given.shared_components)
    clusters = given.answered(protocol) if by_class else None
    judged = partial(verdicts, confidence=confidence, resamples=resamples, clusters=clusters)
    evidence: Evidence = judged(result) if len(result.names) > 1 else {}
    if picture is not None:
        compatibility_heat_map(result.matrix, list(result.names), f"by {protocol}", picture, evidence)
    if report is not None:
        given.report(result, confidence, by_class).write(report)
    if as_json:
        print_json(_numbers(result, evidence, confidence, by_class))
    else:
        _print(result, evidence, confidence)
        if report is not None:
            print(f"Report: {report / 'report.html'}")


def _check_source(
    data: Path | None, features: list[str] | None, labels: str | None, shared: bool, split_file: Path | None
) -> None:
    from fixstar.errors import InputError

    if features and data is not None:
        raise InputError(f"measure {data} with a workspace, or --features of another system; not both at once")
    if features and split_file is not None:
        raise InputError("--split-file divides images; features come divided into queries and gallery")
    if not features and (labels is not None or shared):
        raise InputError("--labels and --shared-components go with --features NAME=FILE.npz")
    if not features and data is None:
        raise InputError(
            "say what to measure: fixstar evaluate LABELLED_IMAGES -w WORKSPACE, or --features; see --help"
        )


def _check_protocol(protocol: str, split_file: Path | None, pairs_file: Path | None) -> None:
    """Refuse an unknown protocol, and a file that this one would neither read nor write: its user believes it kept."""
    from fixstar.errors import InputError
    from fixstar.evaluation.cross_test import check_protocol

    check_protocol(protocol)
    if pairs_file is not None and protocol != "verification":
        raise InputError(
            f"--pairs-file {pairs_file} keeps the pairs of verification, and --protocol {protocol} draws none. Add "
            "--protocol verification, or leave it out"
        )
    if split_file is not None and protocol == "verification":
        raise InputError(
            f"--split-file {split_file} keeps a split into gallery and queries, and verification takes pairs from all "
            "images. Keep those with --pairs-file PAIRS.npz, or leave it out"
        )


def _check_outputs(picture: Path | None, report: Path | None, versions: int) -> None:
    """Say what is wrong with the picture or the report before anything is computed for them."""
    from fixstar.errors import InputError

    if picture is not None:
        if picture.suffix.lower() not in PICTURES:
            raise InputError(f"--picture {picture} must end in one of {', '.join(PICTURES)}")
        if not picture.parent.is_dir():
            raise InputError(f"--picture {picture}: there is no directory {picture.parent}")
    if report is not None and report.exists() and not report.is_dir():
        raise InputError(f"--report {report} is a file; a report is a folder. Choose another name")
    if (picture or report) and versions < 2:
        raise InputError(
            f"a {'heat map' if picture else 'report'} needs two versions; "
            "train the second with: fixstar upgrade MORE_IMAGES"
        )


def _numbers(result: CrossTest, evidence: Evidence, confidence: float, by_class: bool) -> dict[str, Any]:
    from fixstar.evaluation import cell_evidence
    from fixstar.evaluation.report import evidence_numbers, lower_triangle

    found: dict[str, Any] = {
        "protocol": result.protocol,
        "versions": result.names,
        "answers": len(next(iter(result.hits.values()))),
        "matrix": lower_triangle(result),
    }
    if evidence:
        found |= result.summary()
        found |= {"confidence": confidence, "by_class": by_class, "evidence": cell_evidence(evidence)._asdict()}
        found["cells"] = evidence_numbers(result, evidence)
    return found


def _print(result: CrossTest, evidence: Evidence, confidence: float) -> None:
    from rich.console import Console

    from fixstar.cli.matrix_table import print_matrix
    from fixstar.evaluation import cell_evidence, compatible_cells
    from fixstar.evaluation.report import verdict_sentences

    print_matrix(result, evidence)
    if not evidence:
        return
    console = Console()
    console.print("  ".join(f"{key} {value:.3f}" for key, value in result.summary().items()))
    answers = f"{len(next(iter(result.hits.values()))):,} {'pairs' if result.protocol == 'verification' else 'queries'}"
    passed, counted = int(compatible_cells(result.matrix).sum()), cell_evidence(evidence)
    console.print(f"{passed} of {len(evidence)} cross-tests are above the old self-test, measured with {answers}")
    console.print(
        f"with {100 * confidence:g} % confidence {counted.compatible} compatible, "
        f"{counted.incompatible} incompatible (x), {counted.not_decided} not decided (?)",
        highlight=False,
    )
    for sentence in verdict_sentences(result, evidence, confidence):
        console.print(sentence.text, highlight=False, markup=False, soft_wrap=True)
