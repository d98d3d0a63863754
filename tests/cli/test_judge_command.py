"""fixstar judge: the verdict first, the table, JSON, and the exit code."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from typed import Typed, typed

from fixstar.geometry import unit


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """poor.npz and good.npz, and what tools made of poor.npz: fine.npz, bad.npz, and same.npz, which is poor's."""
    folder = tmp_path_factory.mktemp("judge")
    rng = np.random.default_rng(0)
    labels = rng.integers(30, size=900)
    content = rng.standard_normal((30, 12))[labels] + 0.3 * rng.standard_normal((900, 12))
    ids = np.array([f"item {row}" for row in range(900)])
    names = np.array([f"class {label}" for label in labels])
    for name, noise in (("poor", 1.0), ("good", 0.1), ("fine", 0.3), ("bad", 3.0)):
        vectors = unit(content + noise * rng.standard_normal(content.shape))
        np.savez(folder / f"{name}.npz", vectors=vectors, ids=ids, labels=names)
    return folder


def judge(
    files: Path, migrated: str, *words: str | Path, old: str = "poor", new: str = "good"
) -> Typed:
    named = {"--old": old, "--new": new, "--migrated": migrated}
    sides: list[str | Path] = []
    for option, name in named.items():
        sides += [option, files / f"{name}.npz"]
    return typed("judge", *sides, *words)


def test_a_better_migration(files: Path) -> None:
    done = judge(files, "fine")
    assert done.code == 0
    assert done.out.startswith("Better: the migrated vectors reach top-1 accuracy ")
    for word in ("nDCG@10", "Recall@10", "MRR", "re-embedded", "top-1 decides", "judged by labels"):
        assert word in done.out
    found = judge(files, "fine", "--measure", "nDCG@10", "--json")
    assert found.code == 0
    assert (found.json["verdict"], found.json["measure"], found.json["reached"]) == (
        "better",
        "nDCG@10",
        True,
    )
    row = found.json["measured"]["nDCG@10"]["migrated"]
    assert 0 < row["low"] <= row["difference"] <= row["high"]
    assert 0 < row["share"] < 1


def test_a_worse_one_and_one_that_cannot_be_told(files: Path) -> None:
    worse = judge(files, "bad")
    assert worse.code == 2
    assert worse.out.startswith("Worse: ")
    assert judge(files, "bad", "--at-least", "no-worse").code == 2
    same = judge(files, "poor", old="poor", new="poor")
    assert same.code == 3
    assert same.out.startswith("No worse: ")
    assert judge(files, "poor", "--at-least", "no-worse", old="poor", new="poor").code == 0
    strict = judge(files, "poor", "--tolerance", "0", old="poor", new="poor")
    assert strict.code == 3
    assert strict.out.startswith("Cannot be told: ")


def test_nothing_is_wider_than_80_columns(files: Path) -> None:
    with patch("typed.COLUMNS", "80"):
        done = judge(files, "bad")
    assert all(len(line.rstrip()) <= 80 for line in done.out.splitlines()), done.out


def test_mistakes_are_one_line(files: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "qrels.tsv"
    wrong.write_text("q1\titem 1\tgood\n")
    cases: list[tuple[tuple[str | Path, ...], str]] = [
        (("--relevant", wrong), "line 1: a grade is a number"),
        (("--relevant", tmp_path / "absent.tsv"), "cannot be read"),
        (("--at-least", "best"), "unknown demand 'best'"),
        (
            ("--queries-old", files / "poor.npz"),
            "Next: the same command with --queries-new FILE.npz",
        ),
        (
            ("--queries-new", files / "absent.npz", "--queries-old", files / "poor.npz"),
            "absent.npz",
        ),
        (("--confidence", "95"), "confidence is a fraction"),
    ]
    for words, told in cases:
        done = judge(files, "fine", *words)
        assert done.code == 1
        assert told in done.err
        assert "Traceback" not in done.err
    assert typed("judge", "--old", files / "poor.npz").code == 64
