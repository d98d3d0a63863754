"""What a gallery on a PostgreSQL server costs, on a server that is started for it.

python tests/gallery/postgres_costs.py --items 100000 --width 64
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from postgres_server import shared_server

from fixstar.gallery.postgres import PostgresGallery
from fixstar.geometry import unit

BATCH = 2000


def clustered(count: int, width: int, rng: np.random.Generator) -> Any:
    centres = rng.standard_normal((1000, width)).astype(np.float32)
    noise = 0.7 * rng.standard_normal((count, width)).astype(np.float32)
    return unit(centres[rng.integers(1000, size=count)] + noise)


def rate(search: Callable[[Any], object], queries: Any, at_once: int) -> float:
    """Queries per second, the median of 5 rounds."""
    rounds = []
    for _ in range(5):
        start = time.perf_counter()
        for first in range(0, len(queries), at_once):
            search(queries[first : first + at_once])
        rounds.append(len(queries) / (time.perf_counter() - start))
    return round(float(np.median(rounds)), 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args()
    rows = clustered(options.items + 64, options.width, np.random.default_rng(0))
    queries, rows = rows[-64:], rows[:-64]
    server, found = shared_server(), dict[str, Any]()
    for setting in ("fsync = on", "maintenance_work_mem = '512MB'", "shared_buffers = '512MB'"):
        server.execute(f"ALTER SYSTEM SET {setting}")
    server.kill()  # some settings want a new start
    server.start()
    with PostgresGallery(server.url("costs")) as gallery:
        gallery.create_version("v1", options.width)
        start = time.perf_counter()
        for i in range(0, len(rows), BATCH):
            part = rows[i : i + BATCH]
            ids = [f"image-{j:08}" for j in range(i, i + len(part))]
            gallery.upsert("v1", ids, part, [{"shop": f"shop-{j % 20}"} for j in range(len(part))])
        found["inserted per second"] = round(len(rows) / (time.perf_counter() - start))
        size = "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c WHERE relnamespace = 'costs'::regnamespace "
        size += "AND relkind = 'r'"
        found["disk, times the vectors"] = round(float(server.execute(size)[0][0]) / rows.nbytes, 2)
        server.execute("ANALYZE")
        start = time.perf_counter()
        (state,) = gallery.build_index("v1")
        found["index built and measured, s"] = round(time.perf_counter() - start, 1)
        found["recall"] = state.recall
        found["disk with index, times the vectors"] = round(
            float(server.execute(size)[0][0]) / rows.nbytes, 2
        )
        where = {"shop": "shop-7"}
        kinds: list[tuple[str, int, dict[str, Any]]] = [
            ("exact, one at a time", 1, {}),
            ("exact, 64 at once", 64, {}),
            ("exact, filter 1 in 20", 1, {"where": where}),
            ("index, one at a time", 1, {"exact": False}),
            ("index, 64 at once", 64, {"exact": False}),
            ("index, filter 1 in 20", 1, {"exact": False, "where": where}),
        ]
        for name, at_once, options_ in kinds:
            found[f"queries per second: {name}"] = rate(
                partial(gallery.search, "v1", **options_), queries, at_once
            )
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
