"""Any vision model of transformers as a backbone: from a folder, from the hub, or by architecture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from fixstar.errors import InputError, ModelError
from fixstar.images import Preprocessing
from fixstar.models.backbones.base import Backbone
from fixstar.models.backbones.hf_inputs import hf_inputs
from fixstar.models.backbones.hf_loading import Loaded, load_model

__all__ = ["HFBackbone", "hf_backbone"]

Pooling = Literal["auto", "cls", "mean"]

_CLS_NAMES = {"cls_token", "class_embedding"}
# Recorded by transformers, but no part of the architecture.
_NOT_ARCHITECTURE = ("_name_or_path", "architectures", "dtype", "id2label", "label2id", "problem_type")


def hf_backbone(
    source: str,
    *,
    pretrained: bool | None = None,
    config: dict[str, Any] | None = None,
    pooling: Pooling = "auto",
    preprocessing: dict[str, Any] | None = None,
) -> HFBackbone:
    """A vision model of transformers, without its classifier.

    ``source`` is a folder written by ``save_pretrained``, a name on the Hugging Face hub, or an architecture
    (``"dinov2"``, ``"convnext"``, ...: the ``model_type`` of a config), which ``config`` changes from its defaults.
    Folders and hub names bring their weights unless ``pretrained=False``; architectures start from random ones, and
    one without a ``config`` warns of it unless ``pretrained=False``.

    ``pooling="auto"`` takes the model's own pooled output, else its CLS token, else the mean over patches or pixels.
    ``preprocessing`` (``Preprocessing.to_json``) replaces what the model's ``preprocessor_config.json`` says.

    What is built carries its whole config as an option, so that it can be rebuilt without the folder or the network.
    """
    if pooling not in get_args(Pooling):
        raise InputError(f"unknown pooling {pooling!r}; allowed: {', '.join(get_args(Pooling))}")
    loaded = load_model(source, pretrained, config)
    inputs = Preprocessing.from_json(preprocessing) if preprocessing else hf_inputs(loaded.config, loaded.folder)
    return HFBackbone(loaded, pooling, inputs)


class HFBackbone(Backbone):
    """A model of transformers with its pooling settled, and with what the features do not depend on frozen."""

    def __init__(self, loaded: Loaded, pooling: Pooling, preprocessing: Preprocessing) -> None:
        model, model_type = loaded.model.eval(), str(loaded.config.model_type)
        super().__init__(f"hf:{model_type}", {}, 0, preprocessing)
        self.model: nn.Module = model
        output = self._try()
        self.pooled_by = _settle_pooling(pooling, model, output, trained_pooler=not _lacks_pooler(loaded.missing))
        self.prefix_tokens = _prefix_tokens(model, output.last_hidden_state, preprocessing.size)
        features = self._pool(output)
        if features.ndim != 2:
            raise ModelError(f"{self.name} gives features of shape {tuple(features.shape)}, not one vector an image")
        _freeze_unused(model, features, loaded.missing, self.name)
        self.feature_dim = features.shape[1]
        self.options = {
            "pretrained": False,
            "config": _plain_config(loaded.config),
            "pooling": "auto" if self.pooled_by == "pooler" else self.pooled_by,
            "preprocessing": preprocessing.to_json(),
        }
        self.train()

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] to [B, feature_dim]."""
        return self._pool(self.model(pixel_values=images))

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """Not offered: what a foreign model calls its hidden states differs from one to the next."""
        raise ModelError(
            f"{self.name} gives no feature maps {tuple(images.shape)}; a method that compares maps (podnet) needs one "
            "of fixstar's own backbones, see: fixstar backbones"
        )

    def _pool(self, output: Any) -> Tensor:
        pooled: Tensor
        if self.pooled_by == "pooler":
            pooled = output.pooler_output.flatten(1)  # [B, D], or [B, D, 1, 1] of convolutional networks
        elif self.pooled_by == "cls":
            pooled = output.last_hidden_state[:, 0]
        elif output.last_hidden_state.ndim == 4:  # [B, D, h, w]
            pooled = output.last_hidden_state.mean((2, 3))
        else:  # [B, N, D]
            pooled = output.last_hidden_state[:, self.prefix_tokens :].mean(1)
        return pooled

    def _try(self) -> Any:
        """The output for one black image; tells of what shape features are, and whether the model runs at all."""
        shape = (1, self.preprocessing.channels, *self.preprocessing.size)
        device = next(self.model.parameters()).device
        try:
            with torch.inference_mode(False), torch.enable_grad():
                output = self.model(pixel_values=torch.zeros(shape, device=device))
        except Exception as error:  # whatever a foreign model may raise
            raise ModelError(f"{self.name} cannot run on an image of shape {shape[1:]}: {error}") from error
        hidden = getattr(output, "last_hidden_state", None)
        if not isinstance(hidden, Tensor) or hidden.ndim not in (3, 4):
            raise ModelError(
                f"{self.name} gives no features of an image; choose a model such as hf:dinov2 or hf:convnext"
            )
        return output


def _settle_pooling(pooling: Pooling, model: nn.Module, output: Any, trained_pooler: bool) -> str:
    has_cls = _has_cls(model, output.last_hidden_state)
    if pooling == "auto":
        if trained_pooler and getattr(output, "pooler_output", None) is not None:
            return "pooler"
        return "cls" if has_cls else "mean"
    if pooling == "cls" and not has_cls:
        raise InputError(f"{type(model).__name__} has no CLS token; allowed for it: pooling='auto' or 'mean'")
    return pooling


def _has_cls(model: nn.Module, hidden: Tensor) -> bool:
    return hidden.ndim == 3 and any(name.rpartition(".")[2] in _CLS_NAMES for name, _ in model.named_parameters())


def _lacks_pooler(missing: frozenset[str]) -> bool:
    """A classifier's checkpoint has no pooler, and transformers would put a random one over good features."""
    return any(name.startswith("pooler.") for name in missing)


def _prefix_tokens(model: Any, hidden: Tensor, size: tuple[int, int]) -> int:
    """How many tokens (CLS, registers) come before those of the patches, which alone are averaged."""
    if not _has_cls(model, hidden):
        return 0
    patch = getattr(model.config, "patch_size", None)
    sides = (patch, patch) if isinstance(patch, int) else patch
    if not isinstance(sides, (tuple, list)) or len(sides) != 2:
        return 1
    return max(0, hidden.shape[1] - (size[0] // sides[0]) * (size[1] // sides[1]))


def _freeze_unused(model: nn.Module, features: Tensor, missing: frozenset[str], name: str) -> None:
    """Freeze what takes no part (mask tokens, a pooler left out): there is nothing to train in it."""
    used = set(map(id, _leaves(features)))
    unused = {key for key, parameter in model.named_parameters() if id(parameter) not in used}
    for key, parameter in model.named_parameters():
        if key in unused:
            parameter.requires_grad_(False)
    harmful = sorted(key for key in missing - unused if not key.endswith("num_batches_tracked"))
    if harmful:
        raise ModelError(
            f"the weights of {name} lack {len(harmful)} of the model's tensors ({', '.join(harmful[:3])}, ...): "
            "config.json and weights do not belong together. Download the folder again"
        )


def _leaves(result: Tensor) -> Iterator[Tensor]:
    """The tensors that ``result`` was computed from and that need a gradient, by walking autograd's graph."""
    seen, stack = set(), [result.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        stack.extend(child for child, _ in node.next_functions)


def _plain_config(config: Any) -> dict[str, Any]:
    """The whole config, defaults too, as plain JSON: defaults may change from one transformers to the next."""
    values: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return {key: value for key, value in values.items() if key not in _NOT_ARCHITECTURE}
