"""Indexing and backfill on a Ray cluster of this machine: images per second by workers, and what kills cost.

Small PNG images of noise, two untrained versions of the smallest backbone, one workspace per number of workers. Then
two backfills are disturbed: in one a worker is killed half way, in the other Ray's head and node. If that ends the
command, it is given again. Each must end with every item under v2, and none stored twice.

    python benchmarks/cluster.py --images 1000000 --workers 1,2,4 --out benchmarks/results/cluster_cpu.json
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import ray
from growth import create_workspace
from PIL import Image

from fixstar.durable import replace_json
from fixstar.gallery import open_gallery
from fixstar.workspace import BackfillOptions, Workspace
from fixstar.workspace.cluster import RayEmbedder
from fixstar.workspace.items import catalogue

PER_FOLDER = 1000


def make_folder(folder: Path) -> None:
    """A thousand PNG files of 32 x 32 pixels."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(int(folder.name))
    for number, pixels in enumerate(rng.integers(0, 256, (PER_FOLDER, 32, 32, 3), dtype=np.uint8)):
        Image.fromarray(pixels).save(folder / f"{number:03}.png", compress_level=1)


def indexed(path: Path, images: Path, workers: int) -> float:
    """Make a workspace that holds all images under v1 and searches by v2; the seconds that indexing took."""
    space = create_workspace(path)
    began = time.perf_counter()
    with RayEmbedder(path.absolute() / "versions" / "v1", workers=workers) as embedder:
        space.index(catalogue(images), embedder, version="v1")
    seconds = time.perf_counter() - began
    space.deploy("v2", force="measured")
    space.close()
    return seconds


def processes(pattern: str, parents: Collection[int] | None = None) -> list[int]:
    """Processes of this machine by their command line, and by the processes that began them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if re.search(pattern, command) and (parents is None or parent in parents):
                found.append(int(entry.name))
    return found


def session_of(driver: int) -> list[int]:
    """Ray's own processes of a driver: it names its session by the process that began it."""
    return processes(f"session_[^ ]*_{driver}[/ ]")


def counted(path: Path) -> dict[str, int]:
    """Items by version, as another process sees them."""
    with open_gallery(path / "gallery.db", read_only=True) as gallery:
        return gallery.count()


def with_a_worker_killed(path: Path, total: int, workers: int) -> dict[str, Any]:
    """A backfill by some workers, one of which is killed half way."""
    done, killed = 0, list[int]()

    def advance(count: int = 1, note: str | None = None) -> None:  # noqa: ARG001
        nonlocal done
        done += count
        if done > total // 2 and not killed:
            killed.append(processes("ray::_Worker", session_of(os.getpid()))[0])
            os.kill(killed[0], signal.SIGKILL)

    with Workspace(path, device="cpu") as space:
        began = time.perf_counter()
        result = space.backfill(
            BackfillOptions("all", "random", cluster="local", workers=workers), advance
        )
        rate = round(total / (time.perf_counter() - began))
    told = {
        "workers": workers,
        "images_per_second": rate,
        "killed": len(killed),
        "embedded": result.done,
    }
    return told | {"stored": counted(path)}


def with_the_head_killed(path: Path, total: int) -> dict[str, Any]:
    """The command of a backfill while Ray's own processes are killed; given again if anything is left."""
    words = [
        sys.executable,
        "-m",
        "fixstar",
        "backfill",
        "--budget",
        "all",
        "--cluster",
        "local",
        "--anyway",
        "--json",
    ]
    words += ["-w", str(path)]
    first = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    while counted(path)["v2"] < total // 4 and first.poll() is None:
        time.sleep(0.1)
    killed = session_of(first.pid)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    told, _ = first.communicate(timeout=3600)
    found: dict[str, Any] = {
        "killed": len(killed),
        "exit": first.returncode,
        "left": counted(path)["v1"],
    }
    if found["left"]:
        told = subprocess.run(words, capture_output=True, check=True).stdout
    return found | {"embedded_last": json.loads(told)["done"]["done"], "stored": counted(path)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--workers", default="1,2,4", help="separated by commas")
    parser.add_argument("--rates", action="store_true", help="kill nothing")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    counts = [int(word) for word in options.workers.split(",")]
    total = options.images // PER_FOLDER * PER_FOLDER
    figures: dict[str, Any] = {"images": total, "cores": os.cpu_count(), "rows": []}

    def note(name: str, found: dict[str, Any]) -> None:
        figures.update({name: found} if name != "rows" else {"rows": [*figures["rows"], found]})
        print(name, found, flush=True)
        if options.out:
            replace_json(options.out, figures)

    with tempfile.TemporaryDirectory() as place:
        images, killed, head = (Path(place) / name for name in ("images", "killed", "head"))
        with ProcessPoolExecutor() as pool:
            list(pool.map(make_folder, [images / f"{n:04}" for n in range(total // PER_FOLDER)]))
        print(f"made {total} images", flush=True)
        ray.init(
            num_cpus=max(counts),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        for workers in counts:
            path = Path(place) / f"w{workers}"
            seconds = indexed(path, images, workers)
            print(f"{workers} workers indexed {total / seconds:.0f} images per second", flush=True)
            if workers == counts[-1]:
                shutil.copytree(path, killed)
                shutil.copytree(path, head)
            with Workspace(path, device="cpu") as space:
                began = time.perf_counter()
                space.backfill(BackfillOptions("all", "random", cluster="local", workers=workers))
                backfilled = time.perf_counter() - began
            row = {
                "workers": workers,
                "index": round(total / seconds),
                "backfill": round(total / backfilled),
            }
            note("rows", row | {"stored": counted(path)})
        if options.rates:
            return
        note("worker_killed", with_a_worker_killed(killed, total, counts[-1]))
        ray.shutdown()
        note("head_killed", with_the_head_killed(head, total))


if __name__ == "__main__":
    main()
