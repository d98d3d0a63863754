"""Code that a workspace names runs only if its operator named it, outside of the workspace."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import own_models
import pytest
from shops import pictures
from typed import typed

from fixstar import trust
from fixstar.durable import document, read_document
from fixstar.errors import InputError, UntrustedCodeError
from fixstar.images import Preprocessing
from fixstar.models import Encoder
from fixstar.training import Settings
from fixstar.workspace import Workspace, catalogue
from fixstar.workspace.cluster import _Worker
from fixstar.workspace.snapshot import restore_snapshot, take_snapshot
from fixstar.workspace.training import trained_with
from fixstar.workspace.verify import verify_workspace

PREPARED = Preprocessing(size=(16, 16), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An operator who has trusted nothing yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("FIXSTAR_TRUST", raising=False)
    return tmp_path / "config" / "fixstar" / "trusted.json"


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    made = Workspace.create(tmp_path / "shop", device="cpu")
    made.add_version("own_models:small", PREPARED)
    return made


def forge(card: Path, **options: Any) -> None:
    """Change what a card says its backbone is made by, with a digest that fits."""
    content = read_document(card, "encoder")
    content["backbone"]["options"] |= options
    card.write_text(json.dumps(document("encoder", content)))


def test_what_was_added_by_its_name_runs_wherever_the_workspace_is_used(
    space: Workspace, tmp_path: Path
) -> None:
    space.index(catalogue(pictures(tmp_path / "photos")))
    assert space.search([tmp_path / "photos" / "hat" / "0.png"]).hits[0]
    assert trust.remembered(space.path) == {"own_models"}
    assert not trust.is_trusted("own_models")  # elsewhere


@pytest.mark.parametrize("source", ["subprocess:run", "os:system", "posix:system", "builtins:exec"])
def test_a_card_with_another_name_runs_nothing(
    space: Workspace, tmp_path: Path, source: str
) -> None:
    mark = tmp_path / "ran"
    arguments = (
        {"args": ["touch", str(mark)]}
        if source == "subprocess:run"
        else {"command": f"touch {mark}"}
    )
    forge(space.path / "versions" / "v1" / "card.json", source=source, arguments=arguments)
    assert not list(verify_workspace(space.path))  # nothing is damaged
    with pytest.raises(UntrustedCodeError, match=f"{source.partition(':')[0]!r} is not trusted"):
        Workspace(space.path, device="cpu").search(
            [pictures(tmp_path / "photos") / "hat" / "0.png"]
        )
    with pytest.raises(UntrustedCodeError):
        Encoder.load(space.path / "versions" / "v1")
    assert not mark.exists()


def test_a_trusted_module_lends_nothing_that_it_has_imported(
    space: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_models, "run", subprocess.run, raising=False)
    arguments = {"args": ["touch", str(tmp_path / "ran")]}
    forge(
        space.path / "versions" / "v1" / "card.json", source="own_models:run", arguments=arguments
    )
    with pytest.raises(UntrustedCodeError, match="defined in subprocess"):
        space.encoder("v1")
    assert not (tmp_path / "ran").exists()


def test_settings_in_a_card_run_nothing_either(space: Workspace) -> None:
    settings = Settings(backbone="module", backbone_options={"source": "subprocess:run"}).to_json()
    card = space.path / "versions" / "v1" / "card.json"
    content = read_document(card, "encoder")
    content["about"] = {"method": {"name": "er", "options": {}}, "settings": settings}
    card.write_text(json.dumps(document("encoder", content)))
    with pytest.raises(UntrustedCodeError, match="'subprocess' is not trusted"):
        trained_with(space.registry, "v1")


def test_a_copied_or_restored_workspace_starts_with_nothing_trusted(
    space: Workspace, tmp_path: Path
) -> None:
    shutil.copytree(space.path, tmp_path / "copy")
    take_snapshot(space.path, tmp_path / "snapshot")
    restore_snapshot(tmp_path / "snapshot", tmp_path / "restored")
    restore_snapshot(tmp_path / "snapshot", space.path, replace=True)
    for place in ("copy", "restored", "shop"):
        with pytest.raises(UntrustedCodeError, match="FIXSTAR_TRUST=own_models"):
            Workspace(tmp_path / place, device="cpu").encoder("v1")
    trust.remember(tmp_path / "copy", "own_models")
    assert Workspace(tmp_path / "copy", device="cpu").encoder("v1").feature_dim == 12
    shutil.rmtree(tmp_path / "copy")
    Workspace.create(tmp_path / "copy")
    assert not trust.remembered(tmp_path / "copy")


def test_the_operator_may_trust_for_a_process(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust.forget(space.path)
    monkeypatch.setenv("FIXSTAR_TRUST", "another, own")
    with pytest.raises(UntrustedCodeError):
        space.encoder("v1")
    monkeypatch.setenv("FIXSTAR_TRUST", "another, own_models")
    assert space.encoder("v1").feature_dim == 12
    with trust.trusting("shop"):
        assert trust.is_trusted("shop.models")
        assert not trust.is_trusted("shopping")


def test_where_nothing_can_be_remembered_the_variable_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Path
) -> None:
    config.parent.parent.write_text("a file in the place of the folder")
    space = Workspace.create(tmp_path / "other", device="cpu")
    with pytest.raises(InputError, match="FIXSTAR_TRUST"):
        space.add_version("own_models:small", PREPARED)
    assert space.versions() == []
    monkeypatch.setenv("FIXSTAR_TRUST", "own_models")
    assert space.add_version("own_models:small", PREPARED) == "v1"


def test_the_list_is_outside_and_for_its_owner_alone(space: Workspace, config: Path) -> None:
    assert config.stat().st_mode & 0o777 == 0o600
    assert not config.is_relative_to(space.path)
    assert not any("trusted" in path.name for path in space.path.rglob("*"))


def test_the_command_line_asks_once(space: Workspace, tmp_path: Path) -> None:
    add: list[str | Path] = [
        "add",
        "own_models:small",
        "--argument",
        "seed=1",
        "--size",
        "16",
        "-w",
        space.path,
    ]
    trust.forget(space.path)
    refused = typed(*add)
    assert refused.code == 1
    assert "with --trust own_models" in refused.err
    assert typed(*add, "--trust", "own_models").code == 0
    assert (
        typed(
            "add", "own_models:small", "--argument", "seed=2", "--size", "16", "-w", space.path
        ).code
        == 0
    )
    assert typed("snapshot", tmp_path / "snapshot", "-w", space.path).code == 0
    restored = typed("restore", tmp_path / "snapshot", "-w", tmp_path / "restored")
    assert "v1 is made by own_models:small, which does not run until you trust it" in restored.out
    assert f"fixstar init {tmp_path / 'restored'} --trust own_models" in restored.out
    assert typed("init", tmp_path / "restored", "--trust", "own_models").code == 0
    assert Workspace(tmp_path / "restored", device="cpu").encoder("v1").feature_dim == 12


def test_commands_and_services_refuse_code_that_is_not_trusted(
    space: Workspace, tmp_path: Path
) -> None:
    shutil.copytree(space.path, tmp_path / "copy")
    refused = typed("index", pictures(tmp_path / "photos"), "-w", tmp_path / "copy")
    assert (refused.code, "'own_models' is not trusted" in refused.err) == (1, True)

    pytest.importorskip("uvicorn", reason="the service extra is not installed")
    from fixstar.service.serve import _usable
    from fixstar.service.settings import ServiceSettings

    with pytest.raises(UntrustedCodeError), Workspace(tmp_path / "copy", device="cpu") as copied:
        _usable({"": copied}, {"": ServiceSettings()})


def test_workers_of_a_cluster_are_told_what_to_trust(space: Workspace) -> None:
    directory = str(space.registry.directory("v1"))
    with pytest.raises(UntrustedCodeError):
        _Worker(directory, "cpu", [], 1)
    assert _Worker(directory, "cpu", sorted(trust.remembered(space.path)), 1).embed([])[
        0
    ].shape == (0, 12)
