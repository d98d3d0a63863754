"""Translated vectors beside the old ones: the same behaviour in every store."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
import pytest
from forked import fork
from typed import typed
from vector_shops import (
    FILES,
    NEW,
    OLD,
    SERVED,
    ChromaShop,
    LanceShop,
    MilvusShop,
    PostgresShop,
    QdrantShop,
    Shop,
    chroma_server,
)
from wording import check_wording, refuses

from fixstar.errors import (
    DataError,
    FixstarError,
    GalleryError,
    GateError,
    InputError,
    MissingExtraError,
)
from fixstar.gallery.foreign import lance_table, postgres_table
from fixstar.gallery.transfer import open_vectors
from fixstar.gallery.vector_files import MARK
from fixstar.geometry import unit
from fixstar.translation import Map, Translation, migrate, save_translation
from fixstar.translation import migrate as module
from fixstar.translation.migrate import Migrated, plan_migration, switch_migration, undo_migration

rng = np.random.default_rng(0)
VECTORS = unit(rng.standard_normal((60, OLD))).astype(np.float32)
IDS = [str(number) for number in range(1, 61)]
MATRIX = rng.standard_normal((OLD, NEW))
STORES = {**SERVED, **FILES}


def row(difference: float, low: float, high: float) -> dict[str, float]:
    return {"difference": difference, "low": low, "high": high}


def way(difference: float | None = 0.02, matrix: Any = MATRIX) -> Translation:
    """A translation whose forward map alone was measured to gain so much, with an interval of two points around it."""
    measured = {}
    if difference is not None:
        ahead = row(difference, difference - 0.01, difference + 0.01)
        measured = {"stored mapped forward": ahead, "both sides, two models": row(0.05, 0.03, 0.07)}
    about = {"measured": measured, "measure": "top-1", "made": "2026-01-01"}
    return Translation("old", "new", forward=Map.linear(matrix), two=0.6, about=about)


WAY = way()


@pytest.fixture(scope="module")
def chroma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with chroma_server(tmp_path_factory.mktemp("chroma")) as port:
        yield port


@pytest.fixture(params=STORES)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    if request.param == "chroma":
        ChromaShop.port = request.getfixturevalue("chroma")
    return filled(STORES[request.param](tmp_path))


Kind = TypeVar("Kind", bound=Shop)


def filled(shop: Kind) -> Kind:
    shop.put(IDS[:40], VECTORS[:40])
    return shop


def run(shop: Shop, translation: Translation = WAY, **options: Any) -> Migrated:
    return migrate.migrate(shop.source(), translation, shop.to, **options)


def assert_translated(shop: Shop) -> None:
    """Every old item, and nothing else, has its vector as the map makes it."""
    old = shop.old()
    new = shop.translated()
    assert new.keys() == old.keys()
    assert WAY.forward is not None
    expected = WAY.forward(unit(np.stack(list(old.values()))))
    np.testing.assert_allclose(np.stack([new[name] for name in old]), expected, atol=1e-6)


def test_vectors_are_written_beside_and_the_old_ones_stay(shop: Shop) -> None:
    before = shop.old()
    assert run(shop) == Migrated(written=40, unchanged=0, own=0, removed=0)
    after = shop.old()
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert_translated(shop)


def test_a_second_run_takes_in_what_is_new_changed_or_gone(shop: Shop) -> None:
    run(shop)
    shop.put(IDS[40:50], VECTORS[40:50])
    shop.put(IDS[:3], VECTORS[50:53])
    shop.delete(IDS[10:12])
    done = run(shop)
    assert (done.written + done.unchanged, done.removed) == (48, 2)
    if type(shop) in SERVED.values():
        assert done.written == 13  # a file is always written whole
    assert_translated(shop)


def test_after_a_failure_in_the_middle_the_same_call_resumes(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 8)
    beside = type(shop.source().beside(shop.to))
    write = beside.write
    calls = []

    def fails(self: Any, *given: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise ConnectionResetError("pulled")
        write(self, *given)

    monkeypatch.setattr(beside, "write", fails)
    with pytest.raises(ConnectionResetError):
        run(shop)
    done = run(shop)
    assert_translated(shop)
    if type(shop) in SERVED.values():
        assert (done.written, done.unchanged) == (24, 16)
    assert (run(shop).written == 0) == (type(shop) in SERVED.values())


def test_the_plan_writes_nothing_and_counts(shop: Shop) -> None:
    plan = plan_migration(shop.source(), WAY, shop.to, price=20)
    assert (plan.items, plan.there, plan.widths, plan.bytes) == (40, 0, (OLD, NEW), 40 * NEW * 4)
    assert plan.cost == pytest.approx(40 * 20 / 1e6)
    assert plan.forecast == "gains"
    assert "+2.0 points, between +1.0 and +3.0" in plan.sentence
    assert not shop.source().beside(shop.to).there()
    run(shop)
    assert plan_migration(shop.source(), WAY, shop.to).there == 40


def test_another_translation_does_not_mix_with_the_first(shop: Shop) -> None:
    run(shop)
    with pytest.raises(InputError, match="another translation"):
        run(shop, way(matrix=MATRIX + 1))
    with pytest.raises(InputError, match="another translation"):
        switch_migration(shop.source(), way(matrix=MATRIX + 1), shop.to)
    assert_translated(shop)


def test_a_place_for_other_vectors_is_refused(shop: Shop) -> None:
    run(shop)
    with pytest.raises(InputError):
        run(shop, way(matrix=MATRIX[:, :5]))
    assert_translated(shop)


def test_a_translation_that_loses_is_refused_and_done_anyway(shop: Shop) -> None:
    with pytest.raises(
        GateError, match=r"lose against the old model: .5\.0 points.*both sides"
    ) as caught:
        run(shop, way(-0.05))
    assert [step.action for step in caught.value.next_steps] == ["init", "repeat"]
    assert not shop.source().beside(shop.to).there()
    assert run(shop, way(-0.05), anyway=True).written == 40
    with pytest.raises(GateError, match="left as they are"):
        switch_migration(shop.source(), way(-0.05), shop.to)


def test_a_switch_waits_for_evidence_and_for_all_items(shop: Shop) -> None:
    with pytest.raises(InputError, match="run the migration first"):
        switch_migration(shop.source(), WAY, shop.to)
    run(shop)
    for undecided, told in ((way(0.001), "not decided"), (way(None), "Unproven")):
        with pytest.raises(GateError, match=told):
            switch_migration(shop.source(), undecided, shop.to)
    shop.put(IDS[40:41], VECTORS[40:41])
    with pytest.raises(InputError, match="lacks 1 item"):
        switch_migration(shop.source(), WAY, shop.to)


def test_vectors_of_another_width_and_the_old_place_are_refused(shop: Shop) -> None:
    narrow = Translation("old", "new", forward=Map.linear(np.eye(3)), two=0.6)
    with pytest.raises(
        InputError, match="4 components, and the translation is for those of old, which have 3"
    ):
        run(shop, narrow)
    back = Translation("old", "new", backward=Map.linear(np.eye(4)), one=0.0)
    with pytest.raises(InputError, match="maps no stored vectors"):
        run(shop, back)
    source = shop.source()
    name = (
        str(getattr(source, "path", source.name))
        .removeprefix("table ")
        .removeprefix("collection ")
        .strip("'")
    )
    with pytest.raises(InputError, match="never written"):
        migrate.migrate(source, WAY, name)


def test_a_vector_without_direction_is_named(shop: Shop) -> None:
    shop.put(IDS[40:41], np.zeros((1, OLD), np.float32))
    with pytest.raises(DataError, match="'41' is zero"):
        run(shop)
    shop.delete(IDS[40:41])
    run(shop)
    assert_translated(shop)


# --- what each store does to switch


def test_postgres_switches_a_view_that_keeps_its_grants_and_uses_the_index(tmp_path: Path) -> None:
    shop = filled(PostgresShop(tmp_path))
    import psycopg

    server = shop.server
    run(shop)
    view = f"{shop.name}_current"
    assert f"read {view}" in switch_migration(shop.source(), WAY, shop.to)

    def shown() -> Any:
        return server.execute(f"SELECT id, title, vector_dims(vector) FROM {view} WHERE id = 7")

    assert shown() == [(7, "title 7", NEW)]
    role = f"r_{shop.name}"
    server.execute(f"CREATE ROLE {role}")
    server.execute(f"GRANT SELECT ON {view} TO {role}")
    server.execute(f"CREATE INDEX ON {shop.to} USING hnsw (vector vector_cosine_ops)")
    with psycopg.connect(server.url()) as db:
        db.execute("SET enable_seqscan = off")
        db.execute("SET enable_sort = off")
        plan = db.execute(
            f"EXPLAIN SELECT id FROM {view} ORDER BY vector <=> '[1,2,3,4,5,6]' LIMIT 3"
        ).fetchall()
    assert any(f"Index Scan using {shop.to}_vector_idx" in line for (line,) in plan), plan
    undo_migration(shop.source(), shop.to)
    assert shown() == [(7, "title 7", OLD)]
    switch_migration(shop.source(), WAY, shop.to)
    assert server.execute(f"SELECT has_table_privilege('{role}', '{view}', 'SELECT')") == [(True,)]
    server.execute(f"DROP OWNED BY {role}")
    server.execute(f"DROP ROLE {role}")
    with refuses(InputError, "repeat"):
        switch_migration(shop.source(), WAY, shop.to, alias=shop.name)


def test_qdrant_switches_an_alias(tmp_path: Path) -> None:
    shop = filled(QdrantShop(tmp_path))
    run(shop)

    def leads_to() -> dict[str, str]:
        return {one.alias_name: one.collection_name for one in shop.client.get_aliases().aliases}

    switch_migration(shop.source(), WAY, shop.to)
    assert leads_to() == {"photos_current": "photos-new"}
    found = shop.client.query_points(
        "photos_current", query=[1.0] * NEW, limit=1, with_payload=True
    ).points[0]
    assert found.payload["title"] == f"title {found.id}"
    undo_migration(shop.source(), shop.to)
    assert leads_to() == {"photos_current": "photos"}
    switch_migration(shop.source(), WAY, shop.to, alias="live")
    assert leads_to() == {"photos_current": "photos", "live": "photos-new"}
    with pytest.raises(InputError, match="is a collection"):
        switch_migration(shop.source(), WAY, shop.to, alias="photos")
    params = shop.models.VectorParams(size=2, distance=shop.models.Distance.DOT)
    shop.client.create_collection("third", vectors_config=params)
    made = shop.models.CreateAlias(collection_name="third", alias_name="taken")
    shop.client.update_collection_aliases([shop.models.CreateAliasOperation(create_alias=made)])
    with pytest.raises(InputError, match="leads to collection 'third'"):
        switch_migration(shop.source(), WAY, shop.to, alias="taken")


def test_points_of_the_new_model_in_the_new_collection_stay(tmp_path: Path) -> None:
    shop = filled(QdrantShop(tmp_path))
    run(shop)
    fresh = unit(np.ones((1, NEW)))[0].tolist()
    points = [shop.models.PointStruct(id=one, vector=fresh) for one in (5, 999)]
    shop.client.upsert(shop.to, points, wait=True)
    assert run(shop) == Migrated(written=0, unchanged=39, own=1, removed=0)
    new = shop.translated()
    np.testing.assert_allclose([new["5"], new["999"]], [fresh, fresh], atol=1e-6)


def test_a_changed_payload_is_copied_again(tmp_path: Path) -> None:
    shop = filled(QdrantShop(tmp_path))
    run(shop)
    shop.client.set_payload("photos", {"title": "another"}, points=[3], wait=True)
    assert run(shop).written == 1
    assert shop.client.retrieve(shop.to, [3])[0].payload["title"] == "another"


def test_chroma_switches_by_renaming_and_finishes_what_a_kill_left(
    chroma: int, tmp_path: Path
) -> None:
    ChromaShop.port = chroma
    shop = filled(ChromaShop(tmp_path))
    run(shop)
    record = shop.client.get_collection(shop.to, embedding_function=None).get(ids=["2", "3"])
    assert record["documents"] == ["text 2", None]
    assert [{k: v for k, v in one.items() if k != MARK} for one in record["metadatas"]] == [
        {},
        {"title": "title 3"},
    ]

    def width() -> int:
        return open_vectors(shop.address).width

    assert width() == OLD
    check_wording(switch_migration(shop.address, WAY, shop.to))
    assert width() == NEW
    assert run(shop).unchanged == 40  # the old collection is found under its new name
    undo_migration(shop.address, shop.to)
    assert width() == OLD
    shop._old().modify(name=f"{shop.name}_before")  # a kill between the two renamings
    switch_migration(shop.address, WAY, shop.to)
    assert width() == NEW
    undo_migration(shop.address, shop.to)
    assert sorted(
        one for one in (c.name for c in shop.client.list_collections()) if one.startswith(shop.name)
    ) == [
        shop.name,
        shop.to,
    ]
    with pytest.raises(InputError, match="no aliases"):
        switch_migration(shop.address, WAY, shop.to, alias="x")


def test_chroma_that_cannot_be_read(chroma: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no collection 'ghost'; it has"):
        open_vectors(f"chroma://127.0.0.1:{chroma}?collection=ghost")
    with pytest.raises(GalleryError, match="is it running"):
        open_vectors("chroma://127.0.0.1:1?collection=ghost")
    with pytest.raises(DataError, match=r"no chroma\.sqlite3"):
        open_vectors(f"chroma://{tmp_path}?collection=ghost")


def test_lance_keeps_the_other_columns_and_says_what_to_do(tmp_path: Path) -> None:
    shop = filled(LanceShop(tmp_path))
    run(shop)
    table = shop.database.open_table(shop.to)
    assert table.schema.field("taken").type == shop.schema.field("taken").type
    assert set(table.search().select(["taken"]).to_arrow()["taken"].to_pylist()) == {
        shop.table.search().limit(1).to_list()[0]["taken"]
    }
    assert "open table 'photos_new'" in switch_migration(shop.source(), WAY, shop.to)
    assert "never changed" in undo_migration(shop.source(), shop.to)
    with pytest.raises(InputError, match="no table 'ghost'; it has photos, photos_new"):
        lance_table(shop.folder, "ghost")
    with pytest.raises(InputError, match="no column 'sku'; it has id, vector, taken"):
        lance_table(shop.folder, "photos", "sku")
    with pytest.raises(DataError, match="there is no folder"):
        open_vectors(f"lancedb://{tmp_path}/absent?table=photos")


def test_milvus_switches_an_alias_and_keeps_the_other_fields(tmp_path: Path) -> None:
    shop = filled(MilvusShop(tmp_path))
    run(shop)
    alias = f"{shop.name}_current"
    told = switch_migration(shop.source(), WAY, shop.to)
    assert alias in told
    rows = shop.client.query(alias, ids=["7"], output_fields=["*"], consistency_level="Strong")
    assert [(row["price"], row["title"], len(row["embedding"])) for row in rows] == [
        (7, "title 7", NEW)
    ]
    undo_migration(shop.source(), shop.to)
    rows = shop.client.query(alias, ids=["7"], output_fields=["*"], consistency_level="Strong")
    assert [len(row["embedding"]) for row in rows] == [OLD]
    with pytest.raises(InputError, match="cannot be an alias"):
        undo_migration(shop.source(), shop.to, shop.to)


def test_files_say_what_to_load_and_foreign_files_stay(tmp_path: Path) -> None:
    np.savez(tmp_path / "old.npz", vectors=VECTORS[:40], ids=np.array(IDS[:40]))
    to = tmp_path / "new.npz"
    migrate.migrate(tmp_path / "old.npz", WAY, str(to))
    assert f"load {to} instead of" in switch_migration(tmp_path / "old.npz", WAY, str(to))
    assert "never changed" in undo_migration(tmp_path / "old.npz", str(to))
    with refuses(InputError):
        undo_migration(tmp_path / "old.npz", str(to), alias="x")
    mine = tmp_path / "mine.npz"
    np.savez(mine, vectors=VECTORS)
    content = mine.read_bytes()
    with refuses(InputError, "repeat"):
        migrate.migrate(tmp_path / "old.npz", WAY, str(mine))
    assert mine.read_bytes() == content
    with pytest.raises(InputError, match="ends in"):
        migrate.migrate(tmp_path / "old.npz", WAY, str(tmp_path / "new.txt"))


def test_an_index_without_ids_keeps_its_order(tmp_path: Path) -> None:
    faiss = pytest.importorskip(
        "faiss", reason="faiss-cpu is not installed: pip install 'fixstar[index]'"
    )
    index = faiss.IndexFlatL2(OLD)
    index.add(VECTORS[:40])
    faiss.write_index(index, str(tmp_path / "old.faiss"))
    migrate.migrate(tmp_path / "old.faiss", WAY, str(tmp_path / "new.faiss"))
    made = faiss.read_index(str(tmp_path / "new.faiss"))
    assert WAY.forward is not None
    np.testing.assert_allclose(made.reconstruct_n(0, 40), WAY.forward(VECTORS[:40]), atol=1e-6)
    np.savez(tmp_path / "named.npz", vectors=VECTORS[:2], ids=np.array(["a", "b"]))
    with refuses(DataError, "repeat"):
        migrate.migrate(tmp_path / "named.npz", WAY, str(tmp_path / "other.faiss"))


def test_postgres_rows_that_cannot_be_told_apart_and_a_reader_who_may_not_write(
    tmp_path: Path,
) -> None:
    shop = filled(PostgresShop(tmp_path))
    same = postgres_table(shop.server.url(), shop.name, "title")
    shop.server.execute(f"UPDATE {shop.name} SET title = 'same'")
    with pytest.raises(DataError, match="an id twice"):
        migrate.migrate(postgres_table(shop.server.url(), shop.name, "title"), WAY, shop.to)
    assert len(set(same.ids)) == 40
    role = f"reader_{shop.name}"
    shop.server.execute(f"CREATE ROLE {role} LOGIN")
    shop.server.execute(f"GRANT SELECT ON {shop.name} TO {role}")
    with pytest.raises(DataError, match="may create tables"):
        migrate.migrate(f"{shop.server.url(user=role)}&table={shop.name}", WAY, shop.to)
    shop.server.execute(f"DROP OWNED BY {role}")
    shop.server.execute(f"DROP ROLE {role}")
    assert not shop.source().beside(shop.to).there()


def killed_migration(*words: str) -> None:
    """``fixstar migrate run WORDS``, ten rows at a time; it dies in the second block, before that is committed."""
    import psycopg

    blocks = itertools.count(1)
    real = psycopg.Cursor.executemany

    def executemany(cursor: Any, *statement: Any) -> None:
        real(cursor, *statement)
        if next(blocks) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    with (
        patch.object(module, "BATCH", 10),
        patch.object(psycopg.Cursor, "executemany", executemany),
    ):
        typed("migrate", "run", *words)


def test_after_kill_9_the_same_command_ends_with_the_same_table(tmp_path: Path) -> None:
    shop = filled(PostgresShop(tmp_path))
    save_translation(WAY, tmp_path / "way.npz", onnx=False)
    words = (shop.address, str(tmp_path / "way.npz"), "--to", shop.to)
    process = fork(killed_migration, *words)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert shop.server.execute(f"SELECT count(*) FROM {shop.to}") == [(10,)]  # whole blocks only
    again = typed("migrate", "run", *words, "--json")
    assert again.code == 0, again.err
    assert (again.json["unchanged"], again.json["written"]) == (10, 30)
    assert_translated(shop)


@pytest.mark.parametrize(
    ("module_name", "address", "told"),
    [
        ("chromadb", "chroma://localhost:8000?collection=photos", "needs chromadb"),
        ("lancedb", "lancedb:///nowhere?table=photos", "needs lancedb"),
        ("pymilvus", "milvus://nowhere?collection=photos", "needs pymilvus"),
    ],
)
def test_a_missing_library_is_named(
    module_name: str, address: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module_name, None)
    with pytest.raises(MissingExtraError, match=told) as caught:
        open_vectors(address)
    assert caught.value.next_steps[0].action == "install"


@pytest.mark.parametrize(
    "address",
    [
        "chroma://secret@host?collection=x",
        "chroma://host:port?collection=x",
        "chroma://?collection=x",
        "chroma://host/folder?collection=x",
        "chroma://host?collection=x&colour=red",
        "chroma://host?collection=x&id=sku",
        "chroma://host",
        "lancedb:///folder",
        "milvus://host",
        "milvus://host?collection=x&id=sku",
        "milvus://me:secret@host?collection=x",
        "lancedb://?table=x",
    ],
)
def test_addresses_that_name_no_vectors(address: str) -> None:
    with refuses(FixstarError):
        open_vectors(address)
