"""Vectors from collections and tables of others."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from postgres_server import shared_server
from test_gallery_contract import vectors
from wording import REASON, refuses

from fixstar.errors import (
    DataError,
    FixstarError,
    GalleryError,
    GalleryUnavailableError,
    InputError,
    MissingExtraError,
)
from fixstar.gallery import MemoryGallery, import_version
from fixstar.gallery.addresses import QdrantAddress, parse_qdrant_address
from fixstar.gallery.foreign import faiss_index, postgres_table, qdrant, qdrant_collection
from fixstar.gallery.transfer import open_vectors

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

ROWS = vectors(2500, 4) * 7


@pytest.fixture
def client() -> Any:
    """Qdrant's engine in memory, or the server that FIXSTAR_QDRANT_URL names; QDRANT_API_KEY is sent if it is set."""
    reason = "qdrant-client is not installed: pip install 'fixstar[qdrant]'"
    make = pytest.importorskip("qdrant_client", reason=reason).QdrantClient
    url = os.environ.get("FIXSTAR_QDRANT_URL")
    opened = make(url=url, api_key=os.environ.get("QDRANT_API_KEY")) if url else make(":memory:")
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
    client.create_collection(
        name, vectors_config={"clip": params, "b": params} if named else params
    )
    both: Any = {"clip": ROWS.tolist(), "b": ROWS[::-1].tolist()}
    payloads = [{"sku": f"s{i}", "n": i} for i in range(2500)]
    batch = models.Batch(
        ids=list(range(10, 2510)), vectors=both if named else ROWS.tolist(), payloads=payloads
    )
    client.upsert(name, batch, wait=True)
    return name


def test_a_qdrant_collection_becomes_a_version(client: QdrantClient) -> None:
    gallery, name = MemoryGallery(), collection(client)
    assert import_version(gallery, "old", qdrant_collection(client, name)) == 2500
    item = gallery.get(["2509"])["2509"]
    assert (item.version, item.payload) == ("old", {"sku": "s2499", "n": 2499})
    np.testing.assert_allclose(item.vector, ROWS[2499] / 7, atol=1e-6)
    assert client.count(name).count == 2500


def test_a_collection_by_its_address(client: QdrantClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qdrant, "_connect", lambda _: client)
    gallery, name = MemoryGallery(), collection(client, named=True)
    assert (
        import_version(
            gallery, "old", f"qdrant://localhost?collection={name}&vector=b&id=sku&timeout=5"
        )
        == 2500
    )
    np.testing.assert_allclose(gallery.get(["s0"])["s0"].vector, ROWS[2499] / 7, atol=1e-6)


@pytest.mark.parametrize(
    "url",
    [
        "qdrant://secret@host:6333",
        "qdrant://host:6333?api_key=secret",
        "qdrant://host:port",
        "qdrant://",
        "qdrant://host/path",
        "qdrant://host?colour=red",
        "qdrant://host?timeout=none",
        "qdrant://host?api_key_env=FIXSTAR_NO_SUCH_KEY",
        "qdrant://127.0.0.1:1",
        "qdrant://127.0.0.1:1?grpc_port=1",
    ],
)
def test_addresses_of_qdrant_that_lead_nowhere(url: str) -> None:
    with refuses(GalleryError, varies=REASON) as caught:
        qdrant_collection(url, "photos")
    assert "secret" not in str(caught.value)


def test_what_an_address_of_qdrant_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QDRANT_API_KEY", raising=False)
    assert parse_qdrant_address("qdrant://host") == QdrantAddress("http://host:6333")
    monkeypatch.setenv("QDRANT_API_KEY", "k1")
    monkeypatch.setenv("OTHER", "k2")
    url = "qdrant+https://[::1]:7000?api_key_env=OTHER&grpc_port=6334&timeout=5"
    read = parse_qdrant_address(url)
    assert read == QdrantAddress("https://[::1]:7000", api_key="k2", grpc_port=6334, timeout=5)
    assert "k2" not in repr(read)
    assert parse_qdrant_address("qdrant://host").api_key == "k1"


def test_a_server_that_refuses(client: QdrantClient, monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx
    from qdrant_client.http.exceptions import UnexpectedResponse

    name = collection(client)
    for status, told in ((403, "QDRANT_API_KEY"), (500, "try again")):

        def refuse(*_: Any, status: int = status, **__: Any) -> None:
            raise UnexpectedResponse(status, "no", b"no", httpx.Headers())

        with monkeypatch.context() as patch:
            patch.setattr(client, "scroll", refuse)
            with pytest.raises(GalleryUnavailableError, match=told):
                qdrant_collection(client, name)


def test_qdrant_needs_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    with pytest.raises(MissingExtraError, match="needs qdrant-client"):
        qdrant_collection("qdrant://localhost:6333", "photos")


def test_one_of_several_vectors_with_ids_from_the_payload(client: QdrantClient) -> None:
    gallery, name = MemoryGallery(), collection(client, named=True)
    with refuses(InputError):
        qdrant_collection(client, name)
    import_version(gallery, "old", qdrant_collection(client, name, vector="b", id_field="sku"))
    np.testing.assert_allclose(gallery.get(["s0"])["s0"].vector, ROWS[2499] / 7, atol=1e-6)


def test_collections_that_cannot_be_imported(client: QdrantClient) -> None:
    from qdrant_client import models

    name = collection(client)
    with refuses(InputError):
        qdrant_collection(client, "ghost")
    with refuses(InputError):
        qdrant_collection(client, name, vector="clip")
    with refuses(DataError):
        qdrant_collection(client, name, id_field="ghost")
    with pytest.raises(FixstarError, match="is it running"):
        qdrant_collection("qdrant://127.0.0.1:1", "x")
    gallery = MemoryGallery()
    client.upsert(name, [models.PointStruct(id=99, vector=[0.0] * 4)], wait=True)
    with pytest.raises(DataError, match=r"row 89 \('99'\) is zero"):
        import_version(gallery, "old", qdrant_collection(client, name))
    client.create_collection(
        "fixstar-test-empty",
        vectors_config=models.VectorParams(size=4, distance=models.Distance.DOT),
    )
    with pytest.raises(DataError, match="is empty"):
        qdrant_collection(client, "fixstar-test-empty")
    assert gallery.versions() == []


@pytest.fixture
def table() -> Any:
    server, name = shared_server(), f"t_{uuid.uuid4().hex}"
    server.execute("CREATE EXTENSION IF NOT EXISTS vector")
    server.execute(
        f'CREATE TABLE {name} ("Sku" text, clip vector(4), arrays double precision[], n int, note text)'
    )
    texts = (
        f"('s{i:04}', '{row.tolist()}', ARRAY{row.tolist()}, {i}, NULL)"
        for i, row in enumerate(ROWS[:1500])
    )
    server.execute(f"INSERT INTO {name} VALUES {','.join(texts)}")
    yield server.url(), name
    server.execute(f"DROP TABLE {name}")


@pytest.mark.parametrize("column", ["clip", "arrays"])
def test_a_postgres_table_becomes_a_version(table: tuple[str, str], column: str) -> None:
    url, name = table
    gallery = MemoryGallery()
    assert (
        import_version(gallery, "old", postgres_table(url, f"public.{name}", "Sku", column)) == 1500
    )
    by_address = MemoryGallery()
    assert (
        import_version(
            by_address,
            "old",
            f"{url}{'&' if '?' in url else '?'}table=public.{name}&id=Sku&vector={column}",
        )
        == 1500
    )
    item = gallery.get(["s1499"])["s1499"]
    np.testing.assert_array_equal(by_address.get(["s1499"])["s1499"].vector, item.vector)
    np.testing.assert_allclose(item.vector, ROWS[1499] / 7, atol=1e-6)
    other = "arrays" if column == "clip" else "clip"
    assert {field: value for field, value in item.payload.items() if field != other} == {"n": 1499}


def test_tables_that_cannot_be_imported(table: tuple[str, str]) -> None:
    url, name = table
    with pytest.raises(InputError, match="no such table"):
        postgres_table(url, "ghost")
    with refuses(InputError):
        postgres_table(url, name)
    with pytest.raises(DataError, match="cannot be read"):
        postgres_table(url, name, "Sku", "Sku")
    shared_server().execute(f"UPDATE {name} SET arrays = '{{1,2}}' WHERE \"Sku\" = 's0007'")
    gallery = MemoryGallery()
    with refuses(DataError):
        import_version(gallery, "old", postgres_table(url, name, "Sku", "arrays"))
    shared_server().execute(f"UPDATE {name} SET clip = NULL WHERE \"Sku\" = 's0009'")
    with refuses(DataError):
        import_version(gallery, "old", postgres_table(url, name, "Sku", "clip"))
    assert gallery.versions() == []


@pytest.mark.parametrize(
    "kind", ["Flat", "IDMap,Flat", "HNSW8", "IVF4,Flat", "SQfp16", "PCA3,Flat"]
)
def test_a_faiss_index_becomes_a_version(kind: str, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    index, numbered = faiss.index_factory(4, kind), kind.startswith("IDMap")
    index.train(ROWS)
    if numbered:
        index.add_with_ids(ROWS, np.arange(2500) * 3)
    else:
        index.add(ROWS)
    faiss.write_index(index, str(tmp_path / "old.faiss"))
    gallery = MemoryGallery()
    assert import_version(gallery, "old", tmp_path / "old.faiss") == 2500
    name = "4200" if numbered else "old/1400"
    tolerance = {"SQfp16": 1e-3, "PCA3,Flat": 1.0}.get(kind, 1e-6)
    np.testing.assert_allclose(gallery.get([name])[name].vector, ROWS[1400] / 7, atol=tolerance)


def test_files_that_are_not_faiss_indexes(tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    path, torn, empty = tmp_path / "whole.faiss", tmp_path / "torn.faiss", tmp_path / "empty.faiss"
    index = faiss.IndexFlatIP(4)
    faiss.write_index(index, str(empty))
    index.add(ROWS)
    faiss.write_index(index, str(path))
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], content[:30], b"", b"garbage" * 100):
        torn.write_bytes(damaged)
        with refuses(DataError, varies=r"(?<=index: ).*"):
            faiss_index(torn)
    with pytest.raises(DataError, match="holds no vectors"):
        faiss_index(empty)
    with refuses(DataError, varies=r"(?<=index: ).*"):
        faiss_index(tmp_path / "absent.faiss")


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:sesame@host/db",
        "qdrant://host?table=photos",
        "mysql://host?table=photos",
        "old.npz?table=photos",
        "old.npz?id=sku",
    ],
)
def test_addresses_that_name_no_vectors(address: str) -> None:
    with refuses(InputError):
        open_vectors(address)


def test_labels_of_a_file_are_payloads(tmp_path: Path) -> None:
    np.savez(tmp_path / "old.npz", vectors=ROWS[:3], labels=np.array(["cat", "", "dog"]))
    (block,) = open_vectors(tmp_path / "old.npz").blocks(10)
    assert block.payloads == [{"label": "cat"}, {}, {"label": "dog"}]
    np.savez(tmp_path / "few.npz", vectors=ROWS[:3], labels=np.array(["cat"]))
    with pytest.raises(DataError, match="3 vectors and 1 label"):
        open_vectors(tmp_path / "few.npz")
