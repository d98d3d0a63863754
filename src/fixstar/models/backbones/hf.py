"""Any vision model of transformers as a backbone; loaded offline where possible, and never unpickled."""

from __future__ import annotations

import difflib
import importlib
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from fixstar.durable import DAMAGE
from fixstar.errors import FixstarError, InputError, MissingExtraError, ModelError
from fixstar.images import Preprocessing
from fixstar.images.preprocessing import Interpolation
from fixstar.models.backbones.base import Backbone, imagenet_inputs

Pooling = Literal["auto", "cls", "mean"]

_CLS_NAMES = {"cls_token", "class_embedding"}
# Recorded by transformers, but not part of the architecture.
_NOT_ARCHITECTURE = (
    "_name_or_path",
    "architectures",
    "dtype",
    "id2label",
    "label2id",
    "problem_type",
)
_PROCESSOR_FILES = [
    "preprocessor_config.json",
    "processor_config.json",
]  # the second for multimodal models
_JSON_FILES = ["config.json", *_PROCESSOR_FILES]
_WEIGHT_FILES = ["model.safetensors", "model.safetensors.index.json", "model-*.safetensors"]
_TIMEOUT_S = 10.0
_RESAMPLE: dict[int, Interpolation] = {
    0: "nearest",
    1: "lanczos",
    2: "bilinear",
    3: "bicubic",
}  # Pillow's numbers
_SQUASHED_FROM = (
    384  # processors with crop_pct crop below this size, and squash at this size and above
)


def hf_backbone(
    source: str,
    *,
    pretrained: bool | None = None,
    config: dict[str, Any] | None = None,
    pooling: Pooling = "auto",
    preprocessing: dict[str, Any] | None = None,
) -> HFBackbone:
    """A vision model of transformers, without its classifier.

    ``source`` is a folder of ``save_pretrained``, a name on the hub, or an architecture (``"dinov2"``: a
    ``model_type``), which ``config`` changes and which starts from random weights. ``pooling="auto"`` takes the model's
    own pooled output, else its CLS token, else the mean. The whole config is kept as an option, so it can be rebuilt
    offline.
    """
    if pooling not in get_args(Pooling):
        raise InputError(f"unknown pooling {pooling!r}; allowed: {', '.join(get_args(Pooling))}")
    loaded = load_model(source, pretrained, config)
    if preprocessing:
        inputs = Preprocessing.from_json(preprocessing)
    else:
        inputs = hf_inputs(loaded.config, loaded.folder)
    return HFBackbone(loaded, pooling, inputs)


class HFBackbone(Backbone):
    """A model of transformers with a pooling. Parameters that do not affect the features are frozen."""

    def __init__(self, loaded: Loaded, pooling: Pooling, preprocessing: Preprocessing) -> None:
        model = loaded.model.eval()
        model_type = str(loaded.config.model_type)
        super().__init__(f"hf:{model_type}", {}, 0, preprocessing)
        self.model: nn.Module = model
        output = self._trial_output()
        # a classifier's checkpoint has no pooler, and transformers would add a random one
        pooler = not any(name.startswith("pooler.") for name in loaded.missing)
        self.pooled_by = _choose_pooling(pooling, model, output, trained_pooler=pooler)
        self.prefix_tokens = _prefix_tokens(model, output.last_hidden_state, preprocessing.size)
        features = self._pool(output)
        if features.ndim != 2:
            raise ModelError(
                f"{self.name} gives features of shape {tuple(features.shape)}, not one vector per image"
            )
        _freeze_unused(model, features, loaded.missing, self.name)
        self.feature_dim = features.shape[1]
        self.options = {
            "pretrained": False,
            "config": plain_config(loaded.config),
            "pooling": "auto" if self.pooled_by == "pooler" else self.pooled_by,
            "preprocessing": preprocessing.to_json(),
        }
        self.train()

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] to [B, feature_dim]."""
        return self._pool(self.model(pixel_values=images))

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """Not supported: models of transformers name their hidden states differently."""
        raise ModelError(
            f"{self.name} gives no feature maps {tuple(images.shape)}; a method that compares maps (podnet) needs one "
            "of fixstar's own backbones (backbone_names() lists them)"
        )

    def _pool(self, output: Any) -> Tensor:
        pooled: Tensor
        if self.pooled_by == "pooler":
            pooled = output.pooler_output.flatten(
                1
            )  # [B, D], or [B, D, 1, 1] of convolutional networks
        elif self.pooled_by == "cls":
            pooled = output.last_hidden_state[:, 0]
        elif output.last_hidden_state.ndim == 4:  # [B, D, h, w]
            pooled = output.last_hidden_state.mean((2, 3))
        else:  # [B, N, D]
            pooled = output.last_hidden_state[:, self.prefix_tokens :].mean(1)
        return pooled

    def _trial_output(self) -> Any:
        """The output for one black image, to get the shape of features and to see whether the model runs."""
        shape = (1, self.preprocessing.channels, *self.preprocessing.size)
        device = next(self.model.parameters()).device
        failing = explained(ModelError, f"{self.name} cannot run on an image of shape {shape[1:]}")
        with failing, torch.inference_mode(False), torch.enable_grad():
            output = self.model(pixel_values=torch.zeros(shape, device=device))
        hidden = getattr(output, "last_hidden_state", None)
        if not isinstance(hidden, Tensor) or hidden.ndim not in (3, 4):
            raise ModelError(
                f"{self.name} gives no image features; choose a model such as hf:dinov2 or hf:convnext"
            )
        return output


@contextmanager
def explained(kind: type[FixstarError], what: str) -> Iterator[None]:
    """Converts any error of transformers to ``kind``; architectures raise different errors."""
    try:
        yield
    except FixstarError:
        raise
    except Exception as error:
        raise kind(f"{what}: {error}") from error


def _choose_pooling(pooling: Pooling, model: nn.Module, output: Any, trained_pooler: bool) -> str:
    has_cls = _has_cls(model, output.last_hidden_state)
    if pooling == "auto":
        if trained_pooler and getattr(output, "pooler_output", None) is not None:
            return "pooler"
        if has_cls:
            return "cls"
        return "mean"
    if pooling == "cls" and not has_cls:
        raise InputError(
            f"{type(model).__name__} has no CLS token; allowed for it: pooling='auto' or 'mean'"
        )
    return pooling


def _has_cls(model: nn.Module, hidden: Tensor) -> bool:
    return hidden.ndim == 3 and any(
        name.rpartition(".")[2] in _CLS_NAMES for name, _ in model.named_parameters()
    )


def _prefix_tokens(model: Any, hidden: Tensor, size: tuple[int, int]) -> int:
    """How many tokens (CLS, registers) come before the patches; only patches are averaged."""
    if not _has_cls(model, hidden):
        return 0
    patch = getattr(model.config, "patch_size", None)
    sides = (patch, patch) if isinstance(patch, int) else patch
    if not isinstance(sides, (tuple, list)) or len(sides) != 2:
        return 1
    return max(0, hidden.shape[1] - (size[0] // sides[0]) * (size[1] // sides[1]))


def _freeze_unused(model: nn.Module, features: Tensor, missing: frozenset[str], name: str) -> None:
    """Freeze parameters that do not affect the features (mask tokens, an unused pooler)."""
    used = set(map(id, _leaves(features)))
    unused = {key for key, parameter in model.named_parameters() if id(parameter) not in used}
    for key, parameter in model.named_parameters():
        if key in unused:
            parameter.requires_grad_(False)
    needed = sorted(key for key in missing - unused if not key.endswith("num_batches_tracked"))
    if needed:
        raise ModelError(
            f"the weights of {name} lack {len(needed)} of the model's tensors ({', '.join(needed[:3])}, ...): "
            "config.json and weights do not belong together. Download the folder again"
        )


def _leaves(result: Tensor) -> Iterator[Tensor]:
    """The leaf tensors with a gradient in the autograd graph of ``result``."""
    seen = set()
    stack = [result.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        stack.extend(child for child, _ in node.next_functions)


def plain_config(config: Any) -> dict[str, Any]:
    """The whole config as plain JSON, with defaults, which may change between releases of transformers."""
    values: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return {key: value for key, value in values.items() if key not in _NOT_ARCHITECTURE}


@dataclass(frozen=True)
class Loaded:
    """A model, its config, the folder it came from, and the names of tensors that the folder's weights lack."""

    model: Any
    config: Any
    folder: Path | None = None
    missing: frozenset[str] = frozenset()


def is_architecture(source: str) -> bool:
    """Whether ``hf:source`` names an architecture and not a trained model."""
    return source in hf_library().CONFIG_MAPPING


def load_model(source: str, pretrained: bool | None, config: dict[str, Any] | None) -> Loaded:
    """Load the model of ``hf:source``. With ``config`` it is built from that alone, and no file is read."""
    if not source:
        raise InputError(
            "hf: needs a name or a folder after it, such as hf:facebook/dinov2-small or hf:./my-model"
        )
    transformers = hf_library()
    bare = config is not None or source in transformers.CONFIG_MAPPING
    if bare and pretrained:
        raise InputError(
            f"hf:{source} describes an architecture, which has no weights: for pre-trained weights give a folder or a "
            "hub name without config, else leave out pretrained=True"
        )
    with quiet(transformers):
        if bare:
            model_config = _bare_config(transformers, source, config or {})
            if config is None and pretrained is None:
                warnings.warn(
                    f"hf:{source} names an architecture, not a trained model: it gets the default sizes of "
                    "transformers and random weights. For trained weights name a folder or a hub model, such as "
                    "hf:facebook/dinov2-small; pass pretrained=False if random weights are intended",
                    stacklevel=4,
                )
            return Loaded(_from_config(transformers, model_config), model_config)
        weights = pretrained is None or pretrained
        return _from_folder(transformers, model_folder(transformers, source, weights), weights)


def hf_library() -> Any:
    """The library, imported on first use, which takes seconds."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise MissingExtraError("transformers", "backbones", "a backbone named hf:...") from error


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """No progress bars and no reports about the unused classifier; both are restored afterwards."""
    log = transformers.utils.logging
    loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    bars = log.is_progress_bar_enabled()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    log.disable_progress_bar()
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            log.enable_progress_bar()


def _bare_config(transformers: Any, source: str, config: dict[str, Any]) -> Any:
    known = transformers.CONFIG_MAPPING
    values = dict(config)
    model_type = values.pop("model_type", source)
    if model_type not in known:
        raise InputError(
            f"{model_type!r} is not an architecture (model_type) of transformers{_guess(transformers, model_type)}"
        )
    if source in known and source != model_type:
        raise InputError(
            f"hf:{source} and model_type {model_type!r} of its config contradict each other"
        )
    with explained(InputError, f"the config of hf:{model_type} is wrong"):
        if "transformers_version" not in values:  # written by hand, so an unknown key is a typo
            default = known[model_type]
            if unknown := sorted(
                set(values) - set(default().to_dict()) - set(default.attribute_map)
            ):
                raise InputError(
                    f"unknown key {', '.join(unknown)} in the config of hf:{model_type}; see {default.__name__}"
                )
        result = transformers.AutoConfig.for_model(model_type, **values)
    return _as_encoder(transformers, result)


def _guess(transformers: Any, name: str) -> str:
    close = difflib.get_close_matches(name, list(transformers.CONFIG_MAPPING), n=1)
    if close:
        return f"; did you mean hf:{close[0]}?"
    return ""


def _as_encoder(transformers: Any, config: Any) -> Any:
    """The config, checked and changed: the model takes only images and is deterministic."""
    model = transformers.MODEL_MAPPING.get(type(config), None)
    model = model[0] if isinstance(model, tuple) else model
    if getattr(model, "main_input_name", None) != "pixel_values":
        hint = "choose a vision model, such as hf:dinov2 or hf:convnext"
        if getattr(config, "vision_config", None) is not None:
            hint = "save its vision part (the ...VisionModel class) to a separate folder, and give that folder"
        raise ModelError(f"{config.model_type} of transformers is not a vision model: {hint}")
    if hasattr(config, "mask_ratio"):
        config.mask_ratio = 0.0  # masked autoencoders hide random patches, even in evaluation
    config.return_dict = True
    return config


def _from_config(transformers: Any, config: Any) -> Any:
    with explained(ModelError, f"hf:{config.model_type} cannot be built from its config"):
        return transformers.AutoModel.from_config(
            config, dtype=torch.float32, trust_remote_code=False
        )


def _from_folder(transformers: Any, folder: Path, weights: bool) -> Loaded:
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{folder} is not a model of transformers: config.json is missing (save_pretrained writes it)"
        )
    with explained(ModelError, f"{folder / 'config.json'} is unusable"):
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    config = _as_encoder(transformers, config)
    if not weights:
        return Loaded(_from_config(transformers, config), config, folder)
    if not any(folder.glob("model*.safetensors")):
        raise ModelError(
            f"{folder} has no weights as safetensors, the only supported format: convert them with "
            "AutoModel.from_pretrained(...).save_pretrained(...), or pass pretrained=False for random ones"
        )
    safe = {"use_safetensors": True, "trust_remote_code": False, "local_files_only": True}
    with explained(ModelError, f"the weights in {folder} cannot be loaded"):
        model, report = transformers.AutoModel.from_pretrained(
            folder, config=config, dtype=torch.float32, output_loading_info=True, **safe
        )
    return Loaded(model, config, folder, frozenset(report["missing_keys"]))


def model_folder(transformers: Any, source: str, weights: bool, more: Sequence[str] = ()) -> Path:
    """The folder itself, or the local copy of a hub model; ``more`` are additional files that it needs."""
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if source.startswith(("/", ".", "~")) or source.count("/") > 1:
        raise ModelError(
            f"there is no folder {source}; give one that save_pretrained wrote, or a hub name (owner/model)"
        )
    return _hub_folder(transformers, source, weights, more)


def _hub_folder(transformers: Any, name: str, weights: bool, more: Sequence[str]) -> Path:
    """The cached copy of a hub model if it is complete, else a new download."""
    hub = importlib.import_module("huggingface_hub")  # transformers depends on it
    files = [*_JSON_FILES, *(_WEIGHT_FILES if weights else []), *more]
    cached: Path | None = None
    with suppress(OSError, ValueError):
        cached = Path(hub.snapshot_download(name, allow_patterns=files, local_files_only=True))
    usable = (
        cached
        and (cached / "config.json").is_file()
        and (not weights or any(cached.glob("model*.safetensors")))
    )
    if cached and usable and any((cached / name).is_file() for name in (*_PROCESSOR_FILES, *more)):
        return cached
    try:
        hub.HfApi().model_info(name, timeout=_TIMEOUT_S)  # a download would retry for half a minute
        return Path(hub.snapshot_download(name, allow_patterns=files))
    except Exception as error:
        if cached and usable:
            return cached
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise ModelError(
            f"hf:{name} is not a folder here, and the Hugging Face hub did not provide it ({reason}). On a "
            f"machine with network access: hf download {name} --local-dir FOLDER; then copy it here and use hf:FOLDER"
            f"{_guess(transformers, name)}"
        ) from error


def hf_inputs(config: Any, folder: Path | None) -> Preprocessing:
    """From the folder's image processor file (transformers' own needs torchvision), else ImageNet's."""
    if folder:
        path = next((folder / name for name in _PROCESSOR_FILES if (folder / name).is_file()), None)
    else:
        path = None
    if path is None:
        return _default_inputs(config)
    try:
        values = json.loads(path.read_text())
        return processor_inputs(values.get("image_processor", values), config)
    except (OSError, ArithmeticError, *DAMAGE) as error:
        raise ModelError(
            f"{path} is unusable ({error}); correct it, or pass preprocessing=..."
        ) from error


def _default_inputs(config: Any) -> Preprocessing:
    side = getattr(config, "image_size", None) or 224
    size = (side, side) if isinstance(side, int) else (int(side[0]), int(side[1]))
    return imagenet_inputs(size, getattr(config, "num_channels", 3))


def processor_inputs(values: dict[str, Any], config: Any) -> Preprocessing:
    """The preprocessing of an image processor of transformers, from its JSON; ``config`` is the model's."""
    default = _default_inputs(config)
    scale = 255.0 * (
        values.get("rescale_factor", 1 / 255) if values.get("do_rescale", True) else 1.0
    )
    normalised = values.get("do_normalize", True)
    mean = _by_channel(
        values.get("image_mean", default.mean) if normalised else 0.0, default.channels
    )
    std = _by_channel(values.get("image_std", default.std) if normalised else 1.0, default.channels)
    return Preprocessing(
        **_geometry(values, default),
        channels=default.channels,
        mean=tuple(value / scale for value in mean),
        std=tuple(value / scale for value in std),
        interpolation=_RESAMPLE.get(values.get("resample", 2), "bilinear"),
    )


def _by_channel(value: float | Sequence[float], channels: int) -> list[float]:
    values = [value] if isinstance(value, (int, float)) else list(value)
    if len(values) == 1:
        return values * channels
    return values


def _geometry(values: dict[str, Any], default: Preprocessing) -> dict[str, Any]:
    """Size, fit and crop fraction from ``size``, ``crop_size``, ``crop_pct`` and the switches for them."""
    resized = values.get("size")
    crop_pct = values.get("crop_pct")
    crops = (
        values.get("do_center_crop", "crop_size" in values) and values.get("crop_size") is not None
    )
    if values.get("do_resize", True):
        edge = _shortest_edge(resized, whole=not crops and crop_pct is None)
    else:
        edge = None
    if crops:
        size = _sides(values["crop_size"])
        return {
            "size": size,
            "fit": "crop",
            "crop_fraction": min(1.0, min(size) / (edge or min(size))),
        }
    if resized is None:
        return {"size": default.size, "fit": "crop", "crop_fraction": default.crop_fraction}
    if edge is None:
        return {"size": _sides(resized), "fit": "squash"}
    if crop_pct is not None and edge >= _SQUASHED_FROM:
        return {"size": (edge, edge), "fit": "squash"}
    return {"size": (edge, edge), "fit": "crop", "crop_fraction": crop_pct or 1.0}


def _shortest_edge(size: Any, whole: bool) -> int | None:
    """The length that the shorter side is resized to; ``None`` if both sides are given and nothing is cropped."""
    if isinstance(size, dict) and "shortest_edge" in size:
        return int(size["shortest_edge"])
    if size is None or whole:
        return None
    return min(_sides(size))


def _sides(size: Any) -> tuple[int, int]:
    """Height and width of {"height", "width"}, a pair, or one number (in older files)."""
    if isinstance(size, dict):
        return int(size["height"]), int(size["width"])
    if isinstance(size, int):
        return (size, size)
    return (int(size[0]), int(size[1]))
