"""What it would cost to keep a record of the last write of an SQLite gallery: a second file, synced after each write.

Without it, damage to the end of the log looks like a write that a power cut interrupted (docs/appendix/durability.md).
Writes with and without such a record take turns; medians are printed.

    python benchmarks/last_write.py
    python benchmarks/last_write.py --folder /mnt/disk --writes 2000
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import struct
import tempfile
import time
from pathlib import Path

import numpy as np

from fixstar.gallery import SqliteGallery
from fixstar.geometry import unit

WIDTH = 512
_RECORD = struct.Struct("<q16s")  # how many writes there were, and a digest of the last one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--folder", type=Path, help="on the disk to be measured; default: that of temporary files"
    )
    parser.add_argument("--writes", type=int, default=600)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=wanted.folder) as folder:
        for items in (1, 1000):
            writes = max(20, wanted.writes // items)
            alone, recorded = measure(Path(folder) / f"{items}.db", items, writes)
            more = recorded / alone - 1
            print(
                f"{items:5,} items per write: {1e3 * alone:.1f} ms, with a record {1e3 * recorded:.1f} ms ({more:+.0%})"
            )


def measure(path: Path, items: int, writes: int) -> tuple[float, float]:
    """The median seconds of a write without a record, and with one."""
    vectors = unit(np.random.default_rng(0).standard_normal((items, WIDTH)).astype(np.float32))
    seconds: tuple[list[float], list[float]] = ([], [])
    record = os.open(path.with_suffix(".last"), os.O_RDWR | os.O_CREAT, 0o600)
    with SqliteGallery(path) as gallery:
        gallery.create_version("v1", WIDTH)
        for number in range(writes):
            is_recorded = number % 2
            names = [f"{number}/{item}" for item in range(items)]
            began = time.perf_counter()
            gallery.upsert("v1", names, vectors)
            if is_recorded:
                digest = hashlib.blake2b(vectors.tobytes(), digest_size=16).digest()
                os.pwrite(record, _RECORD.pack(number, digest), 0)
                os.fdatasync(record)
            seconds[is_recorded].append(time.perf_counter() - began)
    os.close(record)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


if __name__ == "__main__":
    main()
