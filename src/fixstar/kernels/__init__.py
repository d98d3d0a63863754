"""GPU kernels, only where measured faster than the library's.

They are written in Triton, which comes with CUDA builds of torch. For tests, Triton's interpreter runs them slowly on a
CPU: set ``TRITON_INTERPRET=1`` before it is imported.
"""

from __future__ import annotations

import importlib.util
import os

__all__ = ["AVAILABLE", "INTERPRETED", "build_errors"]

AVAILABLE = importlib.util.find_spec("triton") is not None
"""Whether the kernels can be built here."""

INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in {"1", "true", "on", "yes"}
"""Whether they are interpreted. Products of bfloat16 are wrong then, so float32 is used."""


def build_errors() -> tuple[type[Exception], ...]:
    """The errors of a kernel that does not fit this GPU or that this Triton cannot build."""
    if not AVAILABLE:
        return ()
    from triton.errors import TritonError

    return (TritonError,)
