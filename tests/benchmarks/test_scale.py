"""The formulas of the page on scale: by hand, and beside the simulation."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import scale

SMALL = scale.Cluster(
    vectors=1_000_000, shards=4, copies=2, memory_gb=1.0, cores=2, cards=2, image_bytes=1_000
)
PLAIN = scale.Constants(
    width=100,
    stored_bytes=500.0,
    mapped_bytes=100.0,
    index_bytes=200.0,
    search_ms=1.0,
    search_growth=1.5,
    exact_ns=100.0,
    write_rate=1_000.0,
    embed_rate=500.0,
    map_rate=10_000.0,
)


def test_storage_counts_every_copy() -> None:
    found = scale.storage(PLAIN, SMALL)
    assert found["disk_tb"] == pytest.approx(2e6 * 500 / 1e12)
    assert found["disk_of_f_tb"] == pytest.approx(2e6 * 400 / 1e12)
    assert found["memory_tb"] == pytest.approx(2e6 * 300 / 1e12)
    assert found["machines_by_memory"] == 1  # 0.6 GB of the 0.7 that may be filled
    twice = scale.storage(PLAIN, scale.Cluster(vectors=2_000_000, copies=2, memory_gb=1.0))
    assert twice["machines_by_memory"] == 2


def test_changing_a_model_by_hand() -> None:
    found = scale.changing(PLAIN, SMALL)
    assert found["embed_hours"] == pytest.approx(
        1_000 / 3600
    )  # 10^6 images, two cards of 500 a second
    assert found["card_hours"] == pytest.approx(2_000 / 3600)
    assert found["images_gbit_per_second"] == pytest.approx(8e9 / 1_000 / 1e9)
    assert found["write_hours"] == pytest.approx(250 / 3600)
    assert found["carry_all_hours"] == pytest.approx(1e6 / (10_000 * 4 * 2) / 3600)
    assert found["carried_per_query_ms"] == pytest.approx(10.0)
    assert scale.network(PLAIN, SMALL)["kilobytes_per_query"] == pytest.approx(
        4 * (800 + 2_000) / 1000
    )


def test_a_shard_ten_times_as_large_takes_longer_by_the_measured_factor() -> None:
    assert scale.shard_ms(PLAIN, 100_000) == pytest.approx(1.0)
    assert scale.shard_ms(PLAIN, 1_000_000) == pytest.approx(1.5)
    assert scale.shard_ms(PLAIN, 10_000_000) == pytest.approx(2.0)


def test_what_breaks_first_is_sorted() -> None:
    rows = scale.breaks_first(PLAIN, SMALL)
    counts = [row["vectors"] for row in rows]
    assert counts == sorted(counts)
    assert {row["what"]: row["vectors"] for row in rows}[
        "an exact query takes 100 ms"
    ] == pytest.approx(1e6)


def test_the_slowest_of_many_shards_against_drawing_them() -> None:
    rng = np.random.default_rng(0)
    times = rng.exponential(1.0, 200_000)
    drawn = rng.exponential(1.0, (20_000, 16)).max(axis=1)
    assert scale.slowest_of(times, 16, 0.5) == pytest.approx(np.quantile(drawn, 0.5), rel=0.02)


def test_queries_agree_with_the_formula_while_cores_are_idle_and_not_when_they_are_full() -> None:
    idle = scale.simulate_queries(1.0, 8, 0.1, cores=4, queries=4_000)
    full = scale.simulate_queries(1.0, 8, 0.97, cores=4, queries=4_000)
    assert idle["simulated_p50_ms"] == pytest.approx(idle["formula_p50_ms"], rel=0.05)
    assert full["simulated_p50_ms"] > 1.5 * full["formula_p50_ms"]


def test_a_backfill_agrees_with_the_formula_with_and_without_deaths() -> None:
    calm = scale.simulate_backfill(
        1_000, 4, deaths_per_hour=0, batch_seconds=2.0, restart_seconds=30
    )
    assert calm["simulated_hours"] == pytest.approx(500 / 3600)
    assert calm["deaths"] == 0
    rough = scale.simulate_backfill(
        5_000, 4, deaths_per_hour=20, batch_seconds=2.0, restart_seconds=30
    )
    assert rough["deaths"] > 30
    assert rough["simulated_hours"] == pytest.approx(rough["formula_hours"], rel=0.05)
    assert rough["simulated_hours"] > 1.1 * 5 * calm["simulated_hours"]
