"""Models from elsewhere: ONNX files, modules, import paths; what is refused, and what a saved one notices later."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from documents import rewrite
from safetensors.torch import save_file
from torch import Tensor, nn
from wording import FIGURES, REASON, refuses

from fixstar.errors import FixstarError, InputError, ModelError
from fixstar.images import Preprocessing
from fixstar.models import Encoder
from fixstar.models.backbones import foreign
from fixstar.models.backbones.foreign import OnnxBackbone
from fixstar.models.encoder import canary_vectors

pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")

PREPARED = Preprocessing(size=(16, 16), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


class Net(nn.Module):
    """A small network; what it does with ``mode`` is what the tests refuse."""

    def __init__(self, width: int = 6, mode: str = "") -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
        self.head = nn.Linear(32, width)
        self.mode = mode

    def forward(self, images: Tensor) -> Any:
        features = self.head(self.body(images))
        if self.mode == "random":
            return features + torch.rand_like(features)
        if self.mode == "batch":
            return features - features.mean(0) + 1e-3
        if self.mode == "nan":
            return features / 0 * 0
        if self.mode == "constant":
            return torch.ones_like(features)
        if self.mode == "maps":
            return self.body[0](images)
        if self.mode == "dict":
            return {"features": features}
        return features


def net(mode: str = "") -> Net:
    torch.manual_seed(0)
    return Net(mode=mode).eval()


def pixels(count: int = 5) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(0, 256, (count, 16, 16, 3), np.uint8)


def expected(model: nn.Module, images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        out = model((torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25).numpy()
    return np.asarray(out / np.linalg.norm(out, axis=1, keepdims=True))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network as an ONNX file for any number of images."""
    encoder = Encoder.wrap(net(), PREPARED)
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    path.write_bytes(encoder.backbone.get_buffer("file").numpy().tobytes())
    return path


def test_a_module_kept_as_onnx_makes_its_vectors_and_comes_back(
    exported: Path, tmp_path: Path
) -> None:
    encoder = Encoder.wrap(exported, PREPARED)
    assert encoder.encode(pixels()) == pytest.approx(expected(net(), pixels()), abs=1e-5)
    encoder.save(tmp_path / "v1")
    back = Encoder.load(tmp_path / "v1")
    assert back.encode(pixels(3)) == pytest.approx(encoder.encode(pixels(3)), abs=1e-6)
    assert back.feature_dim == 6
    with pytest.raises(InputError, match="only embeds"):
        _ = back(torch.zeros(1, 3, 16, 16, dtype=torch.uint8)).logits


def test_a_module_with_an_import_path_comes_back_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIXSTAR_TRUST", __name__)
    source = f"{__name__}:Net"
    model = net()
    Encoder.wrap(model, PREPARED, source=source, arguments={"width": 6}).save(tmp_path / "v1")
    assert Encoder.load(tmp_path / "v1").encode(pixels()) == pytest.approx(
        expected(model, pixels()), abs=1e-5
    )
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    by_path = Encoder.wrap(
        source, PREPARED, arguments={"width": 6}, weights=tmp_path / "weights.safetensors"
    )
    assert by_path.encode(pixels()) == pytest.approx(expected(model, pixels()), abs=1e-5)
    monkeypatch.setattr(Net, "forward", lambda self, images: self.head(self.body(images)).flip(1))
    with refuses(ModelError, "add", varies=FIGURES):
        Encoder.load(tmp_path / "v1")


def test_weights_beside_an_onnx_file_are_taken_in(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    (tmp_path / "model").mkdir()
    beside = {"save_as_external_data": True, "location": "model.data", "size_threshold": 256}
    onnx.save_model(onnx.load(exported), tmp_path / "model" / "model.onnx", **beside)
    monkeypatch.chdir(tmp_path / "model")  # where onnxruntime would find them
    Encoder.wrap("model.onnx", PREPARED).save(tmp_path / "v1")
    (tmp_path / "model" / "model.data").unlink()
    monkeypatch.chdir(tmp_path)
    assert Encoder.load(tmp_path / "v1").encode(pixels()) == pytest.approx(
        expected(net(), pixels()), abs=1e-5
    )
    with refuses(ModelError, varies=REASON):
        Encoder.wrap(tmp_path / "model" / "model.onnx", PREPARED)


def test_a_saved_model_reads_no_file_beside_it(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    beside = {"save_as_external_data": True, "location": "model.data", "size_threshold": 256}
    onnx.save_model(onnx.load(exported), tmp_path / "model.onnx", **beside)
    monkeypatch.chdir(tmp_path)
    with refuses(ModelError, varies=REASON):
        OnnxBackbone.of((tmp_path / "model.onnx").read_bytes(), PREPARED, "model.onnx")


def test_what_could_not_be_loaded_again_is_not_saved(tmp_path: Path) -> None:
    encoder = Encoder.wrap(net(), PREPARED, source=f"{__name__}:net", arguments={"mode": ""})
    encoder.backbone.options["source"] = "nowhere.at.all:Net"
    with pytest.raises(ModelError, match="cannot be imported"):
        encoder.save(tmp_path / "v1")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "mode",
    [
        "random",
        "batch",
        "nan",
        "constant",
        "maps",
        "dict",
    ],
)
def test_models_that_cannot_embed_are_refused(mode: str) -> None:
    with refuses(ModelError, varies=FIGURES):
        Encoder.wrap(net(mode), PREPARED, source=f"{__name__}:Net", arguments={"mode": mode})


def test_one_mean_for_a_model_of_colours_is_explained(exported: Path) -> None:
    grey = Preprocessing(size=PREPARED.size, channels=1, mean=(0.5,), std=(0.5,))
    for model in (exported, f"{__name__}:Net"):
        with refuses(FixstarError, varies=r"(?<=RuntimeError: ).*(?= A mean)"):
            Encoder.wrap(model, grey)


def test_whatever_an_import_raises_is_an_error_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unmatched.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with refuses(ModelError, varies=r"(?<=torch than )\S+(?=:)"):
        Encoder.wrap("unmatched:Net", PREPARED)


def test_bad_files_and_names_are_refused(exported: Path, tmp_path: Path) -> None:
    with refuses(InputError):
        Encoder.wrap(exported)
    with pytest.raises(InputError, match="3 x \\(32, 32\\)"):
        Encoder.wrap(exported, Preprocessing(size=(32, 32), mean=(0, 0, 0), std=(1, 1, 1)))
    with pytest.raises(InputError, match="none is called 'logits'"):
        Encoder.wrap(exported, PREPARED, output="logits")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(exported.read_bytes()[:200])
    with pytest.raises(ModelError, match="not an ONNX model"):
        Encoder.wrap(broken, PREPARED)
    with pytest.raises(ModelError, match="cannot be read"):
        Encoder.wrap(tmp_path / "none.onnx", PREPARED)
    with refuses(InputError):
        Encoder.wrap("resnet", PREPARED)
    with pytest.raises(ModelError, match="cannot be imported"):
        Encoder.wrap("no.such.module:Net", PREPARED)
    with pytest.raises(ModelError, match="failed: TypeError"):
        Encoder.wrap(f"{__name__}:Net", PREPARED, arguments={"depth": 3})
    pickled = tmp_path / "weights.pt"
    torch.save(net().state_dict(), pickled)
    with refuses(InputError):
        Encoder.wrap(pickled, PREPARED)
    with pytest.raises(ModelError, match="never loaded"):
        Encoder.wrap(f"{__name__}:Net", PREPARED, weights=pickled)


@pytest.mark.parametrize(
    ("name", "wrap"),
    [
        ("model.onnx", lambda path: Encoder.wrap(path, PREPARED)),
        (
            "weights.safetensors",
            lambda path: Encoder.wrap(f"{__name__}:Net", PREPARED, weights=path),
        ),
    ],
)
def test_a_pipe_is_never_opened(tmp_path: Path, name: str, wrap: Callable[[Path], Encoder]) -> None:
    os.mkfifo(tmp_path / name)
    with refuses(ModelError):
        wrap(tmp_path / name)


def endless_onnx() -> bytes:
    """A model with a loop that goes on as long as the images are smaller than infinity."""
    onnx = pytest.importorskip("onnx")
    h, kind = onnx.helper, onnx.TensorProto
    body = h.make_graph(
        [h.make_node("Identity", ["go"], ["on"]), h.make_node("Add", ["x", "x"], ["y"])],
        "body",
        [
            h.make_tensor_value_info("i", kind.INT64, []),
            h.make_tensor_value_info("go", kind.BOOL, []),
            h.make_tensor_value_info("x", kind.FLOAT, [None, 3]),
        ],
        [
            h.make_tensor_value_info("on", kind.BOOL, []),
            h.make_tensor_value_info("y", kind.FLOAT, [None, 3]),
        ],
    )
    graph = h.make_graph(
        [
            h.make_node("GlobalAveragePool", ["images"], ["pooled"]),
            h.make_node("Flatten", ["pooled"], ["start"]),
            h.make_node("Loop", ["", "yes", "start"], ["features"], body=body),
        ],
        "endless",
        [h.make_tensor_value_info("images", kind.FLOAT, ["N", 3, 16, 16])],
        [h.make_tensor_value_info("features", kind.FLOAT, ["N", 3])],
        [h.make_tensor("yes", kind.BOOL, [], [True])],
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)])
    model.ir_version = 8
    content: bytes = model.SerializeToString()
    return content


def test_a_model_that_does_not_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "_SECONDS_PER_IMAGE", 0.1)
    (tmp_path / "endless.onnx").write_bytes(endless_onnx())
    with refuses(ModelError):
        Encoder.wrap(tmp_path / "endless.onnx", PREPARED)


def test_options_that_would_be_ignored_are_refused_and_the_module_stays_as_it_is(
    exported: Path,
) -> None:
    with refuses(InputError):
        Encoder.wrap(exported, PREPARED, weights="weights.safetensors")
    with refuses(InputError):
        Encoder.wrap("hf:dinov2", arguments={"depth": 3}, output="features")
    with refuses(InputError):
        Encoder.wrap(f"{__name__}:Net", PREPARED, output="features")
    model = net().train()
    wrapped = Encoder.wrap(model, PREPARED, source=f"{__name__}:Net", arguments={"width": 6})
    assert model.training
    assert wrapped.backbone.get_submodule("model") is not model


def test_a_card_cannot_ask_for_more_bytes_than_there_are(exported: Path, tmp_path: Path) -> None:
    Encoder.wrap(exported, PREPARED).save(tmp_path / "v1")
    rewrite(
        tmp_path / "v1" / "card.json", lambda card: card["backbone"]["options"].update(size=10**15)
    )
    with refuses(ModelError, varies=r"\{.*\}|\[\d+\]"):
        Encoder.load(tmp_path / "v1")


def test_a_changed_byte_of_the_canary_or_the_weights_is_noticed(tmp_path: Path) -> None:
    encoder = Encoder.create("tiny", classes=("a", "b"), capacity=20)
    encoder.save(tmp_path / "v1")
    assert canary_vectors(Encoder.load(tmp_path / "v1")) == pytest.approx(
        canary_vectors(encoder), abs=1e-5
    )
    weights = tmp_path / "v1" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-3] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ModelError, match="damaged"):
        Encoder.load(tmp_path / "v1")
