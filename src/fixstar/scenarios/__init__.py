"""Scenarios: how versions follow one another, from a task stream and a method."""

from fixstar.scenarios.sequences import lifelong, replacing, retraining, run_scenario
from fixstar.scenarios.settings import Settings
from fixstar.scenarios.version import Version, train_version

__all__ = ["Settings", "Version", "lifelong", "replacing", "retraining", "run_scenario", "train_version"]
