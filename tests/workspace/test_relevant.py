"""A check of texts by queries with known relevant items of the gallery, in BEIR's layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from text_models import (
    TOPICS,
    FakeServer,
    embeddings_server,
    own_settings,
    servers,
    topic_texts,
    write_jsonl,
)
from typed import typed
from wording import check_wording, refuses

from fixstar.errors import DataError, InputError
from fixstar.evaluation.retrieval import ndcg
from fixstar.workspace import Check, GateRules, Workspace
from fixstar.workspace.items import text_catalogue
from fixstar.workspace.options import FitOptions

__all__ = ["own_settings", "servers"]  # fixtures
pytestmark = pytest.mark.usefixtures("own_settings")
DOCUMENTS = topic_texts(40)


@pytest.fixture
def notes(tmp_path: Path, servers: tuple[FakeServer, FakeServer]) -> Iterator[Workspace]:
    """160 texts by a noisy model; a better one is the second version."""
    with Workspace.create(tmp_path / "notes", device="cpu") as space:
        space.add_version(servers[0].url())
        space.index(text_catalogue(write_jsonl(tmp_path / "notes.jsonl", DOCUMENTS)))
        space.add_version(servers[1].url("better"))
        yield space


def beir(folder: Path, queries: int, seed: int = 5) -> tuple[Path, Path]:
    """Queries of topics, in BEIR's layout: all stored texts of a query's topic are relevant for it."""
    rng = np.random.default_rng(seed)
    asked = []
    lines = ["query-id\tcorpus-id\tscore"]
    for row in range(queries):
        topic = list(TOPICS)[row % len(TOPICS)]
        words = " ".join(rng.choice(TOPICS[topic].split(), 3))
        asked.append({"_id": f"q{row}", "text": f"{words} {row}", "metadata": {}})
        lines += [
            f"q{row}\tnotes-{place}\t1"
            for place, (_, label) in enumerate(DOCUMENTS)
            if label == topic
        ]
    folder.mkdir(exist_ok=True)
    (folder / "queries.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
    (folder / "test.tsv").write_text("\n".join(lines) + "\n")
    return folder / "queries.jsonl", folder / "test.tsv"


def test_stored_texts_are_not_embedded_again_by_the_model_that_embedded_them(
    notes: Workspace, servers: tuple[FakeServer, FakeServer], tmp_path: Path
) -> None:
    files = beir(tmp_path / "beir", 60)
    notes.check("v2", relevant=files, progress=False)  # fits what is missing
    expected = notes.last_check("v2")
    for server in servers:
        server.requests.clear()
    check = notes.check("v2", relevant=files, progress=False)
    stored = {text for text, _ in DOCUMENTS}
    asked = [[text for body in server.requests for text in body["input"]] for server in servers]
    assert sum(text in stored for text in asked[0]) == 1
    assert sum(text not in stored for text in asked[0]) >= 60  # the queries
    assert sum(text in stored for text in asked[1]) == len(DOCUMENTS)
    assert expected is not None
    assert check.cells[0].self_test == pytest.approx(expected.cells[0].self_test)


def test_relevant_items_judge_and_the_version_is_deployed(notes: Workspace, tmp_path: Path) -> None:
    check = notes.check("v2", relevant=beir(tmp_path / "beir", 240), progress=False)
    assert check.outcome == "pass"
    (cell,) = check.cells
    assert (check.queries, check.gallery) == (120, 160)  # half of the queries choose
    assert set(cell.measured) == {"nDCG@10", "Recall@10", "MRR", "top-1"}
    decides = cell.measured["nDCG@10"]
    assert (decides["before"], decides["after"], decides["reembedded"]) == (
        cell.self_test,
        cell.cross_test,
        cell.reembedded,
    )
    assert cell.self_test < cell.cross_test < check.self_test  # type: ignore[operator]
    assert cell.low > 0
    assert "nDCG@10" in check.reasons[0]
    assert notes.last_check("v2") == check
    assert Check.from_json(check.to_json()) == check
    move = notes.deploy("v2")
    assert move.reason is None  # the gate let it through, nobody forced it
    assert notes.search(["dough crust oven"], k=3).version == "v2"


def test_the_figures_are_those_of_the_searches(notes: Workspace, tmp_path: Path) -> None:
    files = beir(tmp_path / "beir", 60)
    check = notes.check("v2", rules=GateRules(weight=0.0), relevant=files, progress=False)
    assert check.queries == 60  # nothing is chosen, so all judge
    asked = [json.loads(line)["text"] for line in files[0].read_text().splitlines()]
    labels = np.array([label for _, label in DOCUMENTS])
    grades = np.stack([labels == list(TOPICS)[row % 4] for row in range(60)]).astype(np.float32)
    for version, figure in (("v1", check.cells[0].self_test), ("v2", check.self_test)):
        encoder = notes.encoder(version)
        queries = encoder.encode(asked, form="short", role="query")
        stored = encoder.encode([text for text, _ in DOCUMENTS], form="short", role="item")
        assert figure == pytest.approx(ndcg(queries @ stored.T, grades).mean(), abs=1e-6)


def test_too_few_queries_do_not_decide_and_the_check_says_how_many_would(
    notes: Workspace, tmp_path: Path
) -> None:
    check = notes.check("v2", relevant=beir(tmp_path / "beir", 8), progress=False)
    assert check.outcome == "missing evidence"
    assert "queries" in check.reasons[0]
    assert "image" not in " ".join([*check.reasons, *check.notes])


def test_a_worse_model_is_refused(notes: Workspace, tmp_path: Path) -> None:
    files = beir(tmp_path / "beir", 240)
    notes.check("v2", relevant=files, progress=False)
    notes.deploy("v2")
    with embeddings_server(width=16, salt="three", noise=50.0) as noise:
        notes.add_version(noise.url("noise"))
        worse = notes.check("v3", rules=GateRules(weight=1.0), relevant=files, progress=False)
    assert worse.outcome == "refuse"


def test_a_large_gallery_is_sampled_with_all_relevant_items(
    notes: Workspace, tmp_path: Path
) -> None:
    queries, qrels = beir(tmp_path / "beir", 40)
    kept = [
        line
        for line in qrels.read_text().splitlines()
        if line.split("\t")[1] in ("corpus-id", "notes-3")
    ]
    qrels.write_text("\n".join([*kept, "q1\tgone\t1", "other\tnotes-3\t1"]) + "\n")
    check = notes.check(
        "v2", relevant=(qrels, queries), fitting=FitOptions(sample=50), progress=False
    )
    assert check.gallery == 50
    told = " ".join(check.notes)
    check_wording(told)


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (['{"_id": "q0"}'], DataError),
        (['{"_id": "x", "text": "rain"}'], InputError),
        (['{"_id": "q0", "text": "rain"'], DataError),
    ],
)
def test_files_that_cannot_judge_are_refused(
    notes: Workspace, tmp_path: Path, lines: list[str], error: type[Exception]
) -> None:
    queries, qrels = beir(tmp_path / "beir", 4)
    queries.write_text("\n".join(lines) + "\n")
    with refuses(error):
        notes.check("v2", relevant=(queries, qrels), progress=False)
    assert notes.last_check("v2") is None


def test_it_is_typed(notes: Workspace, tmp_path: Path) -> None:
    queries, qrels = beir(tmp_path / "beir", 240)
    shown = typed("check", "v2", "--relevant", queries, qrels, "-w", notes.path)
    assert shown.code == 0, shown.out + shown.err
    for word in ("nDCG@10", "Recall@10", "MRR", "top-1", "PASS", "queries.jsonl and test.tsv"):
        assert word in shown.out
    assert "image" not in shown.out
    both = typed("check", "v2", "--relevant", queries, qrels, "--data", queries, "-w", notes.path)
    check_wording(both.err)
    assert typed("deploy", "v2", "-w", notes.path).code == 0
