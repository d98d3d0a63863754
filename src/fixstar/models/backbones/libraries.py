"""Image models of open_clip and sentence-transformers: the module, and how its images are prepared.

    open_clip:ViT-B-32/laion2b_s34b_b79k     a model and its pre-trained weights by name
    open_clip:ViT-B-32/weights.safetensors   a model by name, the weights of a file
    open_clip:FOLDER                         with open_clip_config.json and safetensors
    st:NAME_OR_FOLDER                        a model of sentence-transformers that takes images

The library is needed only once, as a version stores the module as ONNX. Nothing is unpickled.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from fixstar.errors import FixstarError, InputError, MissingExtraError, ModelError, UnknownNameError
from fixstar.images import Preprocessing
from fixstar.images.preprocessing import Fit
from fixstar.models.backbones.foreign import mismatch
from fixstar.models.backbones.hf import processor_inputs

OPEN_CLIP = "open_clip:"
SENTENCE_TRANSFORMERS = "st:"

_FITS: dict[str, Fit] = {"shortest": "crop", "squash": "squash", "longest": "pad"}
_PICKLED = ["*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.ot", "onnx/*", "openvino/*"]


class LibraryModel(NamedTuple):
    """A module from float images [B, C, H, W] to vectors [B, width], and the preprocessing of its images."""

    module: nn.Module
    preprocessing: Preprocessing


def library_model(name: str) -> LibraryModel:
    """Load a model by a name that starts with ``open_clip:`` or ``st:``."""
    load = _open_clip if name.startswith(OPEN_CLIP) else _sentence_transformer
    try:
        return load(name.partition(":")[2])
    except FixstarError:
        raise
    except Exception as error:  # each library raises its own
        raise ModelError(
            f"{name} cannot be loaded: {type(error).__name__}: {error}{mismatch(error)}"
        ) from error


def _imported(module: str, extra: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(extra, extra, name) from None


# --- open_clip


def _open_clip(name: str) -> LibraryModel:
    library = _imported("open_clip", "open-clip-torch", f"a model of open_clip ({name})")
    untrained: dict[str, Any] = {"load_weights": False, "pretrained_text": False}
    if Path(name).is_dir():
        model = library.create_model(f"local-dir:{name}", **untrained)
        weights = _weights_in(Path(name))
    else:
        architecture, _, chosen = name.partition("/")
        if architecture not in library.list_models():
            raise UnknownNameError("open_clip model", architecture, library.list_models())
        tags = library.list_pretrained_tags_by_model(architecture)
        if chosen in tags:
            known = library.get_pretrained_cfg(architecture, chosen)
            untrained |= {"pretrained": chosen, "force_quick_gelu": bool(known.get("quick_gelu"))}
            weights = Path(library.download_pretrained(known))
        elif Path(chosen).is_file():
            weights = Path(chosen)
        else:
            raise InputError(
                f"open_clip:{name} does not name weights: give open_clip:{architecture}/WEIGHTS, a safetensors file or "
                f"one of {', '.join(tags) or '(open_clip knows none)'}"
            )
        _require_safetensors(weights)
        model = library.create_model(architecture, **untrained)
    library.load_checkpoint(model, str(weights))
    return LibraryModel(model.visual.eval(), _open_clip_inputs(model.visual.preprocess_cfg))


def _weights_in(folder: Path) -> Path:
    found = sorted(folder.glob("*.safetensors"))
    if len(found) != 1:
        seen = ", ".join(path.name for path in found) or "none"
        raise ModelError(f"{folder} must hold one file of weights as safetensors; found: {seen}")
    return found[0]


def _require_safetensors(path: Path) -> None:
    if path.suffix != ".safetensors":
        raise ModelError(
            f"{path.name} is not a safetensors file. Pickled weights are never loaded: they can run code. Convert them "
            "with safetensors.torch.save_file, and give that file"
        )


def _open_clip_inputs(values: dict[str, Any]) -> Preprocessing:
    size = values["size"]
    fit = values["resize_mode"]
    if fit == "longest" and values["fill_color"] != 255:
        raise InputError(
            "the model pads its images with a colour other than white; pass its preprocessing"
        )
    return Preprocessing(
        size=(size, size) if isinstance(size, int) else tuple(size),
        mean=values["mean"],
        std=values["std"],
        fit=_FITS[fit],
        interpolation=values["interpolation"],
    )


# --- sentence-transformers


class _ImagePart(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        vectors: Tensor = self.model({"pixel_values": images, "modality": "image"})[
            "sentence_embedding"
        ]
        return vectors


def _sentence_transformer(name: str) -> LibraryModel:
    library = _imported(
        "sentence_transformers",
        "sentence-transformers",
        f"a model of sentence-transformers ({name})",
    )
    folder = Path(name) if Path(name).is_dir() else _downloaded(name)
    for module in (
        json.loads((folder / "modules.json").read_text())
        if (folder / "modules.json").is_file()
        else ()
    ):
        if not str(module["type"]).startswith("sentence_transformers."):
            raise ModelError(f"st:{name} needs its own code ({module['type']}), which is not run")
    for pickled in (*folder.rglob("*.bin"), *folder.rglob("*.pt")):
        if not any(pickled.parent.glob("*.safetensors")):
            _require_safetensors(pickled)
    safe = {
        "model_kwargs": {"use_safetensors": True},
        "local_files_only": True,
        "trust_remote_code": False,
    }
    model = library.SentenceTransformer(str(folder), device="cpu", **safe)
    if "image" not in model.modalities:
        raise InputError(
            f"st:{name} takes no images; it takes {', '.join(map(str, model.modalities))}"
        )
    processor = getattr(model[0].processor, "image_processor", model[0].processor)
    config = model[0].auto_model.config
    inputs = processor_inputs(
        json.loads(processor.to_json_string()), getattr(config, "vision_config", config)
    )
    return LibraryModel(_ImagePart(model).eval(), inputs)


def _downloaded(name: str) -> Path:
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise ModelError(
            f"there is no folder {name}; give one that sentence-transformers wrote, or a name on the hub"
        )
    hub = importlib.import_module("huggingface_hub")  # sentence-transformers depends on it
    full = name if "/" in name else f"sentence-transformers/{name}"
    return Path(hub.snapshot_download(full, ignore_patterns=_PICKLED))
