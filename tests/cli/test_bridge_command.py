"""fixstar bridge: the verdict first, the table, the file, and the exit code."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from typed import Typed, typed

from fixstar.geometry import unit
from fixstar.workspace.adapters.portable import load_bridge


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """good.npz is a better model than poor.npz; plain.npy is the good one without ids and labels."""
    folder, rng = tmp_path_factory.mktemp("bridge"), np.random.default_rng(0)
    labels = rng.integers(30, size=900)
    content = rng.standard_normal((30, 12))[labels] + 0.3 * rng.standard_normal((900, 12))
    turn = np.linalg.qr(rng.standard_normal((12, 12)))[0]
    ids, names = np.array([f"item {row}" for row in range(900)]), np.array([f"class {label}" for label in labels])
    for name, noise in (("poor", 1.2), ("good", 0.1)):
        vectors = unit(content + noise * rng.standard_normal(content.shape)) @ (turn if name == "good" else np.eye(12))
        np.savez(folder / f"{name}.npz", vectors=vectors, ids=ids, labels=names)
        np.save(folder / f"{name}.npy", vectors)
    return folder


def bridge(*words: str | Path) -> Typed:
    return typed("bridge", *words, "--kinds", "procrustes, ridge")


def test_a_better_model_is_written_and_applied(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "bridge.npz"
    done = bridge(files / "poor.npz", files / "good.npz", "--out", out)
    assert done.code == 0
    assert done.out.startswith("Use it: the best way, ")
    for word in ("old model", "procrustes, queries", "ridge, blended", "re-embedded", "compatible", "bridge.npz"):
        assert word in done.out
    made = load_bridge(out)
    assert made.card["outcome"] == "pass"
    assert made.card["candidates"][0]["low"] > 0
    again = bridge(files / "poor.npz", files / "good.npz", "--out", out)
    assert again.code == 1
    assert "never overwritten" in again.err
    used = typed(
        *("bridge", files / "poor.npz", files / "good.npz", "--use", out, "--out", tmp_path / "mapped.npz", "--json")
    )
    assert used.json["vectors"] == 900
    with np.load(tmp_path / "mapped.npz") as mapped:
        assert mapped["vectors"].shape == (900, 12)


def test_a_worse_model_is_not_used(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "bridge.npz"
    done = typed(*("bridge", files / "good.npz", files / "poor.npz", "--kinds", "ridge", "--out", out, "--json"))
    assert done.json["outcome"] != "pass"
    assert done.json["verdict"].startswith("Keep the old model")
    assert done.code == {"refuse": 2, "missing evidence": 3}[done.json["outcome"]]
    assert out.exists() == (done.json["outcome"] != "refuse")
    assert done.json["file"] == (str(out) if out.exists() else None)


def test_without_labels_it_is_unproven(files: Path) -> None:
    done = bridge(files / "poor.npy", files / "good.npy")
    assert done.code == 3
    assert done.out.startswith("Unproven: there are no labels.")
    assert "unproven" in done.out


@pytest.mark.parametrize("label", ["npz", "npy"])
def test_nothing_is_wider_than_80_columns(files: Path, label: str) -> None:
    with patch("typed.COLUMNS", "80"):
        done = bridge(files / f"poor.{label}", files / f"good.{label}")
    assert all(len(line.rstrip()) <= 80 for line in done.out.splitlines()), done.out


def test_mistakes_are_one_line(files: Path, tmp_path: Path) -> None:
    cases: list[tuple[list[str | Path], str]] = [
        ([files / "absent.npz", files / "good.npz"], "absent.npz"),
        (["mysql://host/db?table=x", files / "good.npz"], "postgresql:// or qdrant://"),
        ([files / "poor.npz", files / "good.npz", "--out", tmp_path / "bridge.onnx"], "saved as FILE.npz"),
        ([files / "poor.npz", files / "good.npz", "--use", files / "good.npz"], "name the file to write"),
        ([files / "poor.npz", "new.onnx"], "is a model: give images"),
    ]
    for words, told in cases:
        done = typed("bridge", *words)
        assert done.code == 1
        assert told in done.err
        assert "Traceback" not in done.err
    torn = tmp_path / "torn.npz"
    torn.write_bytes((files / "good.npz").read_bytes()[:500])
    assert "torn.npz is damaged" in typed("bridge", files / "poor.npz", torn).err
