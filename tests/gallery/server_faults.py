"""A PostgreSQL server that is killed, or whose disk fails, under several writers.

Writers insert, move and delete, each its own items, and now and then one asks for a checkpoint. Meanwhile the server is
killed, or all its processes at once, or one of those that write; or its disk fails, as ``disk_faults.c`` makes it:
short writes, no room, errors of writing and of syncing, in its log or in its tables. When the server is back, the
gallery must hold exactly what was acknowledged. A write that was refused must have left nothing; one of which the
gallery said that it cannot know, nothing or all of it.

    python tests/gallery/server_faults.py --trials 70
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from disk_faults import KINDS as DISK_FAULTS
from disk_faults import compiled
from killing import WIDTH, State, after, next_write, vector
from postgres_server import Server

from fixstar.errors import GalleryError
from fixstar.gallery import verify_gallery
from fixstar.gallery.postgres import PostgresGallery

KINDS = (  # in this order, so that a few trials have kills and faults
    "server killed",
    "full",
    "sync error",
    "all processes killed",
    "short write",
    "write error",
    "one process killed",
)
PLACES = ("pg_wal", "base")  # the log, the tables
WRITERS = 3
WRITES = 25  # of each writer in a trial, at most
_SHARED = 16384  # bytes, enough for what the library says and counts
UNKNOWN = "completely or not at all"


class Writer:
    """Writes items of its own, and knows what the gallery said about each."""

    def __init__(self, server: Server, url: str, number: int) -> None:
        self.gallery = PostgresGallery(url)
        self.state: State = {}
        self.unknown: State | None = None  # what there is if the last write was kept after all
        self.refused = 0
        self.acknowledged = 0
        self._server = server
        self._number = number
        self._step = 0

    def owns(self, item: str) -> bool:
        return int(item) // 1000 == self._number

    def write_some(self, rng: np.random.Generator) -> None:
        """Until the gallery does not know what became of a write, or cannot reach the server."""
        self.refused = 0
        self.acknowledged = 0
        for _ in range(WRITES):
            self._step += 1
            plan = next_write(rng, self._step)
            plan["ids"] = [str(1000 * self._number + int(item)) for item in plan["ids"]]
            try:
                self._write(plan)
            except GalleryError as error:
                self.refused += 1
                if UNKNOWN in str(error):
                    self.unknown = after(self.state, plan)
                if UNKNOWN in str(error) or "cannot connect" in str(error):
                    return
            else:
                self.acknowledged += 1
                self.state = after(self.state, plan)

    def _write(self, plan: dict[str, Any]) -> None:
        if plan["kind"] == "delete":
            self.gallery.delete(plan["ids"])
        elif plan["kind"] == "compact":
            self._checkpoint()
        else:
            rows = np.stack([vector(item, plan["version"], plan["step"]) for item in plan["ids"]])
            self.gallery.upsert(
                plan["version"], plan["ids"], rows, [{"step": plan["step"]}] * len(rows)
            )

    def _checkpoint(self) -> None:
        import psycopg

        try:
            self._server.execute("CHECKPOINT")
        except psycopg.Error as error:
            raise GalleryError(str(error)) from error

    def settle(self, seen: State) -> None:
        """Compare what is there with what was acknowledged."""
        if self.unknown is not None and seen == self.unknown:
            self.state = self.unknown
        self.unknown = None
        lost = {item: what for item, what in self.state.items() if seen.get(item) != what}
        assert seen == self.state, (
            f"lost {lost}, and there is {set(seen.items()) - set(self.state.items())}"
        )


def kill(server: Server, kind: str, rng: np.random.Generator) -> None:
    """One of the ``KINDS`` of kills."""
    if kind == "one process killed":
        found = server.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'fixstar' ORDER BY pid"
        )
        if found:
            os.kill(int(rng.choice([pid for (pid,) in found])), signal.SIGKILL)
        return
    if kind == "all processes killed":
        first = server.server.get_postmaster_info().process
        first.suspend()  # it would start them again
        for child in first.children(recursive=True):
            child.kill()
    server.kill()


def wait_until_up(server: Server, seconds: float = 120.0) -> None:
    """It recovers by itself after a crash of one process; if the first one is gone, it is started again."""
    import psycopg

    until = time.monotonic() + seconds
    while True:
        try:
            server.execute("SELECT 1")
        except psycopg.Error:
            if time.monotonic() > until:
                raise
            if not server.server.get_postmaster_info().process.is_running():
                server.start()
            time.sleep(0.05)
        else:
            return


class Trials:
    """A server with a disk that can fail, and its writers."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)  # the server may run as another user
        library = compiled(folder)
        shared = folder / "shared"
        shared.write_bytes(bytes(_SHARED))
        shared.chmod(0o666)
        with mock.patch.dict(os.environ, {"DISK_FAULTS": str(shared)}):
            self._faults = ctypes.CDLL(str(library))
        self.server = Server({"LD_PRELOAD": str(library), "DISK_FAULTS": str(shared)})
        url = self.server.url("fire")
        with PostgresGallery(url) as gallery:
            for version in ("v1", "v2", "v3"):
                gallery.create_version(version, WIDTH)
        self.writers = [Writer(self.server, url, number) for number in range(1, WRITERS + 1)]
        self.seen = Counter[str]()

    def run(self, number: int) -> None:
        """One trial, of one kind."""
        rng = np.random.default_rng(number)
        kind = KINDS[number % len(KINDS)]
        if kind in DISK_FAULTS:
            place = self.server.folder / PLACES[int(rng.integers(len(PLACES)))]
            first = int(rng.integers(1, 40))
            length = int(
                rng.choice([1, 2, 5])
            )  # each may end the server, which takes seconds to recover
            self._faults.disk_faults_begin(
                os.fsencode(place), DISK_FAULTS.index(kind), first, length
            )
        threads = [
            threading.Thread(target=writer.write_some, args=(rng.spawn(1)[0],))
            for writer in self.writers
        ]
        for thread in threads:
            thread.start()
        if kind not in DISK_FAULTS:
            time.sleep(float(rng.uniform(0.02, 0.3)))
            kill(self.server, kind, rng)
            self.seen[kind] += 1
        for thread in threads:
            thread.join()
        if kind in DISK_FAULTS:
            self.seen[f"{kind}: calls that failed"] += self._faults.disk_faults_end()
        wait_until_up(self.server)
        self._compare(kind)

    def _compare(self, kind: str) -> None:
        gallery = self.writers[0].gallery
        stored: dict[Writer, State] = {writer: {} for writer in self.writers}
        for item in gallery.iterate():
            step = int(item.payload["step"])
            np.testing.assert_allclose(item.vector, vector(item.id, item.version, step), atol=1e-6)
            (owner,) = [writer for writer in self.writers if writer.owns(item.id)]
            stored[owner][item.id] = (item.version, step)
        assert verify_gallery(gallery) == []
        for writer, state in stored.items():
            self.seen["writes acknowledged"] += writer.acknowledged
            self.seen[f"{kind}: writes refused"] += writer.refused
            self.seen["writes that the gallery could not know of"] += writer.unknown is not None
            writer.settle(state)
        self.seen["acknowledged writes lost"] += 0

    def close(self) -> None:
        for writer in self.writers:
            writer.gallery.close()


def run(numbers: Sequence[int]) -> Counter[str]:
    """Trials of these numbers; what came of them."""
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(Path(folder))
        for number in numbers:
            try:
                trials.run(number)
            except AssertionError as error:
                raise AssertionError(
                    f"trial {number}, {KINDS[number % len(KINDS)]}: {error}"
                ) from error
        trials.close()
    return trials.seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=21)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    seen = run(range(wanted.seed, wanted.seed + wanted.trials))
    print(json.dumps(seen, indent=2))


if __name__ == "__main__":
    main()
