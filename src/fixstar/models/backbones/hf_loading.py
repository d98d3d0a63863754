"""Models of transformers from a folder, the hub or a config; quietly, offline where possible, and never unpickled."""

from __future__ import annotations

import difflib
import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fixstar.errors import InputError, MissingExtraError, ModelError

__all__ = ["Loaded", "load_model"]

_JSON_FILES = ["config.json", "preprocessor_config.json"]
_WEIGHT_FILES = ["model.safetensors", "model.safetensors.index.json", "model-*.safetensors"]
_PATIENCE_S = 10.0


@dataclass(frozen=True)
class Loaded:
    """A model, its config, the folder it came from, and the names of tensors that the folder's weights lack."""

    model: Any
    config: Any
    folder: Path | None = None
    missing: frozenset[str] = frozenset()


def load_model(source: str, pretrained: bool | None, config: dict[str, Any] | None) -> Loaded:
    """The model that ``hf:source`` means. ``config`` describes an architecture and leaves ``source`` unread."""
    if not source:
        raise InputError("hf: wants a name or a folder behind it, such as hf:facebook/dinov2-small or hf:./my-model")
    transformers = _import_transformers()
    bare = config is not None or source in transformers.CONFIG_MAPPING
    if bare and pretrained:
        raise InputError(
            f"hf:{source} describes an architecture, which has no weights: give a folder or a hub name without config "
            "for pre-trained weights, or leave out pretrained=True"
        )
    with _quiet(transformers):
        if bare:
            model_config = _bare_config(transformers, source, config or {})
            if config is None and pretrained is None:
                _warn_of_random_weights(source)
            return Loaded(_from_config(transformers, model_config), model_config)
        weights = pretrained is None or pretrained
        return _from_folder(transformers, _folder(transformers, source, weights), weights)


def _warn_of_random_weights(source: str) -> None:
    """The bare name reads like that of a trained model; who gives sizes, or ``pretrained=False``, knows better."""
    warnings.warn(
        f"hf:{source} names an architecture, not a trained model: it gets the default sizes of transformers and random "
        "weights. For trained weights name a folder or a hub model, such as hf:facebook/dinov2-small; pretrained=False "
        "says that random ones are meant",
        stacklevel=5,
    )


def _import_transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise MissingExtraError("transformers", "backbones", "a backbone named hf:...") from error


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No progress bars and no reports about the classifier that is left out; both as before afterwards."""
    log, loggers = transformers.utils.logging, [logging.getLogger(name) for name in ("transformers", "huggingface_hub")]
    levels, bars = [logger.level for logger in loggers], log.is_progress_bar_enabled()
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
        raise InputError(f"hf:{source} and model_type {model_type!r} of its config contradict each other")
    try:
        if "transformers_version" not in values:  # written by hand: a wrong key is a slip, not another version's field
            default = known[model_type]
            unknown = sorted(set(values) - set(default().to_dict()) - set(default.attribute_map))
            if unknown:
                raise InputError(
                    f"unknown key {', '.join(unknown)} in the config of hf:{model_type}; see {default.__name__}"
                )
        result = transformers.AutoConfig.for_model(model_type, **values)
    except InputError:
        raise
    except Exception as error:  # each architecture checks its config in its own way
        raise InputError(f"the config of hf:{model_type} is wrong: {error}") from error
    return _as_encoder(transformers, result)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]


def _guess(transformers: Any, name: str) -> str:
    close = difflib.get_close_matches(name, list(transformers.CONFIG_MAPPING), n=1)
    return f"; did you mean hf:{close[0]}?" if close else ""


def _as_encoder(transformers: Any, config: Any) -> Any:
    """The config, made sure to be of a model that takes images alone and gives the same features every time."""
    mapping = transformers.MODEL_MAPPING
    model = mapping.get(type(config), None)
    model = model[0] if isinstance(model, tuple) else model
    if getattr(model, "main_input_name", None) != "pixel_values":
        hint = "choose a vision model, such as hf:dinov2 or hf:convnext"
        if getattr(config, "vision_config", None) is not None:
            hint = "save its vision part to a folder of its own (the ...VisionModel class), and give that folder"
        raise ModelError(f"{config.model_type} of transformers is not a vision model: {hint}")
    if hasattr(config, "mask_ratio"):
        config.mask_ratio = 0.0  # masked autoencoders hide random patches, even in evaluation
    config.return_dict = True
    return config


def _from_config(transformers: Any, config: Any) -> Any:
    try:
        return transformers.AutoModel.from_config(config, dtype=torch.float32, trust_remote_code=False)
    except Exception as error:
        raise ModelError(f"hf:{config.model_type} cannot be built from its config: {error}") from error


def _from_folder(transformers: Any, folder: Path, weights: bool) -> Loaded:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} is not a model of transformers: config.json is missing. save_pretrained writes one")
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        raise ModelError(f"{folder / 'config.json'} is unusable: {error}") from error
    config = _as_encoder(transformers, config)
    if not weights:
        return Loaded(_from_config(transformers, config), config, folder)
    if not any(folder.glob("model*.safetensors")):
        raise ModelError(
            f"{folder} has no weights as safetensors, the only format that is loaded: convert them with "
            "AutoModel.from_pretrained(...).save_pretrained(...), or pass pretrained=False for random ones"
        )
    try:
        model, report = transformers.AutoModel.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:
        raise ModelError(f"the weights in {folder} cannot be loaded: {error}") from error
    return Loaded(model, config, folder, frozenset(report["missing_keys"]))


def _folder(transformers: Any, source: str, weights: bool) -> Path:
    """The folder itself, or the local copy of a hub model."""
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if source.startswith(("/", ".", "~")) or source.count("/") > 1:
        raise ModelError(
            f"there is no folder {source}; give one that save_pretrained wrote, or a hub name (owner/model)"
        )
    return _hub_folder(transformers, source, weights)


def _hub_folder(transformers: Any, name: str, weights: bool) -> Path:
    """The cached copy of a hub model if it is whole, else a fresh download."""
    hub = importlib.import_module("huggingface_hub")  # transformers depends on it
    files = _JSON_FILES + (_WEIGHT_FILES if weights else [])
    cached: Path | None = None
    with suppress(OSError, ValueError):
        cached = Path(hub.snapshot_download(name, allow_patterns=files, local_files_only=True))
    usable = cached and (cached / "config.json").is_file() and (not weights or any(cached.glob("model*.safetensors")))
    if cached and usable and (cached / "preprocessor_config.json").is_file():
        return cached
    try:
        hub.HfApi().model_info(
            name, timeout=_PATIENCE_S
        )  # fails at once, where a download would retry for half a minute
        return Path(hub.snapshot_download(name, allow_patterns=files))
    except Exception as error:
        if cached and usable:
            return cached
        raise ModelError(
            f"hf:{name} is no folder here, and the Hugging Face hub did not give it ({_first_line(error)}). On a "
            f"machine with a network: hf download {name} --local-dir FOLDER; then copy it here, and name hf:FOLDER"
            f"{_guess(transformers, name)}"
        ) from error
