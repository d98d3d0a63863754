"""How cost grows with the gallery: filling, opening, searching, deploying, backfilling, verifying, copying.

Clustered unit vectors with a payload of one number. A gallery of 64-wide vectors belongs to a workspace with two
untrained versions: deployments, rollbacks and snapshots are measured there. FAISS (flat, HNSW with our links, IVF-PQ)
gets the same vectors and queries, without ids, payloads or versions; bare pgvector is one table with an exact scan.

    python benchmarks/growth.py --out benchmarks/results/growth_cpu.json --picture docs/pictures/growth.png
    python benchmarks/growth.py --sizes 100000x64,10000000x64 --indexed 1000000
    python benchmarks/growth.py --backend postgres --sizes 10000x64,100000x64

Rows that are in --out already are kept. Times are medians; ``--indexed`` is the largest gallery whose index is built.
PostgreSQL is the server of the tests.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fixstar.durable import replace_json
from fixstar.gallery import Gallery, PostgresGallery, SqliteGallery, verify_gallery
from fixstar.gallery.hnsw import BREADTH_BUILDING, LINKS
from fixstar.models import Encoder
from fixstar.workspace import Workspace
from fixstar.workspace.items import ensure_version
from fixstar.workspace.snapshot import take_snapshot
from gallery import BREADTHS, make_vectors, recall

Array = NDArray[np.float32]
Row = dict[str, Any]
K, INSERT, BATCH, SHOPS, MOVED = 10, 10_000, 64, 100, 10_000
WORKSPACE_WIDTH = 64  # of the smallest backbone
FILTERS: dict[str, dict[str, Any]] = {"filter_1": {"shop": 7}, "filter_50": {"shop": {"lt": SHOPS // 2}}}


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def milliseconds(action: Callable[[int], object], rounds: int) -> float:
    """The median of some calls, each with its number."""
    return round(1e3 * statistics.median(seconds(lambda n=n: action(n)) for n in range(rounds)), 3)  # type: ignore[misc]


def resident() -> int:
    """Megabytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 1e6)


def create_workspace(path: Path) -> Workspace:
    """Two untrained versions."""
    space = Workspace.create(path, device="cpu")
    torch.manual_seed(0)
    encoder = Encoder.create("tiny", classes=["a", "b"], capacity=1000)
    for number in (1, 2):
        encoder.about = {"version": f"v{number}", "parent": None if number == 1 else "v1"}
        encoder.save(path / "versions" / f"v{number}")
        ensure_version(space.gallery, f"v{number}", encoder)
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
    return space


def fill(gallery: Gallery, vectors: Array) -> float:
    """Vectors stored per second."""

    def insert() -> None:
        for first in range(0, len(vectors), INSERT):
            rows = vectors[first : first + INSERT]
            numbers = range(first, first + len(rows))
            payloads = [{"shop": i % SHOPS} for i in numbers]
            gallery.upsert("v1", [f"item-{i:08}" for i in numbers], rows, payloads)
        gallery.flush()

    return round(len(vectors) / seconds(insert))


def searched(gallery: Gallery, queries: Array, rounds: int, exact: bool) -> Row:
    """Milliseconds of single queries, with and without filters, and queries per second of a batch."""
    row: Row = {"single_ms": milliseconds(lambda n: gallery.search("v1", queries[n][None], k=K, exact=exact), rounds)}
    for name, where in FILTERS.items():
        gallery.search("v1", queries[:1], k=K, where=where, exact=exact)
        row[f"{name}_ms"] = milliseconds(
            lambda n, where=where: gallery.search("v1", queries[n][None], k=K, where=where, exact=exact),  # type: ignore[misc]
            rounds,
        )
    batch = milliseconds(lambda _: gallery.search("v1", queries[:BATCH], k=K, exact=exact), 3)
    return {**row, "batch_qps": round(1e3 * BATCH / batch, 1)}


def backfilled(gallery: Gallery, vectors: Array) -> float:
    """Items per second that get a vector of v2, as a backfill writes them."""
    items = list(gallery.get([f"item-{i:08}" for i in range(min(MOVED, len(vectors)))]).values())
    moved = seconds(lambda: gallery.replace_vectors("v2", items, vectors[: len(items)]))
    gallery.upsert("v1", [item.id for item in items], vectors[: len(items)], [item.payload for item in items])
    return round(len(items) / moved)


def measure(backend: str, count: int, width: int, rounds: int, indexed: int, folder: Path) -> Row:
    """All figures of one size."""
    vectors, queries = make_vectors(count, width, seed=2), make_vectors(max(BATCH, rounds), width, seed=3)
    row: Row = {"backend": backend, "vectors": count, "width": width}
    space = None
    if backend == "postgres":
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
        url = importlib.import_module("postgres_server").fresh_url()
        gallery: Gallery = PostgresGallery(url)
    elif width == WORKSPACE_WIDTH:
        space = create_workspace(folder / "shop")
        gallery = space.gallery
    else:
        gallery = SqliteGallery(folder / "gallery.db", index_above=1 << 60)
    if space is None:
        for name in ("v1", "v2"):
            gallery.create_version(name, width)
    row["insert_per_second"] = fill(gallery, vectors)
    row["backfill_per_second"] = backfilled(gallery, vectors)
    gallery.close()
    if backend == "sqlite":
        file = folder / ("shop/gallery.db" if space else "gallery.db")
        row["bytes_per_vector"] = round(file.stat().st_size / count)
        command = [sys.executable, __file__, "--open", str(file)]
        row |= json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    gallery = PostgresGallery(url) if backend == "postgres" else SqliteGallery(file, index_above=1 << 60)
    gallery.search("v1", queries[:1], k=K)
    row["exact"] = searched(gallery, queries, rounds, exact=True)
    if count <= indexed:
        row["index_seconds"] = round(seconds(lambda: gallery.build_index("v1")), 1)
        row["approximate"] = searched(gallery, queries, rounds, exact=False)
        row["approximate"]["recall"] = gallery.indexes()[0].recall
    row["verify_seconds"] = round(seconds(lambda: check(gallery)), 1)
    if backend == "postgres":
        row |= bare_pgvector(gallery, url, queries, rounds)
    gallery.close()
    if space is not None:
        row |= moved_and_copied(folder)
    if backend == "sqlite":
        row |= beside_faiss(vectors, queries, rounds, count <= indexed)
    return row


def opened(file: Path) -> Row:
    """What a process pays that opens a gallery and asks it once."""
    before, start = resident(), time.perf_counter()
    with SqliteGallery(file, index_above=1 << 60) as gallery:
        width = gallery.space("v1").width
        gallery.search("v1", np.eye(1, width, dtype=np.float32), k=K)
        return {"open_seconds": round(time.perf_counter() - start, 2), "memory_mb": resident() - before}


def check(gallery: Gallery) -> None:
    if problems := verify_gallery(gallery):
        raise RuntimeError(problems[0])


def moved_and_copied(folder: Path, rounds: int = 5) -> Row:
    """Deployments, rollbacks, and a snapshot into a folder."""
    with Workspace(folder / "shop", device="cpu") as space:
        query = [np.zeros((32, 32, 3), np.uint8)]
        space.search(query)
        space.deploy("v2", force="benchmark")  # reads the model from disk
        space.rollback()
        times = [
            (seconds(lambda: space.deploy("v2", force="benchmark")), seconds(space.rollback)) for _ in range(rounds)
        ]
    deploy, rollback = (round(1e3 * statistics.median(column), 2) for column in zip(*times, strict=True))
    copied = seconds(lambda: take_snapshot(folder / "shop", folder / "copy"))
    return {"deploy_ms": deploy, "rollback_ms": rollback, "snapshot_seconds": round(copied, 1)}


def bare_pgvector(gallery: Gallery, url: str, queries: Array, rounds: int) -> Row:
    """The gallery's own table of vectors, asked for the nearest rows and nothing else, without an index."""
    psycopg = importlib.import_module("psycopg")
    assert isinstance(gallery, PostgresGallery)
    with closing(psycopg.connect(url.replace("postgres://", "postgresql://").split("#")[0])) as db:
        db.execute(f"set search_path to {gallery.address.schema}, public")
        db.execute("set enable_indexscan = off")
        text = "select number from vectors_1 order by vector <#> %s::vector limit 10"
        return {
            "pgvector_single_ms": milliseconds(
                lambda n: db.execute(text, (json.dumps(queries[n].tolist()),)).fetchall(), rounds
            )
        }


def beside_faiss(vectors: Array, queries: Array, rounds: int, index: bool) -> Row:
    """The bare engines; HNSW and IVF-PQ at the smallest breadth that finds nine of ten, if one does."""
    faiss = importlib.import_module("faiss")
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    true = flat.search(queries, K)[1]
    row: Row = {
        "faiss_flat": {
            "single_ms": milliseconds(lambda n: flat.search(queries[n][None], K), rounds),
            "batch_qps": round(1e3 * BATCH / milliseconds(lambda _: flat.search(queries[:BATCH], K), 3), 1),
        }
    }
    lists = int(4 * len(vectors) ** 0.5)
    quantiser = faiss.IndexFlatIP(vectors.shape[1])
    pq = faiss.IndexIVFPQ(quantiser, vectors.shape[1], lists, vectors.shape[1] // 4, 8, faiss.METRIC_INNER_PRODUCT)
    engines: dict[str, tuple[Any, Callable[[int], None]]] = {
        "faiss_ivfpq": (pq, lambda breadth: setattr(pq, "nprobe", breadth))
    }
    if index:
        links = faiss.IndexHNSWFlat(vectors.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
        links.hnsw.efConstruction = BREADTH_BUILDING
        engines["faiss_hnsw"] = (links, lambda breadth: setattr(links.hnsw, "efSearch", breadth))
    for name, (engine, set_breadth) in engines.items():

        def build(engine: Any = engine) -> None:
            if not engine.is_trained:
                engine.train(vectors[:: max(1, len(vectors) // (40 * lists))])
            engine.add(vectors)

        row[name] = {"build_seconds": round(seconds(build), 1)}
        for breadth in BREADTHS:
            set_breadth(breadth)
            row[name] |= {"breadth": breadth, "recall": recall(true, [engine.search(queries, K)[1]])}
            if row[name]["recall"] >= 0.9:
                break
        row[name]["single_ms"] = milliseconds(lambda n, e=engine: e.search(queries[n][None], K), rounds)  # type: ignore[misc]
        row[name]["batch_qps"] = round(
            1e3 * BATCH / milliseconds(lambda _, e=engine: e.search(queries[:BATCH], K), 3),  # type: ignore[misc]
            1,
        )
    return row


def run(backend: str, count: int, width: int, rounds: int, indexed: int) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        return measure(backend, count, width, rounds, indexed, Path(folder))


def draw_picture(rows: list[Row], path: Path) -> None:
    """Each cost by gallery size, both axes by powers of ten; grey is growth in step with the gallery."""
    from matplotlib.figure import Figure

    panels: dict[str, Callable[[Row], Any]] = {
        "exact search, ms": lambda row: row["exact"]["single_ms"],
        "approximate search, ms": lambda row: row.get("approximate", {}).get("single_ms"),
        "opening, s": lambda row: row.get("open_seconds"),
        "verify, s": lambda row: row["verify_seconds"],
        "deploy, ms": lambda row: row.get("deploy_ms"),
        "memory, MB": lambda row: row.get("memory_mb"),
    }
    figure = Figure(figsize=(11, 6), layout="constrained")
    for axes, (title, value) in zip(figure.subplots(2, 3).flat, panels.items(), strict=True):
        for backend, width in dict.fromkeys((row["backend"], row["width"]) for row in rows):
            mine = [row for row in rows if (row["backend"], row["width"]) == (backend, width) and value(row)]
            if mine:
                mine.sort(key=lambda row: row["vectors"])
                sizes = [row["vectors"] for row in mine]
                (line,) = axes.loglog(sizes, [value(row) for row in mine], "o-", label=f"{backend}, {width} wide")
                first = value(mine[0]) / sizes[0]
                axes.loglog(sizes, [first * size for size in sizes], ":", color=line.get_color(), alpha=0.4)
        axes.set_title(title)
        axes.grid(alpha=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("sqlite", "postgres"), default="sqlite")
    sizes = "100000x64,1000000x64,10000000x64,100000x384,1000000x384,100000x768,1000000x768"
    parser.add_argument("--sizes", default=sizes, help="vectors x width, separated by commas")
    parser.add_argument("--indexed", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.open:
        print(json.dumps(opened(options.open)))
        return
    content: Row = json.loads(options.out.read_text()) if options.out and options.out.exists() else {"rows": []}
    content |= {"machine": platform.machine(), "cores": os.cpu_count()}
    done = {(row["backend"], row["vectors"], row["width"]) for row in content["rows"]}
    for size in options.sizes.split(","):
        count, width = (int(part) for part in size.split("x"))
        if (options.backend, count, width) in done:
            continue
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            row = pool.apply(run, (options.backend, count, width, options.rounds, options.indexed))
        print(json.dumps(row), flush=True)
        content["rows"].append(row)
        if options.out:
            replace_json(options.out, content)
    if options.picture:
        draw_picture(content["rows"], options.picture)


if __name__ == "__main__":
    main()
