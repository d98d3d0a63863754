"""A translation as a file: bit for bit the same again, usable without fixstar, and refused if it is damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from wording import refuses

from fixstar.errors import InputError, ModelError
from fixstar.evaluation import VersionFeatures
from fixstar.geometry import unit
from fixstar.translation import (
    Layer,
    Map,
    Translation,
    Uncertainty,
    load_translation,
    save_translation,
    translated,
)

Array = NDArray[np.float64]


def vectors(count: int, width: int, seed: int = 0) -> Array:
    return unit(np.random.default_rng(seed).standard_normal((count, width)))


def layer(a: int, b: int, seed: int, bent: bool = True) -> Map:
    rng = np.random.default_rng(seed)
    shapes = {"W": (a, b), "c": (b,), **({"A": (a, 3), "e": (3,), "B": (3, b)} if bent else {})}
    return Map(
        (
            Layer(
                **{
                    name: rng.standard_normal(shape).astype(np.float32)
                    for name, shape in shapes.items()
                }
            ),
        )
    )


FORWARD, BACKWARD = layer(6, 9, 1), layer(9, 6, 2, bent=False)
LONGER = Map((*FORWARD.layers, *layer(9, 9, 3).layers))
WAYS = {
    "one model": Translation("v1", "v2", FORWARD, BACKWARD, one=0.6),
    "two models": Translation("v1", "v2", FORWARD, BACKWARD, one=0.55, two=0.7),
    "two models without a map back": Translation("v1", "v2", FORWARD, two=0.7),
    "a map back alone": Translation("v1", "v2", backward=BACKWARD, one=0.0),
    "stored vectors alone": Translation("v1", "v2", FORWARD, BACKWARD, one=1.0),
    "two layers": Translation("v1", "v2", LONGER, BACKWARD, one=1 / 3),
    "old queries": Translation.by_old_queries("v1", "v2"),
    "a shared space": Translation.between_shared("v1", "v2"),
    "a whitened old side": Translation(
        "v1", "v2", FORWARD, BACKWARD, 0.6, 0.7, whitening=layer(6, 6, 5, False), whitened=True
    ),
    "a whitened old side, one model": Translation(
        "v1", "v2", FORWARD, BACKWARD, 0.3, whitening=layer(6, 6, 5, False), whitened=True
    ),
    "a whitening that was not chosen": Translation(
        "v1", "v2", FORWARD, two=0.7, whitening=layer(6, 6, 5, False)
    ),
    "a shared space and a map": Translation("v1", "v2", layer(6, 6, 4), one=0.25, shared=True),
}


def whole() -> Translation:
    """With all that a translation can have."""
    uncertainty = Uncertainty(vectors(1, 6)[0].astype(np.float32), 1 / 7)
    about = {"pairs": 300, "verdict": "kept", "finds": 0.1 + 0.2}
    return Translation(
        "v1", "v2", FORWARD, BACKWARD, one=0.6, two=0.7, uncertainty=uncertainty, about=about
    )


def arrays_of(way: Translation) -> dict[str, Any]:
    sides = {"forward": way.forward, "backward": way.backward, "whitening": way.whitening}
    return {
        f"{side}.{name}": array
        for side, part in sides.items()
        if part is not None
        for name, array in part.named_arrays()
    }


def assert_same(one: Translation, other: Translation) -> None:
    for name in ("source", "target", "one", "two", "shared", "about", "key", "whitened"):
        assert getattr(one, name) == getattr(other, name), name
    first, second = arrays_of(one), arrays_of(other)
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.dtype == second[name].dtype
        assert array.tobytes() == second[name].tobytes(), name
    assert (one.uncertainty is None) == (other.uncertainty is None)
    if one.uncertainty is not None and other.uncertainty is not None:
        assert one.uncertainty.slope.tobytes() == other.uncertainty.slope.tobytes()
        assert one.uncertainty.offset == other.uncertainty.offset


def card_of(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        card: dict[str, Any] = json.loads(archive.read("card.json"))
    return card


# --- whole


@pytest.mark.parametrize("name", WAYS)
def test_a_file_gives_the_same_translation_again(name: str, tmp_path: Path) -> None:
    assert_same(load_translation(save_translation(WAYS[name], tmp_path / "way.npz")), WAYS[name])


def test_a_file_has_all_that_a_translation_has(tmp_path: Path) -> None:
    path = save_translation(whole(), tmp_path / "way.npz")
    assert_same(load_translation(path), whole())
    assert_same(load_translation(str(path)), whole())
    card = card_of(path)
    assert card["about"] == {"pairs": 300, "verdict": "kept", "finds": 0.1 + 0.2}
    assert (card["source"], card["target"], card["one"], card["two"]) == ("v1", "v2", 0.6, 0.7)
    with np.load(path) as arrays:
        assert arrays["forward.0.W"].shape == (6, 9)
        assert arrays["backward.0.W"].shape == (9, 6)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    a=st.integers(1, 5),
    b=st.integers(1, 5),
    one=st.floats(0, 1),
    two=st.none() | st.floats(0, 1),
    about=st.dictionaries(
        st.sampled_from("abc"), st.integers() | st.floats(allow_nan=False) | st.none()
    ),
    seed=st.integers(0, 99),
)
def test_any_translation_comes_back(
    a: int, b: int, one: float, two: float | None, about: dict[str, Any], seed: int, tmp_path: Path
) -> None:
    path = tmp_path / "way.npz"
    path.unlink(missing_ok=True)
    way = Translation(
        "v 1",
        "\N{GREEK SMALL LETTER ALPHA}",
        layer(a, b, seed),
        layer(b, a, seed),
        one,
        two,
        about=about,
    )
    assert_same(load_translation(save_translation(way, path, onnx=False)), way)


# --- without fixstar


@pytest.mark.parametrize("name", WAYS)
def test_the_numpy_lines_of_the_card_give_the_scores(name: str, tmp_path: Path) -> None:
    way = WAYS[name]
    path = save_translation(way, tmp_path / "way.npz")
    width = 6 if way.shared else 9
    stored, old, new = 2 * vectors(8, 6), 3 * vectors(5, 6, 1), 4 * vectors(5, width, 2)
    names: dict[str, Any] = {"np": np, "stored": stored, "old": old, "new": new}
    code = "\n".join(card_of(path)["numpy"])
    exec(code.replace("way.npz", str(path)), names)
    seen = translated(
        way, VersionFeatures("v1", old, stored), VersionFeatures("v2", new, vectors(8, width))
    )
    np.testing.assert_allclose(names["scores"], seen.queries @ seen.gallery.T, atol=1e-5)
    for side in ("forward", "backward", "whitening"):
        part: Map | None = getattr(way, side)
        if part is not None:
            given_vectors = vectors(7, part.widths[0], 3)
            np.testing.assert_allclose(
                names[side](5 * given_vectors), part(given_vectors), atol=1e-5
            )


@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if arrays_of(way)])
def test_the_onnx_models_are_the_maps(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    way = WAYS[name]
    path = save_translation(way, tmp_path / "way.npz")
    maps = {
        side: part
        for side in ("forward", "backward", "whitening")
        if (part := getattr(way, side)) is not None
    }
    assert card_of(path)["onnx"] == sorted(f"{side}.onnx" for side in maps)
    for side, part in maps.items():
        with zipfile.ZipFile(path) as archive:
            session = onnxruntime.InferenceSession(archive.read(f"{side}.onnx"))
        X = vectors(20, part.widths[0]).astype(np.float32)
        for count in (20, 1):
            (mapped,) = session.run(None, {"vectors": 3 * X[:count]})
            np.testing.assert_allclose(mapped, part(X[:count]), atol=1e-6)


def test_without_onnx_the_file_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    path = save_translation(whole(), tmp_path / "way.npz")
    assert card_of(path)["onnx"] == []
    assert_same(load_translation(path), whole())
    with zipfile.ZipFile(path) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".onnx")]


# --- damaged


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda content: content[:10],
        lambda content: content[:0],
        lambda content: b"garbage" * len(content[:50]),
        lambda content: content[:300] + b"\x00\xff" + content[302:],
        lambda content: content.replace(b'"kept"', b'"cept"'),
        lambda content: content.replace(b'"one": 0.6', b'"one": 0.5'),
    ],
)
def test_a_damaged_file_is_refused(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = save_translation(whole(), tmp_path / "way.npz")
    torn = tmp_path / "torn.npz"
    torn.write_bytes(damage(path.read_bytes()))
    with refuses(ModelError, varies=r"(?<=translation: ).*(?= Restore)"):
        load_translation(torn)


def test_a_flipped_bit_anywhere_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    small = Translation("v1", "v2", layer(2, 2, 0, bent=False), layer(2, 2, 1, bent=False), one=0.6)
    content = save_translation(small, tmp_path / "way.npz", onnx=False).read_bytes()
    flipped = tmp_path / "flipped.npz"
    rng = np.random.default_rng(0)
    refused = 0
    for place in rng.permutation(len(content))[:300].tolist():
        changed = bytearray(content)
        changed[place] ^= 1 << int(rng.integers(8))
        flipped.write_bytes(changed)
        try:
            assert_same(load_translation(flipped), small)  # such as a date of the archive
        except ModelError:
            refused += 1
    assert refused > 150


@pytest.mark.parametrize(
    "member", ["forward.0.W.npy", "uncertainty.npy", "card.json", "forward.onnx"]
)
def test_a_file_that_was_packed_again_with_other_content_is_refused(
    member: str, tmp_path: Path
) -> None:
    """An archive without a fault, so that only the checksum says so."""
    if member.endswith(".onnx"):
        pytest.importorskip("onnx")
    path = save_translation(whole(), tmp_path / "way.npz")
    copy = tmp_path / "copy.npz"
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(copy, "w") as packed:
        assert member in archive.namelist()
        for name in archive.namelist():
            content = archive.read(name)
            if name == member:
                content = (
                    content.replace(b'"two": 0.7', b'"two": 0.8')
                    if name == "card.json"
                    else content[:-1] + b"A"
                )
                assert content != archive.read(name)
            packed.writestr(name, content)
    with refuses(ModelError):
        load_translation(copy)


def resealed(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Path:
    """A copy whose checksum is right, but whose content is not."""
    from fixstar.translation.file import _checksum

    card = card_of(path)
    del card["sha256"]
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files if name != "card.json"}
    change(card, arrays)
    card["sha256"] = _checksum(card, arrays, {})
    copy = path.with_name("changed.npz")
    np.savez(copy, **arrays)
    with zipfile.ZipFile(copy, "a") as archive:
        archive.writestr("card.json", json.dumps(card))
    return copy


@pytest.mark.parametrize(
    "change",
    [
        lambda card, _: card.update(format_version=3),
        lambda card, _: card.update(format="fixstar-bridge"),
        lambda card, _: card.update(one=7),
        lambda card, _: card.update(one="0.6"),
        lambda card, _: card.pop("two"),
        lambda _, arrays: arrays.update({"forward.0.Z": np.eye(2)}),
        lambda _, arrays: arrays.pop("forward.0.W"),
        lambda _, arrays: arrays.update({"forward.0.c": np.full(9, np.nan)}),
        lambda _, arrays: arrays.update({"forward.0.c": np.ones(4)}),
        lambda _, arrays: arrays.pop("uncertainty"),
        lambda card, _: card.update(whitened=True),
    ],
)
def test_what_is_whole_but_no_translation_is_refused(change: Any, tmp_path: Path) -> None:
    path = save_translation(whole(), tmp_path / "way.npz", onnx=False)
    assert_same(load_translation(resealed(path, lambda *_: None)), whole())
    with refuses(ModelError, varies=r"'<=' not.*'str'"):
        load_translation(resealed(path, change))


def test_a_file_from_before_whitening_is_read(tmp_path: Path) -> None:
    def older(card: dict[str, Any], _: dict[str, Any]) -> None:
        card["format_version"] = 1
        del card["whitened"]

    path = save_translation(whole(), tmp_path / "way.npz", onnx=False)
    assert_same(load_translation(resealed(path, older)), whole())


def test_other_files_are_no_translations(tmp_path: Path) -> None:
    np.savez(tmp_path / "vectors.npz", vectors=np.eye(3))
    with refuses(ModelError):
        load_translation(tmp_path / "vectors.npz")
    np.save(tmp_path / "vectors.npy", np.eye(3))
    with refuses(ModelError, varies=r"(?<=translation: ).*(?= Restore)"):
        load_translation(tmp_path / "vectors.npy")
    np.savez(tmp_path / "objects.npz", W=np.array([{}], object), allow_pickle=True)
    with pytest.raises(ModelError, match="not a translation"):
        load_translation(tmp_path / "objects.npz")
    with refuses(ModelError):
        load_translation(tmp_path / "absent.npz")


# --- written


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = save_translation(whole(), tmp_path / "way.npz")
    content = path.read_bytes()
    with refuses(InputError):
        save_translation(WAYS["one model"], path)
    assert path.read_bytes() == content
    with pytest.raises(InputError, match=r"saved as FILE\.npz"):
        save_translation(whole(), tmp_path / "way.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["way.npz"]


def test_a_failed_write_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written = zipfile.ZipFile.writestr

    def full(self: zipfile.ZipFile, name: Any, *content: Any, **options: Any) -> None:
        if name == "card.json":
            raise OSError(28, "No space left on device")
        written(self, name, *content, **options)

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(OSError, match="No space left"):
        save_translation(whole(), tmp_path / "way.npz")
    assert list(tmp_path.iterdir()) == []


def test_a_kill_in_the_middle_leaves_no_translation(tmp_path: Path) -> None:
    """What is left is a partial file of another name; the translation can be written again."""
    path = tmp_path / "way.npz"
    code = (
        "import os, zipfile, numpy as np\n"
        "from fixstar.translation import Map, Translation, save_translation\n"
        "written = zipfile.ZipFile.writestr\n"
        "def killed(self, name, *content):\n"
        "    if name == 'card.json': os.kill(os.getpid(), 9)\n"
        "    written(self, name, *content)\n"
        "zipfile.ZipFile.writestr = killed\n"
        f"save_translation(Translation('v1', 'v2', Map.linear(np.eye(3)), two=0.5), {str(path)!r}, onnx=False)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ}, capture_output=True, text=True
    )
    assert done.returncode == -9, done.stderr
    assert not path.exists()
    assert_same(load_translation(save_translation(whole(), path)), whole())
