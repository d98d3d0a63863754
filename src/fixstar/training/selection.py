"""Model selection (CoReS, eq. 11): of a version's epochs, the best one that is compatible with its predecessor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fixstar.models import Encoder

__all__ = ["Select", "Standing", "selected_epoch"]


class Standing(NamedTuple):
    """How an epoch's model does on validation data: by itself, against the old gallery, and the old model by itself."""

    self_test: float
    cross_test: float
    old_self_test: float

    @property
    def compatible(self) -> bool:
        """Whether the cross-test beats the old self-test, strictly (CoReS, eq. 2)."""
        return self.cross_test > self.old_self_test


Select = Callable[[Encoder], Standing]


def selected_epoch(standings: Sequence[Standing]) -> int | None:
    """The compatible epoch of the highest self-test, the earliest of equals; None where no epoch is compatible.

    >>> weak, good, drifted = Standing(0.5, 0.3, 0.2), Standing(0.6, 0.3, 0.2), Standing(0.7, 0.1, 0.2)
    >>> selected_epoch([weak, good, drifted]), selected_epoch([drifted])
    (1, None)
    """
    compatible = [epoch for epoch, standing in enumerate(standings) if standing.compatible]
    return max(compatible, key=lambda epoch: (standings[epoch].self_test, -epoch), default=None)
