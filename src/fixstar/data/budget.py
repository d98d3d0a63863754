"""How many bytes of pixels may stay in memory."""

from __future__ import annotations

import os
from pathlib import Path

import torch

__all__ = ["available_memory", "resident_budget"]


def available_memory() -> int:
    """Bytes that this process can still take on the host: what is free or reclaimable, within a container's limit."""
    free = _free_memory()
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - used))


def _free_memory() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (OSError, ValueError):  # not told on this system
        return 4 << 30


def resident_budget(device: torch.device) -> int:
    """Bytes of padded pixels that may stay on the device.

    A third of the host's memory, since pixels are decoded there and padded into a second array, and half of what is
    free on a GPU.
    """
    host = available_memory() // 3
    return host if device.type != "cuda" else min(host, torch.cuda.mem_get_info(device)[0] // 2)
