"""The service under load, beside the same work done without it.

``fixstar serve`` runs as a process of its own over a workspace made on the spot. 32 clients in processes of their own
search by image, each as fast as it is answered, while images are indexed in a job, another version is deployed, older
items are backfilled and the deployment is rolled back. Beside it, one process does the same without the service: it
encodes the same images in batches of 32 and searches the same gallery, once with the same index jobs, deployment,
backfill and rollback in a thread, and once with nothing else. Any answer but 200 ends the run with exit code 1.

    python benchmarks/service_load.py --out benchmarks/results/service_load_cpu.json     32 clients, 60 s, resnet18
    python benchmarks/service_load.py --backbone tiny                                    next to nothing but overhead
    python benchmarks/service_load.py --overhead --out benchmarks/results/service_overhead_cpu.json
    python benchmarks/service_load.py --services 1 4 --backbone tiny --seconds 30

``--overhead`` measures CPU time per query, with one thread and the smallest model: the service with its decoding
processes, asked by one client and by eight, beside ``encoder.encode`` and a search in one process, an image at a time.
Many short rounds take turns, so that other load on the machine hits both alike. It takes about two minutes. The event
loop has HTTP, the form, JSON and the checks. With what the decoding processes use beyond decoding, that is what HTTP
adds to a query. The rest is the model and the search, which a direct call has too.

``--services`` compares numbers of services over one workspace, each with one thread, its gallery in PostgreSQL, and no
jobs meanwhile. Beside them, one process encodes the same images one at a time and searches the same gallery.

Clients and server share the cores of one machine; the direct calls have them to themselves.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import multiprocessing
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import torch
from PIL import Image
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from fixstar.durable import replace_json
from fixstar.geometry import unit
from fixstar.images.reading import read_pixels
from fixstar.models import Encoder
from fixstar.workspace import BackfillOptions, CatalogueItem, Workspace
from fixstar.workspace.items import ensure_version

BATCH = 32
K = 10
IMAGES = 256
INDEXED = 128
WARMING = 2.0
SIDES = (32, 64, 128, 224)
BOUNDARY = "----fixstar-load"


class Asked(NamedTuple):
    """One request: when it was sent (seconds of the clock that all processes share), how long it took, its status."""

    began: float
    seconds: float
    status: int


def pictures(count: int, seed: int = 0) -> list[bytes]:
    """Image files of 32 to 224 pixels, half PNG and half JPEG: smooth colours, so that their size is that of photos."""
    rng = np.random.default_rng(seed)
    files = []
    for number in range(count):
        side = SIDES[number % len(SIDES)]
        kind = ("PNG", "JPEG")[number // len(SIDES) % 2]
        image = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize(
            (side, side)
        )
        buffer = io.BytesIO()
        image.save(buffer, kind, quality=85)
        files.append(buffer.getvalue())
    return files


def make(path: Path, backbone: str, count: int, gallery: str | None = None) -> None:
    """A workspace with two untrained versions, ``count`` random vectors of the second, and some images of the first."""
    space = Workspace.create(path, gallery, device="cpu")
    torch.manual_seed(0)
    encoder = Encoder.create(backbone, classes=["a", "b"], capacity=1000)
    for number in (1, 2):
        encoder.about = {"version": f"v{number}", "parent": None if number == 1 else "v1"}
        encoder.save(path / "versions" / f"v{number}")
        ensure_version(space.gallery, f"v{number}", encoder)
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.add_(0.001 * torch.randn_like(parameter))
    width = space.gallery.versions()[0].width
    rng = np.random.default_rng(0)
    ids = [f"item-{i:08}" for i in range(count)]
    payloads = [{"label": f"class {i % 100}", "price": i % 1000} for i in range(count)]
    space.gallery.upsert(
        "v2", ids, unit(rng.standard_normal((count, width)).astype(np.float32)), payloads
    )
    index(space, "image", seed=1)
    space.close()


def index(space: Workspace, name: str, seed: int) -> None:
    """Let the workspace keep some images, and index them."""
    kept = [space.images.keep(data) for data in pictures(INDEXED, seed)]
    space.index(
        [
            CatalogueItem(f"{name}-{i}", space.path / str(one["image"]), one)
            for i, one in enumerate(kept)
        ]
    )


def direct(path: Path, seconds: float, meanwhile: bool = False, size: int = BATCH) -> float:
    """Queries per second without the service: batches encoded and searched, one after the other."""
    files, done = pictures(IMAGES), 0
    with Workspace(path, device="cpu") as space:

        def batch(start: int) -> None:
            version = space.deployed()
            encoder = space.serving.encoder(version)
            vectors = encoder.encode(
                [files[i % IMAGES] for i in range(start, start + size)], form="short"
            )
            space.gallery.search(version, vectors, k=K)

        def work() -> None:
            time.sleep(seconds / 6)
            index(space, "first", seed=2)
            space.deploy("v2", force="benchmark")
            space.backfill(BackfillOptions("all", "oldest"))
            index(space, "second", seed=3)
            space.rollback()

        batch(0)  # the gallery is in memory, the model has run
        began = time.perf_counter()
        thread = threading.Thread(target=work)
        if meanwhile:
            thread.start()
        while (took := time.perf_counter() - began) < seconds or thread.is_alive():
            batch(done)
            done += size
    return done / took


@contextmanager
def serving(path: Path, *words: str) -> Iterator[tuple[str, int]]:
    """The service in a process of its own: its address and the process's number."""
    command = [
        sys.executable,
        "-m",
        "fixstar",
        "serve",
        "-w",
        str(path),
        "--device",
        "cpu",
        "--port",
        "0",
    ]
    process = subprocess.Popen(
        [*command, "--rate", "100000000", *words], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+:\d+", line)
        if not found:
            sys.exit(f"the service did not start: {line}")
        yield found.group(), process.pid
        process.terminate()
        if process.wait(60):
            sys.exit(f"the service ended with {process.returncode}")
    finally:
        process.kill()
        process.wait()


def request(host: str, data: bytes) -> bytes:
    """POST /v1/search, ready to be sent."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="q"\r\n\r\n'.encode()
    body = head + data + f"\r\n--{BOUNDARY}--\r\n".encode()
    lines = (
        f"POST /v1/search?k={K} HTTP/1.1",
        f"Host: {host}",
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def answered(connection: socket.socket) -> int:
    """Read one whole answer; its status. By hand, because a client library costs as much as the service."""
    seen = b""
    while b"\r\n\r\n" not in seen:
        seen += _received(connection)
    head, _, body = seen.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    assert length, head
    left = int(length.group(1)) - len(body)
    while left > 0:
        left -= len(_received(connection))
    return int(head[9:12])


def _received(connection: socket.socket) -> bytes:
    part = connection.recv(1 << 16)
    if not part:
        raise ConnectionError("the service closed the connection")
    return part


def clients(address: str, count: int, first: int, stop: Event, results: Any) -> None:
    """``count`` clients in threads, each with one connection that it keeps; puts all that they asked."""
    host, port = address.removeprefix("http://").split(":")
    requests = [request(f"{host}:{port}", data) for data in pictures(IMAGES)]
    asked: list[Asked] = []

    def client(number: int) -> None:
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while not stop.is_set():
                began = time.monotonic()
                connection.sendall(requests[number % IMAGES])
                try:
                    status = answered(connection)
                except (OSError, ConnectionError):
                    status = 0
                asked.append(Asked(began, time.monotonic() - began, status))
                number += 7
                if not status:
                    return

    threads = [threading.Thread(target=client, args=(first + i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put(asked)


class Jobs:
    """What goes on meanwhile, over the API."""

    def __init__(self, address: str) -> None:
        self.http = httpx.Client(base_url=address, timeout=120)
        self.log: list[dict[str, Any]] = []
        self.spans: list[tuple[float, float]] = []  # when jobs ran

    def post(self, what: str, path: str, **content: Any) -> dict[str, Any]:
        """Ask for something, and note it."""
        began = time.monotonic()
        answer = self.http.post(path, **content)
        self.log.append(
            {
                "what": what,
                "status": answer.status_code,
                "seconds": round(time.monotonic() - began, 3),
            }
        )
        answer.raise_for_status()
        told: dict[str, Any] = answer.json()
        return told

    def job(self, what: str, path: str, **content: Any) -> None:
        """Ask for a job, and wait for its end."""
        began = time.monotonic()
        job = self.post(what, path, **content)
        while job["state"] in ("queued", "running"):
            time.sleep(0.2)
            job = self.http.get(f"/v1/jobs/{job['id']}").json()
        self.spans.append((began, time.monotonic()))
        if job["state"] != "done":
            raise RuntimeError(f"{what}: {job}")
        self.log[-1] |= {"job_seconds": round(self.spans[-1][1] - began, 1), "items": job["done"]}

    def run(self, pause: float) -> None:
        """An index job, a deployment, a backfill, another index job, a rollback."""
        first, second = (
            [("images", (f"{i}.png", data)) for i, data in enumerate(pictures(INDEXED, seed))]
            for seed in (2, 3)
        )
        time.sleep(pause)
        self.job("index", "/v1/items/async", files=first)
        self.post("deploy", "/v1/deploy", json={"version": "v2", "force": "benchmark"})
        self.job("backfill", "/v1/backfill", json={"budget": "all", "order": "oldest"})
        self.job("index", "/v1/items/async", files=second)
        self.post("rollback", "/v1/rollback")


def load(
    addresses: Sequence[str], count: int, processes: int, work: Callable[[], None]
) -> tuple[list[Asked], tuple[float, float]]:
    """Everything that was asked while ``work`` ran, of services that share the clients, and when that was."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    results = context.Queue()
    processes = max(processes, len(addresses))
    share = [count // processes + (i < count % processes) for i in range(processes)]
    workers = [
        context.Process(
            target=clients, args=(addresses[i % len(addresses)], one, 1000 * i, stop, results)
        )
        for i, one in enumerate(share)
    ]
    for worker in workers:
        worker.start()
    while sum(map(_count, addresses)) < count:
        time.sleep(0.1)
    time.sleep(WARMING)
    begin = time.monotonic()
    try:
        work()
    finally:
        end = time.monotonic()
        stop.set()
        asked = [one for _ in workers for one in results.get()]
        for worker in workers:
            worker.join()
    return [one for one in asked if begin <= one.began + one.seconds <= end], (begin, end)


def with_jobs(jobs: Jobs, seconds: float) -> None:
    """Jobs, and as many seconds as they leave."""
    begin = time.monotonic()
    jobs.run(seconds / 6)
    time.sleep(max(0.0, begin + seconds - time.monotonic()))


def _count(address: str) -> float:
    """Searches answered so far."""
    text = httpx.get(f"{address}/metrics").text
    return sum(
        map(
            float,
            re.findall(
                r'^fixstar_requests_total{.*route="/v1/search".*} (\S+)', text, re.MULTILINE
            ),
        )
    )


def summary(asked: list[Asked], jobs: Jobs, span: tuple[float, float]) -> dict[str, Any]:
    """Counts, latencies and throughput, in all and apart for the time with and without jobs."""
    begin, end = span
    ended = np.array([one.began + one.seconds for one in asked])
    busy = 0.0
    with_jobs = np.zeros(len(ended), bool)
    for first, last in jobs.spans:
        busy += last - first
        with_jobs |= (ended >= first) & (ended < last)
    quiet = (~with_jobs).sum() / (end - begin - busy)
    return {
        **latencies(asked, end - begin),
        "per_second_without_jobs": round(float(quiet), 1),
        "per_second_with_jobs": round(float(with_jobs.sum() / busy), 1),
        "events": jobs.log,
    }


def latencies(asked: list[Asked], seconds: float) -> dict[str, Any]:
    """Counts, latencies and throughput."""
    times = 1000 * np.array([one.seconds for one in asked])
    p50, p95, p99 = np.percentile(times, [50, 95, 99]).round(1).tolist()
    return {
        "seconds": round(seconds, 1),
        "requests": len(asked),
        "statuses": {
            str(status): count for status, count in Counter(one.status for one in asked).items()
        },
        "p50_ms": p50,
        "p95_ms": p95,
        "p99_ms": p99,
        "most_ms": round(float(times.max()), 1),
        "per_second": round(len(asked) / seconds, 1),
    }


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    path = folder / "shop"
    copy = folder / "copy"
    make(path, options.backbone, options.vectors)
    shutil.copytree(path, copy)
    alone = direct(path, options.seconds / 4)
    with serving(path) as (address, _):
        jobs = Jobs(address)
        work = partial(with_jobs, jobs, options.seconds)
        asked, span = load([address], options.clients, options.processes, work)
        served = summary(asked, jobs, span)
        batch = _mean(address, "fixstar_query_batch_size")
    beside = direct(copy, options.seconds, meanwhile=True)
    return {
        "backbone": options.backbone,
        "vectors": options.vectors,
        "threads": torch.get_num_threads(),
        "clients": options.clients,
        "client_processes": options.processes,
        **served,
        "mean_batch": round(batch, 1),
        "direct_per_second": round(beside, 1),
        "direct_per_second_without_jobs": round(alone, 1),
        "ratio": round(served["per_second"] / beside, 3),
        "ratio_without_jobs": round(served["per_second_without_jobs"] / alone, 3),
    }


def replicas(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One number of services after the other, and a direct call, over the same workspace."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    path = folder / "shop"
    make(
        path,
        options.backbone,
        options.vectors,
        str(importlib.import_module("postgres_server").fresh_url()),
    )
    rows: dict[str, Any] = {}
    for count in options.services:
        with ExitStack() as running:
            addresses = [running.enter_context(serving(path, "--shared"))[0] for _ in range(count)]
            pause = partial(time.sleep, options.seconds)
            asked, (begin, end) = load(addresses, options.clients, options.processes, pause)
        rows[f"{count}_services"] = latencies(asked, end - begin)
    return {
        "backbone": options.backbone,
        "vectors": options.vectors,
        "clients": options.clients,
        "direct_per_second": round(direct(path, options.seconds / 2, size=1), 1),
        **rows,
    }


def cpu_seconds(process: int) -> np.ndarray[Any, Any]:
    """CPU time of a service so far: its event loop (the first thread), its other threads, its decoding processes."""
    own = {
        place.parent.name: _used(place)
        for place in Path(f"/proc/{process}/task").glob("[0-9]*/stat")
    }
    loop = own[str(process)].seconds
    decoding = [
        one.seconds
        for one in map(_used, Path("/proc").glob("[0-9]*/stat"))
        if one.parent == process
    ]
    return np.array([loop, sum(one.seconds for one in own.values()) - loop, sum(decoding)])


class Used(NamedTuple):
    """The parent of a process or thread, and its CPU time."""

    parent: int
    seconds: float


def _used(place: Path) -> Used:
    try:
        cells = place.read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return Used(0, 0.0)
    return Used(int(cells[1]), (int(cells[11]) + int(cells[12])) / os.sysconf("SC_CLK_TCK"))


def overhead(path: Path, vectors: int, rounds: int = 24, queries: int = 128) -> dict[str, Any]:
    """Milliseconds of CPU per query, without the service and with it: medians over rounds that take turns."""
    os.environ["OMP_NUM_THREADS"] = "1"  # of the service: waiting threads use a core too
    torch.set_num_threads(1)
    make(path, "tiny", vectors)
    files = pictures(IMAGES)
    measured: dict[str, list[float]] = {}
    with Workspace(path, device="cpu") as space, serving(path) as (address, process):
        version = space.deployed()
        encoder = space.serving.encoder(version)
        pixels = [read_pixels(data, encoder.preprocessing) for data in files]
        encoded = [encoder.encode(one[None], form="short") for one in pixels]
        direct: dict[str, Callable[[int], object]] = {
            "direct": lambda i: space.gallery.search(
                version, encoder.encode([files[i]], form="short"), k=K
            ),
            "decode": lambda i: read_pixels(files[i], encoder.preprocessing),
            "encode": lambda i: encoder.encode(pixels[i][None], form="short"),
            "search": lambda i: space.gallery.search(version, encoded[i], k=K),
        }
        host, port = address.removeprefix("http://").split(":")
        requests = [request(f"{host}:{port}", data) for data in files]

        def client(first: int, count: int) -> None:
            with socket.create_connection((host, int(port)), timeout=60) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for i in range(first, first + count):
                    connection.sendall(requests[i % IMAGES])
                    if (status := answered(connection)) != 200:
                        raise RuntimeError(f"a search was answered with {status}")

        def served(first: int, count: int) -> np.ndarray[Any, Any]:
            began = cpu_seconds(process)
            with ThreadPoolExecutor(count) as pool:
                share = queries // count
                for done in [pool.submit(client, first + share * i, share) for i in range(count)]:
                    done.result()
            spent: np.ndarray[Any, Any] = 1e3 * (cpu_seconds(process) - began) / queries
            return spent

        for number in range(rounds + 1):
            row, first = dict[str, float](), number * queries
            for name, work in direct.items():
                began = time.process_time()
                for i in range(first, first + queries):
                    work(i % IMAGES)
                row[name] = 1e3 * (time.process_time() - began) / queries
            for count in (1, 8):
                loop, threads, decoding = served(first, count)
                row[f"{count}_clients_event_loop"] = loop
                row[f"{count}_clients_embedding_and_search"] = threads
                row[f"{count}_clients_decoding"] = decoding
                row[f"{count}_clients"] = loop + threads + decoding
                row[f"{count}_clients_overhead"] = loop + threads + decoding - row["direct"]
                row[f"{count}_clients_http_form_json_checks"] = loop + decoding - row["decode"]
            if number:  # the first round warms up
                for name, value in row.items():
                    measured.setdefault(name, []).append(value)
    medians = {
        f"{name}_ms": round(float(np.median(values)), 2) for name, values in measured.items()
    }
    return {"vectors": vectors, "rounds": rounds, "queries_per_round": queries, **medians}


def _mean(address: str, name: str) -> float:
    """The mean of a histogram."""
    text = httpx.get(f"{address}/metrics").text
    total, count = (
        re.search(rf"^{name}_{part} (\S+)", text, re.MULTILINE) for part in ("sum", "count")
    )
    if total and count:
        return float(total.group(1)) / float(count.group(1))
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--processes", type=int, default=2, help="that the clients are spread over")
    parser.add_argument("--vectors", type=int, default=20_000)
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--overhead", action="store_true", help="CPU time per query instead")
    parser.add_argument(
        "--services", type=int, nargs="+", help="numbers of services to compare instead"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.overhead:
            row = overhead(Path(folder) / "shop", 2000)
        else:
            row = (replicas if options.services else measure)(options, Path(folder))
    print(json.dumps(row, indent=2))
    if options.out:
        about = {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "http": AutoHTTPProtocol.__name__,
        }
        replace_json(options.out, about | row)
    statuses = [
        one["statuses"]
        for one in (row, *row.values())
        if isinstance(one, dict) and "statuses" in one
    ]
    if any(set(one) != {"200"} for one in statuses):
        sys.exit(f"not every search was answered with 200: {statuses}")


if __name__ == "__main__":
    main()
