"""fixstar backfill, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from shops import passed, pictures, shop

from fixstar.workspace import catalogue


def fixstar(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fixstar", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_story_of_a_backfill(tmp_path: Path) -> None:
    photos, path = pictures(tmp_path / "photos", 6), tmp_path / "shop"
    with shop(path) as space:
        space.index(catalogue(photos))
        passed(space, "v2", "v1")
        space.deploy("v2")
    (photos / "hat" / "0.png").unlink()

    only = fixstar("backfill", "--budget", "50%", "--order", "random", "--plan-only", "--data", photos, "-w", path)
    assert only.returncode == 0, only.stderr
    assert "9 of 18 items with older vectors, order: random, with v2" in only.stdout
    assert "<- this plan" in only.stdout
    assert "Nothing was embedded" in only.stdout
    assert (path / "state" / "backfill" / "curve.png").read_bytes()[:4] == b"\x89PNG"

    done = fixstar("backfill", "--budget", "all", "--rate", "500", "--data", photos, "-w", path, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["version"], answer["planned"], answer["done"]["done"]) == ("v2", 17, 17)
    assert (answer["without_image"], answer["done"]["without_image"], answer["done"]["kept"]) == (1, 1, [])
    assert answer["order"] in ("gain", "classes", "certain")
    assert len(answer["predicted"]["planned"]) == len(answer["predicted"]["shares"])
    assert answer["done"]["measured"][-1]["share"] == 17 / 18

    again = fixstar("backfill", "--budget", "all", "-w", path)
    assert "1 items have no image any more and keep their vectors\nNo other item holds a vector older" in again.stdout
    assert again.returncode == 0


def test_an_image_that_goes_after_it_was_planned_is_named(tmp_path: Path) -> None:
    photos, path = pictures(tmp_path / "photos", 2), tmp_path / "shop"
    with shop(path) as space:
        space.index(catalogue(photos))
        passed(space, "v2", "v1")
        space.deploy("v2")
    words: list[str | Path] = ["backfill", "--budget", "all", "--order", "oldest", "-w", path]
    shown = fixstar(*words, "--plan-only")
    assert "there are no labelled images. Give some with --data" in shown.stdout
    (photos / "hat" / "0.png").unlink()
    done = fixstar(*words)
    assert "5 items re-embedded with v2" in done.stdout
    assert "kept hat/0.png: its image is gone" in done.stderr
