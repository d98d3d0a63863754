"""The JSON of the API: one model per request and per response, shared by the routes and the client.

Requests refuse unknown fields. Responses are read leniently, so that a client works with a newer service. Nothing in
them says where files are on the service's machine. Needs pydantic, and no web framework.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, FiniteFloat

from fixstar.service.keys import Role
from fixstar.texts import MOST_CHARACTERS
from fixstar.training import Settings
from fixstar.workspace import BackfillOptions, FitOptions, GateRules
from fixstar.workspace.options import AUTO, BUDGETS, FIRST_BACKBONE, Order

MAX_RESULTS = 100  # an operator may allow fewer
JobState = Literal["queued", "running", "done", "failed", "cancelled"]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Response(BaseModel):
    model_config = ConfigDict(frozen=True, from_attributes=True)


# --- problems


class RequestBody(_Response):
    """A request that performs a next step. Null values in ``body`` are for the caller to fill in."""

    method: str
    path: str
    body: dict[str, Any] | None = None


class NextStepBody(_Response):
    """What to do next: an action with its arguments. ``request`` is null where only the operator can do it."""

    action: str
    arguments: dict[str, Any]
    note: str
    request: RequestBody | None


class ProblemBody(_Response):
    """What went wrong, and what to do about it (RFC 9457). ``type`` is stable: ``/problems/NAME``."""

    type: str
    title: str
    status: int
    detail: str = ""
    hint: str = ""
    next_steps: tuple[NextStepBody, ...] = ()


def problem_responses(
    *statuses: int, body: type[ProblemBody] = ProblemBody
) -> dict[int | str, dict[str, Any]]:
    """For ``responses=`` of a route: these statuses answer with problems."""
    content = {
        "application/problem+json": {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}}
    }
    return {status: {"description": "A problem", "content": content} for status in statuses}


# --- items and search


class _ItemFields(_Response):
    id: str
    version: str
    label: str | None = None
    payload: dict[str, Any] = Field(default_factory=dict)
    thumbnail: str | None = None


class Item(_ItemFields):
    """An item of the gallery. ``version`` made its vector; ``thumbnail`` is the address of its picture.

    ``revision`` moves with every change of the item; it is also its ETag.
    """

    revision: str


class Hit(_ItemFields):
    """A search result: an item with its score. ``unlikely`` says that it is probably no match: see ``thresholds``."""

    score: float
    unlikely: bool = False


class SearchResponse(_Response):
    """Results, best first, and the version that made the query's vector.

    Scores are cosines, or sums of two where old vectors are translated; where ``calibrated``, relative scores: how
    likely query and item are of one class, if the gallery holds the query's class. ``left_out`` are versions whose
    vectors this query cannot be compared with. ``models`` are the versions that embedded the query, the deployed one
    first if it did. ``thresholds`` are scores by version, measured by the check: of the queries with a match 5 % have a
    best hit below. If even the first hit is ``unlikely``, the query is probably not in the catalogue. Empty where
    nothing was measured. If nothing was found, ``unknown_fields`` are the fields of ``where`` that no item has, such as
    a misspelt one.
    """

    version: str
    hits: tuple[Hit, ...]
    calibrated: bool = False
    left_out: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    thresholds: dict[str, float] = {}
    unknown_fields: tuple[str, ...] = ()
    milliseconds: float


class SearchQuery(_Request):
    """How many items to find, which ones, and how."""

    k: int = Field(10, ge=1, le=MAX_RESULTS)
    where: dict[str, Any] | None = None
    exact: bool = True
    min_score: float | None = Field(None, ge=-1, le=1)


class VectorQuery(SearchQuery):
    """A vector of a version: its short form, as galleries store it. Its length does not matter."""

    vector: Annotated[list[FiniteFloat], FailFast()] = Field(min_length=1, max_length=65536)
    version: str | None = Field(
        None, description="The version that made it; the deployed one by default."
    )


class ExampleList(_Request):
    """Stored items by their ids, and images: base64, or data URLs with base64."""

    ids: list[Annotated[str, Field(min_length=1, max_length=1024)]] = Field(
        default=[], max_length=100
    )
    images: list[str] = Field(default=[], max_length=100)


class ExampleQuery(SearchQuery):
    """What to find more of, and less of. At least one positive example is needed."""

    positive: ExampleList
    negative: ExampleList = ExampleList()


class PayloadChange(_Request):
    """Payload fields to set; null removes one. The others stay."""

    payload: dict[str, Any]


class ItemCount(_Response):
    """How many items passed, and how many have each value of ``field``, most frequent first: ``values``.

    ``next`` is what to send as ``after`` to count on, null at the end: sum the answers. ``looked_at`` items were
    compared with the filter.
    """

    count: int
    values: dict[str, int]
    looked_at: int
    next: str | None


class EmbeddingRequest(_Request):
    """Images or texts to embed, as for OpenAI's API.

    ``model`` is a version, or ``v2->v1``: queries of v2 for v1's vectors.

    ``input`` is an image, or a list of them: base64, or data URLs with base64. Where the models read texts, it is a
    text or a list of them, embedded as queries.
    """

    model: str = Field(min_length=1, max_length=256, examples=["v2", "v2->v1"])
    input: str | Annotated[list[str], Field(min_length=1)]
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="base64 is that of the numbers as little-endian float32."
    )


class TextItem(_Request):
    """A text to store, under an id of its own or one that is made up."""

    text: str
    id: str | None = Field(None, min_length=1, max_length=1024)
    payload: dict[str, Any] = Field(default_factory=dict)


class TextList(_Request):
    """Texts to store."""

    items: list[TextItem] = Field(min_length=1)


class Embedding(_Response):
    """The vector of image number ``index``: its numbers, or base64 of them."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(_Response):
    """OpenAI counts tokens here; these count images."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(_Response):
    """Unit vectors in short form, in the order of the images."""

    object: Literal["list"] = "list"
    data: tuple[Embedding, ...]
    model: str
    usage: EmbeddingUsage


class ItemPage(_Response):
    """Some items, sorted by id. ``next`` is what to send as ``after`` for the following ones; null at the end.

    With a filter a page may hold fewer items than asked for, or none, before the end: ``looked_at`` counts those that
    were compared with it for this page.
    """

    items: tuple[Item, ...]
    next: str | None
    looked_at: int


class IdList(_Request):
    """Items by their ids."""

    ids: Annotated[list[Annotated[str, Field(min_length=1, max_length=1024)]], FailFast()] = Field(
        max_length=10_000
    )


class BadImage(_Response):
    """An image or text that was left out.

    ``index`` is its place among those sent, from 0, ``file`` the name sent with an image.
    """

    id: str
    index: int
    file: str | None
    reason: str

    @property
    def title(self) -> str:
        """Which one it is, for people."""
        if self.file:
            return f"image {self.index} ({self.file})"
        return f"item {self.index}"


class Added(_Response):
    """What was stored, by which version, and what was not: the others are stored all the same."""

    version: str
    added: tuple[str, ...]
    bad: tuple[BadImage, ...]


class NothingAdded(ProblemBody):
    """No image or text could be used: ``bad`` names each."""

    bad: tuple[BadImage, ...] = ()


class Deleted(_Response):
    """How many items were deleted from the gallery; those that a job was to add are not counted."""

    deleted: int


# --- jobs


class Job(_Response):
    """Work that continues after the response. ``total`` is null while it is not known; times are ISO 8601, UTC."""

    id: str
    kind: str
    version: str | None = Field(
        None, description="The version that is checked, or whose vectors replace older ones."
    )
    state: JobState
    done: int = 0
    total: int | None = None
    message: str = ""
    result: dict[str, Any] | None = None
    error: ProblemBody | None = None
    created: str
    started: str | None = None
    ended: str | None = None
    by: str | None = Field(None, description="The name of the key that asked for it.")

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ("done", "failed", "cancelled")


# --- versions and checks


class ClassChange(_Response):
    """How many queries of a class a check has, and how many of them the new version loses and wins."""

    label: str
    queries: int
    lost: int
    won: int


class OneModel(_Response):
    """The same with queries by the new version alone, where two models were judged."""

    cross_test: float
    low: float
    high: float
    verdict: str
    weight: float


class CheckedCell(_Response):
    """New queries on the vectors of ``version``: fractions; ``difference`` is cross-test minus self-test.

    ``reembedded`` is what the new version finds if everything is embedded again, and ``share_at_once`` the share of
    that gain that is had without it. ``models`` embed the queries; ``weight`` is that of the new space in the score.
    ``classes`` are those that lose most and those that win most, heaviest net loss first. With known relevant items
    figures are nDCG@10, and ``measured`` has further measures.
    """

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
    classes: tuple[ClassChange, ...] = ()
    weight: float = 0.0
    models: tuple[str, ...] = ()
    reembedded: float | None = None
    share_at_once: float | None = None
    one_model: OneModel | None = None
    measured: dict[str, dict[str, float]] = {}


class Threshold(_Response):
    """The score under which a query's best hit is probably no match.

    ``false_alarms`` of the queries with their class in the gallery lie under it, ``detected`` of those without it.
    """

    score: float
    false_alarms: float
    detected: float
    queries: int


class Check(_Response):
    """What the gate found out about a version, why, what to do next, and on which images."""

    version: str
    outcome: Literal["pass", "refuse", "missing evidence"]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    next_steps: tuple[NextStepBody, ...]
    cells: tuple[CheckedCell, ...]
    self_test: float | None
    queries: int
    gallery: int
    confidence: float
    tolerance: float
    data: dict[str, Any]
    thresholds: dict[str, Threshold] = {}
    when: str


class Gain(_Response):
    """What is found among vectors of ``version`` now, at once after deploying, and with everything embedded again."""

    version: str
    now: float
    at_once: float
    reembedded: float


class Version(_Response):
    """A version: ``vectors`` that it made, ``left_out`` ones that its queries do not find, its last ``check``.

    ``gain`` is what the check measured among the vectors that gain least.
    """

    name: str
    parent: str | None
    method: str | None
    backbone: str | None
    capacity: int | None
    classes: int
    trained: dict[str, Any]
    deployed: bool
    check: Literal["pass", "refuse", "missing evidence"] | None
    gain: Gain | None = None
    vectors: int
    left_out: dict[str, int]
    retired: bool
    fixstar: str | None


class VersionCard(Version):
    """A version in full. ``lineage``: it and its ancestors, oldest first; ``slots``: which class owns which."""

    lineage: tuple[str, ...]
    slots: dict[str, int]
    details: dict[str, Any]
    last_check: Check | None


class FlipImage(_Response):
    """What a version found for a query: the image's class, and where its picture is."""

    version: str
    label: str
    thumbnail: str | None


class Flip(_Response):
    """A query that only one of two versions answers correctly: what ``old`` and ``new`` found.

    ``query`` is where its picture is.
    """

    number: int
    label: str
    query: str | None
    old: FlipImage
    new: FlipImage


class DriftPoint(_ItemFields):
    """A stored item, its place by the old and by the new version, and 1 minus the cosine between the two vectors."""

    old: tuple[float, float]
    new: tuple[float, float]
    moved: float


class DriftMap(_Response):
    """The same images as two versions see them, on the two principal components of both; farthest first."""

    old: str
    new: str
    points: tuple[DriftPoint, ...]


class MatrixCell(_Response):
    """One cell: accuracy of queries of one version on a gallery of another. ``check`` is the check it comes from."""

    query_version: str
    gallery_version: str
    accuracy: float
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Literal["compatible", "incompatible", "not decided", "self-test"]
    check: str


class Compatibility(_Response):
    """The cells that checks on one set of images measured. ``measured_on`` says for each check when, and on what."""

    versions: tuple[str, ...]
    cells: tuple[MatrixCell, ...]
    measured_on: dict[str, dict[str, Any]]


class RelevantItems(_Request):
    """A query, and the stored items that it should find: their ids with grades, 1 or more for relevant."""

    text: str = Field(min_length=1, max_length=MOST_CHARACTERS)
    items: dict[Annotated[str, Field(max_length=1000)], FiniteFloat] = Field(
        min_length=1, max_length=10_000
    )


class CheckRequest(_Request):
    """The confidence of the gate, and how much of the old self-test may be lost: fractions.

    ``weight`` is a translation's weight to judge, 0 (old space alone) to 1 (new space alone); by default half of the
    queries choose. ``refit`` fits translations again, on a ``sample`` of items whose images are here. ``data`` is a
    name that the operator gave to labelled images, ``held-out`` for those held out at training. In a gallery of texts
    ``relevant`` judges in place of labels; nDCG@10 decides.
    """

    confidence: float = Field(default=GateRules.confidence, ge=0.5, le=0.999)
    tolerance: float = Field(default=GateRules.tolerance, ge=0, lt=1)
    seed: int = Field(default=GateRules.seed, ge=0, lt=2**31)
    weight: float | None = Field(default=GateRules.weight, ge=0, le=1)
    refit: bool = FitOptions.refit
    sample: int = Field(default=FitOptions.sample, ge=20, le=100_000)
    data: str | None = Field(default=None, min_length=1, max_length=64)
    relevant: list[RelevantItems] | None = Field(default=None, min_length=1, max_length=10_000)


class _TrainingRequest(_Request):
    """Settings that are left out are those of the method's paper, or of the last version."""

    method: str | None = Field(default=None, max_length=40)
    options: dict[Annotated[str, Field(max_length=40)], bool | int | FiniteFloat] = Field(
        default={}, max_length=20, description="Options of the method."
    )
    epochs: int | None = Field(default=None, ge=1, le=1000)
    learning_rate: float | None = Field(default=None, gt=0, le=10)
    hold_out: float | None = Field(
        default=None, ge=0, le=0.5, description="Share of images kept for the gate."
    )


class TrainRequest(_TrainingRequest):
    """The first version. ``data`` is a folder of labelled images below the one that the operator chose.

    ``capacity`` is the maximum number of classes.
    """

    data: str = Field(min_length=1, max_length=256)
    backbone: str = Field(
        default=FIRST_BACKBONE, max_length=40, description="One that starts from random weights."
    )
    capacity: int = Field(default=Settings.capacity, ge=2, le=1_000_000)
    seed: int = Field(default=Settings.seed, ge=0, lt=2**31)


class UpgradeRequest(_TrainingRequest):
    """The next version. ``data`` is a folder as for the first one; by default all stored items with label and image.

    ``backbone`` is another one to start from, with random weights. ``trials`` is how many settings short runs compare
    first, 0 for none.
    """

    data: str | None = Field(default=None, min_length=1, max_length=256)
    backbone: str | None = Field(default=None, max_length=40)
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    trials: Literal["auto"] | Annotated[int, Field(ge=0, le=10)] = "auto"


# --- deployment

VersionName = Annotated[str, Field(max_length=100)]


class DeployRequest(_Request):
    """``force`` is a reason to deploy without a passed check; it is kept.

    ``deployed`` is the version that you believe is deployed: if another one is, nothing changes (409). ``queries``
    says who asks old vectors: ``checked`` the models that the check chose, ``one`` the new version alone, ``old`` their
    own models alone, which find what they find now.
    """

    version: VersionName
    force: str | None = Field(default=None, max_length=1000)
    deployed: VersionName | None = None
    queries: Literal["checked", "one", "old"] = "checked"


class RollbackRequest(_Request):
    """The version that you believe is deployed, and the one you expect afterwards: else nothing changes (409)."""

    deployed: VersionName | None = None
    to: VersionName | None = None


class Move(_Response):
    """One change of the deployment. ``reason`` says why it was done without a passed check, where it was.

    ``translations`` are those in use, by the version whose vectors they carry. A move of the kind ``translate`` changes
    them alone.
    """

    version: str
    kind: Literal["deploy", "rollback", "translate"]
    when: str
    reason: str | None
    by: str
    translations: dict[str, str]


class Deployment(Move):
    """A deployment. ``left_out`` vectors are not found by queries of ``version``: their number by who made them."""

    left_out: dict[str, int]


class Rollback(Deployment):
    """A rollback. ``left`` is no longer deployed; ``cancelled`` is the job of a backfill that ends because of this.

    ``unchecked`` vectors are searched, but no check of ``version`` has looked at them: their number by who made them.
    """

    left: str
    unchecked: dict[str, int]
    cancelled: str | None


class RollbackPreview(_Response):
    """What a rollback would do now: from ``deployed`` to ``to``; the others are as in its response."""

    deployed: str
    to: str
    unchecked: dict[str, int]
    left_out: dict[str, int]
    cancelled: str | None


# --- backfill

_BUDGET = r"^(all|[0-9]{1,12}|\$[0-9]{1,9}(\.[0-9]{1,4})?|(100|[0-9]{1,2}(\.[0-9]{1,4})?)%)$"


def _budget(text: str) -> str:
    """A usable budget; the message says what is allowed, which a regular expression would not."""
    if re.fullmatch(_BUDGET, text) and text.strip("0.%$"):  # "0" and "0.0%" are nothing
        return text
    raise ValueError(f"{BUDGETS}; got {text!r}")


class BackfillRequest(_Request):
    """``budget``: a share of the items with older vectors, their number, or all; ``rate``: items per second at most.

    ``order`` says what comes first; "auto" picks what does best on labelled images. ``deployed`` is the version that
    you believe is deployed, whose vectors replace older ones: if another one is, nothing is started (409).
    ``anyway`` does it even if it is predicted to lower the accuracy; else the job then fails, with nothing replaced.
    """

    budget: Annotated[str, AfterValidator(_budget)] = Field(
        default=BackfillOptions.budget,
        max_length=20,
        json_schema_extra={"pattern": _BUDGET},
        examples=["10%", "5000", "all"],
    )
    order: Literal["auto", Order] = AUTO
    rate: float | None = Field(default=BackfillOptions.rate, gt=0, le=1e6)
    deployed: VersionName | None = None
    anyway: bool = BackfillOptions.anyway


class Prediction(_Response):
    """Predicted accuracy over the share re-embedded, on held-out images: in the planned order, and at random."""

    order: str
    shares: tuple[float, ...]
    planned: tuple[float, ...]
    random: tuple[float, ...]
    self_tests: tuple[float, ...]


class MeasuredPoint(_Response):
    """Accuracy measured on the gallery when a share of the older items had been re-embedded."""

    share: float
    accuracy: float


class Outlook(_Response):
    """What a backfill to ``version`` could do: re-embed ``could`` vectors. A budget is a share of the ``older`` ones.

    Vectors of ``newer`` versions are never replaced. ``without_image`` of the ``looked_at`` items have no image; if not
    all older ones were looked at, ``could`` is an upper limit. ``cost`` is about what one item costs where a server
    embeds for a price.
    """

    version: str
    could: int
    older: int
    newer: dict[str, int]
    looked_at: int
    without_image: int
    cost: float | None = None


class BackfillState(_Response):
    """The last backfill plan: of ``old`` items ``planned`` are re-embedded, ``position`` are done.

    ``version`` is null where none was planned; ``kept`` counts items that keep their old vectors. ``outlook`` is what
    the next one could do, null while one is under way; ``images_a_second`` is the pace of the last one to the deployed
    version, null if unknown.
    """

    version: str | None = None
    order: str | None = None
    budget: str | None = None
    old: int = 0
    planned: int = 0
    position: int = 0
    kept: int = 0
    when: str | None = None
    predicted: Prediction | None = None
    measured: tuple[MeasuredPoint, ...] = ()
    job: Job | None = None
    outlook: Outlook | None = None
    images_a_second: float | None = None


class HistoryPoint(_Response):
    """Items by the version that made their vectors, at a time."""

    when: str
    vectors: dict[str, int]


# --- the service


class Health(_Response):
    """The service answers."""

    status: Literal["ok"] = "ok"


class Ready(_Response):
    """The service can answer queries, by this version. ``writes`` is false where the disk has no room for an image."""

    status: Literal["ready"] = "ready"
    version: str
    writes: bool


class StatusCaller(_Response):
    """Who asked."""

    name: str
    role: Role


class Status(_Response):
    """The state of the workspace. ``vectors`` counts items by the version that made them; those that are not among
    ``versions`` were imported, or are retired, and have no encoder.

    ``searched_by`` are the versions that embed the queries for the vectors of each version; ``left_out`` are versions
    whose vectors no search reaches. ``reads`` is what the models make vectors of, and so what a search takes.
    ``galleries`` are those behind the same address that need no key, and this one; empty if it is alone.
    ``training_images`` are the folders that ``data`` of a training may name, for the role admin.
    """

    name: str
    galleries: tuple[str, ...]
    training_images: tuple[str, ...]
    fixstar: str
    reads: Literal["images", "texts"]
    deployed: str | None
    previous: str | None
    versions: tuple[str, ...]
    retired: tuple[str, ...]
    vectors: dict[str, int]
    searched_by: dict[str, tuple[str, ...]]
    left_out: tuple[str, ...]
    items: int
    jobs_running: int
    caller: StatusCaller
    keys: bool
