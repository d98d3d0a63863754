"""Kill a writer at random moments, again and again, and look at what is left.

A child inserts, replaces, moves, deletes and compacts; it says what it is about to do, and when it is done. After each
kill the gallery must hold exactly what was acknowledged, with or without the one write under way, and every vector
must be the one that its id, version and payload stand for.

    python tests/gallery/killing.py --kills 100
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from fixstar.gallery import SqliteGallery
from fixstar.geometry import unit

WIDTH, IDS = 24, 300
State = dict[str, tuple[str, int]]  # id -> version, step


def vector(item: str, version: str, step: int) -> Any:
    rng = np.random.default_rng([int(item), int(version[1:]), step])
    return unit(rng.standard_normal(WIDTH).astype(np.float32))


def next_write(rng: np.random.Generator, step: int) -> dict[str, Any]:
    kind = rng.choice(["upsert", "delete", "compact"], p=[0.75, 0.22, 0.03])
    size = int(rng.choice([1, 5, 60]))
    ids = [str(i) for i in rng.choice(IDS, size=size, replace=False)]
    return {"kind": str(kind), "ids": ids, "version": f"v{rng.integers(1, 4)}", "step": step}


def write(gallery: SqliteGallery, plan: dict[str, Any]) -> None:
    ids, version, step = plan["ids"], plan["version"], plan["step"]
    if plan["kind"] == "upsert":
        rows = np.stack([vector(item, version, step) for item in ids])
        gallery.upsert(version, ids, rows, [{"step": step}] * len(ids))
    elif plan["kind"] == "delete":
        gallery.delete(ids)
    else:
        gallery.compact()


def after(state: State, plan: dict[str, Any]) -> State:
    if plan["kind"] == "upsert":
        return {**state, **dict.fromkeys(plan["ids"], (plan["version"], plan["step"]))}
    gone = plan["ids"] if plan["kind"] == "delete" else []
    return {item: value for item, value in state.items() if item not in gone}


def keep_writing(path: Path, seed: int, report: int) -> None:
    """The child: never returns."""
    rng = np.random.default_rng(seed)
    with SqliteGallery(path) as gallery:
        for step in range(seed << 20, (seed + 1) << 20):
            plan = next_write(rng, step)
            os.write(report, json.dumps(plan).encode() + b"\n")
            write(gallery, plan)
            os.write(report, b"done\n")


def run_and_kill(path: Path, seed: int, seconds: float) -> list[str]:
    """What a child said until it was killed."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(receive)
            keep_writing(path, seed, send)
        finally:
            os._exit(1)
    os.close(send)
    said = os.read(receive, 1)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    while part := os.read(receive, 1 << 16):
        said += part
    os.close(receive)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"the writer ended by itself (status {status})"
    return said.decode().splitlines()


def check(path: Path, acknowledged: State, under_way: dict[str, Any] | None) -> State:
    """The state that is there, one of the two allowed; anything else is an AssertionError."""
    with SqliteGallery(path) as gallery:
        items = list(gallery.iterate())
        state: State = {item.id: (item.version, item.payload["step"]) for item in items}
        allowed = (
            [acknowledged] if under_way is None else [acknowledged, after(acknowledged, under_way)]
        )
        assert state in allowed, (
            f"lost or half-written: {set(acknowledged.items()) ^ set(state.items())}"
        )
        counts = {
            f"v{n}": sum(version == f"v{n}" for version, _ in state.values()) for n in (1, 2, 3)
        }
        assert gallery.count() == counts
        for item in items:
            np.testing.assert_allclose(
                item.vector, vector(item.id, item.version, state[item.id][1]), atol=1e-6
            )
        if items:
            hits = gallery.search("v1", np.stack([item.vector for item in items[:20]]), k=1)
            assert [(found[0].id, found[0].version) for found in hits] == [
                (i.id, i.version) for i in items[:20]
            ]
    return state


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    state: State = {}
    writes = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gallery.db"
        with SqliteGallery(path) as gallery:
            for n in (1, 2, 3):
                gallery.create_version(f"v{n}", WIDTH)
        for kill in range(options.kills):
            said = run_and_kill(path, options.seed * 1000 + kill + 1, float(rng.uniform(0, 0.3)))
            plans = [json.loads(line) for line in said if line.endswith("}")]
            done = said.count("done")
            for plan in plans[:done]:
                state = after(state, plan)
            state = check(path, state, plans[done] if len(plans) > done else None)
            writes += done
    print(f"{options.kills} kills, {writes} acknowledged writes, 0 lost, {len(state)} items left")


if __name__ == "__main__":
    main()
