"""A gallery on a disk that fails: short writes, no room, errors of writing and of syncing, at any moment.

``disk_faults.c`` is compiled with cc and preloaded into a child, where it answers for the disk. A child inserts, moves,
deletes and compacts. After each write the gallery must hold exactly what was acknowledged. A write that raised must
have left nothing, and if the process were killed then, nothing or all of it. Later, on a good disk, all works again.
The files of a workspace are written beside that: each is the old one or the new one, whole, and nothing is left over.

    python tests/gallery/disk_faults.py --trials 400
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from killing import WIDTH, State, after, next_write, vector, write

from fixstar.durable import document, read_arrays, read_document, replace_json, write_arrays
from fixstar.errors import GalleryError
from fixstar.gallery import SqliteGallery, verify_gallery

KINDS = ("short write", "full", "write error", "sync error")
SOURCE = Path(__file__).parents[1] / "support" / "disk_faults.c"
WRITES = 8


def content(gallery: SqliteGallery) -> State:
    """What is stored; every vector must be that of its id, version and step."""
    seen: State = {}
    for item in gallery.iterate():
        step = int(item.payload["step"])
        np.testing.assert_allclose(item.vector, vector(item.id, item.version, step), atol=1e-6)
        seen[item.id] = (item.version, step)
    assert sum(gallery.count().values()) == len(seen)
    return seen


def content_after_kill(path: Path) -> State:
    """What the files hold as they are now, without this process and what it knows."""
    folder = path.parent / "killed"
    folder.mkdir()
    for file in (path, path.with_name(f"{path.name}-wal")):
        if file.exists():
            subprocess.run(
                ["cp", str(file), str(folder)], check=True
            )  # a copy made here would drop SQLite's locks
    with SqliteGallery(folder / path.name) as copy:
        assert verify_gallery(copy) == []
        seen = content(copy)
    shutil.rmtree(folder)
    return seen


def make(path: Path) -> State:
    """A gallery with three versions and some items."""
    plan = {"kind": "upsert", "ids": [str(i) for i in range(100)], "version": "v1", "step": 0}
    with SqliteGallery(path) as gallery:
        for version in ("v1", "v2", "v3"):
            gallery.create_version(version, WIDTH)
        write(gallery, plan)
    return after({}, plan)


def trial(folder: Path, seed: int, seen: Counter[str]) -> None:
    """Some writes, with one run of faults among them."""
    faults = ctypes.CDLL(None)
    rng = np.random.default_rng(seed)
    path = folder / "g.db"
    state = make(path)
    possible = [
        state
    ]  # what a kill may leave: refused writes of which all is in the log may come back, one of them
    kind = seed % len(KINDS)
    first = int(rng.integers(1, 40))
    length = int(rng.choice([1, 2, 10]))
    with SqliteGallery(path, wait=1.0) as gallery:
        content(gallery)
        for step in range(1, WRITES + 1):
            plan = next_write(rng, step)
            faults.disk_faults_begin(os.fsencode(folder), kind, first, length)
            refused = False
            try:
                write(gallery, plan)
            except GalleryError:
                refused = True
            failed = faults.disk_faults_end()
            first = max(1, first // 2)
            seen[f"{KINDS[kind]}: calls that failed"] += failed
            seen[f"{KINDS[kind]}: writes refused" if refused else "writes acknowledged"] += 1
            whole = after(state, plan)
            possible = [*possible, whole] if refused else [whole]
            state = state if refused else whole
            assert content(gallery) == state, (seed, step, plan, refused)
            if failed:
                assert content_after_kill(path) in possible, (seed, step, plan, refused)
        plan = {"kind": "upsert", "ids": ["1"], "version": "v2", "step": 99}
        write(gallery, plan)
        state = after(state, plan)
        gallery.flush()
    with SqliteGallery(path) as gallery:
        assert verify_gallery(gallery) == []
        assert content(gallery) == state, seed


def trial_of_files(folder: Path, seed: int, seen: Counter[str]) -> None:
    """A document and a file of arrays, replaced again and again, with one run of faults in each."""
    faults = ctypes.CDLL(None)
    rng = np.random.default_rng(seed)
    kind = seed % len(KINDS)
    numbers = np.arange(5000, dtype=np.float32)
    known = folder / "known.json"
    arrays = folder / "arrays.safetensors"
    replace_json(known, document("trial", {"step": 0}))
    write_arrays(arrays, "trial", {"step": 0}, {"numbers": numbers})
    steps = [0, 0]
    for step in range(1, WRITES + 1):
        for place in (0, 1):
            faults.disk_faults_begin(
                os.fsencode(folder), kind, int(rng.integers(1, 4)), int(rng.choice([1, 2, 10]))
            )
            refused = False
            try:
                if place == 0:
                    replace_json(known, document("trial", {"step": step}))
                else:
                    write_arrays(arrays, "trial", {"step": step}, {"numbers": numbers + step})
            except OSError:
                refused = True
            faults.disk_faults_end()
            seen["files refused" if refused else "files acknowledged"] += 1
            content, stored = read_arrays(arrays, "trial")
            now = [read_document(known, "trial")["step"], content["step"]]
            np.testing.assert_array_equal(stored["numbers"], numbers + content["step"])
            assert now[place] in ((steps[place], step) if refused else (step,)), (
                seed,
                step,
                place,
                refused,
            )
            assert now[1 - place] == steps[1 - place]
            steps = now
    assert sorted(file.name for file in folder.iterdir()) == ["arrays.safetensors", "known.json"]


def compiled(folder: Path) -> Path:
    """The library to preload. Needs a C compiler."""
    library = folder / "disk_faults.so"
    subprocess.run(
        ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True
    )
    return library


def run(trials: int, seed: int = 0) -> dict[str, int]:
    """Trials in a child whose disk fails; what came of them."""
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(Path(folder))
        command = [
            sys.executable,
            __file__,
            "--child",
            "--trials",
            str(trials),
            "--seed",
            str(seed),
        ]
        places = os.pathsep.join(path for path in sys.path if path)
        known = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": places}
        done = subprocess.run(command, env=known, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(done.stderr)
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if not wanted.child:
        print(json.dumps(run(wanted.trials, wanted.seed), indent=2))
        return
    seen = Counter[str]()
    for number in range(wanted.seed, wanted.seed + wanted.trials):
        with tempfile.TemporaryDirectory() as folder:
            trial(Path(folder), number, seen)
        with tempfile.TemporaryDirectory() as folder:
            trial_of_files(Path(folder), number, seen)
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
