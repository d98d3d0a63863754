"""Four services behind a balancer: a new model is deployed and each is restarted in turn, and no request fails."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from milvus_server import fresh_url as milvus_url
from postgres_server import fresh_url
from replicas import balanced, replicas
from service_clients import picture
from shops import passed, pictures, shop

from fixstar.workspace import Workspace, catalogue

PHOTOS = [("images", (f"{number}.png", picture(number))) for number in range(8)]


STORES: dict[str, Callable[[], str]] = {
    "postgres": fresh_url,
    "milvus": lambda: milvus_url(fresh_url()),
}


@pytest.fixture(params=STORES)
def space(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Workspace]:
    """Nine items by v1, and v2 ready to be deployed: their spaces are not shared, so v1's queries ask its vectors."""
    Workspace.create(tmp_path / "shop", STORES[request.param]()).close()
    with shop(tmp_path / "shop", free=True) as made:
        made.index(catalogue(pictures(tmp_path / "photos")))
        passed(made, "v2", "v1")
        yield made


class Stream:
    """Threads that ask without a pause until they are stopped; what was answered, and what failed."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.failed: list[str] = []

    def ask(self, request: Callable[[int], Any]) -> None:
        """Repeat a request, which gets its number."""

        def run() -> None:
            number = 0
            while not self._stop.is_set():
                try:
                    request(number)
                except Exception as error:
                    self.failed.append(f"{request.__name__} {number}: {error!r}")
                number += 1

        thread = threading.Thread(target=run)
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        """End, once every request under way is answered."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.long
def test_a_new_model_is_deployed_and_every_service_restarted_without_a_failed_request(
    space: Workspace,
) -> None:
    answers: list[set[str]] = []
    written: list[str] = []
    with replicas(space, 4) as services, balanced(services) as http:

        def search(_: int) -> None:
            answer = http.post("/v1/search/batch", files=PHOTOS).raise_for_status()
            answers.append({f"{one['version']} asked by {one['models']}" for one in answer.json()})

        def write(number: int) -> None:
            name = f"new/{number}"
            http.put(
                "/v1/item", params={"id": name}, files={"image": picture(number)}
            ).raise_for_status()
            written.append(name)

        stream = Stream()
        stream.ask(search)
        stream.ask(search)
        stream.ask(write)
        services[0].restart()
        told = http.post("/v1/deploy", json={"version": "v2"}).raise_for_status().json()
        assert told["version"] == "v2", told
        for service in services[1:]:
            service.restart()
        stream.stop()
        assert not stream.failed
        assert all(len(models) == 1 for models in answers), answers
        assert {next(iter(models)).split()[0] for models in answers} == {"v1", "v2"}
        assert len(written) > 4
        stored = space.gallery.get(written)
        assert stored.keys() == set(written)
        for name in written[:: len(written) // 4]:
            (hits,) = space.gallery.search(
                stored[name].version, stored[name].vector[None], k=len(written) + 9
            )
            assert name in {hit.id for hit in hits}
        told = [service.http.get("/v1/status").json()["deployed"] for service in services]
        assert told == ["v2"] * 4, json.dumps(told)
