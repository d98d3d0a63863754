"""benchmarks/upgrades.py: one small upgrade from a folder of images, its figures against slow code, and resuming."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fixstar.errors import DataError, UnknownNameError
from fixstar.evaluation.search import image_search, template_search

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "upgrades.py"


@pytest.fixture(scope="module")
def upgrades() -> ModuleType:
    spec = importlib.util.spec_from_file_location("upgrades_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine people of eight photos, in the layout of CelebA's identities."""
    root, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for person in range(9):
        (folder := root / "celeba-identities" / f"celeb_{person}").mkdir(parents=True)
        for number in range(8):
            pixels = rng.integers(0, 100, (40, 36, 3)) + 15 * person
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    return root


def unit_rows(rng: np.random.Generator, *shape: int) -> Any:
    rows = rng.normal(size=shape)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def small(upgrades: ModuleType, **changes: Any) -> Any:
    sizes = {"old": 3, "new": 3, "images": (4, 4), "searched": 3, "gallery": 4, "queries": 4, "epochs": 1}
    return upgrades.Case("faces", **{**sizes, "batch_size": 8, **changes})


def test_images_are_drawn_by_the_seed_and_searched_classes_are_never_learnt(upgrades: ModuleType, data: Path) -> None:
    case = small(upgrades, more=True)
    drawn, again, other = (upgrades.draw_images("one", case, seed, data) for seed in (1, 1, 2))
    assert [part.fingerprint() for part in drawn] == [part.fingerprint() for part in again]
    assert drawn.first.fingerprint() != other.first.fingerprint()
    assert (len(drawn.first.classes), len(drawn.later.classes), len(drawn.gallery.classes)) == (3, 6, 3)
    assert not set(drawn.later.classes) & set(drawn.gallery.classes)
    assert drawn.gallery.classes == drawn.queries.classes
    together = np.concatenate([part.images.reshape(len(part), -1) for part in drawn])
    assert len(np.unique(together, axis=0)) == len(together) == 12 + 24 + 12 + 12  # no image is used twice
    with pytest.raises(DataError, match="needs 9 classes of 18 images"):
        upgrades.draw_images("one", small(upgrades, images=(9, 9), more=True), 1, data)


@pytest.mark.parametrize("changes", [{}, {"new": 0, "more": True}], ids=["new classes", "more images"])
def test_one_run_trains_upgrades_checks_and_searches(upgrades: ModuleType, data: Path, changes: dict[str, Any]) -> None:
    case = small(upgrades, **changes)
    result = upgrades.run("one", case, 1, upgrades.Way("hoc", 50), data, "cpu")
    assert json.loads(json.dumps(result)) == result
    assert result["queries"] == 12
    assert set(result["gate"]) == {"held out", "labelled"}
    for protocol in ("image", "template"):
        found = result[protocol]
        assert found["blends"][0] == found["v1"]
        assert found["blends"][10] == found["v2/v1"]
        assert found["half - v1"] == pytest.approx(found["blends"][5] - found["v1"])
        assert found["auto"] in found["blends"]


def test_figures_agree_with_searches_by_each_blended_query(upgrades: ModuleType) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 5
    old, new = (upgrades.Vectors(unit_rows(rng, 40, 6), unit_rows(rng, 40, 6)) for _ in range(2))
    new.queries[0] = old.queries[0]  # parallel: no angle to divide by
    found = upgrades.measure(old, new, labels, labels, 0.3)
    for protocol, search in (("image", image_search), ("template", template_search)):
        for alpha, accuracy in zip(upgrades.ALPHAS, found[protocol]["blends"], strict=True):
            blended = []
            for a, b in zip(old.queries.astype(np.float64), new.queries.astype(np.float64), strict=True):
                angle = np.arccos(min(1.0, a @ b))
                near = angle < 1e-3
                blended.append(a if near else np.sin((1 - alpha) * angle) * a + np.sin(alpha * angle) * b)
            assert accuracy == pytest.approx(search(np.array(blended), labels, old.gallery, labels).mean(), abs=1e-5)
        assert found[protocol]["v2"] == pytest.approx(search(new.queries, labels, new.gallery, labels).mean())


def test_a_spread_is_over_runs_within_cases(upgrades: ModuleType) -> None:
    spread = upgrades.spread([[0.0, 0.2], [0.4, 0.4, 0.4]])
    assert spread["mean"] == pytest.approx(0.25)
    assert spread["runs"] == 5
    assert spread["interval"] == pytest.approx([0.2, 0.3])


def test_tables_fit_into_80_columns(upgrades: ModuleType) -> None:
    figures = dict.fromkeys(upgrades.KINDS, 0.876) | {"v2/v1 - v1": -0.0456, "auto - v1": -0.0123}
    gate = {"held out": "missing evidence", "labelled": "refuse"}
    run = {"case": max(upgrades.CASES, key=len), "image": figures, "template": figures, "gate": gate}
    text = upgrades.tables(upgrades.summarise([{**run, "seconds": [1234.5, 2345.6]}] * 10))
    assert max(map(len, text.splitlines())) <= 80
    assert "87.6  -4.6 [-4.6 -4.6]" in text
    assert "0/10/0      0/0/10" in text


def test_finished_runs_are_not_repeated_and_missing_data_is_named(
    upgrades: ModuleType,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, way = small(upgrades), upgrades.Way("hoc", 50, {"lam": 0.5})
    monkeypatch.setattr(upgrades, "CASES", {"one": case, "two": upgrades.Case(**{**vars(case), "source": "birds"})})
    out, picture = tmp_path / "results" / "upgrades.json", tmp_path / "upgrades.png"
    results = {seed: upgrades.run("one", case, seed, way, data, "cpu") for seed in (1, 2)}
    out.parent.mkdir()
    keyed = {f"one seed={seed} hoc lam=0.5 K=50 epochs=1": result for seed, result in results.items()}
    out.write_text(json.dumps({"runs": keyed}))
    words = ["--data", data, "--out", out, "--seeds", 2, "--capacity", 50, "--option", "lam=0.5", "--picture", picture]
    assert upgrades.main([str(word) for word in [*words, "--method", "hoc"]]) == 0
    printed = capsys.readouterr().out
    assert "skipped two: no CUB_200_2011/images in" in printed
    assert "one 1:" not in printed  # nothing was run
    content = json.loads(out.read_text())
    assert content["runs"] == keyed
    assert content["summary"]["hoc lam=0.5 K=50, tune"]["cases"]["one"]["image"]["v1"]["runs"] == 2
    assert picture.stat().st_size > 5000
    with pytest.raises(UnknownNameError, match="unknown case 'three'"):
        upgrades.main(["--cases", "three", "--out", str(out)])


def test_searched_classes_and_cases_set_aside(upgrades: ModuleType) -> None:
    assert sum(case.confirm for case in upgrades.CASES.values()) == 5
    for case in upgrades.CASES.values():
        assert case.new or case.more
        assert 1000 <= case.searched * case.queries <= 2000
