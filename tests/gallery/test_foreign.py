"""Vectors from collections and tables of others."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from postgres_server import shared_server
from qdrant_server import qdrant_client
from test_gallery_contract import vectors

from fixstar.errors import DataError, FixstarError, InputError
from fixstar.gallery import MemoryGallery, import_version
from fixstar.gallery.foreign import postgres_table, qdrant_collection

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

ROWS = vectors(2500, 4) * 7


@pytest.fixture
def client() -> Any:
    opened = qdrant_client()
    before = {collection.name for collection in opened.get_collections().collections}
    yield opened
    for collection in opened.get_collections().collections:
        if collection.name not in before:
            opened.delete_collection(collection.name)


def collection(client: QdrantClient, named: bool = False, **options: Any) -> str:
    """2,500 points, numbered from 10; vectors longer than 1."""
    from qdrant_client import models

    name, params = (
        f"fixstar-test-{uuid.uuid4().hex}",
        models.VectorParams(size=4, distance=models.Distance.DOT, **options),
    )
    client.create_collection(name, vectors_config={"clip": params, "b": params} if named else params)
    both: Any = {"clip": ROWS.tolist(), "b": ROWS[::-1].tolist()}
    payloads = [{"sku": f"s{i}", "n": i} for i in range(2500)]
    batch = models.Batch(ids=list(range(10, 2510)), vectors=both if named else ROWS.tolist(), payloads=payloads)
    client.upsert(name, batch, wait=True)
    return name


def test_a_qdrant_collection_becomes_a_version(client: QdrantClient) -> None:
    gallery, name = MemoryGallery(), collection(client)
    assert import_version(gallery, "old", qdrant_collection(client, name)) == 2500
    item = gallery.get(["2509"])["2509"]
    assert (item.version, item.payload) == ("old", {"sku": "s2499", "n": 2499})
    np.testing.assert_allclose(item.vector, ROWS[2499] / 7, atol=1e-6)
    assert client.count(name).count == 2500


def test_one_of_several_vectors_with_ids_from_the_payload(client: QdrantClient) -> None:
    gallery, name = MemoryGallery(), collection(client, named=True)
    with pytest.raises(InputError, match="vectors b, clip; set vector"):
        qdrant_collection(client, name)
    import_version(gallery, "old", qdrant_collection(client, name, vector="b", id_field="sku"))
    np.testing.assert_allclose(gallery.get(["s0"])["s0"].vector, ROWS[2499] / 7, atol=1e-6)


def test_collections_that_cannot_be_imported(client: QdrantClient) -> None:
    from qdrant_client import models

    name = collection(client)
    with pytest.raises(InputError, match=f"no collection 'ghost'; it has .*{name}"):
        qdrant_collection(client, "ghost")
    with pytest.raises(InputError, match="do not set vector"):
        qdrant_collection(client, name, vector="clip")
    with pytest.raises(DataError, match="no id in its field 'ghost'"):
        qdrant_collection(client, name, id_field="ghost")
    with pytest.raises(FixstarError, match="is it running"):
        qdrant_collection("qdrant://127.0.0.1:1", "x")
    gallery = MemoryGallery()
    client.upsert(name, [models.PointStruct(id=99, vector=[0.0] * 4)], wait=True)
    with pytest.raises(DataError, match=r"row 89 \('99'\) is zero"):
        import_version(gallery, "old", qdrant_collection(client, name))
    client.create_collection(
        "fixstar-test-empty", vectors_config=models.VectorParams(size=4, distance=models.Distance.DOT)
    )
    with pytest.raises(DataError, match="is empty"):
        qdrant_collection(client, "fixstar-test-empty")
    assert gallery.versions() == []


@pytest.fixture
def table() -> Any:
    server, name = shared_server(), f"t_{uuid.uuid4().hex}"
    server.execute("CREATE EXTENSION IF NOT EXISTS vector")
    server.execute(f'CREATE TABLE {name} ("Sku" text, clip vector(4), arrays double precision[], n int, note text)')
    texts = (f"('s{i:04}', '{row.tolist()}', ARRAY{row.tolist()}, {i}, NULL)" for i, row in enumerate(ROWS[:1500]))
    server.execute(f"INSERT INTO {name} VALUES {','.join(texts)}")
    yield server.url(), name
    server.execute(f"DROP TABLE {name}")


@pytest.mark.parametrize("column", ["clip", "arrays"])
def test_a_postgres_table_becomes_a_version(table: tuple[str, str], column: str) -> None:
    url, name = table
    gallery = MemoryGallery()
    assert import_version(gallery, "old", postgres_table(url, f"public.{name}", "Sku", column)) == 1500
    item = gallery.get(["s1499"])["s1499"]
    np.testing.assert_allclose(item.vector, ROWS[1499] / 7, atol=1e-6)
    other = "arrays" if column == "clip" else "clip"
    assert {field: value for field, value in item.payload.items() if field != other} == {"n": 1499}


def test_tables_that_cannot_be_imported(table: tuple[str, str]) -> None:
    url, name = table
    with pytest.raises(InputError, match="no such table"):
        postgres_table(url, "ghost")
    with pytest.raises(InputError, match=r"no column 'id'; it has the columns Sku, clip, arrays, n, note.*id_column"):
        postgres_table(url, name)
    with pytest.raises(DataError, match="cannot be read"):
        postgres_table(url, name, "Sku", "Sku")
    shared_server().execute(f"UPDATE {name} SET arrays = '{{1,2}}' WHERE \"Sku\" = 's0007'")
    gallery = MemoryGallery()
    with pytest.raises(DataError, match="'s0007' needs a vector of 4 components and has one of 2"):
        import_version(gallery, "old", postgres_table(url, name, "Sku", "arrays"))
    shared_server().execute(f"UPDATE {name} SET clip = NULL WHERE \"Sku\" = 's0009'")
    with pytest.raises(DataError, match="'s0009' needs a vector of 4 components and has none"):
        import_version(gallery, "old", postgres_table(url, name, "Sku", "clip"))
    assert gallery.versions() == []
