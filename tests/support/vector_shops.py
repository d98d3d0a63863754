"""Stores of other people with 40 old vectors each, for migrations: one class per store, all with the same verbs."""

from __future__ import annotations

import datetime
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar, Protocol

import numpy as np
import pytest
from milvus_server import server
from numpy.typing import NDArray
from postgres_server import shared_server

from fixstar.gallery.foreign import lance_table, milvus_collection, qdrant_collection
from fixstar.gallery.transfer import open_vectors
from fixstar.gallery.vector_files import VectorPlace

Vectors = NDArray[np.float32]
OLD, NEW = 4, 6


class Shop(Protocol):
    """Somebody's store; ids are texts of numbers, because all stores have those."""

    to: str

    def source(self) -> VectorPlace:
        """The old vectors, opened again."""

    def put(self, ids: Sequence[str], vectors: Vectors) -> None:
        """Store old vectors."""

    def delete(self, ids: Sequence[str]) -> None:
        """Delete old ones."""

    def old(self) -> dict[str, Vectors]:
        """What the old place holds."""

    def translated(self) -> dict[str, Vectors]:
        """What the new place holds."""


def rows_of(source: VectorPlace) -> dict[str, Vectors]:
    return {
        name: np.asarray(vector)
        for rows in source.blocks(100)
        for name, vector in zip(rows.ids, rows.vectors, strict=True)
    }


class PostgresShop:
    vector = "vector"

    def __init__(self, _: Path) -> None:
        self.server = shared_server()
        self.name = f"t_{uuid.uuid4().hex[:12]}"
        self.to = f"{self.name}_new"
        self.server.execute("CREATE EXTENSION IF NOT EXISTS vector")
        self.server.execute(
            f"CREATE TABLE {self.name} (id int PRIMARY KEY, title text, vector vector({OLD}))"
        )
        self.address = f"{self.server.url()}&table={self.name}"

    def source(self) -> VectorPlace:
        return open_vectors(self.address)

    def put(self, ids: Sequence[str], vectors: Vectors) -> None:
        values = ",".join(
            f"({name}, 'title {name}', '{row}')"
            for name, row in zip(ids, vectors.tolist(), strict=True)
        )
        self.server.execute(
            f"INSERT INTO {self.name} VALUES {values} ON CONFLICT (id) DO UPDATE SET vector = excluded.vector"
        )

    def delete(self, ids: Sequence[str]) -> None:
        self.server.execute(f"DELETE FROM {self.name} WHERE id IN ({','.join(ids)})")

    def old(self) -> dict[str, Vectors]:
        return rows_of(self.source())

    def translated(self) -> dict[str, Vectors]:
        return rows_of(open_vectors(f"{self.server.url()}&table={self.to}"))


class QdrantShop:
    """Qdrant's engine in memory: no server of Qdrant is to be had as a package."""

    to = "photos-new"

    def __init__(self, _: Path) -> None:
        reason = "qdrant-client is not installed: pip install 'fixstar[qdrant]'"
        library = pytest.importorskip("qdrant_client", reason=reason)
        self.models = library.models
        self.client = library.QdrantClient(":memory:")
        params = self.models.VectorParams(size=OLD, distance=self.models.Distance.COSINE)
        self.client.create_collection("photos", vectors_config=params)

    def source(self) -> VectorPlace:
        return qdrant_collection(self.client, "photos")

    def put(self, ids: Sequence[str], vectors: Vectors) -> None:
        points = [
            self.models.PointStruct(id=int(name), vector=row, payload={"title": f"title {name}"})
            for name, row in zip(ids, vectors.tolist(), strict=True)
        ]
        self.client.upsert("photos", points, wait=True)

    def delete(self, ids: Sequence[str]) -> None:
        self.client.delete(
            "photos", self.models.PointIdsList(points=list(map(int, ids))), wait=True
        )

    def old(self) -> dict[str, Vectors]:
        return rows_of(self.source())

    def translated(self) -> dict[str, Vectors]:
        return rows_of(qdrant_collection(self.client, self.to))


@contextmanager
def chroma_server(folder: Path) -> Iterator[int]:
    """The real server of the chromadb wheel; yields its port."""
    pytest.importorskip(
        "chromadb", reason="chromadb is not installed: pip install 'fixstar[chroma]'"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    program = Path(sys.executable).with_name("chroma")
    words = [str(program), "run", "--path", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            until = time.monotonic() + 60
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert time.monotonic() < until, "the server of Chroma did not start"
                    time.sleep(0.05)
            yield port
        finally:
            server.terminate()


class ChromaShop:
    port: ClassVar[int]

    def __init__(self, _: Path) -> None:
        chromadb = pytest.importorskip("chromadb")
        self.name = f"photos-{uuid.uuid4().hex[:8]}"
        self.to = f"{self.name}-new"
        self.client: Any = chromadb.HttpClient("127.0.0.1", self.port)
        self.client.create_collection(
            self.name, configuration={"hnsw": {"space": "cosine"}}, embedding_function=None
        )
        self.address = f"chroma://127.0.0.1:{self.port}?collection={self.name}"

    def source(self) -> VectorPlace:
        return open_vectors(self.address, old=True)

    def put(self, ids: Sequence[str], vectors: Vectors) -> None:
        even = [row for row, name in enumerate(ids) if int(name) % 2 == 0]
        odd = [row for row, name in enumerate(ids) if int(name) % 2]
        collection = self._old()
        if even:
            names = [ids[row] for row in even]
            collection.upsert(
                ids=names, embeddings=vectors[even], documents=[f"text {name}" for name in names]
            )
        if odd:
            names = [ids[row] for row in odd]
            collection.upsert(
                ids=names,
                embeddings=vectors[odd],
                metadatas=[{"title": f"title {n}"} for n in names],
            )

    def _old(self) -> Any:
        return self.client.get_collection(self.name, embedding_function=None)

    def delete(self, ids: Sequence[str]) -> None:
        self._old().delete(ids=list(ids))

    def old(self) -> dict[str, Vectors]:
        return rows_of(self.source())

    def translated(self) -> dict[str, Vectors]:
        return rows_of(open_vectors(f"chroma://127.0.0.1:{self.port}?collection={self.to}"))


class LanceShop:
    to = "photos_new"

    def __init__(self, folder: Path) -> None:
        library = pytest.importorskip(
            "lancedb", reason="lancedb is not installed: pip install 'fixstar[lancedb]'"
        )
        arrow = pytest.importorskip("pyarrow")
        self.folder = folder / "lance"
        self.database = library.connect(str(self.folder))
        self.schema = arrow.schema(
            [
                ("id", arrow.string()),
                ("vector", arrow.list_(arrow.float32(), OLD)),
                ("taken", arrow.timestamp("us")),
            ]
        )
        self.table = self.database.create_table("photos", schema=self.schema)

    def source(self) -> VectorPlace:
        return lance_table(self.folder, "photos")

    def put(self, ids: Sequence[str], vectors: Vectors) -> None:
        when = datetime.datetime(2024, 5, 17)
        rows = [
            {"id": name, "vector": row, "taken": when}
            for name, row in zip(ids, vectors.tolist(), strict=True)
        ]
        merged = self.table.merge_insert("id")
        merged.when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def delete(self, ids: Sequence[str]) -> None:
        self.table.delete("id IN ({})".format(",".join(f"'{name}'" for name in ids)))

    def old(self) -> dict[str, Vectors]:
        return rows_of(self.source())

    def translated(self) -> dict[str, Vectors]:
        return rows_of(lance_table(self.folder, self.to))


class MilvusShop:
    """A collection of the test's own server; it is removed with the server."""

    def __init__(self, _: Path) -> None:
        self.server = f"milvus://{server().place}"
        library = pytest.importorskip("pymilvus")
        self.client = library.MilvusClient(uri=f"http://{server().place}")
        self.name = f"test_{token_hex(8)}"
        self.to = f"{self.name}_new"
        schema = self.client.create_schema(auto_id=False, enable_dynamic_field=True)
        schema.add_field("sku", library.DataType.VARCHAR, is_primary=True, max_length=100)
        schema.add_field("embedding", library.DataType.FLOAT_VECTOR, dim=OLD)
        schema.add_field("price", library.DataType.INT64)
        index = self.client.prepare_index_params()
        index.add_index("embedding", index_type="FLAT", metric_type="COSINE")
        self.client.create_collection(self.name, schema=schema, index_params=index)

    def source(self) -> VectorPlace:
        return milvus_collection(self.server, self.name)

    def put(self, ids: Sequence[str], vectors: Vectors) -> None:
        rows = [
            {"sku": name, "embedding": row, "price": int(name), "title": f"title {name}"}
            for name, row in zip(ids, np.asarray(vectors, np.float32), strict=True)
        ]
        self.client.upsert(self.name, rows)

    def delete(self, ids: Sequence[str]) -> None:
        self.client.delete(self.name, ids=list(ids))

    def old(self) -> dict[str, Vectors]:
        return rows_of(self.source())

    def translated(self) -> dict[str, Vectors]:
        return rows_of(milvus_collection(self.server, self.to))


class FileShop:
    """A file that is written whole for every change; the kind is by the class below."""

    suffix: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"old{self.suffix}"
        self.to = str(folder / f"new{self.suffix}")
        self.rows: dict[str, Vectors] = {}

    def source(self) -> VectorPlace:
        return open_vectors(self.path)

    def put(self, ids: Sequence[str], vectors: Vectors) -> None:
        self.rows |= dict(zip(ids, vectors, strict=True))
        self.write()

    def delete(self, ids: Sequence[str]) -> None:
        self.rows = {name: row for name, row in self.rows.items() if name not in ids}
        self.write()

    def write(self) -> None:
        raise NotImplementedError

    def old(self) -> dict[str, Vectors]:
        return rows_of(self.source())

    def translated(self) -> dict[str, Vectors]:
        return rows_of(open_vectors(self.to))


class NpzShop(FileShop):
    suffix = ".npz"

    def write(self) -> None:
        np.savez(
            self.path, vectors=np.stack(list(self.rows.values())), ids=np.array(list(self.rows))
        )


class NpyShop(FileShop):
    suffix = ".npy"

    def write(self) -> None:
        np.save(self.path, np.stack(list(self.rows.values())))
        lines = [f'{{"id": "{name}", "payload": {{}}}}\n' for name in self.rows]
        self.path.with_suffix(".jsonl").write_text("".join(lines))


class ParquetShop(FileShop):
    suffix = ".parquet"

    def write(self) -> None:
        arrow = pytest.importorskip(
            "pyarrow", reason="pyarrow is not installed: pip install 'fixstar[parquet]'"
        )
        parquet = pytest.importorskip("pyarrow.parquet")
        vectors = [row.tolist() for row in self.rows.values()]
        parquet.write_table(arrow.table({"id": list(self.rows), "vector": vectors}), self.path)


class FaissShop(FileShop):
    suffix = ".faiss"

    def write(self) -> None:
        faiss = pytest.importorskip(
            "faiss", reason="faiss-cpu is not installed: pip install 'fixstar[index]'"
        )
        index = faiss.IndexIDMap2(faiss.IndexFlatL2(OLD))
        index.add_with_ids(
            np.stack(list(self.rows.values())), np.array(list(map(int, self.rows)), np.int64)
        )
        faiss.write_index(index, str(self.path))


SERVED: dict[str, Callable[[Path], Shop]] = {
    "postgres": PostgresShop,
    "qdrant": QdrantShop,
    "chroma": ChromaShop,
    "lancedb": LanceShop,
    "milvus": MilvusShop,
}
FILES: dict[str, Callable[[Path], Shop]] = {
    "npz": NpzShop,
    "npy": NpyShop,
    "parquet": ParquetShop,
    "faiss": FaissShop,
}
