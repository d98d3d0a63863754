"""Vectors from and to Parquet files, those of others included."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_gallery_contract import vectors
from test_transfer import P, content, example

from fixstar.errors import DataError, FixstarError, InputError, MissingExtraError
from fixstar.gallery import MemoryGallery, export_version, import_version, vector_files
from fixstar.gallery.store import Item

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize("version", ["v1", "short"])
def test_what_is_exported_can_be_imported(tmp_path: Path, version: str) -> None:
    """To the bit, payloads and projection included."""
    source, target, path = example(MemoryGallery()), MemoryGallery(), tmp_path / "out.parquet"
    odd = {"big": 10**30, "null": None, "list": [1, "a", None], "": {"ü": True}}
    source.upsert(version, ["odd"], vectors(1, 3, seed=7), [odd])
    count = export_version(source, version, path)
    assert count == import_version(target, version, path) == source.count()[version]
    assert content(target) == {
        item.id: (version, item.vector.tolist(), item.payload) for item in source.iterate(version)
    }
    assert target.versions() == [space for space in source.versions() if space.name == version]
    np.testing.assert_array_equal(target.projection(version), source.projection(version))


def test_exported_files_are_plain_parquet(tmp_path: Path) -> None:
    export_version(example(MemoryGallery()), "v1", tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["id", "vector", "payload"]
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 3)
    assert table["id"].to_pylist() == ["i0", "i1", "i2"]
    assert table["payload"].to_pylist()[1] == '{"n": 1, "parity": "odd"}'


def test_an_export_is_whole_or_absent(tmp_path: Path) -> None:
    def broken() -> Any:
        yield Item("a", "v1", np.ones(2, np.float32), {})
        raise KeyError("the gallery went away")

    (tmp_path / "out.parquet").write_text("before")
    with pytest.raises(KeyError):
        vector_files.write_parquet(tmp_path / "out.parquet", 2, broken())
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]
    assert (tmp_path / "out.parquet").read_text() == "before"
    assert vector_files.write_parquet(tmp_path / "none.parquet", 2, iter(())) == 0


@pytest.mark.parametrize("kind", ["fixed", "list", "large", "double", "half", "integers"])
def test_vectors_of_many_types(tmp_path: Path, kind: str) -> None:
    rows: Any = (np.random.default_rng(0).standard_normal((2500, 4)) * 30).round(2)
    types = {
        "fixed": pa.list_(pa.float32(), 4),
        "list": pa.list_(pa.float32()),
        "large": pa.large_list(pa.float32()),
        "double": pa.list_(pa.float64(), 4),
        "half": pa.list_(pa.float16()),
        "integers": pa.list_(pa.int8()),
    }
    rows = {"half": rows.astype(np.float16), "integers": rows.astype(np.int8)}.get(kind, rows)
    rows[~rows.any(axis=1)] = 1
    column = pa.array([list(row) for row in rows], types[kind])
    ids = (
        pa.array(np.arange(2500))
        if kind == "fixed"
        else pa.array([str(i) for i in range(2500)]).dictionary_encode()
    )
    pq.write_table(
        pa.table({"sku": ids, "embedding": column}), tmp_path / "x.parquet", row_group_size=900
    )
    gallery, seen = MemoryGallery(), []

    def advance(count: int = 1, note: str | None = None) -> None:
        assert note is None
        seen.append(count)

    assert (
        import_version(gallery, "x", tmp_path / "x.parquet", advance, "sku", "embedding")
        == 2500
        == sum(seen)
    )
    expected = rows.astype(np.float64) / np.linalg.norm(
        rows.astype(np.float64), axis=1, keepdims=True
    )
    for name in ("0", "899", "900", "2499"):
        np.testing.assert_allclose(gallery.get([name])[name].vector, expected[int(name)], atol=1e-3)


def write(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_other_columns_are_the_payload(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.parquet",
        id=["a", "b"],
        price=[1.5, float("nan")],
        stock=[None, 3],
        day=[datetime.date(2026, 1, 2), None],
        tags=[["x", None], []],
        vector=[[1.0, 0.0], [0.0, 2.0]],
    )
    gallery = MemoryGallery()
    import_version(gallery, "x", path)
    assert gallery.get(["a"])["a"].payload == {
        "price": 1.5,
        "day": "2026-01-02",
        "tags": ["x", None],
    }
    assert gallery.get(["b"])["b"].payload == {"stock": 3, "tags": []}


def test_a_payload_of_structs_or_texts(tmp_path: Path) -> None:
    rows = [[1.0, 0.0], [0.0, 2.0]]
    gallery = MemoryGallery()
    structs = write(
        tmp_path / "s.parquet",
        id=["a", "b"],
        vector=rows,
        payload=[{"x": 1, "y": None}, None],
        other=[1, 2],
    )
    texts = write(tmp_path / "t.parquet", id=["c", "d"], vector=rows, payload=['{"x": null}', None])
    import_version(gallery, "x", structs)
    import_version(gallery, "x", texts)
    payloads = {item.id: item.payload for item in gallery.iterate()}
    assert payloads == {"a": {"x": 1}, "b": {}, "c": {"x": None}, "d": {}}


GOOD = [[1.0, 0.0]] * 3
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no id column": (
        {"sku": ["a"], "vector": GOOD[:1]},
        r"no column 'id'; it has sku, vector.*id_column",
    ),
    "no vector column": (
        {"id": ["a"], "clip": GOOD[:1]},
        r"no column 'vector'; it has id, clip.*vector_column",
    ),
    "no rows": (
        {"id": pa.array([], pa.string()), "vector": pa.array([], pa.list_(pa.float32()))},
        "no rows",
    ),
    "ids of floats": ({"id": [0.5], "vector": GOOD[:1]}, "ids are strings or integers.*double"),
    "no id": ({"id": ["a", None, "c"], "vector": GOOD}, "row 1 has no id"),
    "twice": ({"id": ["a", "a", "c"], "vector": GOOD}, "'a' comes twice"),
    "words": ({"id": ["a"], "vector": [["x"]]}, "lists of real numbers.*string"),
    "numbers": ({"id": ["a"], "vector": [1.0]}, "lists of real numbers.*double"),
    "ragged": (
        {"id": ["a", "b", "c"], "vector": [*GOOD[:2], [1.0]]},
        "row 2 has a vector of 1 components",
    ),
    "no vector": (
        {"id": ["a", "b", "c"], "vector": [GOOD[0], None, GOOD[0]]},
        "row 1 has no vector",
    ),
    "no first vector": ({"id": ["a", "b"], "vector": [None, GOOD[0]]}, "row 0 has no vector"),
    "null inside": ({"id": ["a", "b"], "vector": [GOOD[0], [1.0, None]]}, "row 1 has a null"),
    "nan": (
        {"id": ["a", "b"], "vector": [GOOD[0], [1.0, float("nan")]]},
        r"row 1 \('b'\) is zero, NaN",
    ),
    "zero": ({"id": ["a", "b"], "vector": [GOOD[0], [0.0, 0.0]]}, r"row 1 \('b'\) is zero"),
    "no object": (
        {"id": ["a"], "vector": GOOD[:1], "payload": ["[1]"]},
        "payload of row 0 is not an object",
    ),
    "no JSON": (
        {"id": ["a"], "vector": GOOD[:1], "payload": ["{"]},
        "row 0 on cannot be kept as JSON",
    ),
    "NaN in JSON": (
        {"id": ["a"], "vector": GOOD[:1], "payload": ['{"x": NaN}']},
        "NaN is not a JSON number",
    ),
    "bytes": ({"id": ["a"], "vector": GOOD[:1], "x": [b"a"]}, "type bytes; leave that column out"),
    "infinite": ({"id": ["a"], "vector": GOOD[:1], "x": [float("inf")]}, "infinite"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_refused_before_anything_is_stored(tmp_path: Path, kind: str) -> None:
    columns, told = BAD[kind]
    gallery = MemoryGallery()
    with pytest.raises(FixstarError, match=told):
        import_version(gallery, "x", write(tmp_path / "x.parquet", **columns))
    assert gallery.versions() == []


def test_files_that_are_damaged_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        import_version(MemoryGallery(), "x", tmp_path / "missing.parquet")
    path = write(
        tmp_path / "x.parquet", id=[str(i) for i in range(1000)], vector=vectors(1000, 2).tolist()
    )
    whole = path.read_bytes()
    for damaged in (b"garbage", whole[:-100], whole[:2000] + b"\xff" * 500 + whole[2500:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"damaged|cannot be read"):
            import_version(MemoryGallery(), "x", path)
    np.save(tmp_path / "x.npy", np.ones((2, 2)))
    with pytest.raises(InputError, match="has no columns"):
        import_version(MemoryGallery(), "x", tmp_path / "x.npy", id_column="sku")
    monkeypatch.setitem(sys.modules, "pyarrow.compute", None)
    with pytest.raises(MissingExtraError, match="needs pyarrow"):
        import_version(MemoryGallery(), "x", path)


def test_a_large_projection_fits_into_the_metadata(tmp_path: Path) -> None:
    source, target = MemoryGallery(), MemoryGallery()
    tall = np.tile(P, (500, 1))  # 20,000 x 3
    source.create_version("short", 3, tall)
    source.upsert("short", ["a"], vectors(1, 3))
    export_version(source, "short", tmp_path / "x.parquet")
    import_version(target, "short", tmp_path / "x.parquet")
    np.testing.assert_array_equal(target.projection("short"), tall)


def test_importing_and_exporting_streams(tmp_path: Path) -> None:
    """Far less memory than the 20 MB of vectors, also where the file is one group of rows."""
    rows = np.random.default_rng(0).standard_normal((10_000, 512), dtype=np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 512)
    pq.write_table(
        pa.table({"id": np.arange(10_000), "vector": column}),
        tmp_path / "x.parquet",
        row_group_size=10_000,
    )
    del rows, column
    before, held = pa.total_allocated_bytes(), []
    for ids, _, _ in vector_files.ParquetFile(tmp_path / "x.parquet").blocks(1000):
        assert len(ids) == 1000
        held.append(pa.total_allocated_bytes() - before)
    assert max(held) < 10 << 20
    row = vectors(1, 512)[0]
    items = (Item(f"{i:05}", "v1", row, {"i": i}) for i in range(10_000))
    assert vector_files.write_parquet(tmp_path / "out.parquet", 512, items) == 10_000
    groups = pq.ParquetFile(tmp_path / "out.parquet")
    assert [groups.metadata.row_group(i).num_rows for i in range(groups.num_row_groups)] == [
        8192,
        1808,
    ]
