"""A gallery on PostgreSQL as people run it: a role with few rights, a pooler in transaction mode, a standby."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray
from pooler import pooler
from postgres_server import Server, fresh_url, shared_server
from wording import refuses

from fixstar.errors import GalleryError, GalleryUnavailableError
from fixstar.gallery import verify_gallery
from fixstar.gallery.postgres import READ, PostgresGallery
from fixstar.geometry import unit


def vectors(count: int) -> NDArray[np.float32]:
    return unit(np.random.default_rng(0).standard_normal((count, 3))).astype(np.float32)


def test_a_service_may_do_its_work_without_owning_the_tables() -> None:
    server, name = shared_server(), fresh_url().rpartition("=")[2]
    server.execute("CREATE ROLE shop_app LOGIN")
    with PostgresGallery(server.url(name)) as owner:
        server.execute(f"GRANT USAGE ON SCHEMA {name} TO shop_app")
        rights = "SELECT, INSERT, UPDATE, DELETE"
        server.execute(f"GRANT {rights} ON ALL TABLES IN SCHEMA {name} TO shop_app")
        server.execute(
            f"ALTER DEFAULT PRIVILEGES IN SCHEMA {name} GRANT {rights} ON TABLES TO shop_app"
        )
        owner.create_version("v1", 3)
        owner.create_version("v2", 3)
        with PostgresGallery(server.url(name, user="shop_app")) as app:
            app.upsert("v1", ["a", "b"], vectors(2))
            assert app.replace_vectors("v2", list(app.get(["a"]).values()), vectors(1)) == ["a"]
            assert app.count() == {"v1": 1, "v2": 1}
            assert len(app.search("v2", vectors(1))[0]) == 2
            assert app.delete(["b"]) == 1
            for refused in (lambda: app.create_version("v3", 3), lambda: app.build_index("v1")):
                with refuses(GalleryUnavailableError, varies=r"test_\d+"):
                    refused()
        owner.build_index("v2")
        assert [one.version for one in owner.indexes()] == ["v2"]


def test_a_pooler_may_run_every_transaction_in_another_session() -> None:
    server, name = shared_server(), fresh_url().rpartition("=")[2]
    with pooler(f"{server.folder}/.s.PGSQL.5432") as (port, used):
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres?gallery={name}"
        with PostgresGallery(url) as gallery, PostgresGallery(f"{url}_other") as other:
            for one in (gallery, other):
                one.create_version("v1", 3)
            gallery.upsert("v1", [f"i{number}" for number in range(50)], vectors(50))

            def ask(number: int) -> list[str]:
                return [
                    hit.id for hit in gallery.search("v1", vectors(50)[number : number + 1], k=1)[0]
                ]

            with ThreadPoolExecutor(4) as pool:
                assert list(pool.map(ask, range(50))) == [[f"i{number}"] for number in range(50)]
            other.upsert("v1", ["only here"], vectors(1))
            assert gallery.delete(["i0"]) == 1
            for _ in range(2):
                assert [(state.version, state.items) for state in gallery.build_index()] == [
                    ("v1", 49)
                ]
            assert len(gallery.search("v1", vectors(1), k=60, exact=False)[0]) == 49
            assert (gallery.count(), other.count()) == ({"v1": 49}, {"v1": 1})
            assert [item.id for item in other.iterate()] == ["only here"]
        with PostgresGallery(url, read_only=True) as reader:
            assert len(reader.search("v1", vectors(1), k=60)[0]) == 49
            with refuses(GalleryUnavailableError, varies=r"test_\d+"):
                reader.delete(["i1"])
        with PostgresGallery(url) as again:  # nothing of the reader stays in a session
            assert again.delete(["i1"]) == 1
        assert set(used) == {0, 1, 2}


def wait_for_replay(primary: Server, replica: PostgresGallery) -> None:
    """Until the standby has replayed everything that the primary has written so far."""
    ((written,),), until = (
        primary.execute("SELECT pg_current_wal_lsn()::text"),
        time.monotonic() + 120,
    )
    while True:
        with replica._pool.transaction(READ) as db:
            if db.execute(
                "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (written,)
            ).fetchone() == (True,):
                return
        assert time.monotonic() < until, "the standby does not follow"
        time.sleep(0.01)


def test_a_standby_is_searched_and_follows_the_primary() -> None:
    server = Server()
    with PostgresGallery(server.url("shop")) as primary:
        primary.create_version("v1", 3)
        rows, names = vectors(500), [f"i{number}" for number in range(500)]
        primary.upsert("v1", names, rows, [{"even": number % 2 == 0} for number in range(500)])
        with server.standby() as folder:
            hosts = f"host={server.folder},{folder}&target_session_attrs=standby"
            url = f"postgresql://postgres@/postgres?{hosts}&gallery=shop"
            with PostgresGallery(url, read_only=True) as replica:

                def require_equal() -> None:
                    wait_for_replay(server, replica)
                    assert replica.count() == primary.count()
                    for options in ({}, {"where": {"even": True}}, {"exact": False}):
                        assert replica.search("v1", rows[:5], **options) == primary.search(
                            "v1", rows[:5], **options
                        )

                require_equal()
                assert primary.delete(["i0", "i7"]) == 2
                require_equal()
                assert replica.get(["i0", "i1"]).keys() == {"i1"}
                primary.build_index("v1")
                require_equal()
                assert replica.indexes() == primary.indexes() != []
                assert verify_gallery(replica) == []
            with (
                PostgresGallery(url) as writer,
                pytest.raises(GalleryError, match="a standby server"),
            ):
                writer.delete(["i1"])
            with pytest.raises(GalleryError, match="a standby server"):
                PostgresGallery(url.replace("shop", "new"))
