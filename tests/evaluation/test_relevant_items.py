"""nDCG, recall, MRR and top-1 against slow code and by hand; files that say what is relevant, and wrong ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from wording import refuses

from fixstar.errors import DataError, InputError
from fixstar.evaluation import (
    matched,
    ndcg,
    paired_bootstrap,
    read_relevance,
    recall,
    reciprocal_rank,
)
from fixstar.evaluation.relevance import query_ids
from fixstar.evaluation.retrieval import MEASURED, first_places, retrieval_measure, top_1

Array = NDArray[Any]


def slow(name: str, scores: list[float], grades: list[float]) -> float:
    """One measure of one query, as its definition says it."""
    places = sorted(range(len(scores)), key=lambda item: (-scores[item], item))
    what, _, limit = name.partition("@")
    k = int(limit) if limit else len(scores)
    relevant = [item for item in places if grades[item] > 0]
    if what == "top-1":
        return float(grades[places[0]] > 0)
    if not relevant:
        return 0.0
    if what == "Recall":
        return len([item for item in places[:k] if item in relevant]) / len(relevant)
    if what == "MRR":
        place = places.index(relevant[0]) + 1
        return 1 / place if place <= k else 0.0
    best = sorted((max(grade, 0) for grade in grades), reverse=True)
    gained = math.fsum(
        max(grades[item], 0) / math.log2(place + 2) for place, item in enumerate(places[:k])
    )
    return gained / math.fsum(grade / math.log2(place + 2) for place, grade in enumerate(best[:k]))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_measures_are_those_of_slow_code_also_with_ties(data: st.DataObject) -> None:
    items = data.draw(st.integers(1, 14))
    queries = data.draw(st.integers(1, 4))

    def table(*values: float) -> list[list[float]]:
        row = st.lists(st.sampled_from(values), min_size=items, max_size=items)
        return data.draw(st.lists(row, min_size=queries, max_size=queries))

    scores = table(-0.5, 0.0, 0.25, 0.5)
    grades = table(-1.0, 0.0, 0.0, 1.0, 2.0, 3.0)
    for name in (*MEASURED, "nDCG@3", "Recall@1", "MRR@2", "nDCG@100"):
        expected = [slow(name, *one) for one in zip(scores, grades, strict=True)]
        found = retrieval_measure(name)(np.array(scores), np.array(grades, float))
        np.testing.assert_allclose(found, expected, atol=1e-12, err_msg=name)


def test_ndcg_is_that_of_scikit_learn_without_ties() -> None:
    from sklearn.metrics import ndcg_score

    rng = np.random.default_rng(0)
    scores = rng.standard_normal((40, 60))
    grades = rng.integers(0, 4, (40, 60)).astype(float)
    expected = [ndcg_score(grades[row : row + 1], scores[row : row + 1], k=10) for row in range(40)]
    np.testing.assert_allclose(ndcg(scores, grades), expected, rtol=1e-6)


def test_worked_by_hand() -> None:
    scores = np.array([[0.9, 0.8, 0.8, 0.1], [0.9, 0.8, 0.8, 0.1]])
    grades = np.array(
        [[0, 0, 3, 1], [0, 0, 0, 0]]
    )  # the tie goes to item 1, so the 3 is in place 3
    dcg = 3 / 2 + 1 / math.log2(5)
    best = 3 + 1 / math.log2(3)
    np.testing.assert_allclose(ndcg(scores, grades), [dcg / best, 0])
    np.testing.assert_allclose(ndcg(scores, grades, k=3), [1.5 / best, 0])
    assert recall(scores, grades, k=3).tolist() == [0.5, 0]
    assert reciprocal_rank(scores, grades).tolist() == [1 / 3, 0]
    assert reciprocal_rank(scores, grades, k=2).tolist() == [0, 0]
    assert top_1(scores, grades).tolist() == [0, 0]
    assert top_1(scores, 1 - grades).tolist() == [1, 1]
    assert first_places(scores, 3).tolist() == [[0, 1, 2], [0, 1, 2]]


def test_outcomes_go_into_the_paired_bootstrap() -> None:
    rng = np.random.default_rng(1)
    grades = (rng.random((200, 50)) < 0.1).astype(float)
    grades[:, 0] = 1
    better = grades + rng.standard_normal((200, 50))
    worse = rng.standard_normal((200, 50))
    assert paired_bootstrap(ndcg(better, grades), ndcg(worse, grades)).verdict == "compatible"


@pytest.mark.parametrize("name", ["ndcg", "nDCG@0", "Recall", "top-5", "map@10", "nDCG@x", ""])
def test_an_unknown_measure_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="a measure is nDCG@K"):
        retrieval_measure(name)


# Files

GRADED = {"q1": {"a": 2.0, "b": 0.0}, "q2": {"a": 1.0}}


@pytest.mark.parametrize(
    "text",
    [
        "query-id\tcorpus-id\tscore\nq1\ta\t2\nq1\tb\t0\nq2\ta\t1\n",
        "q1\ta\t2\r\nq1\tb\t0\r\n\r\nq2\ta\t1",
        "q1 0 a 2\nq1 0 b 0\nq2 Q0 a 1\n",
        "q1\t0\ta\t2\nq1\t0\tb\t0\nq2\t0\ta\t1\n",
        "query,item,grade\nq1,a,2\nq1,b,0\nq2,a,1\n",
        "\ufeffQuery-ID\tCorpus-ID\tScore\nq1\ta\t2.0\nq1\tb\t0\nq2\ta\t1\n",
    ],
)
def test_layouts(text: str, tmp_path: Path) -> None:
    path = tmp_path / "qrels"
    path.write_text(text, encoding="utf-8", newline="")
    assert read_relevance(path) == GRADED


def test_a_plain_list_may_repeat_a_pair(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text('query,item\nq1,a\nq1,a\n"q,2",b\n')
    assert read_relevance(str(path)) == {"q1": {"a": 1.0}, "q,2": {"b": 1.0}}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "judges nothing: a line has query, item and grade"),
        (b"query-id\tcorpus-id\tscore\n", "judges nothing"),
        (
            b"q1\ta\thigh\n",
            "line 1: a grade is a number, 0 for not relevant, 1 or more for relevant; got 'high'",
        ),
        (b"q1\ta\t1\nq1\tb\tnan\n", "line 2: a grade is a number"),
        (
            b"q1\ta\t1\nq2\tb\t1\nq1\ta\t0\n",
            "line 3: item 'a' was already judged for query 'q1' on line 1; keep one",
        ),
        (b"q1\ta\t1\nq1\tb\n", "line 2 has 2 columns, the first line 3"),
        (b"q1 Q0 a 1 0.7 tag\n", "line 1 has 6 columns"),
        (b"q1\n", "line 1 has 1 column"),
        (b"q1\t\t1\n", "the id of the query or of the item is empty"),
        (b"q1\t\xe9\t1\n", "is not a text in UTF-8"),
        ("q1\ta\t1\n".encode("utf-16"), "is not a text in UTF-8"),
    ],
)
def test_wrong_files_are_told(text: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "qrels.tsv"
    path.write_bytes(text)
    with pytest.raises(DataError) as refused:
        read_relevance(path)
    assert told in str(refused.value)
    assert "qrels.tsv" in str(refused.value)


def test_other_places_are_told(tmp_path: Path) -> None:
    with refuses(InputError):
        read_relevance(tmp_path)
    with refuses(DataError):
        read_relevance(tmp_path / "absent.tsv")
    with refuses(InputError):
        read_relevance({})


def test_ids_of_queries_are_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    qrels = tmp_path / "test.tsv"
    qrels.write_text("7\ta\t1\n")
    path.write_text('{"_id": "7", "text": "x"}\n\n{"_id": 3, "text": "y"}\n')
    assert query_ids([path, qrels]) == ["7", "3"]
    assert read_relevance([str(path), str(qrels)]) == {"7": {"a": 1}}
    assert query_ids([qrels]) is None
    assert query_ids(qrels) is None
    assert query_ids({"7": ["a"]}) is None
    assert query_ids(None) is None
    for files in ([path], [], [qrels, qrels], [path, path, qrels]):
        with refuses(InputError):
            read_relevance(files)
    for text in (
        '{"_id": "7"}\n{"_id": "7"}\n',
        "{torn\n",
        '{"text": "x"}\n',
        "[1]\n",
        "\n",
    ):
        path.write_text(text)
        with refuses(DataError):
            query_ids([path, qrels])


# Matching with vectors


def test_queries_without_a_relevant_item_in_the_gallery_are_left_out_and_counted() -> None:
    wanted = read_relevance(
        {"q1": {"a": 1, "x": 2}, "q2": ["x"], "q3": {"a": 0}, "q4": ["a"], "q5": {"c": 3, "a": 1}}
    )
    found = matched(wanted, ["q5", "q3", "q1", "q2"], ["c", "b", "a"])
    assert found.queries.tolist() == [2, 0]
    assert [rows.tolist() for rows in found.items] == [[2], [0, 2]]
    assert (found.unknown, found.alone, found.missing) == (1, 2, 2)
    assert found.matrix(np.array([1, 0]), 3).tolist() == [[3, 0, 1], [0, 0, 1]]


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (
            {"5": ["a"]},
            "1 query with known relevant items, and none of them has a vector: their ids are such as '5', those of the",
        ),
        (
            {"q1": ["x"], "5": ["a"]},
            "their ids are such as 'x', 'a', those of stored vectors such as 'a', 'b'. Write the same ids",
        ),
        ({"q1": {"a": 0}}, "all grades are 0 or less"),
    ],
)
def test_ids_that_do_not_meet_are_told(wanted: Any, told: str) -> None:
    with pytest.raises(InputError) as refused:
        matched(read_relevance(wanted), ["q1"], ["a", "b"])
    assert told in str(refused.value)
