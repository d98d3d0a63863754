"""A PostgreSQL server that dies, restarts, refuses or is not there: nothing acknowledged is lost, and it is told."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import server_faults
from killing import State, after, next_write, vector
from postgres_server import fresh_url, shared_server
from test_gallery_contract import vectors
from wording import refuses

from fixstar.errors import (
    DamagedItemError,
    GalleryError,
    GalleryUnavailableError,
    MissingExtraError,
)
from fixstar.gallery import open_gallery, verify_gallery
from fixstar.gallery.addresses import parse_postgres_address
from fixstar.gallery.postgres import WRITE, PostgresGallery, meaning
from fixstar.geometry import unit

WIDTH = 24  # of the vectors in killing


def keep_writing(gallery: PostgresGallery, seed: int, said: list[Any]) -> None:
    """Until the server is gone: what is about to be written, then True when it was acknowledged."""
    rng = np.random.default_rng(seed)
    for step in range(seed << 20, (seed + 1) << 20):
        plan = next_write(rng, step)
        plan["kind"] = "delete" if plan["kind"] == "delete" else "upsert"
        said.append(plan)
        try:
            if plan["kind"] == "delete":
                gallery.delete(plan["ids"])
            else:
                rows = np.stack([vector(item, plan["version"], step) for item in plan["ids"]])
                gallery.upsert(plan["version"], plan["ids"], rows, [{"step": step}] * len(rows))
        except GalleryError:
            return
        said.append(True)


def test_a_killed_server_loses_nothing_and_the_gallery_reconnects() -> None:
    server = shared_server()
    state: State = {}
    rng = np.random.default_rng(0)
    with PostgresGallery(server.url("killed")) as gallery:
        for n in (1, 2, 3):
            gallery.create_version(f"v{n}", WIDTH)
        for kill, sign in enumerate((signal.SIGKILL, signal.SIGQUIT)):  # QUIT: an immediate stop
            said: list[Any] = []
            writer = threading.Thread(target=keep_writing, args=(gallery, kill + 1, said))
            writer.start()
            while True not in said and writer.is_alive():
                time.sleep(0.01)
            time.sleep(float(rng.uniform(0, 0.3)))
            server.kill(sign)
            writer.join(120)
            assert not writer.is_alive()
            if kill == 0:
                with pytest.raises(GalleryError, match=r"cannot connect|was lost"):
                    gallery.count()
            server.start()
            done = said.count(True)
            assert done > 0
            plans = [plan for plan in said if plan is not True]
            for plan in plans[:done]:
                state = after(state, plan)
            state = check(gallery, [state, *(after(state, plan) for plan in plans[done:])])


def check(gallery: PostgresGallery, allowed: list[State]) -> State:
    items = list(gallery.iterate())
    state: State = {item.id: (item.version, item.payload["step"]) for item in items}
    assert state in allowed
    for item in items:
        np.testing.assert_allclose(
            item.vector, vector(item.id, item.version, state[item.id][1]), atol=1e-6
        )
    assert verify_gallery(gallery) == []
    with gallery._pool.transaction(WRITE) as db:  # no vector is left without its item
        for n, count in enumerate(gallery.count().values(), 1):
            assert db.execute(f"SELECT count(*) FROM vectors_{n}").fetchone() == (count,)
    hits = gallery.search("v1", np.stack([item.vector for item in items[:20]]), k=1)
    assert [(found[0].id, found[0].version) for found in hits] == [
        (i.id, i.version) for i in items[:20]
    ]
    return state


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)")
def test_kills_and_a_failing_disk_under_several_writers_lose_nothing() -> None:
    seen = server_faults.run(
        [3, 113, 149]
    )  # all processes killed; a full disk and errors of syncing, both in the log
    assert seen["writes acknowledged"] > 0  # a busy machine writes little before the first fault
    assert seen["acknowledged writes lost"] == 0
    for kind in ("full", "sync error"):
        assert seen[f"{kind}: calls that failed"] > 0
        assert seen[f"{kind}: writes refused"] > 0


MOVER = """
import sys
import numpy as np
from fixstar.gallery import open_gallery
from fixstar.geometry import unit
rows = unit(np.random.default_rng(0).standard_normal((400, 24)).astype(np.float32))
with open_gallery(sys.argv[1]) as gallery:
    for step in range(100_000):
        gallery.upsert(f"v{1 + step % 2}", [str(i) for i in range(400)], rows, [{"step": step}] * 400)
        print("first" if step == 0 else "next", flush=True)
"""


def test_a_killed_writer_leaves_nothing_half_written() -> None:
    url = fresh_url()
    with PostgresGallery(url) as gallery:
        for version in ("v1", "v2"):
            gallery.create_version(version, WIDTH)
        with subprocess.Popen(
            [sys.executable, "-c", MOVER, url], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "first\n"
            time.sleep(0.2)
            writer.kill()
        # The server may still end the last write after its client is dead, between two pages of a reader.
        # This write waits for the lock, which goes with the writer's connection.
        gallery.upsert("v1", ["other"], unit(np.ones((1, WIDTH), np.float32)))
        items = [item for item in gallery.iterate() if item.id != "other"]
        assert len(items) == 400
        assert len({(item.version, item.payload["step"]) for item in items}) == 1
        assert verify_gallery(gallery) == []


def test_a_connection_lost_while_committing_is_told_as_what_it_is() -> None:
    with PostgresGallery(fresh_url()) as gallery:
        gallery.create_version("v1", 3)

        def lose() -> None:
            with gallery._pool.transaction(WRITE) as db:
                db.execute("UPDATE gallery SET written = 77")
                shared_server().execute(f"SELECT pg_terminate_backend({db.info.backend_pid}, 5000)")

        with refuses(GalleryUnavailableError, varies=r"test_\d+"):
            lose()
        gallery.upsert("v1", ["a"], vectors(1, 3))
        assert gallery.count() == {"v1": 1}


def test_connections_lost_while_idle_are_replaced() -> None:
    with PostgresGallery(fresh_url()) as gallery:
        gallery.create_version("v1", 3)
        gallery.upsert("v1", ["a"], vectors(1, 3))
        shared_server().execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'fixstar'"
        )
        gallery.upsert("v1", ["b"], vectors(1, 3))
        assert gallery.count() == {"v1": 2}


def backend(gallery: PostgresGallery) -> int:
    with gallery._pool.transaction(WRITE) as db:
        return db.info.backend_pid


def test_a_fork_makes_connections_of_its_own() -> None:
    with PostgresGallery(fresh_url()) as gallery:
        gallery.create_version("v1", 3)
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                gallery.upsert("v1", ["child"], vectors(1, 3))
                os.write(send, str(backend(gallery)).encode())
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert int(os.read(receive, 100)) != backend(gallery)
        gallery.upsert("v1", ["parent"], vectors(1, 3))
        assert [item.id for item in gallery.iterate()] == ["child", "parent"]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:sesame@127.0.0.1:1/db",
        "postgresql://me:sesame@/db?host=/nowhere&gallery=shop",
        "postgresql://me:x%sesame@host/db",
        "postgresql://me:x@sesame@host/db",
        "postgresql://me:x/sesame@host/db",
        "postgresql://me:sesame/x@host/db",
        "postgresql://me:sesame?x@127.0.0.1:1/db",
        "postgresql://me:sesame?x@127.0.0.1:1/db?gallery=shop",
        "postgresql://me:sesame@host:port/db",
        "postgresql://me:sesame@host/db?galery=x",
        "postgresql://me:sesame@host/db?zzz=x",
        "postgresql://me:x@y?sesame=1@host/db",
        "postgresql://me:x@host/db?sesame=1@host/db",
        "postgres://127.0.0.1:1/db?password=sesame&connect_timeout=sesame",
        "mysql://me:sesame@host/db",
    ],
)
def test_wrong_addresses_are_told_without_the_password(url: str) -> None:
    with refuses(GalleryError, varies=r"\(conn.*?\)") as caught:
        open_gallery(url)
    assert "sesame" not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__cause__ is None  # nor in what a traceback prints above it
    assert "sesame" not in repr(parse_postgres_address("postgresql://me:sesame@host/db"))


def test_what_the_server_says_stands_in_brackets() -> None:
    with refuses(GalleryUnavailableError, varies=r"(?<=\()conn.*(?= failed: No)"):
        open_gallery("postgresql:///db?host=/nowhere")


def test_a_lost_vector_is_told_and_the_others_are_read() -> None:
    server, name = shared_server(), fresh_url().rpartition("=")[2]
    with PostgresGallery(server.url(name)) as gallery:
        gallery.create_version("v1", 3)
        gallery.upsert("v1", ["a", "b", "c", "d"], vectors(4, 3))
        server.execute(f"DELETE FROM {name}.vectors_1 WHERE number IN (2, 3)")
        lost = [f"{item!r} of version 'v1': the vector is missing" for item in ("b", "c")]
        assert verify_gallery(gallery) == lost
        with refuses(DamagedItemError, "delete-items", varies=r"test_\d+"):
            gallery.get(["a", "b"])


def test_a_server_that_refuses() -> None:
    server = shared_server()
    for statement in ("CREATE ROLE plain LOGIN", "CREATE DATABASE bare", "CREATE DATABASE latin ENCODING LATIN1 "
                      "LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"):  # fmt: skip
        server.execute(statement)
    with refuses(GalleryUnavailableError):
        PostgresGallery(server.url(database="ghost"))
    with refuses(GalleryError):
        PostgresGallery(server.url(database="latin"))
    with refuses(GalleryError):
        PostgresGallery(server.url(database="bare", user="plain"))
    with refuses(GalleryError):
        PostgresGallery(server.url(database="bare"), read_only=True)
    server.execute("CREATE EXTENSION vector", database="bare")
    server.execute(
        "UPDATE pg_extension SET extversion = '0.7.4' WHERE extname = 'vector'", database="bare"
    )
    with refuses(GalleryError):
        PostgresGallery(server.url(database="bare"))


WRITES: list[Callable[[PostgresGallery], object]] = [
    lambda gallery: gallery.upsert("v1", ["b"], vectors(1, 3)),
    lambda gallery: gallery.delete(["a"]),
    lambda gallery: gallery.create_version("v2", 3),
    lambda gallery: gallery.build_index("v1"),
]


def test_rights_decide_who_reads_and_who_writes() -> None:
    server, name = shared_server(), fresh_url().rpartition("=")[2]
    server.execute("CREATE ROLE reader LOGIN")
    with PostgresGallery(server.url(name)) as gallery:
        gallery.create_version("v1", 3)
        gallery.upsert("v1", ["a"], vectors(1, 3))
    with pytest.raises(GalleryError, match="GRANT USAGE"):
        PostgresGallery(server.url(name, user="reader"))
    server.execute(f"GRANT USAGE ON SCHEMA {name} TO reader")
    with refuses(GalleryUnavailableError, varies=r"test_\d+"):
        PostgresGallery(server.url(name, user="reader"))
    server.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO reader")
    with refuses(GalleryUnavailableError, varies=r"test_\d+"):
        PostgresGallery(server.url("another", user="reader"))
    for options in ({}, {"read_only": True}):
        with PostgresGallery(server.url(name, user="reader"), **options) as gallery:
            assert len(gallery.search("v1", vectors(1, 3))[0]) == 1
            for write in WRITES:
                with refuses(GalleryUnavailableError, varies=r"test_\d+"):
                    write(gallery)
            assert gallery.count() == {"v1": 1}


def test_what_is_no_gallery_is_left_as_it_is() -> None:
    server = shared_server()
    for create, read_only in ((False, False), (True, True)):
        with refuses(GalleryError):
            PostgresGallery(server.url("absent"), create=create, read_only=read_only)
    server.execute("CREATE SCHEMA foreign_one")
    server.execute("CREATE TABLE foreign_one.items (id text)")
    with refuses(GalleryError):
        PostgresGallery(server.url("foreign_one"))
    assert server.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'foreign_one'") == [
        (1,)
    ]
    PostgresGallery(server.url("newer")).close()
    for other in (1, 99):
        server.execute(f"UPDATE newer.gallery SET format = {other}")
        with refuses(GalleryError):
            PostgresGallery(server.url("newer"))
        assert server.execute("SELECT format FROM newer.gallery") == [(other,)]


def test_a_full_disk_and_a_missing_driver_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from psycopg import errors

    address = parse_postgres_address("postgresql://me:sesame@host/db")
    told = meaning(
        errors.DiskFull("could not extend file: No space left on device (sesame)"), address
    )
    assert "full disk" in told
    assert "sesame" not in told
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match="needs psycopg"):
        open_gallery("postgresql://me@host/db")
