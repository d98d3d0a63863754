"""Kernels for a GPU, where measured to be faster than the library's.

They are written in Triton, which comes with CUDA builds of torch. Triton's interpreter runs them on a CPU, slowly, to
test them: set ``TRITON_INTERPRET=1`` before it is imported.
"""

from __future__ import annotations

import importlib.util
import os

__all__ = ["AVAILABLE", "INTERPRETED"]

AVAILABLE = importlib.util.find_spec("triton") is not None
"""Whether the kernels can be built here."""

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether they are interpreted. Products of bfloat16 factors are wrong then: they are taken in float32."""
