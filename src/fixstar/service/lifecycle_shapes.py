"""The JSON of versions, checks, deployments and backfills."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fixstar.lifecycle.checks import Outcome
from fixstar.service.shapes import JobShape

__all__ = [
    "BackfillRequest",
    "BackfillShape",
    "CellShape",
    "CheckRequest",
    "CheckShape",
    "CompatibilityShape",
    "DeployRequest",
    "FlipShape",
    "FoundShape",
    "MatrixCellShape",
    "MeasuredShape",
    "MoveShape",
    "PredictedShape",
    "SampleShape",
    "VersionCardShape",
    "VersionShape",
]


class _Told(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CellShape(_Told):
    """New queries on the gallery of ``version``: fractions; ``difference`` is cross-test minus self-test."""

    version: str
    self_test: float
    cross_test: float
    difference: float
    low: float
    high: float
    verdict: str
    differing: int
    negative_flips: int
    positive_flips: int


class CheckShape(_Told):
    """What the gate found out about a version, and on which images."""

    version: str
    outcome: Outcome
    reasons: list[str]
    notes: list[str]
    cells: list[CellShape]
    self_test: float | None
    queries: int
    gallery: int
    confidence: float
    tolerance: float
    data: dict[str, Any]
    when: str


class VersionShape(BaseModel):
    """A version. ``vectors`` counts the items whose vectors it made; ``check`` is the outcome of its last check."""

    name: str
    parent: str | None
    method: str | None
    backbone: str | None
    capacity: int | None
    classes: int
    trained: dict[str, Any]
    deployed: bool
    check: Outcome | None
    vectors: int
    retired: bool
    fixstar: str | None


class VersionCardShape(VersionShape):
    """A version in full. ``lineage``: it and its ancestors, oldest first; ``slots``: which class owns which."""

    lineage: list[str]
    slots: dict[str, int]
    details: dict[str, Any]
    last_check: CheckShape | None


class FoundShape(BaseModel):
    """What a version found for a query: the image's class, and where its picture is."""

    version: str
    label: str
    thumbnail: str | None


class FlipShape(BaseModel):
    """A negative flip: ``old`` found the query's class, ``new`` does not. ``query`` is where its picture is."""

    number: int
    label: str
    query: str | None
    old: FoundShape
    new: FoundShape


class MatrixCellShape(BaseModel):
    """One cell: accuracy of queries of one version on a gallery of another. ``check`` is the check it comes from."""

    query_version: str
    gallery_version: str
    accuracy: float
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Literal["compatible", "incompatible", "not decided", "self-test"]
    check: str


class CompatibilityShape(BaseModel):
    """The cells that the last checks measured. ``measured_on`` says for each check when, and on which images."""

    versions: list[str]
    cells: list[MatrixCellShape]
    measured_on: dict[str, dict[str, Any]]


class CheckRequest(_Asked):
    """How sure the gate wants to be, and how much of the old self-test may be lost: fractions."""

    confidence: float = Field(default=0.95, ge=0.5, le=0.999)
    tolerance: float = Field(default=0.0, ge=0, lt=1)
    seed: int = Field(default=0, ge=0, lt=2**31)


class DeployRequest(_Asked):
    """``force`` is a reason to do without a passed check; it is kept."""

    version: str = Field(max_length=100)
    force: str | None = Field(default=None, max_length=1000)


class MoveShape(_Told):
    """One move of the deployment. ``reason`` says why a check was passed over, where one was."""

    version: str
    kind: Literal["deploy", "rollback"]
    when: str
    reason: str | None
    by: str


class BackfillRequest(_Asked):
    """``budget``: a share of the items with older vectors, their number, or all; ``rate``: items a second at most.

    ``order`` says what comes first; "auto" takes what does best on labelled images.
    """

    budget: str = Field(
        default="10%", pattern=r"^(all|[0-9]{1,12}|(100|[0-9]{1,2}(\.[0-9]{1,4})?)%)$", examples=["10%", "5000", "all"]
    )
    order: Literal["auto", "gain", "classes", "certain", "uncertain", "queried", "oldest", "random"] = "auto"
    rate: float | None = Field(default=None, gt=0, le=1e6)


class PredictedShape(BaseModel):
    """Predicted accuracy over the share re-embedded, on held-out images: in the planned order, and at random."""

    order: str
    shares: list[float]
    planned: list[float]
    random: list[float]
    self_tests: list[float]


class MeasuredShape(BaseModel):
    """Accuracy measured on the gallery when a share of the older items had been re-embedded."""

    share: float
    accuracy: float


class BackfillShape(BaseModel):
    """The backfill planned last: of ``old`` items ``planned`` are re-embedded, ``position`` are dealt with.

    ``version`` is null where none was planned; ``kept`` counts items that keep their old vectors.
    """

    version: str | None = None
    order: str | None = None
    budget: str | None = None
    old: int = 0
    planned: int = 0
    position: int = 0
    kept: int = 0
    when: str | None = None
    predicted: PredictedShape | None = None
    measured: list[MeasuredShape] = Field(default_factory=list)
    job: JobShape | None = None


class SampleShape(_Told):
    """Items by the version that made their vectors, at a time."""

    when: str
    vectors: dict[str, int]
