"""Validation data, with which the best compatible epoch of an upgrade is chosen (CoReS, section 4.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fixstar.data.image_set import ImageSet
from fixstar.errors import InputError
from fixstar.evaluation import VersionFeatures, cross_test
from fixstar.models import Encoder
from fixstar.scenarios.features import version_features
from fixstar.training.selection import Select, Standing

__all__ = ["Validation"]


@dataclass(frozen=True)
class Validation:
    """Labelled images like those of the gallery (eq. 11's G-hat) and queries for them, apart from those searched later.

    Both name their classes alike and in the same order.
    """

    queries: ImageSet
    gallery: ImageSet
    protocol: str = "template"

    def __post_init__(self) -> None:
        if self.queries.classes != self.gallery.classes:
            raise InputError(
                f"queries and gallery must name their classes alike and in the same order, got {self.queries.classes} "
                f"and {self.gallery.classes}; bring one to the other's with of_classes"
            )

    def select(self, previous: Encoder) -> Select:
        """How a model does after an epoch, against ``previous``, whose own test is made once."""
        old = version_features("old", previous, self.queries, self.gallery)
        old_self_test = float(self._matrix(old)[0, 0])

        def standing(encoder: Encoder) -> Standing:
            new = version_features("new", encoder, self.queries, self.gallery)
            matrix = self._matrix(old, new)
            return Standing(float(matrix[1, 1]), float(matrix[1, 0]), old_self_test)

        return standing

    def _matrix(self, *features: VersionFeatures) -> NDArray[np.float64]:
        return cross_test(features, self.queries.labels, self.gallery.labels, self.protocol).matrix

    def fingerprint(self) -> str:
        """Of both sets and the protocol."""
        return f"{self.queries.fingerprint()} {self.gallery.fingerprint()} {self.protocol}"
