"""How long searches take while a service trains, checks or re-embeds: in a thread of the service, and in a process.

Two services run over copies of one workspace: one works in threads, the other, as ``fixstar serve`` does, in processes
of a lower priority. A few clients search each by image, in turn: without a job, then beside one, so that other load on
the machine hits all windows alike. A window ends when its job does. Any answer but 200 ends the run with exit code 1.

    python benchmarks/service_jobs.py --job check --out benchmarks/results/service_jobs_cpu.json
    python benchmarks/service_jobs.py --table benchmarks/results/service_jobs_cpu.json

A file keeps the results of all jobs; a run replaces those of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image
from service_load import Asked, answered, pictures, request

from fixstar.data import open_images
from fixstar.durable import replace_json
from fixstar.geometry import unit
from fixstar.methods import create_method
from fixstar.training import Recipe, Settings
from fixstar.workspace import UpgradeOptions, Workspace, catalogue

CLASSES = 8
LEARNT = 40  # images per class that the versions are trained on
SIDE = 96  # of an image, in pixels
JOBS = {
    "train": ("/v1/upgrade", {"epochs": 1000, "trials": 0, "hold_out": 0, "data": "photos"}),
    "check": ("/v1/versions/v2/check", {"data": "held"}),
    "backfill": ("/v1/backfill", {"budget": "all", "order": "oldest", "anyway": True}),
}
QUIET = "no job"
WAYS = ("thread", "process")
_SERVE = """
import sys
from pathlib import Path
from fixstar.service.serve import serve
from fixstar.service.settings import ServiceSettings
from fixstar.workspace import Workspace
path = Path(sys.argv[1])
settings = ServiceSettings(
    port=0, rate=10**8, jobs_in_processes=sys.argv[2] == "process", training_images=path.parent / "sets"
)
with Workspace(path, device="cpu") as space:
    serve(space, settings)
"""


def draw(folder: Path, per_class: int, seed: int) -> None:
    """JPEG files of noise around a colour per class."""
    rng = np.random.default_rng(seed)
    colours = np.random.default_rng(0).integers(0, 200, (CLASSES, 3))
    for label, colour in enumerate(colours):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(per_class):
            pixels = (colour + rng.integers(0, 55, (SIDE, SIDE, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"class{label}" / f"{number}.jpg", quality=90)


def make(path: Path, backbone: str, images: int, vectors: int) -> None:
    """A workspace with two versions, v2 deployed, and random vectors of v1, so many of them with images."""
    sets = path.parent / "sets"
    draw(sets / "photos", LEARNT, seed=1)
    draw(sets / "items", images // CLASSES, seed=2)
    recipe = Recipe(epochs=1, milestones=(), learning_rate=0.01, batch_size=64)
    settings = Settings(backbone, capacity=1000, recipe=recipe, replay_per_class=5, device="cpu")
    with Workspace.create(path, device="cpu") as space:
        photos = open_images(sets / "photos")
        space.train(photos, settings, create_method("polaris"), progress=False)
        space.serving.encoder("v1")  # makes room for its vectors
        width = space.gallery.space("v1").width
        stored = unit(np.random.default_rng(3).standard_normal((vectors, width)).astype(np.float32))
        items = list(catalogue(sets / "items"))
        names = [item.id for item in items] + [
            f"random/{number:08}" for number in range(vectors - len(items))
        ]
        payloads = [item.payload for item in items] + [{} for _ in names[len(items) :]]
        space.gallery.upsert("v1", names, stored, payloads)
        space.upgrade(photos, UpgradeOptions(device="cpu", progress=False), trials=0)
        space.deploy("v2", force="benchmark")
        space.pin_images("held", sets / "items")


class Clients:
    """A few clients in threads, each of which searches every ``pause`` seconds."""

    def __init__(self, address: str, count: int, pause: float) -> None:
        self._host, port = address.removeprefix("http://").split(":")
        self._port = int(port)
        self._pause = pause
        self._requests = [request(f"{self._host}:{port}", data) for data in pictures(64)]
        self._stop = threading.Event()
        self.asked: list[Asked] = []
        self._threads = [
            threading.Thread(target=self._ask, args=(number,)) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self, number: int) -> None:
        with socket.create_connection((self._host, self._port), timeout=120) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while not self._stop.wait(self._pause):
                began = time.monotonic()
                connection.sendall(self._requests[number % len(self._requests)])
                status = answered(connection)
                self.asked.append(Asked(began, time.monotonic() - began, status))
                number += 7

    def between(self, begin: float, end: float) -> list[Asked]:
        """What was asked and answered in a window."""
        return [
            one for one in list(self.asked) if begin <= one.began and one.began + one.seconds <= end
        ]

    def close(self) -> None:
        """Ask no more."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


class Service:
    """A service over a workspace, with or without processes for its jobs."""

    def __init__(self, path: Path, way: str) -> None:
        self._path = path
        command = [sys.executable, "-c", _SERVE, str(path), way]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        found = re.search(r"http://\S+:\d+", self._process.stdout.readline())
        if not found:
            sys.exit("the service did not start")
        self.address = found.group()
        self._http = httpx.Client(base_url=self.address, timeout=120)
        with Workspace(path, device="cpu") as space:
            self._old = [
                item for item in space.gallery.iterate("v1") if not item.id.startswith("random/")
            ]

    def begin(self, kind: str) -> str:
        """Start a job, and wait until it does what it is for."""
        place, wanted = JOBS[kind]
        answer = self._http.post(place, json=wanted)
        answer.raise_for_status()
        name: str = answer.json()["id"]
        while not is_at_work(job := self.job(name)):
            if job["state"] not in ("queued", "running"):
                sys.exit(f"the job ended: {job}")
            time.sleep(0.1)
        return name

    def job(self, name: str) -> dict[str, Any]:
        """A job as it is now."""
        told: dict[str, Any] = self._http.get(f"/v1/jobs/{name}").json()
        return told

    def last(self, name: str, seconds: float) -> None:
        """Wait so long, or until the job ends."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self.job(name)["state"] == "running":
            time.sleep(min(left, 0.5))

    def end(self, name: str) -> dict[str, Any]:
        """Cancel a job, and give older items their old vectors back; the job as it ended."""
        self._http.post(f"/v1/jobs/{name}/cancel").raise_for_status()
        while (job := self.job(name))["state"] in ("queued", "running"):
            time.sleep(0.1)
        if job["state"] == "failed":
            sys.exit(f"the job failed: {job}")
        if job["kind"] == "backfill":
            with Workspace(self._path, device="cpu") as space:
                vectors = np.stack([item.vector for item in self._old])
                payloads = [item.payload for item in self._old]
                space.gallery.upsert("v1", [item.id for item in self._old], vectors, payloads)
        return job

    def close(self) -> None:
        """Stop it."""
        self._process.terminate()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()


def is_at_work(job: dict[str, Any]) -> bool:
    """Whether a job trains or embeds, and does not only prepare for it."""
    message: str = job["message"]
    if job["kind"] == "check":
        return message.startswith("embedding")
    if job["kind"] == "backfill":
        return message.startswith("re-embedding") and bool(job["total"])
    return "epoch" in message


@contextlib.contextmanager
def services(path: Path) -> Iterator[dict[str, Service]]:
    """A service of each way, over a copy of the workspace."""
    begun = {}
    try:
        for way in WAYS:
            copy = path.with_name(f"shop-{way}")
            shutil.copytree(path, copy)
            begun[way] = Service(copy, way)
        yield begun
    finally:
        for service in begun.values():
            service.close()


def latencies(asked: list[Asked]) -> dict[str, Any]:
    """Counts and percentiles in milliseconds."""
    times = 1000 * np.array([one.seconds for one in asked])
    p50, p95, p99 = np.percentile(times, [50, 95, 99]).round(1).tolist()
    return {
        "requests": len(asked),
        "p50_ms": p50,
        "p95_ms": p95,
        "p99_ms": p99,
        "most_ms": round(float(times.max()), 1),
    }


class Windows:
    """What one service answered, without a job and beside one, and how long its jobs ran."""

    def __init__(self) -> None:
        self.asked: dict[str, list[Asked]] = {QUIET: [], "job": []}
        self.statuses = Counter[str]()
        self._seconds = 0.0
        self._done = 0

    def measure(self, service: Service, kind: str, wanted: argparse.Namespace) -> None:
        """One window without a job, and one beside it."""
        clients = Clients(service.address, wanted.clients, wanted.pause)
        try:
            time.sleep(1)
            began = time.monotonic()
            time.sleep(wanted.seconds)
            self.asked[QUIET] += clients.between(began, time.monotonic())
            job = service.begin(kind)
            before = service.job(job)["done"]
            began = time.monotonic()
            service.last(job, wanted.seconds)
            ended = time.monotonic()
            self.asked["job"] += clients.between(began, ended)
            self._seconds += ended - began
            self._done += service.job(job)["done"] - before
            service.end(job)
        finally:
            clients.close()
        self.statuses.update(str(one.status) for one in clients.asked)

    def found(self) -> dict[str, Any]:
        """Percentiles, the seconds beside a job, and how many steps or items it did in them."""
        return {
            "job_seconds": round(self._seconds, 1),
            "job_done": self._done,
            **{name: latencies(asked) for name, asked in self.asked.items()},
        }


def table(found: dict[str, Any]) -> str:
    """Each job in a thread and in a process: searches without a job, and beside it."""
    lines = [
        "| job | runs in | p50 without it | p50 beside it | p99 without it | p99 beside it | done per second |"
    ]
    lines.append("|---|---|---:|---:|---:|---:|---:|")
    for kind in JOBS:
        if kind not in found:
            continue
        for way in WAYS:
            one = found[kind][way]
            times = [
                f"{one[when][name]:.0f} ms"
                for name in ("p50_ms", "p99_ms")
                for when in (QUIET, "job")
            ]
            done = f"{one['job_done'] / one['job_seconds']:.1f} {'steps' if kind == 'train' else 'items'}"
            if kind == "check":  # it counts versions, not images
                done = "not counted"
            label = "a thread" if way == "thread" else "a process"
            lines.append(f"| {kind} | {label} | {' | '.join(times)} | {done} |")
    return "\n".join(lines)


def main() -> None:
    """Measure one kind of job, or print the table of a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--job", choices=JOBS, default="train")
    parser.add_argument("--backbone", default="resnet20")
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--vectors", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument(
        "--pause", type=float, default=0.2, help="seconds between two searches of a client"
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="of a window")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--table", type=Path, help="print the table of this file, and measure nothing"
    )
    wanted = parser.parse_args()
    if wanted.table:
        print(table(json.loads(wanted.table.read_text())))
        return
    windows = {way: Windows() for way in WAYS}
    load = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop"
        make(path, wanted.backbone, wanted.images, wanted.vectors)
        with services(path) as running:
            for _ in range(wanted.rounds):
                for way in WAYS:
                    windows[way].measure(running[way], wanted.job, wanted)
                load.append(os.getloadavg()[0])
    settings = ("backbone", "images", "vectors", "clients", "pause", "rounds")
    result: dict[str, Any] = {
        **{name: getattr(wanted, name) for name in settings},
        "window_seconds": wanted.seconds,
        "cores": os.cpu_count(),
        "load": [round(one, 1) for one in load],
        "statuses": dict(windows["thread"].statuses + windows["process"].statuses),
        **{way: windows[way].found() for way in WAYS},
    }
    found = json.loads(wanted.out.read_text()) if wanted.out and wanted.out.exists() else {}
    found[wanted.job] = result
    print(json.dumps(result, indent=1))
    print(table(found))
    if wanted.out:
        replace_json(wanted.out, found)
    if set(result["statuses"]) != {"200"}:
        sys.exit("a search was not answered")


if __name__ == "__main__":
    main()
