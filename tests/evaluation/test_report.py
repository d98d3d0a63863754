"""Reports: one page that stands alone, and numbers that are those of the functions."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from wording import refuses

from fixstar.errors import InputError
from fixstar.evaluation.compatibility import summary
from fixstar.evaluation.cross_test import CrossTest, cross_test
from fixstar.evaluation.curves import metric_curve
from fixstar.evaluation.evidence import (
    cell_evidence,
    flips,
    found_before_after,
    needed_resamples,
    verdicts,
)
from fixstar.evaluation.features import VersionFeatures
from fixstar.evaluation.mixed import BackfillCurve, backfill_curve
from fixstar.evaluation.report import (
    RateTable,
    Report,
    Thumbnails,
    backfill_sentence,
    lost_queries,
    verdict_sentences,
)

pytestmark = pytest.mark.draws

EMPTY = {"img", "meta"}
N = 240
LABELS = np.arange(N) % 6
EVIL = "<b>&\"'</b><script>alert(1)</script>"
CLASSES = [EVIL, "two", "three", "four", "five", "six"]


class Page(HTMLParser):
    """Reads a page, and insists that every element is closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.texts.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@cache
def versions(T: int) -> list[VersionFeatures]:
    """Versions that get better: queries and gallery of six classes, with less and less noise."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, 8))

    def embed(t: int) -> VersionFeatures:
        q, g = (centres[LABELS] + (2 - 1.5 * t / T) * rng.normal(size=(N, 8)) for _ in range(2))
        return VersionFeatures(f"v{t + 1}", q, g)

    return [embed(t) for t in range(T)]


@cache
def measured(T: int) -> CrossTest:
    return cross_test(versions(T), LABELS, LABELS, "image")


def grey(row: int) -> Image.Image:
    return Image.new("L", (300, 200), row % 256)


def full_report() -> Report:
    old, new = versions(3)[-2:]
    result = measured(3)
    found = flips(result.hits[1, 1], result.hits[2, 1], LABELS)
    return Report(
        {"HOC <1>": result, "ER": measured(3)},
        title=f"v3 {EVIL}",
        query_labels=LABELS,
        classes=CLASSES,
        lost={"ER": lost_queries(found, LABELS, old, new)},
        thumbnails=Thumbnails(grey, grey),
        backfill={"ER": backfill_curve(old, new, LABELS, LABELS, [0, 0.5, 1])},
        rocs={"new": ([0, 0.5, 1], [0.3, 0.6, 1])},
        tables=[RateTable("Ranks", ("Rank-1", "Rank-5"), {EVIL: (0.5, 0.75)})],
        replacements=(2,),
        facts={"Seed & split": "0 <half>"},
    )


def written(report: Report, folder: Path) -> tuple[Page, dict[str, Any]]:
    report.write(folder)
    return Page((folder / "report.html").read_text(encoding="utf-8")), json.loads(
        (folder / "report.json").read_text()
    )


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Page, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("report") / "new" / "folder"
    return folder, *written(full_report(), folder)


Full = tuple[Path, Page, dict[str, Any]]


def test_the_page_stands_alone_and_is_escaped(full: Full) -> None:
    folder, page, _ = full
    text = (folder / "report.html").read_text()
    assert text.startswith("<!doctype html>")
    assert not page.of("script")
    assert not page.of("link")
    assert not page.of("b")
    assert not re.search(r"https?://|@import|url\(", text)
    for attributes in page.of("img"):
        assert (attributes["src"] or "").startswith("data:image/png;base64,")
        assert attributes["alt"]
        Image.open(io.BytesIO(base64.b64decode((attributes["src"] or "").split(",")[1]))).verify()
    assert page.of("html") == [{"lang": "en"}]
    assert "prefers-color-scheme: dark" in text
    assert any(meta.get("name") == "viewport" for meta in page.of("meta"))
    assert (
        sum(EVIL in part for part in page.texts) == 5
    )  # title, h1, two tables of classes, one of ranks
    assert "0 <half>" in page.texts
    assert "HOC <1>" in page.texts


def test_tables_have_captions_and_scopes(full: Full) -> None:
    page = full[1]
    assert len(page.of("caption")) == len(page.of("table")) > 6
    assert {cell.get("scope") for cell in page.of("th")} == {"col", "row"}
    assert all(region.get("aria-label") for region in page.of("div"))


def test_all_files_are_there_and_pictures_have_their_size(full: Full) -> None:
    folder = full[0]
    figures = full_report().figures()
    assert list(figures) == ["matrix.png", "AA.png", "BC.png", "backfill.png", "roc.png"]
    assert {path.name for path in folder.iterdir()} == {"report.html", "report.json", *figures}
    for name, figure in figures.items():
        with Image.open(folder / name) as image:
            assert image.format == "PNG"
            assert np.allclose(image.size, figure.get_size_inches() * 200, atol=1)


def test_a_report_is_written_again_in_its_place(tmp_path: Path) -> None:
    report = Report(measured(2))
    first = {path: path.read_bytes() for path in report.write(tmp_path)}
    assert [path.name for path in first] == ["report.html", "matrix.png", "report.json"]
    assert {path: path.read_bytes() for path in report.write(tmp_path)} == first


def test_the_numbers_are_those_of_the_functions(full: Full) -> None:
    content = full[2]
    result, evidence = measured(3), verdicts(measured(3))
    found = content["methods"]["ER"]
    assert found["versions"] == ["v1", "v2", "v3"]
    assert [value for row in found["matrix"] for value in row] == result.matrix[
        np.tril_indices(3)
    ].tolist()
    assert found["summary"] == summary(result.matrix)
    assert found["answers"] == N
    assert found["evidence"]["ac_range"] == list(cell_evidence(evidence).ac_range)
    for cell in found["cells"]:
        t, k = found["versions"].index(cell["query"]), found["versions"].index(cell["gallery"])
        expected = evidence[t, k]
        assert (cell["cross"], cell["old"]) == (result.matrix[t, k], result.matrix[k, k])
        assert [cell[key] for key in ("difference", "low", "high", "verdict", "differing")] == [
            *(expected.mean, expected.low, expected.high, expected.verdict, expected.differing)
        ]
    assert len(found["cells"]) == 3
    assert found["curves"]["BC"] == [None, *metric_curve(result.matrix, "BC")[1:].tolist()]
    lost = flips(result.hits[1, 1], result.hits[2, 1], LABELS)
    assert found["flips"][1]["negative"] == lost.negative.tolist()
    assert found["flips"][1]["classes"][0]["net"] == lost.classes[0].net
    _, old, new = versions(3)
    curve = backfill_curve(old, new, LABELS, LABELS, [0, 0.5, 1])
    assert content["backfill"]["ER"]["accuracy"] == curve.accuracy.tolist()
    assert content["tables"][0]["rows"] == {EVIL: [0.5, 0.75]}
    assert content["facts"] == {"Seed & split": "0 <half>"}


@pytest.mark.parametrize("T", [2, pytest.param(31, marks=pytest.mark.long)])
def test_one_upgrade_and_thirty_one_versions(T: int, tmp_path: Path) -> None:
    page, content = written(Report(measured(T), query_labels=LABELS), tmp_path)
    assert len(content["methods"][""]["cells"]) == T * (T - 1) // 2
    assert (tmp_path / "AA.png").exists() == (T > 2)
    newest = verdicts(measured(T))[T - 1, 0]
    assert newest.verdict == "compatible"
    assert any(text.startswith(f"v{T} can be deployed over v1's") for text in page.texts)
    assert len(page.of("details")) == (1 if T == 2 else 2)


def test_no_flips_and_no_labels(tmp_path: Path) -> None:
    features = versions(2)[0]
    same = cross_test(
        [features, VersionFeatures("v2", features.queries, features.gallery)],
        LABELS,
        LABELS,
        "image",
    )
    page, content = written(Report(same, query_labels=LABELS), tmp_path / "labels")
    assert "No query is lost, and none is won." in page.texts
    assert content["methods"][""]["flips"][0]["negative"] == []
    assert any(
        text.startswith("It is not decided whether v2 can be deployed") for text in page.texts
    )
    page, content = written(Report(same), tmp_path / "none")
    assert "Flips" not in page.texts
    assert content["methods"][""]["flips"] == []


def test_lost_queries_stand_with_what_was_found(tmp_path: Path) -> None:
    old, new = versions(3)[-2:]
    result = measured(3)
    found = flips(result.hits[1, 1], result.hits[2, 1], LABELS)
    assert len(found.negative) > 4
    chosen = lost_queries(found, LABELS, old, new, shown=4)
    for lost in chosen:
        assert lost.query in found.negative
        assert LABELS[lost.before] == LABELS[lost.query] != LABELS[lost.after]
        rows = found_before_after([lost.query], old, new)
        assert (lost.before, lost.after) == (rows.before[0, 0], rows.after[0, 0])
    losing = [row.label for row in found.classes if row.negative]
    assert [int(LABELS[lost.query]) for lost in chosen] == losing[
        :4
    ]  # one of each class, heaviest net loss first
    page, _ = written(
        Report(result, query_labels=LABELS, lost={"": chosen}, thumbnails=Thumbnails(grey, grey)),
        tmp_path,
    )
    small = [image for image in page.of("img") if image.get("class") == "thumbnail"]
    assert [image["alt"] for image in small] == [
        "query",
        "nearest image to v2's query",
        "nearest image to v3's query",
    ] * 4
    decoded = Image.open(io.BytesIO(base64.b64decode((small[1]["src"] or "").split(",")[1])))
    assert decoded.size == (96, 64)
    assert decoded.getpixel((0, 0)) == (chosen[0].before % 256,) * 3
    everything = lost_queries(found, LABELS, old, new, shown=1000)
    assert sorted(lost.query for lost in everything) == found.negative.tolist()


def test_by_class_the_evidence_is_drawn_by_class(tmp_path: Path) -> None:
    report = Report(measured(2), query_labels=LABELS, by_class=True, confidence=0.9)
    expected = verdicts(measured(2), clusters=LABELS, confidence=0.9)
    assert report.evidence[""] == expected
    page, _ = written(report, tmp_path)
    assert "differing classes" in page.texts
    assert any("with 90 % confidence" in text for text in page.texts)


def test_given_evidence_is_told_and_not_drawn_again(tmp_path: Path) -> None:
    strict = verdicts(measured(2), confidence=0.999)
    assert strict != verdicts(measured(2))
    report = Report(measured(2), evidence={"": strict})
    assert report.evidence == {"": strict}
    _, numbers = written(report, tmp_path)
    assert numbers["methods"][""]["cells"][0]["low"] == strict[1, 0].low


def hits(*right: float) -> dict[tuple[int, int], NDArray[np.bool_]]:
    """Cells (0, 0), (1, 0), (1, 1) with these shares of 200 queries right."""
    return {
        cell: np.arange(200) < 200 * share
        for cell, share in zip(((0, 0), (1, 0), (1, 1)), right, strict=True)
    }


@pytest.mark.parametrize(
    ("cross", "beginning"),
    [
        (
            0.7,
            "v2 can be deployed over v1's gallery: its queries reach 70.0 % there, v1's own 50.0 %.",
        ),
        (
            0.51,
            "It is not decided whether v2 can be deployed over v1's gallery: its queries reach 51.0 %",
        ),
        (0.3, "v2 must not be deployed over v1's gallery: its queries reach 30.0 %"),
    ],
)
def test_the_verdict_is_said_in_words(cross: float, beginning: str) -> None:
    test = CrossTest(
        ("v1", "v2"), "image", np.array([[0.5, np.nan], [cross, 0.8]]), hits(0.5, cross, 0.8)
    )
    (sentence,) = verdict_sentences(test, verdicts(test), 0.95)
    assert sentence.text.startswith(beginning)
    assert "95 % confidence" in sentence.text


def test_a_backfill_that_dips_is_warned_of(tmp_path: Path) -> None:
    shares = np.array([1.0, 0.0, 0.25])
    dips = BackfillCurve(shares, np.array([[0.8, 0.6, 0.45], [0.8, 0.6, 0.55]]))
    rises = BackfillCurve(shares, np.array([[0.8, 0.6, 0.6]]))
    assert backfill_sentence(rises) == ""
    warning = (
        "A gallery that is 25.0 % re-embedded reaches 50.0 %, one that is 0.0 % re-embedded 60.0 %."
    )
    assert backfill_sentence(dips).startswith(warning)
    page, _ = written(
        Report({"a": measured(2), "b": measured(2)}, backfill={"a": rises, "b": dips}), tmp_path
    )
    assert sum(text.startswith(f"b: {warning}") for text in page.texts) == 1
    assert not any(text.startswith("a: ") for text in page.texts)


def test_many_galleries_are_not_all_named() -> None:
    test = measured(31)
    text = " ".join(sentence.text for sentence in verdict_sentences(test, verdicts(test), 0.95))
    assert "others'" in text
    assert len(text) < 600


@pytest.mark.parametrize(("confidence", "resamples"), [(0.5, 2000), (0.95, 2000), (0.999, 10_000)])
def test_high_confidence_takes_more_resamples(confidence: float, resamples: int) -> None:
    assert needed_resamples(confidence) == pytest.approx(resamples, abs=1)
    verdicts(measured(2), confidence=confidence)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Report({}),
        lambda: Report(measured(1)),
        lambda: Report(measured(2), by_class=True),
        lambda: Report(measured(2), confidence=95),
        lambda: Report({"a": measured(2)}, lost={"b": []}),
        lambda: Report(
            {"a": measured(2), "b": cross_test(versions(2), LABELS, LABELS, "template")}
        ),
        lambda: RateTable("", ("one",), {"row": (1.0, 2.0)}),
        lambda: Report(measured(2)).write(__file__),
    ],
)
def test_wrong_input_is_named(call: Callable[[], object]) -> None:
    with refuses(InputError):
        call()
