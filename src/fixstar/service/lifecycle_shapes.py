"""The JSON of versions, checks, deployments and backfills."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from fixstar.service.problems import Problem
from fixstar.service.shapes import JobShape, NextStepShape
from fixstar.workspace.backfill.run import BUDGETS
from fixstar.workspace.checks import Outcome

__all__ = [
    "BackfillRequest",
    "BackfillShape",
    "CellShape",
    "CheckRequest",
    "CheckShape",
    "CompatibilityShape",
    "DeployRequest",
    "DeployShape",
    "FlipShape",
    "FoundShape",
    "MatrixCellShape",
    "MeasuredShape",
    "MoveShape",
    "OutlookShape",
    "PredictedShape",
    "RollbackAheadShape",
    "RollbackRequest",
    "RollbackShape",
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
    next_steps: list[NextStepShape]
    cells: list[CellShape]
    self_test: float | None
    queries: int
    gallery: int
    confidence: float
    tolerance: float
    data: dict[str, Any]
    when: str


class VersionShape(BaseModel):
    """A version: ``vectors`` that it made, ``unreached`` ones that its queries do not find, its last ``check``."""

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
    unreached: dict[str, int]
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
    """``force`` is a reason to do without a passed check; it is kept.

    ``deployed`` is the version that you believe is deployed: where another one is, nothing is moved (409).
    """

    version: str = Field(max_length=100)
    force: str | None = Field(default=None, max_length=1000)
    deployed: str | None = Field(default=None, max_length=100)


class RollbackRequest(_Asked):
    """The version that you believe is deployed, and where you want to land: else nothing is moved (409)."""

    deployed: str | None = Field(default=None, max_length=100)
    to: str | None = Field(default=None, max_length=100)


class MoveShape(_Told):
    """One move of the deployment. ``reason`` says why a check was passed over, where one was."""

    version: str
    kind: Literal["deploy", "rollback"]
    when: str
    reason: str | None
    by: str


class DeployShape(MoveShape):
    """A deployment. ``unreached`` vectors are not found by queries of ``version``: their number by who made them."""

    unreached: dict[str, int]


class RollbackShape(DeployShape):
    """A rollback. ``left`` is no longer deployed; ``cancelled`` is the job of a backfill that ends because of this.

    ``unchecked`` vectors are searched, but no check of ``version`` has looked at them: their number by who made them.
    """

    left: str
    unchecked: dict[str, int]
    cancelled: str | None


class RollbackAheadShape(BaseModel):
    """What a rollback would do now: from ``deployed`` to ``to``; the others are as in its answer."""

    deployed: str
    to: str
    unchecked: dict[str, int]
    unreached: dict[str, int]
    cancelled: str | None


_BUDGET = r"^(all|[0-9]{1,12}|(100|[0-9]{1,2}(\.[0-9]{1,4})?)%)$"


def _budget(text: str) -> str:
    """A budget that can be used; the problem says what is allowed, not the expression that it is compared with."""
    if re.fullmatch(_BUDGET, text) and text.strip("0.%"):  # something is left of what is not nothing
        return text
    seen = f"body.budget: {BUDGETS}; got {text!r}"
    raise Problem("invalid-request", seen, 'send such as {"budget": "10%"}')


class BackfillRequest(_Asked):
    """``budget``: a share of the items with older vectors, their number, or all; ``rate``: items a second at most.

    ``order`` says what comes first; "auto" takes what does best on labelled images. ``deployed`` is the version that
    you believe is deployed, whose vectors replace older ones: where another one is, nothing is started (409).
    ``anyway`` does it also where it is predicted to lower the accuracy; else the job then fails, with nothing replaced.
    """

    budget: Annotated[str, AfterValidator(_budget)] = Field(
        default="10%",
        max_length=20,
        json_schema_extra={"pattern": _BUDGET},
        examples=["10%", "5000", "all"],
    )
    order: Literal["auto", "gain", "classes", "certain", "uncertain", "queried", "oldest", "random"] = "auto"
    rate: float | None = Field(default=None, gt=0, le=1e6)
    deployed: str | None = Field(default=None, max_length=100)
    anyway: bool = False


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


class OutlookShape(_Told):
    """What a backfill to ``version``, the deployed one, could do: ``could`` vectors could be re-embedded by it.

    A budget is a share of the ``older`` ones. Vectors of ``newer`` versions are never replaced, and an item keeps its
    vector where its image is not here: ``without_image`` of the ``looked_at`` first; where that is not all of the older
    ones, ``could`` is an upper limit.
    """

    version: str
    could: int
    older: int
    newer: dict[str, int]
    looked_at: int
    without_image: int


class BackfillShape(BaseModel):
    """The backfill planned last: of ``old`` items ``planned`` are re-embedded, ``position`` are dealt with.

    ``version`` is null where none was planned; ``kept`` counts items that keep their old vectors. ``outlook`` is what
    the next one could do, null while one is under way; ``images_a_second`` is what the last one to the deployed version
    came to, null where none is known.
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
    outlook: OutlookShape | None = None
    images_a_second: float | None = None


class SampleShape(_Told):
    """Items by the version that made their vectors, at a time."""

    when: str
    vectors: dict[str, int]
