"""How cost grows with the gallery: filling, opening, searching, deploying, backfilling, verifying, copying.

Clustered unit vectors with a payload of one number. A gallery of 64-wide vectors belongs to a workspace with two
untrained versions: deployments, rollbacks and snapshots are measured there. A third version has a space of its own and
a translation; deploying it stands beside them. "translated" asks with a residual map of 512 hidden units. FAISS (flat,
HNSW with our links, IVF-PQ) gets the same vectors and queries, without ids, payloads or versions; bare pgvector is one
table with an exact scan. With Milvus the items are in SQLite, and the server is that of the wheel ``milvus`` (x86-64);
it has one index per gallery, so "index" sends the same items again, to a second one. "open" waits for the server's time
ticks, as a process does in its first ten seconds, and "exact" begins after them.

    python benchmarks/growth.py --out benchmarks/results/growth_cpu.json
    python benchmarks/growth.py --sizes 100000x64,10000000x64 --steps fill,open,exact,faiss_flat
    python benchmarks/growth.py --backend postgres --sizes 10000x64,100000x64
    python benchmarks/growth.py --backend milvus --sizes 100000x64,1000000x64
    python benchmarks/growth.py --out FILE --folder FOLDER --again exact,approximate,faiss_hnsw
    python benchmarks/growth.py --picture docs/pictures/growth.png benchmarks/results/growth*_cpu.json

What is in --out already is kept, step by step, so a run that was stopped resumes. With --folder, galleries and indexes
are kept there, and --again measures steps once more without filling and building. "mapped" opens a gallery with its
vectors in files instead of memory. Times are medians. PostgreSQL is the server of the tests, with statistics (ANALYZE).
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

import numpy as np
import torch
from numpy.typing import NDArray

from fixstar.durable import replace_json
from fixstar.gallery import (
    Gallery,
    PostgresGallery,
    Question,
    SqliteGallery,
    matrix,
    measured_recall,
    open_gallery,
    postgres,
    verify_gallery,
)
from fixstar.gallery.hnsw import BREADTH_BUILDING, LINKS
from fixstar.gallery.opening import MAP_VECTORS
from fixstar.geometry import unit
from fixstar.models import Encoder
from fixstar.translation import Translation
from fixstar.workspace import Workspace
from fixstar.workspace.items import ensure_version
from fixstar.workspace.snapshot import take_snapshot
from fixstar.workspace.translations import OWN_SPACE
from gallery import (
    BREADTHS,
    make_vectors,
    recall,
    residual_map,
    seconds_to_code,
    still_mapping,
    vector_blocks,
)

Array = NDArray[np.float32]
Row = dict[str, Any]
K = 10
VECTORS = 2  # the seed of what is stored
BATCH = 64
SHOPS = 100
MOVED = 10_000
ROUNDS = 20
PATIENCE = 60.0  # seconds for the rounds of one figure
SETTLED = (
    11.0  # seconds after which a process that did not write no longer waits for Milvus's time ticks
)
WORKSPACE_WIDTH = 64  # of the smallest backbone
LINKED = (
    1_200  # bytes that pgvector needs for a vector of an index that it builds, beside the vector
)
PERCENT = (1, 2, 4, 8, 16, 50)
EF_SEARCH = (100, 200, 400, 800)  # of searches by the index of PostgreSQL
FILTERS: dict[str, dict[str, Any]] = {
    "filter_1": {"shop": 7},
    "filter_50": {"shop": {"lt": SHOPS // 2}},
}


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def milliseconds(action: Callable[[int], object], rounds: int = ROUNDS) -> float:
    """The median of some calls, each with its number; of fewer if they take more than PATIENCE together."""
    taken: list[float] = []
    while len(taken) < rounds and sum(taken) < PATIENCE:
        taken.append(seconds(partial(action, len(taken))))
    return round(1e3 * statistics.median(taken), 3)


def held_by(process: int | str) -> int:
    """Megabytes of memory that a process alone fills, without what the kernel caches of files."""
    status = Path(f"/proc/{process}/status").read_text()
    fields = dict(line.split(":") for line in status.splitlines())
    return round(int(fields["RssAnon"].split()[0]) / 1e3)


def resident() -> int:
    """The same of this process."""
    return held_by("self")


def support(module: str) -> Any:
    """A module that tests share, with a server."""
    folder = str(Path(__file__).parents[1] / "tests" / "support")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(module)


def create_workspace(path: Path, gallery: str | None = None) -> Workspace:
    """Two untrained versions that share a space, and a third one with a space and a translation of its own."""
    space = Workspace.create(path, gallery, device="cpu")
    torch.manual_seed(0)
    encoder = Encoder.create("tiny", classes=["a", "b"], capacity=1000)
    for number, parent in ((1, None), (2, "v1"), (3, "v2")):
        encoder.about = {"version": f"v{number}", "parent": parent}
        if number == 3:
            encoder.about[OWN_SPACE] = True
        encoder.save(path / "versions" / f"v{number}")
        ensure_version(space.gallery, f"v{number}", encoder)
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
    forward = residual_map(WORKSPACE_WIDTH)
    backward = residual_map(WORKSPACE_WIDTH, seed=5)
    way = Translation(
        "v1", "v3", forward=forward, backward=backward, one=0.6, two=0.6, about={"fit": "benchmark"}
    )
    space.translations.keep(way)
    return space


def searched(search: Callable[..., object], queries: Array) -> Row:
    """Milliseconds of single queries, and queries per second of a batch."""
    search(queries[:1])
    return {
        "single_ms": milliseconds(lambda n: search(queries[n][None])),
        "batch_qps": float(
            f"{1e3 * BATCH / milliseconds(lambda _: search(queries[:BATCH]), 3):.4g}"
        ),
    }


def gallery_searched(gallery: Gallery, queries: Array, exact: bool) -> Row:
    """The same with and without filters."""
    row = searched(lambda some: gallery.search("v1", some, k=K, exact=exact), queries)
    for name, where in FILTERS.items():
        found = searched(
            lambda some, where=where: gallery.search("v1", some, k=K, where=where, exact=exact),
            queries,
        )
        row |= {f"{name}_{figure}": value for figure, value in found.items()}
    return row


class Size:
    """One gallery and what is measured with it: every step is a method that returns its figures."""

    def __init__(self, backend: str, count: int, width: int, folder: Path) -> None:
        self.backend = backend
        self.count = count
        self.width = width
        self.folder = folder
        self.has_workspace = width == WORKSPACE_WIDTH
        in_workspace = self.has_workspace and backend == "sqlite"
        self.file = folder / ("shop/gallery.db" if in_workspace else "gallery.db")
        self._open = ExitStack()

    @cached_property
    def vectors(self) -> Array:
        """[count, width], for FAISS; a gallery is filled without holding them."""
        return make_vectors(self.count, self.width, seed=VECTORS)

    @cached_property
    def queries(self) -> Array:
        """[BATCH, width], of the same centres."""
        return make_vectors(BATCH, self.width, seed=3)

    @cached_property
    def url(self) -> str:
        """Of the gallery: a new one if it is on a server."""
        if self.backend == "postgres":
            room = math.ceil(self.count * (4 * self.width + LINKED) / 1e9)  # as the docs advise
            given = f"&options=-c%20maintenance_work_mem%3D{room}GB" if room > 1 else ""
            return str(support("postgres_server").fresh_url()) + given
        if self.backend == "milvus":
            return self._milvus_url("FLAT")
        return str(self.file)

    @cached_property
    def milvus(self) -> Any:
        """A server that this process starts, and ends."""
        return support("milvus_server").OwnServer()

    def _milvus_url(self, index: str) -> str:
        items = quote(str(self.file), safe="")
        name = f"growth_{index.lower()}"
        return (
            f"milvus://{self.milvus.place}?gallery={name}&index={index}&timeout=300&items={items}"
        )

    def _opened(self, url: str) -> Gallery:
        """A gallery that ``close`` closes."""
        if self.backend == "sqlite":
            gallery: Gallery = SqliteGallery(url, index_above=1 << 60)
        else:
            gallery = open_gallery(url)
        self._open.callback(gallery.close)
        return gallery

    @cached_property
    def gallery(self) -> Gallery:
        """Opened, and searched once."""
        gallery = self._opened(self.url)
        gallery.search("v1", self.queries[:1], k=K)
        if self.backend == "milvus":
            time.sleep(SETTLED)
        return gallery

    @cached_property
    def indexed(self) -> Gallery:
        """The gallery with the index: of Milvus another one over the same items."""
        if self.backend != "milvus":
            return self.gallery
        return self._opened(self._milvus_url("HNSW"))

    def close(self) -> None:
        """Close the gallery; the next step opens it again."""
        self._open.close()
        self.__dict__.pop("gallery", None)
        self.__dict__.pop("indexed", None)

    def stored_on_server(self) -> int:
        """Bytes per vector of a gallery in PostgreSQL, with its indexes."""
        with open_gallery(self.url) as gallery:
            assert isinstance(gallery, PostgresGallery)
            schema = gallery.address.schema
        size = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relnamespace = "
        ((found,),) = (
            support("postgres_server").shared_server().execute(f"{size}'{schema}'::regnamespace")
        )
        return int(found) // self.count

    def server_memory(self) -> Row:
        """Megabytes that a server of Milvus holds."""
        if self.backend != "milvus":
            return {}
        return {"server_mb": held_by(self.milvus.process)}

    def fill(self) -> Row:
        """Vectors stored per second, and then moved to v2 per second, as a backfill does."""
        if self.has_workspace:
            address = None if self.backend == "sqlite" else self.url
            gallery = create_workspace(self.folder / "shop", address).gallery
        else:
            gallery = open_gallery(self.url)
            for name in ("v1", "v2"):
                gallery.create_version(name, self.width)

        def insert() -> None:
            first = 0
            for block in vector_blocks(self.count, self.width, seed=VECTORS):
                numbers = range(first, first + len(block))
                ids = [f"item-{i:08}" for i in numbers]
                payloads = [{"shop": i % SHOPS} for i in numbers]
                gallery.upsert("v1", ids, block, payloads)
                first += len(block)
            gallery.flush()

        filled = seconds(insert)
        items = list(gallery.get([f"item-{i:08}" for i in range(min(MOVED, self.count))]).values())
        some = make_vectors(len(items), self.width, seed=VECTORS)
        moved = seconds(lambda: gallery.replace_vectors("v2", items, some))
        gallery.upsert("v1", [item.id for item in items], some, [item.payload for item in items])
        gallery.close()
        if self.backend == "postgres":  # autovacuum does it within a minute or so
            support("postgres_server").shared_server().execute("ANALYZE")
        row = {
            "insert_per_second": round(self.count / filled),
            "backfill_per_second": round(len(items) / moved),
        }
        if self.backend == "postgres":
            return row | {"bytes_per_vector": self.stored_on_server()}
        row["bytes_per_vector"] = self.file.stat().st_size // self.count
        return row | self.server_memory()

    def open(self) -> Row:
        """What a new process pays."""
        return self._in_a_process({})

    def mapped(self) -> Row:
        """The same with vectors in files."""
        return self._in_a_process({MAP_VECTORS: str(self.folder)})

    def _in_a_process(self, settings: dict[str, str]) -> Row:
        self.close()
        command = [sys.executable, __file__, "--open", self.url]
        answer = subprocess.run(
            command, check=True, capture_output=True, env={**os.environ, **settings}
        )
        return dict(json.loads(answer.stdout))

    def exact(self) -> Row:
        """Exact search."""
        return gallery_searched(self.gallery, self.queries, exact=True)

    def index(self) -> Row:
        """Building the index; for Milvus after sending all items."""
        row: Row = {}
        if self.backend == "milvus":
            row["sent_seconds"] = round(seconds(self.indexed.flush), 1)
        row["seconds"] = round(seconds(lambda: self.indexed.build_index("v1")), 1)
        if self.backend == "postgres":
            row["bytes_per_vector"] = self.stored_on_server()
        return row | self.server_memory()

    def approximate(self) -> Row:
        """Search with the index."""
        if not self.indexed.indexes():
            return {}
        found = measured_recall(self.indexed, "v1", self.queries, k=K)
        return gallery_searched(self.indexed, self.queries, exact=False) | {
            "recall": round(found, 4)
        }

    def filters(self) -> Row:
        """One query by the percentage that a filter leaves, each way of answering it, and as the store chooses.

        PostgreSQL's ways are to compare what passes, and its index; "equal" leaves 1 %, but the server has an index for
        it. SQLite's are to copy what passes, and to read everything: first the vectors, then their codes.
        """
        if self.backend == "sqlite":
            self.close()  # and with it codes that were made, or are being made
            with patch.object(matrix, "CODED_AFTER", 1 << 60):
                row = self._ways_to_filter("")
            return row | (self._ways_to_filter("coded_") if self._is_coded() else {})
        row = {}
        filters: dict[str, dict[str, Any]] = {"equal": {"shop": 7}}
        filters |= {str(percent): {"shop": {"lt": percent}} for percent in PERCENT}
        for name, where in filters.items():
            ask = self._filtered(where)
            for way, few in (("compared", True), ("index", False)):
                with patch.object(postgres, "_leaves_few", lambda *_, few=few, **__: few):
                    row[f"{name}_{way}_ms"] = milliseconds(ask)
            row[f"{name}_chosen_ms"] = milliseconds(ask)
        return row

    def _filtered(self, where: dict[str, Any], exact: bool = False) -> Callable[[int], object]:
        """Asks the query of a number."""
        return lambda n: self.gallery.search(
            "v1", self.queries[n][None], k=K, where=where, exact=exact
        )

    def _ways_to_filter(self, start: str) -> Row:
        """In SQLite, one query and 64 at once; the names of the figures begin with ``start``."""
        row: Row = {}
        for percent in PERCENT:
            where = {"shop": {"lt": percent}}
            ask = self._filtered(where, exact=True)
            ask(0)  # the payloads are tested once
            together = lambda _, where=where: self.gallery.search(  # noqa: E731
                "v1", self.queries, k=K, where=where
            )
            for way, rows in (("copied", 1.0), ("read", math.inf)):
                with patch.object(matrix, "rows_per_copy", lambda *_, rows=rows: rows):
                    row[f"{start}{percent}_{way}_ms"] = milliseconds(ask)
                    if not start:
                        row[f"batch_{percent}_{way}_ms"] = milliseconds(together, 3)
            row[f"{start}{percent}_chosen_ms"] = milliseconds(ask)
            if not start:
                row[f"batch_{percent}_chosen_ms"] = milliseconds(together, 3)
        return row

    def _is_coded(self) -> bool:
        """Have a gallery in SQLite coded; False if it is too small for codes, or FAISS is missing."""
        assert isinstance(self.gallery, SqliteGallery)
        seconds_to_code(self.gallery, self.queries[:1], "v1")
        parts = self.gallery._matrices.exact.rows["v1"].parts
        return any(part.segment.codes for part in parts)

    def breadths(self) -> Row:
        """One query by PostgreSQL's index and its recall, for each hnsw.ef_search that an address may ask for."""
        self.close()
        row: Row = {}
        for breadth in EF_SEARCH:
            url = self.url + ("%20" if "&options=" in self.url else "&options=")
            with open_gallery(f"{url}-c%20hnsw.ef_search%3D{breadth}") as gallery:
                ask = lambda n, it=gallery: it.search(  # noqa: E731
                    "v1", self.queries[n][None], k=K, exact=False
                )
                row[f"{breadth}_ms"] = milliseconds(ask)
                found = measured_recall(gallery, "v1", self.queries, k=K)
                row[f"{breadth}_recall"] = round(found, 4)
        return row

    def translated(self) -> Row:
        """Questions with a map: the first exact one, how long mapping takes, and searches from then on."""
        gallery = self.gallery
        forward = residual_map(self.width)
        new = unit(forward(self.queries) + 0.3 * make_vectors(BATCH, self.width, seed=5)).astype(
            np.float32
        )
        both = np.hstack([self.queries, new])

        def questions(some: Array) -> list[Question]:
            return [
                Question(
                    "v1",
                    some[:, : self.width],
                    some[:, self.width :],
                    forward,
                    "growth",
                    weight=0.6,
                )
            ]

        before = resident()
        start = time.perf_counter()
        gallery.ask(questions(both[:1]), k=K)
        row: Row = {"first_ms": round(1e3 * (time.perf_counter() - start), 1)}
        while still_mapping(gallery, questions(both[:1])):
            time.sleep(0.05)
        row["mapped_seconds"] = round(time.perf_counter() - start, 2)
        row["memory_mb"] = resident() - before
        row |= searched(lambda some: gallery.ask(questions(some), k=K), both)
        if gallery.indexes():
            quick = searched(lambda some: gallery.ask(questions(some), k=K, exact=False), both)
            row |= {f"approximate_{figure}": value for figure, value in quick.items()}
        return row

    def verify(self) -> Row:
        """Reading and checking everything."""

        def check() -> None:
            if problems := verify_gallery(self.gallery):
                raise RuntimeError(problems[0])

        return {"seconds": round(seconds(check), 1)}

    def deploy(self, rounds: int = 5) -> Row:
        """Deployments and rollbacks, of a version that shares the space of what is stored and of one that does not."""
        self.close()
        row: Row = {}
        image = np.zeros((32, 32, 3), np.uint8)
        with Workspace(self.folder / "shop", device="cpu") as space:
            space.search([image])
            for version, prefix in (("v2", ""), ("v3", "translated_")):
                space.deploy(version, force="benchmark")  # reads the model from disk
                row[f"{prefix}first_search_ms"] = round(
                    1e3 * seconds(lambda: space.search([image])), 1
                )
                space.rollback()
                there = []
                back = []
                for _ in range(rounds):
                    deploy = partial(space.deploy, version, force="benchmark")
                    there.append(seconds(deploy))
                    back.append(seconds(space.rollback))
                row[f"{prefix}ms"] = round(1e3 * statistics.median(there), 2)
                row[f"{prefix}rollback_ms"] = round(1e3 * statistics.median(back), 2)
        return row

    def snapshot(self) -> Row:
        """A copy of the workspace into a folder."""
        self.close()
        with tempfile.TemporaryDirectory(dir=self.folder) as copy:
            return {
                "seconds": round(
                    seconds(lambda: take_snapshot(self.folder / "shop", Path(copy) / "copy")), 1
                )
            }

    def pgvector(self) -> Row:
        """The gallery's own table of vectors, asked for the nearest rows and nothing else, without an index."""
        psycopg = importlib.import_module("psycopg")
        assert isinstance(self.gallery, PostgresGallery)
        with closing(psycopg.connect(self.url.split("&gallery=")[0])) as db:
            db.execute(f"set search_path to {self.gallery.address.schema}, public")
            db.execute("set enable_indexscan = off")
            text = "select number from vectors_1 order by vector <#> %s::vector limit 10"
            ask = lambda n: db.execute(text, (json.dumps(self.queries[n].tolist()),)).fetchall()  # noqa: E731
            return {"single_ms": milliseconds(ask)}

    @cached_property
    def flat(self) -> Any:
        """FAISS's exact index."""
        flat = importlib.import_module("faiss").IndexFlatIP(self.width)
        flat.add(self.vectors)
        return flat

    def faiss_flat(self) -> Row:
        """Exact search."""
        self.close()
        return searched(lambda some: self.flat.search(some, K), self.queries)

    def faiss_hnsw(self) -> Row:
        """The graph of our index, over whole vectors."""
        faiss = importlib.import_module("faiss")
        engine = faiss.IndexHNSWFlat(self.width, LINKS, faiss.METRIC_INNER_PRODUCT)
        engine.hnsw.efConstruction = BREADTH_BUILDING
        return self._engine(
            "hnsw", engine, lambda made, breadth: setattr(made.hnsw, "efSearch", breadth)
        )

    def faiss_ivfpq(self) -> Row:
        """A quarter of a byte per component, without re-scoring."""
        faiss = importlib.import_module("faiss")
        lists = int(4 * self.count**0.5)
        quantiser = faiss.IndexFlatIP(self.width)
        engine = faiss.IndexIVFPQ(
            quantiser, self.width, lists, self.width // 4, 8, faiss.METRIC_INNER_PRODUCT
        )
        return self._engine("ivfpq", engine, lambda made, breadth: setattr(made, "nprobe", breadth))

    def _engine(self, name: str, engine: Any, set_breadth: Callable[[Any, int], None]) -> Row:
        """At the smallest breadth that finds nine of ten, if one does."""
        faiss = importlib.import_module("faiss")
        file = self.folder / f"faiss.{name}"
        row: Row = {}
        if not file.exists():

            def build() -> None:
                if not engine.is_trained:
                    engine.train(self.vectors[:: max(1, self.count // (40 * engine.nlist))])
                engine.add(self.vectors)

            row["build_seconds"] = round(seconds(build), 1)
            faiss.write_index(engine, str(file))
        made, true = faiss.read_index(str(file)), self.flat.search(self.queries, K)[1]
        for breadth in BREADTHS:
            set_breadth(made, breadth)
            row |= {"breadth": breadth, "recall": recall(true, [made.search(self.queries, K)[1]])}
            if row["recall"] >= 0.9:
                break
        return row | searched(lambda some: made.search(some, K), self.queries)


def steps_of(size: Size) -> list[str]:
    """In the order in which they are measured."""
    in_workspace = ["deploy"] if size.has_workspace else []
    if size.backend == "postgres":
        searches = ["exact", "pgvector", "index", "approximate", "breadths", "filters"]
        return ["fill", *searches, "translated", *in_workspace, "verify"]
    if size.backend == "milvus":
        return ["fill", "open", "exact", "translated", *in_workspace, "index", "approximate"]
    engines = ["faiss_flat", "faiss_ivfpq", "faiss_hnsw"]
    searches = [
        "open",
        "exact",
        "filters",
        "index",
        "approximate",
        "translated",
        "mapped",
        "verify",
    ]
    return ["fill", *searches, *(["deploy", "snapshot"] if size.has_workspace else []), *engines]


def opened(url: str) -> Row:
    """What a process pays that opens a gallery and searches it; with its index if there is a saved one."""
    before = resident()
    start = time.perf_counter()
    used = time.process_time()
    with open_gallery(url) as gallery:
        queries = make_vectors(BATCH, gallery.space("v1").width, seed=3)
        gallery.search("v1", queries[:1], k=K)
        row: Row = {
            "seconds": round(time.perf_counter() - start, 2),
            "memory_mb": resident() - before,
        }
        row["cpu_seconds"] = round(time.process_time() - used, 2)
        row["exact_ms"] = milliseconds(lambda n: gallery.search("v1", queries[n][None], k=K))
        if gallery.indexes():
            gallery.search("v1", queries[:1], k=K, exact=False)
            row["memory_with_index_mb"] = resident() - before
            row["approximate_ms"] = milliseconds(
                lambda n: gallery.search("v1", queries[n][None], k=K, exact=False)
            )
            row["recall"] = round(measured_recall(gallery, "v1", queries, k=K), 4)
        return row


def run(head: Row, folder: Path, steps: list[str], content: Row, out: Path | None) -> Row:
    """Add the figures of these steps to the row of a size, and save after each; runs in a process of its own."""
    row = next((row for row in content["rows"] if head.items() <= row.items()), None)
    if row is None:
        content["rows"].append(row := dict(head))
    size = Size(head["backend"], head["vectors"], head["width"], folder)
    for step in steps:
        row[step] = row.get(step, {}) | getattr(size, step)()
        row[step]["load_after"] = round(os.getloadavg()[0], 1)
        print(json.dumps(head | {step: row[step]}), flush=True)
        if out is not None:
            replace_json(out, content)
    size.close()
    return content


def merged(results: Iterable[list[Row]]) -> list[Row]:
    """One row for each size of a store, with the steps of all results; a later one has the last word."""
    found: dict[tuple[str, int, int], Row] = {}
    for row in (row for rows in results for row in rows):
        found.setdefault((row["backend"], row["vectors"], row["width"]), {}).update(row)
    return list(found.values())


def draw_picture(rows: list[Row], path: Path) -> None:
    """Each cost by the size of a 64-wide gallery, both axes by powers of ten; dotted: growth in step with it."""
    from matplotlib.figure import Figure

    panels = {
        "exact search, ms": ("exact", "single_ms"),
        "exact search, translated, ms": ("translated", "single_ms"),
        "approximate search, ms": ("approximate", "single_ms"),
        "opening, s": ("open", "seconds"),
        "memory, MB": ("open", "memory_mb"),
        "deploy, ms": ("deploy", "ms"),
    }
    engines = {("faiss_flat", "single_ms"): panels["exact search, ms"]}
    engines |= {("pgvector", "single_ms"): panels["exact search, ms"]}
    engines |= {("faiss_hnsw", "single_ms"): panels["approximate search, ms"]}
    figure = Figure(figsize=(11, 6), layout="constrained")
    shown: dict[str, Any] = {}
    for axes, (title, own) in zip(figure.subplots(2, 3).flat, panels.items(), strict=True):
        for step, name in (own, *(engine for engine, panel in engines.items() if panel == own)):
            for backend in dict.fromkeys(row["backend"] for row in rows):
                mine = [
                    row
                    for row in rows
                    if (row["backend"], row["width"]) == (backend, WORKSPACE_WIDTH)
                ]
                points = sorted(
                    (row["vectors"], row[step][name]) for row in mine if name in row.get(step, {})
                )
                if points:
                    sizes, values = zip(*points, strict=True)
                    label = backend if (step, name) == own else step
                    colour = f"C{len(shown)}" if label not in shown else shown[label].get_color()
                    (line,) = axes.loglog(sizes, values, "o-", color=colour)
                    shown.setdefault(label, line)
                    axes.loglog(
                        sizes,
                        [values[0] * size / sizes[0] for size in sizes],
                        ":",
                        color=colour,
                        alpha=0.4,
                    )
        axes.set_title(title)
        axes.grid(alpha=0.3)
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=110)


COSTS: dict[str, Callable[[Row], float]] = {
    "inserting everything": lambda row: row["vectors"] / row["fill"]["insert_per_second"],
    "opening, with the first search": lambda row: row["open"]["seconds"],
    "memory": lambda row: row["open"]["memory_mb"],
    "exact search, one query": lambda row: row["open"]["exact_ms"],
    "exact search, 64 at once": lambda row: 1 / row["exact"]["batch_qps"],
    "FAISS flat, one query": lambda row: row["faiss_flat"]["single_ms"],
    "exact question with a map": lambda row: row["translated"]["single_ms"],
    "mapping everything": lambda row: row["translated"]["mapped_seconds"],
    "deploying a version with a space of its own": lambda row: row["deploy"]["translated_ms"],
}


def pair(row: Row, step: str, *names: str) -> str:
    """Some figures of a step, or a dash for those that were not measured."""
    found = row.get(step, {})
    return "; ".join(shown(found[name]) if name in found else "-" for name in names)


def shown(figure: float) -> str:
    """With as many digits as are worth reading.

    >>> shown(6863), shown(287.88), shown(6.869), shown(0.8922)
    ('6,863', '287.9', '6.87', '0.892')
    """
    if isinstance(figure, int):
        return f"{figure:,}"
    if figure < 1:
        return f"{figure:.3f}"
    if figure < 10:
        return f"{figure:.2f}"
    return f"{figure:.1f}"


SERVED = {
    "inserting; backfill, vectors per second": ("fill", "insert_per_second", "backfill_per_second"),
    "the server's memory, MB": ("fill", "server_mb"),
    "on disk, bytes per vector": ("fill", "bytes_per_vector"),
    "a new process: first search, s; memory, MB": ("open", "seconds", "memory_mb"),
    "one exact query of a new process, ms": ("open", "exact_ms"),
    "one exact query, ms; 64 at once, queries per second": ("exact", "single_ms", "batch_qps"),
    "one exact query, filter that leaves 1 %; 50 %, ms": (
        "exact",
        "filter_1_single_ms",
        "filter_50_single_ms",
    ),
    "bare pgvector, exact scan, ms": ("pgvector", "single_ms"),
    "exact question with a map: the first; others, ms": ("translated", "first_ms", "single_ms"),
    "64 of them at once, questions per second": ("translated", "batch_qps"),
    "deploy a version with a space of its own; roll back, ms": (
        "deploy",
        "translated_ms",
        "translated_rollback_ms",
    ),
    "first search after deploying it, ms": ("deploy", "translated_first_search_ms"),
    "sending everything again, s": ("index", "sent_seconds"),
    "building HNSW, s": ("index", "seconds"),
    "the server's memory with both, MB": ("index", "server_mb"),
    "on disk with HNSW, bytes per vector": ("index", "bytes_per_vector"),
    "one query with HNSW, ms; 64 at once, queries per second": (
        "approximate",
        "single_ms",
        "batch_qps",
    ),
    "one query with HNSW, filter that leaves 1 %; 50 %, ms": (
        "approximate",
        "filter_1_single_ms",
        "filter_50_single_ms",
    ),
    "recall of that": ("approximate", "recall"),
    "question with a map, HNSW, ms; 64 at once, questions per second": (
        "translated",
        "approximate_single_ms",
        "approximate_batch_qps",
    ),
}


def in_order(rows: Iterable[Row]) -> list[Row]:
    """The narrow vectors first, of each width the fewest first."""
    return sorted(rows, key=lambda row: (row["width"], row["vectors"]))


def heading(first: str, rows: list[Row]) -> list[str]:
    """The two lines above a table with one column per size.

    >>> heading("what", [{"vectors": 1000, "width": 64}])
    ['| what | 1,000 x 64 |', '|---|---:|']
    """
    sizes = " | ".join(f"{row['vectors']:,} x {row['width']}" for row in rows)
    start = f"| {first} |" if first else "| |"
    return [f"{start} {sizes} |", "|---|" + "---:|" * len(rows)]


def server_table(rows: list[Row], backend: str) -> str:
    """The table of the docs: what a gallery on a server costs, by size; without lines that nothing was measured for."""
    rows = in_order(row for row in rows if row["backend"] == backend)
    lines = heading("", rows)
    for label, (step, *names) in SERVED.items():
        cells = [pair(row, step, *names) for row in rows]
        if any(set(cell) - set("-; ") for cell in cells):
            lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


MAPPED = {"all mapped, s; memory for that, MB": ("translated", "mapped_seconds", "memory_mb")}


def wide_table(results: Iterable[Row]) -> str:
    """The table of the docs: what a gallery in SQLite costs by size and cores; each result is the content of a file."""
    columns = [
        (row, f"{row['vectors']:,} x {row['width']}, {result['cores']} cores")
        for result in results
        for row in in_order(result["rows"])
        if row["width"] > WORKSPACE_WIDTH
    ]
    lines = [f"| | {' | '.join(name for _, name in columns)} |", "|---|" + "---:|" * len(columns)]
    for label, (step, *names) in (SERVED | MAPPED).items():
        cells = [pair(row, step, *names) for row, _ in columns]
        if any(set(cell) - set("-; ") for cell in cells):
            lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def filters_table(rows: list[Row]) -> str:
    """The table of the docs: one query by what a filter leaves, three ways; of SQLite also those with codes."""
    rows = in_order(row for row in rows if "filters" in row)
    lines = heading("a filter leaves", rows)
    if rows[0]["backend"] == "sqlite":
        names = ("copied", "read", "chosen")
        labels = {str(one): f"{one} %" for one in PERCENT}
        labels |= {f"coded_{one}": f"{one} %, with codes" for one in PERCENT}
        labels |= {f"batch_{one}": f"{one} %, 64 at once" for one in PERCENT}
    else:
        names = ("compared", "index", "chosen")
        labels = {"equal": "1 %, by equality"} | {str(one): f"{one} %" for one in PERCENT}
    for name, label in labels.items():
        ways = [f"{name}_{way}_ms" for way in names]
        cells = " | ".join(pair(row, "filters", *ways) for row in rows)
        lines.append(f"| {label} | {cells} |")
    return "\n".join(lines)


def breadths_table(rows: list[Row]) -> str:
    """The table of the docs: one query by PostgreSQL's index, and its recall, by breadth."""
    rows = in_order(row for row in rows if "breadths" in row)
    lines = heading("`hnsw.ef_search`", rows)
    for breadth in EF_SEARCH:
        cells = [pair(row, "breadths", f"{breadth}_ms", f"{breadth}_recall") for row in rows]
        lines.append(f"| {breadth} | {' | '.join(cells)} |")
    return "\n".join(lines)


def slope(before: tuple[float, float], after: tuple[float, float]) -> float:
    """Between two points (size, cost) on axes by powers of ten: 1 if cost grows in step with the size.

    >>> slope((100, 3.0), (1000, 30.0)), slope((100, 3.0), (1000, 3.0))
    (1.0, 0.0)
    """
    return math.log(after[1] / before[1]) / math.log(after[0] / before[0])


def slopes(*results: list[Row], width: int = WORKSPACE_WIDTH, without: tuple[str, ...] = ()) -> str:
    """The table of the docs: how steeply each cost of an SQLite gallery grows from each size to the next.

    ``without`` names the lines that were not measured.
    """
    by_size = {
        row["vectors"]: row
        for row in merged(results)
        if (row["backend"], row["width"]) == ("sqlite", width)
    }
    sizes = sorted(by_size)
    steps = list(pairwise(sizes))
    head = " | ".join(f"{before:,} to {after:,}" for before, after in steps)
    lines = [f"| slope of | {head} |", "|---|" + "---:|" * len(steps)]
    for label, cost in COSTS.items():
        if label in without:
            continue
        points = [(size, cost(by_size[size])) for size in sizes]
        cells = " | ".join(f"{slope(before, after):.2f}" for before, after in pairwise(points))
        lines.append(f"| {label} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=("sqlite", "postgres", "milvus"), default="sqlite")
    sizes = "100000x64,1000000x64,100000x384,100000x768"
    parser.add_argument("--sizes", default=sizes, help="vectors x width, separated by commas")
    parser.add_argument("--steps", help="measure only these, separated by commas")
    parser.add_argument(
        "--again", default="", help="measure these once more, separated by commas; needs --folder"
    )
    parser.add_argument("--folder", type=Path, help="keep galleries and indexes here")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--picture", type=Path, metavar="PNG", help="only draw what is in RESULTS")
    parser.add_argument("results", type=Path, nargs="*", metavar="RESULTS")
    parser.add_argument("--open", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if bool(options.picture) != bool(options.results):
        parser.error("give --picture together with the files of results")
    if options.picture:
        results = [json.loads(file.read_text())["rows"] for file in options.results]
        draw_picture(merged(results), options.picture)
        return
    if options.open:
        print(json.dumps(opened(options.open)))
        return
    content: Row = (
        json.loads(options.out.read_text())
        if options.out and options.out.exists()
        else {"rows": []}
    )
    content |= {"machine": platform.machine(), "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as scratch:
        for text in filter(None, options.sizes.split(",")):
            count, width = (int(part) for part in text.split("x"))
            head = {"backend": options.backend, "vectors": count, "width": width}
            row: Row = next((row for row in content["rows"] if head.items() <= row.items()), {})
            folder = (options.folder or Path(scratch)) / f"{options.backend}-{text}"
            folder.mkdir(parents=True, exist_ok=True)
            again = options.again.split(",")
            chosen = options.steps.split(",") if options.steps else again if options.again else None
            known = steps_of(Size(options.backend, count, width, folder))
            wanted = [step for step in known if chosen is None or step in chosen]
            wanted = [step for step in wanted if step not in row or step in again]
            with ProcessPoolExecutor(
                1, multiprocessing.get_context("spawn")
            ) as pool:  # ends with its servers
                content = pool.submit(run, head, folder, wanted, content, options.out).result()


if __name__ == "__main__":
    main()
