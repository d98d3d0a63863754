"""The results of one run: one JSON file, written at the end, atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.durable import replace_json
from fixstar.errors import DataError
from fixstar.evaluation import summary
from fixstar.evaluation.compatibility import lower_triangle

METRICS = ("AC", "AA", "ACA", "BC", "FC")
TRANSLATED = ("translated", "translated, two models")
"""The names of a translated run's protocols: "image, translated" has one model per query, the other one two."""


@dataclass(frozen=True)
class RunResult:
    """The record of a run.

    ``protocols`` holds the ``matrix`` (lower-triangular fractions), AC, AA, ACA, BC and FC of each protocol. The
    seconds leave out work that was lost in a kill; those of evaluation count embedding, translating (of all
    processes together) and measuring.
    """

    benchmark: str
    method: str
    settings: Mapping[str, Any]
    tasks: Sequence[int]
    class_order: int
    seed: int
    epochs: int
    seconds: float
    seconds_training: float
    seconds_evaluation: float
    device: str
    fixstar: str
    torch: str
    restarts: int
    versions: Sequence[Mapping[str, Any]]
    protocols: Mapping[str, Mapping[str, Any]]

    def save(self, path: Path) -> None:
        """Write it atomically."""
        replace_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> RunResult:
        """Read what ``save`` wrote; ``DataError`` if it is something else."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{path} is not the result of a run ({error}); remove it and run again"
            ) from error
        expected = {field.name for field in fields(cls)}
        if not isinstance(content, dict) or content.keys() != expected:
            if isinstance(content, dict):
                seen = sorted(expected ^ content.keys())
            else:
                seen = [type(content).__name__]
            raise DataError(
                f"{path} is not the result of a run (it differs in {', '.join(seen)}); remove it and run again"
            )
        return cls(**content)

    def matrix(self, protocol: str) -> NDArray[np.float64]:
        """C [T, T] of a protocol, NaN above the diagonal."""
        return square(self.protocols[protocol]["matrix"])

    def metrics(self, protocol: str) -> dict[str, float]:
        """AC, AA, ACA, BC and FC of a protocol."""
        return {name: float(self.protocols[protocol][name]) for name in METRICS}


def measured(matrix: NDArray[np.float64], ties: bool = False) -> dict[str, Any]:
    """The record of a protocol: the lower triangle of C and its metrics.

    >>> measured(np.array([[0.5, np.nan], [0.75, 1.0]]))["AC"]
    1.0
    """
    return {"matrix": lower_triangle(matrix), **summary(np.tril(matrix), ties)}


def square(rows: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """[T, T] of lower-triangular rows, NaN above the diagonal.

    >>> square([[0.5], [0.75, 1.0]])
    array([[0.5 ,  nan],
           [0.75, 1.  ]])
    """
    matrix = np.full((len(rows), len(rows)), np.nan)
    for t, row in enumerate(rows):
        matrix[t, : t + 1] = row
    return matrix
