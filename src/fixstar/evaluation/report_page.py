"""A report as one HTML page: no script, nothing to load, light and dark, readable on a phone."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fixstar.evaluation.cross_test import MEASURES
from fixstar.evaluation.evidence import Difference, cell_evidence
from fixstar.evaluation.markup import Html, element, join, picture, table, thumbnail
from fixstar.evaluation.report_style import STYLE
from fixstar.evaluation.report_words import MARKS, backfill_sentence, percent, points, verdict_sentences

if TYPE_CHECKING:
    from PIL import Image

    from fixstar.evaluation.cross_test import CrossTest
    from fixstar.evaluation.report import Report

__all__ = ["page"]

Cell = tuple[int, int]

FEW_CELLS = 15  # cross-tests that are listed without being asked for
FEW_CLASSES = 12  # classes with flips that are listed
THUMBNAIL = 96  # pixels
FIGURES = {
    "AA.png": "Average accuracy over the first versions, AA",
    "BC.png": "Backward compatibility, BC: what a version gains on all older galleries; below zero it has forgotten",
    "backfill.png": "Accuracy while the gallery is re-embedded with the newest version",
    "roc.png": "True accept rate over false accept rate",
}


def page(report: Report, pictures: Mapping[str, bytes]) -> str:
    """The whole page; ``pictures`` are PNG files by name."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", report.title),
        element("style", Html(STYLE)),
    )
    parts = (
        element("h1", report.title),
        _verdict(report),
        _matrix(report, pictures["matrix.png"]),
        _evidence(report),
        _flips(report),
        _curves(report, pictures),
        _method(report),
    )
    return f"<!doctype html>\n{element('html', head, element('body', element('main', *parts)), lang='en')}\n"


def _verdict(report: Report) -> Html:
    """First of all the answer, method by method."""
    blocks = []
    for name, test in report.tests.items():
        said = verdict_sentences(test, report.evidence[name], report.confidence)
        lines = [element("p", sentence.text, class_=sentence.verdict.replace(" ", "-")) for sentence in said]
        blocks.append(join([*_headed(name), *lines]))
    return element("section", *blocks, class_="verdict", aria_label="Verdict")


def _matrix(report: Report, png: bytes) -> Html:
    rows = []
    for name, test in report.tests.items():
        values, counted = test.summary(), cell_evidence(report.evidence[name])
        low, high = counted.ac_range
        span = f"{values['AC']:.2f} ({low:.2f} to {high:.2f})"
        rest = [
            points(values[key]) if key in ("BC", "FC") else percent(values[key]) for key in ("AA", "ACA", "BC", "FC")
        ]
        rows.append([name or "all versions", span, *rest])
    note = (
        "Rows say who embedded the queries, columns who embedded the gallery. A framed cell is a self-test; x marks "
        "cross-tests that are not above it, ? those that the queries do not decide. AC is the share of compatible "
        "cross-tests, in brackets what the evidence leaves open."
    )
    words = f"Compatibility matrix of {', '.join(filter(None, report.tests)) or 'the versions'}; its numbers are below"
    parts = [picture(png, words, note), table("Metrics of the matrix", ["method", "AC", "AA", "ACA", "BC", "FC"], rows)]
    for name, test in report.tests.items():
        grid = table(f"Accuracy{name and ' of ' + name}, query by row, gallery by column", *_grid(report, name, test))
        parts.append(_folded(f"The matrix{name and ' of ' + name} as a table", grid))
    return element("section", element("h2", "Compatibility"), *parts)


def _grid(report: Report, name: str, test: CrossTest) -> tuple[list[str], list[list[str]]]:
    def shown(t: int, k: int) -> str:
        mark = MARKS[report.evidence[name][t, k].verdict] if t > k else ""
        return f"{mark} {percent(float(test.matrix[t, k]))}".strip()

    rows = [[who, *(shown(t, k) if k <= t else "" for k in range(len(test.names)))] for t, who in enumerate(test.names)]
    return ["queries by", *test.names], rows


def _evidence(report: Report) -> Html:
    unit = "classes" if report.by_class else "queries"
    if next(iter(report.tests.values())).protocol == "verification" and not report.by_class:
        unit = "pairs"
    parts = [
        element(
            "p",
            f"Old and new version answer the same {unit}, and these are drawn again and again (paired bootstrap): an "
            f"interval holds the difference with {100 * report.confidence:g} % confidence. Above zero is compatible, "
            "not above zero incompatible. An interval with zero inside decides nothing; more of them would narrow it.",
        )
    ]
    for name, test in report.tests.items():
        evidence = report.evidence[name]
        newest = {cell: found for cell, found in evidence.items() if cell[0] == len(test.names) - 1}
        few = evidence if len(evidence) <= FEW_CELLS else newest
        parts += [*_headed(name), _differences(test, few, unit)]
        if len(few) < len(evidence):
            parts.append(_folded(f"All {len(evidence)} cross-tests", _differences(test, evidence, unit)))
    return element("section", element("h2", "Evidence"), *parts)


def _differences(test: CrossTest, cells: Mapping[Cell, Difference], unit: str) -> Html:
    head = ["queries by", "gallery by", "verdict", "cross-test", "old self-test", "difference", "from", "to"]
    rows = [
        [
            *(test.names[t], test.names[k], f"{found.verdict} {MARKS[found.verdict]}".strip()),
            *(percent(float(test.matrix[t, k])), percent(float(test.matrix[k, k]))),
            *map(points, (found.mean, found.low, found.high)),
            f"{found.differing:,}",
        ]
        for (t, k), found in cells.items()
    ]
    return table("Differences in percentage points", [*head, f"differing {unit}"], rows, words=3)


def _flips(report: Report) -> Html:
    if not any(report.flips.values()):
        return Html("")
    parts = [element("p", "A query is lost if the old version answered it rightly and the new one does not.")]
    for name, test in report.tests.items():
        cells = report.flips[name]
        rows = [
            [f"{test.names[k]}'s", f"{found.queries:,}", f"{len(found.negative):,}", f"{len(found.positive):,}"]
            for (_, k), found in cells.items()
        ]
        head = ["gallery", "queries", "lost", "won"]
        parts += [*_headed(name), table(f"Queries that {test.names[-1]} loses and wins", head, rows)]
        parts += _flips_by_class(report, name, test)
        parts += _lost(report, name, test)
    return element("section", element("h2", "Flips"), *parts)


def _flips_by_class(report: Report, name: str, test: CrossTest) -> list[Html]:
    found = report.flips[name][len(test.names) - 1, len(test.names) - 2]
    changed = [row for row in found.classes if row.negative or row.positive]
    if not changed:
        return [element("p", "No query is lost, and none is won.")]
    rows = [
        [
            report.class_name(row.label),
            f"{row.queries:,}",
            f"{row.negative:,}",
            f"{row.positive:,}",
            f"{row.net:+,}".replace("-", "\N{MINUS SIGN}"),
        ]
        for row in changed[:FEW_CLASSES]
    ]
    caption = f"By class, on {test.names[-2]}'s gallery, heaviest loss first"
    if len(changed) > FEW_CLASSES:
        caption += f" ({FEW_CLASSES} of {len(changed)}; all are in report.json)"
    return [table(caption, ["class", "queries", "lost", "won", "net"], rows)]


def _lost(report: Report, name: str, test: CrossTest) -> list[Html]:
    chosen = report.lost.get(name, ())
    if not chosen or report.thumbnails is None:
        return []
    old, new = test.names[-2], test.names[-1]
    cards = []
    for lost in chosen:
        shown = (
            ("query", report.thumbnails.query(lost.query)),
            (f"nearest image to {old}'s query", report.thumbnails.gallery(lost.before)),
            (f"nearest image to {new}'s query", report.thumbnails.gallery(lost.after)),
        )
        figures = [
            element("figure", thumbnail(_png(image), what), element("figcaption", what)) for what, image in shown
        ]
        cards.append(element("li", *figures))
    return [element("h3", f"Lost queries, among {old}'s vectors"), element("ul", *cards, class_="lost")]


def _curves(report: Report, pictures: Mapping[str, bytes]) -> Html:
    drawn = [picture(pictures[name], text, text) for name, text in FIGURES.items() if name in pictures]
    warned = ((name, backfill_sentence(curve)) for name, curve in report.backfill.items())
    drawn += [element("p", f"{name}: {text}" if name else text) for name, text in warned if text]
    tables = [
        table(one.caption, ["test", *one.columns], [[name, *map(percent, row)] for name, row in one.rows.items()])
        for one in report.tables
    ]
    if not drawn and not tables:
        return Html("")
    return element("section", element("h2", "Curves and tables"), *drawn, *tables)


def _method(report: Report) -> Html:
    """How it was measured: what the report knows itself, then the facts it was given."""
    test = next(iter(report.tests.values()))
    answers = len(next(iter(test.hits.values())))
    unit = "classes" if report.by_class else "single answers"
    facts = {
        "Protocol": f"{test.protocol}: {_explained(test.protocol)}",
        "Pairs" if test.protocol == "verification" else "Queries": f"{answers:,}",
        "Criterion": "compatible where the cross-test is strictly above the old version's self-test",
        "Confidence": f"{100 * report.confidence:g} % for each cell, drawing {unit}",
        **report.facts,
    }
    entries = (part for key, text in facts.items() for part in (element("dt", key), element("dd", text)))
    return element("section", element("h2", "How it was measured"), element("dl", *entries))


def _explained(protocol: str) -> str:
    return MEASURES.get(protocol) or MEASURES.get(protocol.rstrip("0123456789") + "K", "")


def _headed(name: str) -> Iterator[Html]:
    """A heading for a method that has a name."""
    if name:
        yield element("h3", name)


def _folded(summary: str, content: Html) -> Html:
    return element("details", element("summary", summary), content)


def _png(image: Image.Image) -> bytes:
    small = image.convert("RGB")
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    small.save(file, format="PNG")
    return file.getvalue()
