"""At 80 columns no word and no name is broken, and only a single long word may be wider."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest
from shops import indexed_shop
from typed import typed

from fixstar.cli.output import print_table
from fixstar.methods import METHODS
from fixstar.research.benchmarks import catalogue
from fixstar.workspace import Check
from fixstar.workspace.checks import save_check


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return indexed_shop(tmp_path_factory.mktemp("narrow"), photos=4, versions=3)


def shown(*words: str | Path, columns: int) -> str:
    with patch("typed.COLUMNS", str(columns)):
        return typed(*words).out


@pytest.mark.parametrize(
    "verb",
    [
        "bench list",
        "methods",
        "status",
        "check",
        "slots",
        "gallery stats",
        "search --like hat/1.png",
    ],
)
def test_no_word_is_broken_at_80_columns(verb: str, shop: Path) -> None:
    words: list[str | Path] = [*verb.split()]
    if verb not in ("bench list", "methods"):
        words += ["-w", shop]
    if verb == "check":
        words += ["v2", "--data", shop.parent / "photos", "--no-report"]
    wide, narrow = shown(*words, columns=400), shown(*words, columns=80)
    assert set(narrow.split()) == set(wide.split())
    for line in narrow.splitlines():
        command = "fixstar " in line  # commands are copied: they stay on one line
        assert len(line.rstrip()) <= 80 or command or len(line.split()) == 1, line


def test_status_is_one_table_at_80_columns(tmp_path: Path) -> None:
    path = indexed_shop(tmp_path)
    save_check(path, Check("v2", "missing evidence", (), (), 1.0, 500, 500, 0.95, 0.0))
    assert "made" in shown("status", "-w", path, columns=200)
    narrow = shown("status", "-w", path, columns=80)
    heads = [line for line in narrow.splitlines() if line.startswith("version")]
    assert len(heads) == 1
    assert heads[0].split()[-2:] == ["check", "alone"]


def test_lists_name_everything(shop: Path) -> None:
    listed = shown("bench", "list", columns=80).split()
    assert set(catalogue()) <= set(listed)
    assert set(METHODS) <= set(shown("methods", columns=80).split())
    assert json.loads(shown("status", "-w", shop, "--json", columns=80))["versions"] == [
        "v1",
        "v2",
        "v3",
    ]


def test_a_name_takes_one_line_and_cannot_command_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("item", "label"), [("new\nline/1.jpg", ("\x1b[31mred\x07", "green"))])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].split() == [r"new\nline/1.jpg", r"\x1b[31mred\x07"]
