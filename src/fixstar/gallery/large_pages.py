"""Memory in large pages, for what is read at random.

A search of a graph reads about a thousand vectors, each in another page of memory, and the processor remembers the
places of few pages. In pages of 2 MiB there are few.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

__all__ = ["use_large_pages"]

_PAGE = 2 << 20
_STEP = 16 << 20  # moved at once: some 20 ms
_WANTED, _NOW = 14, 25  # MADV_HUGEPAGE; MADV_COLLAPSE, which older kernels do not know: they move pages in time
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def use_large_pages(address: int, size: int) -> None:
    """Ask the kernel to keep so many bytes in large pages. What they hold stays; where it cannot be done, all does."""
    if sys.platform != "linux" or not _are_allowed():
        return
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    first, last = -(-address // _PAGE) * _PAGE, (address + size) // _PAGE * _PAGE
    for start in range(first, last, _STEP):
        for advice in (_WANTED, _NOW):
            advise(start, min(_STEP, last - start), advice)


def _are_allowed() -> bool:
    try:
        return "[never]" not in _SETTING.read_text()
    except OSError:
        return False
