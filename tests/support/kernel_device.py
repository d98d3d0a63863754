"""Where kernels are tested: on a GPU, or without one by Triton's interpreter, slowly, on small tensors."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from fixstar.kernels import AVAILABLE, INTERPRETED

__all__ = ["DEVICE", "GPU", "needs_triton", "on_a_gpu", "relative"]

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
needs_triton = pytest.mark.skipif(
    not AVAILABLE or not (GPU or INTERPRETED),
    reason="needs Triton, and a CUDA GPU or TRITON_INTERPRET=1",
)
on_a_gpu = pytest.mark.skipif(not GPU, reason="needs a CUDA GPU")


def relative(a: Tensor, b: Tensor) -> float:
    """The largest difference, over the largest value."""
    exact = b.detach().double()
    return float((a.detach().double() - exact).abs().max() / exact.abs().max())


def _remember_builtins() -> None:
    """Triton's interpreter looks through its whole language at every call of a function: a quarter of the time.

    Which of its names are built in never changes, so they are looked up once.
    """
    from triton import language
    from triton.runtime import interpreter

    core: Any = language.core
    packages = (language, core, core.tensor, language.math, core.tensor_descriptor_base)
    names = {}
    for package in packages:
        members = inspect.getmembers(package)
        names[package] = [name for name, member in members if core.is_builtin(member)]

    def patch_builtin(package: Any, builder: Any, scope: Any) -> None:
        for name in names[package]:
            member = getattr(package, name)
            if core.is_builtin(member):
                interpreter._patch_attr(package, name, member, builder, scope)

    interpreter._patch_builtin = patch_builtin


if AVAILABLE and INTERPRETED:
    _remember_builtins()
