"""An event loop for tests of time limits."""

from __future__ import annotations

import asyncio
import selectors


class SleeplessLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps over every pause: how busy the machine is changes nothing."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        self._now += seconds


class _Jumping(selectors.SelectSelector):
    """Moves the clock of a loop where others would wait."""

    def __init__(self, loop: SleeplessLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.jump(max(timeout or 0.0, 0.0))
        return super().select(0)
