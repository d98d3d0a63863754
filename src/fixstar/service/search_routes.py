"""Search by an image, by a vector, and by a stored item."""

from __future__ import annotations

import time
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, File, Form, Query, UploadFile
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from fixstar.gallery import SearchRequest, SearchResult
from fixstar.geometry import unit
from fixstar.service.context import Context, Shared
from fixstar.service.intake import read_upload
from fixstar.service.item_routes import ItemId, find_item
from fixstar.service.keys import needs
from fixstar.service.problems import Problem
from fixstar.service.shapes import HitShape, check_filter, hit_shape, parse_filter, problems

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["search"], dependencies=[Depends(needs("read"))])

_MOST = 100  # an operator may allow fewer

Count = Annotated[int | None, Query(ge=1, le=_MOST, description="Results; 10 unless told.")]
FilterText = Annotated[
    str | None, Query(max_length=8192, description='Restrict by payload, as JSON: {"label": "shoes"}.')
]
Exact = Annotated[
    bool | None, Query(description="false asks an index where there is one: faster, a hit may be missing.")
]


class SearchShape(BaseModel):
    """Results, best first, and the version that made the query's vector.

    Scores are cosines; where ``calibrated``, probabilities that query and item are of one class. ``left_out`` are
    versions with vectors that this query does not reach.
    """

    version: str
    hits: list[HitShape]
    calibrated: bool
    left_out: list[str] = Field(default_factory=list)
    milliseconds: float


class VectorQuery(BaseModel):
    """A vector of a version: its short form, as galleries store it. Its length does not matter."""

    model_config = ConfigDict(extra="forbid")

    vector: list[FiniteFloat] = Field(min_length=1, max_length=65536)
    version: str | None = Field(None, description="The version that made it; the deployed one unless told.")
    k: int = Field(10, ge=1, le=_MOST)
    where: dict[str, Any] | None = None
    exact: bool = True


@router.post("/search", responses=problems(413, 415))
async def search(
    context: Shared,
    image: Annotated[UploadFile, File(description="JPEG, PNG, WebP, GIF, BMP or TIFF.")],
    k: Count = None,
    where: FilterText = None,
    exact: Exact = None,
    form_k: Annotated[int | None, Form(alias="k", ge=1, le=_MOST)] = None,
    form_where: Annotated[str | None, Form(alias="where", max_length=8192)] = None,
    form_exact: Annotated[bool | None, Form(alias="exact")] = None,
) -> SearchShape:
    """The items nearest to an image. Options come in the address or as form fields."""
    began = time.perf_counter()
    count = _count(context, k or form_k or 10)
    wanted = parse_filter(where if where is not None else form_where)
    precise = next((given for given in (exact, form_exact) if given is not None), True)
    data = await read_upload(image, context.settings)
    answer = await context.batcher.search(data, SearchRequest(count, wanted, precise))
    return _told(answer, began)


@router.post("/search/vector", responses=problems(404))
def search_vector(context: Shared, query: VectorQuery) -> SearchShape:
    """The items nearest to a vector."""
    began = time.perf_counter()
    space = context.workspace
    version = space.deployed() if query.version is None else query.version
    spaces = {space.name: space for space in space.gallery.versions()}
    if version not in spaces:
        seen = f"no vectors of {version!r}; there are: {', '.join(spaces) or 'none yet'}"
        raise Problem("unknown-version", seen, "take one of those, or send no version: the deployed one")
    vector = np.asarray(query.vector, np.float64)
    if len(vector) != spaces[version].width:
        seen = f"{len(vector)} numbers; vectors of {version} have {spaces[version].width}"
        hint = f'send the short form, which galleries store: encoder.encode(images, form="short") of {version}'
        raise Problem("wrong-vector", seen, hint)
    largest = float(np.abs(vector).max())
    if not largest:
        seen = "all its numbers are 0, so it has no direction"
        raise Problem("wrong-vector", seen, "send one with a number that is not 0")
    if query.where is not None:
        check_filter(query.where)
    row = unit(vector[None] / largest)  # divided first: squares of very large or small numbers do not fit
    count = _count(context, query.k)
    answer = space.serving.search_vectors(
        version, row.astype(np.float32), SearchRequest(count, query.where, query.exact)
    )
    return _told(answer, began)


@router.get("/item/similar", responses=problems(404))
def similar(
    context: Shared, item_id: ItemId, k: Count = None, where: FilterText = None, exact: Exact = None
) -> SearchShape:
    """The items nearest to a stored one, itself left out."""
    began = time.perf_counter()
    find_item(context, item_id)
    count = _count(context, k or 10)
    answer = context.workspace.like(item_id, SearchRequest(count, parse_filter(where), exact is not False))
    return _told(answer, began)


def _count(context: Context, k: int) -> int:
    if k > context.settings.results:
        seen = f"k={k}; up to {context.settings.results} are allowed"
        raise Problem("too-many-results", seen, "ask for fewer; to go through all items: GET /v1/items")
    return k


def _told(answer: SearchResult, began: float) -> SearchShape:
    return SearchShape(
        version=answer.version,
        hits=list(map(hit_shape, answer.hits[0])),
        calibrated=answer.calibrated,
        left_out=list(answer.left_out),
        milliseconds=round(1000 * (time.perf_counter() - began), 3),
    )
