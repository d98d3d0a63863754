"""The referee of migrations: its figures by slow code, its verdicts, and files that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from wording import refuses

import fixstar
from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation import Difference, gallery_query_split
from fixstar.evaluation.verdicts import GateRules, judged_difference
from fixstar.geometry import unit
from fixstar.translation.judge import AGAIN, MIGRATED, OLD, Compared, Judged, _ruling, judge

Array = NDArray[np.float64]
ITEMS = 500
QUERIES = 120


def models(seed: int = 0) -> tuple[Array, Array, NDArray[np.str_]]:
    """A poor old model and a good new one of 620 items of 25 classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(25, size=ITEMS + QUERIES)
    content = rng.standard_normal((25, 12))[labels] + 0.3 * rng.standard_normal((len(labels), 12))
    old = unit(content + 1.2 * rng.standard_normal(content.shape))
    new = unit(content + 0.1 * rng.standard_normal(content.shape))[:, ::-1]
    return old, new, np.array([f"class {label}" for label in labels])


def mapped(new: Array, noise: float) -> Array:
    """What a tool may make: almost the new."""
    rng = np.random.default_rng(9)
    return unit(new + noise * rng.standard_normal(new.shape))


def written(folder: Path) -> dict[str, Any]:
    """Files of items and of queries, and graded relevance."""
    old, new, labels = models()
    ids = np.array([f"d{row}" for row in range(ITEMS)])
    asked = np.array([f"q{row}" for row in range(QUERIES)])
    sides = {"old": old, "new": new, "migrated": mapped(new, 0.15)}
    for name, vectors in sides.items():
        order = np.random.default_rng(len(name)).permutation(ITEMS)
        np.savez(folder / f"{name}.npz", vectors=3 * vectors[:ITEMS][order], ids=ids[order])
        np.savez(folder / f"{name}-queries.npz", vectors=vectors[ITEMS:], ids=asked)
    wanted = {
        f"q{query}": {
            f"d{item}": float(place % 3)
            for place, item in enumerate(
                np.flatnonzero(labels[:ITEMS] == labels[ITEMS + query])[:8].tolist()
            )
        }
        for query in range(QUERIES)
    }
    return {
        "old": folder / "old.npz",
        "migrated": folder / "migrated.npz",
        "new": folder / "new.npz",
        "queries_old": folder / "old-queries.npz",
        "queries_new": folder / "new-queries.npz",
        "relevant": wanted,
    }


def slow_ndcg(query: Array, gallery: Array, grades: dict[str, float]) -> float:
    places = sorted(range(ITEMS), key=lambda item: -float(gallery[item] @ query))[:10]
    gains = [grades.get(f"d{item}", 0.0) for item in places]
    best = sorted(grades.values(), reverse=True)
    return float(sum(g / np.log2(i + 2) for i, g in enumerate(gains))) / float(
        sum(g / np.log2(i + 2) for i, g in enumerate(best))
    )


def test_figures_are_those_of_slow_code(tmp_path: Path) -> None:
    given = written(tmp_path)
    found = fixstar.judge(**given)
    old, new, _ = models()
    grades = given["relevant"]
    galleries = {OLD: (old, old), MIGRATED: (new, mapped(new, 0.15)), AGAIN: (new, new)}
    each = {
        search: np.array(
            [
                slow_ndcg(queries[ITEMS + row], items[:ITEMS], grades[f"q{row}"])
                for row in range(QUERIES)
            ]
        )
        for search, (queries, items) in galleries.items()
    }
    rows = found.measured["nDCG@10"]
    for search, values in each.items():
        assert rows[search].value == pytest.approx(values.mean(), abs=1e-6)
    for search in (MIGRATED, AGAIN):
        judged = judged_difference(each[search], each[OLD], 0.95, GateRules())
        assert rows[search][1:4] == pytest.approx((judged.mean, judged.low, judged.high), abs=1e-6)
    assert rows[MIGRATED].share == pytest.approx(rows[MIGRATED].difference / rows[AGAIN].difference)
    share = rows[MIGRATED].share
    assert share is not None
    assert rows[AGAIN].share == 1
    assert (found.queries, found.gallery, found.measure, found.evidence) == (
        QUERIES,
        ITEMS,
        "nDCG@10",
        "relevance",
    )
    assert list(found.measured) == ["nDCG@10", "Recall@10", "MRR", "top-1"]
    assert found.skipped == {}
    assert found.verdict == "better"
    assert str(found).startswith(
        f"Better: the migrated vectors reach nDCG@10 {100 * rows[MIGRATED].value:.1f} %"
    )
    assert f"the migration has {100 * share:.0f} % of that" in found.sentence
    assert found.to_json()["measured"]["nDCG@10"]["migrated"] == rows[MIGRATED]._asdict()


def test_a_map_that_loses_is_worse_though_it_keeps_most_of_the_new_model(tmp_path: Path) -> None:
    given = written(tmp_path)
    _, new, _ = models()
    np.savez(
        tmp_path / "lossy.npz",
        vectors=mapped(new, 1.0)[:ITEMS],
        ids=np.array([f"d{row}" for row in range(ITEMS)]),
    )
    found = judge(**{**given, "migrated": tmp_path / "lossy.npz"})
    assert found.verdict == "worse"
    assert found.gain.high < 0
    assert found.sentence.startswith("Worse: ")
    assert found.sentence.endswith("; the migration has none of that")
    assert not found.reaches("better")
    assert not found.reaches("no-worse")


def test_labels_split_the_items_as_a_bridge_does() -> None:
    old, new, labels = models()
    found = judge(old, mapped(new, 0.1), new, labels=labels)
    codes = np.unique(labels, return_inverse=True)[1]
    split = gallery_query_split(codes, seed=0)
    nearest = np.argmax(old[split.queries] @ old[split.gallery].T, axis=1)
    right = labels[split.gallery][nearest] == labels[split.queries]
    assert found.measured["top-1"][OLD].value == pytest.approx(right.mean())
    assert (found.measure, found.evidence, found.verdict) == ("top-1", "labels", "better")
    assert (found.queries, found.gallery) == (len(split.queries), len(split.gallery))
    by_measure = judge(old, mapped(new, 0.1), new, labels=labels, measure="recall@5")
    assert by_measure.measure == "recall@5"
    assert set(by_measure.measured) == {"nDCG@10", "Recall@10", "MRR", "top-1", "recall@5"}


def test_labels_in_the_files_of_items_and_queries(tmp_path: Path) -> None:
    given = written(tmp_path)
    del given["relevant"]
    _, _, labels = models()
    for name, part in (("migrated", labels[:ITEMS]), ("old-queries", labels[ITEMS:])):
        with np.load(tmp_path / f"{name}.npz") as there:
            ids = there["ids"]
            own = np.array([part[int(item[1:])] for item in ids])
            np.savez(
                tmp_path / f"labelled-{name}.npz", vectors=there["vectors"], ids=ids, labels=own
            )
    given |= {
        "migrated": tmp_path / "labelled-migrated.npz",
        "queries_old": tmp_path / "labelled-old-queries.npz",
    }
    found = judge(**given)
    assert (found.evidence, found.queries, found.gallery) == ("labels", QUERIES, ITEMS)
    old, _, _ = models()
    nearest = np.argmax(old[ITEMS:] @ old[:ITEMS].T, axis=1)
    assert found.measured["top-1"][OLD].value == pytest.approx(
        (labels[nearest] == labels[ITEMS:]).mean()
    )


def test_queries_among_the_items_are_not_searched() -> None:
    old, new, labels = models()
    wanted = {
        str(row): [str(item) for item in range(100, 600) if labels[item] == labels[row]]
        for row in range(60)
    }
    found = judge(old, mapped(new, 0.1), new, relevant=wanted)
    assert (found.queries, found.gallery) == (60, ITEMS + QUERIES - 60)
    with refuses(InputError):
        judge(old, new, new, relevant={str(row): ["0"] for row in range(len(old))})
    with refuses(InputError):
        judge(old, new, new, relevant={"x": ["0"]})


def test_a_migration_that_maps_queries_too(tmp_path: Path) -> None:
    """Stored vectors stay as they are, and a tool maps the new model's queries back."""
    given = written(tmp_path)
    back = {**given, "migrated": given["old"], "queries_migrated": given["queries_old"]}
    same = judge(**back)
    assert same.measured["nDCG@10"][MIGRATED][:2] == (same.measured["nDCG@10"][OLD].value, 0.0)
    assert same.verdict in ("no worse", "cannot be told")
    del given["new"]
    alone = judge(**given)  # nothing was embedded again
    assert list(alone.measured["MRR"]) == [OLD, MIGRATED]
    assert alone.gain.share is None
    assert "Re-embedding" not in alone.sentence


def test_what_could_not_be_used_is_counted(tmp_path: Path) -> None:
    given = written(tmp_path)
    with np.load(tmp_path / "migrated.npz") as there:
        np.savez(tmp_path / "fewer.npz", vectors=there["vectors"][:450], ids=there["ids"][:450])
    wanted = {**given["relevant"], "unknown": {"d1": 1.0}, "q3": {"elsewhere": 1.0}}
    found = judge(**{**given, "migrated": tmp_path / "fewer.npz", "relevant": wanted})
    left = dict(found.skipped)
    assert left["queries without vectors"] == 1
    assert left["queries without a relevant item among the stored ones"] >= 1
    assert left["relevant items that are not stored"] >= 1
    assert left["items that some files lack, or without a label"] == 50
    assert found.gallery == 450


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.001, 0.02, "better"),
        (-0.009, 0.02, "no worse"),
        (-0.009, -0.001, "no worse"),
        (-0.02, 0.01, "cannot be told"),
        (-0.02, 0.0, "worse"),
        (-0.03, -0.02, "worse"),
    ],
)
def test_verdicts(low: float, high: float, verdict: str) -> None:
    found = Difference((low + high) / 2, low, high, "not decided", 50)
    assert _ruling(found, GateRules(tolerance=0.01)) == verdict


def test_demands() -> None:
    row = Compared(0.5, 0.0, -0.005, 0.005, None)
    found = Judged("no worse", "", "MRR", "labels", 9, 9, {"MRR": {MIGRATED: row}})
    assert not found.reaches()
    assert found.reaches("no-worse")
    with pytest.raises(UnknownNameError, match="did you mean 'better'"):
        found.reaches("beter")


def test_files_that_do_not_fit_are_told(tmp_path: Path) -> None:
    given = written(tmp_path)
    old, new, labels = models()
    np.savez(
        tmp_path / "other.npz", vectors=old, ids=np.array([f"x{row}" for row in range(len(old))])
    )
    np.savez(
        tmp_path / "narrow.npz",
        vectors=new[:ITEMS, :7],
        ids=np.array([f"d{row}" for row in range(ITEMS)]),
    )
    cases: list[tuple[dict[str, Any], str]] = [
        ({"migrated": tmp_path / "other.npz"}, "the files have no items in common: old has 'd"),
        (
            {"migrated": new[:ITEMS]},
            "items are matched by their ids in all files, or row by row in all: old has ids, ",
        ),
        (
            {"migrated": tmp_path / "narrow.npz"},
            "the migrated vectors have 7 components, and queries of the new model",
        ),
        ({"queries_new": None}, "queries need vectors by the old and by the new model"),
        (
            {"queries_new": tmp_path / "narrow.npz"},
            "queries of new have 7 components, its stored vectors 12",
        ),
        ({"queries_old": tmp_path / "other.npz"}, "the files have no queries in common"),
        ({"labels": {"d1": "x"}}, "labels or relevant items say what is right, not both"),
        ({"relevant": None}, "no item has a label, and no relevant items are given"),
        ({"measure": "map"}, "a measure is nDCG@K"),
        (
            {"new": None, "queries_old": None, "queries_new": None},
            "queries of the new model are needed",
        ),
    ]
    for changed, told in cases:
        with pytest.raises(InputError) as refused:
            judge(**{**given, **changed})
        assert told in str(refused.value), told
    with refuses(InputError):
        judge(old, new[:600], new, labels=labels)
    with refuses(InputError, "repeat", "repeat"):
        judge(old, new, new)
