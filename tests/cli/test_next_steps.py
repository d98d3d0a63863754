"""What a message tells to do next must be possible, and must help."""

from __future__ import annotations

import getpass
import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from predictions import predicted as predicted_hits
from shops import indexed_shop, passed, pictures, shop
from typed import typed
from wording import check_wording, refuses

from fixstar.cli.next_steps import command_of, next_lines
from fixstar.cli.rollout import operator_name, print_check, shown_shares
from fixstar.errors import NextStep
from fixstar.evaluation import BackfillCurve
from fixstar.workspace import Check, Workspace, catalogue
from fixstar.workspace.backfill.planning import PredictedCurve
from fixstar.workspace.files import create_mark


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with "photos", and "shop": three versions, the photos indexed with v1, v2 checked."""
    folder = tmp_path_factory.mktemp("next-steps")
    with Workspace(indexed_shop(folder, photos=4, versions=3), "cpu") as space:
        passed(space, "v2", "v1")
    return folder


@pytest.fixture
def photos(ready: Path) -> Path:
    return ready / "photos"


@pytest.fixture
def path(ready: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ready / "shop", tmp_path / "shop"))


def test_newer_vectors_are_not_promised_to_be_backfilled(tmp_path: Path, photos: Path) -> None:
    path = tmp_path / "free"
    with shop(path, versions=3, free=True) as space:  # v2's own queries search what it stored
        space.index(catalogue(photos))
        passed(space, "v2", "v1")
    typed("deploy", "v2", "-w", path)
    typed("index", photos / "hat", "--prefix", "new/", "-w", path)
    typed("rollback", "-w", path)
    refused = typed("retire", "v2", "-w", path)
    assert refused.code == 1
    check_wording(refused.err)
    assert "fixstar backfill" not in refused.err
    assert "fixstar deploy v2" not in refused.err  # after which v2 could still not be retired
    assert "--again" in refused.err
    assert "fixstar gallery delete --version v2" in refused.err
    assert typed("gallery", "delete", "--version", "v2", "--yes", "-w", path).code == 0
    assert typed("retire", "v2", "-w", path).code == 0


def test_vectors_that_other_queries_find_do_not_keep_a_model(path: Path, photos: Path) -> None:
    typed("deploy", "v2", "-w", path)
    typed("index", photos / "hat", "--prefix", "new/", "-w", path)
    typed("rollback", "-w", path)
    assert typed("retire", "v2", "-w", path).code == 0
    found = typed("search", photos / "hat" / "1.png", "-k", "40", "-w", path, "--json").json
    assert found["left_out"] == []
    assert "new/1.png" in [hit["id"] for hit in found["queries"][0]["hits"]]


def test_where_a_rollback_leads_is_kept_until_a_newer_version_is_deployed(path: Path) -> None:
    typed("deploy", "v2", "-w", path)
    older = typed("retire", "v1", "-w", path)
    assert "fixstar backfill --budget all" in older.err
    typed("backfill", "--budget", "all", "--order", "oldest", "-w", path)
    refused = typed("retire", "v1", "-w", path)
    assert (refused.code, refused.out) == (1, "")
    check_wording(refused.err)
    assert "vectors" not in refused.err
    typed("deploy", "v3", "--force", "test", "-w", path)
    assert typed("retire", "v1", "-w", path).code == 0


def test_who_moved_the_deployment_is_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    typed("deploy", "v2", "-w", path)
    assert typed("rollback", "-w", path, "--json").json["by"] == "ada"
    moves = json.loads((path / "state" / "deployment.json").read_text())["moves"]
    assert [move["by"] for move in moves] == ["ada", "ada"]

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert operator_name().startswith("uid ")


def test_a_typing_mistake_is_no_refusal(path: Path) -> None:
    mistakes: tuple[list[str], ...] = (
        ["check", "v2", "--nosuch"],
        ["check", "v2", "--tolerance", "much"],
        ["chek"],
        ["--nosuch"],
        ["keys", "add", "page"],
        ["gallery", "nosuch"],
        ["deploy"],
    )
    for words in mistakes:
        mistaken = typed(*words)
        assert (mistaken.code, mistaken.out) == (64, ""), words
        assert mistaken.err
    assert typed("check", "--help").code == 0
    assert typed("deploy", "v9", "-w", path).code == 1


def test_a_backfill_that_is_predicted_to_lose_does_not_run_by_itself(
    path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares, accuracy = np.array([0.0, 0.1, 0.5, 1.0]), np.array([0.6, 0.4, 0.6, 0.8])
    curve = BackfillCurve(shares, accuracy[None])
    predicted = PredictedCurve("random", curve, curve, (0.6, 0.8), (20, 20))
    monkeypatch.setattr(
        "fixstar.workspace.backfill.planning.predicted_curve", lambda *_, **__: predicted
    )
    monkeypatch.setattr(
        "fixstar.workspace.backfill.planning.draw_curves", lambda *_: None
    )  # drawing takes seconds
    typed("deploy", "v2", "-w", path)
    words: list[str | Path] = ["backfill", "--order", "random", "--data", photos, "-w", path]
    for more in ([], ["--json"]):
        refused = typed(*words, *more)
        assert refused.code == 1, more
        assert "predicted to lower the accuracy from 60.0 % to" in refused.err
        assert "A budget of 50% or all is predicted not to lose" in refused.err
        assert "fixstar backfill --budget 50%" in refused.err
        assert "--plan-only" in refused.err
        assert "--anyway" in refused.err
    looked = typed(*words, "--plan-only")
    assert looked.code == 0
    assert "predicted to lower the accuracy" in looked.out
    assert typed("status", "-w", path, "--json").json["vectors"] == {"v1": 12, "v2": 0}
    assert typed(*words, "--anyway", "--json").json["done"]["done"] == 2
    rest = typed(*words, "--budget", "all", "--json")
    assert rest.json["done"]["done"] == 10, rest.err


def test_a_loss_of_one_query_is_told_as_chance_and_does_not_stop_a_backfill(
    path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fixstar.workspace.backfill.planning.draw_curves", lambda *_: None)
    typed("deploy", "v2", "-w", path)
    words: list[str | Path] = [
        "backfill",
        "--budget",
        "1",
        "--order",
        "random",
        "--data",
        photos,
        "-w",
        path,
    ]
    monkeypatch.setattr(
        "fixstar.workspace.backfill.planning.predicted_curve",
        lambda *_, **__: predicted_hits(lost=30),
    )
    refused = typed(*words)
    assert refused.code == 1
    assert "and the old vectors would not be kept" in refused.err
    monkeypatch.setattr(
        "fixstar.workspace.backfill.planning.predicted_curve",
        lambda *_, **__: predicted_hits(lost=1),
    )
    for more in (["--plan-only"], []):
        shown = typed(*words, *more)
        assert shown.code == 0, shown.err
        assert (
            "predicted to lower the accuracy from 66.7 % to 66.3 % of 300 queries. That may be chance"
            in shown.out
        )
    assert "1 item re-embedded with v2" in shown.out
    assert shown.out.count("Picture: ") == 1
    assert " s. This plan is done\n" in shown.out  # no item was kept, deleted or left


def test_rows_of_the_backfill_table_read_differently() -> None:
    measured = [0.0, 0.05, 0.1, 0.5, 1.0]
    for share in (0.1, 0.098, 0.1049, 0.002, 0.0004, 0.33, 0.998, 1.0, 0.51):
        rows = shown_shares(measured, share)
        assert {0.0, share} <= set(rows)
        assert len({f"{100 * row:.3g}%" for row in rows}) == len(rows), share


def test_a_backfill_predicts_on_the_images_that_judged_the_version(
    path: Path, photos: Path, tmp_path: Path
) -> None:
    with Workspace(path, "cpu") as space:
        space.pin_images("season", photos)
        passed(space, "v2", "v1", data={"name": "season", "source": "named"})
    typed("deploy", "v2", "-w", path)
    words: list[str | Path] = ["backfill", "--order", "random", "--plan-only", "-w", path]
    shown = typed(*words)
    assert shown.code == 0, shown.err
    assert " gallery images (season):" in shown.out
    assert "do not compare" not in shown.out
    other = pictures(tmp_path / "other", 4)
    shown = typed(*words, "--data", other)
    assert " gallery images (other):" in shown.out
    assert (
        "The check of v2 asked 100 queries (season): its figures do not compare with these"
        in shown.out
    )


def test_a_line_of_next_steps_is_pasted_whole() -> None:
    """What a shell reads of it is the command: the remark is a comment."""
    steps = [
        NextStep("deploy", {"version": "v2", "force": ...}, "it's (perhaps) a loss; see 'status'"),
        NextStep("check", {"version": "v2", "data": ...}, "about 200 labelled images"),
        NextStep("rollback"),
    ]
    lines = next_lines(steps, Path("my shop"))
    for step, line in zip(steps, lines, strict=True):
        pasted = shlex.split(line.removeprefix("Next: "), comments=True)
        assert pasted == shlex.split(command_of(step, Path("my shop")))
    assert lines[1].endswith("   # about 200 labelled images")


def test_an_interrupted_training_is_told(tmp_path: Path) -> None:
    path = tmp_path / "shop"
    fresh = typed("init", path).out
    assert f"is ready\nNext: fixstar add efficientnet-lite0 -w {path}" in fresh
    assert f"fixstar train LABELLED_IMAGES -w {path}" in fresh
    (path / "checkpoint-v1.safetensors").touch()
    ways: tuple[list[str | Path], ...] = (["status", "-w", path], ["init", path])
    for words in ways:
        shown = typed(*words)
        check_wording(shown.out)
        assert "fixstar train" not in shown.out


def test_a_trained_workspace_is_not_sent_to_training(path: Path) -> None:
    shown = typed("init", path)
    assert shown.code == 0
    assert "exists already, with v1, v2, v3" in shown.out
    assert f"fixstar index CATALOGUE -w {path}" in shown.out
    assert "fixstar train" not in shown.out


def test_what_may_be_given_as_labelled_images_is_told(
    path: Path, tmp_path: Path, photos: Path
) -> None:
    fresh = tmp_path / "fresh"
    typed("init", fresh)
    absent = tmp_path / "nowhere"
    ways: tuple[list[str | Path], ...] = (
        ["train", absent, "-w", fresh],
        ["check", "v2", "--data", absent],
    )
    for words in ways:
        refused = typed(*words)
        assert refused.code == 1
        check_wording(refused.err)
    file = typed("train", photos / "hat" / "0.png", "-w", fresh)
    check_wording(file.err)
    check_wording(typed("index", absent, "-w", path).err)


def test_one_image_gets_one_error(tmp_path: Path) -> None:
    (tmp_path / "photos" / "a").mkdir(parents=True)
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(tmp_path / "photos" / "a" / "0.png")
    typed("init", tmp_path / "shop")
    refused = typed(
        "train", tmp_path / "photos", "-w", tmp_path / "shop", "--backbone", "tiny", "--epochs", "1"
    )
    assert refused.code == 1
    said = [line for line in refused.err.splitlines() if line.startswith("fixstar: ")]
    assert len(said) == 1
    check_wording(said[0])


def test_nothing_readable_is_not_sent_to_search(path: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "0.png").write_bytes(b"no image")
    shown = typed("index", tmp_path / "broken", "-w", path)
    assert shown.code == 1
    assert "left out" in shown.err
    assert "fixstar search" not in shown.out
    check_wording(shown.out)


def test_an_empty_workspace_has_no_list_of_versions(tmp_path: Path) -> None:
    typed("init", tmp_path)
    refused = typed("deploy", "v1", "-w", tmp_path)
    check_wording(refused.err)
    assert f"fixstar train LABELLED_IMAGES -w {tmp_path}" in refused.err
    assert "Known" not in refused.err


def test_a_device_that_is_not_there_is_not_offered(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused = typed("search", "--like", "hat/1.png", "--device", "nosuch", "-w", path)
    assert refused.code == 1
    assert refused.err.rstrip().endswith("Try auto or cpu: there is no CUDA device")


def test_when_a_key_ends_is_told(path: Path) -> None:
    ends = typed("keys", "add", "page", "--role", "read", "--days", "90", "-w", path, "--json").json
    listed = typed("keys", "list", "-w", path, "--json").json
    assert ends["expires"] == listed[0]["expires"] is not None
    never = typed("keys", "add", "team", "--role", "read", "-w", path, "--json").json
    assert never["expires"] is None
    assert (
        "It expires at"
        in typed("keys", "add", "third", "--role", "read", "--days", "1", "-w", path).err
    )


def test_a_version_without_gain_or_loss_gets_advice_that_agrees(path: Path, photos: Path) -> None:
    shutil.rmtree(path / "versions" / "v3")
    shutil.rmtree(path / "versions" / "v2")
    shutil.copytree(path / "versions" / "v1", path / "versions" / "v2")
    shown = typed("check", "v2", "--data", photos, "--no-report", "-w", path)
    assert shown.code == 3, shown.err
    said = " ".join(shown.out.split())
    assert "there is no gain to show" in said
    assert "MISSING EVIDENCE: v2 is neither passed nor refused" in said
    named = said.split("points is acceptable, about ")[1].split(" queries")[0].replace(",", "")
    assert (
        int(named) > 100
    )  # at so wide an interval a tolerance of a point needs many more than these six
    assert "fixstar check v2 --data LABELLED_IMAGES --tolerance 0.01" in said


def test_in_python_too_a_plan_that_nobody_saw_must_not_lose(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fixstar.data import open_images
    from fixstar.errors import GateError
    from fixstar.workspace import BackfillOptions

    curve = BackfillCurve(np.array([0.0, 1.0]), np.array([[0.6, 0.5]]))
    predicted = PredictedCurve("random", curve, curve, (0.6, 0.5), (20, 20))
    monkeypatch.setattr(
        "fixstar.workspace.backfill.planning.predicted_curve", lambda *_, **__: predicted
    )
    with Workspace(path, "cpu") as space:
        space.deploy("v2")
        images = open_images(pictures(path.parent / "held", 4))
        for _ in range(2):  # a retry must not run it, either
            with refuses(GateError, "backfill", "backfill"):
                space.backfill(BackfillOptions("50%", "random", data=images))
        assert space.gallery.count()["v2"] == 0
        assert space.backfill(BackfillOptions("50%", "random", data=images, anyway=True)).done == 6


def test_a_forgotten_workspace_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shoe.jpg").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    refused = typed("search", "shoe.jpg")
    assert refused.code == 1
    check_wording(refused.err)
    assert "Next: fixstar init WORKSPACE" in refused.err


def test_a_misspelt_workspace_is_taken_for_the_one_beside_it(tmp_path: Path) -> None:
    for name in ("shop", "photos"):
        create_mark(tmp_path / name, None)
    (tmp_path / "shpoo").mkdir()  # closer, and not a workspace
    refused = typed("status", "-w", tmp_path / "shpo")
    assert refused.code == 1
    assert refused.err.splitlines() == [
        f"fixstar: {tmp_path}/shpo is not a workspace; did you mean {tmp_path}/shop?",
        f"Next: the same command with --workspace {tmp_path}/shop",
        f"      fixstar init {tmp_path}/shpo   # a new one",
    ]
    refused = typed("status", "-w", tmp_path / "elsewhere")
    assert "did you mean" not in refused.err
    assert f"Next: fixstar init {tmp_path}/elsewhere\n" in refused.err


@pytest.mark.parametrize(("data", "kept"), [("held out", " --data 'held out'"), (None, "")])
def test_a_backfill_that_a_check_suggests_predicts_on_the_images_of_the_check(
    data: str | None, kept: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Workspace.create(tmp_path / "shop", device="cpu").close()
    step = NextStep("backfill", {"budget": "80%"}, "once it is deployed")
    check = Check("v2", "missing evidence", (), (), 0.7, 100, 100, 0.95, 0.0, next_steps=(step,))
    print_check(
        check, tmp_path / "shop", {"data": data, "name": None, "split": None, "label": None}
    )
    assert f"fixstar backfill --budget 80%{kept} -w" in capsys.readouterr().out
