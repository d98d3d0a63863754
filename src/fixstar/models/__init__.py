"""Backbones, classifiers, and the encoder that joins them: saved, loaded, frozen, and run over images."""

from fixstar.models.adapter import Adapter
from fixstar.models.backbones import Backbone, backbone_names, create_backbone
from fixstar.models.classifiers import (
    Classifier,
    CosineClassifier,
    LinearClassifier,
    ProxyClassifier,
    create_classifier,
)
from fixstar.models.encoder import Encoder, Outputs
from fixstar.models.fixed_classifiers import (
    CubeClassifier,
    FixedClassifier,
    OrthoplexClassifier,
    PolygonClassifier,
    SimplexClassifier,
)
from fixstar.models.frozen import FrozenEncoder
from fixstar.models.slots import Slots

__all__ = [
    "Adapter",
    "Backbone",
    "Classifier",
    "CosineClassifier",
    "CubeClassifier",
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
]
