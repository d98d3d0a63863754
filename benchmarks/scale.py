"""What a billion vectors would take: formulas with measured constants, and a simulation that checks the formulas.

Nobody ran a billion vectors here. Sizes, rates and times per vector were measured on up to ten million
(``benchmarks/results/``), and the formulas carry them further. Where a formula leaves something out (queues, dead
workers, the slowest of many shards), a simulation has it, and both are printed side by side.

    python benchmarks/scale.py                                                  print the tables
    python benchmarks/scale.py --out benchmarks/results/scale.json              keep the figures

The page is docs/explanation/scale.md.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fixstar.durable import replace_json

RESULTS = Path(__file__).parent / "results"
BILLION = 1_000_000_000
Figures = dict[str, Any]


@dataclass(frozen=True)
class Constants:
    """Measured on single machines; the page says where each comes from."""

    width: int = 384
    stored_bytes: float = 1659.0  # of a vector, its id and a payload of one number, in SQLite
    mapped_bytes: float = (
        360.0  # of memory for a vector that is in a mapped file, with its id and payload
    )
    index_bytes: float = 670.0  # of memory for a vector's place in the index
    search_ms: float = 0.611  # one approximate query in 100,000
    search_growth: float = 1.66  # times as long in a million as in 100,000
    exact_ns: float = 105.4  # per vector of one exact query
    write_rate: float = 13020.0  # vectors a second that one writer of a backfill stores
    embed_rate: float = 6203.0  # images a second: ResNet-50, 224 pixels, one H200
    map_rate: float = 1.0  # stored vectors a second that F carries, on one core
    candidates: int = 100  # scored in full per query and version


def read_constants() -> Constants:
    """The constants, each from its file."""
    growth = json.loads((RESULTS / "growth_cpu.json").read_text(encoding="utf-8"))["rows"]
    speed = json.loads((RESULTS / "backbone_speed_h200.json").read_text(encoding="utf-8"))["rows"]
    translated = json.loads(
        (RESULTS / "gallery_translated_million_cpu.json").read_text(encoding="utf-8")
    )
    rows = {(row["backend"], row["vectors"], row["width"]): row for row in growth}
    wide = rows["sqlite", 100_000, 384]
    small = rows["sqlite", 100_000, 64]
    large = rows["sqlite", 1_000_000, 64]
    (card,) = (row["ours"] for row in speed if row["backbone"] == "resnet50" and row["size"] == 224)
    mapped = wide["mapped"]
    return Constants(
        stored_bytes=wide["fill"]["bytes_per_vector"],
        mapped_bytes=mapped["memory_mb"] * 1e6 / 100_000,
        index_bytes=(mapped["memory_with_index_mb"] - mapped["memory_mb"]) * 1e6 / 100_000,
        search_ms=wide["approximate"]["single_ms"],
        search_growth=large["approximate"]["single_ms"] / small["approximate"]["single_ms"],
        exact_ns=wide["open"]["exact_ms"] * 1e6 / 100_000,
        write_rate=wide["fill"]["backfill_per_second"],
        embed_rate=card,
        map_rate=translated["vectors"][0] / translated["mapped_seconds"] / translated["cores"],
    )


@dataclass(frozen=True)
class Cluster:
    """What the vectors are spread over."""

    vectors: int = BILLION
    shards: int = 64
    copies: int = 2
    memory_gb: float = 64.0
    cores: int = 16
    cards: int = 8
    image_bytes: int = 100_000


def storage(constants: Constants, cluster: Cluster) -> Figures:
    """Disk and memory, in all copies; with mapped vectors, as a large gallery has them."""
    copies = cluster.vectors * cluster.copies
    memory = copies * (constants.mapped_bytes + constants.index_bytes)
    derived = copies * 4 * constants.width
    return {
        "disk_tb": copies * constants.stored_bytes / 1e12,
        "disk_of_f_tb": derived / 1e12,  # only where every vector is carried in advance
        "memory_tb": memory / 1e12,
        "machines_by_memory": math.ceil(memory / (0.7 * cluster.memory_gb * 1e9)),
    }


def shard_ms(constants: Constants, vectors: float) -> float:
    """One approximate query in a shard: a graph search grows with the logarithm of its vectors."""
    decades = math.log10(vectors / 100_000)
    return constants.search_ms * (1 + (constants.search_growth - 1) * decades)


def changing(constants: Constants, cluster: Cluster) -> Figures:
    """What a new model costs: everything embedded again, or every vector carried, or only those that are met."""
    embedding = cluster.vectors / (constants.embed_rate * cluster.cards)
    writing = cluster.vectors / (constants.write_rate * cluster.shards)
    carrying = (
        cluster.vectors
        * cluster.copies
        / (constants.map_rate * cluster.shards * cluster.copies * cluster.cores)
    )
    return {
        "embed_hours": embedding / 3600,
        "card_hours": embedding * cluster.cards / 3600,
        "images_tb": cluster.vectors * cluster.image_bytes / 1e12,
        "images_gbit_per_second": cluster.vectors * cluster.image_bytes * 8 / embedding / 1e9,
        "write_hours": writing / 3600,
        "carry_all_hours": carrying / 3600,
        "core_hours_to_carry": cluster.vectors / constants.map_rate / 3600,
        "carried_per_query_ms": constants.candidates / constants.map_rate * 1000,
    }


def network(
    constants: Constants, cluster: Cluster, hits: int = 10, hit_bytes: int = 200
) -> Figures:
    """Bytes that one query moves: two vectors to every shard, its best hits back."""
    sent = cluster.shards * 2 * 4 * constants.width
    received = cluster.shards * hits * hit_bytes
    return {"kilobytes_per_query": (sent + received) / 1000}


def breaks_first(constants: Constants, cluster: Cluster) -> list[Figures]:
    """The number of vectors at which one machine no longer does, by cause; smallest first."""
    day = 86_400
    limits = {
        "an exact query takes 100 ms": 0.1 / (constants.exact_ns * 1e-9),
        "memory is full, with mapped vectors and an index": 0.7
        * cluster.memory_gb
        * 1e9
        / (constants.mapped_bytes + constants.index_bytes),
        "embedding everything on one card takes a day": constants.embed_rate * day,
        "one writer needs a day to store everything again": constants.write_rate * day,
        "carrying everything on one machine takes a day": constants.map_rate * cluster.cores * day,
        "a disk of 4 TB is full": 4e12 / constants.stored_bytes,
    }
    rows = [{"what": what, "vectors": count} for what, count in limits.items()]
    return sorted(rows, key=lambda row: float(row["vectors"]))


# --- The simulation.


def slowest_of(times: np.ndarray[Any, Any], shards: int, quantile: float) -> float:
    """The formula: P(all shards are done by t) = P(one is)^shards, from the times of one shard."""
    return float(np.quantile(times, quantile ** (1 / shards)))


def simulate_queries(
    mean_ms: float,
    shards: int,
    load: float,
    *,
    cores: int = 16,
    queries: int = 20_000,
    seed: int = 0,
) -> Figures:
    """Queries that arrive at random ask every shard at once, and wait for the slowest.

    A shard has ``cores`` servers and one queue. Service times are lognormal with a deviation of half their mean.
    ``load`` is the share of time that a core is busy.
    """
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(mean_ms / (cores * load), queries))
    sigma = math.sqrt(math.log(1.25))
    done = np.zeros(queries)
    alone: list[float] = []
    for _ in range(shards):
        service = rng.lognormal(math.log(mean_ms) - sigma**2 / 2, sigma, queries)
        free = [0.0] * cores
        ends = np.empty(queries)
        for number, arrival in enumerate(arrivals.tolist()):
            start = max(arrival, heapq.heappop(free))
            end = start + float(service[number])
            heapq.heappush(free, end)
            ends[number] = end
        np.maximum(done, ends, out=done)
        alone.extend(service[:2000].tolist())
    times = np.asarray(alone)
    waited = done - arrivals
    return {
        "shards": shards,
        "load": load,
        "formula_p50_ms": slowest_of(times, shards, 0.5),
        "simulated_p50_ms": float(np.quantile(waited, 0.5)),
        "formula_p99_ms": slowest_of(times, shards, 0.99),
        "simulated_p99_ms": float(np.quantile(waited, 0.99)),
    }


def simulate_backfill(
    batches: int,
    workers: int,
    *,
    deaths_per_hour: float,
    batch_seconds: float,
    restart_seconds: float,
    seed: int = 0,
) -> Figures:
    """Workers take the next batch. One that dies loses its batch, which is taken again, and restarts.

    The formula: batches x time / workers, each batch longer by the deaths in it: half of it is lost, and a restart.
    """
    rng = np.random.default_rng(seed)
    rate = deaths_per_hour / 3600
    free = [(0.0, worker) for worker in range(workers)]
    left = batches
    end = 0.0
    deaths = 0
    while left:
        now, worker = heapq.heappop(free)
        until = rng.exponential(1 / rate) if rate else math.inf
        if until < batch_seconds:
            deaths += 1
            heapq.heappush(free, (now + until + restart_seconds, worker))
            continue
        left -= 1
        end = max(end, now + batch_seconds)
        heapq.heappush(free, (now + batch_seconds, worker))
    lost = rate * (batch_seconds / 2 + restart_seconds)
    return {
        "workers": workers,
        "deaths_per_hour": deaths_per_hour,
        "deaths": deaths,
        "formula_hours": batches * batch_seconds * (1 + lost) / workers / 3600,
        "simulated_hours": end / 3600,
    }


def rounded(found: Any) -> Any:
    """Four significant digits, as far down as there are numbers."""
    if isinstance(found, dict):
        return {name: rounded(one) for name, one in found.items()}
    if isinstance(found, list):
        return [rounded(one) for one in found]
    return float(f"{found:.4g}") if isinstance(found, float) else found


def report(constants: Constants, cluster: Cluster, queries: int = 20_000) -> Figures:
    """All that the page prints."""
    each = cluster.vectors / cluster.shards
    mean = shard_ms(constants, each)
    batch = 4096
    batches = math.ceil(cluster.vectors / batch)
    seconds = batch / constants.embed_rate
    found: Figures = rounded(
        {
            "constants": asdict(constants),
            "cluster": asdict(cluster),
            "storage": storage(constants, cluster),
            "changing": changing(constants, cluster),
            "network": network(constants, cluster),
            "shard_ms": mean,
            "breaks_first": breaks_first(constants, cluster),
            "queries": [
                simulate_queries(mean, shards, load, cores=cluster.cores, queries=queries)
                for shards in (1, 16, 64)
                for load in (0.1, 0.8, 0.95)
            ],
            "backfill": [
                simulate_backfill(
                    batches,
                    cluster.cards,
                    deaths_per_hour=deaths,
                    batch_seconds=seconds,
                    restart_seconds=60,
                )
                for deaths in (0.0, 1.0, 10.0)
            ],
        }
    )
    return found


def breaks_table(found: Figures) -> str:
    """What ends first on one machine, in millions of vectors."""
    lines = ["| | million vectors |", "|---|---:|"]
    for row in found["breaks_first"]:
        lines.append(f"| {row['what']} | {row['vectors'] / 1e6:,.1f} |")
    return "\n".join(lines)


def queries_table(found: Figures) -> str:
    """The slowest of many shards: formula and simulation, in ms."""
    lines = [
        "| shards | load | p50 by formula | simulated | p99 by formula | simulated |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for row in found["queries"]:
        times = [
            row[f"{how}_{kind}_ms"] for kind in ("p50", "p99") for how in ("formula", "simulated")
        ]
        cells = [
            str(row["shards"]),
            f"{100 * row['load']:.0f} %",
            *(f"{time:.1f} ms" for time in times),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def deaths_table(found: Figures) -> str:
    """A backfill whose workers die: formula and simulation, in hours."""
    lines = ["| deaths an hour and worker | by formula | simulated |", "|---:|---:|---:|"]
    for row in found["backfill"]:
        hours = [f"{row[f'{how}_hours']:.2f} h" for how in ("formula", "simulated")]
        lines.append(f"| {row['deaths_per_hour']:.0f} | {' | '.join(hours)} |")
    return "\n".join(lines)


TABLES = {
    "what breaks first": breaks_table,
    "the slowest shard": queries_table,
    "workers die": deaths_table,
}
"""What docs/explanation/scale.md shows, by its mark."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    found = report(read_constants(), Cluster())
    if options.out:
        replace_json(options.out, found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
