"""A workspace behind HTTP, from Python.

with Client("http://127.0.0.1:8080", key="fxs_...") as shop:
    shop.add({"red-shoe": "photos/red.jpg"}, {"red-shoe": {"label": "shoe"}})
    for hit in shop.search("query.jpg", k=5).hits:
        print(hit.id, hit.score, hit.version)
"""

from __future__ import annotations

import base64
import io
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import ACTIONS, FixstarError, InputError, MissingExtraError, NextStep, plural

try:
    from fixstar.service.schemas import (
        Added,
        BadImage,
        Check,
        Deleted,
        Deployment,
        DriftMap,
        EmbeddingResponse,
        Item,
        ItemCount,
        ItemPage,
        Job,
        Rollback,
        SearchResponse,
        Status,
        Version,
    )
except ImportError:
    raise MissingExtraError("pydantic", "service", "the client") from None

if TYPE_CHECKING:
    import httpx
    from PIL import Image

    Picture = str | Path | bytes | Image.Image

Answer = TypeVar("Answer")
Page = TypeVar("Page", ItemPage, ItemCount)

_RETRIED = (429, 503)
_PAGE = 500
_NAMED = 5  # images that a message names


class ServiceError(FixstarError):
    """The service refused or failed. ``status`` is the HTTP status; None if the service could not be reached.

    ``problem`` is the problem's stable type, such as ``/problems/not-compatible``.
    """

    def __init__(
        self,
        title: str,
        detail: str = "",
        hint: str = "",
        status: int | None = None,
        problem: str = "about:blank",
        next_steps: Iterable[NextStep] = (),
    ) -> None:
        seen = ": ".join(filter(None, (title, detail)))
        super().__init__(". ".join(filter(None, (seen, hint))), *next_steps)
        self.title = title
        self.detail = detail
        self.hint = hint
        self.status = status
        self.problem = problem

    @classmethod
    def of(cls, body: Mapping[str, Any], status: int | None = None) -> ServiceError:
        """The error that a problem+json document describes."""
        steps = [
            NextStep.from_json(step)
            for step in body.get("next_steps", ())
            if step["action"] in ACTIONS
        ]
        return ServiceError(
            title=str(body.get("title") or ""),
            detail=str(body.get("detail") or ""),
            hint=str(body.get("hint") or ""),
            status=body.get("status", status),
            problem=body.get("type", "about:blank"),
            next_steps=steps,
        )


class ImagesLeftOutError(ServiceError):
    """Some images or texts could not be used: ``bad`` lists them with reasons.

    ``added`` are the ids of the others, which are stored.
    """

    def __init__(
        self,
        added: tuple[str, ...],
        bad: tuple[BadImage, ...],
        status: int | None = 200,
        kind: str = "image",
    ) -> None:
        named = "; ".join(f"{one.title}: {one.reason}" for one in bad[:_NAMED])
        if len(bad) > _NAMED:
            named += f"; and {len(bad) - _NAMED} more"
        stored = "nothing was stored"
        hint = ""
        if added:
            stored = f"the other {len(added):,} are stored"
            hint = "send these again"
        if added and kind == "image":
            hint += "; add(..., leave_out=True) names them in its answer instead"
        title = f"{len(bad):,} of {plural(len(added) + len(bad), kind)} cannot be used, {stored}"
        super().__init__(title, detail=named, hint=hint, status=status)
        self.added = added
        self.bad = bad


class Client:
    """The service at an address, or one ``gallery`` of several there. Threads may share it; close it, or use ``with``.

    Calls that may be repeated are retried when the service is busy (429, 503): after as long as it asks for,
    ``retries`` times, and no longer than ``patience`` seconds in all.
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8080",
        key: str | None = None,
        timeout: float = 60.0,
        retries: int = 3,
        patience: float = 60.0,
        transport: httpx.BaseTransport | None = None,
        gallery: str | None = None,
    ) -> None:
        try:
            import httpx
        except ImportError:
            raise MissingExtraError("httpx", "service", "the client") from None
        if gallery is not None:
            base_url = f"{base_url.rstrip('/')}/g/{quote(gallery, safe='')}"
        headers = {}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        self._http = httpx.Client(
            base_url=base_url, headers=headers, timeout=timeout, transport=transport
        )
        self._retries = retries
        self._patience = patience

    # --- search

    def search(
        self,
        image: Picture,
        k: int = 10,
        where: Mapping[str, Any] | None = None,
        exact: bool = True,
        min_score: float | None = None,
        version: str | None = None,
    ) -> SearchResponse:
        """The items nearest to an image: a path, the bytes of a file, or a PIL image.

        With a ``version`` that one alone embeds the query, deployed or not.
        """
        params = _given(where, k=k, exact=exact, min_score=min_score, version=version)
        return self._search_with("image", (_file_name(image), _content(image)), params)

    def search_text(
        self,
        text: str,
        k: int = 10,
        where: Mapping[str, Any] | None = None,
        exact: bool = True,
        min_score: float | None = None,
        version: str | None = None,
    ) -> SearchResponse:
        """The items nearest to a text, of a service whose models read texts; the rest is as in ``search``."""
        params = _given(where, k=k, exact=exact, min_score=min_score, version=version)
        return self._search_with("text", (None, text), params)

    def _search_with(
        self, field: str, content: tuple[Any, Any], params: Mapping[str, Any]
    ) -> SearchResponse:
        """Search with one field of a form: an image or a text."""
        files = {field: content}
        return self._ask(
            SearchResponse, "POST", "/v1/search", again=True, files=files, params=params
        )

    def search_batch(
        self,
        images: Sequence[Picture],
        k: int = 10,
        where: Mapping[str, Any] | None = None,
        exact: bool = True,
        min_score: float | None = None,
    ) -> list[SearchResponse]:
        """The items nearest to each of several images."""
        content = {
            **_upload(images, None),
            "params": _given(where, k=k, exact=exact, min_score=min_score),
        }
        return self._ask(list[SearchResponse], "POST", "/v1/search/batch", again=True, **content)

    def search_examples(
        self,
        positive: Sequence[str] = (),
        negative: Sequence[str] = (),
        positive_images: Sequence[Picture] = (),
        negative_images: Sequence[Picture] = (),
        k: int = 10,
        where: Mapping[str, Any] | None = None,
        exact: bool = True,
        min_score: float | None = None,
    ) -> SearchResponse:
        """The items most like the positive examples and unlike the negative ones: ids of items, and images."""
        sides = {"positive": (positive, positive_images), "negative": (negative, negative_images)}
        examples = {
            name: {
                "ids": list(ids),
                "images": [base64.b64encode(_content(image)).decode() for image in images],
            }
            for name, (ids, images) in sides.items()
        }
        query = {**examples, "k": k, "where": where, "exact": exact, "min_score": min_score}
        return self._ask(SearchResponse, "POST", "/v1/search/examples", again=True, json=query)

    def search_vector(
        self,
        vector: Sequence[float],
        version: str | None = None,
        k: int = 10,
        where: Mapping[str, Any] | None = None,
        exact: bool = True,
        min_score: float | None = None,
    ) -> SearchResponse:
        """The items nearest to a vector that a version made, the deployed one by default.

        It is the short form, which galleries store: ``encoder.encode(images, form="short")``.
        """
        numbers = [float(number) for number in vector]
        query = {
            "vector": numbers,
            "version": version,
            "k": k,
            "where": where,
            "exact": exact,
            "min_score": min_score,
        }
        return self._ask(SearchResponse, "POST", "/v1/search/vector", again=True, json=query)

    def similar(
        self,
        item: str,
        k: int = 10,
        where: Mapping[str, Any] | None = None,
        exact: bool = True,
        min_score: float | None = None,
    ) -> SearchResponse:
        """The items nearest to a stored one."""
        params = _given(where, id=item, k=k, exact=exact, min_score=min_score)
        return self._ask(SearchResponse, "GET", "/v1/item/similar", params=params)

    def embeddings(self, images: Sequence[Picture], model: str) -> NDArray[np.float32]:
        """Unit vectors [N, width] of images by a version: the short form, which galleries store.

        ``model`` is a version, or ``"v2->v1"`` for v2's queries in v1's space, which search v1's vectors elsewhere.
        """
        body = {
            "model": model,
            "input": [base64.b64encode(_content(image)).decode() for image in images],
            "encoding_format": "base64",
        }
        made = self._ask(EmbeddingResponse, "POST", "/v1/embeddings", again=True, json=body)
        rows = [base64.b64decode(str(one.embedding)) for one in made.data]
        return np.stack([np.frombuffer(row, "<f4") for row in rows])

    # --- items

    def add(
        self,
        images: Mapping[str, Picture] | Sequence[Picture],
        payloads: Mapping[str, Mapping[str, Any]] | Sequence[Mapping[str, Any]] | None = None,
        leave_out: bool = False,
    ) -> Added:
        """Store images, by id or with ids made up by the service; on disk when this returns.

        ``ImagesLeftOutError`` where some cannot be used: the others are stored. With ``leave_out`` those are named in
        the answer's ``bad`` instead; where none at all can be used it is an error in any case.
        """
        again = isinstance(
            images, Mapping
        )  # with ids of its own a repeated call stores nothing twice
        added = self._ask(Added, "POST", "/v1/items", again=again, **_upload(images, payloads))
        if added.bad and not leave_out:
            raise ImagesLeftOutError(added.added, added.bad)
        return added

    def add_texts(
        self,
        texts: Mapping[str, str] | Sequence[str],
        payloads: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Added:
        """Store texts, by id or with ids made up by the service; on disk when this returns.

        ``ImagesLeftOutError`` where some cannot be used: the others are stored. ``payloads`` are by id.
        """
        named: list[tuple[str | None, str]] = [(None, text) for text in texts]
        if isinstance(texts, Mapping):
            named = list(texts.items())
        items = []
        for name, text in named:
            payload = (payloads or {}).get(name or "", {})
            items.append({"id": name, "text": text, "payload": dict(payload)})
        again = isinstance(
            texts, Mapping
        )  # with ids of its own a repeated call stores nothing twice
        added = self._ask(Added, "POST", "/v1/items/texts", again=again, json={"items": items})
        if added.bad:
            raise ImagesLeftOutError(added.added, added.bad, kind="text")
        return added

    def add_later(
        self,
        images: Mapping[str, Picture] | Sequence[Picture],
        payloads: Mapping[str, Mapping[str, Any]] | Sequence[Mapping[str, Any]] | None = None,
    ) -> Job:
        """Hand over images to be stored by a job; they are safe when this returns, and found when the job is done."""
        again = isinstance(images, Mapping)
        return self._ask(Job, "POST", "/v1/items/async", again=again, **_upload(images, payloads))

    def item(self, item: str) -> Item:
        """One item."""
        return self._ask(Item, "GET", "/v1/item", params={"id": item})

    def items(
        self,
        version: str | None = None,
        after: str | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> Iterator[Item]:
        """All items, or those of one version or with such a payload, sorted by id, behind ``after``."""
        for page in self._pages(
            ItemPage, "/v1/items", where, after=after, version=version, limit=_PAGE
        ):
            yield from page.items

    def update(self, item: str, payload: Mapping[str, Any], revision: str | None = None) -> Item:
        """Change payload fields of an item; its image and vector stay. None removes a field.

        With a ``revision``, the change is refused (412) if the item has another one by now.
        """
        headers = {}
        if revision is not None:
            headers["If-Match"] = f'"{revision}"'
        body = {"payload": dict(payload)}
        return self._ask(
            Item, "PATCH", "/v1/item", again=True, params={"id": item}, json=body, headers=headers
        )

    def count(self, where: Mapping[str, Any] | None = None, version: str | None = None) -> int:
        """How many items have such a payload."""
        return sum(
            part.count for part in self._pages(ItemCount, "/v1/items/count", where, version=version)
        )

    def facets(
        self, field: str, where: Mapping[str, Any] | None = None, version: str | None = None
    ) -> dict[str, int]:
        """How many items have each value of a payload field, most frequent first."""
        seen = Counter[str]()
        for part in self._pages(ItemCount, "/v1/items/count", where, version=version, field=field):
            seen.update(part.values)
        return dict(seen.most_common())

    def _pages(
        self,
        kind: type[Page],
        path: str,
        where: Mapping[str, Any] | None,
        after: str | None = None,
        **wanted: Any,
    ) -> Iterator[Page]:
        """All pages of a paged answer."""
        while True:
            page = self._ask(kind, "GET", path, params=_given(where, after=after, **wanted))
            yield page
            after = page.next
            if after is None:
                return

    def delete(self, *items: str) -> int:
        """Delete items, all at once; how many there were."""
        return self._ask(
            Deleted, "POST", "/v1/items/delete", again=True, json={"ids": list(items)}
        ).deleted

    # --- versions

    def status(self) -> Status:
        """The state of the workspace."""
        return self._ask(Status, "GET", "/v1/status")

    def versions(self) -> list[Version]:
        """All versions, oldest first."""
        return self._ask(list[Version], "GET", "/v1/versions")

    def check(
        self,
        version: str,
        relevant: Mapping[str, Mapping[str, float]] | None = None,
        **rules: float | str,
    ) -> Job:
        """Check a version against all live vectors, in a job. ``confidence`` and ``tolerance`` are fractions.

        ``data`` is the name of labelled images that the operator chose, ``held-out`` for those held out at training.
        ``weight`` is a translation's weight to judge; ``refit`` fits translations again, on a ``sample`` of items.
        ``relevant`` has the text of each query, with the grades of the stored items that it should find.
        """
        wanted: dict[str, Any] = dict(rules)
        if relevant is not None:
            wanted["relevant"] = [
                {"text": text, "items": dict(items)} for text, items in relevant.items()
            ]
        return self._ask(Job, "POST", f"/v1/versions/{quote(version, safe='')}/check", json=wanted)

    def drift(self, old: str, new: str, limit: int = 150) -> DriftMap:
        """Where a version puts a sample of the stored items, beside an older one, in one plane."""
        return self._ask(
            DriftMap, "GET", "/v1/drift", params={"old": old, "new": new, "limit": limit}
        )

    def last_check(self, version: str) -> Check:
        """What the gate last found out about a version, with the most evidence."""
        return self._ask(Check, "GET", f"/v1/versions/{quote(version, safe='')}/check")

    def checks(self, version: str) -> list[Check]:
        """All checks of a version, oldest first."""
        return self._ask(list[Check], "GET", f"/v1/versions/{quote(version, safe='')}/checks")

    def deploy(
        self,
        version: str,
        force: str | None = None,
        deployed: str | None = None,
        queries: str = "checked",
    ) -> Deployment:
        """Let queries and new items use a version; ``force`` is a reason to do without a passed check.

        ``deployed`` is the version that you believe is deployed: where another one is, nothing is moved (409).
        ``queries`` says who asks old vectors: "checked", "one" (the new version alone) or "old" (their own models).
        """
        wanted = {"version": version, "force": force, "deployed": deployed, "queries": queries}
        return self._ask(Deployment, "POST", "/v1/deploy", json=wanted)

    def rollback(self, deployed: str | None = None, to: str | None = None) -> Rollback:
        """Back to the version deployed before; from ``deployed`` and to ``to``, where given, or not at all (409)."""
        return self._ask(Rollback, "POST", "/v1/rollback", json={"deployed": deployed, "to": to})

    def backfill(
        self,
        budget: str = "10%",
        order: str = "auto",
        rate: float | None = None,
        anyway: bool = False,
    ) -> Job:
        """Re-embed older items with the deployed version, in a job.

        The job fails if that is predicted to lower the accuracy, unless ``anyway``.
        """
        wanted = {"budget": budget, "order": order, "rate": rate, "anyway": anyway}
        return self._ask(Job, "POST", "/v1/backfill", json=wanted)

    def snapshot(self) -> Job:
        """Copy the workspace to where the operator wants snapshots, in a job."""
        return self._ask(Job, "POST", "/v1/snapshot")

    def train(self, data: str, **settings: Any) -> Job:
        """Train the first version on a folder below the one that the operator chose, in a job.

        ``settings`` are ``backbone``, ``capacity``, ``method``, ``options``, ``epochs``, ``learning_rate``, ``seed``
        and ``hold_out``.
        """
        return self._ask(Job, "POST", "/v1/train", json={"data": data, **settings})

    def upgrade(self, data: str | None = None, **settings: Any) -> Job:
        """Train the next version on such a folder, or on the stored items with label and image, in a job.

        ``settings`` are ``method``, ``options``, ``epochs``, ``learning_rate``, ``backbone``, ``seed``, ``hold_out``
        and ``trials``; the last version's by default.
        """
        return self._ask(Job, "POST", "/v1/upgrade", json={"data": data, **settings})

    # --- jobs

    def job(self, job: str | Job) -> Job:
        """A job as it is now."""
        return self._ask(Job, "GET", f"/v1/jobs/{_job_name(job)}")

    def cancel(self, job: str | Job) -> Job:
        """End a job after its current batch."""
        return self._ask(Job, "POST", f"/v1/jobs/{_job_name(job)}/cancel", again=True)

    def wait(self, job: str | Job, timeout: float | None = None, every: float = 0.5) -> Job:
        """The job once it is done. ``ServiceError`` where it failed or was cancelled, or takes longer than allowed."""
        began = time.monotonic()
        seen = self.job(job)
        while not seen.has_ended:
            if timeout is not None and time.monotonic() >= began + timeout:
                raise ServiceError(
                    "The job is still running",
                    f"{seen.id} is {seen.state} after {timeout:g} s",
                    "wait again",
                )
            time.sleep(every)
            seen = self.job(job)
        if seen.state != "done":
            if seen.error is not None:
                raise ServiceError.of(seen.error.model_dump())
            raise ServiceError(f"The job was {seen.state}", seen.message)
        return seen

    # --- the wire

    def _ask(
        self, kind: type[Answer], method: str, path: str, again: bool = False, **content: Any
    ) -> Answer:
        """Send a request. ``again``: it may be repeated, as every GET may."""
        import httpx
        from pydantic import TypeAdapter

        tries = 1
        if again or method == "GET":
            tries += self._retries
        end = time.monotonic() + self._patience
        while True:
            try:
                answer = self._http.request(method, path, **content)
            except httpx.HTTPError as error:
                hint = "is it running, and is this its address?"
                raise ServiceError(
                    "The service cannot be reached", f"{self._http.base_url}: {error}", hint
                ) from error
            tries -= 1
            pause = _pause(answer)
            if answer.status_code not in _RETRIED or not tries or time.monotonic() + pause > end:
                return TypeAdapter(kind).validate_python(_answered(answer))
            time.sleep(pause)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _answered(answer: httpx.Response) -> Any:
    try:
        content = answer.json()
    except ValueError:
        content = None
    if answer.is_success and content is not None:
        return content
    if not isinstance(content, dict) or "title" not in content:
        content = {"title": f"The answer was {answer.status_code}, and not of a fixstar service"}
    if content.get("bad"):
        bad = tuple(BadImage.model_validate(one) for one in content["bad"])
        kind = "text" if content.get("type") == "/problems/no-usable-text" else "image"
        raise ImagesLeftOutError(added=(), bad=bad, status=answer.status_code, kind=kind)
    raise ServiceError.of(content, answer.status_code)


def _pause(answer: httpx.Response) -> float:
    """The seconds to wait, from Retry-After."""
    wanted = answer.headers.get("Retry-After", "")
    if wanted.isdecimal():
        return float(wanted)
    return 1.0


def _given(where: Mapping[str, Any] | None, **wanted: Any) -> dict[str, Any]:
    """Query parameters: those that are not None, with the filter as JSON."""
    given = {name: value for name, value in wanted.items() if value is not None}
    if where is not None:
        given["where"] = json.dumps(dict(where))
    return given


def _upload(images: Any, payloads: Any) -> dict[str, Any]:
    """Images, ids and payloads as a form. Both by id, or both in order."""
    if payloads is not None and isinstance(payloads, Mapping) != isinstance(images, Mapping):
        raise InputError("images and payloads are either both by id or both lists")
    data: dict[str, str] = {}
    if isinstance(images, Mapping):
        data["ids"] = json.dumps(list(images))
        if payloads is not None:
            payloads = _in_order(payloads, images)
        images = images.values()
    if payloads is not None:
        data["payloads"] = json.dumps(list(payloads))
    files = [("images", (_file_name(one), _content(one))) for one in images]
    return {"files": files, "data": data}


def _in_order(payloads: Mapping[str, Any], images: Mapping[str, Any]) -> list[Any]:
    """Payloads by id, in the order of the images."""
    for name in payloads:
        if name not in images:
            raise InputError(f"there is a payload for {name!r}, but no image")
    return [payloads.get(name, {}) for name in images]


def _file_name(image: Picture) -> str:
    """The name by which the service reports an image that it cannot use."""
    if isinstance(image, (str, Path)):
        return Path(image).name
    return "image"


def _content(image: Picture) -> bytes:
    if isinstance(image, bytes):
        return image
    if isinstance(image, (str, Path)):
        try:
            return Path(image).read_bytes()
        except OSError as error:
            raise InputError(f"{image} cannot be read: {error.strerror or error}") from error
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _job_name(job: str | Job) -> str:
    if not isinstance(job, str):
        job = job.id
    return quote(job, safe="")
