"""Questions: stored vectors asked by two queries and a map. Against a loop over all items, in every gallery."""

from __future__ import annotations

import gc
import shutil
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from test_gallery_contract import GALLERIES, filled, vectors
from test_matrix import Interrupted, mapped_bytes

from fixstar.errors import GalleryError, GalleryUnavailableError
from fixstar.gallery import Gallery, Hit, MemoryGallery, Question, SqliteGallery, matrix, ranking
from fixstar.gallery.filters import payload_test
from fixstar.gallery.matrix import Segment
from fixstar.gallery.ranking import Candidate, Carrier, best_hits
from fixstar.gallery.store import SearchRequest
from fixstar.geometry import unit

EMBEDDED = [name for name in GALLERIES if name not in ("postgres", "milvus")]


class Counted:
    """A residual map, width -> b, that counts the vectors that it was given."""

    def __init__(self, width: int, b: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self._arrays = [
            rng.standard_normal(shape) for shape in ((width, b), (width, 2 * b), (2 * b, b))
        ]
        self.given = 0

    def __call__(self, stored: Any) -> Any:
        self.given += len(stored)
        straight, first, second = self._arrays
        rows = stored.astype(
            np.float64
        )  # rounded at the end, so that a row does not depend on those beside it
        return unit(rows @ straight + np.maximum(rows @ first, 0) @ second).astype(np.float32)


class Held(NamedTuple):
    """An item as the loop sees it, in the order of writing."""

    id: str
    version: str
    vector: Any
    payload: dict[str, Any]


def slowly(
    items: Sequence[Held],
    questions: Sequence[Question],
    k: int,
    where: dict[str, Any] | None = None,
    least: float = -1.0,
) -> list[list[tuple[str, str, float]]]:
    """The k best of each query, item by item in float64: id, version, score."""
    by_version = {question.version: question for question in questions}
    found: list[list[tuple[float, int, str, str, float]]] = [[] for _ in questions[0].own]
    for place, item in enumerate(items):
        question = by_version.get(item.version)
        if question is None or (where is not None and not payload_test(where)(item.payload)):
            continue
        mapped = question.forward(item.vector[None])[0] if question.forward else None
        for query, own in enumerate(question.own):
            score = (1 - question.weight) * dot(own, item.vector)
            if question.new is not None:
                score += question.weight * dot(question.new[query], mapped)
            if score >= least:
                rank = question.slope * score + question.offset
                found[query].append((-rank, place, item.id, item.version, score))
    return [
        [(name, version, score) for _, _, name, version, score in sorted(ranked)[:k]]
        for ranked in found
    ]


def dot(one: Any, other: Any) -> float:
    return float(np.dot(one.astype(np.float64), other.astype(np.float64)))


def some(question: Question, part: slice) -> Question:
    """The same question with some of its queries."""
    return replace(
        question, own=question.own[part], new=None if question.new is None else question.new[part]
    )


def agree(hits: list[list[Hit]], expected: list[list[tuple[str, str, float]]]) -> None:
    assert [[(hit.id, hit.version) for hit in one] for one in hits] == [
        [row[:2] for row in one] for one in expected
    ]
    for one, rows in zip(hits, expected, strict=True):
        np.testing.assert_allclose([hit.score for hit in one], [row[2] for row in rows], atol=1e-6)


def question(
    version: str,
    width: int,
    queries: int = 4,
    weight: float = 0.6,
    b: int = 7,
    seed: int = 0,
    **options: Any,
) -> Question:
    """Queries of two models and a map between them."""
    own = vectors(queries, width, seed=100 + seed)
    if weight == 0:
        return Question(version, own, **options)
    new = vectors(queries, b, seed=200 + seed)
    forward = options.pop("forward", None) or Counted(width, b, seed)
    return Question(
        version, own, new, forward, options.pop("key", f"map {seed}"), weight, **options
    )


def store(gallery: Gallery, version: str, width: int, count: int, seed: int = 0) -> list[Held]:
    """A version with items; the payload says the number and its parity."""
    gallery.create_version(version, width)
    return add(gallery, version, width, range(count), seed)


def add(gallery: Gallery, version: str, width: int, numbers: range, seed: int = 0) -> list[Held]:
    rows = vectors(len(numbers), width, seed=300 + seed)
    items = [
        Held(f"{version}-{n}", version, row, {"n": n, "parity": "odd" if n % 2 else "even"})
        for n, row in zip(numbers, rows, strict=True)
    ]
    gallery.upsert(version, [item.id for item in items], rows, [item.payload for item in items])
    return items


@pytest.fixture(params=GALLERIES)
def gallery(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gallery]:
    with GALLERIES[request.param](tmp_path) as opened:
        yield opened


@pytest.fixture(params=EMBEDDED)
def embedded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gallery]:
    """Those that score everything in full."""
    with GALLERIES[request.param](tmp_path) as opened:
        yield opened


def exact_of(gallery: Gallery) -> matrix.ExactSearch:
    exact = gallery._exact if isinstance(gallery, MemoryGallery) else gallery._matrices.exact  # type: ignore[attr-defined]
    assert exact is not None
    return exact


def segments(gallery: Gallery, version: str) -> list[Segment]:
    return [part.segment for part in exact_of(gallery).rows[version].parts]


# --- every gallery


@pytest.mark.parametrize("exact", [True, False])
def test_a_question_without_a_map_is_a_search(gallery: Gallery, exact: bool) -> None:
    """Equal to the bit, alone and among others, with a filter and with several versions."""
    rows = filled(gallery, 900, 16)
    gallery.upsert("v2", ["twin 1", "twin 2"], rows[[5, 5]])
    if not exact:
        gallery.build_index()
    queries = np.concatenate([vectors(20, 16, seed=2), rows[5:6]])
    questions = [Question(name, queries) for name in ("v1", "v2")]
    for options in (
        {},
        {"k": 60},
        {"where": {"parity": "odd"}},
        {"versions": ["v2"]},
        {"min_score": 0.4},
    ):
        wanted: Any = {**options, "exact": exact}
        assert gallery.ask(questions, **wanted) == gallery.search("v1", queries, **wanted)
        alone = [some(one, slice(20, 21)) for one in questions]
        assert gallery.ask(alone, **wanted) == gallery.search("v1", queries[20:], **wanted)
    assert gallery.ask(questions[:1], SearchRequest(exact=exact)) == gallery.search(
        "v1", queries, versions=["v1"], exact=exact
    )


def test_queries_that_a_space_does_not_hold_in_full_are_asked_as_they_are(gallery: Gallery) -> None:
    """Short forms: the same as a search that carries the queries over, where they are shorter than 1."""
    rng = np.random.default_rng(0)
    projections = {"v1": rng.standard_normal((30, 5)), "v2": rng.standard_normal((40, 8))}
    for name, P in projections.items():
        gallery.create_version(name, P.shape[1], P)
        gallery.upsert(name, [f"{name}-{i}" for i in range(20)], vectors(20, P.shape[1]))
    spaces = {space.name: space for space in gallery.versions()}
    queries, carrier = vectors(3, 8, seed=5), Carrier(gallery.projection)
    questions = [
        Question(name, carrier.carried(queries, spaces["v2"], space))
        for name, space in spaces.items()
    ]
    assert np.linalg.norm(questions[0].own, axis=1).max() < 0.9
    assert gallery.ask(questions, k=40) == gallery.search("v2", queries, k=40)
    long = queries * np.float32(1.0005)  # half precision does that
    assert gallery.ask([Question("v2", long)]) == gallery.search("v2", long, versions=["v2"])


@pytest.mark.parametrize("exact", [True, False])
def test_a_weight_of_one_leaves_the_own_query_to_find_candidates(
    gallery: Gallery, exact: bool
) -> None:
    """As a whitened translation asks: one map for both sides, wider than either space."""
    items = store(gallery, "v1", 5, 30)
    asked = question("v1", 5, weight=1.0, b=12)
    if not exact:
        gallery.build_index()
    for part in (slice(4), slice(1)):
        found = gallery.ask([some(asked, part)], k=30, exact=exact)
        agree(found, slowly(items, [some(asked, part)], 30))


@pytest.mark.parametrize("exact", [True, False])
def test_scores_are_those_of_a_loop(gallery: Gallery, exact: bool) -> None:
    """So few items that all are candidates, by any query: two maps of other widths, and a version without."""
    items = (
        store(gallery, "v1", 5, 30)
        + store(gallery, "v2", 9, 40, seed=1)
        + store(gallery, "v3", 7, 20, seed=2)
    )
    questions = [
        question("v1", 5, weight=0.6),
        question("v2", 9, weight=0.3, seed=1, slope=2.5, offset=-0.3),
        question("v3", 7, weight=0, seed=2, slope=0.5, offset=0.1),
    ]
    if not exact:
        gallery.build_index()
    for asked in (questions, [some(one, slice(1)) for one in questions]):
        for k, where in (
            (1, None),
            (10, None),
            (10, {"parity": "odd"}),
            (1000, None),
            (5, {"n": {"lt": 2}}),
        ):
            hits = gallery.ask(asked, k=k, where=where, exact=exact)
            agree(hits, slowly(items, asked, k, where))
    hits = gallery.ask(questions, k=12, versions=["v1", "v3", "v1"], exact=exact)
    agree(hits, slowly(items, [questions[0], questions[2]], 12))
    scores = [hit.score for hit in hits[0]]
    assert scores == np.array(scores, np.float32).tolist()
    payloads = {item.id: item.payload for item in items}
    assert all(hit.payload == payloads[hit.id] for hit in hits[0])
    assert gallery.ask(questions, versions=[], exact=exact) == [[]] * 4
    assert gallery.ask([some(one, slice(0)) for one in questions], exact=exact) == []


@pytest.mark.parametrize("weight", [0.0, 0.4, 1.0])
def test_the_weight_says_how_much_the_map_counts(gallery: Gallery, weight: float) -> None:
    items = store(gallery, "v1", 6, 50)
    asked = [question("v1", 6, weight=weight)]
    agree(gallery.ask(asked, k=50), slowly(items, asked, 50))


def test_slopes_and_offsets_rank_and_scores_stay(gallery: Gallery) -> None:
    """0.8 in v2 is less than 0.6 in v1, once both are on one scale; and the best is found with k = 1."""
    gallery.create_version("v1", 2)
    gallery.create_version("v2", 2)
    gallery.upsert("v1", ["a", "low"], np.array([[0.6, 0.8], [-1, 0]]))
    gallery.upsert("v2", ["b"], np.array([[0.8, 0.6]]))
    query = np.array([[1.0, 0.0]])
    plain = [Question("v1", query), Question("v2", query)]
    scaled = [
        replace(plain[0], slope=10.0, offset=-5.0),
        replace(plain[1], slope=10.0, offset=-8.0),
    ]
    assert [hit.id for hit in gallery.ask(plain, k=1)[0]] == ["b"]
    (hits,) = gallery.ask(scaled, k=2)
    assert [(hit.id, hit.version) for hit in hits] == [("a", "v1"), ("b", "v2")]
    assert [hit.score for hit in hits] == pytest.approx([0.6, 0.8], abs=1e-6)
    assert gallery.ask(scaled, k=1)[0] == hits[:1]
    assert [hit.id for hit in gallery.ask(scaled, k=1, min_score=0.7)[0]] == [
        "b"
    ]  # what is left out takes no place
    assert [hit.id for hit in gallery.ask(scaled[1:])[0]] == ["b"]  # v1 is not asked


def test_equal_ranks_come_in_the_order_of_writing(gallery: Gallery) -> None:
    """Twins of two versions whose scales meet: 1 * 0.5 + 0.25 is 0.5 * 1 + 0.25."""
    gallery.create_version("v1", 4)
    gallery.create_version("v2", 4)
    half = np.array([[0.5, 0.5, 0.5, 0.5]])
    for n in range(40):
        version, row = ("v1", half) if n % 2 else ("v2", np.eye(4)[:1])
        gallery.upsert(version, [f"{n:02}"], row)
    gallery.upsert("v1", ["01"], half)
    own = np.repeat(np.eye(4)[:1], 3, axis=0)
    turned = np.eye(4, dtype=np.float32)

    def identity(stored: Any) -> Any:
        return stored @ turned

    asked = [
        Question("v1", own, own, identity, "identity", weight=0.5, offset=0.25),
        Question("v2", own, own, identity, "identity", weight=0.5, slope=0.5, offset=0.25),
    ]
    names = [f"{n:02}" for n in range(40) if n != 1] + ["01"]
    for hits in gallery.ask(asked, k=40):
        assert [hit.id for hit in hits] == names
        assert {hit.score for hit in hits} == {0.5, 1.0}
    assert [hit.id for hit in gallery.ask(asked, k=5)[2]] == names[:5]


def test_what_is_written_between_two_questions_is_seen(gallery: Gallery) -> None:
    """Appended, replaced, removed, moved: the loop over a dictionary says what is found."""
    rng = np.random.default_rng(1)
    held = {
        item.id: item for item in store(gallery, "v1", 5, 30) + store(gallery, "v2", 5, 10, seed=1)
    }
    asked = [question("v1", 5), question("v2", 5, seed=1, slope=1.3)]
    for step in range(12):
        names = rng.choice(sorted(held), size=4, replace=False).tolist()
        if step % 3 == 0:
            gallery.delete(names)
            for name in names:
                del held[name]
        else:
            version = f"v{1 + step % 2}"
            names = [*names[:2], f"new-{step}", f"more-{step}"]
            rows = vectors(4, 5, seed=step)
            gallery.upsert(version, names, rows, [{"n": step}] * 4)
            for name, row in zip(names, rows, strict=True):
                held.pop(name, None)
                held[name] = Held(name, version, row, {"n": step})
        agree(gallery.ask(asked, k=100), slowly(list(held.values()), asked, 100))


def test_questions_that_make_no_sense(gallery: Gallery) -> None:
    store(gallery, "v1", 3, 2)
    good = question("v1", 3)
    wrong: list[tuple[Sequence[Question], str]] = [
        ([], "no question, so no version would be searched"),
        ([good, good], "'v1' is asked twice"),
        ([replace(good, version="v9")], r"no version 'v9' \(it has: v1\)"),
        (
            [replace(good, own=vectors(4, 4))],
            r"'v1' takes a matrix \[queries, 3\] of own queries, got \(4, 4\)",
        ),
        ([replace(good, own=2 * vectors(4, 3))], "query 0 has length 2, 1 is the longest"),
        ([replace(good, own=np.full((4, 3), np.nan))], "has length nan"),
        ([replace(good, own=vectors(4, 3)[0])], "is a matrix"),
        ([replace(good, own=np.array([["a"]]))], "real numbers"),
        ([replace(good, weight=1.5)], "weight 1.5; a weight is from 0 to 1"),
        ([replace(good, weight=float("nan"))], "from 0 to 1"),
        ([replace(good, slope=0.0)], "a slope is above 0"),
        ([replace(good, offset=float("inf"))], "both are finite"),
        ([replace(good, new=None)], "needs new queries, a forward map and a key"),
        ([replace(good, forward=None)], "needs new queries, a forward map and a key"),
        ([replace(good, key="")], "needs new queries, a forward map and a key"),
        (
            [replace(good, new=vectors(3, 7))],
            r"4 queries, so new is a matrix \[4, b\]; got \(3, 7\)",
        ),
        ([replace(good, new=2 * vectors(4, 7))], "not of length 1"),
        ([replace(good, forward=lambda rows: rows)], r"map 'map 0' made float32 \(\d, 3\)"),
        (
            [replace(good, forward=lambda rows: np.ones((len(rows), 7), np.float32))],
            "not of length 1",
        ),
        (
            [replace(good, forward=lambda rows: np.full((len(rows), 7), np.nan, np.float32))],
            "not of length 1",
        ),
    ]
    for questions, told in wrong:
        with pytest.raises(GalleryError, match=told):
            gallery.ask(questions)
    with pytest.raises(GalleryError, match="no version 'v9'"):
        gallery.ask([good], versions=["v9"])
    gallery.create_version("v2", 3)
    with pytest.raises(GalleryError, match=r"the same queries; got \[2, 4\]"):
        gallery.ask([good, Question("v2", vectors(2, 3))])
    assert len(gallery.ask([good, Question("v2", vectors(4, 3))])[3]) == 2  # v2 is empty
    gallery.close()
    with pytest.raises(GalleryError, match="closed"):
        gallery.ask([good])


# --- those that score everything in full


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several segments, each of several pieces for every thread."""
    changed = (
        (matrix, "_ROWS", 120),
        (matrix, "_MAPPED_AT_ONCE", 50),
        (ranking, "CHUNK", 8 * 30),
        (ranking, "CELLS", 5 * 64),
    )
    for module, name, value in changed:
        monkeypatch.setattr(module, name, value)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("k", [1, 7, 900])
def test_all_items_are_scored_in_full(embedded: Gallery, k: int) -> None:
    """Also those that the own queries alone would never find; filters from few rows to most of them."""
    items = store(embedded, "v1", 6, 300) + store(embedded, "v2", 8, 200, seed=1)
    asked = [question("v1", 6, weight=0.9), question("v2", 8, weight=0.5, seed=1, slope=1.2)]
    for where in (None, {"parity": "odd"}, {"n": {"lt": 3}}, {"n": {"lt": 30}}, {"n": {"ge": 100}}):
        expected = slowly(items, asked, k, where)
        agree(embedded.ask(asked, k=k, where=where), expected)
        single = [some(one, slice(1, 2)) for one in asked]
        agree(embedded.ask(single, k=k, where=where), expected[1:2])


@pytest.mark.usefixtures("small_pieces")
def test_one_query_and_a_batch_have_the_same_answers(embedded: Gallery) -> None:
    store(embedded, "v1", 6, 500)
    asked = question("v1", 6, queries=140)  # more than are asked at once
    together = embedded.ask([asked], k=9)
    for place in (0, 64, 139):
        part = slice(place, place + 1)
        assert embedded.ask([some(asked, part)], k=9) == together[part]


@pytest.mark.usefixtures("small_pieces")
def test_a_map_computes_each_vector_once(embedded: Gallery) -> None:
    """What it made follows appended and removed rows, and segments that are rewritten."""
    items = store(embedded, "v1", 6, 500)
    mapping = Counted(6, 7)
    asked = [question("v1", 6, forward=mapping)]
    for _ in range(2):
        embedded.ask(asked, k=5)
        assert mapping.given == 500
    items += add(embedded, "v1", 6, range(500, 530), seed=5)
    found = embedded.ask(asked, k=1000)
    assert mapping.given == 530
    agree(found, slowly(items, [replace(asked[0], forward=Counted(6, 7))], 1000))
    before = segments(embedded, "v1")
    gone = {f"v1-{n}" for n in range(0, 530, 3)}
    embedded.delete(sorted(gone))
    left = [item for item in items if item.id not in gone]
    agree(
        embedded.ask(asked, k=1000), slowly(left, [replace(asked[0], forward=Counted(6, 7))], 1000)
    )
    assert len({*map(id, before)} & {*map(id, segments(embedded, "v1"))}) < len(before)
    assert mapping.given == 530


def test_two_maps_are_kept_per_segment(embedded: Gallery) -> None:
    store(embedded, "v1", 6, 50)
    maps = [Counted(6, 7, seed) for seed in range(3)]
    asked = [question("v1", 6, forward=one, key=f"map {seed}") for seed, one in enumerate(maps)]
    for place in (0, 1, 0, 1, 0):
        embedded.ask([asked[place]])
    assert [one.given for one in maps] == [50, 50, 0]
    embedded.ask([asked[2]])  # the one that was not used for longest makes room
    embedded.ask([asked[0]])
    assert [one.given for one in maps] == [50, 50, 50]
    assert [len(segment._derived) for segment in segments(embedded, "v1")] == [2]
    embedded.ask([asked[1]])
    assert [one.given for one in maps] == [50, 100, 50]


def test_what_a_map_made_is_freed_with_its_segment() -> None:
    with MemoryGallery() as gallery:
        store(gallery, "v1", 6, 100)
        gallery.ask([question("v1", 6)])
        (segment,) = segments(gallery, "v1")
        (derived,) = segment._derived.values()
        kept = weakref.ref(derived)
        del segment, derived
        gallery.delete([f"v1-{n}" for n in range(100)])
        gc.collect()
        assert kept() is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_mapped_vectors_keep_what_a_map_made_in_files_too(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    with SqliteGallery(tmp_path / "g.db", map_vectors=folder) as gallery:
        store(gallery, "v1", 16, 3000)
        gallery.search("v1", vectors(1, 16))
        before = mapped_bytes(folder)
        gallery.ask([question("v1", 16, b=32)])
        assert mapped_bytes(folder) - before >= 4 * 3000 * 32
        assert list(folder.iterdir()) == []
    gc.collect()
    assert mapped_bytes(folder) == 0


def test_a_full_disk_costs_a_question_and_no_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Any:
        raise GalleryUnavailableError("the disk is full")

    with SqliteGallery(tmp_path / "g.db", map_vectors=tmp_path) as gallery:
        items = store(gallery, "v1", 6, 80)
        gallery.search("v1", vectors(1, 6))
        with monkeypatch.context() as patch:
            patch.setattr(matrix, "_space", full)
            with pytest.raises(GalleryUnavailableError, match="disk is full"):
                gallery.ask([question("v1", 6)])
            assert len(gallery.search("v1", vectors(1, 6))[0]) == 10
        asked = [question("v1", 6)]
        agree(gallery.ask(asked), slowly(items, asked, 10))


@pytest.mark.usefixtures("small_pieces")
def test_a_map_that_fails_has_kept_what_it_computed() -> None:
    with MemoryGallery() as gallery:
        items = store(gallery, "v1", 6, 100)
        mapping = Counted(6, 7)
        calls = 0

        def tired(rows: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise TimeoutError
            return mapping(rows)

        asked = [question("v1", 6, forward=tired)]
        with pytest.raises(TimeoutError):
            gallery.ask(asked)
        found = gallery.ask(asked)
        assert mapping.given == 100
        agree(found, slowly(items, asked, 10))


def test_others_do_not_wait_for_a_map(embedded: Gallery) -> None:
    """While one question's map computes, searches and questions by another map are answered."""
    items = store(embedded, "v1", 6, 60)
    mapping, begun, go_on = Counted(6, 7), threading.Event(), threading.Event()

    def slow(rows: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return mapping(rows)

    found: list[Any] = []
    asked = [question("v1", 6, forward=slow, key="slow")]
    threads = [threading.Thread(target=lambda: found.append(embedded.ask(asked))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    other = [question("v1", 6, seed=3)]
    agree(embedded.ask(other), slowly(items, other, 10))
    assert len(embedded.search("v1", vectors(1, 6))[0]) == 10
    assert len(embedded.search("v1", vectors(1, 6), where={"parity": "odd"})[0]) == 10
    new = Held("new", "v1", vectors(1, 6)[0], {})
    embedded.upsert("v1", [new.id], new.vector[None])
    assert not found
    go_on.set()
    for thread in threads:
        thread.join(60)
    # The second question used what the first one computed. On a busy machine it may begin after the new item came.
    assert mapping.given in (60, 61)
    assert len(found) == 2
    for hits in found:
        seen = [new] if any(hit.id == new.id for hit in hits[0]) else []
        agree(hits, slowly([*items, *seen], asked, 10))


def test_few_rows_that_pass_a_filter_are_mapped_alone(
    embedded: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix, "_FEW_MAPPED", 20)
    items = store(embedded, "v1", 6, 2000)
    mapping = Counted(6, 7)
    asked = [question("v1", 6, forward=mapping)]
    reference = [replace(asked[0], forward=Counted(6, 7))]
    agree(
        embedded.ask(asked, where={"n": {"ge": 1992}}),
        slowly(items, reference, 10, {"n": {"ge": 1992}}),
    )
    assert mapping.given <= 8 + 8 * len(asked[0].own)  # to find the best, and to score them
    agree(
        embedded.ask(asked, where={"n": {"ge": 1970}}),
        slowly(items, reference, 10, {"n": {"ge": 1970}}),
    )
    assert mapping.given >= 2000
    seen = mapping.given
    embedded.ask(asked)
    assert mapping.given == seen


def test_questions_are_answered_while_others_write(embedded: Gallery) -> None:
    """Every answer is that of one moment: an item is found once, with the score of one of its vectors."""
    width, count = 6, 60
    for name in ("v1", "v2"):
        embedded.create_version(name, width)
    names = [f"i{n}" for n in range(count)]
    rows = {"v1": vectors(count, width, seed=1), "v2": vectors(count, width, seed=2)}
    embedded.upsert("v1", names, rows["v1"])
    asked = [question("v1", width, queries=2), question("v2", width, queries=2, seed=1)]
    scores: dict[str, Any] = {}
    for one in asked:
        assert one.forward is not None
        assert one.new is not None
        stored = rows[one.version]
        scores[one.version] = (
            one.weight * one.new @ one.forward(stored).T + (1 - one.weight) * one.own @ stored.T
        )
    stop, failed = threading.Event(), list[BaseException]()

    def look() -> None:
        try:
            while not stop.is_set():
                for query, hits in enumerate(embedded.ask(asked, k=3 * count)):
                    assert sorted(hit.id for hit in hits) == sorted(names)
                    for hit in hits:
                        assert abs(hit.score - scores[hit.version][query, int(hit.id[1:])]) < 1e-5
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    rng = np.random.default_rng(0)
    for step in range(25):
        version = f"v{1 + step % 2}"
        some = np.sort(rng.choice(count, size=20, replace=False))
        embedded.upsert(version, [names[n] for n in some], rows[version][some])
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not failed


@pytest.mark.parametrize("order", [["v1", "v2"], ["v2", "v1"]])
def test_an_item_that_moves_during_a_search_is_found_once(order: list[str]) -> None:
    gallery, row = MemoryGallery(), np.eye(8, dtype=np.float32)[:1]
    gallery._exact = exact = Interrupted()
    gallery.create_version("v1", 8)
    gallery.create_version("v2", 8)
    gallery.upsert("v1", ["mover"], row)
    asked = [question(name, 8, queries=1, seed=seed) for seed, name in enumerate(order)]
    exact.meanwhile = lambda: gallery.upsert("v2", ["mover"], row)
    for version in ("v1", "v2"):
        assert [(hit.id, hit.version) for hit in gallery.ask(asked)[0]] == [("mover", version)]


class Gated(Counted):
    """A map that waits with large blocks until it is let go; candidates pass."""

    def __init__(self, width: int, b: int) -> None:
        super().__init__(width, b)
        self.gate = threading.Event()
        self.waiting = threading.Event()
        self.error: Exception | None = None

    def __call__(self, stored: Any) -> Any:
        if len(stored) > 400:  # more than the candidates of three queries
            self.waiting.set()
            self.gate.wait(60)
            if self.error is not None:
                raise self.error
        return super().__call__(stored)


def wait_until_mapped(gallery: Gallery, *asked: Question) -> None:
    """Wait for the background."""
    for _ in range(1200):
        rows = exact_of(gallery).rows
        if not any(one.map is not None and rows[one.version].missing(one.map) for one in asked):
            return
        time.sleep(0.05)
    pytest.fail("the vectors were never mapped")


def mapped_or_failed(gallery: Gallery, asked: Question) -> list[list[Hit]]:
    """The hits of an approximate search, once the background has nothing more to do."""
    try:
        return gallery.ask([asked], exact=False)
    finally:
        thread = exact_of(gallery)._background._thread
        if thread is not None:
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a gallery of 3,000 items and its index."""
    pytest.importorskip("faiss")
    folder = tmp_path_factory.mktemp("built")
    with SqliteGallery(folder / "g.db") as made:
        store(made, "v1", 16, 3000)
        made.build_index()
        made.flush()
    return folder


@pytest.fixture(params=[1, 5])
def indexed(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[SqliteGallery]:
    """A copy of it, in one segment or in five. Nothing is built in the background."""
    monkeypatch.setattr(matrix, "_ROWS", -(-3000 // request.param))
    shutil.copytree(built, tmp_path / "copy")
    with SqliteGallery(tmp_path / "copy" / "g.db") as opened:
        monkeypatch.setattr(opened._keeper, "update_in_background", lambda: None)
        assert [state.items for state in opened.indexes()] == [3000]
        yield opened


def related(queries: int) -> Question:
    """A question whose map keeps most of a vector, so that both models agree on what is near."""
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((16, 16)))[0]
    noise = Counted(16, 16)

    def forward(stored: Any) -> Any:
        return unit(stored @ turn + 0.4 * noise(stored)).astype(np.float32)

    own = vectors(queries, 16, seed=7)
    new = unit(own @ turn + 0.3 * vectors(queries, 16, seed=8)).astype(np.float32)
    return Question("v1", own, new, forward, "related", weight=0.6)


def test_an_index_finds_most_of_what_all_scores_would(indexed: SqliteGallery) -> None:
    asked = related(60)
    exact = indexed.ask([asked], k=10)
    quick = indexed.ask([asked], k=10, exact=False)
    shared = [
        len({hit.id for hit in one} & {hit.id for hit in other})
        for one, other in zip(exact, quick, strict=True)
    ]
    assert np.mean(shared) / 10 > 0.97
    for true, hits in zip(indexed.ask([asked], k=3000), quick, strict=True):
        by_id = {hit.id: hit for hit in true}
        assert hits == [by_id[hit.id] for hit in hits]  # the same score and payload
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_candidates_are_the_nearest_by_the_own_queries(indexed: SqliteGallery) -> None:
    """Whatever the map says: the best 100, or 10 k, by ``own`` are scored in full, and nothing else."""
    asked = question("v1", 16, queries=5, weight=0.9)
    items = [Held(item.id, "v1", item.vector, dict(item.payload)) for item in indexed.iterate()]
    items.sort(key=lambda item: item.payload["n"])
    own = Question("v1", asked.own)
    for k, candidates in ((10, 100), (30, 300)):
        expected = []
        for query, best in enumerate(slowly(items, [own], candidates)):
            names = {name for name, _, _ in best}
            one = some(asked, slice(query, query + 1))
            expected += slowly([item for item in items if item.id in names], [one], k)
        hits = indexed.ask([asked], k=k, exact=False)
        found = [{hit.id for hit in one} for one in hits]
        shared = [
            len(ids & {name for name, _, _ in rows})
            for ids, rows in zip(found, expected, strict=True)
        ]
        assert np.mean(shared) / k > 0.95
        assert indexed.ask([asked], k=k) != hits  # an exact search finds others too


def test_an_approximate_search_maps_its_candidates_and_leaves_the_rest_to_the_background(
    indexed: SqliteGallery,
) -> None:
    mapping = Gated(16, 7)
    asked = question("v1", 16, queries=3, forward=mapping)
    single = some(asked, slice(1))
    first = indexed.ask([asked], exact=False)  # the gate is closed: nothing is kept
    assert 100 <= mapping.given <= 400  # the best of the candidates twice
    assert mapping.waiting.wait(60)
    before = mapping.given
    assert indexed.ask([single], exact=False) == first[:1]
    assert 100 <= mapping.given - before <= 110
    before = mapping.given
    mapping.gate.set()
    wait_until_mapped(indexed, asked)
    assert mapping.given - before == 3000
    assert indexed.ask([asked], exact=False) == first
    assert indexed.ask([single], exact=False) == first[:1]
    indexed.ask([asked])
    assert mapping.given - before == 3000  # each vector once
    indexed.upsert("v1", ["twin"], asked.own[:1])  # its mapped vector is not kept yet
    assert "twin" in {hit.id for hit in indexed.ask([replace(single, weight=0.01)], exact=False)[0]}
    assert mapping.given - before == 3001


def test_an_exact_search_of_few_vectors_is_complete_while_they_are_mapped_for_approximate_ones(
    indexed: SqliteGallery,
) -> None:
    asked = question("v1", 16, weight=0.9)
    expected = indexed.ask([replace(asked, key="another name")], k=50)
    quick = indexed.ask([asked], k=50, exact=False)
    assert quick != expected
    assert indexed.ask([asked], k=50) == expected


def test_an_approximate_search_needs_no_room_for_mapped_vectors(
    indexed: SqliteGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A map that cannot be kept costs time, never an answer; one that is wrong fails the search."""

    def full(*_: Any) -> None:
        raise GalleryUnavailableError("no room")

    asked = question("v1", 16, queries=3)
    expected = indexed.ask([replace(asked, key="another name")], exact=False)
    wait_until_mapped(indexed, replace(asked, key="another name"))
    monkeypatch.setattr(Segment, "_compute", full)
    with pytest.warns(UserWarning, match=r"'v1' could not be mapped in the background \(no room\)"):
        found = mapped_or_failed(indexed, asked)
    assert found == expected
    assert indexed.ask([asked], exact=False) == expected
    assert exact_of(indexed)._background._thread is None  # it is not tried again
    with pytest.raises(GalleryUnavailableError, match="no room"):
        indexed.ask([asked])
    wrong = replace(asked, key="wrong", forward=lambda rows: 2 * rows[:, :7])
    with (
        pytest.warns(UserWarning, match="could not be mapped"),
        pytest.raises(GalleryError, match="not of length 1"),
    ):
        mapped_or_failed(indexed, wrong)


def slowly_offered(
    stored: Any, offered: Sequence[Any], asked: Question
) -> list[list[tuple[str, str, float]]]:
    """All that each query was offered."""
    found = []
    for place, rows in enumerate(offered):
        items = [Held(str(row), "v1", stored[row], {}) for row in rows]
        found += slowly(items, [some(asked, slice(place, place + 1))], len(rows))
    return found


@pytest.mark.parametrize("spread", [0, 1e-8, 1e-7, 1e-6, 1e-4, 1])
@pytest.mark.parametrize("k", [1, 5, 40])
def test_of_many_candidates_the_best_are_chosen_whatever_their_scores(
    spread: float, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where scores differ by less than float32 can say, and where a query has fewer candidates than hits."""
    rng = np.random.default_rng(3)
    stored = unit(vectors(1, 6) + spread * rng.standard_normal((200, 6))).astype(np.float32)
    offered = [np.sort(rng.choice(200, size=count, replace=False)) for count in (150, 90, 20)]

    class Offers:
        def candidates(self, _rows: Any, queries: Any, _k: int, _allowed: Any) -> Any:
            return np.repeat(
                np.arange(len(queries)), [len(rows) for rows in offered]
            ), np.concatenate(offered)

    with MemoryGallery() as gallery:
        gallery.create_version("v1", 6)
        gallery.upsert("v1", [str(row) for row in range(200)], stored)
        exact_of(gallery).indexes = {"v1": Offers()}
        asked = question("v1", 6, queries=3)
        hits = gallery.ask([asked], k=k, exact=False)
        monkeypatch.setattr(
            matrix._Target, "may_be_best", lambda _self, query, *_: np.ones(len(query), bool)
        )
        assert hits == gallery.ask([asked], k=k, exact=False)
    assert [len(found) for found in hits] == [k, k, min(k, 20)]
    scores = [
        {row: score for row, _, score in one} for one in slowly_offered(stored, offered, asked)
    ]
    for found, true in zip(hits, scores, strict=True):
        least = sorted(true.values())[-len(found)]
        assert all(true[hit.id] >= least - 1e-6 for hit in found)


def test_filters_and_removed_rows_with_an_index(indexed: SqliteGallery) -> None:
    asked = related(8)
    indexed.delete([f"v1-{n}" for n in range(0, 3000, 50)])
    for where in (None, {"parity": "odd"}, {"n": {"lt": 30}}):
        exact = indexed.ask([asked], where=where)
        quick = indexed.ask([asked], where=where, exact=False)
        shared = [
            len({*map(str, one)} & {*map(str, other)}) / len(one)
            for one, other in zip(exact, quick, strict=True)
        ]
        assert np.mean(shared) > 0.95


# --- what a server's candidates become


def test_candidates_of_a_server_are_ranked_as_in_memory() -> None:
    found = [
        Candidate(0, "a", "v1", 0.5, 1.0, 1, "a"),
        Candidate(0, "b", "v2", 0.9, 0.7, 2, "b"),
        Candidate(0, "c", "v2", 0.4, 1.0, 3, "c"),
        Candidate(0, "moved", "v1", 0.8, 2.0, 4, "old"),
        Candidate(0, "moved", "v2", 0.1, 0.1, 9, "new"),
        Candidate(1, "a", "v1", 0.3, 0.3, 1, "a"),
    ]

    def hits(**options: Any) -> list[list[tuple[str, float]]]:
        best = best_hits(found, 2, SearchRequest(**options), lambda one: {"is": one.source})
        return [[(hit.payload["is"], hit.score) for hit in one] for one in best]

    assert hits() == [[("a", 0.5), ("c", 0.4), ("b", 0.9), ("new", 0.1)], [("a", 0.3)]]
    assert hits(k=1) == [[("a", 0.5)], [("a", 0.3)]]
    assert hits(k=1, min_score=0.6) == [[("b", 0.9)], []]


def test_a_server_scores_candidates_in_full() -> None:
    postgres = pytest.importorskip("fixstar.gallery.postgres")
    mapping = Counted(5, 7)
    asked = question("v1", 5, queries=3, forward=mapping)
    rows = vectors(6, 5)
    place = np.array([0, 4, 4, 1, 0, 5])
    query = np.array([0, 0, 1, 2, 2, 1], np.intp)
    items = [Held(str(n), "v1", row, {}) for n, row in enumerate(rows)]
    reference = replace(asked, forward=Counted(5, 7))
    expected = {
        (q, int(name)): score
        for q, best in enumerate(slowly(items, [reference], 6))
        for name, _, score in best
    }
    scores = postgres.full_scores(postgres.in_float64(asked), rows[place], query, place)
    np.testing.assert_allclose(
        scores, [expected[int(q), int(n)] for q, n in zip(query, place, strict=True)], atol=1e-6
    )
    assert mapping.given == 4  # each item once
    nothing = postgres.full_scores(postgres.in_float64(asked), rows[:0], query[:0], place[:0])
    assert nothing.shape == (0,)


def mapped_in_background(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Held], Question, Gated]:
    """Many vectors, a question with all weight on a gated map, and a limit that they are above."""
    monkeypatch.setattr(matrix, "AT_ONCE", 100)
    stored = vectors(600, 6, seed=1)
    gallery.create_version("v1", 6)
    gallery.upsert("v1", [f"item-{row}" for row in range(600)], stored)
    items = [Held(f"item-{row}", "v1", stored[row], {}) for row in range(600)]
    forward = Gated(6, 5)
    question = Question(
        "v1", vectors(3, 6, seed=2), vectors(3, 5, seed=3), forward, "gated", weight=0.9
    )
    return items, question, forward


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_no_search_waits_while_many_vectors_are_mapped(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery = MemoryGallery() if kind == "memory" else SqliteGallery(tmp_path / "g.db")
    with gallery:
        items, question, forward = mapped_in_background(gallery, monkeypatch)
        early = gallery.ask([question], k=5)  # the gate is closed: this would wait for ever
        assert forward.waiting.wait(60)
        assert gallery.ask([question], k=5) == early
        nearest = [
            sorted(items, key=lambda item: -dot(own, item.vector))[: ranking.scored(5)]
            for own in question.own
        ]
        expected = []
        for query, candidates in enumerate(nearest):
            one = replace(
                question, own=question.own[[query]], new=np.asarray(question.new)[[query]]
            )
            expected += slowly(candidates, [one], 5)
        assert [[hit.id for hit in hits] for hits in early] == [
            [name for name, _, _ in hits] for hits in expected
        ]
        forward.gate.set()
        whole = slowly(items, [question], 5)
        assert whole != expected  # so the candidates were not all
        wait_until_mapped(gallery, question)
        late = [[hit.id for hit in hits] for hits in gallery.ask([question], k=5)]
        assert late == [[name for name, _, _ in hits] for hits in whole]


def map_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "fixstar-derive"]


def test_a_chain_of_versions_has_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each version is below the limit, all together are above it. One thread maps them, and no search waits for it."""
    monkeypatch.setattr(matrix, "AT_ONCE", 1000)
    items: list[Held] = []
    asked: list[Question] = []
    forward = Gated(6, 7)
    with MemoryGallery() as gallery:
        for number in range(5):
            items += store(gallery, f"v{number}", 6, 500, seed=number)
            asked.append(
                question(
                    f"v{number}", 6, queries=3, forward=forward, key=f"map {number}", weight=0.9
                )
            )
        asked[4] = replace(asked[4], weight=0.0, offset=-1.0)  # the newest version needs no map
        items += store(gallery, "small", 6, 40, seed=9)
        small = question("small", 6, queries=3, weight=0.9)
        early = gallery.ask([*asked, small], k=5)  # the gate is closed: this would wait for ever
        assert forward.waiting.wait(60)
        assert len(map_threads()) == 1
        assert gallery.ask([*asked, small], k=5) == early
        assert len(map_threads()) == 1
        rows = exact_of(gallery).rows
        assert [rows[one.version].missing(one.map) for one in asked[:4] if one.map] == [500] * 4
        assert small.map is not None
        assert rows["small"].missing(small.map) == 0  # the search did that itself
        only_small = gallery.ask([small], k=5)
        agree(only_small, slowly([item for item in items if item.version == "small"], [small], 5))
        forward.gate.set()
        wait_until_mapped(gallery, *asked)
        late = gallery.ask([*asked, small], k=5)
        agree(late, slowly(items, [*asked, small], 5))
        assert late != early
    assert not map_threads()


def test_a_chain_below_the_limit_is_mapped_by_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "AT_ONCE", 1000)
    items: list[Held] = []
    asked: list[Question] = []
    with MemoryGallery() as gallery:
        for number in range(5):
            items += store(gallery, f"v{number}", 6, 200, seed=number)
            asked.append(question(f"v{number}", 6, weight=0.9, seed=number))
        agree(gallery.ask(asked, k=5), slowly(items, asked, 5))
        assert not map_threads()


def test_of_many_vectors_a_search_maps_few_new_ones_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves many new ones to the background, also when most of the vectors are mapped."""
    with MemoryGallery() as gallery:
        items = store(gallery, "v1", 6, 900)
        forward = Gated(6, 7)
        asked = question("v1", 6, queries=3, forward=forward, weight=0.9)
        forward.gate.set()
        gallery.ask([asked])
        forward.gate.clear()
        monkeypatch.setattr(matrix, "AT_ONCE", 800)
        items += add(gallery, "v1", 6, range(900, 1000), seed=1)
        agree(gallery.ask([asked], k=5), slowly(items, [asked], 5))
        assert not map_threads()
        items += add(gallery, "v1", 6, range(1000, 1450), seed=2)
        gallery.ask([asked], k=5)  # the gate is closed: this would wait for ever
        assert forward.waiting.wait(60)
        forward.gate.set()
        wait_until_mapped(gallery, asked)
        agree(gallery.ask([asked], k=5), slowly(items, [asked], 5))


def test_closing_stops_the_mapping_of_stored_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = MemoryGallery()
    _, question, forward = mapped_in_background(gallery, monkeypatch)
    monkeypatch.setattr(matrix, "_MAPPED_AT_ONCE", 450)
    gallery.ask([question], k=5)
    assert forward.waiting.wait(60)
    given = forward.given
    assert gallery._exact is not None
    background = gallery._exact._background
    closing = threading.Thread(target=gallery.close)  # waits for the block under way
    closing.start()
    assert background._stop.wait(60)
    forward.gate.set()
    closing.join(60)
    assert not closing.is_alive()
    assert forward.given == given + 450


def test_a_map_that_fails_in_the_background_fails_the_next_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gallery = MemoryGallery()
    _, question, forward = mapped_in_background(gallery, monkeypatch)
    forward.error = GalleryUnavailableError("no room")
    gallery.ask([question], k=5)
    assert forward.waiting.wait(60)
    forward.gate.set()

    def search_until_it_fails() -> None:
        for _ in range(600):
            gallery.ask([question], k=5)
            time.sleep(0.05)

    with (
        pytest.warns(UserWarning, match="could not be mapped"),
        pytest.raises(GalleryUnavailableError, match="no room"),
    ):
        search_until_it_fails()
