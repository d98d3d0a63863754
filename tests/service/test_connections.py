"""Connections that say nothing neither stop the service nor fill its log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from forked import fork_fixstar
from service_clients import picture
from shops import shop

from fixstar.service.monitoring import LogThrottle
from fixstar.service.serve import _listening, accepted_at_once, max_connections
from fixstar.service.settings import ServiceSettings

FILES = 300  # that the process may have open
HEADERS = 1.0  # seconds


class Running(NamedTuple):
    """A service in a process of its own."""

    port: int
    log: Path

    def open(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=120)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=120)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("connections")
    space, log = shop(folder / "shop", versions=1), folder / "log"
    words = ["serve", "-w", str(space.path), "--device", "cpu", "--port", "0", "--header-seconds", str(HEADERS)]
    out = folder / "out"
    process = fork_fixstar(out, log, *words, "--access-log", open_files=FILES)
    try:
        while not (found := re.search(r"http://\S+:(\d+) ", out.read_text() if out.exists() else "")):
            assert process.is_alive(), log.read_text()
            time.sleep(0.01)
        yield Running(int(found.group(1)), log)
    finally:
        process.kill()
        process.join()


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
        connection.sendall(start + b"a" * ((1 << 16) + 1 - len(start)))  # not a byte more: those would reset the answer
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400")
        wait_until_closed(connection)


def test_a_body_may_take_longer_than_the_headers(service: Running) -> None:
    request = httpx.Request("PUT", "http://localhost/v1/item?id=slow", files={"image": picture()})
    body = request.read()
    head = [b"PUT /v1/item?id=slow HTTP/1.1", *(name + b": " + value for name, value in request.headers.raw)]
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
        r'address=127.0.0.1 caller="local" role=admin method=GET path=/v1/item status=404 ms=[\d.]+$', seen[0]
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


def test_the_cap_follows_the_limit_of_open_files() -> None:
    assert max_connections(300) == 118
    assert max_connections(10) == 8
    assert max_connections(1 << 20) == 10_000
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert max_connections() == max_connections(allowed)
    for files in (300, 1024, 1 << 20):  # a few turns of the event loop pass before a connection is counted
        assert max_connections(files) + 4 * accepted_at_once(max_connections(files)) < files - 64


def test_lines_come_at_most_once_in_an_interval_with_a_count(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        throttle = LogThrottle(logging.getLogger("fixstar.service"), every=0.1)
        for _ in range(50):
            throttle.warn("a", "too many of a")
        throttle.warn("b", "too many of b")
        await asyncio.sleep(0.25)
        throttle.warn("b", "too many of b")

    asyncio.run(work())
    lines = [record.message for record in caplog.records]
    assert lines == ["too many of a", "too many of b", "too many of a (49 times in the last 0.1 s)", "too many of b"]


def test_lines_of_very_many_do_not_fill_the_memory(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> int:
        throttle = LogThrottle(logging.getLogger("fixstar.service"))
        for number in range(3000):
            throttle.warn(str(number), f"line {number}")
        return len(throttle._held)

    assert asyncio.run(work()) == 1001
    assert len(caplog.records) == 1001
