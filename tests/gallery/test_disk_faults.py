"""Short writes, a full disk, errors of writing and of syncing: what was acknowledged is there, and later all works."""

from __future__ import annotations

import shutil

import disk_faults
import pytest


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)")
def test_a_failing_disk_loses_nothing_that_was_acknowledged() -> None:
    seen = disk_faults.run(
        trials=4, seed=4
    )  # one of each kind; in the last, refused writes stay behind in the log
    assert seen["short write: calls that failed"] > 5
    assert "short write: writes refused" not in seen  # the rest is written after
    for kind in ("full", "write error", "sync error"):
        assert seen[f"{kind}: writes refused"] > 0
    assert seen["writes acknowledged"] > 10
    assert seen["files acknowledged"] > 10
    assert seen["files refused"] > 10
