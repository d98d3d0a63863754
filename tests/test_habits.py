"""What keeps the house in order: workflows, constraints, releases, and the files that CONTRIBUTING.md names."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fixstar"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MADE = {"build/site"}  # by make


def named_paths(text: str) -> set[str]:
    """What a text puts into backticks that looks like a path."""
    quoted = re.findall(r"`([^`\s]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    endings = (".py", ".md", ".toml", ".json", ".js", ".yml", ".txt", "/")
    return {
        word
        for word in quoted
        if word.endswith(endings) or (re.fullmatch(r"[\w/.-]+", word) and "/" in word)
    }


def missing_paths(names: set[str]) -> list[str]:
    """The names that are neither files of the repository nor of the package, nor of a folder of the benchmarks."""
    places = (ROOT, SOURCE, SOURCE / "research" / "benchmarks", ROOT / "docs" / "appendix")
    return sorted(
        name for name in names if not any(list(place.glob(name.rstrip("/"))) for place in places)
    )


def test_contributing_names_only_files_that_exist() -> None:
    names = named_paths((ROOT / "CONTRIBUTING.md").read_text())
    assert len(names) > 50
    assert missing_paths(names - MADE) == []


def test_a_path_that_is_not_there_is_seen() -> None:
    names = named_paths(
        "`losses.py`, `gone.py`, `tests/gone/`, `a.b`, `service/routes_*.py`\n```\n`other.py`\n```"
    )
    assert names == {"losses.py", "gone.py", "tests/gone/", "service/routes_*.py"}
    assert missing_paths(names) == ["gone.py", "tests/gone/"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_pin_actions_by_commit_and_use_targets_that_exist(path: Path) -> None:
    text = path.read_text()
    used = re.findall(r"uses: (.+)", text)
    assert used
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action), action
    targets = set(re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text()))
    assert set(re.findall(r"run: make ([\w-]+)", text)) <= targets
    for script in re.findall(r"python (\.ci/\S+)", text):
        assert (ROOT / script).is_file()


def test_one_action_has_one_version() -> None:
    used = {action for path in WORKFLOWS for action in re.findall(r"uses: (.+)", path.read_text())}
    assert len(used) == len({action.partition("@")[0] for action in used})


def test_the_lowest_versions_are_those_that_the_project_allows() -> None:
    allowed = [re.match(r"([\w-]+)>=([\d.]+)", line) for line in PROJECT["project"]["dependencies"]]
    lowest = {found[1]: found[2] for found in allowed if found is not None}
    assert len(lowest) == len(PROJECT["project"]["dependencies"])
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    assert dict(line.split("==") for line in lines if not line.startswith("#")) == lowest


def test_coverage_has_a_floor() -> None:
    assert PROJECT["tool"]["coverage"]["report"]["fail_under"] >= 80


# --- releases


def git(folder: Path, *arguments: str) -> None:
    who = (
        "-c",
        "user.name=test",
        "-c",
        "user.email=test@example.org",
        "-c",
        "commit.gpgsign=false",
    )
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def script(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".ci" / name), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A repository with a release 0.2.0 of a package that has one function."""
    package = tmp_path / "src" / "fixstar"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        '__version__ = "0.2.0"\n\n\ndef search(k: int) -> int:\n    return k\n'
    )
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## 0.2.0 - 2026-01-01\n\nNew.\n\n## 0.1.0\n\nOld.\n"
    )
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Release")
    return tmp_path


def test_a_name_that_a_release_had_goes_only_with_a_higher_version(released: Path) -> None:
    pytest.importorskip("griffe", reason="the docs extra is not installed")
    assert "no release is tagged" in script("api_diff.py", released).stdout
    git(released, "tag", "v0.2.0")
    kept = script("api_diff.py", released)
    assert (kept.returncode, kept.stdout) == (0, "0.2.0 has everything that v0.2.0 has\n")

    source = released / "src" / "fixstar" / "__init__.py"
    source.write_text('__version__ = "0.2.1"\n')
    lost = script("api_diff.py", released)
    assert lost.returncode == 1
    assert "search" in lost.stdout
    source.write_text('__version__ = "0.3.0"\n')
    assert script("api_diff.py", released).returncode == 0


def test_the_notes_of_a_release_are_its_section_of_the_changelog(released: Path) -> None:
    assert script("release_notes.py", released, "v0.2.0").stdout == "New.\n"
    wrong = script("release_notes.py", released, "v0.3.0")
    assert wrong.returncode == 1
    assert "v0.3.0" in wrong.stderr
    (released / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")
    assert script("release_notes.py", released, "v0.2.0").returncode == 1
