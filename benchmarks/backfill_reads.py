"""What a backfill reads: items that its plan and its run take from the gallery, their seconds, and the plan's memory.

An SQLite gallery of random vectors, all of v1, whose items name one image; v2 is deployed. Every row is a process of
its own. The embedder takes no time, so that what is left is the driver's work.

    python benchmarks/backfill_reads.py --items 100000 --out benchmarks/results/backfill_reads_cpu.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fixstar.durable import replace_json
from fixstar.geometry import unit
from fixstar.images import ImageSource
from fixstar.models import Encoder
from fixstar.models.encoder import EmbeddedBatch
from fixstar.workspace import BackfillOptions, Workspace
from fixstar.workspace.backfill import planning
from fixstar.workspace.items import ensure_version

WIDTH = 128
LABELS = 100
PLANS = (("random", "10%"), ("random", "all"), ("certain", "10%"), ("certain", "all"))


def make_workspace(path: Path, items: int) -> None:
    """A workspace with so many items of v1, and v2 deployed."""
    torch.manual_seed(0)
    image = path.parent / "image.png"
    Image.new("RGB", (32, 32)).save(image)
    rng = np.random.default_rng(0)
    with Workspace.create(path, device="cpu") as space:
        for number in (1, 2):
            encoder = Encoder.create("resnet18", classes=["a", "b"], capacity=WIDTH + 1)
            encoder.about = {"version": f"v{number}", "parent": None if number == 1 else "v1"}
            encoder.save(path / "versions" / f"v{number}")
            ensure_version(space.gallery, f"v{number}", encoder)
        for start in range(0, items, 10_000):
            rows = range(start, min(items, start + 10_000))
            vectors = unit(rng.standard_normal((len(rows), WIDTH)).astype(np.float32))
            payloads = [
                {"image": str(image), "stamp": "1", "label": str(row % LABELS)} for row in rows
            ]
            space.gallery.upsert("v1", [f"photos/{row:08}.png" for row in rows], vectors, payloads)
        space.deploy("v2", force="measured")


class Reads:
    """Counts the items that a gallery hands out."""

    def __init__(self, gallery: Any) -> None:
        self.count = 0
        iterate = gallery.iterate
        get = gallery.get

        def counted_iterate(*arguments: Any, **options: Any) -> Iterator[Any]:
            for item in iterate(*arguments, **options):
                self.count += 1
                yield item

        def counted_get(ids: Sequence[str]) -> Any:
            found = get(ids)
            self.count += len(found)
            return found

        gallery.iterate = counted_iterate
        gallery.get = counted_get

    def taken(self) -> int:
        """The count since the last call."""
        count = self.count
        self.count = 0
        return count


def instant(batches: Iterable[Sequence[ImageSource]]) -> Iterator[EmbeddedBatch]:
    """An embedder that takes no time."""
    vectors = unit(np.ones((4096, WIDTH), np.float32))
    for batch in batches:
        yield EmbeddedBatch(vectors[: len(batch)], ())


@contextmanager
def no_embedder(*_: object) -> Iterator[Any]:
    """In place of the model."""
    yield instant


def memory(field: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def planned(path: Path, order: str, budget: str) -> dict[str, Any]:
    """One plan, and its run: what both read and how long they took."""
    planning._embedder = no_embedder  # type: ignore[assignment]
    options = BackfillOptions(budget=budget, order=order)
    with Workspace(path, device="cpu") as space:
        space.serving.encoder("v2")
        space.gallery.get(["photos/00000000.png"])
        reads = Reads(space.gallery)
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        began = time.perf_counter()
        cpu = time.process_time()
        plan = space.plan_backfill(options).plan
        row: dict[str, Any] = {
            "order": order,
            "budget": budget,
            "planned": len(plan.ids),
            "plan_reads": reads.taken(),
            "plan_seconds": round(time.perf_counter() - began, 2),
            "plan_cpu_seconds": round(time.process_time() - cpu, 2),
            "plan_peak_mb": round((memory("VmHWM") - before) / 1e6),
        }
        began = time.perf_counter()
        cpu = time.process_time()
        done = space.backfill(options, judged=plan.token)
        row |= {
            "done": done.done,
            "run_reads": reads.taken(),
            "run_seconds": round(time.perf_counter() - began, 2),
            "run_cpu_us_per_item": round(1e6 * (time.process_time() - cpu) / max(1, done.done)),
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument(
        "--one", nargs=3, metavar=("WORKSPACE", "ORDER", "BUDGET"), help=argparse.SUPPRESS
    )
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    if wanted.one:
        print(json.dumps(planned(Path(wanted.one[0]), wanted.one[1], wanted.one[2])))
        return
    found: dict[str, Any] = {
        "items": wanted.items,
        "width": WIDTH,
        "cores": os.cpu_count(),
        "rows": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        original = Path(folder) / "original"
        copy = Path(folder) / "copy"
        make_workspace(original, wanted.items)
        for order, budget in PLANS * wanted.repeats:
            shutil.copytree(original, copy)
            command = [sys.executable, __file__, "--one", str(copy), order, budget]
            told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            shutil.rmtree(copy)
            row = json.loads(told.splitlines()[-1])
            found["rows"].append(row)
            print(row, flush=True)
    if wanted.out:
        replace_json(wanted.out, found)


if __name__ == "__main__":
    main()
