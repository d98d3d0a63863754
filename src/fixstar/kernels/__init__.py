"""Kernels for a GPU, where measured to be faster than the library's.

They are written in Triton, which comes with CUDA builds of torch. Triton's interpreter runs them on a CPU, slowly, to
test them: set ``TRITON_INTERPRET=1`` before it is imported.
"""

from __future__ import annotations

import importlib.util
import os

__all__ = ["AVAILABLE", "INTERPRETED", "build_errors"]

AVAILABLE = importlib.util.find_spec("triton") is not None
"""Whether the kernels can be built here."""

INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in {"1", "true", "on", "yes"}
"""Whether they are interpreted. Products of bfloat16 factors are wrong then: they are taken in float32."""


def build_errors() -> tuple[type[Exception], ...]:
    """What a kernel raises that this GPU cannot hold or this Triton cannot build."""
    if not AVAILABLE:
        return ()
    from triton.errors import TritonError

    return (TritonError,)
