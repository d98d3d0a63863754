"""Bridges between two models: the best way across, by evidence that was not fitted, and "keep the old model"."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fixstar
from fixstar.errors import DataError, InputError, ModelError, UnknownNameError
from fixstar.geometry import slerp, unit
from fixstar.workspace import GateRules
from fixstar.workspace.adapters.bridge import BridgeOptions, apply_bridge, bridge, open_model
from fixstar.workspace.adapters.fitting import ADAPTERS, fit_adapter
from fixstar.workspace.adapters.portable import Bridge, load_bridge, onnx_model, save_bridge

Array = NDArray[np.float64]

QUICK = BridgeOptions(kinds=("procrustes", "ridge"))


def rotation(width: int, seed: int = 1) -> Array:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((width, width)))[0]


def two_models(old_noise: float, new_noise: float, seed: int = 0) -> tuple[Array, Array, NDArray[np.str_]]:
    """1,200 images of 40 classes by two models: the same content, rotated, with noise of its own each."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(40, size=1200)
    content = rng.standard_normal((40, 16))[labels] + 0.3 * rng.standard_normal((1200, 16))
    old = unit(content + old_noise * rng.standard_normal(content.shape))
    new = unit(content + new_noise * rng.standard_normal(content.shape)) @ rotation(16)
    return old, new, np.array([f"class {label}" for label in labels])


def test_a_better_model_passes_and_a_worse_one_does_not() -> None:
    old, new, labels = two_models(0.9, 0.2)
    better = bridge(old, new, labels=labels, options=QUICK)
    assert better.outcome == "pass"
    assert better.sentence.startswith("Use it: ")
    assert better.evidence == "labels"
    assert better.old is not None
    best = better.candidates[0]
    assert best.low > 0
    assert best.result > better.old
    assert best.won > best.lost
    worse = bridge(new, old, labels=labels, options=BridgeOptions(kinds=("procrustes",), rules=GateRules(seed=3)))
    assert worse.outcome != "pass"
    assert worse.sentence.startswith("Keep the old model")


def test_noise_is_refused_with_the_old_model_to_keep() -> None:
    old, _, labels = two_models(0.3, 0.2)
    noise = unit(np.random.default_rng(5).standard_normal((1200, 8)))
    found = bridge(old, noise, labels=labels, options=QUICK)
    by_way = {(one.kind, one.way): one for one in found.candidates}
    assert by_way["procrustes", "queries"].verdict == "incompatible"
    assert by_way["ridge", "stored"].verdict == "incompatible"
    assert found.outcome in ("refuse", "missing evidence")  # blended with alpha 0.1, noise changes little


def test_the_figures_are_those_of_slow_code() -> None:
    old, new, labels = two_models(0.9, 0.5)
    found = bridge(old, new, labels=labels, options=QUICK)
    best = found.candidates[0]
    made = found.bridge
    # the same division, by hand
    rng = np.random.default_rng(0)
    held = np.sort(rng.permutation(1200)[:480])
    from fixstar.evaluation import gallery_query_split
    from fixstar.workspace.gate import halves

    codes = np.unique(labels[held], return_inverse=True)[1]
    split = gallery_query_split(codes, seed=0)
    _, judging = halves(codes[split.queries], 0)
    queries, gallery = held[split.queries][judging], held[split.gallery]

    def right(asked: Any, among: Any) -> list[bool]:
        return [
            labels[gallery[np.argmax(among @ row)]] == labels[query] for row, query in zip(asked, queries, strict=True)
        ]

    own = right(old[queries], old[gallery])
    assert found.old == pytest.approx(np.mean(own))
    if made.applied == "stored":
        after = right(new[queries], made(old[gallery]))
    elif made.alpha is None:
        after = right(made(new[queries]), old[gallery])
    else:
        after = right(made(new[queries], old[queries]), old[gallery])
    assert best.result == pytest.approx(np.mean(after))
    assert best.lost == sum(a and not b for a, b in zip(own, after, strict=True))
    assert found.queries == len(queries)
    fitted = np.setdiff1d(np.arange(1200), held)
    again = fit_adapter(
        best.kind, *((new[fitted], old[fitted]) if best.way != "stored" else (old[fitted], new[fitted]))
    )
    np.testing.assert_allclose(again.weights["W"], made.adapter.weights["W"], atol=1e-4)


def test_the_judging_half_is_not_seen_by_the_choice() -> None:
    """With labels by chance no way is better, so verdicts of the chosen one are rarely compatible."""
    passed = 0
    for seed in range(12):
        old, new, _ = two_models(0.5, 0.5, seed=seed)
        labels = np.random.default_rng(seed).integers(6, size=1200)
        options = BridgeOptions(kinds=("procrustes", "ridge"), rules=GateRules(seed=seed))
        passed += bridge(old, new, labels=labels, options=options).outcome == "pass"
    assert passed <= 2


def test_without_labels_only_agreement_is_measured_and_nothing_passes() -> None:
    old, new, _ = two_models(0.2, 0.2)
    found = bridge(old, new, options=QUICK)
    assert (found.outcome, found.evidence) == ("missing evidence", "old neighbours")
    assert found.sentence.startswith("Unproven: there are no labels")
    assert {one.way for one in found.candidates} == {"queries", "stored"}
    assert all(one.low <= one.result <= one.high for one in found.candidates)


def test_relevant_items_are_evidence_too() -> None:
    old, new, labels = two_models(0.9, 0.2)
    queries = range(0, 600, 2)
    wanted = {str(row): [str(other) for other in range(601, 900) if labels[other] == labels[row]] for row in queries}
    found = bridge(old, new, relevant=wanted, options=QUICK)
    assert (found.outcome, found.evidence) == ("pass", "relevance")
    assert found.queries <= 150
    with pytest.raises(InputError, match="relevant items have vectors by both models"):
        bridge(old, new, relevant={"absent": ["7"]}, options=QUICK)


def test_held_out_one_fits_on_images_without_a_label() -> None:
    old, new, labels = two_models(0.9, 0.2)
    labels[:500] = ""
    found = bridge(old, new, labels=labels, options=BridgeOptions(kinds=("procrustes",), held_out=1))
    assert found.fitted_on == "500 pairs"


def test_files_are_paired_by_their_ids(tmp_path: Path) -> None:
    old, new, labels = two_models(0.9, 0.2)
    ids, order = np.array([f"item {row}" for row in range(1200)]), np.random.default_rng(0).permutation(1200)
    np.savez(tmp_path / "old.npz", vectors=7 * old, ids=ids, labels=labels)
    np.savez(tmp_path / "new.npz", vectors=new[order][:1100], ids=ids[order][:1100])
    found = bridge(tmp_path / "old.npz", str(tmp_path / "new.npz"), options=QUICK)
    assert found.outcome == "pass"
    save_bridge(found.bridge, tmp_path / "bridge.npz")
    made = load_bridge(tmp_path / "bridge.npz")
    assert (made.adapter.source, made.adapter.target)[:: 1 if made.applied == "queries" else -1] == ("new", "old")
    names, mapped = apply_bridge(made, tmp_path / "old.npz", tmp_path / "new.npz")
    row = names.index("item 5")
    vectors = {"queries": new, "stored": old}[made.applied][5:6]
    expected = made(vectors) if made.alpha is None else made(vectors, old[5:6])
    np.testing.assert_allclose(mapped[row], expected[0], atol=1e-6)
    (tmp_path / "labels.csv").write_text("id,label\n" + "".join(f"item {r},{labels[r]}\n" for r in range(1200)))
    named = bridge(tmp_path / "old.npz", tmp_path / "new.npz", labels=tmp_path / "labels.csv", options=QUICK)
    assert named.candidates == found.candidates


def test_sets_without_a_common_image_are_aligned_and_marked_as_unproven(tmp_path: Path) -> None:
    old, new, labels = two_models(0.1, 0.1)
    for name, part, rows in (("old", old, slice(0, 600)), ("new", new, slice(600, 1200))):
        ids = np.array([f"{name} {row}" for row in range(600)])
        np.savez(tmp_path / f"{name}.npz", vectors=part[rows], ids=ids, labels=labels[rows])
    found = bridge(tmp_path / "old.npz", tmp_path / "new.npz")
    assert (found.outcome, found.evidence) == ("missing evidence", "none")
    assert found.sentence.startswith("Unproven: no image was embedded by both models")
    assert "40 class centres" in found.fitted_on
    assert np.sum(found.bridge(new[:300]) * old[:300], axis=1).mean() > 0.9


def test_models_embed_the_images(tmp_path: Path) -> None:
    from PIL import Image

    from fixstar.models import Encoder

    rng = np.random.default_rng(0)
    for label in ("red", "green", "blue"):
        for number in range(14):
            (tmp_path / "images" / label).mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 120, (16, 16, 3))
            pixels[..., ("red", "green", "blue").index(label)] += 130
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "images" / label / f"{number}.png")
    (tmp_path / "images" / "red" / "torn.png").write_bytes(b"no image")
    for name in ("a", "b"):
        options = {"feature_dim": 12, "width": 4}
        Encoder.create("tiny", "linear", classes=["x", "y"], backbone_options=options).eval().save(tmp_path / name)
    found = bridge(
        str(tmp_path / "a"),
        str(tmp_path / "b"),
        images=tmp_path / "images",
        options=BridgeOptions(kinds=("procrustes",)),
    )
    assert found.evidence == "labels"
    assert found.fitted_on == "25 pairs"
    with pytest.raises(InputError, match=r"write model\.onnx\?size=224"):
        open_model("model.onnx")
    with pytest.raises(InputError, match="is a model: give images"):
        bridge(str(tmp_path / "a"), str(tmp_path / "b"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"labels": ["a"]}, "one for each of 1,200 old vectors; got 1"),
        ({"options": BridgeOptions(sample=20, held_out=1)}, "none is left to fit on"),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], told: str) -> None:
    old, new, labels = two_models(0.2, 0.2)
    with pytest.raises(InputError, match=told):
        bridge(old, new, **{"labels": labels, **arguments})


def test_options_and_inputs_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'ridge'"):
        BridgeOptions(kinds=("rigde",))
    with pytest.raises(InputError, match="20 images or more"):
        BridgeOptions(sample=1)
    with pytest.raises(InputError, match="between 0 and 1"):
        BridgeOptions(held_out=0)
    with pytest.raises(DataError, match="row 1 of vectors is zero, NaN or infinite"):
        bridge(np.array([[1.0, 0], [0, 0]]), np.eye(2))
    with pytest.raises(DataError, match="a matrix"):
        bridge(np.ones(3), np.eye(3))
    np.savez(tmp_path / "twice.npz", vectors=np.eye(3), ids=np.array(["a", "a", "b"]))
    with pytest.raises(DataError, match="has an id twice"):
        bridge(tmp_path / "twice.npz", np.eye(3))
    (tmp_path / "labels.csv").write_text("a,b,c\n")
    with pytest.raises(DataError, match="line 1: two columns are needed, id and label"):
        bridge(np.eye(3), np.eye(3), labels=tmp_path / "labels.csv")
    with pytest.raises(UnknownNameError, match="parameter of a model's address"):
        bridge("model.onnx?sise=224", np.eye(3), images=tmp_path)


# --- the file


def made(kind: str, alpha: float | None, applied: Any = "queries") -> tuple[Bridge, Array, Array]:
    rng = np.random.default_rng(0)
    X = unit(rng.standard_normal((300, 12)))
    Y = unit(X @ rng.standard_normal((12, 9)) + 0.1 * rng.standard_normal((300, 9)))
    options: dict[str, Any] = {"epochs": 2} if kind == "mlp" else {}
    adapter = fit_adapter(kind, X, Y, source="new", target="old", **options)
    return Bridge(adapter, applied, alpha, {"verdict": "kept"}), X, Y


@pytest.mark.parametrize("alpha", [None, 0.3])
@pytest.mark.parametrize("kind", ADAPTERS)
def test_numpy_and_onnx_do_the_same_without_fixstar(kind: str, alpha: float | None, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    whole, X, Y = made(kind, alpha)
    path = save_bridge(whole, tmp_path / "bridge.npz")
    expected = whole(X) if alpha is None else whole(X, Y)
    if alpha is not None:
        np.testing.assert_allclose(expected, slerp(Y, whole.adapter(X), alpha), atol=1e-6)
    with zipfile.ZipFile(path) as archive:
        card, model = json.loads(archive.read("card.json")), archive.read("bridge.onnx")
    assert (card["kind"], card["alpha"], card["verdict"], card["widths"]) == (kind, alpha, "kept", [12, 9])
    assert len(card["numpy"]) <= 5
    names: dict[str, Any] = {"np": np, "new": 3 * X, "old": 2 * Y}
    exec("\n".join(card["numpy"]).replace("bridge.npz", str(path)), names)
    np.testing.assert_allclose(names["result"], expected, atol=1e-5)
    fed = {"new": 3 * X.astype(np.float32)} | ({} if alpha is None else {"old": 2 * Y.astype(np.float32)})
    (result,) = onnxruntime.InferenceSession(model).run(None, fed)
    np.testing.assert_allclose(result, expected, atol=1e-5)
    again = fixstar.load_bridge(path)
    np.testing.assert_array_equal(again(X) if alpha is None else again(X, Y), expected)
    assert again.card["verdict"] == "kept"


def test_equal_and_opposite_queries_blend_without_nan() -> None:
    whole, X, _ = made("procrustes", 0.5)
    mapped = whole.adapter(X)
    np.testing.assert_allclose(whole(X, mapped), mapped, atol=1e-4)
    assert np.isfinite(whole(X, -mapped)).all()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:10],
        lambda content: content[:0],
        lambda content: b"garbage" * len(content[:50]),
        lambda content: content[:900] + b"\x00\xff" + content[902:],
        lambda content: content.replace(b'"kept"', b'"cept"'),
    ],
)
def test_a_damaged_file_is_refused(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = save_bridge(made("ridge", 0.3)[0], tmp_path / "bridge.npz")
    torn = tmp_path / "torn.npz"
    torn.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelError, match=r"torn\.npz is damaged"):
        load_bridge(torn)


def test_other_files_are_no_bridges(tmp_path: Path) -> None:
    np.savez(tmp_path / "vectors.npz", vectors=np.eye(3))
    with pytest.raises(ModelError, match=r"not a bridge: it has no card\.json"):
        load_bridge(tmp_path / "vectors.npz")
    np.savez(tmp_path / "objects.npz", W=np.array([{}], object), allow_pickle=True)
    with pytest.raises(ModelError, match="not a bridge"):
        load_bridge(tmp_path / "objects.npz")
    with pytest.raises(ModelError, match="there is no bridge"):
        load_bridge(tmp_path / "absent.npz")
    whole, X, Y = made("ridge", None)
    with pytest.raises(InputError, match=r"saved as FILE\.npz"):
        save_bridge(whole, tmp_path / "bridge.onnx")
    with pytest.raises(InputError, match="never overwritten"):
        save_bridge(whole, tmp_path / "vectors.npz")
    with pytest.raises(InputError, match="needs no queries by the old model"):
        whole(X, Y)
    with pytest.raises(InputError, match="blends queries by two models"):
        made("ridge", 0.5)[0](X)
    with pytest.raises(ModelError, match="alpha blends queries"):
        Bridge(whole.adapter, "stored", 0.5)


def test_without_onnx_the_file_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    whole, X, _ = made("procrustes", None, "stored")
    assert onnx_model(whole) is None
    again = load_bridge(save_bridge(whole, tmp_path / "bridge.npz"))
    assert again.card["onnx"] is None
    assert "x = unit(old)" in again.card["numpy"]
    np.testing.assert_array_equal(again(X), whole(X))
