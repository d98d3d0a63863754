"""The file of sentences: it is compared, updated by one command, and has nothing of tests that are gone."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from wording import FIGURES, WORDING, normalised, read_wording, refuses, write_wording

from fixstar.errors import GateError, InputError, NextStep

ROOT = Path(__file__).parent.parent

SHOP = """
import pytest
from wording import check_wording, refuses
from fixstar.errors import GateError, InputError, NextStep

def test_two_sentences(tmp_path):
    with refuses(InputError):
        raise InputError(f"no file {tmp_path}/a.png")
    with refuses(GateError, "check") as caught:
        raise GateError("WORDS", NextStep("check", {"version": "v2"}))
    assert caught.value.next_steps

@pytest.mark.parametrize("size", [1, 2])
def test_sizes(size):
    check_wording(f"{size} is wrong\\nuse 3")
"""


class Project:
    """A project of one test file, with the plugin."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "tests").mkdir()
        (root / "pytest.ini").write_text("[pytest]\naddopts = -q -p no:cacheprovider\n")
        (root / "tests" / "conftest.py").write_text('pytest_plugins = ["wording"]\n')
        self.write(SHOP)

    def write(self, source: str, name: str = "test_shop.py") -> None:
        (self.root / "tests" / name).write_text(source)

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        paths = os.pathsep.join([str(ROOT / "tests" / "support"), str(ROOT / "src")])
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "xdist", *options],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            check=False,
        )

    def kept(self) -> dict[str, list[str]]:
        return {test.partition("::")[2]: texts for test, texts in read_wording(self.root).items()}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_sentences_are_recorded_compared_and_updated(project: Project) -> None:
    unknown = project.run()
    assert unknown.returncode == 1
    assert "no wording is kept for this" in unknown.stdout

    recorded = project.run("--update-wording", "-n", "2")
    assert recorded.returncode == 0, recorded.stdout
    assert project.kept() == {
        "test_sizes[1]": ["1 is wrong\nuse 3"],
        "test_sizes[2]": ["2 is wrong\nuse 3"],
        "test_two_sentences": ["no file <tmp>/a.png", "WORDS\nNext step: check(version='v2')"],
    }
    assert project.run().returncode == 0

    project.write(SHOP.replace("WORDS", "OTHERS"))
    changed = project.run()
    assert changed.returncode == 1
    assert "- WORDS" in changed.stdout
    assert "+ OTHERS" in changed.stdout
    command = changed.stdout.partition("Accept it with: pytest ")[2].splitlines()[0]
    assert command == "--update-wording 'tests/test_shop.py::test_two_sentences'"
    assert project.run(*command.replace("'", "").split()).returncode == 0
    assert project.kept()["test_two_sentences"][1] == "OTHERS\nNext step: check(version='v2')"


@pytest.mark.long
def test_a_wrong_type_fails_also_in_an_update(project: Project) -> None:
    project.run("--update-wording")
    before = project.kept()
    project.write(SHOP.replace("raise GateError(", "raise InputError("))
    assert project.run("--update-wording").returncode == 1
    assert project.kept() == before


@pytest.mark.long
def test_entries_of_tests_that_are_gone_are_removed(project: Project) -> None:
    project.write(SHOP, "test_other.py")
    project.run("--update-wording")
    project.write(SHOP.replace("[1, 2]", "[1]"))
    (project.root / "tests" / "test_other.py").unlink()
    project.run("--update-wording", "-k", "two_sentences")
    assert set(project.kept()) == {
        "test_sizes[1]",
        "test_sizes[2]",
        "test_two_sentences",
    }  # -k leaves out the others
    project.run("--update-wording", "tests/test_shop.py::test_two_sentences")
    assert set(project.kept()) == {"test_sizes[1]", "test_sizes[2]", "test_two_sentences"}
    project.run("--update-wording")
    assert set(project.kept()) == {"test_sizes[1]", "test_two_sentences"}


def test_next_steps_are_compared_by_their_actions() -> None:
    with pytest.raises(AssertionError), refuses(InputError, "deploy"):
        raise InputError("", NextStep("check"))
    with pytest.raises(pytest.fail.Exception), refuses(InputError):
        pass
    with pytest.raises(GateError), refuses(InputError):
        raise GateError("not this one")


def test_what_differs_between_runs_is_left_out(tmp_path: Path) -> None:
    assert normalised(f"{tmp_path}/shop is gone", folder=tmp_path.parent) == "<tmp>/shop is gone"
    assert normalised("/tmp/fixstar-ab12cd34/x is gone") == "<tmp>/x is gone"
    assert normalised("http://127.0.0.1:43210/v1") == "http://127.0.0.1:<port>/v1"
    assert normalised("version 0a1b2c3d4e5f, id 12345678") == "version <hash>, id 12345678"
    assert (
        normalised("t_2c07731218de_current is no deadbeef5x") == "t_<hash>_current is no deadbeef5x"
    )
    assert normalised("Known: a.b, c, d, e+f, g, h, i, j-1. Else") == "Known: <names>. Else"
    assert normalised("56.9 % of 300 queries", FIGURES) == "<...> % of 300 queries"


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    sentences = {
        "tests/a.py::test_b[x::y]": ["one line", "two\nlines\n", ""],
        "tests/a.py::test_a": ["ä"],
    }
    write_wording(tmp_path, sentences)
    assert read_wording(tmp_path) == sentences


@cache
def functions(file: str) -> set[str]:
    """The names of all test functions of a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_the_file_has_nothing_of_tests_that_are_gone() -> None:
    for test in read_wording(ROOT):
        file, _, name = test.partition("::")
        name = name.partition("[")[0].rpartition("::")[2]
        assert name in functions(file), (
            f"{test} is gone; run pytest --update-wording, or delete it from {WORDING}"
        )
