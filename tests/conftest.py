"""For all tests: no test depends on speed, and without a GPU Triton's interpreter runs the kernels.

Networks are tiny here, so threads would only wait for one another; sums in one order are also the same everywhere.
Compiled modules are kept, whatever the environment says: else every process compiles the package and the tests again.
Tests import scikit-learn, SciPy and Ray in functions: that takes two seconds, and every process collects all tests.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
from functools import cache

import pytest
import typer.main
import typer.testing
from hypothesis import HealthCheck, settings

pytest_plugins = ["wording", "undrawn"]

# before NumPy and torch are imported; processes inherit it
os.environ.setdefault("OMP_NUM_THREADS", "1")
# tests trust code of their own
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="fixstar-config-")
# no test speaks TLS: without this, every HTTP client reads all certificates of the world
os.environ["SSL_CERT_DIR"] = os.environ["XDG_CONFIG_HOME"]
os.environ.pop("SSL_CERT_FILE", None)
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
gc.disable()  # until all modules are imported

settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy machine")

# Typer makes the whole command line again for every call, which a program does once.
typer.main.get_command = cache(typer.main.get_command)
typer.testing._get_command = typer.main.get_command


def pytest_configure(config: pytest.Config) -> None:
    """Triton must know before it is first imported. A process that only hands tests out needs no torch."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_finish() -> None:
    """Modules stay: looking for garbage among them takes a second each time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # looking seldom saves one second of thirty
    gc.enable()
