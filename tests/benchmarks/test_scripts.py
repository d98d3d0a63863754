"""The scripts of benchmarks/ that read Omniglot: another folder, or an unknown method, gets one clear line."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


def refused(monkeypatch: pytest.MonkeyPatch, script: str, *words: str) -> str:
    """What a script prints as it ends with an error: one line, without a traceback."""
    monkeypatch.setattr(sys, "argv", [script, *words])
    monkeypatch.syspath_prepend(SCRIPTS)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(SCRIPTS / script), run_name="__main__")
    (line,) = str(end.value.code).splitlines()
    return line


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
def test_another_folder_is_refused_in_one_line(
    words: list[str], folder: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("half/images_background", "empty/images_background", "empty/images_evaluation"):
        (tmp_path / part).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    line = refused(monkeypatch, *words, folder)
    assert line.startswith(f"{words[0]}: ")
    assert message in line


def test_an_unknown_method_is_refused_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused(monkeypatch, "methods.py", "missing", "--methods", "er, hco")
    assert line.startswith("methods.py: unknown method 'hco'; did you mean 'hoc'? Known: ")
    assert "bct-kd, " in line
    assert line.endswith("--methods hoc,er")
    assert not list(tmp_path.iterdir())
