"""fixstar evaluate, methods, backbones, theorem, picture2d: measure compatibility, list methods and backbones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import fixstar
from fixstar.cli.app import AsJson, BadImages, Device, LabelOption, WorkspacePath, verb
from fixstar.cli.output import (
    Cell,
    print_json,
    print_list,
    print_result,
    print_table,
    print_wrapped,
    say,
)
from fixstar.errors import DataError, InputError, NextStep
from fixstar.wording import percent

if TYPE_CHECKING:
    from fixstar.evaluation import CrossTest, Difference
    from fixstar.evaluation.features import LabelFile, VersionFeatures
    from fixstar.evaluation.labelled_vectors import LabelledVectors
    from fixstar.research.theorem import DimensionCheck

    CellDifferences = Mapping[tuple[int, int], Difference]

PICTURES = (".pdf", ".png", ".svg")

Features = Annotated[
    list[str] | None,
    typer.Option(
        help="Another system's version, oldest first: NAME=FILE.npz or NAME=QUERIES.npy,GALLERY.npy."
    ),
]


@verb(
    "fixstar evaluate photos/held-out --workspace shop --picture matrix.png",
    "fixstar evaluate photos/held-out -w shop --protocol template --by-class --report report",
    "fixstar evaluate --features v1=old.npz --features v2=new.npz --labels labels.npz",
    "fixstar evaluate --features v1=q1.npy,g1.npy --features v2=q2.npy,g2.npy --labels ql.npy,gl.npy",
)
def evaluate(
    data: Annotated[
        Path | None,
        typer.Argument(
            help="Labelled images: one folder per class, a CSV list, CIFAR, idx or Omniglot files."
        ),
    ] = None,
    workspace: WorkspacePath = Path(),
    label: LabelOption = None,
    protocol: Annotated[
        str,
        typer.Option(
            help="image: nearest gallery image; template: nearest class mean; or rank5, knn10, map, map100, "
            "verification."
        ),
    ] = "image",
    features: Features = None,
    labels: Annotated[
        str | None, typer.Option(help="Labels of the features: FILE.npz or QUERY.npy,GALLERY.npy.")
    ] = None,
    shared_components: Annotated[
        bool,
        typer.Option(
            "--shared-components",
            help="Compare features of different width over their common components.",
        ),
    ] = False,
    confidence: Annotated[
        float, typer.Option(help="Confidence of each verdict, between 0 and 1.")
    ] = 0.95,
    by_class: Annotated[
        bool, typer.Option("--by-class", help="Bootstrap over classes, not single queries.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="Write report.html, pictures and report.json here.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Write the heat map to this PNG, SVG or PDF.")
    ] = None,
    split: Annotated[
        str, typer.Option(help="Which split of a dataset that has several: train or test.")
    ] = "train",
    split_file: Annotated[
        Path | None,
        typer.Option(
            help="Keep the split into gallery and queries in this .npz; created if it does not exist."
        ),
    ] = None,
    pairs_file: Annotated[
        Path | None,
        typer.Option(
            help="Keep the verification pairs in this .npz; created if it does not exist."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the split into gallery and queries and of the pairs.")
    ] = 0,
    bad_images: BadImages = "refuse",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure compatibility on labelled images, half of each class as gallery, or on features of another system.

    A cross-test is compatible, incompatible (x) or not decided (?), by paired bootstrap over the queries.
    """
    from fixstar.evaluation import compatibility_heat_map, cross_test
    from fixstar.evaluation.evidence import needed_resamples, verdicts
    from fixstar.evaluation.labelled_vectors import searchable, vectors_of_images

    needed_resamples(confidence)  # refuses an invalid confidence before any computation
    _check_source(data, features, labels, shared_components, split_file)
    _check_protocol(protocol, split_file, pairs_file)
    if features:
        _check_outputs(picture, report, len(features))
        given = _vectors_of_files(
            features,
            labels=labels,
            protocol=protocol,
            seed=seed,
            pairs_file=pairs_file,
            shared=shared_components,
        )
    else:
        from fixstar.data import open_images

        space = fixstar.Workspace(workspace)
        _check_outputs(picture, report, len(space.versions()))
        inputs = space.encoder(space.newest()).preprocessing
        images = searchable(open_images(data or Path(), split, label), inputs, bad_images)
        _require_two_classes(images.classes, str(data))
        embed = partial(space.features, device=device, progress=not as_json)
        given = vectors_of_images(
            embed,
            images,
            protocol=protocol,
            seed=seed,
            split_file=split_file,
            pairs_file=pairs_file,
        )
    result = cross_test(*given.images, protocol, pairs=given.pairs)
    clusters = None
    if by_class:
        clusters = given.answered(protocol)
    evidence: CellDifferences = {}
    if len(result.names) > 1:
        evidence = verdicts(result, confidence=confidence, clusters=clusters)
    if picture is not None:
        compatibility_heat_map(
            result.matrix,
            names=list(result.names),
            title=f"by {protocol}",
            path=picture,
            verdicts=evidence,
        )
    if report is not None:
        given.report(result, confidence, by_class).write(report)
    if as_json:
        print_json(_evaluation_json(result, evidence, confidence, by_class))
    else:
        _print_evaluation(result, evidence, confidence)
        if report is not None:
            print(f"Report: {report / 'report.html'}")


def _check_source(
    data: Path | None,
    features: list[str] | None,
    labels: str | None,
    shared: bool,
    split_file: Path | None,
) -> None:
    if features and data is not None:
        raise InputError(
            f"measure {data} with a workspace, or --features of another system; not both"
        )
    if features and split_file is not None:
        raise InputError(
            "--split-file splits images; features are already split into queries and gallery"
        )
    if not features and (labels is not None or shared):
        raise InputError("--labels and --shared-components need --features NAME=FILE.npz")
    if not features and data is None:
        raise InputError(
            "nothing to measure: give labelled images, or --features",
            NextStep("evaluate", {"data": ...}),
        )


def _check_protocol(protocol: str, split_file: Path | None, pairs_file: Path | None) -> None:
    """Refuse an unknown protocol, and a file that this protocol does not use."""
    from fixstar.evaluation.cross_test import check_protocol, takes_pairs

    check_protocol(protocol)
    of_pairs = takes_pairs(protocol)
    if pairs_file is not None and not of_pairs:
        raise InputError(
            f"--pairs-file {pairs_file} keeps verification pairs, and --protocol {protocol} draws none. Add "
            "--protocol verification, or leave it out"
        )
    if split_file is not None and of_pairs:
        raise InputError(
            f"--split-file {split_file} keeps a split into gallery and queries, and {protocol} takes pairs from all "
            "images. Keep those with --pairs-file PAIRS.npz, or leave it out"
        )


def _check_outputs(picture: Path | None, report: Path | None, versions: int) -> None:
    """Refuse an invalid picture or report path before any computation."""
    if picture is not None:
        if picture.suffix.lower() not in PICTURES:
            raise InputError(f"--picture {picture} must end in one of {', '.join(PICTURES)}")
        if not picture.parent.is_dir():
            raise InputError(f"--picture {picture}: there is no directory {picture.parent}")
    if report is not None and report.exists() and not report.is_dir():
        raise InputError(f"--report {report} is a file; a report is a folder. Choose another name")
    if (picture or report) and versions < 2:
        what = "heat map" if picture else "report"
        raise InputError(
            f"a {what} needs two versions", NextStep("upgrade", {"data": ...}, "trains the second")
        )


def _vectors_of_files(
    features: Sequence[str],
    labels: str | None,
    protocol: str,
    seed: int,
    pairs_file: Path | None,
    shared: bool,
) -> LabelledVectors:
    """Versions of any system, given as NAME=FILES; see ``fixstar.evaluation.features``."""
    import numpy as np

    from fixstar.evaluation.cross_test import takes_pairs
    from fixstar.evaluation.features import read_features, read_labels
    from fixstar.evaluation.labelled_vectors import LabelledVectors, counted, kept_pairs

    named = [_named_files(word) for word in features]
    versions = [read_features(name, files, shared) for name, files in named]
    widths = ", ".join(f"{version.name} {version.width}" for version in versions)
    if len({version.width for version in versions}) > 1 and not shared:
        raise InputError(
            f"the versions have features of different width ({widths}). With --shared-components they are compared "
            "over the first components that both have"
        )
    if labels is None and not named[0][1].endswith(".npz"):
        raise InputError(
            "labels are missing: give --labels QUERY_LABELS.npy,GALLERY_LABELS.npy, or one .npz file"
        )
    label_files = labels or named[0][1]
    known = read_labels(label_files)
    for version, (_, files) in zip(versions, named, strict=True):
        _require_labels(version, files, known, label_files)
    facts = {"Gallery": counted(known.gallery), "Features": widths}
    if not takes_pairs(protocol):
        _require_two_classes(
            sorted({known.classes.get(y, str(y)) for y in known.gallery.tolist()}), "the gallery"
        )
        return LabelledVectors(
            versions, known.queries, known.gallery, classes=known.classes, facts=facts
        )
    same = all(np.array_equal(version.queries, version.gallery) for version in versions)
    truth = known.queries
    if not same:
        truth = np.concatenate([known.queries, known.gallery])
    both = []
    for version in versions:
        vectors = version.queries
        if not same:
            vectors = np.concatenate([version.queries, version.gallery])
        both.append(replace(version, queries=vectors, gallery=vectors))
    pairs, how = kept_pairs(truth, pairs_file, seed)
    facts = {"Images": counted(truth), "Pairs drawn": how, "Features": widths}
    return LabelledVectors(both, truth, truth, classes=known.classes, facts=facts, pairs=pairs)


def _require_two_classes(classes: Sequence[str], what: str) -> None:
    """Raise if there is only one class: every answer would be right, with any model."""
    if len(classes) == 1:
        raise InputError(
            f"{what} has only one class, {classes[0]!r}: every answer would be right, whatever the model. Give images "
            "of two or more classes: one folder per class, or the folder above if this is one class of several"
        )


def _require_labels(
    version: VersionFeatures, files: str, known: LabelFile, label_files: str
) -> None:
    for which, vectors, truth in (
        ("query", version.queries, known.queries),
        ("gallery", version.gallery, known.gallery),
    ):
        if len(vectors) != len(truth):
            raise DataError(
                f"version {version.name!r} ({files}) has {len(vectors)} {which} images, and {label_files} has "
                f"{len(truth)} {which} labels. Every version embeds the same images in the same order"
            )


def _named_files(word: str) -> tuple[str, str]:
    name, equals, files = word.partition("=")
    if not (name and equals and files):
        raise InputError(
            f"--features {word!r} is not NAME=FILE.npz or NAME=QUERIES.npy,GALLERY.npy"
        )
    return name, files


def _evaluation_json(
    result: CrossTest, evidence: CellDifferences, confidence: float, by_class: bool
) -> dict[str, Any]:
    from fixstar.evaluation import cell_evidence
    from fixstar.evaluation.compatibility import lower_triangle
    from fixstar.evaluation.report import evidence_numbers

    found: dict[str, Any] = {
        "protocol": result.protocol,
        "versions": result.names,
        "answers": len(next(iter(result.hits.values()))),
        "matrix": lower_triangle(result.matrix),
    }
    if evidence:
        found |= result.summary()
        found |= {
            "confidence": confidence,
            "by_class": by_class,
            "evidence": cell_evidence(evidence)._asdict(),
        }
        found["cells"] = evidence_numbers(result, evidence)
    return found


def _print_evaluation(result: CrossTest, evidence: CellDifferences, confidence: float) -> None:
    from fixstar.evaluation import cell_evidence, compatible_cells
    from fixstar.evaluation.report import MARKS, verdict_sentences

    styles = {"compatible": "", "incompatible": "red", "not decided": "yellow"}

    def cell(t: int, k: int) -> Cell:
        if k > t:
            return ""
        accuracy = percent(result.matrix[t, k])
        if k == t:
            return accuracy
        verdict = evidence[t, k].verdict
        return f"{accuracy} {MARKS[verdict]}".rstrip(), styles[verdict]

    count = len(result.names)
    rows: list[tuple[Cell, ...]] = [
        (name, *(cell(t, k) for k in range(count))) for t, name in enumerate(result.names)
    ]
    print_table(("queries by", *(f"gallery {name}" for name in result.names)), rows)
    if not evidence:
        return
    print("  ".join(f"{key} {value:.3f}" for key, value in result.summary().items()))
    asked = len(next(iter(result.hits.values())))
    kind = "pairs" if result.protocol == "verification" else "queries"
    passed = int(compatible_cells(result.matrix).sum())
    counted = cell_evidence(evidence)
    print(
        f"{passed} of {len(evidence)} cross-tests are above the old self-test, measured with {asked:,} {kind}"
    )
    print(
        f"with {100 * confidence:g} % confidence {counted.compatible} compatible, "
        f"{counted.incompatible} incompatible (x), {counted.not_decided} not decided (?)"
    )
    for sentence in verdict_sentences(result, evidence, confidence):
        print_wrapped(sentence.text)


@verb("fixstar methods --json", "fixstar methods --have old-model,replay")
def methods(
    have: Annotated[
        str | None,
        typer.Option(
            help="What you still have, separated by commas: old-model, old-classifier, old-vectors, replay, all-images."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods: what each does, what it needs from the past, what it costs; and recommend one."""
    from fixstar.methods import METHODS
    from fixstar.methods.advice import advise, parse_needs

    known = {name: factory() for name, factory in METHODS.items()}
    advice = None
    if have is not None:
        advice = advise(parse_needs(have), known)
    shown = [method for name, method in known.items() if advice is None or name in advice.possible]
    if as_json:
        plain = ("name", "summary", "scenario", "classifier", "source")
        rows = []
        for method in shown:
            row = {name: getattr(method, name) for name in plain}
            row["needs"] = sorted(method.needs)
            row["cost"] = round(method.cost, 2)
            row["options"] = dict(method.options)
            rows.append(row)
        if advice is None:
            print_json(rows)
        else:
            print_json({**advice._asdict(), "possible": rows})
        return
    print_list(
        (
            (
                method.name,
                f"cost {method.cost:.2f}",
                method.scenario,
                ", ".join(sorted(method.needs)),
            ),
            f"{method.summary} ({method.source})",
        )
        for method in shown
    )
    print_wrapped(
        "Below each name: what it does and where it comes from. Beside it: its cost (passes through a network, "
        "relative to plain training on the same images), its scenario, and what it needs from the past"
    )
    if advice is not None and advice.recommended:
        print_wrapped(f"Use {advice.recommended}: {advice.reason}.")
    elif advice is not None:
        print_wrapped(f"{advice.reason}.")


@verb("fixstar backbones --json")
def backbones(as_json: AsJson = False) -> None:
    """List the backbones by name."""
    from fixstar.models import backbone_names
    from fixstar.models.backbones.pretrained import PRETRAINED

    trained = [
        f"{name}   pre-trained on ImageNet (needs the extra 'encoder')" for name in PRETRAINED
    ]
    others = "hf:NAME_OR_FOLDER   any vision model of transformers (needs the extra 'backbones')"
    print_result(as_json, backbone_names(), *backbone_names(), *trained, others)


@verb("fixstar theorem", "fixstar theorem --dimensions 10,100 --new-angle 45 --json")
def theorem(
    dimensions: Annotated[
        str, typer.Option(help="Dimensions of the simplex, d = K - 1.")
    ] = "10,32,100,316,1000",
    samples: Annotated[int, typer.Option(help="Pairs of features drawn per dimension.")] = 40_000,
    old_angle: Annotated[
        float, typer.Option(help="Width of a class before the upgrade, in degrees.")
    ] = 45.0,
    new_angle: Annotated[
        float, typer.Option(help="Width after it; the theorem assumes no increase.")
    ] = 30.0,
    out: Annotated[Path, typer.Option(help="Write the picture to this PNG, SVG or PDF.")] = Path(
        "theorem.png"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the features.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Check equations 1a and 1b of the stationarity theorem on features drawn around fixed simplex prototypes."""
    from math import radians

    from fixstar.research.theorem import check_theorem, draw_theorem

    for option, angle in (("--old-angle", old_angle), ("--new-angle", new_angle)):
        if not 0 < angle <= 180:
            raise InputError(
                f"{option} {angle:g}: the width of a class is above 0 and at most 180 degrees, such as 45"
            )
    picture = _picture_path(out, "theorem.png")
    checks = check_theorem(
        _whole_numbers(dimensions), radians(old_angle), radians(new_angle), samples, seed
    )
    assumed = new_angle <= old_angle
    change = "narrow" if assumed else "widen"
    title = f"Classes {change} from {old_angle:g} to {new_angle:g} degrees around fixed prototypes"
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw_theorem(checks, picture, title)
    if as_json:
        angles = {
            "old_angle": old_angle,
            "new_angle": new_angle,
            "assumption_met": assumed,
            "samples": samples,
        }
        print_json(
            {**angles, "picture": str(picture), "dimensions": [asdict(check) for check in checks]}
        )
        return
    _print_theorem(checks)
    if not assumed:
        print_wrapped(
            f"The theorem assumes that classes get no wider. From {old_angle:g} to {new_angle:g} degrees they do: "
            "a violation here does not contradict it."
        )
    print(f"Picture: {picture}")


def _whole_numbers(words: str) -> list[int]:
    try:
        return [int(word) for word in words.split(",")]
    except ValueError:
        raise InputError(
            f"--dimensions takes whole numbers separated by commas, like 10,100; got {words!r}"
        ) from None


def _print_theorem(checks: list[DimensionCheck]) -> None:
    verdicts = {True: ("holds", "green"), False: ("violated", "red"), None: ("too close", "")}
    rows: list[Sequence[Cell]] = []
    for check in checks:
        for name, case in (("one class, 1a", check.same), ("two, 1b", check.different)):
            numbers = (
                f"{case.old:.4f}",
                f"{case.cross:.4f}",
                f"{case.margin:+.5f}±{case.error:.5f}",
                f"{case.exact_margin:+.5f}",
            )
            rows.append((str(check.dimension), name, *numbers, verdicts[case.holds]))
    print_table(("d", "case", "E old-old", "E new-old", "margin", "exactly", ""), rows)


def _picture_path(out: Path, usual: str) -> Path:
    """The file of --out; a name without a suffix gets .png, as matplotlib would add.

    ``usual`` is the name to propose if ``out`` is a folder.
    """
    path = out
    if not out.suffix:
        path = out.with_name(f"{out.name}.png")
    for place in (out, path):
        if place.is_dir():
            raise InputError(f"--out {place} is a folder; name a file, like --out {place / usual}")
    if path.suffix.lower() not in PICTURES:
        raise InputError(f"--out {out} must end in one of {', '.join(PICTURES)}")
    return path


@verb("fixstar picture2d --out features.png", "fixstar picture2d --data mnist --backbone lenet++")
def picture2d(
    out: Annotated[Path, typer.Option(help="Write the picture to this PNG, SVG or PDF.")] = Path(
        "features.png"
    ),
    data: Annotated[
        Path | None, typer.Option(help="MNIST's idx files; without it digits are drawn.")
    ] = None,
    backbone: Annotated[
        str, typer.Option(help="tiny, or the papers' lenet++ (slow without a GPU).")
    ] = "tiny",
    per_class: Annotated[int, typer.Option(help="Training images per class.")] = 300,
    epochs: Annotated[int, typer.Option(help="Passes over the images for each version.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of the weights.")] = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Draw 2-d features of IFT, BCT and CoReS through two upgrades: which methods keep known classes in place."""
    from fixstar.research.picture2d import run_picture2d

    picture = _picture_path(out, "features.png")
    picture.parent.mkdir(parents=True, exist_ok=True)  # before the training, which takes minutes
    result = run_picture2d(
        picture,
        data,
        backbone=backbone,
        per_class=per_class,
        epochs=epochs,
        seed=seed,
        device=device,
        progress=not as_json,
        say=say,
    )
    if as_json:
        print_json(asdict(result))
        return
    for name, turns in result.turns.items():
        words = ", then ".join(f"{turn:.0f}°" for turn in turns)
        print(
            f"{name:<30} known classes turned by {words};  accuracy {result.accuracy[name][-1]:.0%} in the end"
        )
    print(f"Picture: {result.picture}")
