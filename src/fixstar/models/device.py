"""Which device to work on."""

from __future__ import annotations

import torch

from fixstar.errors import InputError

__all__ = ["resolve_device"]


def resolve_device(name: str) -> torch.device:
    """The device of that name; ``auto`` takes a GPU where there is one. A device that is not there is refused."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        usable = "auto, cpu, cuda or cuda:0" if torch.cuda.is_available() else "auto or cpu: there is no CUDA device"
        raise InputError(f"device {name!r} cannot be used here ({reason}). Try {usable}") from None
    return device
