"""A gallery that release 0.2.0 made: it is migrated by the first who opens it and may, and nobody loses anything."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import psycopg
import pytest
from postgres_server import fresh_url, shared_server

from fixstar.errors import GalleryError
from fixstar.gallery import verify_gallery
from fixstar.gallery.postgres import PostgresGallery
from fixstar.geometry import unit

SCHEMA = """
CREATE SCHEMA {name};
SET search_path TO {name}, public;
CREATE TABLE gallery (format integer NOT NULL, written bigint NOT NULL);
CREATE TABLE versions (number integer PRIMARY KEY, name text COLLATE "C" NOT NULL UNIQUE, width integer NOT NULL,
    full_width integer NOT NULL, projection bytea, created timestamptz NOT NULL DEFAULT now(),
    items bigint NOT NULL DEFAULT 0);
CREATE TABLE items (id text COLLATE "C" PRIMARY KEY, version integer NOT NULL REFERENCES versions (number),
    number bigint NOT NULL UNIQUE, payload json NOT NULL);
CREATE INDEX items_by_version ON items (version, id);
CREATE TABLE indexes (version integer PRIMARY KEY REFERENCES versions (number), recall double precision);
INSERT INTO gallery VALUES (1, 40);
INSERT INTO versions (number, name, width, full_width, items) VALUES (1, 'v1', 3, 3, 40);
CREATE TABLE vectors_1 (number bigint PRIMARY KEY, vector vector(3) NOT NULL);
ALTER TABLE vectors_1 ALTER COLUMN vector SET STORAGE PLAIN;
"""
VECTORS = unit(np.random.default_rng(0).standard_normal((40, 3))).astype(np.float32)
PAYLOADS: list[dict[str, Any]] = [{"n": n, "text": "a\0b" if n % 2 else "ü", "z": [1, None]} for n in range(40)]
OPEN = "import sys; from fixstar.gallery import open_gallery; open_gallery(sys.argv[1], create=False).close()"


@pytest.fixture
def name() -> str:
    """The schema of a gallery as 0.2.0 left it, which a role of few rights may use."""
    server, name = shared_server(), fresh_url().rpartition("=")[2]
    PostgresGallery(fresh_url()).close()  # installs pgvector
    with psycopg.connect(server.url()) as db:
        db.execute(SCHEMA.format(name=name))
        for n, (vector, payload) in enumerate(zip(VECTORS.tolist(), PAYLOADS, strict=True)):
            db.execute("INSERT INTO items VALUES (%s, 1, %s, %s)", (f"i{n:02}", n + 1, json.dumps(payload)))
            db.execute("INSERT INTO vectors_1 VALUES (%s, %s::vector)", (n + 1, json.dumps(vector)))
        if not db.execute("SELECT 1 FROM pg_roles WHERE rolname = 'few_rights'").fetchone():
            db.execute("CREATE ROLE few_rights LOGIN")
        db.execute(f"GRANT USAGE ON SCHEMA {name} TO few_rights")
        db.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {name} TO few_rights")
    return name


def require_intact(name: str, user: str = "postgres") -> None:
    with PostgresGallery(shared_server().url(name, user=user), create=False) as gallery:
        assert gallery.count() == {"v1": 40}
        items = list(gallery.iterate())
        assert [(item.id, item.payload) for item in items] == [(f"i{n:02}", PAYLOADS[n]) for n in range(40)]
        assert np.array_equal([item.vector for item in items], VECTORS)
        assert verify_gallery(gallery) == []
        (hits,) = gallery.search("v1", VECTORS[7:8], k=40, where={"n": {"lt": 20}, "text": "a\0b"})
        assert hits[0].id == "i07"
        assert sorted(hit.payload["n"] for hit in hits) == list(range(1, 20, 2))
        assert [hit.id for hit in gallery.search("v1", VECTORS[:1], where={"n": 3})[0]] == ["i03"]
        gallery.upsert("v1", ["new"], VECTORS[:1], [{"n": 100}])
        assert [hit.id for hit in gallery.search("v1", VECTORS[:1], where={"n": {"gt": 50}})[0]] == ["new"]
        assert gallery.delete(["new"]) == 1


def tables(name: str) -> list[Any]:
    columns = "SELECT table_name, column_name, data_type, is_nullable, generation_expression FROM "
    found = shared_server().execute(
        f"{columns} information_schema.columns WHERE table_schema = '{name}' ORDER BY table_name, ordinal_position"
    )
    indexes = shared_server().execute(f"SELECT indexdef FROM pg_indexes WHERE schemaname = '{name}' ORDER BY indexname")
    return found + [(row[0].replace(name, "NAME"),) for row in indexes]


@contextmanager
def held_table(name: str) -> Iterator[None]:
    """A reader's transaction: nobody can alter the items until it ends."""
    with psycopg.connect(shared_server().url()) as db:
        db.execute(f"SELECT count(*) FROM {name}.items")
        yield


def wait_for(waiting: str, count: int) -> list[int]:
    """The processes on the server that wait for a lock, when there are so many."""
    text, until = f"SELECT pid FROM pg_locks WHERE NOT granted AND {waiting}", time.monotonic() + 120
    while len(found := shared_server().execute(text)) != count:
        assert time.monotonic() < until, found
        time.sleep(0.01)
    return [pid for (pid,) in found]


def for_items(name: str) -> str:
    return f"relation = '{name}.items'::regclass"


FOR_MIGRATION = "locktype = 'advisory'"


def test_opening_migrates_and_everything_is_there(name: str) -> None:
    require_intact(name)
    new = fresh_url().rpartition("=")[2]
    with PostgresGallery(shared_server().url(new)) as gallery:
        gallery.create_version("v1", 3)
    assert tables(name) == tables(new)
    assert shared_server().execute(f"SELECT format FROM {name}.gallery") == [(2,)]


def test_what_was_done_by_hand_is_kept(name: str) -> None:
    shared_server().execute(
        f"ALTER TABLE {name}.items ADD COLUMN fields jsonb NOT NULL GENERATED ALWAYS AS "
        r"(replace(payload::text, '\u0000', '\u0001')::jsonb) STORED"
    )
    require_intact(name)


def test_several_open_it_at_once_and_one_migrates(name: str) -> None:
    url, few = (shared_server().url(name, user=user) for user in ("postgres", "few_rights"))
    with ThreadPoolExecutor() as pool:
        with held_table(name):
            command = [sys.executable, "-c", OPEN, url]
            started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
            wait_for(for_items(name), 1)
            wait_for(FOR_MIGRATION, 2)
            late = [pool.submit(PostgresGallery, few, read_only=only, wait=0.05) for only in (False, True)]
            wait_for(FOR_MIGRATION, 4)
            time.sleep(0.2)  # longer than they wait for a writer
            assert not any(one.done() for one in late)
        for process in started:
            assert process.communicate()[1] == ""
            assert process.returncode == 0
        for one in late:
            one.result().close()
    require_intact(name)


def test_a_migration_that_is_cut_off_leaves_nothing_and_the_next_one_does_it(name: str) -> None:
    server = shared_server()
    added = f"SELECT 1 FROM pg_attribute WHERE attrelid = '{name}.items'::regclass AND attname = 'fields'"
    with ThreadPoolExecutor() as pool:
        with held_table(name):
            first = pool.submit(PostgresGallery, server.url(name))
            (pid,) = wait_for(for_items(name), 1)
            second = pool.submit(PostgresGallery, server.url(name))
            wait_for(FOR_MIGRATION, 1)
            server.execute(f"SELECT pg_terminate_backend({pid}, 5000)")
            with pytest.raises(GalleryError, match="was lost"):
                first.result()
            wait_for(FOR_MIGRATION, 0)
            wait_for(for_items(name), 1)
            assert server.execute(f"SELECT format FROM {name}.gallery") == [(1,)]
            assert server.execute(added) == []
        second.result().close()
    require_intact(name)


def test_a_search_that_would_find_nothing_stops_the_migration(name: str) -> None:
    """A rewritten table is empty for a transaction whose snapshot is older than the rewriting."""

    def search_as_0_2_0() -> list[Any]:
        with psycopg.connect(shared_server().url()) as db:
            db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            db.execute(f"SELECT number FROM {name}.versions").fetchall()
            return db.execute(f"SELECT count(*) FROM {name}.items").fetchall()

    before = tables(name)
    with ThreadPoolExecutor() as pool:
        with held_table(name):
            opening = pool.submit(PostgresGallery, shared_server().url(name))
            wait_for(for_items(name), 1)
            search = pool.submit(search_as_0_2_0)
            wait_for(for_items(name), 2)
        with pytest.raises(GalleryError, match=r"others read it at the same time.* Nothing was changed"):
            opening.result()
        assert search.result() == [(40,)]
    assert tables(name) == before
    require_intact(name)


@pytest.mark.parametrize(("user", "read_only"), [("few_rights", False), ("few_rights", True), ("postgres", True)])
def test_who_may_not_migrate_is_told_who_may(name: str, user: str, read_only: bool) -> None:
    before = tables(name)
    with pytest.raises(GalleryError, match=r"format 1.* needs format 2.* the role 'postgres'") as told:
        PostgresGallery(shared_server().url(name, user=user), read_only=read_only)
    (step,) = told.value.next_steps
    assert (step.action, step.note) == ("status", "as the role postgres; opening the gallery migrates it")
    assert tables(name) == before
    require_intact(name)
    require_intact(name, user="few_rights")


def test_a_newer_format_is_refused(name: str) -> None:
    shared_server().execute(f"UPDATE {name}.gallery SET format = 3")
    before = tables(name)
    for read_only in (False, True):
        with pytest.raises(GalleryError, match=r"has format 3; this fixstar reads formats up to 2\. Update fixstar"):
            PostgresGallery(shared_server().url(name), read_only=read_only)
    assert tables(name) == before
