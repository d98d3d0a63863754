"""Codes of stored vectors: the bound holds whatever the vectors are, and answers are those without codes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixstar.errors import GalleryError
from fixstar.gallery import MemoryGallery, SqliteGallery, coded, matrix, ranking
from fixstar.gallery.coded import CodedBlock
from fixstar.geometry import unit

pytest.importorskip("faiss")

WIDTH = 12
BLOCK = 128


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several segments of several blocks, which tell few rows each."""
    monkeypatch.setattr(coded, "NUMBERS", BLOCK * WIDTH)
    monkeypatch.setattr(coded, "_NEAREST", 30)
    monkeypatch.setattr(matrix, "_ROWS", 3 * BLOCK + 50)
    monkeypatch.setattr(matrix, "CODED_FROM", 0)


def near_ties(rng: np.random.Generator) -> Any:
    rows = rng.standard_normal((4, WIDTH))[rng.integers(4, size=BLOCK)]
    return rows + 1e-7 * rng.standard_normal(rows.shape)


def one_odd(rng: np.random.Generator) -> Any:
    rows = 1 + 0.01 * rng.standard_normal((BLOCK, WIDTH))
    rows[rng.integers(BLOCK)] = -np.eye(WIDTH)[0]
    return rows


def all_sizes(rng: np.random.Generator) -> Any:
    """From one down to what float32 only holds with fewer digits, or not at all."""
    rows = rng.standard_normal((BLOCK, WIDTH)) * 10.0 ** rng.integers(-48, 0, size=(BLOCK, WIDTH))
    rows[:, rng.integers(WIDTH)] = 1
    return rows


KINDS: dict[str, Any] = {
    "random": lambda rng: rng.standard_normal((BLOCK, WIDTH)),
    "near ties": near_ties,
    "equal": lambda rng: np.tile(rng.standard_normal(WIDTH), (BLOCK, 1)),
    "one component": lambda rng: np.eye(WIDTH)[np.full(BLOCK, rng.integers(WIDTH))],
    "axes": lambda rng: (
        np.eye(WIDTH)[rng.integers(WIDTH, size=BLOCK)] * rng.choice([-1, 1], size=(BLOCK, 1))
    ),
    "all sizes": all_sizes,
    "features of a ReLU": lambda rng: np.maximum(rng.standard_normal((BLOCK, WIDTH)), 0) + 1e-3,
    "one is odd": one_odd,
}


def made(kinds: list[str], seed: int) -> Any:
    rng = np.random.default_rng(seed)
    rows = np.concatenate([KINDS[kind](rng) for kind in kinds])
    return unit(rows).astype(np.float32)


def asked(rows: Any, seed: int) -> Any:
    """Queries that are stored vectors, near ones, and random ones."""
    rng = np.random.default_rng(seed)
    picked = rows[rng.integers(len(rows), size=6)].astype(np.float64)
    picked[2:4] += 1e-4 * rng.standard_normal((2, WIDTH))
    picked[4:] = rng.standard_normal((2, WIDTH))
    return unit(picked).astype(np.float32)


def code(gallery: MemoryGallery) -> list[CodedBlock]:
    """Code everything now, in place of in the background."""
    assert gallery._exact is not None
    rows = gallery._exact.rows["v1"]
    rows.code_all(threading.Event())
    assert rows.missing_codes() == 0
    return [block for part in rows.parts for block in part.segment.codes]


def slowly(rows: Any, query: Any, k: int, allowed: Any) -> list[tuple[str, float]]:
    """The k best of the ``allowed`` rows [n], equal ones in order of writing."""
    cosines = (
        (rows.astype(np.float64) * query.astype(np.float64))
        .sum(axis=1)
        .astype(np.float32)
        .clip(-1, 1)
    )
    best = [
        place for place in np.lexsort((np.arange(len(rows)), -cosines)).tolist() if allowed[place]
    ]
    return [(str(place), float(cosines[place])) for place in best[:k]]


@given(
    st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6),
    st.integers(0, 1 << 30),
    st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_answers_are_those_of_a_loop(kinds: list[str], seed: int, k: int) -> None:
    """Over removed rows, a filter that leaves most of them, and rows that came after the codes were made."""
    rows = made(kinds, seed)
    rng = np.random.default_rng(seed)
    gallery = MemoryGallery()
    gallery.create_version("v1", WIDTH)
    gallery.upsert(
        "v1", [str(i) for i in range(len(rows))], rows, [{"n": i % 10} for i in range(len(rows))]
    )
    code(gallery)
    gone = {int(place) for place in rng.integers(len(rows), size=4)}
    later = made(["random"], seed + 1)[:20]
    number = np.arange(len(rows)) % 10
    there = np.ones(len(rows), bool)
    for step in range(3):
        if step == 1:
            gallery.delete([str(place) for place in gone])
            there[sorted(gone)] = False
        if step == 2:
            names = [str(len(rows) + place) for place in range(len(later))]
            gallery.upsert("v1", names, later, [{"n": 0}] * len(later))
            rows = np.concatenate([rows, later])
            number = np.append(number, np.zeros(len(later), int))
            there = np.append(there, np.ones(len(later), bool))
        for query in asked(rows, seed + step):
            for where, passing in ((None, there), ({"n": {"lt": 7}}, there & (number < 7))):
                hits = gallery.search("v1", query[None], k=k, where=where)[0]
                assert [(hit.id, hit.score) for hit in hits] == slowly(rows, query, k, passing)


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 1 << 30), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_no_score_is_outside_of_its_bounds(kind: str, seed: int, length: float) -> None:
    rows = made([kind], seed)
    block = CodedBlock(rows)
    for query in asked(rows, seed):
        query = (length * query).astype(np.float32)
        true = rows.astype(np.float64) @ query.astype(np.float64)
        for allowed in (None, np.arange(len(rows)) % 3 == 0, np.zeros(len(rows), bool)):
            told = block.nearest(query, k=5, allowed=allowed)
            passing = np.arange(len(rows)) if allowed is None else np.flatnonzero(allowed)
            assert len(told.places) == min(30, len(passing))
            assert np.isin(told.places, passing).all()
            assert (np.abs(told.scores - true[told.places]) < told.doubt).all()
            others = np.setdiff1d(passing, told.places)
            assert (true[others] < told.highest_other).all()
            assert told.doubt < 0.2  # far less than what scores differ by


def test_an_engine_that_rounds_queries_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    faiss = pytest.importorskip("faiss")

    class Rounding(faiss.IndexScalarQuantizer):  # type: ignore[misc,name-defined]
        def search(self, queries: Any, k: int, **_: Any) -> Any:
            return super().search(np.round(queries, 2), k)

    rows = made(["random"], 1)
    CodedBlock(rows)
    monkeypatch.setattr(faiss, "IndexScalarQuantizer", Rounding)
    with pytest.raises(GalleryError, match="rounds the queries"):
        CodedBlock(rows)


@pytest.fixture
def gallery() -> Iterator[MemoryGallery]:
    with MemoryGallery() as opened:
        rows = made(["random"] * 6, 1)
        opened.create_version("v1", WIDTH)
        opened.upsert("v1", [str(i) for i in range(len(rows))], rows)
        yield opened


def reads(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many blocks were read by codes, and how many rows as they are."""
    found = {"blocks": 0, "rows": 0}
    nearest = CodedBlock.nearest
    scored = ranking.candidates

    def counted(block: CodedBlock, query: Any, k: int, allowed: Any) -> Any:
        found["blocks"] += 1
        return nearest(block, query, k, allowed)

    def counted_rows(blocks: Any, queries: Any, k: int) -> Any:
        found["rows"] += sum(block.size for block in blocks)
        return scored(blocks, queries, k)

    monkeypatch.setattr(CodedBlock, "nearest", counted)
    monkeypatch.setattr(coded, "candidates", counted_rows)
    return found


def test_blocks_that_codes_can_rule_out_are_not_read(
    gallery: MemoryGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6 x 128 rows in segments of 434: three blocks and 50 rows, then two blocks and 78 rows."""
    blocks = code(gallery)
    assert len(blocks) == 5
    found = reads(monkeypatch)
    query = made(["random"], 2)[:1]
    gallery.search("v1", query)
    assert found == {"blocks": 5, "rows": 128}
    assert gallery._exact is not None
    early = gallery._exact.rows["v1"]
    gallery.upsert("v1", [f"new-{i}" for i in range(100)], made(["random"], 3)[:100])
    assert len(code(gallery)) == 6
    for rows, expected in (
        (gallery._exact.rows["v1"], {"blocks": 6, "rows": 100}),
        (early, {"blocks": 5, "rows": 128}),
    ):
        found.update(blocks=0, rows=0)
        place = rows.candidates(query, 10, None)[1]
        assert found == expected  # rows that came later are none of those before
        assert place.max() < rows.end
    found.update(blocks=0, rows=0)
    gallery.search("v1", np.tile(query, (2, 1)))
    gallery.search("v1", query, k=251)
    assert found == {"blocks": 0, "rows": 0}  # as without codes


def test_codes_that_do_not_help_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with MemoryGallery() as gallery:
        rows = made(["equal", "random", "equal"], 1)
        gallery.create_version("v1", WIDTH)
        gallery.upsert("v1", [str(i) for i in range(len(rows))], rows)
        blocks = code(gallery)
        found = reads(monkeypatch)
        expected = gallery.search("v1", rows[:1], k=5)
        assert found["blocks"] == 3
        for _ in range(20):
            assert gallery.search("v1", rows[:1], k=5) == expected
        assert [block.helps for block in blocks] == [False, True, True]
        found.update(blocks=0, rows=0)
        assert gallery.search("v1", rows[:1], k=5) == expected
        assert found == {"blocks": 2, "rows": BLOCK}


def test_few_rows_are_copied_where_others_are_read_as_codes(
    gallery: MemoryGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 components: (1 + 320 / 12) x 3.5 = 96.8 codes are read in the time of a copy: 7 of 768 rows are copied."""
    payloads = [{"n": i} for i in range(6 * BLOCK)]
    gallery.upsert("v1", [str(i) for i in range(6 * BLOCK)], made(["random"] * 6, 1), payloads)
    code(gallery)
    found = reads(monkeypatch)
    for passing, blocks in ((7, 0), (8, 5)):
        found.update(blocks=0)
        hits = gallery.search("v1", made(["random"], 2)[:1], k=30, where={"n": {"lt": passing}})
        assert len(hits[0]) == passing
        assert found["blocks"] == blocks


def test_a_filter_against_the_query_leaves_codes_useful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the rows, all those near the query, do not pass: the others are told by their codes all the same."""
    query = np.eye(WIDTH, dtype=np.float32)[:1]
    rows = made(["random"] * 6, 1)
    rows[::2, 0] = 5
    rows[1::2, 0] = -np.abs(rows[1::2, 0])
    rows = unit(rows)
    with MemoryGallery() as gallery:
        gallery.create_version("v1", WIDTH)
        payloads = [{"far": bool(i % 2)} for i in range(len(rows))]
        gallery.upsert("v1", [str(i) for i in range(len(rows))], rows, payloads)
        blocks = code(gallery)
        found = reads(monkeypatch)
        for _ in range(10):
            hits = gallery.search("v1", query, k=5, where={"far": True})[0]
        assert [(hit.id, hit.score) for hit in hits] == slowly(
            rows, query[0], 5, np.arange(len(rows)) % 2 == 1
        )
        assert found == {"blocks": 10 * len(blocks), "rows": 10 * (len(rows) - BLOCK * len(blocks))}
        assert all(block.helps for block in blocks)


def coded_blocks(gallery: MemoryGallery | SqliteGallery) -> int:
    """How many there are, once the background has nothing more to do."""
    exact = gallery._exact if isinstance(gallery, MemoryGallery) else gallery._matrices.exact
    assert exact is not None
    thread = exact._background._thread
    if thread is not None:
        thread.join(60)
        assert not thread.is_alive()
    return sum([len(part.segment.codes) for part in exact.rows["v1"].parts])


def test_large_versions_are_coded_after_some_single_queries(
    gallery: MemoryGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix, "CODED_AFTER", 3)
    query = made(["random"], 2)[:1]
    expected = gallery.search("v1", query)
    for _ in range(2):
        gallery.search("v1", query)
        gallery.search("v1", np.tile(query, (5, 1)))
    assert coded_blocks(gallery) == 0
    gallery.search("v1", query)
    assert coded_blocks(gallery) == 5
    assert gallery.search("v1", query) == expected
    assert gallery._exact is not None
    assert gallery._exact._background._thread is None  # there is nothing more to do


@pytest.mark.parametrize("without", ["size", "faiss", "memory"])
def test_what_is_not_coded(without: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small versions, all without FAISS, and vectors that are in files because memory is short."""
    monkeypatch.setattr(matrix, "CODED_AFTER", 0)
    if without == "size":
        monkeypatch.setattr(matrix, "CODED_FROM", 1 << 20)
    if without == "faiss":
        monkeypatch.setattr(matrix, "are_available", lambda: False)
    rows = made(["random"] * 2, 1)
    with SqliteGallery(
        tmp_path / "g.db", map_vectors=tmp_path if without == "memory" else None
    ) as gallery:
        gallery.create_version("v1", WIDTH)
        gallery.upsert("v1", [str(i) for i in range(len(rows))], rows)
        for _ in range(3):
            gallery.search("v1", rows[:1])
        assert coded_blocks(gallery) == 0


def test_a_search_goes_on_where_vectors_cannot_be_coded(
    gallery: MemoryGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: Any) -> Any:
        raise MemoryError("no room")

    def search_until_coded() -> Any:
        hits = gallery.search("v1", query)
        coded_blocks(gallery)
        return hits

    query = made(["random"], 2)[:1]
    expected = gallery.search("v1", query)
    monkeypatch.setattr(matrix, "CODED_AFTER", 0)
    monkeypatch.setattr(matrix, "CodedBlock", failing)
    with pytest.warns(UserWarning, match=r"'v1' could not be coded in 8 bits \(no room\)"):
        assert search_until_coded() == expected
    assert gallery.search("v1", query) == expected  # it is not tried again, which would warn
    assert coded_blocks(gallery) == 0


EXITS = """
import numpy as np
from fixstar.errors import GalleryError
from fixstar.gallery import MemoryGallery, coded, matrix
coded.NUMBERS, matrix.CODED_FROM, matrix.CODED_AFTER = 4000, 0, 0
rows = np.random.default_rng(0).standard_normal((40_000, 16)).astype(np.float32)
rows /= np.linalg.norm(rows, axis=1, keepdims=True)
gallery = MemoryGallery()
gallery.create_version("v1", 16)
gallery.upsert("v1", [str(i) for i in range(len(rows))], rows)
gallery.search("v1", rows[:1])
while not gallery._exact.rows["v1"].parts[0].segment.codes:
    pass
print(gallery._exact.rows["v1"].missing_codes() > 0)
"""


def test_a_process_ends_while_vectors_are_coded() -> None:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", EXITS], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
    assert time.monotonic() - start < 110
