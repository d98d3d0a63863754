"""Waiting for what a page shows. The page's policy forbids eval, which Playwright's own wait_for_function needs."""

from __future__ import annotations

import time
from typing import Any


def until(page: Any, script: str, arg: object = None, seconds: float = 60.0) -> None:
    """Wait until an expression, or a function of ``arg``, is true in the page."""
    end = time.monotonic() + seconds
    while not page.evaluate(script, arg):
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:.0f} s: {script}")
        page.wait_for_timeout(50)
