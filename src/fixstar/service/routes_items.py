"""Search, and items: list, add, delete. What was answered with success is on disk."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Annotated, Any, NamedTuple, TypeVar, cast
from urllib.parse import quote_plus

import numpy as np
from fastapi import APIRouter, Depends, File, Form, Header, Query, Request, Response, UploadFile
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, ValidationError

from fixstar.data.texts import TEXT
from fixstar.errors import GalleryError, plural
from fixstar.gallery import Gallery, SearchRequest, SearchResult
from fixstar.gallery import Item as StoredItem
from fixstar.gallery.filters import Payload, Where, payload_test
from fixstar.gallery.store import Vectors, checked_ids
from fixstar.geometry import unit
from fixstar.models import Encoder
from fixstar.service.batching import deployed_encoder
from fixstar.service.context import READ, WRITE, Context, Shared, Writer, may_read
from fixstar.service.intake import FORMATS, THUMBNAIL_SIZES, image_in, read_upload
from fixstar.service.limits import (
    HIDDEN_FIELDS,
    FormRoute,
    RequestRoute,
    check_filter,
    known_parameters,
    parse_filter,
    parse_json,
)
from fixstar.service.problems import Problem, numbered
from fixstar.service.schemas import (
    MAX_RESULTS,
    Added,
    BadImage,
    Deleted,
    ExampleList,
    ExampleQuery,
    Hit,
    IdList,
    Item,
    ItemCount,
    ItemPage,
    Job,
    NothingAdded,
    PayloadChange,
    SearchQuery,
    SearchResponse,
    TextItem,
    TextList,
    VectorQuery,
    problem_responses,
)
from fixstar.service.settings import ServiceSettings
from fixstar.workspace import CatalogueItem, Examples
from fixstar.workspace.items import (
    IMAGE,
    LABEL,
    STAMP,
    LocalEmbedder,
    count_items,
    index_items,
    text_item,
    unknown_fields,
)

router = APIRouter(prefix="/v1", route_class=FormRoute)

COUNTED = 100_000  # items that one answer counts, at most
LISTED = 4 << 20  # characters of payloads, or of values, in one answer, roughly
SCANNED = 5000  # items that a filter is compared with for one page, at most
IMMUTABLE = (
    "private, max-age=31536000, immutable"  # the header of a picture whose address has a stamp
)
_REPEATED = 30  # items of one label in a row, after which a sample goes to the next folder
_MAX_ID = 1024
_MAX_FILE_NAME = 255
_PAYLOAD = 'send such as {"label": "shoes"}'
_EXAMPLES = {"ids": '["shoes/17"]', "payloads": '[{"label": "shoes"}]'}

_ETAG = re.compile(r'(?:W/)?"([0-9]{1,20})"')  # proxies that compress make it a weak one

ItemId = Annotated[
    str, Query(alias="id", min_length=1, max_length=_MAX_ID, description="The item's id.")
]
IfMatch = Annotated[
    str | None,
    Header(
        max_length=100, description="The item's ETag: nothing is written if it has changed since."
    ),
]
Image = Annotated[UploadFile, File(description=f"{FORMATS}.")]
Images = Annotated[list[UploadFile], File(description=f"{FORMATS}.")]
Payloads = Annotated[
    str | None, Form(description="A JSON list: one object per image, stored with it.")
]
Ids = Annotated[
    str | None, Form(description="A JSON list of ids, one per image; made up by default.")
]
Count = Annotated[int | None, Query(ge=1, le=MAX_RESULTS, description="Results; 10 by default.")]
FilterText = Annotated[
    str | None,
    Query(max_length=8192, description='Restrict by payload, as JSON: {"label": "shoes"}.'),
]
Exact = Annotated[
    bool | None,
    Query(
        description="false uses an approximate index if there is one: faster, a hit may be missing."
    ),
]

Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")

MinScore = Annotated[
    float | None, Query(ge=-1, le=1, description="Leave out hits with a lower score.")
]


async def _options(
    context: Shared,
    k: Count = None,
    where: FilterText = None,
    exact: Exact = None,
    min_score: MinScore = None,
) -> SearchRequest:
    return SearchRequest(
        k=_count(context, k or 10),
        where=parse_filter(where),
        exact=exact is not False,
        min_score=min_score,
    )


Options = Annotated[SearchRequest, Depends(_options)]


# --- search


class SearchParameters(BaseModel):
    """Query parameters of a search."""

    k: Count = None
    where: FilterText = None
    exact: Exact = None
    min_score: MinScore = None
    version: Annotated[
        str | None, Query(max_length=100, description="Who embeds it; as deployed by default.")
    ] = None


class SearchForm(BaseModel):
    """Form fields of a search."""

    model_config = ConfigDict(extra="forbid")

    image: Annotated[UploadFile | None, File(description=f"{FORMATS}.")] = None
    text: Annotated[str | None, Form(description="A text, where the models read texts.")] = None
    k: Count = None
    where: FilterText = None
    exact: Exact = None
    min_score: MinScore = None


def _search_form() -> dict[str, Any]:
    """The form of a search as OpenAPI describes it: an image or a text, one of them."""
    schema = SearchForm.model_json_schema()
    fields = schema["properties"]
    fields["image"] = {
        "type": "string",
        "format": "binary",
        "description": fields["image"]["description"],
    }
    fields["text"] = {"type": "string", "description": fields["text"]["description"]}
    schema["oneOf"] = [{"required": ["image"]}, {"required": ["text"]}]
    return schema


_SEARCH_DOCUMENT = {
    "parameters": [
        {"name": name, "in": "query", "description": schema.pop("description"), "schema": schema}
        for name, schema in SearchParameters.model_json_schema()["properties"].items()
    ],
    "requestBody": {
        "required": True,
        "content": {"multipart/form-data": {"schema": _search_form()}},
    },
}


async def _asked(request: Request) -> tuple[SearchParameters, SearchForm]:
    """The options of a search. Read by hand: FastAPI would validate each of them on every request."""
    form = await request.form()
    given = {name: value for name, value in form.items() if value != ""}
    address = _checked(SearchParameters, "query", dict(request.query_params))
    return address, _checked(SearchForm, "body", given)


def _checked(kind: type[Model], place: str, given: Mapping[str, Any]) -> Model:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        mistakes = [{**one, "loc": (place, *one["loc"])} for one in error.errors()]
        raise RequestValidationError(mistakes) from error


def _merged(context: Context, address: SearchParameters, form: SearchForm) -> SearchRequest:
    """The options of a search; query parameters override form fields."""
    where = parse_filter(_first(address.where, form.where))
    return SearchRequest(
        k=_count(context, address.k or form.k or 10),
        where=where,
        exact=_first(address.exact, form.exact) is not False,
        min_score=_first(address.min_score, form.min_score),
    )


def _first(value: Value | None, other: Value | None) -> Value | None:
    """The first value that is not None."""
    if value is None:
        return other
    return value


async def search(http: Request) -> Response:
    """The items nearest to an image, or to a text where the models read texts.

    Options come in the address or as form fields.

    With a ``version`` that one alone embeds the query, deployed or not: see what it would find.
    """
    await known_parameters(http)
    await may_read(http)
    address, form = await _asked(http)
    began = time.perf_counter()
    context: Context = http.app.state.context
    request = _merged(context, address, form)
    data = await _image_or_text(context, form)
    version = address.version
    if version is None:
        found = await context.batcher.search(data, request)
    else:
        found = await _found_by(context, version, data, request=request)
    return _as_json(await _answered(context, request, found, began=began))


async def _image_or_text(context: Context, form: SearchForm) -> bytes | str:
    """The query: the bytes of an image, or a text."""
    if form.image is not None and form.text is None:
        return await read_upload(form.image, context.settings)
    if form.text is not None and form.image is None:
        return form.text
    raise _invalid(
        "a search takes an image or a text, one of them", "send image, or text, as a form field"
    )


async def _found_by(
    context: Context, version: str, data: bytes | str, request: SearchRequest
) -> SearchResult:
    """The hits of one version that embeds the query alone."""
    space = context.workspace
    known = await run_in_threadpool(space.versions)
    if version not in known:
        raise Problem(
            "unknown-version", f"no version {version!r}", f"there are: {', '.join(known) or 'none'}"
        )
    vectors = await context.batcher.embed(data, (version,))
    search_vectors = partial(space.serving.search_vectors, version, vectors[version][None], request)
    return await run_in_threadpool(search_vectors)


router.add_api_route(
    "/search",
    search,
    methods=["POST"],
    tags=["search"],
    response_model=SearchResponse,
    responses=problem_responses(404, 413, 415),
    openapi_extra=_SEARCH_DOCUMENT,
    route_class_override=RequestRoute,
)


def _as_json(answer: SearchResponse) -> Response:
    """Serialise the response here, so that FastAPI does not validate it again."""
    return Response(answer.model_dump_json(), media_type="application/json")


@router.post(
    "/search/batch", tags=["search"], dependencies=READ, responses=problem_responses(413, 415)
)
async def search_batch(context: Shared, images: Images, request: Options) -> list[SearchResponse]:
    """The items nearest to each of several images, in their order. One bad image fails the request."""
    began = time.perf_counter()
    most = min(context.settings.items_at_once, context.settings.waiting)
    if len(images) > most:
        raise _invalid(
            f"{len(images)} images; up to {most} may come at once", "send several requests"
        )
    data = [await read_upload(image, context.settings) for image in images]
    found = numbered("image", await context.batcher.search_together(data, request))
    await context.intake.count(len(images))
    return [await _answered(context, request, one, began=began) for one in found]


@router.post(
    "/search/examples",
    tags=["search"],
    dependencies=READ,
    responses=problem_responses(404, 413, 415),
)
async def search_examples(context: Shared, query: ExampleQuery) -> SearchResponse:
    """The items most like the positive examples and unlike the negative ones, these left out."""
    began = time.perf_counter()
    request = _request(context, query)
    images = len(query.positive.images) + len(query.negative.images)
    if images > context.settings.items_at_once:
        raise _invalid(
            f"{images} images; up to {context.settings.items_at_once} may come at once",
            "send fewer",
        )
    positive = await _examples(context, "positive", query.positive)
    negative = await _examples(context, "negative", query.negative)
    search_now = partial(
        context.workspace.search_examples,
        positive,
        negative,
        request,
        decode=context.intake.processes.pixels,
    )

    if not images:
        found = await run_in_threadpool(search_now)
    else:
        found = await context.intake.in_turn(
            lambda: run_in_threadpool(search_now)
        )  # it decodes in its thread
        await context.intake.count(images)
    return await _answered(context, request, found, began=began)


async def _examples(context: Context, side: str, given: ExampleList) -> Examples:
    """Examples whose images are of an allowed format and size."""
    images = [image_in(f"{side} image {number}", text) for number, text in enumerate(given.images)]
    checked = await asyncio.gather(*map(context.intake.check, images), return_exceptions=True)
    numbered(f"{side} image", checked)
    for name in given.ids:
        await run_in_threadpool(_find_item, context, name)
    return Examples(ids=given.ids, images=images)


@router.post("/search/vector", tags=["search"], dependencies=READ, responses=problem_responses(404))
def search_vector(context: Shared, query: VectorQuery) -> SearchResponse:
    """The items nearest to a vector. It is a query of one model: for two models per query send the image."""
    began = time.perf_counter()
    space = context.workspace
    version = space.deployed() if query.version is None else query.version
    spaces = {space.name: space for space in space.gallery.versions()}
    if version not in spaces:
        seen = f"no vectors of {version!r}; there are: {', '.join(spaces) or 'none yet'}"
        raise Problem(
            "unknown-version", seen, "use one of those, or send no version: the deployed one"
        )
    vector = np.asarray(query.vector, np.float64)
    if len(vector) != spaces[version].width:
        seen = f"{plural(len(vector), 'number')}; vectors of {version} have {spaces[version].width}"
        hint = f'send the short form, which galleries store: encoder.encode(images, form="short") of {version}'
        raise Problem("wrong-vector", seen, hint)
    largest = float(np.abs(vector).max())
    if not largest:
        raise Problem(
            "wrong-vector", "all its numbers are 0", "send one with a number that is not 0"
        )
    request = _request(context, query)
    row = unit(
        vector[None] / largest
    )  # scaled first: squares of very large or small numbers overflow
    found = space.serving.search_vectors(version, row.astype(np.float32), request)
    return _search_response(context, request, found, began=began)


@router.get("/item/similar", tags=["search"], dependencies=READ, responses=problem_responses(404))
def similar(context: Shared, item_id: ItemId, request: Options) -> SearchResponse:
    """The items nearest to a stored one, itself left out."""
    began = time.perf_counter()
    _find_item(context, item_id)
    found = context.workspace.like(item_id, request)
    return _search_response(context, request, found, began=began)


def _request(context: Context, query: SearchQuery) -> SearchRequest:
    if query.where is not None:
        check_filter(query.where)
    return SearchRequest(
        k=_count(context, query.k),
        where=query.where,
        exact=query.exact,
        min_score=query.min_score,
    )


def _count(context: Context, k: int) -> int:
    if k > context.settings.results:
        seen = f"k={k}; up to {context.settings.results} are allowed"
        raise Problem("too-many-results", seen)
    return k


async def _answered(
    context: Context, request: SearchRequest, found: SearchResult, *, began: float
) -> SearchResponse:
    """The response. Made in a thread if the filter must be applied to the items again."""
    make_response = partial(_search_response, context, request, found, began=began)
    if found.hits[0] or not request.where:
        return make_response()
    return await run_in_threadpool(make_response)


def _search_response(
    context: Context, request: SearchRequest, found: SearchResult, *, began: float
) -> SearchResponse:
    unknown: Iterable[str] = ()
    if not found.hits[0]:
        unknown = unknown_fields(context.workspace.gallery, request.where or {})
    hits = []
    for hit in found.hits[0]:
        fields = item_fields(hit.id, hit.version, hit.payload)
        hits.append(Hit(score=hit.score, unlikely=found.is_unlikely(hit), **fields))
    return SearchResponse(
        version=found.version,
        hits=tuple(hits),
        calibrated=found.calibrated,
        left_out=found.left_out,
        models=found.models,
        thresholds=dict(found.thresholds),
        unknown_fields=tuple(unknown),
        milliseconds=round(1000 * (time.perf_counter() - began), 3),
    )


def item_fields(name: str, version: str, payload: Payload) -> dict[str, Any]:
    """An item as JSON, without the payload fields that name files of this machine."""
    label = payload.get(LABEL)
    picture = None
    if payload.get(IMAGE):  # a new picture has a new address, so caches may keep it
        stamp = quote_plus(str(payload.get(STAMP, "")))
        picture = f"/v1/item/image?id={quote_plus(name)}&size=256&stamp={stamp}"
    return {
        "id": name,
        "version": version,
        "label": None if label is None else str(label),
        "payload": {field: value for field, value in payload.items() if field not in HIDDEN_FIELDS},
        "thumbnail": picture,
    }


# --- items


@router.get("/items", tags=["items"], dependencies=READ, responses=problem_responses(404))
def items(
    context: Shared,
    after: Annotated[
        str | None, Query(max_length=_MAX_ID, description="The id to continue after.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    version: Annotated[
        str | None, Query(max_length=256, description="Only vectors of this version.")
    ] = None,
    where: FilterText = None,
) -> ItemPage:
    """Page through all items. With ``where`` a page ends after 5,000 items were looked at; ``next`` continues."""
    gallery = context.workspace.gallery
    _require_vectors(gallery, version)
    return item_page(gallery, limit, version=version, after=after, where=parse_filter(where))


def _require_vectors(gallery: Gallery, version: str | None) -> None:
    if version is None:
        return
    known = [space.name for space in gallery.versions()]
    if version not in known:
        hint = f"there are: {', '.join(known) or 'none yet'}"
        raise Problem("unknown-version", f"the gallery has no vectors of {version!r}", hint)


def item_page(
    gallery: Gallery,
    limit: int,
    version: str | None = None,
    after: str | None = None,
    where: Where | None = None,
) -> ItemPage:
    """Up to ``limit`` items after ``after`` that pass the filter. Few matches do not make a page much slower."""
    passes = payload_test(where or {})
    found: list[Item] = []
    looked_at = 0
    characters = 0
    last = after
    with closing(cast(Any, gallery.iterate(version, after))) as source:
        for one in cast(Iterator[StoredItem], source):
            if len(found) == limit or looked_at == SCANNED or characters > LISTED:
                return ItemPage(items=tuple(found), next=last, looked_at=looked_at)
            looked_at += 1
            last = one.id
            if passes(one.payload):
                found.append(_shown_item(one))
                characters += len(str(one.payload))
    return ItemPage(items=tuple(found), next=None, looked_at=looked_at)


@router.get("/items/sample", tags=["items"], dependencies=READ)
def sample(context: Shared, limit: Annotated[int, Query(ge=1, le=100)] = 12) -> list[Item]:
    """A sample of items with as many labels as possible; at most 5,000 are looked at."""
    chosen = item_sample(context.workspace.gallery, limit)
    return list(map(_shown_item, chosen))


def item_sample(gallery: Gallery, limit: int) -> list[StoredItem]:
    """Up to ``limit`` items: one of each label, then a second of each, and so on.

    It skips the rest of a folder after a run of items with one label.
    """
    by_label: dict[Any, list[StoredItem]] = {}
    after: str | None = None
    looked_at = 0
    while looked_at < SCANNED and len(by_label) < limit:
        repeated = 0
        jump = None
        with closing(cast(Any, gallery.iterate(None, after))) as source:
            for one in cast(Iterator[StoredItem], source):
                looked_at += 1
                after = one.id
                kept = by_label.setdefault(one.payload.get(LABEL), [])
                if len(kept) < limit:
                    kept.append(one)
                if len(kept) > 1:
                    repeated += 1
                else:
                    repeated = 0
                folder, slash, _ = one.id.rpartition("/")
                if repeated >= _REPEATED and slash:
                    jump = f"{folder}{slash}{chr(sys.maxunicode)}"
                    break
                if looked_at >= SCANNED or len(by_label) >= limit:
                    break
        if jump is None:
            break
        after = jump
    rounds = zip_longest(*by_label.values())
    return [one for layer in rounds for one in layer if one is not None][:limit]


@router.get("/items/count", tags=["items"], dependencies=READ, responses=problem_responses(404))
def count(
    context: Shared,
    where: FilterText = None,
    version: Annotated[
        str | None, Query(max_length=256, description="Only vectors of this version.")
    ] = None,
    field: Annotated[
        str | None, Query(max_length=256, description="Also count the values of this field.")
    ] = None,
    after: Annotated[
        str | None, Query(max_length=_MAX_ID, description="The id to continue after.")
    ] = None,
) -> ItemCount:
    """Count items by payload. An answer ends after 100,000 items were looked at; ``next`` continues."""
    if field in HIDDEN_FIELDS:
        raise _invalid(
            f"the field {field!r} names files of the service, and cannot be asked for",
            "use another field",
        )
    gallery = context.workspace.gallery
    _require_vectors(gallery, version)
    found = count_items(
        gallery,
        where=parse_filter(where),
        version=version,
        field=field,
        after=after,
        most=COUNTED,
        most_characters=LISTED,
    )
    return ItemCount(
        count=found.total,
        values=dict(found.values),
        looked_at=found.looked_at,
        next=found.next,
    )


@router.get("/item", tags=["items"], dependencies=READ, responses=problem_responses(404))
def item(context: Shared, response: Response, item_id: ItemId) -> Item:
    """One item. Its ETag is its revision."""
    return _with_etag(response, _shown_item(_find_item(context, item_id)))


@router.get(
    "/item/image",
    tags=["items"],
    dependencies=READ,
    response_class=Response,
    responses={
        200: {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}},
        304: {"description": "Not modified"},
        **problem_responses(404),
    },
)
async def item_image(
    context: Shared,
    request: Request,
    item_id: ItemId,
    size: Annotated[
        int, Query(ge=16, le=THUMBNAIL_SIZES[-1], description="Pixels of the longer side, at most.")
    ] = 256,
    stamp: Annotated[
        str, Query(max_length=256, description="Makes the answer one that caches may keep.")
    ] = "",
) -> Response:
    """An item's picture, encoded again."""
    found = await run_in_threadpool(_find_item, context, item_id)
    draw = partial(context.intake.thumbnail, context.workspace, found, size)
    picture = await context.intake.in_turn(lambda: run_in_threadpool(draw))
    headers = {
        "ETag": picture.etag,
        "Cache-Control": IMMUTABLE if stamp else "private, no-cache",
    }
    if picture.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(picture.content, media_type="image/jpeg", headers=headers)


@router.patch("/item", tags=["items"], dependencies=WRITE, responses=problem_responses(404, 412))
def change_payload(
    context: Shared,
    response: Response,
    item_id: ItemId,
    change: PayloadChange,
    if_match: IfMatch = None,
) -> Item:
    """Change payload fields of an item; its image and vector stay. Null removes a field.

    Fields that others change at the same time are kept.
    """
    expected = _revision(if_match)
    stored = context.workspace.update_payload(
        item_id,
        changes=_checked_payload(change.payload),
        revision=expected,
        max_bytes=context.settings.payload_bytes,
    )
    return _with_etag(response, _shown_item(stored))


@router.delete("/item", tags=["items"], dependencies=WRITE, responses=problem_responses(404, 412))
def delete_item(context: Shared, item_id: ItemId, if_match: IfMatch = None) -> Deleted:
    """Delete an item, also from the jobs that were to add it."""
    expected = _revision(if_match)
    with context.jobs.overtaking([item_id]) as was_to_come:
        deleted = context.workspace.gallery.delete([item_id], expected)
        if not deleted and not was_to_come:
            raise _absent(item_id)
    return Deleted(deleted=deleted)


@router.post("/items/delete", tags=["items"], dependencies=WRITE)
def delete_items(context: Shared, wanted: IdList) -> Deleted:
    """Delete items, all at once, also from the jobs that were to add them. Unknown ids are ignored."""
    with context.jobs.overtaking(wanted.ids):
        return Deleted(deleted=context.workspace.gallery.delete(wanted.ids))


def _find_item(context: Context, name: str) -> StoredItem:
    found = context.workspace.gallery.get([name]).get(name)
    if found is None:
        raise _absent(name)
    return found


def _shown_item(stored: StoredItem) -> Item:
    return Item(
        **item_fields(stored.id, stored.version, stored.payload), revision=str(stored.revision)
    )


def _with_etag(response: Response, shown: Item) -> Item:
    response.headers["ETag"] = f'"{shown.revision}"'
    return shown


def _revision(if_match: str | None) -> int | None:
    """The revision in If-Match, or None."""
    if if_match is None:
        return None
    tag = _ETAG.fullmatch(if_match.strip())
    if tag is None:
        hint = "send the ETag as it came with the item, in its quotes"
        raise _invalid(f"If-Match takes the ETag of one item; got {if_match!r:.80}", hint)
    return int(tag[1])


def _absent(name: str) -> Problem:
    return Problem("unknown-item", f"the gallery has no item {name!r}")


# --- adding images


@dataclass(frozen=True)
class _Upload:
    """An uploaded image or text with its id, payload and position in the request."""

    id: str
    payload: dict[str, Any]
    file: UploadFile | None
    index: int
    text: str = ""

    @property
    def name(self) -> str | None:
        """The file name that was sent, for messages; never used as a path."""
        if self.file is None:
            return None
        return (
            self.file.filename
            and self.file.filename.encode("utf-8", "replace").decode()[:_MAX_FILE_NAME]
        )

    def bad(self, reason: str) -> BadImage:
        """This upload as an entry of ``bad``."""
        return BadImage(id=self.id, index=self.index, file=self.name, reason=reason)


class _Stored(NamedTuple):
    """What was stored, by which version, with payloads and revisions by id; and what was left out, with reasons."""

    version: str
    payloads: dict[str, dict[str, Any]]
    rejected: list[tuple[_Upload, Problem]]
    revisions: dict[str, int]


@router.put("/item", tags=["items"], dependencies=WRITE, responses=problem_responses(412, 413, 415))
async def put_item(
    context: Shared,
    response: Response,
    item_id: ItemId,
    image: Image,
    payload: Annotated[
        str | None, Form(description="A JSON object, stored with the image.")
    ] = None,
    if_match: IfMatch = None,
) -> Item:
    """Store one item, replacing the one that had this id."""
    expected = _revision(if_match)

    def plan() -> list[_Upload]:
        content = {}
        if payload is not None:
            content = parse_json("payload", payload, _PAYLOAD)
        return _plan_uploads(
            context.settings, images=[image], payloads=[content], ids=[item_id], most=1
        )

    stored = await _add_items(context, await run_in_threadpool(plan), expected)
    if stored.rejected:
        raise stored.rejected[0][1]
    fields = item_fields(
        item_id, stored.version, stored.payloads[item_id]
    )  # another may have written since
    return _with_etag(response, Item(**fields, revision=str(stored.revisions[item_id])))


@router.post(
    "/items",
    tags=["items"],
    dependencies=WRITE,
    responses=problem_responses(413, 415, 422, body=NothingAdded),
)
async def add_items(
    context: Shared, images: Images, payloads: Payloads = None, ids: Ids = None
) -> Added:
    """Embed and store images with the deployed version before the answer. Those that cannot be used are named.

    If none can be used the answer is a problem, which names them too.
    """
    most = context.settings.items_at_once
    uploads = await _plan_list(context, images, payloads=payloads, ids=ids, most=most)
    return await _added(context, uploads)


@router.post("/items/texts", tags=["items"], dependencies=WRITE, responses=problem_responses(413))
async def add_texts(context: Shared, given: TextList) -> Added:
    """Embed and store texts with the deployed version before the answer. Those that cannot be used are named."""
    most = context.settings.items_at_once
    if len(given.items) > most:
        raise _invalid(
            f"{len(given.items)} texts; up to {most} may come at once", "send several requests"
        )
    uploads = await run_in_threadpool(_plan_texts, context.settings, given.items)
    return await _added(context, uploads)


async def _added(context: Context, uploads: Sequence[_Upload]) -> Added:
    """Store images or texts and say which are stored; a problem if none can be used."""
    stored = await _add_items(context, uploads)
    await context.intake.count(len(uploads))
    bad = tuple(upload.bad(problem.sentence()) for upload, problem in stored.rejected)
    if bad and not stored.payloads:
        kind = "text" if uploads[0].file is None else "image"
        raise _nothing_added(kind, [problem for _, problem in stored.rejected], bad)
    return Added(version=stored.version, added=tuple(stored.payloads), bad=bad)


def _plan_texts(settings: ServiceSettings, texts: Sequence[TextItem]) -> list[_Upload]:
    """Texts with their ids and payloads; refused before anything is stored if one does not fit."""
    names = _checked_ids([_new_id() if one.id is None else one.id for one in texts])
    uploads = []
    for number, (name, one) in enumerate(zip(names, texts, strict=True)):
        content = _checked_payload(one.payload)
        if TEXT in content:
            raise _invalid(
                f"the payload of {name!r:.80} has a field text",
                "send the text beside the payload, once",
            )
        _require_small(settings, name, content)
        uploads.append(_Upload(name, content, file=None, index=number, text=one.text))
    return uploads


def _new_id() -> str:
    return uuid.uuid4().hex


@router.post("/items/async", tags=["items"], status_code=202, responses=problem_responses(413, 415))
async def add_items_later(
    context: Shared, caller: Writer, images: Images, payloads: Payloads = None, ids: Ids = None
) -> Job:
    """Keep images on disk, and embed them in a job. All must be images of an allowed format and size."""
    most = context.settings.images_a_job
    uploads = await _plan_list(context, images, payloads=payloads, ids=ids, most=most)
    await context.intake.count(len(images))
    await run_in_threadpool(context.jobs.require_room, "index")
    kept = await _keep_images(context, uploads)
    job = await run_in_threadpool(context.jobs.submit, "index", {"items": kept}, by=caller.name)
    return Job.model_validate(job)


async def _plan_list(
    context: Context, images: list[UploadFile], *, payloads: str | None, ids: str | None, most: int
) -> list[_Upload]:
    def plan() -> list[_Upload]:
        return _plan_uploads(
            context.settings,
            images=images,
            payloads=_parsed_list("payloads", payloads),
            ids=_parsed_list("ids", ids),
            most=most,
        )

    return await run_in_threadpool(plan)


def _parsed_list(name: str, text: str | None) -> list[Any] | None:
    if text is None:
        return None
    content = parse_json(name, text, f"send such as {_EXAMPLES[name]}")
    if not isinstance(content, list):
        raise _invalid(
            f"{name} must be a JSON list, one entry per image; got {text:.80}",
            f"send {_EXAMPLES[name]}",
        )
    return content


def _plan_uploads(
    settings: ServiceSettings,
    *,
    images: Sequence[UploadFile],
    payloads: Sequence[Any] | None,
    ids: Sequence[Any] | None,
    most: int,
) -> list[_Upload]:
    """Match images, payloads and ids; refuse what does not fit before anything is stored."""
    if len(images) > most:
        seen = f"{len(images)} images; up to {most} may come at once"
        raise _invalid(seen, "send several requests, or /v1/items/async")
    for name, given in (("payloads", payloads), ("ids", ids)):
        if given is not None and len(given) != len(images):
            seen = f"{plural(len(given), name[:-1])} for {plural(len(images), 'image')}; one per image is needed"
            raise _invalid(
                seen, f"send as many as images, in their order, such as {_EXAMPLES[name]}"
            )
    if ids is None:
        ids = [_new_id() for _ in images]
    if payloads is None:
        payloads = [{} for _ in images]
    names = _checked_ids(ids)
    contents = [_checked_payload(content) for content in payloads]
    uploads = []
    for number, (name, content, image) in enumerate(zip(names, contents, images, strict=True)):
        _require_small(settings, name, content)
        uploads.append(_Upload(name, content, file=image, index=number))
    return uploads


def _require_small(settings: ServiceSettings, name: str, payload: Mapping[str, Any]) -> None:
    size = len(json.dumps(payload, ensure_ascii=False).encode())
    if size > settings.payload_bytes:
        seen = f"the payload of {name!r:.80} has {size:,} bytes; {settings.payload_bytes:,} are allowed"
        raise Problem(
            "too-large", seen, "store less with the item, such as the address of the rest"
        )


def _checked_ids(ids: Sequence[Any]) -> list[str]:
    try:
        names = checked_ids(list(ids))
    except GalleryError as error:
        raise _invalid(str(error), f"send such as {_EXAMPLES['ids']}") from error
    for name in names:
        if len(name) > _MAX_ID:
            raise _invalid(
                f"an id has up to {_MAX_ID} characters, got {len(name)}", "send a shorter one"
            )
    return names


def _checked_payload(payload: Any) -> dict[str, Any]:
    if not isinstance(payload, dict):
        raise _invalid(f"a payload is a JSON object, got {payload!r:.80}", _PAYLOAD)
    reserved = set(HIDDEN_FIELDS) & payload.keys()
    if reserved:
        seen = f"the payload field {min(reserved)!r} is reserved: the service stores there where the image is"
        raise _invalid(seen, "give the field another name")
    return payload


def _invalid(detail: str, hint: str) -> Problem:
    return Problem("invalid-request", detail, hint)


async def _add_items(
    context: Context, uploads: Sequence[_Upload], expected: int | None = None
) -> _Stored:
    """Embed and store images or texts with the deployed version; on disk when it returns. Bad ones are left out.

    ``expected`` is the revision that one item must have to be replaced.
    """
    space = context.workspace
    revisions: dict[str, int] = {}
    version, encoder = await run_in_threadpool(deployed_encoder, space)
    decoded = await asyncio.gather(*(_decoded(context, upload, encoder) for upload in uploads))

    def write(
        version: str, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload]
    ) -> None:
        with context.jobs.overtaking(ids):
            made = space.gallery.upsert(version, ids, vectors, payloads, expected)
        revisions.update(zip(ids, made, strict=True))

    def store() -> _Stored:
        readable = []
        problems = {}
        for upload, one in zip(uploads, decoded, strict=True):
            if isinstance(one, Problem):
                problems[upload.id] = one
            else:
                readable.append(one)
        with space.registry.using(version):
            done = index_items(
                space.gallery,
                version,
                embedder=LocalEmbedder(encoder),
                items=readable,
                again=True,
                store=write,
            )
        context.metrics.embedded.labels(version, "item").inc(done.added)
        for bad in done.bad:
            problems[bad.name] = Problem(f"unreadable-{encoder.reads[:-1]}", bad.reason)
        return _Stored(
            version=version,
            payloads={one.id: dict(one.payload) for one in readable if one.id not in problems},
            rejected=[(one, problems[one.id]) for one in uploads if one.id in problems],
            revisions=revisions,
        )

    return await run_in_threadpool(store)


async def _decoded(context: Context, upload: _Upload, encoder: Encoder) -> CatalogueItem | Problem:
    """The decoded image, with the name of its file in the payload; or a text, with the text in the payload."""
    wanted = "images" if upload.file is not None else "texts"
    if encoder.reads != wanted:
        return Problem(
            "wrong-kind",
            f"this gallery holds {encoder.reads}, and {wanted} came",
            f"send {encoder.reads}",
        )
    if upload.file is None:
        return text_item(upload.id, upload.text, upload.payload)
    try:
        data = await read_upload(upload.file, context.settings)
        decoded = await context.intake.read(data, encoder.preprocessing)
    except Problem as problem:
        return problem
    kept = await run_in_threadpool(context.workspace.images.keep, data, decoded.suffix)
    return CatalogueItem(upload.id, decoded.pixels, {**upload.payload, **kept})


def _nothing_added(kind: str, problems: Sequence[Problem], bad: Sequence[BadImage]) -> Problem:
    """The problem if no input could be used: with the status that all have in common, else 422."""
    first = problems[0]
    seen = f"nothing was stored, of {len(bad)} sent; {bad[0].title}: {first.detail}"
    alike = len({problem.status for problem in problems}) == 1
    if alike:
        problem = Problem(f"no-usable-{kind}", seen, first.hint, status=first.status)
    else:
        problem = Problem(f"no-usable-{kind}", seen)
    problem.more = {"bad": [one.model_dump() for one in bad]}
    return problem


async def _keep_images(context: Context, uploads: Sequence[_Upload]) -> list[dict[str, Any]]:
    """Keep images on disk for a job: id, file and payload of each. Refuses all if one is not an image."""
    suffixes = []
    for upload in uploads:
        try:
            assert upload.file is not None
            suffixes.append(
                await context.intake.check(await read_upload(upload.file, context.settings))
            )
        except Problem as problem:
            problem.detail = f"{upload.bad('').title}: {problem.detail}; nothing was stored"
            raise
    accepted = []
    for upload, suffix in zip(uploads, suffixes, strict=True):
        assert upload.file is not None
        await upload.file.seek(0)
        kept = await run_in_threadpool(
            context.workspace.images.keep, await upload.file.read(), suffix
        )
        payload = {**upload.payload, **kept}
        accepted.append(
            {"id": upload.id, "image": kept[IMAGE], "payload": payload, "file": upload.name}
        )
    return accepted
