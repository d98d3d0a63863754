"""A real Milvus server for tests, from the wheel ``milvus``, which exists for x86-64 alone: one for each test process.

FIXSTAR_TEST_MILVUS=host:port names a server that runs already. FIXSTAR_TEST_MILVUS_START names a command that starts it
again after a test killed it, and FIXSTAR_TEST_MILVUS_PID a file with the process to kill.
"""

from __future__ import annotations

import atexit
import os
import platform
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import quote

import pytest

from fixstar.gallery import Gallery
from fixstar.gallery.addresses import parse_milvus_address
from fixstar.gallery.milvus import MilvusGallery
from fixstar.gallery.sqlite import SqliteGallery

RUNNING = os.environ.get("FIXSTAR_TEST_MILVUS")
START = os.environ.get("FIXSTAR_TEST_MILVUS_START")
PID = os.environ.get("FIXSTAR_TEST_MILVUS_PID")


def free_port() -> int:
    """One that nobody listens on: the wheel's own choice is the same for servers that start together."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


class OwnServer:
    """The server of the wheel in a directory of its own, which can be killed and started again."""

    def __init__(self) -> None:
        if platform.machine() not in ("x86_64", "AMD64"):
            pytest.skip(
                f"the wheel milvus has no server for {platform.machine()}; start one elsewhere and set "
                "FIXSTAR_TEST_MILVUS=host:port"
            )
        module: Any = pytest.importorskip("milvus", reason="the wheel milvus, with its server, is not installed")
        self.folder = Path(tempfile.mkdtemp(prefix="milvus"))
        config: Any = module.MilvusServerConfig(data_dir=str(self.folder))
        config.update(**{name: free_port() for name in config.configurable_items if name.endswith("_port")})
        self.server: Any = module.MilvusServer(config)
        self.server.webservice_port = free_port()
        atexit.register(self.remove)
        self.start()
        self.server.config.resolve = lambda: None  # it would choose other ports while the old ones are in TIME_WAIT

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server.listen_port}"

    def start(self) -> None:
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
        if START is None or PID is None:
            pytest.skip("FIXSTAR_TEST_MILVUS_START and FIXSTAR_TEST_MILVUS_PID do not say how to kill this server")
        number = int(Path(PID).read_text())
        os.kill(number, signal.SIGKILL)
        while Path(f"/proc/{number}").exists() and "Z" not in Path(f"/proc/{number}/stat").read_text().split()[2]:
            time.sleep(0.05)


@cache
def server() -> OwnServer | RunningServer:
    """The server that tests share."""
    pytest.importorskip("pymilvus", reason="pymilvus is not installed: pip install 'fixstar[milvus]'")
    return RunningServer(RUNNING) if RUNNING else OwnServer()


def fresh_url(items: Path | str, index: str = "FLAT") -> str:
    """The address of a gallery that does not exist yet."""
    return f"milvus://{server().place}?gallery=test_{token_hex(8)}&index={index}&items={quote(str(items), safe='')}"


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
