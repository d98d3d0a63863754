"""The pointer that says which version is deployed."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from forked import fork
from wording import refuses

from fixstar.durable import document, replace_json
from fixstar.errors import DeploymentMovedError, InputError, ModelError
from fixstar.workspace.deployment import Rollout
from fixstar.workspace.registry import Registry


def test_before_any_move_the_first_version_is_deployed(tmp_path: Path) -> None:
    rollout = Rollout(tmp_path)
    assert rollout.current() == "v1"
    assert rollout.previous() is None
    assert rollout.history() == ()


def test_rollbacks_take_deployments_back_one_by_one(tmp_path: Path) -> None:
    rollout = Rollout(tmp_path)
    for version in ("v2", "v3"):
        rollout.deploy(version)
    assert rollout.previous() == "v2"
    assert rollout.rollback().version == "v2"
    assert rollout.rollback().version == "v1"
    with refuses(InputError):
        rollout.rollback()
    rollout.deploy("v3", reason="it must", by="ann")
    assert [(m.kind, m.version) for m in rollout.history()] == [
        ("deploy", "v2"),
        ("deploy", "v3"),
        ("rollback", "v2"),
        ("rollback", "v1"),
        ("deploy", "v3"),
    ]
    assert (rollout.history()[-1].reason, rollout.history()[-1].by) == ("it must", "ann")
    assert rollout.previous() == "v1"


def test_a_version_that_was_retired_is_no_way_back(tmp_path: Path) -> None:
    rollout = Rollout(tmp_path)
    for version in ("v2", "v3"):
        rollout.deploy(version)
    (tmp_path / "retired").mkdir()
    (tmp_path / "retired" / "v1.json").write_text("{}")
    assert rollout.rollback().version == "v2"
    assert rollout.previous() is None
    with refuses(InputError):
        rollout.rollback(to="v1")
    assert rollout.current() == "v2"
    rollout.deploy("v3")
    assert rollout.previous() == "v2"


def test_a_move_that_was_meant_for_another_state_is_not_made(tmp_path: Path) -> None:
    rollout = Rollout(tmp_path)
    for version in ("v2", "v3"):
        rollout.deploy(version)
    assert rollout.rollback(deployed="v3", to="v2").version == "v2"
    moves = rollout.history()
    with refuses(DeploymentMovedError):
        rollout.rollback(deployed="v3", to="v2")
    with refuses(DeploymentMovedError):
        rollout.rollback(to="v2")
    with refuses(DeploymentMovedError):
        rollout.deploy("v3", deployed="v1")
    assert rollout.history() == moves
    assert [rollout.left_by(move) for move in moves] == ["v1", "v2", "v3"]


def test_of_two_who_roll_back_the_same_deployment_one_does(tmp_path: Path) -> None:
    rollout = Rollout(tmp_path)
    for version in ("v2", "v3"):
        rollout.deploy(version)
    start, landed = threading.Barrier(4), []

    def roll_back() -> None:
        start.wait()
        try:
            landed.append(Rollout(tmp_path).rollback(deployed="v3").version)
        except DeploymentMovedError:
            landed.append("refused")

    threads = [threading.Thread(target=roll_back) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(landed) == ["refused"] * 3 + ["v2"]
    assert rollout.current() == "v2"


def test_another_object_sees_a_move_at_once(tmp_path: Path) -> None:
    one, other = Rollout(tmp_path), Rollout(tmp_path)
    assert other.current() == "v1"
    one.deploy("v2")
    assert other.current() == "v2"
    other.deploy("v3")
    assert one.current() == "v3"


def _deploy_often(path: Path, version: str) -> None:
    for _ in range(20):
        Rollout(path).deploy(version)


def test_no_move_of_several_processes_and_threads_is_lost(tmp_path: Path) -> None:
    threads = [threading.Thread(target=_deploy_often, args=(tmp_path, "v3")) for _ in range(2)]
    process = fork(_deploy_often, tmp_path, "v2")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    process.join()
    assert len(Rollout(tmp_path).history()) == 60


@pytest.mark.parametrize("content", ["", "{}", '{"moves": [{"version": 1}]}', '{"moves": 7}'])
def test_a_damaged_file_is_told(tmp_path: Path, content: str) -> None:
    Rollout(tmp_path).deploy("v2")
    (tmp_path / "state" / "deployment.json").write_text(content)
    with pytest.raises(ModelError, match="damaged"):
        Rollout(tmp_path).current()
    if content:
        replace_json(
            tmp_path / "state" / "deployment.json", document("deployment", json.loads(content))
        )
        with pytest.raises(ModelError, match="damaged"):
            Rollout(tmp_path).current()


def test_the_file_can_be_read_by_others(tmp_path: Path) -> None:
    Rollout(tmp_path).deploy("v2", by="ann")
    (move,) = json.loads((tmp_path / "state" / "deployment.json").read_text())["moves"]
    assert (move["version"], move["kind"], move["by"]) == ("v2", "deploy", "ann")


@pytest.mark.parametrize("name", ["v²", "v٣", "v", "v1 copy"])
def test_folders_that_are_no_versions_are_passed_over(tmp_path: Path, name: str) -> None:
    for folder in ("v1", "v2", name):
        (tmp_path / "versions" / folder).mkdir(parents=True)
    registry = Registry(tmp_path)
    assert registry.names() == ["v1", "v2"]
    assert registry.next_number() == 3
