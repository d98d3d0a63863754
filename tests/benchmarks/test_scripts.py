"""The scripts of benchmarks/ that read Omniglot: another folder, or an unknown method, gets one clear line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("words", "folder", "message"),
    [
        (
            ["methods.py"],
            "missing",
            "missing has no images_background and no images_evaluation; give Omniglot's folder",
        ),
        (["adapters.py", "--omniglot"], "half", "half has no images_evaluation; give Omniglot's folder"),
        (["methods.py"], "empty", "no drawings; expected alphabet/character"),
    ],
)
def test_another_folder_is_refused_in_one_line(words: list[str], folder: str, message: str, tmp_path: Path) -> None:
    for part in ("half/images_background", "empty/images_background", "empty/images_evaluation"):
        (tmp_path / part).mkdir(parents=True)
    command = [sys.executable, str(SCRIPTS / words[0]), *words[1:], folder]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"{words[0]}: ")
    assert message in last


def test_an_unknown_method_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "methods.py"), "missing", "--methods", "er, hco"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("methods.py: unknown method 'hco'; did you mean 'hoc'? Known: ")
    assert "bct-kd, " in line
    assert line.endswith("--methods hoc,er")
    assert not list(tmp_path.iterdir())
