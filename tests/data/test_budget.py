"""How much memory pixels may take, from the files in which a system tells it, made up here."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fixstar.data import pixels
from fixstar.data.pixels import available_memory, resident_budget

MEMINFO = "MemTotal:       9000 kB\nMemFree:         100 kB\nMemAvailable:   5000 kB\n"
FREE = 5000 * 1024
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)

Told = Callable[..., None]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """Lets the system say: what is free, a container's limit and what it uses; ``None`` is a file that is not there."""
    names = {
        "meminfo": "proc/meminfo",
        "limit": "sys/fs/cgroup/memory.max",
        "used": "sys/fs/cgroup/memory.current",
    }
    monkeypatch.setattr(pixels, "Path", lambda path: tmp_path / path.lstrip("/"))

    def tell(
        limit: str | None = None, used: str | None = None, meminfo: str | None = MEMINFO
    ) -> None:
        for name, text in (("meminfo", meminfo), ("limit", limit), ("used", used)):
            if text is not None:
                (tmp_path / names[name]).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / names[name]).write_text(text)

    return tell


@pytest.mark.parametrize(
    ("limit", "used", "available"),
    [
        (None, None, FREE),  # no container
        ("max\n", "7000\n", FREE),  # a container without a limit
        ("3000000\n", "1000000\n", 2_000_000),  # what the container has left
        ("900000000\n", "1000\n", FREE),  # it may have more than there is
        ("3000000\n", "3500000\n", 0),  # more than all is used
        ("3000000\n", None, FREE),
        ("3000000\n", "much\n", FREE),
    ],
)
def test_what_is_available_is_free_and_within_the_limit(
    told: Told, limit: str | None, used: str | None, available: int
) -> None:
    told(limit, used)
    assert available_memory() == available


@pytest.mark.parametrize("meminfo", [None, "MemTotal:  9000 kB\n", "MemAvailable:  some kB\n"])
def test_without_word_of_free_memory_it_is_half_of_all(
    told: Told, meminfo: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(meminfo=meminfo)
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert available_memory() == 1000 * 4096 // 2


def test_where_the_system_tells_nothing_it_is_four_gibibytes(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(name: str) -> int:
        raise ValueError(name)

    told(meminfo=None)
    monkeypatch.setattr(os, "sysconf", unknown)
    assert available_memory() == 4 * 1024**3


@pytest.mark.parametrize(
    ("device", "free_there", "allowed"),
    [
        (CPU, 0, 1_000_000),  # a third of the host's, for decoding makes a second array
        (GPU, 600_000, 300_000),  # half of what is free on the GPU
        (GPU, 80_000_000, 1_000_000),  # the host is the narrower one
    ],
)
def test_pixels_may_take_a_share_of_the_narrower_memory(
    told: Told, device: torch.device, free_there: int, allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told("4000000", "1000000")
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda asked: (free_there, 10**9) if asked == device else None
    )
    assert resident_budget(device) == allowed
