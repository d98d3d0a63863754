"""benchmarks/upgrades.py: one small upgrade from a folder of images, its figures against slow code, and resuming."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image
from wording import refuses

from fixstar.errors import DataError, UnknownNameError
from fixstar.evaluation import VersionFeatures
from fixstar.evaluation.search import image_search, template_search
from fixstar.translation import Map, Pairs, Translation, Uncertainty

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "upgrades.py"


@pytest.fixture(scope="module")
def upgrades() -> ModuleType:
    spec = importlib.util.spec_from_file_location("upgrades_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    sys.path.insert(0, str(SCRIPT.parent))  # for the scripts beside it that it imports
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
    sizes = {
        "old": 3,
        "new": 3,
        "images": (4, 4),
        "searched": 3,
        "gallery": 4,
        "queries": 4,
        "epochs": 1,
    }
    return upgrades.Case("faces", **{**sizes, "batch_size": 8, **changes})


def test_images_are_drawn_by_the_seed_and_searched_classes_are_never_learnt(
    upgrades: ModuleType, data: Path
) -> None:
    case = small(upgrades, more=True)
    drawn, again, other = (upgrades.draw_images("one", case, seed, data) for seed in (1, 1, 2))
    assert [part.fingerprint() for part in drawn] == [part.fingerprint() for part in again]
    assert drawn.first.fingerprint() != other.first.fingerprint()
    assert (len(drawn.first.classes), len(drawn.later.classes), len(drawn.gallery.classes)) == (
        3,
        6,
        3,
    )
    assert not set(drawn.later.classes) & set(drawn.gallery.classes)
    assert drawn.gallery.classes == drawn.queries.classes
    together = np.concatenate([part.images.reshape(len(part), -1) for part in drawn])
    assert (
        len(np.unique(together, axis=0)) == len(together) == 12 + 24 + 12 + 12
    )  # no image is used twice
    with refuses(DataError):
        upgrades.draw_images("one", small(upgrades, images=(9, 9), more=True), 1, data)


@pytest.mark.parametrize(
    ("changes", "method", "options"),
    [
        ({"images": (6, 6)}, "hoc", {}),
        ({"old": 4, "new": 0, "more": True}, "vega", {"rotated": False, "longer": 1.0}),
    ],
    ids=["new classes, held", "more images, free"],
)
def test_one_run_trains_upgrades_checks_and_searches(
    upgrades: ModuleType, data: Path, changes: dict[str, Any], method: str, options: dict[str, Any]
) -> None:
    case = small(upgrades, **changes)
    result = upgrades.run("one", case, 1, upgrades.Way(method, 50, options), data, "cpu")
    assert json.loads(json.dumps(result)) == result
    assert result["queries"] == 12
    assert set(result["gate"]) == {"held out", "labelled"}
    assert set(result["weights"]) == {"one", "two"}
    for protocol in ("image", "template"):
        found = result[protocol]
        wanted = (
            {*upgrades.HEADLINE, *upgrades.DETAILS}
            - {"unsure"}
            - ({"scaled"} if protocol == "template" else set())
        )
        assert wanted <= found.keys()  # few pairs say nothing about uncertainty
        assert found["one - v1"] == pytest.approx(found["one"] - found["v1"])
        assert all(0 <= found[kind] <= 1 for kind in wanted)


def pair(upgrades: ModuleType, seed: int = 0, width: int = 6) -> Any:
    """Two versions of 40 queries and 40 gallery images of 5 classes; equal widths, so that they can be compared."""
    rng = np.random.default_rng(seed)
    labels = np.arange(40) % 5
    centres = rng.normal(size=(5, width))
    made = [unit_rows(rng, 40, width) + 0.4 * centres[labels].astype(np.float32) for _ in range(4)]
    old, new = (VersionFeatures(name, *made[at : at + 2]) for name, at in (("v1", 0), ("v2", 2)))
    return upgrades.Measured(old, new, labels, labels)


def translation(seed: int = 1, width: int = 6, shared: bool = False) -> Translation:
    rng = np.random.default_rng(seed)
    forward, backward = (Map.linear(rng.normal(size=(width, width))) for _ in range(2))
    slope = rng.normal(size=width).astype(np.float32)
    uncertain = Uncertainty(slope, 1.0)
    return Translation(
        "v1",
        "v2",
        forward,
        None if shared else backward,
        one=0.7,
        two=0.4,
        shared=shared,
        uncertainty=uncertain,
    )


@pytest.mark.parametrize("shared", [False, True], ids=["mapped back", "carried"])
def test_figures_agree_with_slow_searches(upgrades: ModuleType, shared: bool) -> None:
    searched, way = pair(upgrades), translation(shared=shared)
    found = upgrades.measure(searched, way)
    assert "rotation" not in found["image"]  # rivals need pairs
    old, new, labels = searched.old, searched.new, searched.query_labels
    q, z = (
        rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (new.queries, old.gallery)
    )
    own = old.queries / np.linalg.norm(old.queries, axis=1, keepdims=True)
    assert way.forward is not None
    back = q if way.backward is None else way.backward(q)
    scores = {
        "v1": own @ z.T,
        "direct": q @ z.T,
        "one": 0.7 * q @ way.forward(z).T + 0.3 * back @ z.T,
        "two": 0.4 * q @ way.forward(z).T + 0.6 * own @ z.T,
    }
    for kind, each in scores.items():
        assert found["image"][kind] == pytest.approx(
            (labels[each.argmax(axis=1)] == labels).mean(), abs=1e-5
        ), kind
    for kind, search in (("image", image_search), ("template", template_search)):
        expected = search(new.queries, labels, new.gallery, labels).mean()
        assert found[kind]["v2"] == pytest.approx(expected, abs=1e-5)
    means = np.stack(
        [np.hstack([way.forward(z), z])[labels == label].mean(axis=0) for label in range(5)]
    )
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    asked = np.hstack([0.7 * q, 0.3 * back])
    assert found["template"]["one"] == pytest.approx(
        ((asked @ means.T).argmax(axis=1) == labels).mean(), abs=1e-5
    )


@pytest.mark.parametrize("protocol", ["image", "template"])
def test_a_half_re_embedded_gallery_is_one_ranking(upgrades: ModuleType, protocol: str) -> None:
    searched, way = pair(upgrades), translation().with_one_model()
    order = np.random.default_rng(3).permutation(40)
    found = searched.curve(way, order, protocol)
    figures = upgrades.measure(searched, way)[protocol]
    assert [found[0], found[-1]] == pytest.approx([figures["one"], figures["v2"]], abs=1e-5)
    old, new, labels = searched.old, searched.new, searched.query_labels
    q, z, own = (
        rows / np.linalg.norm(rows, axis=1, keepdims=True)
        for rows in (new.queries, old.gallery, new.gallery)
    )
    assert way.forward is not None
    assert way.backward is not None
    scores = 0.7 * q @ way.forward(z).T + 0.3 * way.backward(q) @ z.T
    renewed = np.isin(np.arange(40), order[:20])
    scores[:, renewed] = (q @ own.T)[:, renewed]
    if protocol == "image":
        right = labels[scores.argmax(axis=1)] == labels
        scaled = searched.curve(way, order, protocol, scaled=True)
        assert scaled[0] == found[0]  # one version alone ranks as before
        assert scaled[-1] == found[-1]
    else:
        long = np.hstack([way.forward(z), z]) / np.sqrt(2)
        right_of = []
        for label in range(5):
            mine = (labels == label) & renewed
            others = (labels == label) & ~renewed
            length = np.sqrt(
                (own[mine].sum(axis=0) ** 2).sum() + (long[others].sum(axis=0) ** 2).sum()
            )
            right_of.append(scores[:, labels == label].sum(axis=1) / length)
        right = np.argmax(right_of, axis=0) == labels
    assert found[upgrades.HALF] == pytest.approx(right.mean(), abs=1e-5)


def test_vectors_that_are_least_certain_come_first(upgrades: ModuleType) -> None:
    searched, way = pair(upgrades), translation()
    assert way.uncertainty is not None
    stored = searched.old.gallery / np.linalg.norm(searched.old.gallery, axis=1, keepdims=True)
    order = np.argsort(-way.uncertainty(stored), kind="stable")
    found = upgrades.measure(searched, way)["image"]
    assert found["unsure"] == upgrades.area(searched.curve(way.with_one_model(), order, "image"))
    assert found["area"] != found["unsure"]


def paired(seed: int = 0, count: int = 400, noise: float = 0.05) -> tuple[Pairs, Any]:
    """Pairs whose second space is the first one turned, and the turn."""
    rng = np.random.default_rng(seed)
    X = unit_rows(rng, count, 8)
    turn = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    Y = X @ turn + noise * rng.normal(size=X.shape)
    Y /= np.linalg.norm(Y, axis=1, keepdims=True)
    return Pairs.checked(X, Y.astype(np.float32)), turn


def test_rivals_map_the_query_and_nothing_else(upgrades: ModuleType) -> None:
    pairs, turn = paired()
    maps = upgrades.rival_maps(pairs, "cpu")
    assert set(maps) == {"rotation", "low-rank", "mlp"}
    for name, one in maps.items():
        assert np.einsum("ij,ij->i", one(pairs.Y), pairs.X).mean() > 0.95, name
    assert np.allclose(maps["rotation"].layers[0].W, turn.T, atol=0.05)
    searched = pair(upgrades, width=8)
    way = translation(width=8)
    found = upgrades.measure(searched, way, pairs)["image"]
    q = searched.new.queries / np.linalg.norm(searched.new.queries, axis=1, keepdims=True)
    z = searched.old.gallery / np.linalg.norm(searched.old.gallery, axis=1, keepdims=True)
    hits = (
        searched.gallery_labels[(maps["rotation"](q) @ z.T).argmax(axis=1)] == searched.query_labels
    )
    assert found["rotation"] == pytest.approx(hits.mean(), abs=1e-5)
    assert {"fastfill", "unsure"} <= found.keys()


def test_a_map_of_low_rank_is_the_best_of_its_rank(upgrades: ModuleType) -> None:
    """Against singular vectors of the fitted values, where the penalty is nothing."""
    rng = np.random.default_rng(0)
    X = unit_rows(rng, 3000, 8)
    Y = X @ (rng.normal(size=(8, 2)) @ rng.normal(size=(2, 5)))
    Y = (Y / np.linalg.norm(Y, axis=1, keepdims=True)).astype(np.float32)
    pairs = Pairs.checked(X, Y)
    x, y = (rows - rows.mean(axis=0) for rows in (X.astype(float), Y.astype(float)))
    W = np.linalg.lstsq(x, y, rcond=None)[0]
    for rank in (1, 2, 4):
        V = np.linalg.svd(x @ W, full_matrices=False)[2][:rank].T
        layer = upgrades._of_rank(pairs, rank).layers[0]
        assert np.allclose(layer.W, W @ V @ V.T, atol=1e-3)
        assert np.linalg.matrix_rank(layer.W, tol=1e-4) == min(rank, 2)
    chosen = upgrades.low_rank(pairs).layers[0].W
    assert (
        np.linalg.matrix_rank(chosen, tol=1e-4) == 2
    )  # more is no better, and the smaller one is taken


def test_fastfill_takes_vectors_first_that_the_map_gets_wrong(upgrades: ModuleType) -> None:
    rng = np.random.default_rng(0)
    X = unit_rows(rng, 2000, 8)
    wrong = X[:, 0] > 0
    Y = np.where(wrong[:, None], unit_rows(rng, 2000, 8), X)
    pairs = Pairs.checked(X, Y)
    order = upgrades.fastfill_order(Map.linear(np.eye(8)), pairs, X[:200])
    assert wrong[order[:50]].mean() > 0.9
    assert wrong[order[-50:]].mean() < 0.1
    assert sorted(order.tolist()) == list(range(200))
    again = upgrades.fastfill_order(Map.linear(np.eye(8)), pairs, X[:200])
    assert np.array_equal(order, again)


def test_a_translation_that_asks_in_one_way_is_measured_in_both(upgrades: ModuleType) -> None:
    way = translation()
    one, two = (upgrades.with_models(way, models) for models in ("one", "two"))
    assert (one.one, one.two) == (0.7, None)
    assert two.two == 0.4
    assert upgrades.with_models(replace(way, one=None), "one").one == 0.6
    assert upgrades.with_models(way.with_one_model(), "two").two == 0.6
    assert upgrades.with_models(Translation.between_shared("v1", "v2"), "two").two == 0.0
    assert upgrades.with_models(Translation.by_old_queries("v1", "v2"), "one") is None
    searched = pair(upgrades)
    found = upgrades.measure(searched, Translation.by_old_queries("v1", "v2"))
    assert "one" not in found["image"]
    assert found["image"]["two"] == found["image"]["v1"]


def test_rivals_and_controls_have_names(upgrades: ModuleType) -> None:
    assert {"free", "polaris", "hoc", "bct", "independent"} <= upgrades.WAYS.keys()
    for way in upgrades.WAYS.values():
        assert upgrades.create_method(way.method, **way.options).name == way.method
    free = upgrades.create_method("vega", **upgrades.WAYS["free"].options)
    assert "old model" not in free.needs
    assert str(replace(upgrades.WAYS["free"], replay=True)).endswith(
        f"K={upgrades.CAPACITY} replay"
    )
    setting = upgrades.setting_of(
        replace(upgrades.WAYS["vega"], replay=True), upgrades.CASES["photos-30+30"]
    )
    assert setting["replay"] is True


def test_a_spread_is_over_runs_within_cases(upgrades: ModuleType) -> None:
    spread = upgrades.spread([[0.0, 0.2], [0.4, 0.4, 0.4]])
    assert spread["mean"] == pytest.approx(0.25)
    assert spread["runs"] == 5
    assert spread["interval"] == pytest.approx([0.2, 0.3])


def test_tables_fit_into_80_columns(upgrades: ModuleType) -> None:
    kinds = (*upgrades.HEADLINE, *upgrades.DETAILS)
    figures = dict.fromkeys(kinds, 0.876) | {"one - v1": -0.0456, "two - v1": -0.0123}
    gate = {"held out": "missing evidence", "labelled": "refuse"}
    run = {
        "case": max(upgrades.CASES, key=len),
        "image": figures,
        "template": figures,
        "gate": gate,
    }
    text = upgrades.tables(upgrades.summarise([{**run, "seconds": [1234.5, 2345.6]}] * 10))
    assert max(map(len, text.splitlines())) <= 80
    assert "87.6  -4.6 [-4.6 -4.6]" in text
    assert "0/10/0      0/0/10" in text
    unknown = {
        kind: value for kind, value in figures.items() if kind not in ("direct", "one", "one - v1")
    }
    fewer = upgrades.tables(
        upgrades.summarise([{**run, "image": unknown, "template": unknown, "seconds": [1.0, 2.0]}])
    )
    assert "     -" in fewer


def test_finished_runs_are_not_repeated_and_missing_data_is_named(
    upgrades: ModuleType,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, way = small(upgrades), upgrades.Way("hoc", 50, {"lam": 0.5})
    monkeypatch.setattr(
        upgrades, "CASES", {"one": case, "two": upgrades.Case(**{**vars(case), "source": "birds"})}
    )
    out, picture = tmp_path / "results" / "upgrades.json", tmp_path / "upgrades.png"
    figures = upgrades.measure(pair(upgrades), translation())
    facts = {
        "gate": {"held out": "pass", "labelled": "refuse"},
        "seconds": [1.0, 2.0],
        "definition": case.described(),
    }
    results = {
        seed: {"case": "one", "seed": seed, "way": str(way), **figures, **facts} for seed in (1, 2)
    }
    out.parent.mkdir()
    keyed = {
        f"one seed={seed} hoc lam=0.5 K=50 epochs=1": result for seed, result in results.items()
    }
    out.write_text(json.dumps({"runs": keyed}))
    words = [
        "--data",
        data,
        "--out",
        out,
        "--seeds",
        2,
        "--capacity",
        50,
        "--option",
        "lam=0.5",
        "--picture",
        picture,
    ]
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
    assert {"characters-60+60", "characters-more"} <= upgrades.CASES.keys()
    for case in upgrades.CASES.values():
        assert case.new or case.more
        assert 1000 <= case.searched * case.queries <= (5000 if case.learnt else 2000)


def test_other_images_of_learnt_classes_are_searched_where_the_case_says_so(
    upgrades: ModuleType, data: Path
) -> None:
    case = small(upgrades, images=(4, 4), gallery=2, queries=2, searched=6, learnt=True)
    drawn = upgrades.draw_images("one", case, 1, data)
    assert set(drawn.gallery.classes) == {*drawn.first.classes, *drawn.later.classes}
    together = np.concatenate([part.images.reshape(len(part), -1) for part in drawn])
    assert (
        len(np.unique(together, axis=0)) == len(together) == 12 + 12 + 12 + 12
    )  # no image is used twice


def test_a_rival_is_measured_at_once_embedded_again_and_on_the_way(upgrades: ModuleType) -> None:
    """Stored vectors that find nothing and renewed ones that find everything: the area is about the middle."""
    count = 40
    labels = np.arange(count)
    right = np.eye(count, dtype=np.float32)
    wrong = np.roll(right, 1, axis=0)
    features = VersionFeatures("v1", right, right)
    searched = upgrades.Measured(features, features, labels, labels)
    found = upgrades.Rival(right, wrong, right).figures("one", searched, "image")
    assert found["one"] == 0
    assert found["one v2"] == 1
    assert 0.25 < found["one area"] < 0.75


def test_a_template_of_old_and_new_vectors_attracts_queries_of_other_classes(
    upgrades: ModuleType,
) -> None:
    """Both versions make the same vectors, so whatever is lost on the way is lost by the template alone."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 10)
    centres = rng.normal(size=(20, 8))
    queries, gallery = (centres[labels] + 0.8 * rng.normal(size=(200, 8)) for _ in range(2))
    features = VersionFeatures("v1", queries.astype(np.float32), gallery.astype(np.float32))
    searched = upgrades.Measured(features, replace(features, name="v2"), labels, labels)
    way = Translation.between_shared("v1", "v2")
    place = np.arange(200) % 10
    alike = np.argsort(place, kind="stable")  # one item of every class, then the next
    uneven = np.argsort(
        place + 5 * (labels % 2), kind="stable"
    )  # classes with even labels are half done first
    for order, lost in ((alike, False), (uneven, True)):
        curve = searched.curve(way, order, "template")
        assert curve[-1] == curve[0]
        assert (curve.min() < curve[0] - 0.1) == lost
    by_image = searched.curve(way, uneven, "image")
    assert by_image == pytest.approx(by_image[0])


def test_the_table_of_orders_counts_cases_in_which_random_is_best(upgrades: ModuleType) -> None:
    def one(way: str, case: str) -> dict[str, Any]:
        figures = dict.fromkeys(("one", "fastfill", "v2"), 0.2) | {"area": 0.4, "unsure": 0.3}
        worse = figures | {"fastfill": 0.4 if case == "birds-60+60" else 0.2}
        return {
            "way": str(upgrades.WAYS[way]),
            "case": case,
            "seed": 1,
            "image": figures,
            "template": worse,
        }

    runs = [one(way, case) for way in upgrades.WAYS for case in upgrades.ORDINARY]
    by_image = "20.0 | 40.0 | 30.0 | 20.0 | 20.0"
    by_template = "20.0 | 40.0 | 30.0 | 21.4 | 20.0"
    row = f"| independent | 14 | {by_image} | {by_template} | 14 of 14 | 13 of 14 |"
    assert row in upgrades.orders_table(runs)


def test_the_tables_of_rivals_are_means_over_cases(upgrades: ModuleType) -> None:
    def one(way: str, case: str, seed: int, base: float) -> dict[str, Any]:
        kinds = {
            kind
            for row in upgrades.RIVALS
            for kind in (row.at_once, row.area, row.again, "v1")
            if kind
        }
        figures = dict.fromkeys(kinds, base) | {"v1": 0.1}
        gate = {"labelled": "pass", "held out": "missing evidence"}
        named = str(upgrades.WAYS[way])
        return {
            "way": named,
            "case": case,
            "seed": seed,
            "image": figures,
            "template": figures,
            "gate": gate,
        }

    runs = [
        one(way, case, seed, 0.2 if case == "birds-60+60" else 0.5)
        for way in upgrades.WAYS
        for case in (*upgrades.ORDINARY, upgrades.LEARNT)
        for seed in (1, 2)
    ]
    mean = (13 * 50 + 20) / 14
    assert upgrades.level(
        upgrades.runs_of(runs, "bct", upgrades.ORDINARY), "direct", "image"
    ) == pytest.approx(mean)
    assert f"| BCT | 28 | 10.0 | {mean:.1f} |" in upgrades.rivals_table(runs)
    assert f"| BCT | +{mean - 10:.1f} |" in upgrades.short_table(runs)
    assert "| BCT | +40.0 (+40.0), then +40.0 (+40.0) |" in upgrades.gains_table(runs)
    assert "| birds-60+60, set aside | 2 | 10.0 (10.0) | +10.0 (+10.0) |" in upgrades.vega_table(
        runs
    )
