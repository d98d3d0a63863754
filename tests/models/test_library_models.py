"""Models of open_clip and sentence-transformers: the real libraries where installed, else their interface as a stub."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from wording import refuses

from fixstar.errors import InputError, MissingExtraError, ModelError, NextStep, UnknownNameError
from fixstar.models import Encoder

pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")

IMAGES = [
    Image.fromarray(np.random.default_rng(i).integers(0, 256, (32, 32, 3), np.uint8))
    for i in range(3)
]


def same(found: np.ndarray[Any, Any], raw: np.ndarray[Any, Any]) -> bool:
    return np.allclose(found, raw / np.linalg.norm(raw, axis=1, keepdims=True), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("open_clip:ViT-B-32/openai", "open-clip-torch"),
        ("st:clip-ViT-B-32", "sentence-transformers"),
    ],
)
def test_a_library_that_is_not_installed(
    name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("open_clip", "sentence_transformers"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as missing:
        Encoder.wrap(name)
    assert missing.value.next_steps == (NextStep("install", {"extra": extra}),)
    with pytest.raises(InputError, match="takes no output"):
        Encoder.wrap(name, output="features")


# --- open_clip


CONFIG = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "patch_size": 16, "head_width": 16},
    "text_cfg": {"context_length": 8, "vocab_size": 64, "width": 16, "heads": 2, "layers": 1},
}
INPUTS = {"mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bicubic", "resize_mode": "squash"}


class Tower(nn.Module):
    """A vision tower as open_clip's models have one."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(48, 6)
        self.preprocess_cfg: dict[str, Any] = {**INPUTS, "size": 32, "fill_color": 0}

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.head(nn.functional.adaptive_avg_pool2d(images, 4).flatten(1))
        return features


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """open_clip with one model, ``small``, and one name for weights, ``made``; what it was asked for."""
    asked: dict[str, Any] = {}
    library: Any = ModuleType("open_clip")

    def create_model(name: str, **options: Any) -> Any:
        asked.update(options, name=name)
        torch.manual_seed(1)
        model = nn.Module()
        model.visual = Tower()
        return model

    library.create_model = create_model
    library.list_models = lambda: ["small"]
    library.list_pretrained_tags_by_model = lambda _: ["made"]
    library.get_pretrained_cfg = lambda *_: {"quick_gelu": True}
    library.download_pretrained = lambda _: asked["file"]
    library.load_checkpoint = lambda model, path: model.load_state_dict(load_file(path))
    monkeypatch.setitem(sys.modules, "open_clip", library)
    return asked


@pytest.mark.long
def test_open_clip_by_name_file_and_folder(stub: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(5)
    tower = Tower()
    save_file(
        {f"visual.{name}": value for name, value in tower.state_dict().items()},
        tmp_path / "w.safetensors",
    )
    pixels = (
        torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in IMAGES]) / 255
    )
    with torch.no_grad():
        truth = tower((pixels - 0.5) / 0.25).numpy()
    stub["file"] = str(tmp_path / "w.safetensors")
    for name in ("small/made", f"small/{tmp_path / 'w.safetensors'}", str(tmp_path)):
        encoder = Encoder.wrap(f"open_clip:{name}")
        assert encoder.backbone.name == "onnx"  # open_clip is not needed to load it again
        assert encoder.preprocessing.fit == "squash"
        assert same(encoder.encode(IMAGES), truth)
        assert stub["load_weights"] is False  # only safetensors are read, and by us
    assert stub["name"] == f"local-dir:{tmp_path}"
    assert stub["force_quick_gelu"]


def test_open_clip_names_that_are_refused(stub: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="small"):
        Encoder.wrap("open_clip:smal/made")
    with pytest.raises(InputError, match="made"):
        Encoder.wrap("open_clip:small")
    stub["file"] = "weights.bin"
    with refuses(ModelError):
        Encoder.wrap("open_clip:small/made")
    with refuses(ModelError):
        Encoder.wrap(f"open_clip:{tmp_path}")


def test_the_real_open_clip(tmp_path: Path) -> None:
    library = pytest.importorskip(
        "open_clip", reason="open_clip is not installed: only its interface was tested"
    )
    (tmp_path / "open_clip_config.json").write_text(
        json.dumps({"model_cfg": CONFIG, "preprocess_cfg": INPUTS})
    )
    torch.manual_seed(0)
    model = library.create_model(f"local-dir:{tmp_path}").eval()
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(weights, tmp_path / "open_clip_model.safetensors")
    prepare = library.transform.image_transform_v2(
        library.transform.PreprocessCfg(**model.visual.preprocess_cfg), False
    )
    with torch.no_grad():
        truth = model.encode_image(torch.stack([prepare(image) for image in IMAGES])).numpy()
    encoder = Encoder.wrap(f"open_clip:{tmp_path}")
    assert same(encoder.encode(IMAGES), truth)
    encoder.save(tmp_path / "v1")
    assert same(Encoder.load(tmp_path / "v1").encode(IMAGES), truth)


# --- sentence-transformers


class SmallTransformer(nn.Sequential):
    """A model as sentence-transformers makes it: a sequence of modules over a dictionary."""

    modalities = ("text", "image")

    def __init__(self, folder: str, **options: Any) -> None:
        assert options["model_kwargs"] == {"use_safetensors": True}
        assert not options["trust_remote_code"]
        torch.manual_seed(2)
        part = Tower()
        super().__init__(part)
        self.folder = folder
        values = {
            "image_mean": [0.5] * 3,
            "image_std": [0.25] * 3,
            "size": {"height": 32, "width": 32},
        }
        processor = SimpleNamespace(to_json_string=lambda: json.dumps(values))
        part.processor = SimpleNamespace(image_processor=processor)  # type: ignore[assignment]
        part.auto_model = SimpleNamespace(config=SimpleNamespace(image_size=32))  # type: ignore[assignment]

    def forward(self, given: dict[str, Any]) -> dict[str, Any]:
        assert given["modality"] == "image"
        return {**given, "sentence_embedding": self[0](given["pixel_values"])}


def test_sentence_transformers_by_its_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library: Any = ModuleType("sentence_transformers")
    library.SentenceTransformer = SmallTransformer
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    encoder = Encoder.wrap(f"st:{tmp_path}")
    assert (encoder.feature_dim, encoder.backbone.name) == (6, "onnx")
    monkeypatch.setattr(SmallTransformer, "modalities", ("text",))
    with refuses(InputError):
        Encoder.wrap(f"st:{tmp_path}")
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "mine.Module"}]))
    with refuses(ModelError):
        Encoder.wrap(f"st:{tmp_path}")
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / "pytorch_model.bin").touch()
    with refuses(ModelError):
        Encoder.wrap(f"st:{tmp_path}")
    with pytest.raises(ModelError, match="cannot be loaded"):
        Encoder.wrap("st:no/such-model")


@pytest.mark.long
def test_the_real_sentence_transformers(tmp_path: Path) -> None:
    library = pytest.importorskip(
        "sentence_transformers", reason="sentence-transformers is not installed"
    )
    from transformers import CLIPConfig, CLIPModel
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    small = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    text = {
        **small,
        "vocab_size": 64,
        "max_position_embeddings": 8,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    torch.manual_seed(0)
    config = CLIPConfig(
        text_config=text,
        vision_config={**small, "image_size": 32, "patch_size": 16},
        projection_dim=12,
    )
    CLIPModel(config).save_pretrained(tmp_path)
    CLIPImageProcessorPil(
        size={"shortest_edge": 36}, crop_size={"height": 32, "width": 32}
    ).save_pretrained(tmp_path)
    (tmp_path / "vocab.json").write_text('{"<|startoftext|>": 0, "<|endoftext|>": 1}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "CLIPTokenizer"}')
    images = [
        image.resize((36, 36)) for image in IMAGES
    ]  # of the size that it crops: resizing differs a little
    truth = library.SentenceTransformer(str(tmp_path), device="cpu", local_files_only=True).encode(
        images
    )
    encoder = Encoder.wrap(f"st:{tmp_path}")
    assert encoder.preprocessing.crop_fraction == pytest.approx(32 / 36)
    found = encoder.encode(images)
    assert same(found, truth)
    encoder.save(tmp_path / "v1")
    assert np.allclose(Encoder.load(tmp_path / "v1").encode(images), found, atol=1e-5)
