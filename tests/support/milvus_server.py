"""A real Milvus server for tests, from the wheel ``milvus``, which exists for x86-64 Linux alone: ``make test-milvus``.

    python tests/support/milvus_server.py pytest -n 4 tests/gallery -k milvus

starts a server, which all processes of the command share. FIXSTAR_TEST_MILVUS=host:port names one that runs already.
FIXSTAR_TEST_MILVUS_START names a command that starts it again after a test killed it, and FIXSTAR_TEST_MILVUS_PID a
file with the process to kill; without them, the test that kills a server has one of its own.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import Any
from unittest import mock
from urllib.parse import quote

import pytest

from fixstar.gallery import Gallery
from fixstar.gallery.addresses import parse_milvus_address
from fixstar.gallery.milvus import MilvusGallery
from fixstar.gallery.sqlite import SqliteGallery

RUNNING = os.environ.get("FIXSTAR_TEST_MILVUS")
START = os.environ.get("FIXSTAR_TEST_MILVUS_START")
PID = os.environ.get("FIXSTAR_TEST_MILVUS_PID")


_ETCD = """name: default
listen-client-urls: {clients}
advertise-client-urls: {clients}
listen-peer-urls: {peers}
initial-advertise-peer-urls: {peers}
initial-cluster: default={peers}
"""


def free_port() -> int:
    """One that nobody listens on: the wheel's own choice is the same for servers that start together."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def missing() -> str:
    """Why no server of the wheel can be started here; empty if one can."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return f"the wheel milvus has no server for {sys.platform} on {platform.machine()}"
    if importlib.util.find_spec("milvus") is None:
        return "the wheel milvus, with its server, is not installed"
    return ""


class OwnServer:
    """The server of the wheel in a directory of its own, which can be killed and started again."""

    def __init__(self) -> None:
        if reason := missing():
            pytest.skip(reason)
        module = importlib.import_module("milvus")
        self.folder = Path(tempfile.mkdtemp(prefix="milvus"))
        config: Any = module.MilvusServerConfig(data_dir=str(self.folder))
        config.update(
            **{name: free_port() for name in config.configurable_items if name.endswith("_port")}
        )
        self._etcd = self.folder / "etcd.yaml"  # else two servers of a machine want the same ports
        urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
        self._etcd.write_text(_ETCD.format(clients=urls[0], peers=urls[1]))
        self.server: Any = module.MilvusServer(config)
        self.server.webservice_port = free_port()
        atexit.register(self.remove)
        self.start()
        self.server.config.resolve = lambda: (
            None
        )  # it would choose other ports while the old ones are in TIME_WAIT

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server.listen_port}"

    @property
    def process(self) -> int:
        return int(self.server.server_proc.pid)

    def start(self) -> None:
        with mock.patch.dict(os.environ, {"ETCD_CONFIG_PATH": str(self._etcd)}):
            self.server.start()

    def kill(self) -> None:
        """End it without a goodbye."""
        self.server.server_proc.kill()
        self.server.server_proc.wait()
        self.server.stop()

    def remove(self) -> None:
        self.server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class RunningServer:
    """A server that somebody else started."""

    def __init__(self, place: str) -> None:
        self.place = place

    def start(self) -> None:
        assert START is not None
        subprocess.run(START, shell=True, check=True)

    def kill(self) -> None:
        assert PID is not None
        number = int(Path(PID).read_text())
        os.kill(number, signal.SIGKILL)
        while (
            Path(f"/proc/{number}").exists()
            and "Z" not in Path(f"/proc/{number}/stat").read_text().split()[2]
        ):
            time.sleep(0.05)


@cache
def server() -> RunningServer:
    """The server that tests share."""
    if RUNNING is None:
        pytest.skip(
            "no Milvus server: make test-milvus starts one, FIXSTAR_TEST_MILVUS=host:port names another"
        )
    pytest.importorskip(
        "pymilvus", reason="pymilvus is not installed: pip install 'fixstar[milvus]'"
    )
    return RunningServer(RUNNING)


def mortal_server() -> OwnServer | RunningServer:
    """One that a test may kill."""
    if START is None or PID is None:
        server()
        return OwnServer()
    return server()


def fresh_url(items: Path | str, index: str = "FLAT", place: str | None = None) -> str:
    """The address of a gallery that does not exist yet, on the server that tests share or on another."""
    name = f"test_{token_hex(8)}"
    return f"milvus://{place or server().place}?gallery={name}&index={index}&items={quote(str(items), safe='')}"


class DroppedGallery(MilvusGallery):
    """A gallery whose vectors are removed from the server when it is closed."""

    def close(self) -> None:
        super_close: Callable[[], None] = super().close
        if not getattr(self, "_dropped", False):
            self._dropped = True
            self.drop_vectors()
        super_close()


def milvus_gallery(folder: Path, index: str = "FLAT") -> Gallery:
    address = parse_milvus_address(fresh_url(folder / "gallery.db", index))
    return DroppedGallery(address, SqliteGallery(address.items))


def main() -> int:
    """Run a command with a server; without one where none can be, and its tests say so."""
    command = sys.argv[1:]
    if reason := missing():
        print(f"no Milvus server for these tests: {reason}", file=sys.stderr)
        return subprocess.run(command).returncode
    own = OwnServer()
    try:
        return subprocess.run(
            command, env={**os.environ, "FIXSTAR_TEST_MILVUS": own.place}
        ).returncode
    finally:
        own.remove()


if __name__ == "__main__":
    sys.exit(main())
