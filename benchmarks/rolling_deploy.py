"""A new model deployed to four services behind one address, each restarted in turn, under searches and writes.

The services share a workspace whose gallery is in PostgreSQL; with --store milvus, Milvus searches it. A balancer in
this process gives every connection to the next service, or to the one after it if a connection is refused. v2 is
another model: a translation carries v1's vectors, and both models ask. Searches ask for a batch of images: all its
answers must be of one deployment. Every other round goes back to v1. At the end each item that was written is looked
for by its vector. A failed request or a lost item ends the run with exit code 1.

    python benchmarks/rolling_deploy.py --out benchmarks/results/rolling_deploy_cpu.json
    python benchmarks/rolling_deploy.py --store milvus --out benchmarks/results/rolling_deploy_milvus_cpu.json
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from postgres_server import fresh_url
from replicas import Service, balanced, replicas
from service_clients import picture
from shops import fitted, pictures, shop

from fixstar.durable import replace_json
from fixstar.gallery import Gallery
from fixstar.geometry import unit
from fixstar.workspace import Workspace, catalogue

IMAGES = 4  # of one search
NEAREST = 20  # among which a written item must be: two writers store the same pictures


class Asked(NamedTuple):
    """One request: when it was sent, how long it took, what was wrong with it, and which deployment answered."""

    kind: str
    began: float
    seconds: float
    failure: str
    answered: tuple[str, ...]


class Clients:
    """Threads that search and write through the balancer, each every ``pause`` seconds."""

    def __init__(self, http: httpx.Client, searchers: int, writers: int, pause: float) -> None:
        self._http = http
        self._pause = pause
        self._stop = threading.Event()
        self.asked: list[Asked] = []
        self.written: list[str] = []
        self._threads = [
            *(
                threading.Thread(target=self._repeat, args=("search", self._search, one))
                for one in range(searchers)
            ),
            *(
                threading.Thread(target=self._repeat, args=("write", self._write, one))
                for one in range(writers)
            ),
        ]
        for thread in self._threads:
            thread.start()

    def _repeat(
        self, kind: str, request: Callable[[int, int], tuple[str, ...]], client: int
    ) -> None:
        number = 0
        while not self._stop.wait(self._pause):
            began = time.monotonic()
            failure = ""
            answered: tuple[str, ...] = ()
            try:
                answered = request(client, number)
            except httpx.HTTPError as error:
                failure = repr(error)
            self.asked.append(Asked(kind, began, time.monotonic() - began, failure, answered))
            number += 1

    def _search(self, client: int, number: int) -> tuple[str, ...]:
        first = 100 * client + number
        photos = [("images", (f"{one}.png", picture(first + one))) for one in range(IMAGES)]
        told = self._http.post("/v1/search/batch", files=photos).raise_for_status().json()
        return tuple(sorted({f"{one['version']} by {'+'.join(one['models'])}" for one in told}))

    def _write(self, client: int, number: int) -> tuple[str, ...]:
        name = f"new/{client}/{number}"
        self._http.put(
            "/v1/item", params={"id": name}, files={"image": picture(number)}
        ).raise_for_status()
        self.written.append(name)
        return ()

    def close(self) -> None:
        """Ask no more."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


def gallery_url(store: str) -> str:
    """The address of a gallery that does not exist yet."""
    items = fresh_url()
    if store == "postgres":
        return items
    milvus_server = importlib.import_module("milvus_server")
    place = milvus_server.RUNNING or milvus_server.OwnServer().place
    return str(milvus_server.fresh_url(items, place=place))


def make(path: Path, vectors: int, url: str) -> Workspace:
    """Items by v1, a translation to v2, and as many random vectors as asked."""
    Workspace.create(path, url).close()
    space = shop(path, free=True)
    space.index(catalogue(pictures(path.parent / "photos", 20)))
    fitted(space)
    width = space.gallery.space("v1").width
    stored = unit(np.random.default_rng(0).standard_normal((vectors, width)).astype(np.float32))
    space.gallery.upsert("v1", [f"item-{number:08}" for number in range(vectors)], stored)
    return space


def not_found(gallery: Gallery, names: Sequence[str]) -> list[str]:
    """The items that are not there, or that a search for their own vector does not find."""
    lost = []
    stored = gallery.get(names)
    for name in names:
        if name not in stored:
            lost.append(name)
            continue
        item = stored[name]
        (hits,) = gallery.search(item.version, item.vector[None], k=NEAREST)
        if name not in {hit.id for hit in hits}:
            lost.append(name)
    return lost


Span = tuple[float, float]


def roll(
    http: httpx.Client, services: list[Service], version: str, seconds: float
) -> tuple[Span, Span]:
    """When nothing else was done, and when a version was deployed and each service restarted."""
    began = time.monotonic()
    time.sleep(seconds)
    middle = time.monotonic()
    http.post("/v1/deploy", json={"version": version, "force": "measured"}).raise_for_status()
    for service in services:
        service.restart()
    return (began, middle), (middle, time.monotonic())


def summary(asked: list[Asked], spans: Sequence[Span]) -> dict[str, Any]:
    """Requests that ended in some spans, and how long they took in milliseconds."""
    within = [
        one for begin, end in spans for one in asked if begin <= one.began + one.seconds < end
    ]
    found: dict[str, Any] = {"seconds": round(sum(end - begin for begin, end in spans), 1)}
    for kind in ("search", "write"):
        times = 1000 * np.array([one.seconds for one in within if one.kind == kind])
        p50, p99 = np.percentile(times, [50, 99]).round(1).tolist()
        found[kind] = {
            "requests": len(times),
            "p50_ms": p50,
            "p99_ms": p99,
            "most_ms": round(float(times.max()), 1),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", choices=("postgres", "milvus"), default="postgres")
    parser.add_argument("--services", type=int, default=4)
    parser.add_argument("--vectors", type=int, default=20_000)
    parser.add_argument("--searchers", type=int, default=6)
    parser.add_argument("--writers", type=int, default=2)
    parser.add_argument(
        "--pause", type=float, default=0.2, help="seconds between two requests of a client"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="before each deployment")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    url = gallery_url(wanted.store)
    with (
        tempfile.TemporaryDirectory() as folder,
        make(Path(folder) / "shop", wanted.vectors, url) as space,
    ):
        with replicas(space, wanted.services) as services, balanced(services) as http:
            for service in services:  # each has the gallery in memory
                service.http.post("/v1/search", files={"image": picture(0)}).raise_for_status()
            clients = Clients(http, wanted.searchers, wanted.writers, wanted.pause)
            try:
                versions = ["v2" if number % 2 == 0 else "v1" for number in range(wanted.rounds)]
                spans = [roll(http, services, version, wanted.seconds) for version in versions]
            finally:
                clients.close()
        lost = not_found(space.gallery, clients.written)
    searches = [one for one in clients.asked if one.kind == "search" and not one.failure]
    failures = [one.failure for one in clients.asked if one.failure]
    mixed = sum(len(one.answered) != 1 for one in searches)
    found: dict[str, Any] = {
        "store": wanted.store,
        "services": wanted.services,
        "vectors": wanted.vectors,
        "searchers": wanted.searchers,
        "writers": wanted.writers,
        "pause": wanted.pause,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[1], 1),
        "requests": len(clients.asked),
        "failures": len(failures),
        "answers_of_two_deployments": mixed,
        "written": len(clients.written),
        "lost": len(lost),
        "deployments": sorted({one for asked in searches for one in asked.answered}),
        "restarts": wanted.rounds * wanted.services,
        "quiet": summary(clients.asked, [quiet for quiet, _ in spans]),
        "rolling": summary(clients.asked, [rolling for _, rolling in spans]),
    }
    for name, value in found.items():
        print(name, value)
    if wanted.out:
        replace_json(wanted.out, found)
    if failures or mixed or lost:
        sys.exit(f"not as it should be: {failures[:3]}")


if __name__ == "__main__":
    main()
