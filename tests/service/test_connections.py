"""Connections that say nothing neither stop the service nor fill its log."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import re
import resource
import signal
import socket
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import uvicorn
from forked import fork_fixstar
from service_clients import picture
from shops import shop
from sleepless_loop import SleeplessLoop
from uvicorn.server import ServerState

from fixstar.service.keys import Keys
from fixstar.service.monitoring import LogThrottle
from fixstar.service.serve import (
    _LimitedHeaders,
    _listening,
    _replaceable,
    accepted_at_once,
    max_connections,
)
from fixstar.service.settings import ServiceSettings

FILES = 300  # that the process may have open
HEADERS = 1.0  # seconds


class Running(NamedTuple):
    """A service in a process of its own."""

    port: int
    log: Path
    process: ForkServerProcess

    def open(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=120)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=120)


@contextlib.contextmanager
def running(folder: Path, *options: str) -> Iterator[Running]:
    """A service over the workspace in a folder."""
    log, out = folder / "log", folder / "out"
    words = ["serve", "-w", str(folder / "shop"), "--device", "cpu", "--port", "0", *options]
    process = fork_fixstar(out, log, *words, open_files=FILES)
    try:
        while not (
            found := re.search(r"http://\S+:(\d+) ", out.read_text() if out.exists() else "")
        ):
            assert process.is_alive(), log.read_text()
            time.sleep(0.01)
        yield Running(int(found.group(1)), log, process)
    finally:
        process.kill()
        process.join()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("connections")
    shop(folder / "shop", versions=1)
    with running(folder, "--header-seconds", str(HEADERS), "--access-log") as made:
        yield made


def wait_until_closed(connection: socket.socket) -> None:
    """Returns when the other side closes; raises where it stays open."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(1 << 16):
            pass


def test_silent_connections_are_closed_and_the_service_answers_on(service: Running) -> None:
    silent = [service.open() for _ in range(FILES + 20)]
    answer = service.get("/healthz")  # taken on in place of one that keeps silent
    assert answer.status_code == 200
    for connection in silent:
        wait_until_closed(connection)
        connection.close()
    log = service.log.read_text()
    assert log.count("connections are open") == 1
    assert "out of system resource" not in log
    assert len(log) < 10_000


@pytest.mark.parametrize("first", [b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b""])
def test_half_the_headers_do_not_keep_a_connection_open(service: Running, first: bytes) -> None:
    began = time.monotonic()
    with service.open() as connection:
        if first:  # then the second request of the connection is the slow one
            connection.sendall(first)
            seen = b""
            while b'"ok"' not in seen:
                seen += connection.recv(1 << 16)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        wait_until_closed(connection)
    assert time.monotonic() - began > HEADERS / 2


def test_headers_that_do_not_end_are_refused(service: Running) -> None:
    start = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: "
    with service.open() as connection:
        connection.sendall(
            start + b"a" * ((1 << 16) + 1 - len(start))
        )  # not a byte more: those would reset the answer
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400")
        wait_until_closed(connection)


def test_trailers_that_do_not_end_are_refused(service: Running) -> None:
    start = b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    line = b"X-%06d: " + b"a" * 1000 + b"\r\n"
    sent = 0
    with service.open() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(start)
        for number in range(20_000):
            connection.sendall(line % number)
            sent += len(line)
    assert sent < 10 << 20  # what the system itself holds for a connection


def test_one_trailer_that_does_not_end_is_refused(service: Running) -> None:
    start = (
        b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: "
    )
    sent = 0
    with service.open() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(start)
        while sent < 20 << 20:
            connection.sendall(bytes([97]) * 1000)
            sent += 1000
    assert sent < 10 << 20


@pytest.mark.parametrize(("width", "sizes"), [(20, [1]), (400, [100_000]), (400, [7, 300_000, 1])])
def test_chunks_of_any_size_are_a_body(service: Running, width: int, sizes: list[int]) -> None:
    """Headers of chunks are not headers, however much comes with them."""
    image = picture(size=(width, 300))
    request = httpx.Request("PUT", "http://localhost/v1/item?id=chunked", files={"image": image})
    whole, parts = request.read(), list[bytes]()
    while whole:
        size = sizes[len(parts) % len(sizes)]
        parts.append(whole[:size])
        whole = whole[size:]
    answer = httpx.put(
        f"http://127.0.0.1:{service.port}/v1/item?id=chunked",
        content=iter(parts),
        headers={"content-type": request.headers["content-type"]},
        timeout=120,
    )
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/healthz", "/readyz", "/static/page.css", "/nowhere", "/v1/docs", "/metrics"]
)
@pytest.mark.parametrize("length", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
def test_a_body_that_nobody_takes_is_not_waited_for(
    service: Running, path: str, length: str
) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{length}\r\n\r\n"
    began = time.monotonic()
    with service.open() as connection:
        connection.sendall(head.encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 413")
        assert time.monotonic() - began < 4


def never_reading(service: Running, files: int) -> socket.socket:
    """A connection that asks for more than its buffers hold, and takes nothing of it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", service.port))
    connection.sendall(b"GET /static/page.css HTTP/1.1\r\nHost: localhost\r\n\r\n" * files)
    return connection


def test_an_answer_that_is_not_taken_does_not_keep_a_connection_open(service: Running) -> None:
    with never_reading(service, files=300) as connection:
        time.sleep(3 * HEADERS)
        began, taken = time.monotonic(), 0
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1 << 16):
                taken += len(part)
        assert time.monotonic() - began < HEADERS / 2  # it was closed already
    assert taken < 300 * 29_000


def test_strangers_do_not_keep_out_a_valid_key(tmp_path: Path) -> None:
    space = shop(tmp_path / "shop", versions=1)
    key = Keys(space.path).add("reader", "read")
    with running(tmp_path, "--rate", "1000000") as service:
        strangers = [never_reading(service, files=20) for _ in range(FILES)]
        for _ in range(5):
            address = f"http://127.0.0.1:{service.port}/v1/items"
            answer = httpx.get(address, headers={"X-API-Key": key}, timeout=120)
            assert answer.status_code == 200
            strangers += [never_reading(service, files=20) for _ in range(10)]
        for connection in strangers:
            connection.close()


def test_wrong_keys_share_an_address_whatever_they_claim(tmp_path: Path) -> None:
    Keys(shop(tmp_path / "shop", versions=1).path).add("reader", "read")
    with running(tmp_path, "--rate", "5") as service:
        seen = []
        for number in range(8):
            headers = {"X-API-Key": "wrong", "X-Forwarded-For": f"1.2.3.{number}"}
            seen.append(
                httpx.get(
                    f"http://127.0.0.1:{service.port}/v1/items", headers=headers, timeout=120
                ).status_code
            )
    assert seen == [401] * 5 + [429] * 3


def test_a_body_may_take_longer_than_the_headers(service: Running) -> None:
    request = httpx.Request("PUT", "http://localhost/v1/item?id=slow", files={"image": picture()})
    body = request.read()
    head = [
        b"PUT /v1/item?id=slow HTTP/1.1",
        *(name + b": " + value for name, value in request.headers.raw),
    ]
    with service.open() as connection:
        connection.sendall(b"\r\n".join([*head, b"Connection: close", b"", body[:50]]))
        time.sleep(1.5 * HEADERS)
        connection.sendall(body[50:])
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_the_access_log_has_a_line_a_request_without_ids(service: Running) -> None:
    service.get("/v1/item?id=secret")
    end, seen = time.monotonic() + 120, list[str]()
    while not seen and time.monotonic() < end:  # the line is written after the answer
        time.sleep(0.02)
        lines = service.log.read_text().splitlines()
        seen = [line for line in lines if "path=/v1/item " in line and "method=GET" in line]
    assert len(seen) == 1
    assert re.search(
        r'address=127.0.0.1 caller="local" role=admin method=GET path=/v1/item status=404 ms=[\d.]+$',
        seen[0],
    )
    assert "secret" not in service.log.read_text()


def test_the_parts_of_an_answer_do_not_wait_for_each_other() -> None:
    seen: asyncio.Queue[int] = asyncio.Queue()

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted: socket.socket = transport.get_extra_info("socket")
            seen.put_nowait(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    async def work() -> int:
        with _listening(ServiceSettings(port=0)) as listener:
            server = await asyncio.get_running_loop().create_server(Accepted, sock=listener)
            _, writer = await asyncio.open_connection(*listener.getsockname())
            found = await seen.get()
            writer.close()
            server.close()
        return found

    assert asyncio.run(work())


class Connection(NamedTuple):
    """What counts when one must make room."""

    client: tuple[str, int] | None
    asked: bool
    known: bool
    since: float

    def precedence(self) -> tuple[bool, bool]:
        return self.asked, self.known


def test_who_makes_room_for_a_new_connection() -> None:
    known = Connection(("1.1.1.1", 1), asked=True, known=True, since=0)
    stranger, another = (
        Connection((host, 1), asked=True, known=False, since=1) for host in ("2.2.2.2", "3.3.3.3")
    )
    older = another._replace(client=("3.3.3.3", 2), since=0.5)
    silent = Connection(("1.1.1.1", 2), asked=False, known=False, since=9)
    assert _replaceable([known, stranger, another, older, silent]) is silent
    assert (
        _replaceable([known, stranger, another, older]) is older
    )  # of the address that has two, the older one
    assert _replaceable([known, stranger]) is stranger
    assert _replaceable([known, known._replace(client=None)]) is None


def test_trailers_do_not_become_headers() -> None:
    """They come after a request was admitted by its headers."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        seen.extend(name for name, _ in scope["headers"])
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
        )
        await send({"type": "http.response.body"})

    async def work() -> bytes:
        config = uvicorn.Config(app, http=_LimitedHeaders, lifespan="off", log_config=None)
        made = functools.partial(
            _LimitedHeaders, config=config, server_state=ServerState(), app_state={}
        )
        server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Late: 1\r\n\r\n"
        )
        line = await reader.readline()
        writer.close()
        server.close()
        return line

    assert asyncio.run(work()).startswith(b"HTTP/1.1 200")
    assert seen == [b"host", b"transfer-encoding"]


def test_the_cap_follows_the_limit_of_open_files() -> None:
    assert max_connections(300) == 118
    assert max_connections(10) == 8
    assert max_connections(1 << 20) == 10_000
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert max_connections() == max_connections(allowed)
    for files in (
        300,
        1024,
        1 << 20,
    ):  # a few turns of the event loop pass before a connection is counted
        assert max_connections(files) + 4 * accepted_at_once(max_connections(files)) < files - 64


def test_lines_come_at_most_once_in_an_interval_with_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        throttle = LogThrottle(logging.getLogger("fixstar.service"), every=0.1)
        for _ in range(50):
            throttle.warn("a", "too many of a")
        throttle.warn("b", "too many of b")
        await asyncio.sleep(0.25)
        throttle.warn("b", "too many of b")

    with asyncio.Runner(loop_factory=SleeplessLoop) as runner:
        runner.run(work())
    lines = [record.message for record in caplog.records]
    assert lines == [
        "too many of a",
        "too many of b",
        "too many of a (49 times in the last 0.1 s)",
        "too many of b",
    ]


def test_lines_of_very_many_do_not_fill_the_memory(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> int:
        throttle = LogThrottle(logging.getLogger("fixstar.service"))
        for number in range(3000):
            throttle.warn(str(number), f"line {number}")
        return len(throttle._held)

    assert asyncio.run(work()) == 1001
    assert len(caplog.records) == 1001


def test_a_service_that_stops_answers_all_that_have_connected(tmp_path: Path) -> None:
    """Also those that have not asked yet, as behind a balancer; later ones are refused, so that it asks the next."""
    shop(tmp_path / "shop", versions=1)
    with running(tmp_path) as service:
        asked = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{service.port}\r\n\r\n".encode()
        idle = service.open()
        idle.sendall(asked)
        assert b"200 OK" in idle.recv(1 << 16)
        connections = [service.open() for _ in range(20)]
        assert service.process.pid is not None
        os.kill(service.process.pid, signal.SIGTERM)
        with contextlib.suppress(ConnectionRefusedError):
            while True:
                connections.append(service.open())
                time.sleep(0.01)
        for connection in connections:
            connection.sendall(asked)
        for connection in connections:
            answer = b""
            while part := connection.recv(1 << 16):
                answer += part
            assert b"200 OK" in answer
            connection.close()
        wait_until_closed(idle)
        idle.close()
        service.process.join(30)
        assert service.process.exitcode == 0
