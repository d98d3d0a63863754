"""The service under images that were made to do harm: what it answers, and how much memory it keeps.

``fixstar serve`` runs over a workspace made on the spot. Clients send small files that take much to decode (49 million
pixels of one colour with transparency, JPEGs of thousands of scans, files of 19 MB that are not images), then the
service is asked for an ordinary search. Memory is the resident set of the service and of its decoding processes.

    python benchmarks/upload_bombs.py                58 bombs by 8 clients
    python benchmarks/upload_bombs.py --bombs 500
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import torch
from PIL import Image

from fixstar.models import Encoder
from fixstar.workspace import Workspace

TIMEOUT = 300.0


def bombs() -> list[bytes]:
    """One file of each kind."""
    return [
        encoded(Image.new("RGBA", (7000, 7000), (1, 2, 3, 128)), "PNG"),
        encoded(Image.new("P", (7000, 7000), 3), "PNG", transparency=3),
        many_scans(5000),
        encoded(Image.new("RGB", (7000, 7000), "navy"), "JPEG", progressive=True),
        b"\x89PNG\r\n\x1a\n" + bytes(19_000_000),
    ]


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    """The file of an image."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def many_scans(count: int) -> bytes:
    """A progressive JPEG whose last scan comes ``count`` times: a few bytes each, and a pass over the whole image."""
    data = encoded(Image.new("RGB", (3000, 3000), "navy"), "JPEG", progressive=True)
    start = data.rindex(b"\xff\xda")
    return data[:start] + data[start:-2] * count + data[-2:]


@contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """A service over a new workspace with one untrained version."""
    torch.manual_seed(0)
    Workspace.create(folder / "shop", device="cpu").close()
    Encoder.create("tiny", classes=["a", "b"], capacity=8).save(folder / "shop" / "versions" / "v1")
    words = [
        sys.executable,
        "-m",
        "fixstar",
        "serve",
        "-w",
        str(folder / "shop"),
        "--port",
        "0",
        "--rate",
        "100000",
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = (
            next(line for line in process.stdout if line.startswith("serving"))
            .split(" at ")[1]
            .split()[0]
        )
        with httpx.Client(base_url=address, timeout=TIMEOUT) as client:
            try:
                yield process, client
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)


def resident(pid: int) -> tuple[float, float]:
    """Megabytes of a process, and of its children together."""
    children = [
        child
        for file in Path(f"/proc/{pid}/task").glob("*/children")
        for child in file.read_text().split()
    ]
    return _megabytes(pid), sum(_megabytes(int(child)) for child in children)


def _megabytes(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except FileNotFoundError:  # it has just ended
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    """Send them, and print what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bombs", type=int, default=58)
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    kinds, good = bombs(), encoded(Image.new("RGB", (64, 64), "red"), "PNG")
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as (process, client):

        def send(number: int) -> int:
            files = {"image": kinds[number % len(kinds)]}
            if number % 2:
                return client.put(f"/v1/item?id={number}", files=files).status_code
            return client.post("/v1/search", files=files).status_code

        def search() -> int:
            return client.post("/v1/search", files={"image": good}).status_code

        assert client.put("/v1/item?id=good", files={"image": good}).status_code == 200
        before = resident(process.pid)
        most = [0.0, 0.0]
        with ThreadPoolExecutor(options.clients) as pool:
            sent = [pool.submit(send, number) for number in range(options.bombs)]
            while not all(one.done() for one in sent):
                most = [max(pair) for pair in zip(most, resident(process.pid), strict=True)]
                time.sleep(0.1)
        after = resident(process.pid)
        answer = search()
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT)
        result = {
            "bombs": options.bombs,
            "answers": dict(Counter(one.result() for one in sent)),
            "search afterwards": answer,
            "seconds until it ended": round(time.monotonic() - began, 1),
            "MB (service, decoders)": {
                "before": [round(one) for one in before],
                "most": [round(one) for one in most],
                "after": [round(one) for one in after],
            },
        }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
