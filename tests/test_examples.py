"""The programs in examples/ run as they stand."""

from __future__ import annotations

import json
import runpy
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from text_models import bert_folder
from typed import typed

from fixstar.data.glyphs import SCRIPTS

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_every_example_is_run_here_and_is_short() -> None:
    assert {path.name for path in EXAMPLES.glob("*.*")} == {
        "characters.py",
        "first_upgrade.ipynb",
        "foreign_model.py",
        "hf_trainer.py",
        "judge_features.py",
        "judge_migration.yml",
        "lightning_loop.py",
        "plain_loop.py",
        "text_index.py",
        "two_models.ipynb",
        "two_versions.py",
    }
    assert all(len(path.read_text().splitlines()) < 70 for path in EXAMPLES.glob("*.py"))
    assert all(
        sum(len(cell["source"]) for cell in cells(path.name)) < 60
        for path in EXAMPLES.glob("*.ipynb")
    )


def cells(name: str) -> list[dict[str, Any]]:
    return list(json.loads((EXAMPLES / name).read_text())["cells"])


def run_notebook(name: str) -> dict[str, Any]:
    """Run its cells of code in order; what they leave."""
    left: dict[str, Any] = {}
    for cell in cells(name):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), name, "exec"), left)
    return left


@pytest.mark.long
def test_first_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = run_notebook("first_upgrade.ipynb")
    assert left["check"].cells[0].version == "v1"
    assert left["check"].outcome in ("pass", "refuse", "missing evidence")
    assert left["space"].rollout.current() == "v2"


@pytest.mark.long
def test_two_models(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_notebook("two_models.ipynb")["found"]
    assert (found.outcome, found.chosen, found.queries, found.gallery) == (
        "pass",
        "both sides, one model",
        112,
        256,
    )
    finds = {name: one.finds for name, one in found.measured.items()}
    assert finds["old model"] == pytest.approx(
        52 / 112, abs=0.02
    )  # two queries: other processors round otherwise
    assert finds["both sides, one model"] == pytest.approx(67 / 112, abs=0.02)
    assert finds["all re-embedded"] == pytest.approx(74 / 112, abs=0.02)
    best = found.measured[found.chosen]
    assert best.won - best.lost == round(112 * (best.finds - finds["old model"]))
    assert f"{best.finds:.1%}".replace("%", " %") in capsys.readouterr().out


def test_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {
        name: tuple(mark for mark in marks if mark in "12ABΓΔДЖ") for name, marks in SCRIPTS.items()
    }
    monkeypatch.setattr("fixstar.data.glyphs.SCRIPTS", few)
    run("characters.py", monkeypatch, str(tmp_path))
    assert len(list((tmp_path / "held-out" / "U+0416").glob("*.png"))) == 200


@pytest.mark.long
def test_text_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [
        f"hf:{bert_folder(tmp_path / name, seed=seed)}" for seed, name in enumerate(("old", "new"))
    ]
    run("text_index.py", monkeypatch, *models)
    told = capsys.readouterr().out
    assert "60 passages indexed. v1 answers 'how do I return boots' with:" in told
    assert "questions judge, nDCG@10: v1 " in told
    assert told.endswith("Back to v1; no vector was changed\n")


@pytest.mark.long
def test_two_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    for part, digits in {"2024": "01", "2025": "0123", "held": "456"}.items():
        for digit in digits:
            (tmp_path / part / digit).mkdir(parents=True)
            for i in np.flatnonzero(labels == int(digit))[:12]:
                image = Image.fromarray((pixels[i].reshape(8, 8) * 15).astype(np.uint8)).convert(
                    "RGB"
                )
                image.save(tmp_path / part / digit / f"{i}.png")
    folders = [str(tmp_path / part) for part in ("2024", "2025", "held")]
    run("two_versions.py", monkeypatch, *folders)
    assert "v2 on v1's vectors" in capsys.readouterr().out


def test_plain_loop(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("plain_loop.py", monkeypatch)
    assert float(capsys.readouterr().out.split()[-1]) > 0.8


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "library"), [("lightning_loop.py", "lightning"), ("hf_trainer.py", "accelerate")]
)
def test_loops_of_others(
    name: str, library: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed, so {name} was not run")
    run(name, monkeypatch)
    assert float(capsys.readouterr().out.split()[-1]) > 0.7


def test_judge_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("judge_features.py", monkeypatch)
    assert "new on old 8" in capsys.readouterr().out
    features, labels = np.eye(4), np.arange(4)
    kinds = ("old_queries", "new_queries", "old_gallery", "new_gallery")
    arrays: dict[str, Any] = dict.fromkeys(kinds, features) | {
        "query_labels": labels,
        "gallery_labels": labels,
    }
    np.savez(tmp_path / "features.npz", **arrays)
    run("judge_features.py", monkeypatch, str(tmp_path / "features.npz"))
    assert "new on old 100.0%" in capsys.readouterr().out


def test_judge_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of the workflow, over files in the layout that it names; the summary reads what it prints."""
    workflow = (EXAMPLES / "judge_migration.yml").read_text()
    assert len(workflow.splitlines()) < 60
    command = workflow.replace("\\\n", " ").partition(" fixstar judge ")[2].partition("|")[0]
    rng = np.random.default_rng(0)
    (tmp_path / "embeddings").mkdir()
    content = rng.standard_normal((300, 8))
    for name, noise in (("old", 1.0), ("new", 0.1), ("migrated", 0.3)):
        for part, rows in (("docs", range(200)), ("queries", range(100))):
            vectors = content[list(rows)] + noise * rng.standard_normal((len(rows), 8))
            ids = np.array([f"{part} {row}" for row in rows])
            np.savez(tmp_path / "embeddings" / f"{part}-{name}.npz", vectors=vectors, ids=ids)
    lines = "".join(f"queries {row}\tdocs {row}\t1\n" for row in range(100))
    (tmp_path / "embeddings" / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}")
    monkeypatch.chdir(tmp_path)
    done = typed("judge", *shlex.split(command))
    assert done.code == 0
    assert "['sentence']" in workflow
    assert done.json["sentence"].startswith("Better: ")


@pytest.mark.long
def test_foreign_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    run("foreign_model.py", monkeypatch)
    assert "image 7 are 7" in capsys.readouterr().out
