"""The embedded gallery: exact search against bare engines on the same vectors, inserting, loading, storage.

Clustered unit vectors, top 10. Contestants take turns, round by round, so that a busy machine hits all of them; a
figure is the median of the rounds, alone and beside two busy processes. "numpy" is the product and an argpartition,
without ids, payload or versions. faiss takes part if it is installed: pip install faiss-cpu. Single queries are also
asked before the gallery has made codes of 8 bits; "coding_seconds" is the time from the first of them until it has.

    python benchmarks/gallery.py --out benchmarks/results/gallery_cpu.json        200,000 x 512, about one minute
    python benchmarks/gallery.py --approximate 100000 --width 384 --batch 64      approximate search only
    python benchmarks/gallery.py --translated 100000 --width 384 --batch 64       questions with a map only

Approximate search stands beside faiss's HNSW of the same vectors and the same links, used bare: no ids, payload,
versions, filters or writes. Both are asked with the same breadths (efSearch), in turns, and compared where both find
the same share of the true nearest. The index is built in the background, while one thread goes on searching.

A question with a map (a residual one with 512 hidden units) stands beside two plain searches, which is what a search
by two models costs without it: one with the queries of either model. "cold_approximate" begins before anything that
the map made is kept, and "approximate_mapped_seconds" is the time from there until all vectors are mapped, without an
exact search. "first_exact_seconds" is the first exact search, "mapped_seconds" until all vectors are mapped; in a large
gallery the search does not wait for that. With --chain 5 the vectors are those of five versions, four of which have a
map of their own. --store postgres and --store milvus take the servers of the tests: PYTHONPATH=src:tests/support. The
items of Milvus are in SQLite. It has one index per gallery: milvus answers exact questions, milvus-hnsw approximate
ones.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import platform
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from fixstar.durable import replace_json
from fixstar.gallery import (
    Gallery,
    Hit,
    PostgresGallery,
    Question,
    SqliteGallery,
    coded,
    hnsw,
    matrix,
    measured_recall,
    ranking,
)
from fixstar.gallery.addresses import parse_milvus_address
from fixstar.gallery.hnsw import BREADTH_BUILDING, LINKS
from fixstar.geometry import unit
from fixstar.translation import Layer, Map

Array = NDArray[np.float32]
Figures = dict[str, Any]
K = 10
BATCHES = 8  # of fresh queries, for approximate search
SINGLES = 16  # of them asked one by one, per turn
SWEEP = (16, 20, 24, 32, 40, 64, 96)  # breadths
RECALLS = (0.95, 0.97, 0.98, 0.99, 0.995)
PAUSE = 0.05  # seconds between searches: a build yields to them, and would hardly advance without a pause
HIDDEN = 512  # units of the map
AT_ONCE = 10_000  # vectors that are drawn together
BLOCK = 100_000  # of a gallery with translations, made at a time
STORES = ("sqlite", "postgres", "milvus", "milvus-hnsw")
BREADTHS = (16, 18, 20, 22, 24, 26, 28, 30, 32, 36, 48, 64, 128, 256, 512)


def vector_blocks(count: int, width: int, seed: int) -> Iterator[Array]:
    """Unit vectors around 1,000 centres, in blocks of at most AT_ONCE rows."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((1000, width), dtype=np.float32)
    rng = np.random.default_rng(seed)
    for start in range(0, count, AT_ONCE):
        rows = min(AT_ONCE, count - start)
        around = centres[rng.integers(1000, size=rows)]
        yield unit(around + rng.standard_normal((rows, width), dtype=np.float32))


def make_vectors(count: int, width: int, seed: int) -> Array:
    """The same in one array."""
    out = np.empty((count, width), np.float32)
    for number, block in enumerate(vector_blocks(count, width, seed)):
        out[number * AT_ONCE : number * AT_ONCE + len(block)] = block
    return out


def insert(path: Path, vectors: Array, versions: int, batch: int) -> tuple[SqliteGallery, float]:
    """A gallery with the vectors dealt to so many versions, and the seconds it took."""
    gallery = SqliteGallery(path)
    width = vectors.shape[1]
    rng = np.random.default_rng(1)
    start = time.perf_counter()
    for n in range(versions):
        if versions == 1:
            projection = None
        else:
            projection = rng.standard_normal((width + 100, width), dtype=np.float32)
        gallery.create_version(f"v{n + 1}", width, projection)
    for place, first in enumerate(range(0, len(vectors), batch)):
        rows = vectors[first : first + batch]
        ids = [f"item-{first + i:08}" for i in range(len(rows))]
        payloads = [{"shop": (first + i) % 20} for i in range(len(rows))]
        gallery.upsert(f"v{place % versions + 1}", ids, rows, payloads)
    gallery.flush()
    return gallery, time.perf_counter() - start


def numpy_search(vectors: Array) -> Callable[[Array], Any]:
    def search(queries: Array) -> Any:
        cosines = queries @ vectors.T if len(queries) > 1 else (vectors @ queries[0])[None]
        best = np.argpartition(cosines, -K, axis=1)[:, -K:]
        found = np.take_along_axis(cosines, best, axis=1)
        return np.take_along_axis(best, np.argsort(-found, axis=1), axis=1)

    return search


def faiss_search(vectors: Array) -> Callable[[Array], Any] | None:
    try:
        faiss = importlib.import_module("faiss")
    except ImportError:
        return None
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return lambda queries: index.search(queries, K)[1]


def seconds_per_query(
    contestants: Mapping[str, Callable[[Array], Any]], batches: Sequence[Array], rounds: int
) -> dict[str, float]:
    """The median over rounds in which all, in turn, answer the same batches."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, search in contestants.items():
            start = time.perf_counter()
            for batch in batches:
                search(batch)
            seconds[name].append(time.perf_counter() - start)
    queries = sum(map(len, batches))
    return {name: float(np.median(times)) / queries for name, times in seconds.items()}


def rates(
    contestants: dict[str, Callable[[Array], Any]], batches: list[Array], rounds: int
) -> dict[str, float]:
    """Queries per second of all that take turns."""
    return {
        name: round(1 / spent, 1)
        for name, spent in seconds_per_query(contestants, batches, rounds).items()
    }


@contextlib.contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """So many processes that do nothing but use a core: a service never has idle ones."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(0.5)
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def seconds_to_code(gallery: SqliteGallery, query: Array, version: str | None = None) -> float:
    """Ask single queries of a version, or of the last one, until all large versions have codes."""
    start = time.perf_counter()
    version = version or gallery.versions()[-1].name
    for _ in range(matrix.CODED_AFTER + 1):  # since the last time
        gallery.search(version, query, k=K)
    rows = gallery._matrices.exact.rows.values()
    while coded.are_available() and any(one.is_large and one.missing_codes() for one in rows):
        time.sleep(0.01)
    return round(time.perf_counter() - start, 2)


def measure(options: argparse.Namespace, folder: Path) -> Figures:
    vectors = make_vectors(options.vectors, options.width, seed=2)
    queries = make_vectors(options.batch, options.width, seed=3)
    one, seconds = insert(folder / "one.db", vectors, 1, options.insert)
    payload = sum(len(f'{{"shop":{i % 20}}}') for i in range(len(vectors)))
    report: Figures = {
        "insert_per_second": round(len(vectors) / seconds),
        "storage_ratio": round(one.path.stat().st_size / (vectors.nbytes + payload), 3),
    }
    start = time.perf_counter()
    one.search("v1", queries[:1])
    report["load_seconds"] = round(time.perf_counter() - start, 2)
    contestants: dict[str, Callable[[Array], Any]] = {
        "fixstar": lambda batch: one.search("v1", batch, k=K),
        "fixstar_filtered": lambda batch: one.search("v1", batch, k=K, where={"shop": 7}),
        "numpy": numpy_search(vectors),
    }
    if rival := faiss_search(vectors):
        contestants["faiss"] = rival
    same = [int(hit.id[5:]) for hit in one.search("v1", queries[:1], k=K)[0]] == contestants[
        "numpy"
    ](queries[:1])[0].tolist()
    report["same_answer_as_numpy"] = same
    one.search("v1", queries[:1], where={"shop": 7})
    singles = [queries[i : i + 1] for i in range(options.singles)]
    usual = matrix.CODED_AFTER
    matrix.CODED_AFTER = 1 << 60
    report["single_qps_before_codes"] = rates(contestants, singles, options.rounds)
    matrix.CODED_AFTER = usual
    report["coding_seconds"] = seconds_to_code(one, queries[:1])
    report["single_qps"] = rates(contestants, singles, options.rounds)
    contestants.pop("fixstar_filtered")
    report["batch_qps"] = rates(contestants, [queries], options.rounds)
    with busy_cores(2):
        report["busy_single_qps"] = rates(
            contestants, [queries[i : i + 1] for i in range(10)], options.rounds
        )
        report["busy_batch_qps"] = rates(contestants, [queries], options.rounds)
    report["while_writing"] = waiting(one, queries[:1], vectors[: options.insert])
    report |= across_versions(options, folder, vectors, queries, contestants["fixstar"])
    one.close()
    return report


def across_versions(
    options: argparse.Namespace,
    folder: Path,
    vectors: Array,
    queries: Array,
    one: Callable[[Array], Any],
) -> Figures:
    """The same vectors as one version and as three, each with a projection of its own."""
    with insert(folder / "three.db", vectors, 3, options.insert)[0] as three:
        seconds_to_code(three, queries[:1])
        both = {"one_version": one, "three_versions": lambda batch: three.search("v3", batch, k=K)}
        singles = [queries[i : i + 1] for i in range(options.singles)]
        return {
            "versions_single_qps": rates(both, singles, options.rounds),
            "versions_batch_qps": rates(both, [queries], options.rounds),
        }


def approximate(options: argparse.Namespace, folder: Path) -> Figures:
    """Approximate search while its index is built, when it is there, and beside the engine used bare."""
    vectors = make_vectors(options.approximate, options.width, seed=2)
    queries = make_vectors(BATCHES * options.batch, options.width, seed=3)
    batches = [queries[i : i + options.batch] for i in range(0, len(queries), options.batch)]
    file = folder / "bare.faiss"
    if file.exists():
        with SqliteGallery(folder / "one.db", index_above=1 << 60) as gallery:
            gallery.indexes()
            return beside_bare(
                gallery, vectors, batches, bare_hnsw(vectors, file)[0], options.rounds
            )
    insert(folder / "one.db", vectors, 1, options.insert)[0].close()
    with SqliteGallery(folder / "one.db", index_above=len(vectors) - 1) as gallery:
        gallery.search("v1", queries[:1])
        report: Figures = {
            "exact_search_ms": summary(search_times(gallery, queries, options.singles))
        }
        report |= while_building(gallery, queries)
        report["index_ratio"] = round(saved_size(folder) / vectors.nbytes, 3)
        bare, report["faiss_build_seconds"] = bare_hnsw(vectors, file)
        report |= beside_bare(gallery, vectors, batches, bare, options.rounds)
        queries = batches[0]
        report["filtered"] = {
            str(share): filtered(gallery, queries, share, options) for share in (10, 5, 1)
        }
        for exact in (True, False):
            report[f"while_writing_{'exact' if exact else 'approximate'}"] = waiting(
                gallery, queries[:1], vectors[: options.insert], exact=exact
            )
        report["recall_after_writing"] = round(measured_recall(gallery, "v1", queries, k=K), 4)
    return report


def residual_map(width: int, seed: int = 4) -> Map:
    """A map that keeps most of a vector: a rotation and a small correction."""
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.standard_normal((width, width)))[0].astype(np.float32)
    first, second = (
        rng.standard_normal(shape, dtype=np.float32) for shape in ((width, HIDDEN), (HIDDEN, width))
    )
    offsets = [np.zeros(size, np.float32) for size in (width, HIDDEN)]
    return Map((Layer(rotation, offsets[0], first, offsets[1], 0.3 * second / HIDDEN**0.5),))


def translated(options: argparse.Namespace, folder: Path) -> Figures:
    """Questions with maps beside two plain searches, exact and approximate, single and in batches."""
    width = options.width
    maps = [residual_map(width, seed=4 + number) for number in range(max(1, options.chain - 1))]
    own = make_vectors(options.batch, width, seed=3)
    new = unit(maps[0](own) + 0.3 * make_vectors(options.batch, width, seed=5)).astype(np.float32)

    def questions(both: Array, name: str = "map") -> list[Question]:
        """One for each version; the newest of a chain needs no map. Under a new name, no map was used yet."""
        asked = [
            Question(
                f"v{number}",
                both[:, :width],
                both[:, width:],
                forward,
                f"{name} {number}",
                weight=0.6,
            )
            for number, forward in enumerate(maps, start=1)
        ]
        if options.chain > 1:
            asked.append(Question(f"v{options.chain}", both[:, width:]))
        return asked

    queries = np.hstack([own, new])
    batches = {"single": [queries[i : i + 1] for i in range(options.singles)], "batch": [queries]}
    with contextlib.ExitStack() as stack:
        gallery = stack.enter_context(filled(options, folder, stack))
        report: Figures = {
            "store": options.store,
            "versions": options.chain,
            "mapped": options.mapped,
        }
        has_index = options.store != "milvus" and not options.exact_only
        has_exact = options.store != "milvus-hnsw"
        if has_index and (options.store == "milvus-hnsw" or not gallery.indexes()):
            start = time.perf_counter()
            gallery.build_index()
            report["index_seconds"] = round(time.perf_counter() - start, 1)
        gallery.search("v1", own[:1], exact=has_exact)

        def contestants(exact: bool, name: str = "map") -> dict[str, Callable[[Array], Any]]:
            def two_searches(both: Array) -> None:
                for some in (both[:, :width], both[:, width:]):
                    gallery.search("v1", some, k=K, exact=exact)

            return {
                "two_searches": two_searches,
                "question": lambda both: gallery.ask(questions(both, name), k=K, exact=exact),
            }

        if has_index:
            start = time.perf_counter()
            report["cold_approximate"] = beside(contestants(exact=False, name="cold"), batches, 1)
            while still_mapping(gallery, questions(queries[:1], "cold")):
                time.sleep(0.1)
            report["approximate_mapped_seconds"] = round(time.perf_counter() - start, 2)
        if has_exact:
            start = time.perf_counter()
            gallery.ask(questions(queries[:1]), k=K)
            report["first_exact_seconds"] = round(time.perf_counter() - start, 2)
            while still_mapping(gallery, questions(queries[:1])):
                time.sleep(0.1)
            report["mapped_seconds"] = round(time.perf_counter() - start, 2)
            report["exact"] = beside(contestants(exact=True), batches, options.rounds)
        if not has_index:
            return report
        report["approximate"] = beside(contestants(exact=False), batches, options.rounds)
        true = gallery.ask(questions(queries), k=K)
        quick = gallery.ask(questions(queries), k=K, exact=False)
    shared = [
        len({hit.id for hit in one} & {hit.id for hit in other}) / K
        for one, other in zip(true, quick, strict=True)
    ]
    report["approximate_recall"] = round(float(np.mean(shared)), 4)
    return report


def filled(options: argparse.Namespace, folder: Path, stack: contextlib.ExitStack) -> Gallery:
    """The gallery of ``translated``: made, or opened again if it is there."""
    if options.store == "postgres":
        postgres_server = importlib.import_module("postgres_server")
        server = postgres_server.Server()
        stack.callback(server.server.cleanup)
        gallery: Gallery = PostgresGallery(server.url("bench"))
    elif options.store in ("milvus", "milvus-hnsw"):
        milvus_server = importlib.import_module("milvus_server")
        place = milvus_server.RUNNING or milvus_server.OwnServer().place
        index = "HNSW" if options.store == "milvus-hnsw" else "FLAT"
        address = parse_milvus_address(
            milvus_server.fresh_url(folder / "items.db", index, place) + "&timeout=120"
        )
        gallery = milvus_server.DroppedGallery(
            address, SqliteGallery(address.items, index_above=1 << 60)
        )
    elif options.mapped:
        gallery = SqliteGallery(folder / "one.db", index_above=1 << 60, map_vectors=folder)
    else:
        gallery = SqliteGallery(folder / "one.db", index_above=1 << 60)
    if not gallery.count():
        for number in range(1, options.chain + 1):
            gallery.create_version(f"v{number}", options.width)
    done = sum(gallery.count().values())
    for first in range(done, options.translated, BLOCK):
        rows = make_vectors(min(BLOCK, options.translated - first), options.width, seed=2 + first)
        for start in range(0, len(rows), options.insert):
            part = rows[start : start + options.insert]
            ids = [f"item-{first + start + i:08}" for i in range(len(part))]
            version = (first + start) // options.insert % options.chain + 1
            gallery.upsert(f"v{version}", ids, part, [{} for _ in ids])
    gallery.flush()
    return gallery


def translated_table(reports: Sequence[Figures]) -> str:
    """The table of the docs: one row per run of ``translated``, milliseconds a query."""
    lines = [
        "| store | vectors | versions | first exact search, s | all mapped, s | exact: one query | two searches | "
        "64 at once | two searches | index: one query | two searches | 64 at once | two searches |",
        "|---|---:|" + "---:|" * 11,
    ]
    for report in reports:
        count, width = report["vectors"]
        store = report["store"]
        if report.get("mapped"):
            store += ", vectors in files"
        cells = [store, f"{count:,} x {width}", str(report["versions"])]
        cells += [str(report.get(name, "-")) for name in ("first_exact_seconds", "mapped_seconds")]
        for kind in ("exact", "approximate"):
            for how in ("single", "batch"):
                found = report.get(kind, {}).get(how, {})
                cells += [str(found.get(name, "-")) for name in ("question", "two_searches")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def still_mapping(gallery: Gallery, questions: list[Question]) -> bool:
    """Whether a map is yet to be applied to stored vectors; a small gallery's first search has done it.

    PostgreSQL and Milvus map the candidates of each search, and keep nothing.
    """
    if not isinstance(gallery, SqliteGallery):
        return False
    rows = gallery._matrices.exact.rows
    return any(one.map is not None and rows[one.version].missing(one.map) > 0 for one in questions)


def beside(
    contestants: dict[str, Callable[[Array], Any]], batches: dict[str, list[Array]], rounds: int
) -> Figures:
    """Milliseconds per query of a question and of two searches, and the ratio: medians over rounds in turns."""
    found: Figures = {}
    for kind, asked in batches.items():
        rate = rates(contestants, asked, rounds)
        times = {name: round(1000 / value, 3) for name, value in rate.items()}
        found[kind] = {**times, "ratio": round(rate["two_searches"] / rate["question"], 2)}
    return found


def beside_bare(
    gallery: SqliteGallery,
    vectors: Array,
    batches: list[Array],
    bare: Callable[[Array, int], Any],
    rounds: int,
) -> Figures:
    """Approximate search and the bare engine over a sweep of breadths, and how they compare where both find as much.

    They take turns, breadth by breadth, with single queries and then with batches.
    """

    def own(batch: Array, breadth: int) -> list[list[Hit]]:
        hnsw.BREADTH = breadth
        return gallery.search("v1", batch, k=K, exact=False)

    def own_rows(batch: Array, breadth: int) -> Any:
        return np.array([[int(hit.id[5:]) for hit in hits] for hits in own(batch, breadth)])

    true = np.concatenate([numpy_search(vectors)(batch) for batch in batches])
    usual = hnsw.BREADTH
    searches: dict[str, Callable[[Array, int], Any]] = {"fixstar": own, "faiss_hnsw": bare}
    sweep: dict[str, list[Figures]] = {}
    times: dict[tuple[str, int, str], list[float]] = {}
    for name, answer in (("fixstar", own_rows), ("faiss_hnsw", bare)):
        sweep[name] = [
            {"breadth": b, "recall": recall(true, [answer(batch, b) for batch in batches])}
            for b in SWEEP
        ]
    for turn in range(rounds * len(batches)):
        batch = batches[turn % len(batches)]
        for kind, asked in (
            ("single", [batch[i : i + 1] for i in range(SINGLES)]),
            ("batch", [batch]),
        ):
            time.sleep(PAUSE)  # the threads of the last batch wait for another one, and use a core
            for breadth in SWEEP:
                for name in sorted(searches, reverse=turn % 2 == 0):
                    for some in asked:
                        start = time.perf_counter()
                        cpu = time.process_time()
                        searches[name](some, breadth)
                        spent = {
                            "us": time.perf_counter() - start,
                            "cpu_us": time.process_time() - cpu,
                        }
                        for clock, value in spent.items():
                            times.setdefault((name, breadth, f"{kind}_{clock}"), []).append(
                                1e6 * value / len(some)
                            )
    for (name, breadth, kind), measured in times.items():
        sweep[name][SWEEP.index(breadth)][kind] = round(float(np.median(measured)), 1)
    hnsw.BREADTH = usual
    return {
        "sweep": sweep,
        "faiss_over_fixstar_at_equal_recall": at_equal_recall(sweep),
        "split_us": {
            "single": split(gallery, batches, 1),
            "batch": split(gallery, batches, len(batches[0])),
        },
    }


def split(gallery: SqliteGallery, batches: list[Array], size: int) -> Figures:
    """Microseconds per query of each step of an approximate search, in so many queries at a time: medians of calls.

    Steps of several threads are added up, so they may be more than "all", the time of a call.
    """
    index = gallery._matrices.exact.indexes["v1"]
    assert isinstance(index, hnsw.HnswIndex)
    spent: dict[str, list[float]] = {}
    steps: dict[str, tuple[Any, str]] = {
        "look for writes": (gallery, "_refresh"),
        "codes of queries": (hnsw.Codes, "of_one_query" if size == 1 else "of_queries"),
        "exact scores": (matrix._Target, "scores_of_few" if size == 1 else "scores"),
        "ids and payload texts": (matrix.Rows, "labels"),
        "payloads and hits": (matrix, "_hits"),
    }

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*given, **options)
            finally:
                spent[name][-1] += 1e6 * (time.perf_counter() - start) / size

        return run

    graph = SimpleNamespace(search=timed("graph search", index.graph.search))
    names = ("graph search", *steps, "all")
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(index, "graph", graph))
        for name, (owner, attribute) in steps.items():
            call = timed(name, getattr(owner, attribute))
            stack.enter_context(mock.patch.object(owner, attribute, call))
        for batch in batches:
            for first in range(0, len(batch), size):
                for name in names:
                    spent.setdefault(name, []).append(0.0)
                some = batch[first : first + size]
                timed("all", gallery.search)("v1", some, k=K, exact=False)
    return {name: round(float(np.median(spent[name])), 1) for name in names}


def at_equal_recall(sweep: dict[str, list[Figures]]) -> Figures:
    """The bare engine's time, wall clock and CPU, as a multiple of fixstar's; interpolated between breadths.

    >>> own = [{"recall": 0.90, "single_us": 50}, {"recall": 1.0, "single_us": 100}]
    >>> bare = [{"recall": 0.94, "single_us": 60}, {"recall": 0.97, "single_us": 75}]
    >>> at_equal_recall({"fixstar": own, "faiss_hnsw": bare})
    {'0.95': {'single_us': 0.87}, '0.97': {'single_us': 0.88}}
    """
    found: Figures = {}
    for wanted in RECALLS:
        if all(points[0]["recall"] <= wanted <= points[-1]["recall"] for points in sweep.values()):
            found[str(wanted)] = {}
            for kind in sweep["fixstar"][0].keys() - {"breadth", "recall"}:
                own, bare = (
                    np.interp(
                        wanted, [one["recall"] for one in points], [one[kind] for one in points]
                    )
                    for points in (sweep["fixstar"], sweep["faiss_hnsw"])
                )
                found[str(wanted)][kind] = round(float(bare / own), 2)
    return found


def recall(true: NDArray[Any], found: list[Any]) -> float:
    """The share of the true nearest [N, K] among those that were found, batch by batch."""
    pairs = zip(true.tolist(), np.concatenate(found).tolist(), strict=True)
    return round(float(np.mean([len(set(best) & set(row)) / K for best, row in pairs])), 4)


def search_times(
    gallery: SqliteGallery, queries: Array, count: int, exact: bool = True
) -> list[float]:
    """Milliseconds of single searches."""
    times = []
    for i in range(count):
        start = time.perf_counter()
        gallery.search("v1", queries[i % len(queries)][None], k=K, exact=exact)
        times.append(1000 * (time.perf_counter() - start))
    return times


def summary(times: list[float]) -> Figures:
    return {
        "median": round(float(np.median(times)), 2),
        "longest": round(max(times), 1),
        "searches": len(times),
    }


def while_building(gallery: SqliteGallery, queries: Array) -> Figures:
    """Search from the moment when the building begins, PAUSE between two; the index takes over when it is there."""
    start = time.perf_counter()
    times = []
    while gallery._matrices.exact.indexes.get("v1") is None:
        times += search_times(gallery, queries, 1, exact=False)
        time.sleep(PAUSE)
    seconds = round(time.perf_counter() - start, 1)
    while (
        gallery._keeper._thread is not None and gallery._keeper._thread.is_alive()
    ):  # it is being saved
        times += search_times(gallery, queries, 5, exact=False)
    (state,) = gallery.indexes()
    return {
        "build_seconds": seconds,
        "search_while_building_ms": summary(times),
        "stated_recall": state.recall,
    }


def saved_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.index/*.hnsw"))


def bare_hnsw(vectors: Array, file: Path) -> tuple[Callable[[Array, int], Any], float]:
    """The bare engine's search, and the seconds it took to build; kept in a file."""
    faiss = importlib.import_module("faiss")
    start = time.perf_counter()
    if file.exists():
        index = faiss.read_index(str(file))
    else:
        index = faiss.IndexHNSWFlat(vectors.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = BREADTH_BUILDING
        index.add(vectors)
    seconds = round(time.perf_counter() - start, 1)
    faiss.write_index(index, str(file))

    def search(queries: Array, breadth: int) -> Any:
        index.hnsw.efSearch = breadth
        return index.search(queries, K)[1]

    return search, seconds


def filtered(
    gallery: SqliteGallery, queries: Array, shops: int, options: argparse.Namespace
) -> Figures:
    """With a filter that leaves so many of 20 shops."""
    where = {"shop": {"lt": shops}}
    gallery.search("v1", queries[:1], where=where)
    both: dict[str, Callable[[Array], Any]] = {
        "approximate": lambda batch: gallery.search("v1", batch, k=K, where=where, exact=False),
        "exact": lambda batch: gallery.search("v1", batch, k=K, where=where),
    }
    singles = [queries[i : i + 1] for i in range(options.singles)]
    return rates(both, singles, options.rounds) | {
        "recall": round(measured_recall(gallery, "v1", queries, k=K, where=where), 4)
    }


def waiting(
    gallery: SqliteGallery, query: Array, rows: Array, seconds: float = 4.0, exact: bool = True
) -> Figures:
    """How long single searches take while another thread replaces the same rows all the time.

    ``longest_wait_ms`` is the part before a search begins, in which it takes in what was written.
    """
    stop, writes, times, waits = threading.Event(), 0, [], [0.0]
    refresh, searcher = gallery._refresh, threading.get_ident()

    def timed_refresh() -> None:
        begun = time.perf_counter()
        refresh()
        if threading.get_ident() == searcher:
            waits.append(1000 * (time.perf_counter() - begun))

    gallery._refresh = timed_refresh  # type: ignore[method-assign]

    def write() -> None:
        nonlocal writes
        while not stop.is_set():
            gallery.upsert("v1", [f"new-{i}" for i in range(len(rows))], rows)
            writes += len(rows)

    writer = threading.Thread(target=write)
    writer.start()
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        gallery.search("v1", query, exact=exact)
        times.append(1000 * (time.perf_counter() - start))
    stop.set()
    writer.join()
    gallery._refresh = refresh  # type: ignore[method-assign]
    median = float(np.median(times))
    longest = max(times)
    return {
        "writes_per_second": round(writes / seconds),
        "median_ms": round(median, 1),
        "longest_ms": round(longest, 1),
        "longest_wait_ms": round(max(waits), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vectors", type=int, default=200_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--singles", type=int, default=20, help="single queries a round")
    parser.add_argument("--batch", type=int, default=128, help="queries of a batch")
    parser.add_argument("--insert", type=int, default=2000, help="vectors of one upsert")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--approximate", type=int, metavar="COUNT", help="measure approximate search only"
    )
    parser.add_argument(
        "--translated", type=int, metavar="COUNT", help="measure questions with a map only"
    )
    parser.add_argument(
        "--chain", type=int, default=1, metavar="COUNT", help="versions that share these vectors"
    )
    parser.add_argument("--store", choices=STORES, default="sqlite", help="of questions with a map")
    parser.add_argument("--mapped", action="store_true", help="vectors in files in place of memory")
    parser.add_argument(
        "--exact-only", action="store_true", help="no index: it takes long to build"
    )
    parser.add_argument(
        "--folder", type=Path, help="keep gallery and indexes there; if they are, only compare them"
    )
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument(
        "--threads", type=int, help="of a single exact query; one more than cores if not given"
    )
    options = parser.parse_args()
    if options.threads:
        ranking.THREADS = options.threads
    if options.approximate:
        wanted = approximate
    elif options.translated:
        wanted = translated
    else:
        wanted = measure
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        report = {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, NumPy {np.__version__}",
            "cores": os.cpu_count(),
            "load_average_before": round(os.getloadavg()[0], 1),
            "vectors": [
                options.approximate or options.translated or options.vectors,
                options.width,
            ],
            "rounds": options.rounds,
            **wanted(options, folder),
        }
    report["peak_GiB"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    for name, value in report.items():
        print(f"{name:<22}{value}")
    if options.out:
        replace_json(options.out, report)


if __name__ == "__main__":
    main()
