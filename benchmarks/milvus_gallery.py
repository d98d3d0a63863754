"""A gallery that Milvus searches: inserting, opening, searching, a restart of the server, and the server's memory.

Clustered unit vectors with a payload each, top 10. The items are in an SQLite file. Vectors are inserted until there
are as many as asked for, or the time for it is over; the figures say how many there were. Searches stand beside a
writer too, which replaces the same vectors all the time. The server is that of the wheel ``milvus`` (x86-64), or one
that runs already, which is not restarted and whose memory is not known.

    python benchmarks/milvus_gallery.py --out milvus_flat.json       as many of 1,000,000 x 384 as 150 seconds take
    python benchmarks/milvus_gallery.py --width 64 --seconds 900 --index HNSW --out milvus_hnsw.json
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from milvus_server import OwnServer

from fixstar.durable import replace_json
from fixstar.gallery import Gallery, open_gallery
from gallery import Array, make_vectors

Figures = dict[str, Any]
K = 10
BATCH = 64
SINGLES = 20
ROUNDS = 5
INSERTED = 5_000  # in one call
MIB = 1 << 20
SETTLED = 11.0  # seconds after which a process that did not write no longer waits for the server's time ticks
WRITING = 10.0  # seconds of searches beside a writer
REPLACED = 200  # vectors of one of its writes


def memory_of(process: int) -> float:
    """MiB that a process holds."""
    text = Path(f"/proc/{process}/status").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def inserted(gallery: Gallery, vectors: Array, seconds: float) -> Figures:
    """Store vectors for at most so many seconds."""
    gallery.create_version("v1", vectors.shape[1])
    start = time.perf_counter()
    count = 0
    while count < len(vectors) and time.perf_counter() - start < seconds:
        part = vectors[count : count + INSERTED]
        ids = [f"item {count + i}" for i in range(len(part))]
        gallery.upsert("v1", ids, part, [{"shop": (count + i) % 10} for i in range(len(part))])
        count += len(part)
    elapsed = time.perf_counter() - start
    return {"items": count, "seconds": elapsed, "per_second": count / elapsed}


def median_ms(call: Callable[[int], object], rounds: int) -> float:
    """Milliseconds of a call with numbers from 0, which are not counted the first time."""
    taken = []
    call(0)
    for number in range(rounds):
        start = time.perf_counter()
        call(number)
        taken.append(1000 * (time.perf_counter() - start))
    return float(np.median(taken))


def timed_searches(gallery: Gallery, queries: Array, exact: bool) -> Figures:
    """Milliseconds of one query, of one with a filter for a tenth, and of each in a batch."""

    def one(number: int) -> object:
        return gallery.search("v1", queries[number : number + 1], k=K, exact=exact)

    def filtered(number: int) -> object:
        return gallery.search(
            "v1", queries[number : number + 1], k=K, exact=exact, where={"shop": 3}
        )

    def batch(number: int) -> object:
        return gallery.search(
            "v1", queries[number * BATCH : (number + 1) * BATCH], k=K, exact=exact
        )

    return {
        "single_ms": median_ms(one, SINGLES),
        "filtered_ms": median_ms(filtered, SINGLES),
        "batch_ms_per_query": median_ms(batch, ROUNDS) / BATCH,
    }


def beside_a_writer(gallery: Gallery, vectors: Array, queries: Array, exact: bool) -> Figures:
    """Milliseconds of single searches while a thread replaces the same vectors, and how many it replaces."""
    stop = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        ids = [f"item {i}" for i in range(REPLACED)]
        payloads = [{"shop": i % 10} for i in range(REPLACED)]
        while not stop.is_set():
            gallery.upsert("v1", ids, vectors[:REPLACED], payloads)
            written += REPLACED

    writer = threading.Thread(target=write)
    taken = []
    writer.start()
    start = time.perf_counter()
    while time.perf_counter() < start + WRITING:
        begun = time.perf_counter()
        gallery.search("v1", queries[:1], k=K, exact=exact)
        taken.append(1000 * (time.perf_counter() - begun))
    stop.set()
    writer.join()
    return {
        "median_ms": float(np.median(taken)),
        "longest_ms": max(taken),
        "replaced_per_second": written / (time.perf_counter() - start),
    }


def recall(gallery: Gallery, vectors: Array, queries: Array, exact: bool) -> float:
    """The share of the true nearest, by a plain product, that are found."""
    scores = queries @ vectors.T
    true = np.argpartition(-scores, K, axis=1)[:, :K]
    hits = gallery.search("v1", queries, k=K, exact=exact)
    found = [{int(hit.id.split()[1]) for hit in one} for one in hits]
    return sum(len(set(row.tolist()) & one) for row, one in zip(true, found, strict=True)) / (
        K * len(queries)
    )


def main() -> None:
    """Measure one kind of index."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--index", choices=["FLAT", "HNSW"], default="FLAT")
    parser.add_argument("--seconds", type=float, default=150, help="for inserting")
    parser.add_argument("--server", help="host:port of a server that runs already")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    figures: Figures = vars(options) | {"out": None, "cores": len(os.sched_getaffinity(0))}
    own = None if options.server else OwnServer()
    with tempfile.TemporaryDirectory() as folder:
        place = options.server if own is None else own.place
        items = quote(f"{folder}/gallery.db", safe="")
        url = f"milvus://{place}?gallery=million&index={options.index}&timeout=120&items={items}"
        try:
            measure(url, options, figures, own)
        finally:
            if own is not None:
                own.remove()


def measure(url: str, options: argparse.Namespace, figures: Figures, own: OwnServer | None) -> None:
    """Fill the figures; each is printed, and stored, as soon as it is known."""

    def note(name: str, value: Any) -> None:
        figures[name] = value
        print(name, value, flush=True)
        if options.out:
            replace_json(options.out, figures)

    vectors = make_vectors(options.items, options.width, seed=1)
    queries = make_vectors(BATCH * (ROUNDS + 1), options.width, seed=2)
    exact = options.index == "FLAT"
    if own is not None:
        note("server_empty_mib", memory_of(own.process))
    with open_gallery(url) as gallery:
        note("inserting", inserted(gallery, vectors, options.seconds))
        vectors = vectors[: figures["inserting"]["items"]]
        start = time.perf_counter()
        gallery.build_index()
        note("sealing_s", time.perf_counter() - start)
        note("search", timed_searches(gallery, queries, exact))
        note("recall", recall(gallery, vectors, queries[:BATCH], exact))
    if own is not None:
        note("server_mib", memory_of(own.process))
    start = time.perf_counter()
    with open_gallery(url) as gallery:
        note("opening_s", time.perf_counter() - start)
        gallery.search("v1", queries[:1], k=K, exact=exact)
        note("opening_and_first_search_s", time.perf_counter() - start)
        note("search_again", timed_searches(gallery, queries, exact))
        time.sleep(SETTLED)
        note("search_settled", timed_searches(gallery, queries, exact))
        note("beside_a_writer", beside_a_writer(gallery, vectors, queries, exact))
    if own is not None:
        own.kill()
        start = time.perf_counter()
        own.start()
        note("server_starts_again_s", time.perf_counter() - start)
        with open_gallery(url) as gallery:
            start = time.perf_counter()
            gallery.search("v1", queries[:1], k=K, exact=exact)
            note("first_search_after_restart_s", time.perf_counter() - start)
            gallery.build_index()
            note("all_sent_after_restart_s", time.perf_counter() - start)
    note("client_most_mib", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB)


if __name__ == "__main__":
    main()
