"""fixstar backfill: the plan, the prediction, the run, and what is left out."""

from __future__ import annotations

from pathlib import Path

from shops import passed, pictures, shop
from typed import typed
from wording import check_wording

from fixstar.workspace import catalogue


def test_the_story_of_a_backfill(tmp_path: Path) -> None:
    photos, path = pictures(tmp_path / "photos", 6), tmp_path / "shop"
    with shop(path) as space:
        space.index(catalogue(photos))
        passed(space, "v2", "v1")
        space.deploy("v2")
    (photos / "hat" / "0.png").unlink()

    only = typed(
        "backfill",
        "--budget",
        "50%",
        "--order",
        "random",
        "--plan-only",
        "--data",
        photos,
        "-w",
        path,
    )
    assert only.code == 0, only.err
    assert "9 of 18 items with older vectors, order: random, with v2" in only.out
    assert "<- this plan" in only.out
    assert "Nothing was embedded" in only.out
    assert (path / "state" / "backfill" / "curve.png").read_bytes()[:4] == b"\x89PNG"

    done = typed(
        "backfill", "--budget", "all", "--rate", "500", "--data", photos, "-w", path, "--json"
    )
    assert done.code == 0, done.err
    answer = done.json
    assert (answer["version"], answer["planned"], answer["done"]["done"]) == ("v2", 17, 17)
    assert (answer["without_image"], answer["done"]["without_image"], answer["done"]["kept"]) == (
        1,
        1,
        [],
    )
    assert answer["order"] in ("gain", "classes", "certain")
    assert len(answer["predicted"]["planned"]) == len(answer["predicted"]["shares"])
    assert answer["done"]["measured"][-1]["share"] == 17 / 18

    again = typed("backfill", "--budget", "all", "-w", path)
    check_wording(again.out)
    assert again.code == 0


def test_an_image_that_goes_after_it_was_planned_is_named(tmp_path: Path) -> None:
    photos, path = pictures(tmp_path / "photos", 2), tmp_path / "shop"
    with shop(path) as space:
        space.index(catalogue(photos))
        passed(space, "v2", "v1")
        space.deploy("v2")
    words: list[str | Path] = ["backfill", "--budget", "all", "--order", "oldest", "-w", path]
    shown = typed(*words, "--plan-only")
    check_wording(shown.out)
    (photos / "hat" / "0.png").unlink()
    done = typed(*words)
    assert "5 items re-embedded with v2" in done.out
    assert done.out.endswith(" s, 1 with their old vectors. This plan is done\n")
    assert "kept hat/0.png: its image is gone" in done.err
