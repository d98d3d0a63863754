"""Reports of checks get empty pictures, unless a test is marked ``draws``.

Drawing takes half a second for each check, most of what a small check costs, and few tests look at a picture.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from fixstar.evaluation import report

_DRAWN = ("side_by_side", "accuracy_curves", "backfill_curves", "roc_curves")
_looked_at = False


def pytest_configure() -> None:
    """Take the place of what draws the pictures of a report; everywhere else the same functions draw."""
    for name in _DRAWN:
        setattr(report, name, _unless_looked_at(getattr(report, name)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures, which may write a report too."""
    global _looked_at
    _looked_at = item.get_closest_marker("draws") is not None


def _unless_looked_at(draw: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(draw)
    def drawn(*given: Any, **options: Any) -> Any:
        from matplotlib.figure import Figure

        if _looked_at:
            return draw(*given, **options)
        return Figure(figsize=(1, 1), dpi=10)

    return drawn
