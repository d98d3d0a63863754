"""Where there is no GPU, the kernels are run by Triton's interpreter. It must know before it is first imported."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
