"""Backbones: float images [B, C, H, W] to pooled features [B, feature_dim], without a classifier.

``create_backbone("resnet18")`` builds one of ours, with random weights; ``create_backbone("hf:FOLDER")`` takes any
vision model of transformers. Each carries the name and options that rebuild it, and how its images are prepared.
"""

from fixstar.models.backbones.base import Backbone
from fixstar.models.backbones.registry import BACKBONES, backbone_names, create_backbone

__all__ = ["BACKBONES", "Backbone", "backbone_names", "create_backbone"]
