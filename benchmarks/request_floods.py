"""The service under callers that ask for too much: what another valid key sees, and how much memory it takes.

``fixstar serve`` runs over a workspace made on the spot, with two keys. One flood after another:

trailers    one connection, no key: a request in chunks whose trailers do not end
strangers   connections without a key that begin a body and do not send it: 700, then 50 a second
bodies      24 bodies of 80 MB to /v1/embeddings at once, by one key
batches     8 batches of 235 MB at once, by one key
pixels      6 batches of 64 PNGs of 49 million pixels, by one key

During each, the other key searches, one request after the other. Memory is the resident set of the service, without its
decoding processes.

    python benchmarks/request_floods.py
    python benchmarks/request_floods.py --only pixels
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import torch
from PIL import Image

from fixstar.models import Encoder
from fixstar.service.keys import Keys
from fixstar.workspace import Workspace

TIMEOUT = 300.0
STRANGERS = 700
FILES = 1024  # that the service may have open
SECONDS = 8.0  # that floods without an end last


class Service(NamedTuple):
    """A service in a process of its own, and its two keys."""

    port: int
    process: int
    flooding: str
    other: str

    @property
    def address(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> socket.socket:
        """A connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT)

    def megabytes(self) -> float:
        """Its resident set."""
        pages = int(Path(f"/proc/{self.process}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Service]:
    """A service over a new workspace with one untrained version."""
    torch.manual_seed(0)
    Workspace.create(folder / "shop", device="cpu").close()
    Encoder.create("tiny", classes=["a", "b"], capacity=8).save(folder / "shop" / "versions" / "v1")
    keys = [Keys(folder / "shop").add(name, "read") for name in ("flooding", "other")]
    words = [
        sys.executable,
        "-m",
        "fixstar",
        "serve",
        "-w",
        str(folder / "shop"),
        "--device",
        "cpu",
        "--port",
        "0",
    ]
    usual = ["prlimit", f"--nofile={FILES}", *words]
    process = subprocess.Popen(usual, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+) ", process.stdout.readline())
        assert found is not None
        yield Service(int(found.group(1)), process.pid, *keys)
    finally:
        process.kill()
        process.wait()


def picture(side: int = 64) -> bytes:
    """A PNG of one colour."""
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), "navy").save(buffer, "PNG")
    return buffer.getvalue()


# --- floods: each returns what was answered


def trailers(service: Service) -> dict[str, int]:
    """Megabytes that one connection could send."""
    line = b"X-%08d: " + b"a" * 1000 + b"\r\n"
    sent = 0
    with service.connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(
            b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
        )
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            connection.sendall(b"".join(line % number for number in range(100)))
            sent += 100 * len(line)
    return {"MB sent": sent >> 20}


def strangers(service: Service) -> dict[str, int]:
    """Connections that were opened, each with a body that does not come; those that were closed are opened again."""
    slow = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 900000\r\n\r\n["
    held: deque[socket.socket] = deque(maxlen=4 * STRANGERS)
    opened = 0
    end = time.monotonic() + SECONDS
    while opened < STRANGERS or time.monotonic() < end:
        with contextlib.suppress(OSError):
            connection = service.connect()
            held.append(connection)  # the oldest of very many are closed
            connection.sendall(slow)
            opened += 1
        if opened > STRANGERS:
            time.sleep(0.02)
    for connection in held:
        connection.close()
    return {"opened": opened}


def bodies(service: Service) -> dict[str, int]:
    """Answers by status."""
    image = base64.b64encode(picture() + bytes(14_000_000)).decode()
    content = json.dumps({"model": "v1", "input": [image] * 4}).encode()
    return _posted(service, "/v1/embeddings", content, "application/json", 24)


def batches(service: Service) -> dict[str, int]:
    """Answers by status."""
    image = picture() + bytes(14_500_000)
    head = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
    content = (head + image + b"\r\n") * 16 + b"--x--\r\n"
    return _posted(service, "/v1/search/batch", content, "multipart/form-data; boundary=x", 8)


def pixels(service: Service) -> dict[str, int]:
    """Answers by status."""
    head = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
    content = (head + picture(7000) + b"\r\n") * 64 + b"--x--\r\n"
    return _posted(service, "/v1/search/batch", content, "multipart/form-data; boundary=x", 6)


def _posted(service: Service, path: str, content: bytes, kind: str, times: int) -> dict[str, int]:
    headers = {"X-API-Key": service.flooding, "content-type": kind}

    def post(_: int) -> str:
        try:
            answer = httpx.post(
                f"{service.address}{path}", content=content, headers=headers, timeout=TIMEOUT
            )
        except httpx.HTTPError as error:
            return type(error).__name__
        return str(answer.status_code)

    with ThreadPoolExecutor(times) as pool:
        return dict(Counter(pool.map(post, range(times))))


FLOODS: dict[str, Callable[[Service], dict[str, int]]] = {
    "trailers": trailers,
    "strangers": strangers,
    "bodies": bodies,
    "batches": batches,
    "pixels": pixels,
}


def measured(flood: Callable[[Service], dict[str, int]]) -> dict[str, Any]:
    """One flood over a service of its own."""
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as service:
        image = picture()

        def search() -> tuple[str, float]:
            began = time.monotonic()
            try:
                headers = {"X-API-Key": service.other}
                files = {"image": image}
                answer = httpx.post(
                    f"{service.address}/v1/search", files=files, headers=headers, timeout=TIMEOUT
                )
                status = str(answer.status_code)
            except httpx.HTTPError as error:
                status = type(error).__name__
            return status, time.monotonic() - began

        search()
        before = most = service.megabytes()
        answered: dict[str, Any] = {}
        thread = threading.Thread(target=lambda: answered.update(flood(service)))
        thread.start()
        seen: list[tuple[str, float]] = []

        def keep_searching() -> None:
            while thread.is_alive():
                seen.append(search())
                time.sleep(0.05)

        asking = threading.Thread(target=keep_searching)
        asking.start()
        while thread.is_alive():
            most = max(most, service.megabytes())
            time.sleep(0.02)
        asking.join()
    return {
        "flood": answered,
        "MB before": round(before),
        "MB at most": round(most),
        "searches of another key": dict(Counter(status for status, _ in seen)),
        "slowest search, s": round(max(seconds for _, seconds in seen), 2),
    }


def main() -> None:
    """Run them, and print what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=list(FLOODS), action="append")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    result = {
        name: measured(flood) for name, flood in FLOODS.items() if name in (options.only or FLOODS)
    }
    print(json.dumps(result, indent=2))
    if any(set(row["searches of another key"]) != {"200"} for row in result.values()):
        sys.exit("another caller was refused")


if __name__ == "__main__":
    main()
