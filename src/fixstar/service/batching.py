"""Queries that come at the same time are embedded and searched together.

A query waits a few milliseconds for others, or, under load, until the batch before it is done: the busier the service,
the larger the batches. One thread embeds while another searches with the previous batch. Each answer comes from one
version, the one that was deployed when its batch began.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import ImageError
from fixstar.gallery import SearchOptions, SearchRequest, SearchResult
from fixstar.gallery.filters import filter_key
from fixstar.images import Pixels, Preprocessing, read_pixels
from fixstar.models import Encoder
from fixstar.service.intake import Intake
from fixstar.service.monitoring import Metrics
from fixstar.service.problems import Problem
from fixstar.service.settings import ServiceSettings
from fixstar.workspace import Move, Workspace
from fixstar.workspace.items import LocalEmbedder

Result = TypeVar("Result")
_Vectors = dict[str, NDArray[np.float32]]  # by the version that made them


@dataclass(frozen=True)
class _Query:
    """A query that waits. ``pixels`` are as one version takes them; another may need ``data`` again."""

    data: bytes
    pixels: Pixels
    preprocessing: Preprocessing
    request: SearchRequest
    answer: asyncio.Future[SearchResult]

    def group(self) -> tuple[int, str, bool]:
        """Queries of the same group are searched together."""
        where = self.request.where
        return self.request.k, "" if where is None else filter_key(where), self.request.exact

    def finish(self, answer: SearchResult | Exception) -> None:
        """Deliver the answer, unless nobody waits for it any more."""
        if self.answer.done():
            return
        if isinstance(answer, Exception):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


class QueryBatcher:
    """Answers image queries in batches. For one event loop."""

    def __init__(self, workspace: Workspace, settings: ServiceSettings, metrics: Metrics, intake: Intake) -> None:
        self._workspace, self._settings, self._metrics, self._intake = workspace, settings, metrics, intake
        self._queue: asyncio.Queue[_Query] = asyncio.Queue()
        self._inside = 0
        self._embedding = ThreadPoolExecutor(1, thread_name_prefix="fixstar-embed")
        self._searching = ThreadPoolExecutor(1, thread_name_prefix="fixstar-search")
        self._batches = asyncio.Semaphore(2)  # one is embedded while one is searched
        self._tasks: set[asyncio.Task[None]] = set()
        metrics.waiting.set_function(lambda: self._inside)

    def start(self) -> None:
        """Begin to answer."""
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
        self, data: bytes, request: SearchRequest | None = None, **options: Unpack[SearchOptions]
    ) -> SearchResult:
        """The nearest items of an image."""
        wanted = SearchRequest.of(request, **options)
        if self._inside >= self._settings.waiting:
            self._metrics.refused.inc()
            raise _busy(f"{self._inside} queries are waiting already")
        self._inside += 1
        try:
            read = await self._intake.read(data, lambda: deployed_encoder(self._workspace)[1].preprocessing)
            answer: asyncio.Future[SearchResult] = asyncio.get_running_loop().create_future()
            self._queue.put_nowait(_Query(data, read.pixels, read.preprocessing, wanted, answer))
            return await answer
        finally:
            self._inside -= 1

    async def _collect(self) -> None:
        """Make batches and embed them, until cancelled; another task searches with the vectors of each."""
        while True:
            await self._batches.acquire()
            batch: list[_Query] = []
            try:
                await self._fill(batch)
                batch = [query for query in batch if not query.answer.done()]
                move, rows = await _in(self._embedding, functools.partial(self._vectors, batch))
            except BaseException as error:
                self._batches.release()
                self._fail(batch, error)
                if not isinstance(error, Exception):
                    raise
            else:
                self._spawn(self._search(batch, move, rows))

    async def _fill(self, batch: list[_Query]) -> None:
        """Wait for a first query, then a moment for others."""
        batch.append(await self._queue.get())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.batch_wait):
                while len(batch) < self._settings.batch:
                    batch.append(await self._queue.get())

    def _vectors(self, batch: Sequence[_Query]) -> tuple[Move, list[_Vectors | Exception]]:
        """What is deployed, and what its models make of each query: a vector each, or why there is none."""
        serving = self._workspace.serving
        move, models = serving.asking()
        if batch:
            self._metrics.batch_size.observe(len(batch))
        rows: list[_Vectors | Exception] = [{} for _ in batch]
        for name in models:
            encoder = serving.encoder(name)
            read = [_pixels(query, encoder.preprocessing) for query in batch]
            good = [pixels for pixels in read if not isinstance(pixels, Exception)]
            made = iter(_embedded(encoder, good))
            self._metrics.embedded.labels(name, "query").inc(len(good))
            for number, pixels in enumerate(read):
                vector, row = pixels if isinstance(pixels, Exception) else next(made), rows[number]
                if isinstance(row, dict):
                    rows[number] = vector if isinstance(vector, Exception) else {**row, name: vector}
        return move, rows

    async def _search(self, batch: list[_Query], move: Move, rows: list[_Vectors | Exception]) -> None:
        """Search with the vectors of a batch, in as few calls as possible."""
        try:
            ready: list[tuple[_Query, _Vectors]] = []
            for query, row in zip(batch, rows, strict=True):
                if isinstance(row, Exception):
                    query.finish(row)
                else:
                    ready.append((query, row))
            ready.sort(key=lambda pair: pair[0].group())
            for _, group in groupby(ready, key=lambda pair: pair[0].group()):
                together = list(group)
                queries = [query for query, _ in together]
                vectors = {name: np.stack([row[name] for _, row in together]) for name in together[0][1]}
                await self._answer(queries, move, vectors)
        except BaseException as error:
            self._fail(batch, error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._batches.release()

    async def _answer(self, queries: Sequence[_Query], move: Move, vectors: _Vectors) -> None:
        search = functools.partial(self._workspace.serving.search_queries, move, vectors, queries[0].request)
        try:
            answer = await _in(self._searching, search)
        except Exception as error:
            self._fail(queries, error)
            return
        for query, hits in zip(queries, answer.hits, strict=True):
            query.finish(answer._replace(hits=[hits]))

    def _fail(self, queries: Sequence[_Query], error: BaseException) -> None:
        for query in queries:
            query.finish(error if isinstance(error, Exception) else _busy("the service is stopping"))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def deployed_encoder(workspace: Workspace) -> tuple[str, Encoder]:
    """The deployed version, and its encoder."""
    version = workspace.deployed()
    return version, workspace.serving.encoder(version)


def _pixels(query: _Query, preprocessing: Preprocessing) -> Pixels | Exception:
    """The pixels that a version takes; another was deployed meanwhile, perhaps with another size."""
    if query.preprocessing == preprocessing:
        return query.pixels
    try:
        return read_pixels(query.data, preprocessing)
    except ImageError as error:
        return error


def _embedded(encoder: Encoder, pixels: Sequence[Pixels]) -> list[NDArray[np.float32] | Exception]:
    """The vector of each image. Where one makes the whole batch fail, each is tried alone."""
    if not pixels:
        return []
    try:
        vectors = LocalEmbedder(encoder).one(np.stack(pixels)).vectors  # type: ignore[arg-type]
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
