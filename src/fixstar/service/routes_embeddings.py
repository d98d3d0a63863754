"""Embeddings in the form that OpenAI's clients speak: images as base64, or texts, in, unit vectors out.

``model`` is a version, or ``v2->v1``: v2's query as it asks in v1's space, carried or mapped there, with one model.
Where a translation is deployed, a search adds the score in v2's own space, which needs the stored vectors.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from numpy.typing import NDArray

from fixstar.geometry import unit
from fixstar.service.context import READ, Shared
from fixstar.service.intake import image_in
from fixstar.service.problems import Problem, numbered
from fixstar.service.schemas import (
    Embedding,
    EmbeddingRequest,
    EmbeddingResponse,
    EmbeddingUsage,
    problem_responses,
)
from fixstar.workspace import Workspace

router = APIRouter(prefix="/v1")

_Rows = NDArray[np.float32]


class _Model(NamedTuple):
    """Who embeds, and whose vectors are to be searched."""

    version: str
    target: str


@router.post(
    "/embeddings", tags=["search"], dependencies=READ, responses=problem_responses(404, 413, 415)
)
async def embeddings(context: Shared, wanted: EmbeddingRequest) -> EmbeddingResponse:
    """The vectors of images by a version, or, with ``v2->v1``, its queries for another version's vectors."""
    texts = [wanted.input] if isinstance(wanted.input, str) else wanted.input
    most = min(context.settings.items_at_once, context.settings.waiting)
    if len(texts) > most:
        raise Problem(
            "invalid-request",
            f"{len(texts)} inputs; up to {most} may come at once",
            "send several requests",
        )
    model = await run_in_threadpool(_chosen, context.workspace, wanted.model)
    given: Sequence[bytes | str] = texts
    if await run_in_threadpool(context.workspace.registry.reads) == "images":
        given = await run_in_threadpool(
            lambda: [image_in(f"input {row}", text) for row, text in enumerate(texts)]
        )
    asked = (context.batcher.embed(one, (model.version,)) for one in given)
    good = numbered("input", await asyncio.gather(*asked, return_exceptions=True))
    await context.intake.count(len(texts))
    vectors = np.stack([one[model.version] for one in good])
    rows = await run_in_threadpool(_searching, context.workspace, model, vectors)
    data = []
    for index, row in enumerate(rows):
        content: str | list[float] = row.tolist()
        if wanted.encoding_format == "base64":
            content = _base64(row)
        data.append(Embedding(index=index, embedding=content))
    usage = EmbeddingUsage(prompt_tokens=len(data), total_tokens=len(data))
    return EmbeddingResponse(data=tuple(data), model=wanted.model, usage=usage)


def _chosen(space: Workspace, name: str) -> _Model:
    """The model of that name, loaded; else a problem that lists those that there are."""
    version, arrow, target = name.partition("->")
    known = space.versions()
    if version not in known:
        listed = ", ".join(known) or "none yet"
        hint = f"there are: {listed}; VERSION->OTHER makes queries for OTHER's vectors"
        error = space.no_encoder(version)
        if error is not None:
            raise Problem("unknown-version", str(error), hint, *error.next_steps)
        raise Problem("unknown-version", f"no model {version!r}", hint)
    space.serving.encoder(version)  # here, and not within the time that an image may take
    if not arrow or target == version:
        return _Model(version, version)
    known_ways = space.serving.translations.of(version)
    searched = [name for name, way in known_ways.items() if name != version and way.one is not None]
    if target not in searched:
        seen = f"the gallery has no vectors of {target!r}"
        if target in space.gallery.count():
            seen = f"queries of {version} alone cannot ask in the space of {target!r}"
        there = ", ".join(f"{version}->{one}" for one in searched) or "none"
        raise Problem("unknown-version", seen, f"there are: {there}")
    return _Model(version, target)


def _searching(space: Workspace, model: _Model, vectors: _Rows) -> _Rows:
    """The unit vectors [N, width of the target] that ask in the target's space."""
    if model.target == model.version:
        return vectors
    made = space.serving.in_space_of(model.target, model.version, vectors)
    if made is None:
        raise Problem(
            "unknown-version",
            f"queries of {model.version} no longer reach vectors of {model.target}",
        )
    return unit(np.asarray(made)).astype(np.float32)


def _base64(row: _Rows) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()
