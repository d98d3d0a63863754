"""Queries that come together are embedded together, and each gets its own answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_clients import async_client, picture
from shops import fitted, passed, pictures, shop

from fixstar.service import batching
from fixstar.service.batching import QueryBatcher
from fixstar.service.intake import Intake
from fixstar.service.monitoring import Metrics
from fixstar.service.problems import Problem
from fixstar.service.settings import ServiceSettings
from fixstar.texts import Role
from fixstar.workspace import Workspace, catalogue
from fixstar.workspace.items import LocalEmbedder


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    made = shop(tmp_path / "shop")
    made.index(catalogue(pictures(tmp_path / "pictures")))
    return made


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of batches that reach the encoder."""
    seen: list[int] = []
    real = LocalEmbedder.one

    def counted(self: LocalEmbedder, images: Any, role: Role = "item") -> Any:
        seen.append(len(images))
        return real(self, images, role)

    monkeypatch.setattr(LocalEmbedder, "one", counted)
    return seen


def run(space: Workspace, work: Callable[[QueryBatcher], Any], **settings: Any) -> Any:
    """Do something with a batcher that runs."""

    async def whole() -> Any:
        chosen = ServiceSettings(**settings)
        intake = Intake(chosen)
        batcher = QueryBatcher(space, chosen, Metrics(), intake)
        batcher.start()
        try:
            return await work(batcher)
        finally:
            await batcher.stop()
            intake.close()

    return asyncio.run(whole())


def test_many_at_once_are_few_calls_with_the_answers_of_one_by_one(
    space: Workspace, sizes: list[int]
) -> None:
    queries = [(picture(i), 1 + i % 3, {"label": "hat"} if i % 2 else None) for i in range(48)]

    async def together(batcher: QueryBatcher) -> Any:
        return await asyncio.gather(
            *(batcher.search(data, k=k, where=where, exact=True) for data, k, where in queries)
        )

    found = run(space, together, batch=16, batch_wait=0.05)
    assert sum(sizes) == 48
    assert len(sizes) <= 8
    assert max(sizes) <= 16
    for (data, k, where), one in zip(queries, found, strict=True):
        truth = space.search([data], k=k, where=where)
        assert one.version == truth.version
        assert [hit.id for hit in one.hits[0]] == [hit.id for hit in truth.hits[0]]
        assert np.allclose(
            [hit.score for hit in one.hits[0]], [hit.score for hit in truth.hits[0]], atol=1e-5
        )


def test_all_models_of_a_deployment_embed_a_batch_once_each(
    tmp_path: Path, sizes: list[int]
) -> None:
    space = shop(tmp_path / "free", free=True)
    space.index(catalogue(pictures(tmp_path / "pictures")))
    sizes.clear()
    fitted(space)
    space.deploy("v2", force="test")
    images = [picture(i) for i in range(12)]

    async def together(batcher: QueryBatcher) -> Any:
        asked = [batcher.search(data, k=1 + i % 2) for i, data in enumerate(images)]
        return await asyncio.gather(
            *asked, batcher.search(picture(9)[:-30]), return_exceptions=True
        )

    *found, bad = run(space, together, batch=16, batch_wait=0.3)
    assert isinstance(bad, Problem)
    assert sum(sizes) == 24  # twelve by v2, twelve by v1
    assert sizes[::2] == sizes[1::2]
    for number, (data, one) in enumerate(zip(images, found, strict=True)):
        truth = space.search([data], k=1 + number % 2)
        assert (one.version, one.models) == ("v2", ("v2", "v1"))
        assert [hit.id for hit in one.hits[0]] == [hit.id for hit in truth.hits[0]]
        assert np.allclose(
            [hit.score for hit in one.hits[0]], [hit.score for hit in truth.hits[0]], atol=1e-5
        )


def test_one_bad_image_or_filter_fails_alone(space: Workspace) -> None:
    async def together(batcher: QueryBatcher) -> Any:
        asked = [batcher.search(picture(i), k=2, where=None, exact=True) for i in range(6)]
        asked.insert(3, batcher.search(picture(9)[:-30], k=2, where=None, exact=True))
        asked.insert(5, batcher.search(picture(9), k=2, where={"label": {"near": 1}}, exact=True))
        return await asyncio.gather(*asked, return_exceptions=True)

    found = run(space, together, batch_wait=0.05)
    assert [place for place, one in enumerate(found) if isinstance(one, Exception)] == [3, 5]


def test_a_filter_with_a_number_that_is_none_fails_alone(space: Workspace) -> None:
    async def work() -> list[int]:
        async with async_client(space, batch_wait=0.1) as (http, _):
            space.serving.encoder("v1")
            filters = [
                None,
                '{"price": {"lt": 5}}',
                '{"price": {"lt": 1e999}}',
                None,
                '{"label": "hat"}',
            ]
            forms: list[dict[str, str]] = [
                {} if where is None else {"where": where} for where in filters
            ]
            asked = [
                http.post("/v1/search", files={"image": picture(i)}, data=form)
                for i, form in enumerate(forms)
            ]
            return [answer.status_code for answer in await asyncio.gather(*asked)]

    assert asyncio.run(work()) == [200, 200, 422, 200, 200]


def test_an_image_that_breaks_the_encoder_fails_alone(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = np.asarray(0)
    real = LocalEmbedder.one

    def fragile(self: LocalEmbedder, images: Any, role: Role = "item") -> Any:
        if any(np.array_equal(one, poison) for one in images):
            raise RuntimeError("out of memory")
        return real(self, images, role)

    async def together(batcher: QueryBatcher) -> Any:
        nonlocal poison
        read = await batcher._intake.read(picture(4), space.serving.encoder("v1").preprocessing)
        poison = read.pixels
        asked = [batcher.search(picture(i), k=2, where=None, exact=True) for i in range(8)]
        return await asyncio.gather(*asked, return_exceptions=True)

    monkeypatch.setattr(LocalEmbedder, "one", fragile)
    found = run(space, together, batch_wait=0.05)
    assert [place for place, one in enumerate(found) if isinstance(one, Exception)] == [4]


def test_a_model_that_makes_no_vector_fails_that_query_alone() -> None:
    class Empty:
        reads = "images"

        def encode(self, images: Any, *_: object, **__: object) -> Any:
            vectors = np.ones((len(images), 2), np.float32)
            vectors[1] = np.nan
            return vectors

    made = batching._embedded(Empty(), [np.zeros((2, 2, 3), np.uint8)] * 3)  # type: ignore[arg-type]
    assert [isinstance(one, Exception) for one in made] == [False, True, False]


def test_too_many_waiting_are_told_to_come_again(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    real = LocalEmbedder.one

    def slow(self: LocalEmbedder, images: Any, role: Role = "item") -> Any:
        release.wait(120)
        return real(self, images, role)

    monkeypatch.setattr(LocalEmbedder, "one", slow)

    async def work() -> None:
        async with async_client(space, waiting=3) as (http, app):
            space.serving.encoder("v1")
            asked = [
                asyncio.create_task(http.post("/v1/search", files={"image": picture(i)}))
                for i in range(3)
            ]
            while app.state.context.batcher._inside < 3:
                await asyncio.sleep(0.01)
            refused = await http.post("/v1/search", files={"image": picture(9)})
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            release.set()
            assert [answer.status_code for answer in await asyncio.gather(*asked)] == [
                200,
                200,
                200,
            ]
            assert (await http.post("/v1/search", files={"image": picture(9)})).status_code == 200

    asyncio.run(work())


def test_who_gives_up_waiting_disturbs_nobody(space: Workspace, sizes: list[int]) -> None:
    async def work(batcher: QueryBatcher) -> Any:
        batcher._inside += 1  # as if one were being decoded: no batch begins without it
        queued: list[Any] = []
        put = batcher._queue.put_nowait

        def counted(query: Any) -> None:
            queued.append(query)
            put(query)

        batcher._queue.put_nowait = counted  # type: ignore[assignment, method-assign]
        leaving = [
            asyncio.create_task(batcher.search(picture(i), k=2, where=None, exact=True))
            for i in range(5)
        ]
        staying = [
            asyncio.create_task(batcher.search(picture(i), k=2, where=None, exact=True))
            for i in range(5)
        ]
        while len(queued) < 10:
            await asyncio.sleep(0.01)
        for task in leaving:
            task.cancel()
        batcher._inside -= 1
        found = await asyncio.gather(
            *staying, batcher.search(picture(5), k=2, where=None, exact=True)
        )
        assert batcher._inside == 0
        return found

    space.serving.encoder("v1")
    found = run(space, work, batch_wait=60)
    assert all(len(one.hits[0]) == 2 for one in found)
    assert sum(sizes) == 6


def test_a_deployment_in_between_gives_each_answer_one_version(space: Workspace) -> None:
    passed(space, "v2", "v1")
    truth = dict.fromkeys(("v1", "v2"), space.serving)

    async def work(batcher: QueryBatcher) -> Any:
        async def ask(i: int) -> Any:
            return i, await batcher.search(picture(i), k=3, where=None, exact=True)

        first = [asyncio.create_task(ask(i)) for i in range(20)]
        await asyncio.sleep(0.02)
        await asyncio.to_thread(space.deploy, "v2")
        second = [asyncio.create_task(ask(i)) for i in range(20, 40)]
        return await asyncio.gather(*first, *second)

    found = run(space, work, batch=4)
    assert {one.version for i, one in found if i >= 20} == {"v2"}
    for i, one in found:
        vectors = truth[one.version].embed(one.version, [picture(i)])
        scores = [hit.score for hit in space.gallery.search(one.version, vectors, k=3)[0]]
        assert np.allclose([hit.score for hit in one.hits[0]], scores, atol=1e-5)


def test_stopping_answers_those_that_wait(space: Workspace) -> None:
    async def work() -> Any:
        settings = ServiceSettings(batch_wait=600.0)
        intake = Intake(settings)
        batcher = QueryBatcher(space, settings, Metrics(), intake)
        batcher.start()
        batcher._inside += 1  # one that is never decoded: the others wait for it
        waiting = [
            asyncio.create_task(batcher.search(picture(i), k=2, where=None, exact=True))
            for i in range(3)
        ]
        await asyncio.sleep(0.3)
        await batcher.stop()
        intake.close()
        return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)

    found = asyncio.run(work())
    assert [isinstance(one, Problem) and one.status for one in found] == [503] * 3
