"""Scenarios: how versions follow one another, from a task stream and a method."""

from fixstar.scenarios.features import version_features
from fixstar.scenarios.sequences import lifelong, replacing, retraining, run_scenario
from fixstar.scenarios.settings import Settings
from fixstar.scenarios.start import Past
from fixstar.scenarios.validation import Validation
from fixstar.scenarios.version import Version, train_version

__all__ = [
    "Past",
    "Settings",
    "Validation",
    "Version",
    "lifelong",
    "replacing",
    "retraining",
    "run_scenario",
    "train_version",
    "version_features",
]
