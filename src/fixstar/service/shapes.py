"""The JSON that several routes answer with. Nothing in it says where files are on this machine."""

from __future__ import annotations

import json
import math
from typing import Any, Literal
from urllib.parse import quote_plus

from pydantic import BaseModel, ConfigDict, Field

from fixstar.errors import GalleryError
from fixstar.gallery import Hit, Item
from fixstar.gallery.filters import filter_key, payload_test
from fixstar.gallery.store import Payload, Where
from fixstar.service.problems import Problem
from fixstar.workspace.items import IMAGE, LABEL, STAMP

__all__ = [
    "BadShape",
    "HitShape",
    "ItemShape",
    "JobShape",
    "NextStepShape",
    "NothingAddedShape",
    "ProblemShape",
    "check_filter",
    "hit_shape",
    "item_shape",
    "job_shape",
    "parse_filter",
    "parse_json",
    "problems",
    "public_payload",
    "stored_shape",
    "thumbnail_url",
]

_HIDDEN = (IMAGE, STAMP)  # they lead to files of this machine
_WHERE = 'write a filter such as {"label": "shoes"}, {"price": {"lt": 50}} or {"sold": {"exists": false}}'
_DEEP = 20  # levels of lists and maps that a request may nest


class RequestShape(BaseModel):
    """A request that performs a next step. Null values in ``body`` are for the caller to fill in."""

    method: str
    path: str
    body: dict[str, Any] | None = None


class NextStepShape(BaseModel):
    """What to do next: an action with its arguments. ``request`` is null where only the operator can do it."""

    action: str
    arguments: dict[str, Any]
    note: str
    request: RequestShape | None


class ProblemShape(BaseModel):
    """What went wrong, and what to do about it (RFC 9457). ``type`` is stable: ``/problems/NAME``."""

    type: str
    title: str
    status: int
    detail: str = ""
    hint: str = ""
    next_steps: list[NextStepShape] = Field(default_factory=list)


class BadShape(BaseModel):
    """An image that was left out: its place among the images sent, from 0, the file name sent with it, and why."""

    id: str
    index: int
    file: str | None
    reason: str


class NothingAddedShape(ProblemShape):
    """No image could be used: ``bad`` names each."""

    bad: list[BadShape] = Field(default_factory=list)


class ItemShape(BaseModel):
    """An item of the gallery. ``version`` made its vector; ``payload`` is what was stored with it."""

    id: str
    version: str
    label: str | None = None
    payload: dict[str, Any] = Field(default_factory=dict)
    thumbnail: str | None = None


class HitShape(ItemShape):
    """A search result: an item with its score."""

    score: float


class JobShape(BaseModel):
    """Work that goes on after the answer. ``total`` is null while nobody knows it; times are ISO 8601, UTC."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    kind: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    done: int = 0
    total: int | None = None
    message: str = ""
    result: dict[str, Any] | None = None
    error: ProblemShape | None = None
    created: str
    started: str | None = None
    ended: str | None = None
    by: str | None = Field(None, description="The name of the key that asked for it.")


def job_shape(job: object) -> JobShape:
    """A job as JSON."""
    return JobShape.model_validate(job)


def problems(*statuses: int, shape: type[ProblemShape] = ProblemShape) -> dict[int | str, dict[str, Any]]:
    """For ``responses=`` of a route: these answers are problems."""
    content = {"application/problem+json": {"schema": {"$ref": f"#/components/schemas/{shape.__name__}"}}}
    return {status: {"description": "A problem", "content": content} for status in statuses}


def hit_shape(hit: Hit) -> HitShape:
    """A hit as it is told."""
    return HitShape(score=hit.score, **_told(hit.id, hit.version, hit.payload))


def item_shape(item: Item) -> ItemShape:
    """An item as it is told."""
    return stored_shape(item.id, item.version, item.payload)


def stored_shape(name: str, version: str, payload: Payload) -> ItemShape:
    """An item as it is told, from what was stored."""
    return ItemShape(**_told(name, version, payload))


def _told(name: str, version: str, payload: Payload) -> dict[str, Any]:
    label = payload.get(LABEL)
    return {
        "id": name,
        "version": version,
        "label": None if label is None else str(label),
        "payload": public_payload(payload),
        "thumbnail": thumbnail_url(name, payload),
    }


def public_payload(payload: Payload) -> dict[str, Any]:
    """A payload without what leads to files of this machine."""
    return {field: value for field, value in payload.items() if field not in _HIDDEN}


def thumbnail_url(name: str, payload: Payload, size: int = 256) -> str | None:
    """Where an item's picture is; None where it has none. A new picture has a new address, so caches may keep it."""
    if not payload.get(IMAGE):
        return None
    stamp = quote_plus(str(payload.get(STAMP, "")))
    return f"/v1/item/image?id={quote_plus(name)}&size={size}&stamp={stamp}"


def parse_json(name: str, text: str | bytes) -> Any:
    """A JSON document in a form field, a query parameter or a body, if every store can hold what it says."""
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode()  # half a character (a lone surrogate) cannot be stored
    except (ValueError, RecursionError) as error:
        hint = _WHERE if name == "where" else "let a JSON library write it, with numbers below 1.8e308"
        raise Problem("invalid-request", f"{name} is not valid JSON: {error}", f"it must be JSON: {hint}") from error
    if _depth(value) > _DEEP:
        raise Problem("invalid-request", f"{name} is nested deeper than {_DEEP} levels", "send it flatter")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text:.40} is larger than any number that can be stored")
    return value


def _depth(value: Any, level: int = 0) -> int:
    if level > _DEEP or not isinstance(value, (dict, list)):
        return level
    inner = value.values() if isinstance(value, dict) else value
    return max((_depth(one, level + 1) for one in inner), default=level + 1)


def parse_filter(text: str | None) -> Where | None:
    """A filter written as JSON, checked before anything waits for it."""
    if text is None or not text.strip():
        return None
    where: Where = parse_json("where", text)
    check_filter(where)
    return where


def check_filter(where: Where) -> None:
    """Refuse a wrong filter now: later it would meet the queries of others. And one that asks for hidden fields."""
    try:
        payload_test(where)
        filter_key(where)
    except GalleryError as error:
        raise Problem("invalid-request", f"where: {error}", _WHERE) from error
    if hidden := [field for field in _HIDDEN if field in where]:
        seen = f"where: the field {hidden[0]!r} says where files are, and cannot be asked for"
        raise Problem("invalid-request", seen, "filter by other payload fields")
