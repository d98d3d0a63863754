"""fixstar check on a small workspace: what it prints, keeps and answers, and what deploy makes of it."""

from __future__ import annotations

import html
import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner
from wording import check_wording, refuses

from fixstar.cli import app
from fixstar.data import ImageSet
from fixstar.errors import FixstarError, InputError
from fixstar.models import Encoder
from fixstar.workspace import Workspace
from fixstar.workspace.held_out import held_out_images

TINY = shlex.split(
    "--backbone tiny --method hoc --capacity 20 --batch-size 8 --replay 2 --epochs 1"
)


def fixstar(*words: str | Path, code: int = 0) -> str:
    """Standard output; expected errors come out as they were raised."""
    result = CliRunner().invoke(
        app, [str(word) for word in words], env={"COLUMNS": "200"}, catch_exceptions=False
    )
    assert result.exit_code == code, result.output
    return result.stdout


def draw(folder: Path, names: str, per_class: int) -> Path:
    """One folder a class: colour patches with noise, so that any weights tell the classes apart."""
    for name in names:
        (folder / name).mkdir(parents=True)
        rng = np.random.default_rng(ord(name))
        colour = rng.integers(0, 200, 3)
        for i in range(per_class):
            pixels = (colour + rng.integers(0, 50, (20, 20, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with "space": v1; v2, which is v1 again; v3, whose weights mean something else. Beside it "more"."""
    folder = tmp_path_factory.mktemp("shop")
    draw(folder / "first", "abcd", 12)
    draw(folder / "more", "uvwxyz", 20)
    fixstar("init", folder / "space")
    fixstar("train", folder / "first", "-w", folder / "space", *TINY, "--hold-out", "0.4", "--json")
    versions = folder / "space" / "versions"
    shutil.copytree(versions / "v1", versions / "v2")
    other = Encoder.load(versions / "v1")
    assert other.projection is not None
    with torch.no_grad():
        other.projection.weight.copy_(-other.projection.weight.roll(1, 0))
    other.save(versions / "v3")
    return folder


@pytest.fixture
def space(shop: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shop / "space", tmp_path / "space"))


def answer(*words: str | Path, code: int = 0) -> Any:
    return json.loads(fixstar("check", *words, "--json", code=code))


def test_named_images_are_those_of_all_later_checks_and_must_not_change(
    space: Path, shop: Path
) -> None:
    folder = Path(shutil.copytree(shop / "more", space.parent / "autumn"))
    named = answer("v2", "-w", space, "--data", folder, "--name", "autumn", "--no-report", code=3)
    later = answer("v3", "-w", space, "--no-report", code=2)
    assert named["data"] == later["data"]
    assert (later["data"]["name"], later["data"]["source"], later["data"]["images"]) == (
        "autumn",
        "named",
        120,
    )
    assert "autumn" in fixstar("check", "v3", "--history", "-w", space)
    held_out = answer("v2", "-w", space, "--name", "held-out", "--no-report", code=3)
    assert held_out["data"]["source"] == "held out"
    assert answer("v2", "-w", space, "--no-report", code=3)["data"] == held_out["data"]
    assert (
        answer("v2", "-w", space, "--name", "autumn", "--no-report", code=3)["data"]
        == named["data"]
    )
    image = folder / "u" / "0.png"
    content = image.read_bytes()
    image.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # of the same size
    with refuses(InputError, "check"):
        fixstar("check", "v2", "-w", space)
    image.unlink()
    with refuses(InputError, "check"):
        fixstar("check", "v2", "-w", space)
    with pytest.raises(FixstarError, match="spring"):
        fixstar("check", "v2", "-w", space, "--name", "spring")
    with pytest.raises(FixstarError, match="held-out"):
        fixstar("check", "v2", "-w", space, "--name", "held-out", "--data", folder)
    again = answer("v2", "-w", space, "--data", folder, "--name", "autumn", "--no-report", code=3)
    assert again["data"]["images"] == 119


def test_a_workspace_that_cannot_be_written_is_refused_before_the_work(
    space: Path, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.access  # the superuser may write in any folder, so permissions cannot show it

    def access(path: Path, mode: int) -> bool:
        return real(path, mode) and not (mode & os.W_OK and Path(path).is_relative_to(space))

    def embed(*_: object, **__: object) -> None:
        raise AssertionError("images were read")

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr(Workspace, "features", embed)
    monkeypatch.setattr(ImageSet, "fingerprint", embed)
    for words, folder in (
        ([], "checks"),
        (["--data", str(shop / "more"), "--name", "autumn"], "held-out"),
    ):
        with pytest.raises(FixstarError, match=rf"space/{folder} cannot be written"):
            fixstar("check", "v2", "-w", space, *words)
    assert "never checked" in fixstar("check", "v2", "--history", "-w", space)
    told = fixstar("doctor", "-w", space)  # not a problem: it can be searched
    assert f"note: {space} cannot be written: it can be searched, not changed" in told
    assert told.endswith("no problems\n")
    assert json.loads(fixstar("doctor", "-w", space, "--json"))["workspace"]["writable"] is False


def test_a_search_lists_what_is_probably_not_in_the_catalogue(space: Path, shop: Path) -> None:
    fixstar("index", shop / "more", "-w", space)
    image = shop / "more" / "u" / "0.png"
    words = ["search", str(image), "-w", str(space)]
    told = CliRunner().invoke(app, words).stderr
    check_wording(told)
    assert "fixstar check v1 --data" in told  # a check of what is held out measures too little
    checked = answer("v1", "-w", space, "--data", shop / "more", "--no-report")
    assert (
        0
        < checked["thresholds"]["v1"]["false_alarms"]
        <= 0.05
        < checked["thresholds"]["v1"]["detected"]
    )
    noise = space.parent / "noise.png"
    pixels = np.kron(np.eye(2), np.ones((10, 10)))[..., None] * [255, 0, 0]
    Image.fromarray(pixels.astype(np.uint8)).save(noise)
    told = json.loads(fixstar("search", image, noise, "-k", "30", "-w", space, "--json"))
    least = told["thresholds"]["v1"]
    for query in told["queries"]:
        assert [hit["unlikely"] for hit in query["hits"]] == [
            hit["score"] < least for hit in query["hits"]
        ]
    assert not told["queries"][0]["hits"][0]["unlikely"]
    for query, picture in zip(told["queries"], (image, noise), strict=True):
        unlikely = all(hit["unlikely"] for hit in query["hits"])
        shown = fixstar("search", picture, "-k", "30", "-w", space)
        assert ("Probably not in the catalogue" in shown) == unlikely == (picture == noise)
    assert not CliRunner().invoke(app, words).stderr


def test_no_word_and_no_figure_of_the_table_is_cut_at_80_columns(space: Path, shop: Path) -> None:
    words = ["check", "v3", "-w", str(space), "--data", str(shop / "more"), "--no-report"]
    wide, narrow = (
        CliRunner().invoke(app, words, env={"COLUMNS": columns}).stdout for columns in ("200", "80")
    )
    assert "incompatible" in wide
    assert "…" not in narrow
    table = next(line for line in wide.splitlines() if "incompatible" in line)
    assert table.split() in [line.split() for line in narrow.splitlines()]


def test_the_first_version_passes_on_what_training_held_out(space: Path) -> None:
    found = answer("v1", "-w", space)
    images = held_out_images(space, ["v1"], Encoder.load(space / "versions" / "v1").preprocessing)
    assert images is not None
    assert 4 < len(images) < 30
    assert found["outcome"] == "pass"
    assert found["data"]["images"] == found["queries"] + found["gallery"] <= len(images)
    assert (found["data"]["source"], found["cells"], found["report"]) == ("held out", [], None)
    assert 0 <= found["self_test"] <= 1


def test_no_difference_is_no_gain_unless_a_tolerance_allows_it(space: Path, shop: Path) -> None:
    shown = fixstar("check", "v2", "-w", space, "--no-report", code=3)
    assert "held out from training" in shown
    assert "--tolerance" in shown
    assert "\nMISSING EVIDENCE: v2" in shown
    with pytest.raises(FixstarError, match="did not pass") as refused:
        fixstar("deploy", "v2", "-w", space)
    verdict, *reasons = str(refused.value).split("\n")
    check_wording(verdict)
    assert len(verdict) < 100
    assert reasons
    assert all(line.startswith("- ") for line in reasons)
    answer("v2", "-w", space, "--data", shop / "more", "--no-report", code=3)
    with pytest.raises(FixstarError, match="60 queries") as refused:
        fixstar("deploy", "v2", "-w", space)
    again = [step.arguments for step in refused.value.next_steps if step.action == "check"]
    assert again
    assert all(arguments["data"] is ... for arguments in again)  # not those that training held out
    found = answer("v2", "-w", space, "--data", shop / "more", "--tolerance", "0.1", "--no-report")
    assert (found["outcome"], found["queries"], found["gallery"], found["tolerance"]) == (
        "pass",
        60,
        60,
        0.1,
    )
    (cell,) = found["cells"]
    assert (cell["version"], cell["differing"], cell["negative_flips"], cell["verdict"]) == (
        "v1",
        0,
        0,
        "compatible",
    )
    assert found["data"]["source"] == "given"
    assert len(found["data"]["fingerprint"]) == 64
    assert json.loads((space / "checks" / "v2.json").read_text())["outcome"] == "pass"
    assert "v2 is deployed" in fixstar("deploy", "v2", "-w", space)


def test_a_loss_is_refused_with_a_report(space: Path, shop: Path) -> None:
    shown = fixstar("check", "-w", space, "--data", shop / "more", code=2)  # the newest: v3
    assert "\nREFUSED: v3" in shown
    assert "incompatible" in shown
    assert "Lost on v1's gallery" in shown
    assert f"Report: {space / 'checks' / 'v3' / 'report.html'}" in shown
    page = html.unescape((space / "checks" / "v3" / "report.html").read_text())
    assert "v3 must not be deployed over v1's gallery" in page
    assert "refuse: on v1" in page
    numbers = json.loads((space / "checks" / "v3" / "report.json").read_text())
    kept = json.loads((space / "checks" / "v3.json").read_text())
    (cell,) = numbers["methods"][""]["cells"]
    assert {key: cell[key] for key in ("low", "high", "verdict")} == {
        key: kept["cells"][0][key] for key in ("low", "high", "verdict")
    }
    assert len(numbers["methods"][""]["flips"][0]["negative"]) == kept["cells"][0]["negative_flips"]
    assert Image.open(space / "checks" / "v3" / "matrix.png").format == "PNG"
    with pytest.raises(FixstarError, match="refuse"):
        fixstar("deploy", "v3", "-w", space)
    assert f"fixstar deploy v3 --queries old -w {space}" in shown  # needs no check
    moved = json.loads(fixstar("deploy", "v3", "--queries", "old", "-w", space, "--json"))
    assert (moved["version"], list(moved["translations"])) == ("v3", ["v1"])


def test_a_translation_is_fitted_on_images_and_judged_by_queries_that_did_not_choose_it(
    space: Path, shop: Path
) -> None:
    words: list[str | Path] = ["v3", "-w", space, "--data", shop / "more", "--no-report"]
    (plain,) = answer(*words, code=2)["cells"]
    assert (plain["translation"], plain["weight"], plain["models"]) == (None, 0.0, ["v3"])
    found = answer(*words, "--images", shop / "first", code=3)
    (cell,) = found["cells"]
    assert (space / "translations" / cell["translation"]).is_file()
    assert (found["queries"], cell["negative_flips"]) == (30, 0)  # the other 30 chose
    assert plain["negative_flips"] > 0
    given = answer(*words, "--weight", "0.5", code=3)
    assert (given["queries"], given["cells"][0]["weight"]) == (
        60,
        0.5,
    )  # there was nothing to choose
    shown = fixstar("check", *words, "--weight", "0.5", "--tolerance", "0.1")
    assert "v1's vectors are asked by v3 and v1: one more forward pass per query" in shown
    assert f"fixstar deploy v3 -w {space}\n" in shown
    moved = json.loads(fixstar("deploy", "v3", "-w", space, "--json"))
    assert moved["translations"].keys() == {"v1"}


def test_a_refusal_without_a_translation_does_not_outweigh_a_check_with_one(
    space: Path, shop: Path
) -> None:
    words: list[str | Path] = ["v3", "-w", space, "--data", shop / "more", "--no-report"]
    assert answer(*words, code=2)["queries"] == 60
    found = answer(*words, "--images", shop / "first", "--tolerance", "0.2")
    assert (found["outcome"], found["queries"]) == ("pass", 30)  # fewer, because the others chose
    assert [one["counts"] for one in answer("v3", "-w", space, "--history")] == [False, True]
    assert "v3 is deployed" in fixstar("deploy", "v3", "-w", space)


def test_a_check_with_fewer_images_is_kept_beside_the_stronger_one(space: Path, shop: Path) -> None:
    fixstar("check", "v2", "-w", space, "--data", shop / "more", "--tolerance", "0.1")
    report = (space / "checks" / "v2" / "report.html").read_bytes()
    shown = fixstar("check", "v2", "-w", space, code=3)
    assert "MISSING EVIDENCE" in shown
    assert "still counts (pass): it asked 60 queries of 6 classes" in shown
    assert f"Report: {space / 'checks' / 'v2' / 'weaker' / 'report.html'}" in shown
    assert (space / "checks" / "v2" / "report.html").read_bytes() == report
    listed = fixstar("check", "v2", "-w", space, "--history")
    marked = [line for line in listed.splitlines() if line.startswith("* ")]
    assert len(marked) == 2  # a check, and what the mark means
    assert marked[0].split()[3:6] == ["pass", "60", "6"]
    assert marked[0].split()[-1] == "more"
    assert "held out from training" in listed
    assert [(one["outcome"], one["counts"]) for one in answer("v2", "-w", space, "--history")] == [
        ("pass", True),
        ("missing evidence", False),
    ]
    assert "v2 is deployed" in fixstar("deploy", "v2", "-w", space)
    assert answer("v3", "-w", space, "--history") == []
    check_wording(fixstar("check", "v3", "-w", space, "--history"))


def test_every_live_version_is_asked_about(space: Path, shop: Path) -> None:
    fixstar("index", shop / "more", "-w", space)
    fixstar("deploy", "v2", "-w", space, "--force", "to index with it")
    found = answer("v3", "-w", space, "--data", shop / "more", "--no-report", code=2)
    assert [cell["version"] for cell in found["cells"]] == ["v1", "v2"]
    assert found["report"] is None
    assert not (space / "checks" / "v3" / "report.html").exists()
    assert len(found["reasons"]) == 2


def test_without_images_it_says_what_to_type(space: Path, tmp_path: Path) -> None:
    shutil.rmtree(space / "held-out")
    shown = fixstar("check", "v2", "-w", space, code=3)
    assert "fixstar check v2 --data LABELLED_IMAGES" in " ".join(shown.split())
    assert (
        answer("v1", "-w", space)["outcome"] == "pass"
    )  # there is nothing else to be compatible with
    found = answer("v2", "-w", space, "--data", draw(tmp_path / "single", "pq", 1), code=3)
    check_wording(found["reasons"][0])
    assert (found["self_test"], found["queries"]) == (None, 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["v9"], "unknown version"),
        (["--confidence", "95"], "between 0 and 1"),
        (["--tolerance", "-1"], "tolerance"),
        (["--data", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_named(space: Path, words: list[str], message: str) -> None:
    with pytest.raises(FixstarError, match=message):
        fixstar("check", *words, "-w", space)
    assert not (space / "checks").exists()


def test_help_shows_examples_and_exit_codes() -> None:
    shown = fixstar("check", "--help")
    assert "fixstar check v2 -w shop" in shown
    assert "Exit code 0" in shown
