"""Five versions of different widths in Milvus: five collections, or five partitions of one, padded to the widest.

A collection of Milvus has one width, so versions that share one must be padded with zeros. Both ways hold the same
vectors, FLAT, and answer the same questions: all five versions, one query each or 24, 116 nearest, as a gallery asks.
pymilvus is used as it is.

    python tests/support/milvus_server.py python benchmarks/milvus_layout.py --out FILE
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fixstar.durable import replace_json
from gallery import Array, make_vectors

Figures = dict[str, Any]
WIDTHS = (64, 128, 128, 256, 384)
LIMIT = 116  # candidates of a question with a map, and 16 more
BATCH = 24
ROUNDS = 8
INSERTED = 1000  # vectors of one write


class Place(NamedTuple):
    """Where the vectors of a version are."""

    collection: str
    partitions: list[str]
    width: int


LAYOUTS = {
    "collections": [Place(f"layout_{number}", [], width) for number, width in enumerate(WIDTHS)],
    "partitions": [
        Place("layout_all", [f"v{number}"], max(WIDTHS)) for number in range(len(WIDTHS))
    ],
}


def padded(vectors: Array, width: int) -> Array:
    """Vectors with zeros behind them."""
    return np.pad(vectors, ((0, 0), (0, width - vectors.shape[1])))


def create(client: Any, places: Sequence[Place]) -> None:
    """Empty collections of a layout, loaded."""
    types = importlib.import_module("pymilvus").DataType
    for name, width in {place.collection: place.width for place in places}.items():
        schema = client.create_schema(auto_id=False)
        schema.add_field("number", types.INT64, is_primary=True)
        schema.add_field("vector", types.FLOAT_VECTOR, dim=width)
        index = client.prepare_index_params()
        index.add_index("vector", index_type="FLAT", metric_type="IP", params={})
        client.create_collection(name, schema=schema, consistency_level="Session")
        client.create_index(name, index)
    for place in places:
        for partition in place.partitions:
            client.create_partition(place.collection, partition)
    for name in {place.collection for place in places}:
        client.load_collection(name)


def fill(client: Any, places: Sequence[Place], vectors: Sequence[Array]) -> int:
    """Store the vectors of each version; returns how many there are."""
    number = 0
    for place, own in zip(places, vectors, strict=True):
        where = {"partition_name": place.partitions[0]} if place.partitions else {}
        for first in range(0, len(own), INSERTED):
            block = padded(own[first : first + INSERTED], place.width)
            rows = [{"number": number + i, "vector": row} for i, row in enumerate(block)]
            client.upsert(place.collection, rows, **where)
            number += len(rows)
    return number


def ask(client: Any, places: Sequence[Place], queries: Sequence[Array], count: int) -> None:
    """The nearest of all versions to so many queries."""
    for place, own in zip(places, queries, strict=True):
        where = {"partition_names": place.partitions} if place.partitions else {}
        asked = list(padded(own[:count], place.width))
        client.search(
            place.collection, data=asked, limit=LIMIT, consistency_level="Session", **where
        )


def measured(
    client: Any, places: Sequence[Place], vectors: Sequence[Array], queries: Sequence[Array]
) -> Figures:
    """What a layout takes to be filled and to answer."""
    begun = time.perf_counter()
    create(client, places)
    created = time.perf_counter()
    count = fill(client, places, vectors)
    filled = time.perf_counter()
    figures: Figures = {
        "created_seconds": round(created - begun, 2),
        "inserted_per_second": round(count / (filled - created)),
    }
    for name in {place.collection for place in places}:
        client.flush(name)
    for kind, size in (("one_query_ms", 1), ("batch_ms", BATCH)):
        ask(client, places, queries, size)
        taken = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            ask(client, places, queries, size)
            taken.append(1000 * (time.perf_counter() - start))
        figures[kind] = round(float(np.median(taken)), 1)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vectors", type=int, default=20_000, help="of each version")
    parser.add_argument(
        "--milvus", default=os.environ.get("FIXSTAR_TEST_MILVUS"), metavar="HOST:PORT"
    )
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    client = importlib.import_module("pymilvus").MilvusClient(
        f"http://{options.milvus}", timeout=120
    )
    vectors = [
        make_vectors(options.vectors, width, seed=number) for number, width in enumerate(WIDTHS)
    ]
    queries = [make_vectors(BATCH, width, seed=10 + number) for number, width in enumerate(WIDTHS)]
    report: Figures = {
        "vectors_per_version": options.vectors,
        "widths": WIDTHS,
        "cores": os.cpu_count(),
        "load_average_before": round(os.getloadavg()[0], 1),
    }
    for name, places in LAYOUTS.items():
        try:
            report[name] = measured(client, places, vectors, queries)
        finally:
            for collection in {place.collection for place in places}:
                client.drop_collection(collection)
        print(name, report[name], flush=True)
    if options.out:
        replace_json(options.out, report)


if __name__ == "__main__":
    main()
