"""Scripts of benchmarks/: another folder, or an unknown method, gets one clear line; what change_model.py draws."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from fixstar.geometry import unit

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
        (["methods.py"], "half", "half has no images_evaluation; give Omniglot's folder"),
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


# change_model.py: classes that judge are not fitted


def saved_models(folder: Path) -> None:
    """Two models of 12 classes; the new one sees what the old one sees, turned, with less noise."""
    rng = np.random.default_rng(0)
    labels = np.repeat([f"class {number:02}" for number in range(12)], 16)
    centres = rng.normal(size=(12, 8))
    turned = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    (folder / "banking77").mkdir()
    for model, noise in (("wordllama", 0.8), ("minilm", 0.4)):
        seen = np.repeat(centres, 16, axis=0) + noise * rng.normal(size=(192, 8))
        vectors = unit((seen @ turned if model == "minilm" else seen).astype(np.float32))
        ids = [str(row) for row in range(192)]
        np.savez(folder / "banking77" / f"{model}.npz", vectors=vectors, labels=labels, ids=ids)


def test_a_missing_file_of_pairs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = refused(monkeypatch, "change_model.py", str(tmp_path), "--out", str(tmp_path / "out.json"))
    assert line.startswith("change_model.py: ")
    assert "wordllama.npz is missing; PAIRS holds SET/MODEL.npz" in line


def test_items_that_judge_are_of_classes_that_are_not_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    change_model = importlib.import_module("change_model")
    labels = np.repeat(["a", "b", "c", "d", ""], 10)
    drawn = change_model.draw(labels, "all", seed=3)
    fewer = change_model.draw(labels, "7", seed=3)
    assert sorted([*drawn.fitted, *drawn.judging]) == list(range(50))
    assert not set(labels[drawn.fitted]) & set(labels[drawn.judging])
    assert len(set(labels[drawn.judging])) == 2
    assert "" in labels[drawn.fitted]
    assert set(fewer.fitted) < set(drawn.fitted)
    assert len(fewer.fitted) == 7
    assert fewer.judging.tolist() == drawn.judging.tolist()
    assert change_model.draw(labels, "all", seed=4).judging.tolist() != drawn.judging.tolist()


def test_figures_of_a_change_are_kept_and_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved_models(tmp_path)
    monkeypatch.syspath_prepend(SCRIPTS)
    change_model = importlib.import_module("change_model")
    out = tmp_path / "out.json"
    usual = ["change_model.py", str(tmp_path), "--only", "banking77", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*usual, "--seeds", "2", "--sizes", "40,500,all"])
    change_model.main()
    runs = json.loads(out.read_text())["runs"]
    assert [(run["size"], run["seed"]) for run in runs] == [("all", 0), ("all", 1), ("40", 0), ("40", 1)]
    assert [run["pairs"] for run in runs] == [96, 96, 40, 40]
    for run in runs:
        ways = run["ways"]
        assert set(ways) == set(change_model.WAYS)
        assert ways["all re-embedded"]["finds"] > ways["old model"]["finds"]
        differs = ways["both sides, two models"]["finds"] - ways["old model"]["finds"]
        assert ways["both sides, two models"]["difference"] == pytest.approx(differs, abs=2e-5)
        followed = ways[run["chosen"] if run["outcome"] == "pass" else "old model"]["finds"]
        assert run["as advised"] == followed
    assert "| banking77: wordllama -> minilm | 96 |" in capsys.readouterr().out
    monkeypatch.setattr(change_model, "bridge", lambda *_, **__: pytest.fail("measured again"))
    change_model.main()
    assert json.loads(out.read_text())["runs"] == runs
    mean = np.mean([run["ways"]["all re-embedded"]["difference"] for run in runs[:2]])
    change = change_model.CHANGES[0]
    assert change_model.difference(change_model.runs_of(runs, change, "all"), "all re-embedded")[0] == 100 * mean
