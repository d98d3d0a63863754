"""The power fails: everything that was acknowledged is there, whatever part of the unsynced writes reached the disk.

FIXSTAR_CUTS and FIXSTAR_SEED make a longer trial, or another one.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
from pathlib import Path

import pytest
from power_cut import Disk, library
from workspace_model import (
    Expected,
    MismatchError,
    Outcome,
    Reference,
    Stored,
    Worker,
    drawn_operations,
    perform,
    start,
)

from fixstar.workspace import Workspace
from fixstar.workspace.verify import verify_workspace

CUTS, SEED = int(os.environ.get("FIXSTAR_CUTS", "10")), int(os.environ.get("FIXSTAR_SEED", "0"))
OPERATIONS = (
    "index",
    "delete",
    "replace",
    "import",
    "deploy",
    "rollback",
    "backfill",
    "fit",
    "keep",
    "retire",
    "drop",
)


def run_until_cut(
    reference: Reference, path: Path, log: Path, rng: random.Random
) -> tuple[int, str, Expected]:
    """Operations until the power fails, each taken over once it is acknowledged; then the one under way."""
    worker = Worker(path, library(), (path, log, int(2 ** rng.uniform(0, 6))))
    done, last = 0, "opening it"
    if (
        worker.do({"do": "read"}).kind == "killed"
    ):  # it has the gallery open from now on: nobody else cleans up
        return done, last, Expected()
    for operation in drawn_operations(rng.randrange(10**6), 60):
        if operation.name not in OPERATIONS:
            continue
        reference.rooms = worker.do({"do": "rooms"}).value
        plan, expected = reference.plan(operation.name, random.Random(operation.number))
        outcome, last = worker.do(plan), str(operation)
        if outcome.kind == "killed":
            return done, last, expected
        look(reference, path, expected, outcome, worker)
        done += 1
    worker.end(kill=True)
    return done, last, Expected()


def look(
    reference: Reference,
    path: Path,
    expected: Expected,
    outcome: Outcome,
    worker: Worker | None = None,
) -> None:
    """Compare a workspace with the reference, and let that take over what is there."""
    with Workspace(path, device="cpu") as space:
        rows = worker.do({"do": "read"}).value if worker else perform(space, {"do": "read"})
        seen = {
            item: Stored(version, vector, payload, sealed=True)
            for item, version, vector, payload in rows
        }
        reference.accept(expected, outcome, space, seen)
        lost = [
            item.id
            for item in space.gallery.iterate()
            if "image" in item.payload and not space.images.find(item)
        ]
        if lost:
            raise MismatchError(f"images of {lost} are gone")


@pytest.mark.long
@pytest.mark.skipif(library() is None, reason="there is no C compiler (cc)")
def test_what_was_acknowledged_outlives_the_power(tmp_path: Path) -> None:
    rng, path, acknowledged = random.Random(SEED), tmp_path / "shop-0", 0
    shutil.copytree(start().workspace, path)
    reference = Reference(path)
    for cut in range(CUTS):
        log = tmp_path / f"log-{cut}"
        log.mkdir()
        disk = Disk(path)
        disk.hold(path, log)
        done, last, expected = run_until_cut(reference, path, log, rng)
        acknowledged += done
        disk.sync(log)
        written, before = Disk(path), reference
        for variant in range(4):
            path = tmp_path / f"shop-{cut + 1}-{variant}"
            disk.after_cut(written, path, random.Random(variant) if variant else None)
            reference = copy.copy(before)
            reference.path = path
            try:
                look(reference, path, expected, Outcome("killed"))
                found = list(verify_workspace(path))
            except Exception as error:
                raise AssertionError(
                    f"seed {SEED}, cut {cut} at {last}, state {variant}: {error!r}"
                ) from error
            assert not found, f"seed {SEED}, cut {cut} at {last}, state {variant}: {found}"
    print(
        f"\n{CUTS} cuts, 4 states of the disk after each, {acknowledged} acknowledged operations, none lost"
    )
    assert acknowledged > CUTS
