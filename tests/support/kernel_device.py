"""Where kernels are tested: on a GPU, or without one by Triton's interpreter, slowly, on small tensors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fixstar.kernels import AVAILABLE, INTERPRETED

__all__ = ["DEVICE", "GPU", "needs_triton", "on_a_gpu", "relative"]

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
needs_triton = pytest.mark.skipif(
    not AVAILABLE or not (GPU or INTERPRETED), reason="needs Triton, and a CUDA GPU or TRITON_INTERPRET=1"
)
on_a_gpu = pytest.mark.skipif(not GPU, reason="needs a CUDA GPU")


def relative(a: Tensor, b: Tensor) -> float:
    """The largest difference, over the largest value."""
    exact = b.detach().double()
    return float((a.detach().double() - exact).abs().max() / exact.abs().max())
