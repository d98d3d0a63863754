"""Counting what searches find."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from shops import pictures, shop

from fixstar.errors import DataError
from fixstar.workspace import Workspace, catalogue
from fixstar.workspace.usage import Usage


def test_counts_add_up_over_threads_and_processes(tmp_path: Path) -> None:
    usage = Usage(tmp_path, every=0.0)  # every call writes

    def many() -> None:
        for _ in range(100):
            usage.record(["a", "b"])

    threads = [threading.Thread(target=many) for _ in range(4)]
    child = os.fork()
    if child == 0:
        try:
            other = Usage(tmp_path)
            for _ in range(50):
                other.record(["b", "c"])
                other.flush()
            os._exit(0)
        finally:
            os._exit(1)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert Usage(tmp_path).counts() | usage.counts() == {"a": 400, "b": 450, "c": 50}


def test_recording_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    usage = Usage(tmp_path, every=0.0)

    def record() -> None:
        for _ in range(1000):
            usage.record(["a"])

    recording = threading.Thread(target=record)
    with usage._write:  # a write is under way, and takes long
        recording.start()
        recording.join(60)
        assert not recording.is_alive()
    assert usage.counts() == {"a": 1000}


def test_nothing_is_written_before_it_is_time(tmp_path: Path) -> None:
    usage = Usage(tmp_path, every=3600)
    usage.record(["a"])
    assert not usage.path.exists()
    assert usage.counts() == {"a": 1}


def test_a_damaged_file_stops_no_search_and_is_told_to_who_asks(tmp_path: Path) -> None:
    usage = Usage(tmp_path, every=0.0)
    usage.path.parent.mkdir()
    usage.path.write_bytes(b"no database" * 1000)
    usage.record(["a"])
    with pytest.raises(DataError, match="delete it"):
        usage.counts()


def test_a_workspace_counts_the_best_hit_if_asked_to(tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos")
    shop(tmp_path / "shop", versions=1).close()
    with Workspace(tmp_path / "shop", "cpu", record_usage=True) as space:
        space.index(catalogue(photos))
        for name in ("hat/1.png", "hat/1.png", "bag/0.png"):
            space.search([photos / name], k=3)
    assert Usage(tmp_path / "shop").counts() == {"hat/1.png": 2, "bag/0.png": 1}
    with Workspace(tmp_path / "shop", "cpu") as space:
        space.search([photos / "hat" / "1.png"])
    assert Usage(tmp_path / "shop").counts()["hat/1.png"] == 2
