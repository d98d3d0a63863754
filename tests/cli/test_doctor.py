"""fixstar doctor: what it sees of the installation and of a workspace, as lines and as JSON."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from shops import shop
from typed import typed
from typer.testing import CliRunner

from fixstar.cli import app
from fixstar.cli.doctor import installed
from fixstar.gallery import open_gallery
from fixstar.workspace import Workspace


def test_extras_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [
        "numpy>=1.26",
        'no-such-package>=2; extra == "index"',
        'pytest>=8; extra == "dev"',
        'fixstar[all]; extra == "x"',
    ]
    monkeypatch.setattr(metadata, "requires", lambda _: wanted)
    assert installed() == ({"numpy": np.__version__}, {"index": {"no-such-package": None}})
    told = CliRunner().invoke(app, ["doctor"])
    assert told.exit_code == 0
    assert 'extra index: no-such-package missing (pip install "fixstar[index]")' in told.output
    assert told.output.endswith("no problems\n")


def test_a_source_tree_has_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    told = CliRunner().invoke(app, ["doctor"])
    assert told.exit_code == 0
    assert "run from a source tree" in told.output


def test_a_required_package_that_is_missing_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "requires", lambda _: ["no-such-package"])
    told = CliRunner().invoke(app, ["doctor", "--json"])
    assert told.exit_code == 1
    assert json.loads(told.output)["problems"] == ["no-such-package is not installed"]


def test_a_workspace_in_order_and_a_damaged_one(tmp_path: Path) -> None:
    Workspace.create(tmp_path / "shop").close()
    told = CliRunner().invoke(app, ["doctor", "-w", str(tmp_path / "shop")])
    assert told.exit_code == 0
    assert f"Next: fixstar train LABELLED_IMAGES -w {tmp_path / 'shop'}" in told.output
    with open_gallery(str(tmp_path / "shop" / "gallery.db")) as gallery:
        gallery.create_version("old", 2)
        gallery.upsert("old", ["a"], np.eye(2, dtype=np.float32)[:1])
    whole = json.loads(
        CliRunner().invoke(app, ["doctor", "-w", str(tmp_path / "shop"), "--json"]).output
    )
    assert (whole["workspace"]["vectors"], whole["workspace"]["writable"], whole["problems"]) == (
        1,
        True,
        [],
    )
    (tmp_path / "shop" / "gallery.db").write_bytes(b"not a database at all" * 100)
    told = CliRunner().invoke(app, ["doctor", "-w", str(tmp_path / "shop"), "--json"])
    assert told.exit_code == 1
    assert "gallery.db" in json.loads(told.output)["problems"][0]


def test_not_a_workspace(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["doctor", "-w", str(tmp_path)])
    assert told.exit_code == 1
    assert f"PROBLEM: {tmp_path} is not a workspace" in told.output
    assert f"fixstar init {tmp_path}" in told.output


def test_beside_a_workspace_what_is_installed_is_one_line(tmp_path: Path) -> None:
    with shop(tmp_path / "shop", versions=1) as space:
        path = space.path
    told = typed("doctor", "-w", path).out.splitlines()
    assert len(told) == 3
    assert told[0].endswith("installed (fixstar doctor lists them)")
    assert told[1].startswith(f"workspace {path}: 1 version, v1 deployed")
    assert told[2] == "no problems"
    assert "pre-trained" in typed("doctor").out
