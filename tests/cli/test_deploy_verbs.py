"""status, deploy, rollback, grow, slots and retire, and what a check with pairs changes about them."""

from __future__ import annotations

import json
import shlex
import shutil
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from shops import foreign, indexed_shop, passed, passed_with_two_models
from typed import Typed, typed
from wording import check_wording

from fixstar.models import Encoder
from fixstar.translation import Map, Translation
from fixstar.workspace import Check, Workspace, catalogue
from fixstar.workspace.checks import save_check
from fixstar.workspace.options import BackfillOptions


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with "photos", and "shop": three versions, the photos indexed with v1, v2 checked."""
    folder = tmp_path_factory.mktemp("deploy-verbs")
    with Workspace(indexed_shop(folder, photos=8, versions=3), "cpu") as space:
        passed(space, "v2", "v1")
    return folder


@pytest.fixture
def photos(ready: Path) -> Path:
    return ready / "photos"


@pytest.fixture
def path(ready: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ready / "shop", tmp_path / "shop"))


def test_status_of_a_workspace_before_and_after_training(path: Path, tmp_path: Path) -> None:
    typed("init", tmp_path / "fresh")
    fresh = typed("status", "-w", tmp_path / "fresh")
    where = f"-w {tmp_path / 'fresh'}"
    assert fresh.code == 0
    assert fresh.out.splitlines() == [
        f"{tmp_path / 'fresh'}: no version yet",
        f"Next: fixstar add efficientnet-lite0 {where}   # photos: a small pre-trained network",
        f"      fixstar train LABELLED_IMAGES {where}   # drawings and unusual images",
        f"      fixstar add st:FOLDER {where}   # texts: a sentence-transformers model",
        f"      fixstar add 'https://HOST/v1/embeddings?model=NAME' {where}   # texts: a server that embeds them",
        f"      fixstar add MODEL {where}   # a model that you have",
    ]
    none = typed("status", "-w", tmp_path / "fresh", "--json").json
    assert (none["deployed"], none["versions"]) == (None, [])
    shown = [line.split() for line in typed("status", "-w", path).out.splitlines()]
    cards = [(path / "versions" / name / "card.json").stat() for name in ("v1", "v2", "v3")]
    made = [f"{datetime.fromtimestamp(card.st_mtime, UTC):%Y-%m-%d}" for card in cards]
    assert shown[1] == ["v1", "*", made[0], "hoc", "tiny", "3", "24"]
    assert shown[2] == ["v2", "v1", made[1], "hoc", "tiny", "3", "0", "pass", "70.0", "%", "+10.0"]
    assert shown[3] == ["v3", "v2", made[2], "hoc", "tiny", "3", "0", "not", "checked"]
    assert shown[4] == ["v1", "is", "deployed"]
    status = typed("status", "-w", path, "--json").json
    assert (status["deployed"], status["previous"], status["checks"]) == (
        "v1",
        None,
        {"v2": "pass"},
    )
    assert status["vectors"]["v1"] == 24
    other = {"source": "given", "name": "autumn", "fingerprint": "autumn"}
    save_check(
        path, Check("v3", "refuse", (), (), 0.4, 500, 500, 0.95, 0.0, other, when="2026-01-01")
    )
    mixed = typed("status", "-w", path).out
    assert "Figures of one set of images (autumn)" in mixed
    rows = [line.split() for line in mixed.splitlines()]
    assert rows[2][-1] == "pass"  # v2's figures are of other images
    assert rows[3][-3:] == ["refuse", "40.0", "%"]
    nowhere = typed("status", "-w", tmp_path / "nowhere")
    assert (nowhere.code, nowhere.out) == (1, "")
    assert "fixstar init" in nowhere.err


def test_deploy_search_and_roll_back(path: Path, photos: Path) -> None:
    moved = typed("deploy", "v2", "-w", path)
    assert moved.code == 0, moved.err
    check_wording(moved.out)
    assert f"fixstar rollback -w {path}" in moved.out
    found = typed("search", photos / "hat" / "1.png", "-k", "1", "-w", path, "--json").json
    assert (found["version"], found["queries"][0]["hits"][0]["version"]) == ("v2", "v1")
    typed("index", photos / "hat", "--prefix", "new/", "-w", path)
    assert typed("status", "-w", path, "--json").json["previous"] == "v1"
    back = typed("rollback", "-w", path)
    assert back.code == 0
    check_wording(back.out)
    assert "8 vectors made by v2" in back.out
    assert (
        f"fixstar deploy v2 -w {path}   # back to v2\n      fixstar check v1 -w {path}" in back.out
    )
    again = typed("rollback", "-w", path)
    assert (again.code, again.out) == (1, "")
    check_wording(again.err)
    assert typed("deploy", "v2", "-w", path, "--json").json["version"] == "v2"
    assert typed("rollback", "-w", path, "--json").json["kind"] == "rollback"


def test_newer_vectors_are_not_called_older(path: Path, photos: Path) -> None:
    with Workspace(path, "cpu") as space:
        space.index(catalogue(photos), again=True, version="v2")
        space.deploy("v3", force="a test")
    moved = typed("deploy", "v1", "--force", "a test", "-w", path)
    check_wording(moved.out)
    assert "backfill" not in moved.out  # it would replace none of them
    assert "fixstar rollback" in moved.out
    assert "older" not in moved.out + typed("status", "-w", path).out


def test_a_forced_deployment_is_marked(path: Path) -> None:
    typed("deploy", "v3", "--force", "agreed with the search team", "-w", path)
    shown = typed("status", "-w", path).out
    assert "v3 *" in shown
    assert "v3 is deployed since 2" in shown
    assert "FORCED, without a passed check: agreed with the search team" in shown
    assert (
        typed("status", "-w", path, "--json").json["deployment"]["reason"]
        == "agreed with the search team"
    )


def test_a_rollback_does_not_call_unchecked_what_is_not_searched(
    path: Path, tmp_path: Path
) -> None:
    with Workspace(path) as space:
        width = space.registry.encoder("v1").feature_dim
    np.savez(
        tmp_path / "other.npz", ids=np.array(["a", "b"]), vectors=np.eye(2, width, dtype=np.float32)
    )
    assert typed("gallery", "import", tmp_path / "other.npz", "--as", "other", "-w", path).code == 0
    typed("deploy", "v2", "--force", "test", "-w", path)
    back = typed("rollback", "-w", path)
    assert back.code == 0, back.err
    assert "unchecked" not in back.out
    check_wording(back.out)
    assert f"fixstar check v1 --pairs FILE.npz -w {path}" in back.out


def test_what_a_move_puts_out_of_reach_is_told(path: Path) -> None:
    with Workspace(path, "cpu") as space:
        foreign(space)
        back = Map.linear(np.eye(7, 5))
        space.translations.keep(
            Translation("other", "v2", backward=back, one=0.0, about={"fit": "test"})
        )
    assert typed("deploy", "v2", "--force", "test", "-w", path, "--json").json["left_out"] == {}
    rolled = typed("rollback", "-w", path)
    assert rolled.out == (
        "v1 is deployed again, v2 no longer\nNot searched: 2 vectors of other; nothing connects them with v1\n"
        f'Next: fixstar deploy v2 --force "REASON" -w {path}   # back to v2\n'
        f"      fixstar check v1 --pairs FILE.npz -w {path}   # vectors of both models let v1 search those of other\n"
    )
    moved = typed("deploy", "v3", "--force", "test", "-w", path)
    assert f"fixstar check v3 --pairs FILE.npz -w {path}" in moved.out
    assert typed("status", "-w", path, "--json").json["left_out"] == ["other"]
    assert typed("rollback", "-w", path, "--json").json["left_out"] == {"other": 2}


def test_there_is_no_way_back_to_a_retired_version(path: Path) -> None:
    typed("deploy", "v2", "-w", path)
    typed("deploy", "v3", "--force", "test", "-w", path)
    typed("gallery", "delete", "--version", "v1", "--yes", "-w", path)
    retired = typed("retire", "v1", "-w", path)
    assert retired.code == 0, retired.err
    typed("rollback", "-w", path)
    assert typed("status", "-w", path, "--json").json["previous"] is None
    refused = typed("rollback", "-w", path)
    assert (refused.code, refused.out) == (1, "")
    check_wording(refused.err)


def test_a_rollback_can_be_held_to_where_it_leads(path: Path) -> None:
    typed("deploy", "v2", "-w", path)
    typed("deploy", "v3", "--force", "test", "-w", path)
    landed = typed("rollback", "--to", "v2", "-w", path, "--json").json
    assert (landed["version"], landed["left"], landed["unchecked"]) == ("v2", "v3", {})
    again = typed("rollback", "--to", "v2", "-w", path)
    assert (again.code, again.out) == (1, "")
    check_wording(again.err)
    assert typed("status", "-w", path, "--json").json["deployed"] == "v2"


def test_the_gate_stands_before_a_deployment(path: Path) -> None:
    for words, message in (
        (["v3"], "v3 was never checked\nNext: fixstar check v3"),
        (["v9"], "unknown version 'v9'"),
        (["v1"], "v1 is deployed already"),
        (["v3", "--force", "  "], "needs a reason"),
    ):
        refused = typed("deploy", *words, "-w", path)
        assert (refused.code, refused.out) == (1, ""), words
        assert message in refused.err
    assert typed("status", "-w", path, "--json").json["deployed"] == "v1"
    forced = typed("deploy", "v3", "--force", "agreed on Monday", "-w", path, "--json").json
    assert (forced["version"], forced["reason"]) == ("v3", "agreed on Monday")
    kept = json.loads((path / "state" / "deployment.json").read_text())
    assert kept["moves"][-1]["reason"] == "agreed on Monday"


def test_vectors_that_came_after_the_check_need_another(path: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "old.npz", vectors=np.eye(5, dtype=np.float32), ids=list("abcde"))
    typed("gallery", "import", tmp_path / "old.npz", "--as", "old-system", "-w", path)
    refused = typed("deploy", "v2", "-w", path)
    assert refused.code == 1
    check_wording(refused.err)
    assert "5 vectors of old-system (imported: no encoder)" in typed("status", "-w", path).out


def test_pairs_let_imported_vectors_be_searched(path: Path, tmp_path: Path) -> None:
    with Workspace(path, device="cpu") as space:
        new = np.stack([item.vector for item in space.gallery.iterate("v1")])
    np.savez(tmp_path / "old.npz", vectors=new[:, ::-1], ids=[f"old/{i}" for i in range(24)])
    np.savez(tmp_path / "pairs.npz", old=new[:, ::-1], new=new)
    typed("gallery", "import", tmp_path / "old.npz", "--as", "old-system", "-w", path)
    before = typed("search", "--like", "hat/1.png", "-k", "40", "-w", path)
    check_wording(before.err)
    unsure = typed("check", "v1", "--pairs", tmp_path / "pairs.npz", "-w", path)
    assert unsure.code == 3, unsure.err
    assert (
        "MISSING EVIDENCE: v1 is neither passed nor refused" in unsure.out
    )  # pairs without labels judge nothing
    assert "old-system's vectors are asked by v1 alone" in typed("status", "-w", path).out
    like = typed("search", "--like", "hat/1.png", "-k", "40", "-w", path, "--json").json
    scores = {hit["id"]: hit["score"] for hit in like["queries"][0]["hits"]}
    assert scores["old/9"] == pytest.approx(1, abs=0.02)  # hat/1.png is the tenth of all
    imported = {name: score for name, score in scores.items() if name.startswith("old/")}
    assert max(imported, key=imported.__getitem__) == "old/9"
    refused = typed("deploy", "v2", "-w", path)
    assert (refused.code, refused.out) == (1, "")
    check_wording(refused.err)
    without = typed("deploy", "v2", "--force", "old vectors are not needed", "-w", path)
    check_wording(without.out)


def test_room_for_more_classes(path: Path) -> None:
    shown = typed("grow", "10", "-w", path)
    assert shown.code == 0, shown.err
    check_wording(shown.out)
    assert typed("grow", "5", "-w", path, "--json").json == {
        "added": [10, 5],
        "capacity": 23,
        "classes": 3,
    }
    few = typed("grow", "1", "-w", path)
    assert (few.code, few.out) == (1, "")
    assert typed("grow", "--json", "-w", path).code == 64  # how many is missing
    assert typed("slots", "-w", path, "--json").json["added"] == [10, 5]


def test_only_a_simplex_is_promised_to_grow(tmp_path: Path) -> None:
    Workspace.create(tmp_path)
    assert typed("grow", "10", "-w", tmp_path).code == 1  # there is no version yet
    Encoder.create("tiny", classes=["a"], classifier="orthoplex", capacity=8).save(
        tmp_path / "versions" / "v1"
    )
    refused = typed("grow", "10", "-w", tmp_path)
    assert (refused.code, (tmp_path / "growth.json").exists()) == (1, False)
    check_wording(refused.err)


def test_rotated_classes_are_not_promised_room_in_a_second_simplex(tmp_path: Path) -> None:
    Workspace.create(tmp_path)
    encoder = Encoder.create("tiny", classes=["a"], capacity=80)
    encoder.about = {"version": "v1", "method": {"name": "polaris", "options": {"rotated": True}}}
    encoder.save(tmp_path / "versions" / "v1")
    refused = typed("grow", "10", "-w", tmp_path)
    assert (refused.code, (tmp_path / "growth.json").exists()) == (1, False)
    check_wording(refused.err)
    assert "fixstar upgrade LABELLED_IMAGES --option rotated=false" in refused.err


def test_who_owns_which_slot(path: Path, tmp_path: Path) -> None:
    shown = typed("slots", "-w", path)
    check_wording(shown.out)
    assert [line.split() for line in shown.out.splitlines()[1:]] == [
        ["0", "bag"],
        ["1", "hat"],
        ["2", "shoe"],
    ]
    written = typed("slots", "-w", path, "--out", tmp_path / "new" / "slots.json")
    assert f"written: {tmp_path / 'new' / 'slots.json'}" in written.out
    kept = json.loads((tmp_path / "new" / "slots.json").read_text())
    assert kept == typed("slots", "-w", path, "--json").json
    assert kept["by_class"] == {"bag": 0, "hat": 1, "shoe": 2}
    typed("init", tmp_path / "fresh")
    none = typed("slots", "-w", tmp_path / "fresh")
    assert (none.code, none.out) == (1, "")


def test_a_deployed_version_is_dropped_after_a_rollback(path: Path) -> None:
    typed("deploy", "v3", "--force", "a trial", "-w", path)
    refused = typed("drop", "v3", "-w", path)
    assert refused.code == 1
    assert f"fixstar rollback -w {path}" in refused.err
    assert typed("rollback", "-w", path).code == 0
    assert typed("drop", "v3", "-w", path).code == 0


def suggested(shown: Typed) -> list[list[str]]:
    """The commands that were printed, with what is to be filled in filled in."""
    _, _, lines = shown.err.partition("Next: ")
    return [shlex.split(line, comments=True)[1:] for line in lines.splitlines()]


def filled(command: list[str], photos: Path) -> list[str]:
    return [str(photos) if word in ("IMAGES", "LABELLED_IMAGES") else word for word in command]


@pytest.mark.parametrize("way", ["index", "gallery"])
def test_each_way_that_a_refused_drop_suggests_leads_to_the_drop(
    path: Path, photos: Path, way: str
) -> None:
    """v3 was tried on a part of the gallery, and v1 is deployed again."""
    with Workspace(path, "cpu") as space:
        passed_with_two_models(space, "v3")
        space.deploy("v3")
        space.backfill(BackfillOptions(budget="50%", order="random", anyway=True))
    refused = typed("drop", "v3", "-w", path)
    commands = suggested(refused)
    assert [command[0] for command in commands] == ["rollback", "index", "gallery"]
    for command in commands:
        if command[0] in ("rollback", way):
            done = typed(*filled(command, photos), *(["--yes"] if command[0] == "gallery" else []))
            assert done.code == 0, done.err
    dropped = typed("drop", "v3", "-w", path)
    assert dropped.code == 0, dropped.err


def test_a_version_that_a_rollback_needs_goes_after_the_steps_that_are_named(
    path: Path, photos: Path
) -> None:
    typed("deploy", "v2", "--force", "a test", "-w", path)
    commands = suggested(typed("drop", "v1", "-w", path))
    assert [command[:2] for command in commands] == [
        ["deploy", "v3"],
        ["backfill", "--budget"],
        ["gallery", "delete"],
    ]
    for command in commands[:2]:
        done = typed(*filled(command, photos))
        assert done.code == 0, done.err
    assert typed("drop", "v1", "-w", path).code == 0


def test_no_way_back_is_left_that_would_change_nothing(path: Path, photos: Path) -> None:
    """v1 was deployed again with v2's own queries for its vectors, and these and v2 are gone."""
    with Workspace(path, "cpu") as space:
        space.deploy("v2", force="a test")
        space.backfill(BackfillOptions(budget="50%", order="random", anyway=True))
        space.rollback()
        space.deploy("v1", queries="old")
    assert typed("status", "-w", path, "--json").json["previous"] == "v1"
    typed("index", photos, "--again", "-w", path)
    assert typed("drop", "v2", "-w", path).code == 0
    status = typed("status", "-w", path, "--json").json
    assert (status["deployed"], status["previous"]) == ("v1", None)
    refused = typed("rollback", "-w", path)
    assert refused.code == 1
    check_wording(refused.err)


def test_only_what_nothing_needs_is_retired(path: Path) -> None:
    refusals: tuple[tuple[list[str], str], ...] = (
        (["v1"], "the gallery holds 24 vectors of v1"),
        (["v3"], "the next upgrade starts from it"),
        (["v9"], "unknown version 'v9'"),
        ([], "a version, or --unused"),
        (["v2", "--unused"], "a version, or --unused"),
    )
    for words, message in refusals:
        refused = typed("retire", *words, "-w", path)
        assert (refused.code, refused.out) == (1, ""), words
        assert message in refused.err
    done = typed("retire", "--unused", "-w", path, "--json").json
    assert done["retired"] == ["v2"]
    assert set(done["kept"]) == {"v1", "v3"}
    assert not (path / "versions" / "v2").exists()
    again = typed("retire", "--unused", "-w", path)
    assert "retired: none" in again.out
    check_wording(again.out)
    status = typed("status", "-w", path, "--json").json
    assert (status["versions"], status["retired"]) == (["v1", "v3"], ["v2"])
    gone = typed("deploy", "v2", "-w", path)
    assert gone.code == 1
    assert "v2 was retired" in gone.err


def test_a_retired_version_and_a_refusal_say_what_is_next(path: Path) -> None:
    assert f"Next: fixstar status -w {path}" in typed("retire", "v2", "-w", path).out
    assert (
        f'Next: fixstar deploy v3 --force "REASON" -w {path}'
        in typed("retire", "v1", "-w", path).err
    )
    typed("deploy", "v3", "--force", "a test", "-w", path)
    for verb in ("retire", "drop"):
        refused = typed(verb, "v1", "-w", path)
        assert f"Next: fixstar upgrade LABELLED_IMAGES -w {path}" in refused.err


def test_queries_by_two_models_are_deployed_shown_and_taken_back(path: Path, photos: Path) -> None:
    with Workspace(path, "cpu") as space:
        passed_with_two_models(space)
    refused = typed("deploy", "v2", "--queries", "one", "-w", path)
    assert refused.code == 1
    assert "one model per query finds 40.0 %: incompatible" in refused.err
    assert f"fixstar deploy v2 -w {path}   # two models per query" in refused.err
    assert f'fixstar deploy v2 --queries one --force "REASON" -w {path}' in refused.err
    unknown = typed("deploy", "v2", "--queries", "two", "-w", path)
    assert unknown.code == 1
    assert all(word in unknown.err for word in ("'two'", "checked", "one", "old"))
    moved = typed("deploy", "v2", "-w", path)
    assert moved.code == 0, moved.err
    told = "v1's vectors are asked by v2 and v1: one more forward pass per query"
    assert told in moved.out
    assert told in typed("status", "-w", path).out
    assert typed("status", "-w", path, "--json").json["searched_by"] == {"v1": ["v2", "v1"]}
    found = typed("search", photos / "hat" / "1.png", "-k", "1", "-w", path, "--json").json
    assert (found["version"], found["models"]) == ("v2", ["v2", "v1"])
    off = typed(
        "deploy", "v2", "--queries", "one", "--force", "too slow", "-w", path, "--json"
    ).json
    assert (off["version"], off["searched_by"]) == ("v2", {"v1": ["v2"]})
    back = typed("rollback", "-w", path)
    assert back.out.startswith("v2 is deployed again\n" + told)
    check_wording(typed("rollback", "-w", path).out)
    old = typed("deploy", "v3", "--queries", "old", "-w", path)  # never checked
    assert old.code == 0, old.err
    check_wording(old.out)
