"""Images, or texts, that come at the same time are embedded together, and queries searched together.

A query waits a few milliseconds for others that are being decoded, or, under load, until the batch before it is done:
the busier the service, the larger the batches. One thread embeds while another searches with the previous batch; if no
query waits, the first one searches too, because handing over costs more than it gains. Each answer comes from one
version, the one that was deployed when its batch began.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar, Unpack

import numpy as np
from fastapi.concurrency import run_in_threadpool
from numpy.typing import NDArray

from fixstar.errors import ImageError
from fixstar.gallery import SearchOptions, SearchRequest, SearchResult
from fixstar.gallery.filters import filter_key
from fixstar.images import Pixels, Preprocessing
from fixstar.models import Encoder
from fixstar.service.intake import Intake
from fixstar.service.keys import calling
from fixstar.service.monitoring import Metrics
from fixstar.service.problems import Problem
from fixstar.service.settings import ServiceSettings
from fixstar.texts import Prompts, checked_text
from fixstar.workspace import Move, Workspace
from fixstar.workspace.items import LocalEmbedder

_CALLERS = 4  # that may have as many queries waiting as is allowed, at a time

Result = TypeVar("Result")
_Vectors = dict[str, NDArray[np.float32]]  # by the version that made them
_Answer = SearchResult | _Vectors | Exception
_Rows = list[_Vectors | Exception]  # of the queries of a batch


@dataclass(frozen=True)
class _Query:
    """A query that waits. ``pixels`` are as one version takes them; another may need ``data`` again. A text is both.

    Without ``models`` the deployed ones embed it. Without a ``request`` the vectors are the answer. ``move`` is the
    deployment that answers, by default the one when its batch is embedded.
    """

    data: bytes | str
    pixels: Pixels | str
    inputs: Preprocessing | Prompts
    models: tuple[str, ...]
    request: SearchRequest | None
    move: Move | None
    answer: asyncio.Future[Any]

    def finish(self, answer: _Answer) -> None:
        """Deliver the answer, unless the caller has gone."""
        if self.answer.done():
            return
        if isinstance(answer, Exception):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


def _group(request: SearchRequest, move: Move) -> tuple[int, int, str | None, bool, float | None]:
    """Queries of the same group are searched together."""
    where = None
    if request.where is not None:
        where = filter_key(request.where)
    return id(move), request.k, where, request.exact, request.min_score


class QueryBatcher:
    """Embeds images, and answers queries, in batches. For one event loop."""

    def __init__(
        self, workspace: Workspace, settings: ServiceSettings, metrics: Metrics, intake: Intake
    ) -> None:
        self._workspace = workspace
        self._settings = settings
        self._metrics = metrics
        self._intake = intake
        self._queue: asyncio.Queue[_Query] = asyncio.Queue()
        self._inside = 0
        self._of_caller: Counter[str] = Counter()
        self._deployed = ""  # when the last batch was embedded
        # What each version reads. If another is deployed meanwhile, see _pixels.
        self._known: dict[str, Preprocessing | Prompts] = {}
        self._embedding = ThreadPoolExecutor(1, thread_name_prefix="fixstar-embed")
        self._searching = ThreadPoolExecutor(1, thread_name_prefix="fixstar-search")
        self._batches = asyncio.Semaphore(2)  # one is embedded while one is searched
        self._tasks: set[asyncio.Task[None]] = set()
        metrics.waiting.set_function(lambda: self._inside)

    def start(self) -> None:
        """Start answering."""
        self._spawn(self._collect())

    async def stop(self) -> None:
        """Stop. Queries that still wait are told to retry."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while not self._queue.empty():
            self._queue.get_nowait().finish(_busy("the service is stopping"))
        for pool in (self._embedding, self._searching):
            await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)

    async def search(
        self,
        data: bytes | str,
        request: SearchRequest | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """The nearest items of an image or a text."""
        found: SearchResult = await self._answer_to(data, (), SearchRequest.of(request, **options))
        return found

    async def search_together(
        self, images: Sequence[bytes], request: SearchRequest
    ) -> list[SearchResult | BaseException]:
        """The nearest items of each image, or why there are none: all by what is deployed now."""
        move, models = await run_in_threadpool(self._workspace.serving.asking)
        asked = (
            self._answer_to(data, tuple(models), request=request, move=move) for data in images
        )
        found: list[SearchResult | BaseException] = await asyncio.gather(
            *asked, return_exceptions=True
        )
        return found

    async def embed(self, data: bytes | str, models: tuple[str, ...]) -> _Vectors:
        """The short forms of an image or a text by one or more versions."""
        made: _Vectors = await self._answer_to(data, models)
        return made

    async def _answer_to(
        self,
        data: bytes | str,
        models: tuple[str, ...],
        request: SearchRequest | None = None,
        move: Move | None = None,
    ) -> Any:
        caller = calling()
        if (
            self._of_caller[caller] >= self._settings.waiting
            or self._inside >= _CALLERS * self._settings.waiting
        ):
            self._metrics.refused.inc()
            raise _busy(f"{self._of_caller[caller]} queries are waiting already")
        self._inside += 1
        self._of_caller[caller] += 1
        try:
            first = models[0] if models else self._deployed
            wanted = self._known.get(first)
            if wanted is None:
                wanted = await run_in_threadpool(self._inputs_of, models)  # may load a model
            query = _Query(
                data=data,
                pixels=await self._read(data, wanted),
                inputs=wanted,
                models=models,
                request=request,
                move=move,
                answer=asyncio.get_running_loop().create_future(),
            )
            self._queue.put_nowait(query)
            return await query.answer
        finally:
            self._inside -= 1
            self._of_caller[caller] -= 1
            if not self._of_caller[caller]:
                del self._of_caller[caller]

    def _inputs_of(self, models: tuple[str, ...]) -> Preprocessing | Prompts:
        name = models[0] if models else self._workspace.deployed()
        return self._workspace.serving.encoder(name).inputs

    async def _read(self, data: bytes | str, wanted: Preprocessing | Prompts) -> Pixels | str:
        """The input decoded for the model, or a problem."""
        if isinstance(wanted, Prompts):
            if isinstance(data, bytes):
                raise Problem(
                    "wrong-kind", "this gallery holds texts, and an image came", "send a text"
                )
            return checked_text(data, name="the text")
        if isinstance(data, str):
            raise Problem(
                "wrong-kind", "this gallery holds images, and a text came", "send an image"
            )
        return (await self._intake.read(data, wanted)).pixels

    async def _collect(self) -> None:
        """Make batches and embed them, until cancelled; where more wait, another task searches with the vectors."""
        while True:
            await self._batches.acquire()
            batch: list[_Query] = []
            try:
                await self._fill(batch)
                batch = [query for query in batch if not query.answer.done()]
                move, rows, answers = await _in(
                    self._embedding, functools.partial(self._work, batch)
                )
            except BaseException as error:
                self._batches.release()
                self._fail(batch, error)
                if not isinstance(error, Exception):
                    raise
            else:
                if answers is None:
                    self._spawn(self._search(batch, move, rows))
                else:
                    self._deliver(batch, answers)
                    self._batches.release()

    async def _fill(self, batch: list[_Query]) -> None:
        """Wait for a first query, then a moment for others that have come."""
        batch.append(await self._queue.get())
        if self._inside == 1:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.batch_wait):
                while len(batch) < min(self._settings.batch, self._inside):
                    batch.append(await self._queue.get())

    def _work(self, batch: Sequence[_Query]) -> tuple[Move, _Rows, list[_Answer] | None]:
        """Embed a batch, and search too if no other query waits to be embedded."""
        move, rows = self._vectors(batch)
        if not self._queue.empty():
            return move, rows, None
        return move, rows, self._answers(batch, move, rows)

    def _vectors(self, batch: Sequence[_Query]) -> tuple[Move, _Rows]:
        """The deployment, and for each query a vector per model, or the error."""
        serving = self._workspace.serving
        move, deployed = serving.asking()
        self._deployed = move.version
        if batch:
            self._metrics.batch_size.observe(len(batch))
        rows: _Rows = [{} for _ in batch]
        wanted = [query.models or deployed for query in batch]
        for name in dict.fromkeys(chain(*wanted)):
            numbers = [number for number, models in enumerate(wanted) if name in models]
            made = self._by_model(name, [batch[number] for number in numbers])
            for number, vector in zip(numbers, made, strict=True):
                row = rows[number]
                if not isinstance(row, dict):
                    continue  # another model could not embed it
                if isinstance(vector, Exception):
                    rows[number] = vector
                else:
                    row[name] = vector
        return move, rows

    def _by_model(
        self, name: str, queries: Sequence[_Query]
    ) -> list[NDArray[np.float32] | Exception]:
        """Vectors of queries by one version. If it cannot be loaded, only these queries fail."""
        try:
            encoder = self._workspace.serving.encoder(name)
        except Exception as error:
            return [error for _ in queries]
        read = [self._pixels(query, encoder.inputs) for query in queries]
        self._known[name] = encoder.inputs
        good = [pixels for pixels in read if not isinstance(pixels, Exception)]
        made = iter(_embedded(encoder, good))
        self._metrics.embedded.labels(name, "query").inc(len(good))
        return [pixels if isinstance(pixels, Exception) else next(made) for pixels in read]

    def _pixels(self, query: _Query, inputs: Preprocessing | Prompts) -> Pixels | str | Exception:
        """The pixels that a version takes; another was deployed meanwhile, perhaps with another size."""
        if query.inputs == inputs or isinstance(query.data, str) or isinstance(inputs, Prompts):
            return query.pixels
        try:
            return self._intake.processes.pixels(query.data, inputs)
        except ImageError as error:
            return error

    async def _search(self, batch: Sequence[_Query], move: Move, rows: _Rows) -> None:
        try:
            answers = await _in(
                self._searching, functools.partial(self._answers, batch, move, rows)
            )
            self._deliver(batch, answers)
        except BaseException as error:
            self._fail(batch, error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._batches.release()

    def _answers(self, batch: Sequence[_Query], move: Move, rows: _Rows) -> list[_Answer]:
        """Search with the vectors of a batch, in as few calls as possible; a query without a request gets its own."""
        answers: list[_Answer] = list(rows)
        groups: dict[Any, dict[int, _Vectors]] = {}
        for number, (query, row) in enumerate(zip(batch, rows, strict=True)):
            if isinstance(row, dict) and query.request is not None:
                groups.setdefault(_group(query.request, query.move or move), {})[number] = row
        for group in groups.values():
            first = batch[min(group)]
            vectors = {
                name: np.stack([row[name] for row in group.values()]) for name in group[min(group)]
            }
            try:
                found = self._workspace.serving.search_queries(
                    first.move or move, vectors, first.request
                )
            except Exception as error:
                for number in group:
                    answers[number] = error
                continue
            for number, hits in zip(group, found.hits, strict=True):
                answers[number] = found._replace(hits=[hits])
        return answers

    def _deliver(self, batch: Sequence[_Query], answers: Sequence[_Answer]) -> None:
        for query, answer in zip(batch, answers, strict=True):
            query.finish(answer)

    def _fail(self, queries: Sequence[_Query], error: BaseException) -> None:
        for query in queries:
            if isinstance(error, Exception):
                query.finish(error)
            else:
                query.finish(_busy("the service is stopping"))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def deployed_encoder(workspace: Workspace) -> tuple[str, Encoder]:
    """The deployed version, and its encoder."""
    version = workspace.deployed()
    return version, workspace.serving.encoder(version)


def _embedded(
    encoder: Encoder, pixels: Sequence[Pixels | str]
) -> list[NDArray[np.float32] | Exception]:
    """The vector of each image or text. If a batch fails, each of its inputs is tried alone."""
    if not pixels:
        return []
    shown: Any = list(pixels)
    if encoder.reads != "texts":
        shown = np.stack(shown)
    try:
        vectors = LocalEmbedder(encoder).one(shown, role="query").vectors
    except Exception as error:
        if len(pixels) == 1:
            return [error]
        return [row for one in pixels for row in _embedded(encoder, [one])]
    empty = ImageError("image", "the model returned non-finite values")
    return [vector if np.isfinite(vector).all() else empty for vector in vectors]


def _busy(detail: str) -> Problem:
    return Problem("busy", detail, headers={"Retry-After": "1"})


async def _in(pool: ThreadPoolExecutor, work: Callable[[], Result]) -> Result:
    return await asyncio.get_running_loop().run_in_executor(pool, work)
