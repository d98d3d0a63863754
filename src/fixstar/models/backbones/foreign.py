"""Models from elsewhere as backbones: an ONNX file, or a module of the user's own code. Their output is the feature.

A saved version is self-contained. The bytes of an ONNX model are stored as a tensor. A module's weights are stored with
the import path that rebuilds it, which runs only if its module is trusted (``fixstar.trust``). Nothing is unpickled.
"""

from __future__ import annotations

import copy
import importlib
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fixstar.durable import require_regular_file
from fixstar.errors import InputError, MissingExtraError, ModelError, NextStep
from fixstar.images import Preprocessing
from fixstar.models.backbones.base import Backbone
from fixstar.models.backbones.onnx_files import chosen_output, open_session, read_onnx, time_limit
from fixstar.models.backbones.pretrained import PRETRAINED
from fixstar.trust import ADDRESSES, require_own, require_trusted

_UNPREPARED = (
    "{} does not say how its images are prepared, so its vectors would be meaningless: pass its preprocessing (size, "
    "mean and std)"
)
_WEIGHTS_ALONE = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".safetensors")
_SECONDS_PER_IMAGE = 30.0  # time limit of one run; the largest models take seconds on a slow CPU
_LIBRARIES = {"hf:": "transformers", "open_clip:": "open_clip", "st:": "sentence-transformers"}


def foreign_backbone(
    model: str | Path | nn.Module,
    preprocessing: Preprocessing | None,
    source: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    weights: str | Path | None = None,
    output: str | None = None,
) -> Backbone:
    """A backbone from an ONNX file, from ``package.module:name`` (a callable that returns a module), or from a module.

    A module is restored from its import path ``source`` and ``arguments``; without them it is exported to ONNX.
    """
    if preprocessing is None:
        raise InputError(_UNPREPARED.format(_described(model)))
    if isinstance(model, nn.Module):
        if source is not None:
            mine = copy.deepcopy(model).cpu()  # the user's module is not changed
            return ModuleBackbone(
                source, dict(arguments or {}), preprocessing.to_json(), module=mine
            )
        return OnnxBackbone.of(
            _exported(model, preprocessing), preprocessing, type(model).__name__, output
        )
    path = Path(model)
    if path.suffix.lower() in _WEIGHTS_ALONE:
        raise InputError(
            f"{path} is not a model: such a file holds weights without the network, and pickled ones can run code. "
            "Export the model to ONNX, or name the function that builds it (package.module:name) and give its weights "
            "as a safetensors file"
        )
    if path.suffix == ".onnx" or path.is_file():
        return OnnxBackbone.of(read_onnx(path), preprocessing, str(path), output)
    if ":" not in str(model):
        raise InputError(
            f"{str(model)!r} is not a model: give {' or '.join(PRETRAINED)} for a small pre-trained network, an ONNX "
            "file, hf:NAME_OR_FOLDER for a model of transformers, open_clip:MODEL/WEIGHTS, st:NAME_OR_FOLDER for one "
            "of sentence-transformers, the address of a server that embeds texts, or package.module:name for a class "
            "or function that makes a torch module"
        )
    backbone = ModuleBackbone(str(model), dict(arguments or {}), preprocessing.to_json())
    if weights is not None:
        _load_weights(backbone.model, Path(weights))
    return backbone


def own_backbone(
    model: str,
    *,
    preprocessing: Mapping[str, Any] | None = None,
    arguments: Mapping[str, Any] | None = None,
    weights: str | None = None,
    output: str | None = None,
) -> Backbone:
    """An ONNX file or an import path as the backbone of a model that is trained here; see ``foreign_backbone``."""
    require_fitting(model, arguments=arguments, weights=weights, output=output)
    if preprocessing is None:
        raise InputError(
            _UNPREPARED.format(model), NextStep("repeat", {"size": ...}, "in pixels, such as 224")
        )
    return foreign_backbone(
        model=model,
        preprocessing=Preprocessing.from_json(preprocessing),
        source=None,
        arguments=arguments,
        weights=weights,
        output=output,
    )


def require_fitting(model: str | Path | nn.Module, **given: object) -> None:
    """Refuse options that do not apply to a model and would be ignored."""
    kind, allowed = _kind(model, given.get("source") is not None)
    if unused := [name for name, value in given.items() if value and name not in allowed]:
        raise InputError(
            f"{kind} takes no {' and no '.join(unused)}; it takes {' and '.join(allowed) or 'no option'}"
        )


def _kind(model: str | Path | nn.Module, by_source: bool) -> tuple[str, tuple[str, ...]]:
    """The kind of a model in words, and the options that apply to it."""
    if isinstance(model, nn.Module):
        return "a torch module", ("source", "arguments") if by_source else ("source", "output")
    if model in PRETRAINED:
        return f"the pre-trained network {model}", ()
    for prefix, library in _LIBRARIES.items():
        if str(model).startswith(prefix):
            return f"a model of {library}", () if prefix == "open_clip:" else ("pooling",)
    if str(model).startswith(ADDRESSES):
        return "a server", ("key", "price", "per_minute")
    if Path(model).suffix == ".onnx" or Path(model).is_file():
        return "an ONNX file", ("output", "tokenizer", "pooling")
    return "an import path", ("arguments", "weights")


def _described(model: str | Path | nn.Module) -> str:
    if isinstance(model, nn.Module):
        return f"a {type(model).__name__}"
    return str(model)


class _Foreign(Backbone):
    """A backbone with an output but no feature maps."""

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """Not supported: its layers are unknown."""
        raise ModelError(
            f"an added model ({self.name}) gives no feature maps of images {tuple(images.shape)}; a method "
            "that compares maps (podnet) needs one of fixstar's own backbones"
        )

    def _measured(self) -> int:
        """The width of its features, measured on grey images; raises unless it gives one vector per image."""
        p = self.preprocessing
        with torch.no_grad():
            features = self(torch.zeros(2, p.channels, *p.size))
        if features.ndim != 2 or len(features) != 2:
            raise ModelError(
                f"the model returns {tuple(features.shape)} for 2 images, not one vector per image; "
                "give the pooled feature as its output"
            )
        return int(features.shape[1])


class ModuleBackbone(_Foreign):
    """A torch module created by calling the import path ``source`` (``package.module:name``) with ``arguments``."""

    def __init__(
        self,
        source: str,
        arguments: Mapping[str, Any],
        preprocessing: Mapping[str, Any],
        module: nn.Module | None = None,
    ) -> None:
        options = {
            "source": source,
            "arguments": dict(arguments),
            "preprocessing": dict(preprocessing),
        }
        super().__init__("module", options, 0, Preprocessing.from_json(preprocessing))
        self.model = _imported(source, arguments) if module is None else module
        self.eval()
        self.feature_dim = self._measured()

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] to [B, feature_dim]."""
        try:
            features = self.model(images)
        except Exception as error:  # the user's code may raise anything
            raise ModelError(
                f"the model cannot run on images {tuple(images.shape)}: {type(error).__name__}: {error}"
                f"{_channels_of(self.preprocessing)}"
            ) from error
        if not isinstance(features, Tensor):
            raise ModelError(
                f"the model returns a {type(features).__name__}; it must return a tensor [images, width]"
            )
        if features.ndim == 4 and features.shape[2:] == (1, 1):
            return features.flatten(1)
        return features


def mismatch(error: Exception) -> str:
    """A hint if torchvision and torch do not match, which their error does not say; else empty."""
    if "torchvision::" not in str(error):
        return ""
    return (
        f". The installed torchvision was built for another torch than {torch.__version__}: "
        "install both from one index"
    )


def _imported(source: str, arguments: Mapping[str, Any]) -> nn.Module:
    module, _, name = source.partition(":")
    require_trusted(source)
    try:
        make = getattr(importlib.import_module(module), name)
    except Exception as error:  # importing runs code that may raise anything
        raise ModelError(
            f"{source!r} cannot be imported ({error}); it must be importable wherever it is used{mismatch(error)}"
        ) from error
    require_own(source, make)
    try:
        made = make(**arguments)
    except Exception as error:  # the user's code may raise anything
        raise ModelError(
            f"{source} with {dict(arguments)} failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, nn.Module):
        raise ModelError(f"{source} makes a {type(made).__name__}, not a torch module")
    return made


def _load_weights(module: nn.Module, path: Path) -> None:
    try:
        require_regular_file(path)
        module.load_state_dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{path} is not a safetensors file ({error}). Pickled weights (.pt, .pth) are never loaded: they can run "
            "code. Convert them with safetensors.torch.save_file"
        ) from None
    except RuntimeError as error:
        raise ModelError(f"{path} does not fit the module: {error}") from None


class OnnxBackbone(_Foreign):
    """An ONNX model, run by onnxruntime on the CPU; ``file`` holds its bytes."""

    def __init__(
        self, size: int, output: str, preprocessing: Mapping[str, Any], feature_dim: int
    ) -> None:
        options = {
            "size": size,
            "output": output,
            "preprocessing": dict(preprocessing),
            "feature_dim": feature_dim,
        }
        super().__init__("onnx", options, feature_dim, Preprocessing.from_json(preprocessing))
        self.register_buffer("file", torch.zeros(size, dtype=torch.uint8))
        self.file: Tensor
        self._session: Any = None

    @classmethod
    def of(
        cls, content: bytes, preprocessing: Preprocessing, title: str, output: str | None = None
    ) -> OnnxBackbone:
        """Load a model from its bytes; raises unless it maps images to one vector each."""
        session = open_session(content, title)
        chosen = chosen_output(session, output, title)
        _check_input(session, preprocessing, title)
        backbone = cls(len(content), chosen, preprocessing.to_json(), 0)
        backbone.file.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        backbone._session = session
        backbone.feature_dim = backbone._measured()
        backbone.options["feature_dim"] = backbone.feature_dim
        return backbone

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which open their own session."""
        return {**self.__dict__, "_session": None}

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] to [B, feature_dim]; no gradient flows."""
        if self._session is None:
            self._session = open_session(self.file.cpu().numpy().tobytes(), "the saved ONNX model")
        (given,) = self._session.get_inputs()
        pixels = images.detach().float().cpu().numpy()
        if _channels_last(given.shape, self.preprocessing):
            pixels = pixels.transpose(0, 2, 3, 1)
        batch = given.shape[0] if isinstance(given.shape[0], int) else max(len(pixels), 1)
        features = [
            self._run(given.name, pixels[i : i + batch], batch)
            for i in range(0, len(pixels), batch)
        ]
        found = torch.from_numpy(np.concatenate(features)).to(images.device)
        if found.ndim == 4 and found.shape[2:] == (1, 1):
            return found.flatten(1)
        return found

    def _run(self, name: str, pixels: np.ndarray[Any, Any], batch: int) -> np.ndarray[Any, Any]:
        """The features of at most ``batch`` images; a model with a fixed batch size also gets empty images."""
        count = len(pixels)
        if count < batch:
            pixels = np.concatenate(
                [pixels, np.zeros((batch - count, *pixels.shape[1:]), pixels.dtype)]
            )
        try:
            with time_limit(_SECONDS_PER_IMAGE * len(pixels)) as options:
                (found,) = self._session.run(
                    [self.options["output"]], {name: np.ascontiguousarray(pixels)}, options
                )
        except Exception as error:  # onnxruntime has no common base class for its errors
            raise ModelError(
                f"the ONNX model cannot run on images {pixels.shape}: {error}"
            ) from None
        return np.asarray(found, np.float32)[:count]


def _channels_of(p: Preprocessing) -> str:
    """A hint if the mean has one number instead of three, as models of grey images are rare."""
    if p.channels == 1:
        return ". A mean of one number means grey images"
    return ""


def _check_input(session: Any, p: Preprocessing, title: str) -> None:
    inputs = session.get_inputs()
    seen = ", ".join(f"{one.name} {one.shape} {one.type}" for one in inputs)
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type != "tensor(float)":
        raise ModelError(
            f"{title} must take one float image tensor [batch, channels, height, width]; it takes {seen}"
        )
    shape = inputs[0].shape
    wanted = (*p.size, p.channels) if _channels_last(shape, p) else (p.channels, *p.size)
    if any(
        isinstance(have, int) and have != want for have, want in zip(shape[1:], wanted, strict=True)
    ):
        raise InputError(
            f"{title} takes {seen}; the preprocessing makes images of {p.channels} x {p.size}{_channels_of(p)}"
        )


def _channels_last(shape: list[Any], p: Preprocessing) -> bool:
    return bool(shape[3] == p.channels and shape[1] != p.channels)


def _exported(module: nn.Module, p: Preprocessing) -> bytes:
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise MissingExtraError("onnxscript", "onnx", "saving a torch module as ONNX") from None
    training = module.training
    device = next((value.device for value in module.state_dict().values()), None)
    quiet = logging.getLogger("torch.onnx")
    before = quiet.level
    try:
        quiet.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module.eval(),
                (torch.zeros(2, p.channels, *p.size, device=device),),
                input_names=["images"],
                output_names=["features"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                verbose=False,
            )
            assert program is not None
            written: bytes = program.model_proto.SerializeToString()
    except Exception as error:  # the exporter may raise anything
        raise ModelError(
            f"a {type(module).__name__} cannot be exported to ONNX ({str(error).splitlines()[0]}). Pass the import "
            "path that makes it (source) instead",
            NextStep("add", {"model": "package.module:name"}),
        ) from error
    finally:
        quiet.setLevel(before)
        module.train(training)
    return written
