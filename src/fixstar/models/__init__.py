"""Backbones, classifiers, and the encoder that joins them: saved, loaded, frozen, and run over images."""

from fixstar.models.backbones import Backbone, backbone_names, create_backbone
from fixstar.models.classifiers import (
    Classifier,
    CosineClassifier,
    CubeClassifier,
    FixedClassifier,
    LinearClassifier,
    OrthoplexClassifier,
    PolygonClassifier,
    ProxyClassifier,
    SimplexClassifier,
    create_classifier,
)
from fixstar.models.encoder import Adapter, EmbeddedBatch, Encoder, Outputs, resolve_device
from fixstar.models.frozen import FrozenEncoder
from fixstar.models.slots import Slots

__all__ = [
    "Adapter",
    "Backbone",
    "Classifier",
    "CosineClassifier",
    "CubeClassifier",
    "EmbeddedBatch",
    "Encoder",
    "FixedClassifier",
    "FrozenEncoder",
    "LinearClassifier",
    "OrthoplexClassifier",
    "Outputs",
    "PolygonClassifier",
    "ProxyClassifier",
    "SimplexClassifier",
    "Slots",
    "backbone_names",
    "create_backbone",
    "create_classifier",
    "resolve_device",
]
