"""Rows in memory: what a draft changes, what older rows and running searches see, and what a change costs."""

from __future__ import annotations

import errno
import gc
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_gallery_contract import vectors
from wording import refuses

from fixstar.errors import GalleryError, GalleryUnavailableError
from fixstar.gallery import (
    MemoryGallery,
    Question,
    SqliteGallery,
    matrix,
    open_gallery,
    ranking,
)
from fixstar.gallery.matrix import Draft, ExactSearch, Rows

Content = dict[int, tuple[str, str, tuple[float, ...]]]  # number -> id, payload, vector


def content(rows: Rows) -> Content:
    """Everything that is there."""
    found: Content = {}
    for numbers, some in rows.pages(0, 7):
        row = rows.find(numbers)
        np.testing.assert_array_equal(rows.vectors(row), some)
        np.testing.assert_array_equal(rows.numbers(row), numbers)
        held = zip(zip(*rows.labels(row), strict=True), map(tuple, some.tolist()), strict=True)
        found |= {
            number: (*texts, vector)
            for number, (texts, vector) in zip(numbers.tolist(), held, strict=True)
        }
    return found


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "_ROWS", 40)


def test_the_garbage_collector_does_not_look_at_every_id_and_payload() -> None:
    """It looks into everything that it tracks, so opening a gallery would cost the square of its size."""
    draft, names = Draft(Rows(4)), [f"i{number}" for number in range(100)]
    draft.append(range(100), names, vectors(100, 4), [f'{{"name":"{name}"}}' for name in names])
    (part,) = draft.rows().parts
    assert not any(map(gc.is_tracked, (part.segment.ids, part.segment.texts)))


@pytest.mark.usefixtures("small_segments")
def test_random_drafts_leave_what_a_dictionary_would_hold_and_old_rows_as_they_were() -> None:
    rng, rows, number = np.random.default_rng(0), Rows(4), 0
    expected: Content = {}
    history = []
    for step in range(60):
        next_rows = Draft(rows)
        gone = rng.choice(
            list(expected), size=min(len(expected), int(rng.integers(30))), replace=False
        ).tolist()
        next_rows.remove([*gone, 10**9])
        for item in gone:
            del expected[item]
        count = int(rng.integers(40))
        numbers, some = range(number, number + count), vectors(count, 4, seed=step)
        next_rows.append(
            numbers, [f"i{n}" for n in numbers], some, [f'{{"n":{n}}}' for n in numbers]
        )
        expected |= {
            n: (f"i{n}", f'{{"n":{n}}}', tuple(some[n - number].tolist())) for n in numbers
        }
        number += count
        rows = next_rows.rows()
        assert content(rows) == expected
        assert len(rows) == len(expected) == rows.count_from(0)
        history.append((rows, dict(expected)))
        middle = int(rng.integers(number + 1))
        assert rows.count_from(rows.after(middle)) == sum(n > middle for n in expected)
    for old, held in history[::10]:
        assert content(old) == held
    assert rows.end < 2 * len(rows) + 200  # room is given back
    assert len(rows.parts) < len(rows) / 5


@pytest.mark.usefixtures("small_segments")
def test_a_draft_that_was_given_up_leaves_nothing() -> None:
    first = Draft(Rows(3))
    first.append([1, 2], ["a", "b"], vectors(2, 3), ["{}", "{}"])
    rows = first.rows()
    Draft(rows).append(range(3, 100), [f"x{n}" for n in range(3, 100)], vectors(97, 3), ["{}"] * 97)
    again = Draft(rows)
    again.append([3], ["c"], vectors(1, 3), ["{}"])
    assert [held[0] for held in content(again.rows()).values()] == ["a", "b", "c"]
    assert content(rows).keys() == {1, 2}
    assert Draft(rows).rows() is rows


def test_a_change_moves_few_rows() -> None:
    """A full segment is never copied when rows are added, and at most one is when some of each are removed."""
    first = Draft(Rows(4))
    count = 5 * matrix._ROWS
    first.append(range(count), [str(n) for n in range(count)], vectors(count, 4), ["{}"] * count)
    rows = first.rows()
    more = Draft(rows)
    more.append(range(count, count + 10), ["x"] * 10, vectors(10, 4), ["{}"] * 10)
    assert [part.segment for part in more.rows().parts[:5]] == [part.segment for part in rows.parts]
    fewer = Draft(rows)
    fewer.remove(range(0, count, 5))
    assert (
        len({part.segment for part in fewer.rows().parts} & {part.segment for part in rows.parts})
        == 4
    )
    assert len(fewer.rows()) == count - count // 5


@pytest.mark.parametrize("share", [0, 1, 5, 12, 30, 49, 50, 51, 99, 100])
@pytest.mark.parametrize("k", [1, 7, 200])
def test_filtered_search_finds_what_a_loop_finds(
    monkeypatch: pytest.MonkeyPatch, share: int, k: int
) -> None:
    """Some segments, each of several chunks; some rows are removed and some vectors are there twice."""
    for module, name, value in (
        (matrix, "_ROWS", 700),
        (ranking, "CHUNK", 8 * 150),
        (ranking, "CELLS", 5 * 192),
    ):
        monkeypatch.setattr(module, name, value)
    count, queries = 2000, vectors(5, 8, seed=2)
    rows = np.concatenate([vectors(count // 2, 8, seed=1)] * 2)
    number = np.random.default_rng(3).integers(100, size=count).tolist()
    gallery = MemoryGallery()
    gallery.create_version("v1", 8)
    gallery.upsert("v1", [str(i) for i in range(count)], rows, [{"n": n} for n in number])
    gone = set(range(0, count, 9))
    gallery.delete([str(i) for i in gone])
    expected = []
    for query in queries.astype(np.float64):
        cosines = [float(np.float32((row.astype(np.float64) * query).sum())) for row in rows]
        passing = [i for i in range(count) if i not in gone and number[i] < share]
        best = sorted(passing, key=lambda i: (-cosines[i], i))[:k]
        expected.append([(str(i), cosines[i]) for i in best])
    where = {"n": {"lt": share}}
    for per_copy in (1.0, 2.0, float("inf")):  # all copied, about half of them, none
        monkeypatch.setattr(matrix, "rows_per_copy", lambda *_, it=per_copy: it)
        together = gallery.search("v1", queries, k=k, where=where)
        alone = [gallery.search("v1", query[None], k=k, where=where)[0] for query in queries]
        assert alone == together
        assert [[(hit.id, hit.score) for hit in hits] for hits in together] == expected


@pytest.mark.parametrize(
    ("queries", "width", "coded", "expected"),
    [
        (1, 64, False, 6.0),
        (1, 64, True, 21.0),
        (1, 640, False, 2.0),
        (1, 640, True, 5.25),
        (2, 64, True, 2.0),
    ],
)
def test_what_a_copy_costs(queries: int, width: int, coded: bool, expected: float) -> None:
    assert matrix.rows_per_copy(queries, width, coded) == pytest.approx(expected)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each search copied."""
    found: list[int] = []
    few = Rows._blocks_of_few

    def noted(self: Rows, sides: Any, rows: Any) -> Any:
        found.append(len(rows))
        return few(self, sides, rows)

    monkeypatch.setattr(Rows, "_blocks_of_few", noted)
    return found


def numbered(width: int = 64) -> MemoryGallery:
    """100 rows with their numbers."""
    gallery = MemoryGallery()
    gallery.create_version("v1", width)
    payloads = [{"n": i} for i in range(100)]
    gallery.upsert("v1", [str(i) for i in range(100)], vectors(100, width), payloads)
    return gallery


@pytest.mark.parametrize(
    ("queries", "passing", "copied"), [(1, 16, True), (1, 17, False), (2, 49, True), (2, 50, False)]
)
def test_few_rows_are_copied_and_of_many_all_are_read(
    copies: list[int], queries: int, passing: int, copied: bool
) -> None:
    """Of 100 rows of 64 components: one query reads six of them in the time of a copy, several queries two."""
    asked = vectors(queries, 64, seed=1)
    hits = numbered().search("v1", asked, k=100, where={"n": {"lt": passing}})
    assert [len(one) for one in hits] == [passing] * queries
    assert copies == ([passing] if copied else [])


@pytest.mark.parametrize(("passing", "copied"), [(26, True), (27, False)])
def test_removed_rows_are_read_too(copies: list[int], passing: int, copied: bool) -> None:
    """All 100 are read, of which 10 were removed: what passes are 16 and 17 of the other 90."""
    gallery = numbered()
    gallery.delete([str(i) for i in range(10)])
    hits = gallery.search("v1", vectors(1, 64), k=100, where={"n": {"lt": passing}})
    assert len(hits[0]) == passing - 10
    assert copies == ([passing - 10] if copied else [])


@pytest.mark.parametrize(("passing", "copied"), [(28, True), (29, False)])
def test_a_question_of_two_sides_jumps_to_both(
    copies: list[int], passing: int, copied: bool
) -> None:
    """64 and 192 components are 128 in the mean: 3.5 rows are read in the time of a copy."""

    def forward(rows: Any) -> Any:
        return np.tile(rows, (1, 3)) / np.float32(np.sqrt(3))

    asked = Question("v1", vectors(1, 64), vectors(1, 192, seed=1), forward, "tiled", weight=0.5)
    hits = numbered().ask([asked], k=100, where={"n": {"lt": passing}})
    assert len(hits[0]) == passing
    assert copies == ([passing] if copied else [])


def test_a_filter_is_looked_up_until_the_rows_change() -> None:
    gallery = MemoryGallery()
    gallery.create_version("v1", 4)
    gallery.upsert("v1", [str(n) for n in range(50)], vectors(50, 4), [{"n": n} for n in range(50)])
    assert gallery._exact is not None
    rows = gallery._exact.rows["v1"]
    first = rows.allowed({"n": {"lt": 9}})
    assert first is not None
    assert first.rows.tolist() == list(range(9))
    assert rows.allowed({"n": {"lt": 9}}) is first
    for n in range(matrix._ALLOWED_KEPT):
        other = rows.allowed({"n": n})
        assert other is not None
        assert (other.count, other.rows.tolist()) == (1, [n])
    assert len(rows._allowed) == matrix._ALLOWED_KEPT
    assert (
        rows.allowed({"n": {"lt": 9}}) is not first
    )  # the one that was not used for longest made room
    gallery.delete(["3"])
    later = gallery._exact.rows["v1"].allowed({"n": {"lt": 9}})
    assert later is not None
    assert later.rows.tolist() == [0, 1, 2, 4, 5, 6, 7, 8]
    for wrong in ({"n": {"near": 1}}, {1: "n"}):
        with pytest.raises(GalleryError):
            rows.allowed(wrong)  # type: ignore[arg-type]


def test_threads_share_pieces_of_work_out() -> None:
    met = threading.Barrier(3)

    def work(piece: int) -> tuple[int, int]:
        if piece < 3:
            met.wait(60)  # three threads have one of these each
        return 10 * piece, threading.get_ident()

    results = ranking.on_threads(work, range(40), 3)
    assert [result for result, _ in results] == [10 * piece for piece in range(40)]
    assert len({thread for _, thread in results}) == 3
    assert ranking.on_threads(lambda piece: -piece, range(5), 1) == [0, -1, -2, -3, -4]
    assert ranking.on_threads(lambda piece: -piece, [7], 4) == [-7]
    assert ranking.on_threads(lambda piece: -piece, [], 4) == []


def test_an_error_in_another_thread_is_that_of_the_search() -> None:
    caller = threading.get_ident()
    begun = threading.Event()

    def work(piece: int) -> int:
        if threading.get_ident() == caller:
            assert begun.wait(60)
            return piece
        begun.set()
        raise MemoryError("no room for the scores")

    with pytest.raises(MemoryError, match="no room for the scores"):
        ranking.on_threads(work, range(40), 2)


def mapped_bytes(folder: Path) -> int:
    """Of mapped files in a folder that have no name any more."""
    lines = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if f" {folder}/" in line
    ]
    assert all(line.endswith("(deleted)") for line in lines)
    spans = [line.split()[0].split("-") for line in lines]
    return sum(int(last, 16) - int(first, 16) for first, last in spans)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_mapped_vectors_are_in_files_without_names_while_the_gallery_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, rows = tmp_path / "scratch", vectors(5000, 16)
    folder.mkdir()
    monkeypatch.setenv("FIXSTAR_MAP_VECTORS", str(folder))
    with open_gallery(tmp_path / "g.db") as gallery:
        gallery.create_version("v1", 16)
        gallery.upsert("v1", [str(i) for i in range(5000)], rows)
        found = gallery.search("v1", rows[:7])
        assert mapped_bytes(folder) >= rows.nbytes
    gc.collect()
    assert mapped_bytes(folder) == 0
    assert list(folder.iterdir()) == []
    monkeypatch.delenv("FIXSTAR_MAP_VECTORS")
    with open_gallery(tmp_path / "g.db") as gallery:
        assert gallery.search("v1", rows[:7]) == found
        assert mapped_bytes(folder) == 0


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no posix_fallocate")
def test_a_full_disk_under_mapped_vectors_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    rows = vectors(3000, 8)
    with SqliteGallery(tmp_path / "g.db", map_vectors=tmp_path) as gallery:
        gallery.create_version("v1", 8)
        gallery.upsert("v1", [str(i) for i in range(1000)], rows[:1000])
        gallery.search("v1", rows[:1])
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", full)
            gallery.upsert("v1", [str(i) for i in range(1000, 3000)], rows[1000:])
            with refuses(GalleryUnavailableError, varies=r"(?<=room for )[\d,]+"):
                gallery.search("v1", rows[:1])
        assert [hits[0].id for hits in gallery.search("v1", rows[[0, 999, 1000, 2999]])] == [
            "0",
            "999",
            "1000",
            "2999",
        ]
    with refuses(GalleryError, varies=r"(?<=room for )[\d,]+"):
        SqliteGallery(tmp_path / "g.db", map_vectors=tmp_path / "missing")


class Interrupted(ExactSearch):
    """Does what another thread might do just after somebody has taken the rows."""

    meanwhile: Callable[[], object] | None = None

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "rows" and (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            meanwhile()
        return value


@pytest.mark.parametrize("asked", [None, ["v1", "v2"]])
def test_a_version_that_comes_during_a_search_is_empty_to_it(asked: list[str] | None) -> None:
    """The item that moves there is found once by each search: before the move, or after it."""
    gallery, row = MemoryGallery(), np.eye(8, dtype=np.float32)[:1]
    gallery._exact = exact = Interrupted()
    gallery.create_version("v1", 8)
    gallery.upsert("v1", ["mover"], row)

    def move() -> None:
        gallery.create_version("v2", 8)
        gallery.upsert("v2", ["mover"], row)

    exact.meanwhile = move
    for version in ("v1", "v2"):
        found = [(hit.id, hit.version) for hit in gallery.search("v1", row, versions=asked)[0]]
        assert found == [("mover", version)]
