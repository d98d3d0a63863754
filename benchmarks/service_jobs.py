"""How long searches take while a service trains, beside when it does nothing else.

``fixstar serve`` runs over a workspace with a trained version. A few clients search by image, each a few times per
second. Windows without a job and windows with one take turns, so that other load on the machine hits both alike.
Any answer but 200 ends the run with exit code 1.

    python benchmarks/service_training.py --out benchmarks/results/service_training_cpu.json
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image
from service_load import Asked, answered, pictures, request, serving

from fixstar.data import open_images
from fixstar.durable import replace_json
from fixstar.geometry import unit
from fixstar.methods import create_method
from fixstar.training import Recipe, Settings
from fixstar.workspace import Workspace, catalogue

CLASSES = 8
PER_CLASS = 40
QUIET = "no job"


def make(path: Path, backbone: str, vectors: int) -> None:
    """A workspace with a version trained on noisy patches, these as its items, and as many random vectors as asked."""
    photos = path.parent / "photos"
    rng = np.random.default_rng(0)
    for label in range(CLASSES):
        folder = photos / f"class{label}"
        folder.mkdir(parents=True)
        colour = rng.integers(0, 200, 3)
        for number in range(PER_CLASS):
            pixels = (colour + rng.integers(0, 55, (32, 32, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    recipe = Recipe(epochs=1, milestones=(), learning_rate=0.01, batch_size=64)
    settings = Settings(backbone, capacity=1000, recipe=recipe, replay_per_class=5, device="cpu")
    with Workspace.create(path, device="cpu") as space:
        space.train(open_images(photos), settings, create_method("polaris"), progress=False)
        space.index(catalogue(photos))
        width = space.gallery.space("v1").width
        stored = unit(rng.standard_normal((vectors, width)).astype(np.float32))
        space.gallery.upsert("v1", [f"item-{number:08}" for number in range(vectors)], stored)


class Clients:
    """A few clients in threads, each of which searches every ``pause`` seconds."""

    def __init__(self, address: str, count: int, pause: float) -> None:
        self._host, port = address.removeprefix("http://").split(":")
        self._port = int(port)
        self._pause = pause
        self._requests = [request(f"{self._host}:{port}", data) for data in pictures(64)]
        self._stop = threading.Event()
        self.asked: list[Asked] = []
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(count)]
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
        return [one for one in list(self.asked) if begin <= one.began and one.began + one.seconds <= end]

    def close(self) -> None:
        """Ask no more."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


class Training:
    """An upgrade that lasts until it is cancelled."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        answer = http.post("/v1/upgrade", json={"epochs": 1000, "trials": 0, "hold_out": 0})
        answer.raise_for_status()
        self._job = answer.json()["id"]
        while "epoch" not in (job := self._state())["message"]:
            if job["state"] not in ("queued", "running"):
                sys.exit(f"the training ended: {job}")
            time.sleep(0.1)

    def _state(self) -> dict[str, Any]:
        told: dict[str, Any] = self._http.get(f"/v1/jobs/{self._job}").json()
        return told

    def cancel(self) -> int:
        """End it; the steps that it made."""
        self._http.post(f"/v1/jobs/{self._job}/cancel").raise_for_status()
        while (job := self._state())["state"] in ("queued", "running"):
            time.sleep(0.1)
        return int(job["done"])


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="resnet20")
    parser.add_argument("--vectors", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between two searches of a client")
    parser.add_argument("--seconds", type=float, default=15.0, help="of a window")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    windows: dict[str, list[Asked]] = {QUIET: [], "training": []}
    steps = 0
    load = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop"
        make(path, wanted.backbone, wanted.vectors)
        with serving(path) as (address, _):
            http = httpx.Client(base_url=address, timeout=120)
            clients = Clients(address, wanted.clients, wanted.pause)
            try:
                time.sleep(3)
                for _ in range(wanted.rounds):
                    began = time.monotonic()
                    time.sleep(wanted.seconds)
                    windows[QUIET] += clients.between(began, time.monotonic())
                    training = Training(http)
                    began = time.monotonic()
                    time.sleep(wanted.seconds)
                    windows["training"] += clients.between(began, time.monotonic())
                    steps += training.cancel()
                    load.append(os.getloadavg()[0])
            finally:
                clients.close()
    found: dict[str, Any] = {
        "backbone": wanted.backbone,
        "vectors": wanted.vectors,
        "clients": wanted.clients,
        "pause": wanted.pause,
        "cores": os.cpu_count(),
        "load": [round(one, 1) for one in load],
        "rounds": wanted.rounds,
        "window_seconds": wanted.seconds,
        "training_steps": steps,
        "statuses": dict(Counter(str(one.status) for one in clients.asked)),
        **{name: latencies(asked) for name, asked in windows.items()},
    }
    for name, value in found.items():
        print(name, value)
    if wanted.out:
        replace_json(wanted.out, found)
    if set(found["statuses"]) != {"200"}:
        sys.exit("a search was not answered")


if __name__ == "__main__":
    main()
