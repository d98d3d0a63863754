"""fixstar migrate plan, run, switch and undo, and fixstar doctor --vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typed import typed
from vector_shops import PostgresShop
from wording import check_wording

from fixstar.geometry import unit
from fixstar.translation import Map, Translation, save_translation

AHEAD = "stored mapped forward"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """old.npz, and gains.npz and loses.npz, whose maps were measured to gain and to lose."""
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "old.npz",
        vectors=unit(rng.standard_normal((30, 4))),
        ids=np.array([f"i{n}" for n in range(30)]),
    )
    matrix = rng.standard_normal((4, 6))
    for name, difference in (("gains", 0.04), ("loses", -0.04)):
        measured = {
            AHEAD: {"difference": difference, "low": difference - 0.01, "high": difference + 0.01}
        }
        about = {"measured": measured, "measure": "top-1", "made": "2026-01-01"}
        way = Translation("clip", "siglip", forward=Map.linear(matrix), two=0.6, about=about)
        save_translation(way, tmp_path / f"{name}.npz", onnx=False)
    return tmp_path


def test_from_the_plan_to_undo(files: Path) -> None:
    old, way, to = files / "old.npz", files / "gains.npz", files / "new.npz"
    plan = typed("migrate", "plan", old, way, "--to", to, "--price", "20000")
    assert plan.code == 0
    for told in (
        "alone gain over the old model: +4.0 points, between +3.0 and +5.0",
        "30 items of 4 components",
        "6 components",
        "clip -> siglip",
        "would cost 0.60",
        "translated vectors alone mostly found less than the old model",
        f"fixstar migrate run {old} {way} --to {to}",
    ):
        assert told in " ".join(plan.out.split())
    assert not to.exists()
    assert typed("migrate", "plan", old, way, "--to", to, "--json").json["forecast"] == "gains"
    done = typed("migrate", "run", old, way, "--to", to, "--json")
    assert done.json == {"written": 30, "unchanged": 0, "own": 0, "removed": 0}
    assert f"load {to}" in typed("migrate", "switch", old, way, "--to", to).out
    assert "was never changed" in typed("migrate", "undo", old, "--to", to).out


def test_a_translation_that_loses_is_refused_with_what_to_do(files: Path) -> None:
    words: list[str | Path] = [
        "migrate",
        "run",
        files / "old.npz",
        files / "loses.npz",
        "--to",
        files / "new.npz",
    ]
    refused = typed(*words)
    assert refused.code == 1
    for told in (
        "alone lose against the old model",
        "fixstar init WORKSPACE",
        "the same command with --anyway",
    ):
        assert told in refused.err
    assert not (files / "new.npz").exists()
    plan = typed("migrate", "plan", *words[2:])
    assert plan.out.rstrip().endswith("--anyway")
    assert typed(*words, "--anyway").code == 0
    assert typed("migrate", "switch", *words[2:]).code == 1


def test_a_view_of_another_name_is_asked_for_and_typed(tmp_path: Path, files: Path) -> None:
    stock = PostgresShop(tmp_path)
    rng = np.random.default_rng(1)
    stock.put(
        [str(number) for number in range(1, 11)],
        unit(rng.standard_normal((10, 4))).astype(np.float32),
    )
    words: list[str | Path] = [stock.address, files / "gains.npz", "--to", stock.to]
    assert typed("migrate", "run", *words).code == 0
    stock.server.execute(f"CREATE VIEW {stock.name}_current AS SELECT 1 AS one")
    taken = typed("migrate", "switch", *words)
    assert taken.code == 1
    check_wording(taken.err)
    live = f"{stock.name}_live"
    assert f"read {live}" in " ".join(
        typed("migrate", "switch", *words, "--alias", live).out.split()
    )
    assert stock.server.execute(f"SELECT count(*), max(vector_dims(vector)) FROM {live}") == [
        (10, 6)
    ]
    assert typed("migrate", "undo", stock.address, "--to", stock.to, "--alias", live).code == 0
    assert stock.server.execute(f"SELECT max(vector_dims(vector)) FROM {live}") == [(4,)]


def test_the_doctor_finds_vectors_of_two_models(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scales = np.diag(0.9 ** np.arange(48))
    one, other = (scales @ np.linalg.qr(rng.standard_normal((48, 48)))[0] for _ in range(2))
    classes = rng.standard_normal((20, 48))
    content = 3 + classes[rng.integers(20, size=2000)] + 0.7 * rng.standard_normal((2000, 48))
    np.save(tmp_path / "one.npy", content @ one)
    np.save(tmp_path / "both.npy", np.concatenate([content[:1000] @ one, content[1000:] @ other]))
    fine = typed("doctor", "--vectors", tmp_path / "one.npy", "--json").json
    assert fine["vectors"]["verdict"] == "one model"
    assert not [problem for problem in fine["problems"] if "two models" in problem]
    mixed = typed("doctor", "--vectors", tmp_path / "both.npy")
    assert mixed.code == 1
    assert "seems to hold vectors of two models: 50." in mixed.out or "two models: 49." in mixed.out
    assert "2,000 items of 48 components, 2,000 looked at: mixed" in mixed.out
