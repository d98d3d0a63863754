"""For all tests: no test depends on speed, and without a GPU Triton's interpreter runs the kernels."""

from __future__ import annotations

import os

import torch
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():  # Triton must know before it is first imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")
