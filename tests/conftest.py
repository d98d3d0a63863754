"""For all tests: no test depends on speed, and without a GPU Triton's interpreter runs the kernels.

Networks are tiny here, so threads would only wait for one another; sums in one order are also the same everywhere.
"""

from __future__ import annotations

import os
from functools import cache

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy and torch are imported; processes inherit it

import torch
import typer.main
import typer.testing
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():  # Triton must know before it is first imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

# Typer makes the whole command line again for every call, which a program does once.
typer.main.get_command = cache(typer.main.get_command)
typer.testing._get_command = typer.main.get_command
