"""Training: recipes and settings, the one loop, checkpoints, and the scenarios that yield versions.

Names are imported on first use: a workspace that only searches never loads the loop or a loss.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fixstar.evaluation.features import version_features
    from fixstar.training.loop import EpochLog, train
    from fixstar.training.run import Training, ValidationScores
    from fixstar.training.scenarios import run_scenario, train_versions
    from fixstar.training.settings import (
        CIFAR_CORES,
        CIFAR_LIFELONG,
        FROZEN,
        Recipe,
        Settings,
        paper_recipe,
    )
    from fixstar.training.version import TrainingContext, Validation, Version, train_version

_MODULES = {
    "loop": ("EpochLog", "train"),
    "run": ("Training", "ValidationScores"),
    "scenarios": ("run_scenario", "train_versions"),
    "settings": ("CIFAR_CORES", "CIFAR_LIFELONG", "FROZEN", "Recipe", "Settings", "paper_recipe"),
    "version": ("TrainingContext", "Validation", "Version", "train_version", "version_features"),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}

__all__ = [
    "CIFAR_CORES",
    "CIFAR_LIFELONG",
    "FROZEN",
    "EpochLog",
    "Recipe",
    "Settings",
    "Training",
    "TrainingContext",
    "Validation",
    "ValidationScores",
    "Version",
    "paper_recipe",
    "run_scenario",
    "train",
    "train_version",
    "train_versions",
    "version_features",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
