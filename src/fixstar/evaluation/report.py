"""A report: whether the new version can be deployed over the old gallery, with the evidence."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fixstar.durable import replace_file, replace_json
from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation.compatibility import lower_triangle
from fixstar.evaluation.cross_test import MEASURES, CrossTest, takes_pairs
from fixstar.evaluation.curves import accuracy_curves, backfill_curves, metric_curve, roc_curves
from fixstar.evaluation.evidence import (
    Difference,
    Flips,
    cell_evidence,
    flips,
    found_before_after,
    verdicts,
)
from fixstar.evaluation.features import VersionFeatures
from fixstar.evaluation.mixed import BackfillCurve
from fixstar.evaluation.pictures import side_by_side
from fixstar.evaluation.search import Labels
from fixstar.wording import MINUS, percent, points

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.figure import Figure
    from PIL import Image

Cell = tuple[int, int]
CellDifferences = Mapping[Cell, Difference]
Roc = tuple[ArrayLike, ArrayLike]

SHOWN = 8  # number of lost queries with pictures
FEW_CELLS = 15  # a longer list of cross-tests is collapsed
FEW_CLASSES = 12  # classes with flips that are listed
THUMBNAIL = 96  # pixels
LONGEST_LIST = 6  # maximum number of names that are listed in full
VISIBLE_DROP = 0.005  # a drop of a backfill curve that is worth a warning
MARKS = {"compatible": "", "incompatible": "x", "not decided": "?"}
"""The mark of a cell beside its number."""
CAPTIONS = {
    "AA.png": "Average accuracy over the first versions, AA",
    "BC.png": "Backward compatibility, BC: the gain of a version on all older galleries; negative means forgetting",
    "backfill.png": "Accuracy while the gallery is re-embedded with the newest version",
    "roc.png": "True accept rate over false accept rate",
}


class LostQuery(NamedTuple):
    """A negative flip: the query's row, and the gallery rows found by the old version and by the new one."""

    query: int
    before: int
    after: int


class Thumbnails(NamedTuple):
    """Functions from a row number to its image: for the queries, and for the gallery."""

    query: Callable[[int], Image.Image]
    gallery: Callable[[int], Image.Image]


@dataclass(frozen=True)
class RateTable:
    """A table of fractions, such as Rank-k or TAR at some FAR: each row has a name and one fraction per column."""

    caption: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float, ...]]

    def __post_init__(self) -> None:
        for name, values in self.rows.items():
            if len(values) != len(self.columns):
                raise InputError(
                    f"row {name!r} has {len(values)} values for the columns {', '.join(self.columns)}"
                )


class Report:
    """The report of one cross-test, or of several by method.

    ``by_class`` bootstraps over classes; ``lost`` and ``backfill`` are by method, ``rocs`` by any name. ``facts``
    describe the measurement. ``evidence``, by method, is computed unless given; ``flips[method][t, k]`` of the newest
    version t are computed.
    """

    def __init__(
        self,
        tests: CrossTest | Mapping[str, CrossTest],
        *,
        title: str = "Compatibility report",
        query_labels: Labels | None = None,
        classes: Sequence[str] | Mapping[int, str] = (),
        confidence: float = 0.95,
        by_class: bool = False,
        seed: int = 0,
        lost: Mapping[str, Sequence[LostQuery]] | None = None,
        thumbnails: Thumbnails | None = None,
        backfill: Mapping[str, BackfillCurve] | None = None,
        rocs: Mapping[str, Roc] | None = None,
        tables: Sequence[RateTable] = (),
        replacements: Sequence[int] = (),
        facts: Mapping[str, str] | None = None,
        evidence: Mapping[str, CellDifferences] | None = None,
    ) -> None:
        self.tests = {"": tests} if isinstance(tests, CrossTest) else dict(tests)
        _check(self.tests, query_labels, by_class)
        self.protocol = next(iter(self.tests.values())).protocol  # the same for all methods
        self.title = title
        self.confidence = confidence
        self.by_class = by_class
        if isinstance(classes, Mapping):
            self.classes = dict(classes)
        else:
            self.classes = dict(enumerate(classes))
        self.lost = lost or {}
        self.thumbnails = thumbnails
        self.backfill = backfill or {}
        self.rocs = rocs or {}
        self.tables = tables
        self.replacements = replacements
        self.facts = facts or {}
        for what, given in (("lost queries", self.lost), ("a backfill curve", self.backfill)):
            if unknown := sorted(set(given) - self.tests.keys()):
                raise UnknownNameError(f"method of {what}", unknown[0], self.tests)
        clusters = query_labels if by_class else None
        self.evidence = evidence or {
            name: verdicts(test, confidence=confidence, seed=seed, clusters=clusters)
            for name, test in self.tests.items()
        }
        self.flips = {name: _newest_flips(test, query_labels) for name, test in self.tests.items()}

    def class_name(self, label: int) -> str:
        """The name of a class, or its number."""
        return self.classes.get(label, str(label))

    def figures(self) -> dict[str, Figure]:
        """The pictures by file name. Curves over versions need at least three versions."""
        matrices = {name: test.matrix for name, test in self.tests.items()}
        versions = {test.names for test in self.tests.values()}
        names = list(versions.pop()) if len(versions) == 1 else None
        drawn = {"matrix.png": side_by_side(matrices, names=names, verdicts=self.evidence)}
        if max(map(len, matrices.values())) > 2:
            for metric in ("AA", "BC"):
                series = {name or metric: metric_curve(C, metric) for name, C in matrices.items()}
                drawn[f"{metric}.png"] = accuracy_curves(
                    series, None, self.replacements, metric=metric
                )
        if self.backfill:
            shown = {
                name: name or "{1} over {0}'s gallery".format(*self.tests[name].names[-2:])
                for name in self.backfill
            }
            ends = {shown[name]: matrices[name].diagonal()[-2:].tolist() for name in self.backfill}
            curves = {shown[name]: curve for name, curve in self.backfill.items()}
            drawn["backfill.png"] = backfill_curves(curves, None, ends)
        if self.rocs:
            drawn["roc.png"] = roc_curves(self.rocs)
        return drawn

    def write(self, folder: str | Path) -> list[Path]:
        """Write report.html, the pictures and report.json; files of those names are replaced."""
        folder = Path(folder)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file; a report is a folder. Choose another name")
        pictures = {
            name: _png(figure.savefig, dpi=figure.dpi) for name, figure in self.figures().items()
        }
        for name, content in {"report.html": _page(self, pictures).encode(), **pictures}.items():
            replace_file(folder / name, partial(Path.write_bytes, data=content))
        replace_json(folder / "report.json", _numbers(self))
        return [folder / name for name in ("report.html", *pictures, "report.json")]


def lost_queries(
    found: Flips,
    query_labels: Labels,
    old: VersionFeatures,
    new: VersionFeatures,
    shown: int = SHOWN,
) -> list[LostQuery]:
    """Up to ``shown`` negative flips with what was found: one of each class in turn, largest net loss first."""
    labels = np.asarray(query_labels)[found.negative]
    place = {row.label: number for number, row in enumerate(found.classes)}
    turn: dict[int, int] = {}
    keys = []
    for label in labels.tolist():
        turn[label] = turn.get(label, -1) + 1
        keys.append((turn[label], place[label]))
    chosen = found.negative[sorted(range(len(keys)), key=keys.__getitem__)[:shown]]
    rows = found_before_after(chosen, old, new)
    columns = chosen.tolist(), rows.before[:, 0].tolist(), rows.after[:, 0].tolist()
    return [LostQuery(*three) for three in zip(*columns, strict=True)]


def _check(tests: Mapping[str, CrossTest], query_labels: Labels | None, by_class: bool) -> None:
    if not tests:
        raise InputError("a report needs at least one cross-test: {method: cross_test(...)}")
    if len(protocols := {test.protocol for test in tests.values()}) > 1:
        raise InputError(
            f"a report compares methods by one protocol, got {', '.join(sorted(protocols))}"
        )
    if by_class and query_labels is None:
        raise InputError("by_class bootstraps over classes; pass query_labels")
    for name, test in tests.items():
        if len(test.names) < 2:
            raise InputError(
                f"a report needs at least two versions; {name or 'the cross-test'} has {len(test.names)}"
            )


def _newest_flips(test: CrossTest, query_labels: Labels | None) -> dict[Cell, Flips]:
    """The flips of the newest version on every older gallery, for measures with right and wrong answers."""
    newest = len(test.names) - 1
    if (
        query_labels is None
        or takes_pairs(test.protocol)
        or test.hits[newest, newest].dtype != np.bool_
    ):
        return {}
    return {
        (newest, k): flips(test.hits[k, k], test.hits[newest, k], query_labels)
        for k in range(newest)
    }


# Sentences


class Sentence(NamedTuple):
    """A verdict and the sentence that states it."""

    verdict: str
    text: str


def verdict_sentences(
    test: CrossTest, evidence: CellDifferences, confidence: float
) -> list[Sentence]:
    """One sentence per verdict on the newest version: over which galleries it can be deployed, and over which not."""
    newest = len(test.names) - 1
    by_verdict = {
        verdict: [k for k in range(newest) if evidence[newest, k].verdict == verdict]
        for verdict in ("compatible", "not decided", "incompatible")
    }
    return [
        Sentence(verdict, _sentence(verdict, test, evidence, older, confidence))
        for verdict, older in by_verdict.items()
        if older
    ]


def _sentence(
    verdict: str,
    test: CrossTest,
    evidence: CellDifferences,
    older: Sequence[int],
    confidence: float,
) -> str:
    newest = len(test.names) - 1
    name = test.names[newest]
    noun = "gallery" if len(older) == 1 else "galleries"
    owners = _listed([f"{test.names[k]}'s" for k in older])
    galleries = f"{owners} {noun}"
    begin = {
        "compatible": f"{name} can be deployed over {galleries}",
        "not decided": f"It is not decided whether {name} can be deployed over {galleries}",
        "incompatible": f"{name} must not be deployed over {galleries}",
    }[verdict]
    if len(older) == 1:
        (k,) = older
        cell = evidence[newest, k]
        return (
            f"{begin}: its queries reach {percent(float(test.matrix[newest, k]))} there, {test.names[k]}'s own "
            f"{percent(float(test.matrix[k, k]))}. The difference is {points(cell.mean)} points, and with "
            f"{100 * confidence:g} % confidence between {points(cell.low)} and {points(cell.high)}."
        )
    means = [evidence[newest, k].mean for k in older]
    return (
        f"{begin}: its queries differ from those of the gallery's own version by {points(min(means))} to "
        f"{points(max(means))} points there."
    )


def backfill_sentence(curve: BackfillCurve) -> str:
    """A warning if a partly re-embedded gallery is less accurate than before; empty otherwise."""
    between = np.flatnonzero((curve.shares > 0) & (curve.shares < 1))
    if not len(between):
        return ""
    start = int(curve.shares.argmin())
    worst = int(between[curve.accuracy[between].argmin()])
    before = float(curve.accuracy[start])
    after = float(curve.accuracy[worst])
    if after > before - VISIBLE_DROP:
        return ""
    return (
        f"A gallery that is {percent(float(curve.shares[worst]))} re-embedded reaches {percent(after)}, one that is "
        f"{percent(float(curve.shares[start]))} re-embedded {percent(before)}. Do not serve from a mixed gallery: "
        "re-embed a copy, and switch when it is complete."
    )


def _listed(names: Sequence[str]) -> str:
    """Names separated by commas and "and"; of many names, the first three and the last."""
    if len(names) > LONGEST_LIST:
        names = [*names[:3], f"{len(names) - 4} others'", names[-1]]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


# report.html


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": percent, "points": points, "count": "{:,}".format}
    environment.filters["net"] = lambda count: f"{count:+,}".replace("-", MINUS)
    environment.globals |= {"marks": MARKS, "few_classes": FEW_CLASSES}
    return environment.from_string(
        files("fixstar.evaluation").joinpath("report.html").read_text(encoding="utf-8")
    )


def _page(report: Report, pictures: Mapping[str, bytes]) -> str:
    """report.html; ``pictures`` are PNG files by name."""
    shown = {name: _data_url(png) for name, png in pictures.items()}
    warnings = ((name, backfill_sentence(curve)) for name, curve in report.backfill.items())
    if report.by_class:
        unit = "classes"
    elif takes_pairs(report.protocol):
        unit = "pairs"
    else:
        unit = "queries"
    return _template().render(
        report=report,
        unit=unit,
        confidence=f"{100 * report.confidence:g}",
        pictures=shown,
        methods=[_method_parts(report, name) for name in report.tests],
        figures=[(shown[name], text) for name, text in CAPTIONS.items() if name in shown],
        warnings=[f"{name}: {text}" if name else text for name, text in warnings if text],
        facts=_facts(report),
    )


def _method_parts(report: Report, name: str) -> dict[str, Any]:
    test = report.tests[name]
    evidence = report.evidence[name]
    found = report.flips[name]
    newest = len(test.names) - 1
    marks = {
        cell: f"{MARKS[difference.verdict]} ".lstrip() for cell, difference in evidence.items()
    }
    return {
        "name": name,
        "old": test.names[-2],
        "new": test.names[-1],
        "test": test,
        "summary": test.summary(),
        "ac_range": cell_evidence(evidence).ac_range,
        "sentences": verdict_sentences(test, evidence, report.confidence),
        "matrix": [
            [
                marks.get((t, k), "") + percent(test.matrix[t, k]) if k <= t else ""
                for k in range(newest + 1)
            ]
            for t in range(newest + 1)
        ],
        "evidence": evidence,
        "shown": {
            cell: d
            for cell, d in evidence.items()
            if cell[0] == newest or len(evidence) <= FEW_CELLS
        },
        "flips": found,
        "changed": [
            row for row in found[newest, newest - 1].classes if row.negative or row.positive
        ]
        if found
        else [],
        "lost": _lost_images(report, name, test),
    }


def _lost_images(report: Report, name: str, test: CrossTest) -> list[list[tuple[str, str]]]:
    """For each lost query its image and the nearest images by the old and the new version, with captions."""
    if report.thumbnails is None:
        return []
    query, gallery = report.thumbnails
    captions = ["query", *(f"nearest image to {version}'s query" for version in test.names[-2:])]
    images = [
        (query(lost.query), gallery(lost.before), gallery(lost.after))
        for lost in report.lost.get(name, ())
    ]
    return [list(zip(captions, map(_thumbnail, three), strict=True)) for three in images]


def _facts(report: Report) -> dict[str, str]:
    """The description of the measurement: known facts first, then the given ones."""
    protocol = report.protocol
    if "=" in protocol:
        kind = protocol.partition("=")[0] + "=F"
    else:
        kind = protocol.rstrip("0123456789") + "K"
    meaning = MEASURES.get(protocol) or MEASURES.get(kind, "")
    answers = len(next(iter(next(iter(report.tests.values())).hits.values())))
    unit = "classes" if report.by_class else "single answers"
    return {
        "Protocol": f"{protocol}: {meaning}",
        "Pairs" if takes_pairs(protocol) else "Queries": f"{answers:,}",
        "Criterion": "compatible where the cross-test is strictly above the old version's self-test",
        "Confidence": f"{100 * report.confidence:g} % for each cell, bootstrap over {unit}",
        **report.facts,
    }


def _png(save: Callable[..., object], **options: Any) -> bytes:
    file = io.BytesIO()
    save(file, format="png", **options)
    return file.getvalue()


def _thumbnail(image: Image.Image) -> str:
    small = image.convert("RGB")
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    return _data_url(_png(small.save))


def _data_url(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


# report.json: fractions, names and counts


def evidence_numbers(test: CrossTest, evidence: CellDifferences) -> list[dict[str, Any]]:
    """One entry per cross-test: its accuracy, the old self-test, their difference and its interval."""
    return [
        {
            "query": test.names[t],
            "gallery": test.names[k],
            "cross": float(test.matrix[t, k]),
            "old": float(test.matrix[k, k]),
            "difference": cell.mean,
            "low": cell.low,
            "high": cell.high,
            "verdict": cell.verdict,
            "differing": cell.differing,
        }
        for (t, k), cell in evidence.items()
    ]


def _numbers(report: Report) -> dict[str, Any]:
    return {
        "title": report.title,
        "protocol": report.protocol,
        "confidence": report.confidence,
        "by_class": report.by_class,
        "methods": {name: _method_numbers(report, name) for name in report.tests},
        "backfill": {
            name: {key: _plain(getattr(curve, key)) for key in ("shares", "accuracy", "runs")}
            for name, curve in report.backfill.items()
        },
        "roc": {
            name: {"far": _plain(far), "tar": _plain(tar)}
            for name, (far, tar) in report.rocs.items()
        },
        "tables": [asdict(table) for table in report.tables],
        "replacements": list(report.replacements),
        "facts": dict(report.facts),
    }


def _method_numbers(report: Report, name: str) -> dict[str, Any]:
    test = report.tests[name]
    evidence = report.evidence[name]
    counted = cell_evidence(evidence)
    return {
        "versions": list(test.names),
        "answers": len(next(iter(test.hits.values()))),
        "matrix": lower_triangle(test.matrix),
        "summary": test.summary(),
        "evidence": {**counted._asdict(), "ac_range": list(counted.ac_range)},
        "cells": evidence_numbers(test, evidence),
        "curves": {
            metric: _plain(metric_curve(test.matrix, metric))
            for metric in ("AA", "AC", "ACA", "BC")
        },
        "flips": [
            _flip_numbers(report, test, cell, found) for cell, found in report.flips[name].items()
        ],
        "lost": [lost._asdict() for lost in report.lost.get(name, ())],
    }


def _flip_numbers(report: Report, test: CrossTest, cell: Cell, found: Flips) -> dict[str, Any]:
    return {
        "query": test.names[cell[0]],
        "gallery": test.names[cell[1]],
        "queries": found.queries,
        "negative": found.negative.tolist(),
        "positive": found.positive.tolist(),
        "negative_rate": found.negative_rate,
        "positive_rate": found.positive_rate,
        "classes": [
            {"name": report.class_name(row.label), **row._asdict(), "net": row.net}
            for row in found.classes
        ],
    }


def _plain(values: ArrayLike) -> Any:
    """Lists of numbers, with None for NaN, which JSON does not have."""
    array = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(array), array, np.array(None)).tolist()
