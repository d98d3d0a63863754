"""NVIDIA's multi-process service for as long as several runs share one GPU: their kernels then run side by side."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["shared_gpu"]

_CONTROL = "nvidia-cuda-mps-control"
_TRY = "import torch; torch.zeros(1, device='cuda')"


@contextlib.contextmanager
def shared_gpu(say: Callable[[str], object]) -> Iterator[dict[str, str]]:
    """Start the service in a temporary folder and stop it afterwards; yields what its clients need in the environment.

    Nothing is needed, and nothing started, where there is no GPU or no such service, or where it does not answer.
    """
    if not _has_gpu() or shutil.which(_CONTROL) is None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="fixstar-mps-") as folder:
        client = {"CUDA_MPS_PIPE_DIRECTORY": folder}
        environment = {**os.environ, **client, "CUDA_MPS_LOG_DIRECTORY": str(Path(folder) / "log")}
        (Path(folder) / "log").mkdir()
        started = subprocess.run([_CONTROL, "-d"], env=environment, capture_output=True, text=True)
        try:
            tried = subprocess.run([sys.executable, "-c", _TRY], env={**os.environ, **client}, capture_output=True)
            if started.returncode or tried.returncode:
                say("the GPU is shared without MPS, which does not answer here")
                _stop(environment)
                yield {}
                return
            say("the GPU is shared by MPS")
            yield client
        finally:
            _stop(environment)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.device_count() > 0  # asks the driver without taking the GPU


def _stop(environment: dict[str, str]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run([_CONTROL], input="quit\n", env=environment, capture_output=True, text=True, timeout=60)
