"""Moving vectors between galleries and files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_gallery_contract import filled, vectors
from wording import refuses

from fixstar import durable
from fixstar.durable import replace_file
from fixstar.errors import DataError, FixstarError, GalleryError, InputError, ModelError
from fixstar.evaluation.features import load_arrays
from fixstar.gallery import (
    Gallery,
    MemoryGallery,
    SqliteGallery,
    copy_gallery,
    export_version,
    import_version,
    vector_files,
)
from fixstar.gallery.transfer import made_or_same, open_vectors
from fixstar.translation import load_translation

P = np.random.default_rng(5).standard_normal((40, 3)).astype(np.float32)


def content(gallery: Gallery) -> dict[str, Any]:
    return {
        item.id: (item.version, item.vector.tolist(), item.payload) for item in gallery.iterate()
    }


def example(gallery: Gallery) -> Gallery:
    filled(gallery)
    gallery.create_version("short", 3, P)
    gallery.upsert("short", ["ü-1", "日本"], vectors(2, 3, seed=4), [{"name": "ü\n"}, {}])
    return gallery


@pytest.mark.parametrize("there_and_back", [True, False])
def test_a_gallery_moves_between_stores(tmp_path: Path, there_and_back: bool) -> None:
    source, seen = example(MemoryGallery()), []

    def advance(count: int = 1, note: str | None = None) -> None:
        assert note is None
        seen.append(count)

    with SqliteGallery(tmp_path / "g.db") as target:
        assert copy_gallery(source, target, advance) == 8 == sum(seen)
        copied: Gallery = target
        if there_and_back:
            copied = MemoryGallery()
            assert copy_gallery(target, copied) == copy_gallery(target, copied) == 8
        assert content(copied) == content(source)
        assert copied.versions() == source.versions()
        np.testing.assert_array_equal(copied.projection("short"), P)
        query = vectors(1, 3, seed=8)
        hits = [(hit.id, hit.score) for hit in source.search("short", query, k=20)[0]]
        assert [(hit.id, hit.score) for hit in copied.search("short", query, k=20)[0]] == hits


@pytest.mark.parametrize(
    ("name", "width", "projection", "told"),
    [
        ("v1", 4, None, "its vectors have 4 components, these 3"),
        ("v1", 3, np.eye(9, 3), "its vectors are short forms, these full features"),
        ("short", 3, None, "its vectors are full features, these short forms"),
        (
            "short",
            3,
            np.eye(9, 3),
            f"short forms stand for features of 9 components, these for {len(P)}",
        ),
        ("short", 3, P + 1, "of the same width, under different projections"),
    ],
)
def test_copying_onto_another_kind_of_version_is_refused(
    name: str, width: int, projection: Any, told: str
) -> None:
    target = MemoryGallery()
    target.create_version(name, width, projection)
    with pytest.raises(GalleryError, match=f"different version {name!r}: .*{told}"):
        copy_gallery(example(MemoryGallery()), target)


@pytest.mark.parametrize(
    ("version", "name"), [("v1", "out.npy"), ("v1", "out.npz"), ("short", "out.npz")]
)
def test_what_is_exported_can_be_imported(tmp_path: Path, version: str, name: str) -> None:
    source, target = example(MemoryGallery()), MemoryGallery()
    count = export_version(source, version, tmp_path / name)
    assert count == import_version(target, version, tmp_path / name) == source.count()[version]
    expected = {item.id: (version, item.payload) for item in source.iterate(version)}
    assert {item.id: (item.version, item.payload) for item in target.iterate()} == expected
    for item in target.iterate():
        np.testing.assert_array_equal(item.vector, source.get([item.id])[item.id].vector)
    assert target.versions() == [space for space in source.versions() if space.name == version]


def test_exported_files_are_plain_numpy(tmp_path: Path) -> None:
    source = example(MemoryGallery())
    export_version(source, "v1", tmp_path / "out.npz")
    export_version(source, "v1", tmp_path / "out.npy")
    with np.load(tmp_path / "out.npz") as archive:
        assert archive["ids"].tolist() == ["i0", "i1", "i2"]
        np.testing.assert_array_equal(archive["vectors"], np.load(tmp_path / "out.npy"))
        lines = archive["payloads.jsonl"].decode().splitlines()
    assert json.loads(lines[1]) == {"n": 1, "parity": "odd"}
    with pytest.raises(InputError, match=r"write .*out\.npz"):
        export_version(source, "short", tmp_path / "out.npy")
    with pytest.raises(GalleryError, match="no version 'v9'"):
        export_version(source, "v9", tmp_path / "out.npz")


@pytest.mark.parametrize("left", ["as many", "none"])
def test_an_export_that_was_killed_between_its_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """The new ids beside the old vectors would pass for their own."""
    path = tmp_path / "out.npy"
    source = example(MemoryGallery())
    export_version(source, "v1", path)
    source.delete(["i0"] if left == "as many" else ["i0", "i1", "i2"])
    if left == "as many":
        source.upsert("v1", ["other"], vectors(1, 3, seed=9))

    def killed(target: Path, *rest: Any) -> None:
        if target == path:
            raise KeyboardInterrupt
        replace_file(target, *rest)

    monkeypatch.setattr(vector_files, "replace_file", killed)
    with pytest.raises(KeyboardInterrupt):
        export_version(source, "v1", path)
    monkeypatch.undo()
    target = MemoryGallery()
    with refuses(DataError):
        import_version(target, "v1", path)
    assert target.versions() == []
    if left == "as many":
        export_version(source, "v1", path)
        assert import_version(target, "v1", path) == 3


def test_an_export_of_older_releases_and_changed_vectors_can_be_imported(tmp_path: Path) -> None:
    """They have ids and no digest; who changes the vectors takes it out."""
    path, beside = tmp_path / "out.npy", tmp_path / "out.jsonl"
    export_version(example(MemoryGallery()), "v1", path)
    np.save(path, np.load(path)[:, ::-1].copy())
    with refuses(DataError):
        import_version(MemoryGallery(), "v1", path)
    lines = [json.loads(line) for line in beside.read_text().splitlines()]
    assert [line.keys() - {"id", "payload"} for line in lines] == [{"vectors_sha256"}, set(), set()]
    del lines[0]["vectors_sha256"]
    beside.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    target = MemoryGallery()
    assert import_version(target, "v1", path) == 3
    assert set(target.get(["i0", "i1", "i2"])) == {"i0", "i1", "i2"}


def test_foreign_vectors_of_any_length_and_type(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((5000, 6)) * 30
    np.save(tmp_path / "a.npy", rows.astype(np.float64))
    np.savez_compressed(
        tmp_path / "b.npz", vectors=rows.astype(np.float16), ids=np.arange(5000) + 10_000
    )
    gallery = MemoryGallery()
    assert (
        import_version(gallery, "a", tmp_path / "a.npy")
        == import_version(gallery, "b", tmp_path / "b.npz")
        == 5000
    )
    assert gallery.count() == {"a": 5000, "b": 5000}
    query = (rows[77:78] / np.linalg.norm(rows[77])).astype(np.float32)
    first, second = gallery.search("a", query, k=2)[0]
    assert {first.id, second.id} == {"a/77", "10077"}  # equal up to the rounding of half precision
    assert first.score == pytest.approx(1, abs=1e-6)


def write_bad(path: Path, kind: str) -> None:
    rows = np.ones((3000, 4), np.float32)
    if kind == "nan":
        rows[2500, 1] = np.nan
    elif kind == "zero":
        rows[7] = 0
    elif kind == "tiny":
        rows = rows.astype(np.float64)
        rows[2999] = 3e-162  # more than nothing, but its squares do not tell its length
    elif kind == "flat":
        rows = rows[0]
    elif kind == "fortran":
        rows = np.asfortranarray(rows)
    np.save(path, rows)
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif kind == "garbage":
        path.write_bytes(b"garbage")
    elif kind == "few ids":
        path.with_suffix(".jsonl").write_text('{"id": "a"}\n')
    elif kind == "twice":
        path.with_suffix(".jsonl").write_text('{"id": "a"}\n' * 3000)
    elif kind.startswith("value "):
        value = kind.removeprefix("value ")
        lines = (
            f'{{"id": "i{i}", "payload": {{"price": {value if i == 2999 else i}}}}}\n'
            for i in range(3000)
        )
        path.with_suffix(".jsonl").write_text("".join(lines))
    elif kind == "deep":
        path.with_suffix(".jsonl").write_text(
            f'{{"id": "a", "payload": {{"x": {"[" * 5000}{"]" * 5000}}}}}\n'
        )
    elif kind == "no object":
        lines = (f'{{"id": "{i}", "payload": {i}}}\n' for i in range(3000))
        path.with_suffix(".jsonl").write_text("".join(lines))


@pytest.mark.parametrize(
    "kind",
    [
        "nan",
        "zero",
        "flat",
        "fortran",
        "cut",
        "garbage",
        "few ids",
        "twice",
        "no object",
        "value NaN",
        "value 1e999",
        'value "\\ud800"',
        "deep",
        "tiny",
    ],
)
def test_a_bad_file_is_refused_before_anything_is_stored(tmp_path: Path, kind: str) -> None:
    write_bad(tmp_path / "x.npy", kind)
    gallery = MemoryGallery()
    with refuses(FixstarError, varies=r"(?<=no vectors: ).*|(?<=JSON: )[^;]*"):
        import_version(gallery, "x", tmp_path / "x.npy")
    assert gallery.versions() == []


def test_files_that_are_not_there_or_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        import_version(MemoryGallery(), "x", tmp_path / "missing.npy")
    with pytest.raises(InputError, match=r"FILE\.npz"):
        import_version(MemoryGallery(), "x", tmp_path / "vectors.csv")
    np.savez(tmp_path / "odd.npz", features=np.ones((2, 2)))
    with refuses(DataError):
        import_version(MemoryGallery(), "x", tmp_path / "odd.npz")


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.parquet", "y.npy"])
def test_a_pipe_is_never_opened(tmp_path: Path, name: str) -> None:
    if name == "y.npy":  # the ids beside the vectors
        np.save(tmp_path / name, np.ones((2, 2)))
        os.mkfifo(tmp_path / "y.jsonl")
    else:
        os.mkfifo(tmp_path / name)
    with refuses(DataError):
        import_version(MemoryGallery(), "x", tmp_path / name)


def write_bomb(path: Path, member: str, megabytes: int) -> None:
    """An .npz file with zeros that unpack to so much."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, rows in (("vectors", 2), (member, megabytes << 12)):
            with archive.open(f"{name}.npy", "w") as file:
                head = {"descr": "<f4", "fortran_order": False, "shape": (rows, 64)}
                np.lib.format.write_array_header_1_0(file, head)
                if name == "vectors":
                    file.write(np.ones((2, 64), "<f4").tobytes())
                    continue
                for _ in range(megabytes):
                    file.write(bytes(1 << 20))


def test_zeros_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "_UNPACKED", 16 << 20)
    write_bomb(tmp_path / "x.npz", "projection", 20)
    assert (tmp_path / "x.npz").stat().st_size < 200_000
    tracemalloc.start()
    with refuses(DataError, varies=r"[\d,]+(?= bytes)"):
        import_version(MemoryGallery(), "x", tmp_path / "x.npz")
    with pytest.raises(DataError, match=r"would unpack to 20,"):
        load_arrays(tmp_path / "x.npz")
    with pytest.raises(ModelError, match=r"would unpack to 20,"):
        load_translation(tmp_path / "x.npz")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 5 << 20


def test_a_header_that_claims_more_than_the_memory_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        for name, rows in (("vectors", 2), ("projection", 1 << 55)):
            with archive.open(f"{name}.npy", "w") as file:
                head = {"descr": "<f4", "fortran_order": False, "shape": (rows, 64)}
                np.lib.format.write_array_header_1_0(file, head)
                file.write(np.ones((2, 64), "<f4").tobytes())
    with pytest.raises(DataError, match="is damaged"):
        import_version(MemoryGallery(), "x", tmp_path / "x.npz")
    with pytest.raises(DataError, match="is damaged"):
        load_arrays(tmp_path / "x.npz")


def test_a_file_says_what_made_its_vectors(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    source = example(MemoryGallery())
    for name, kept in (("x.npz", "v1 of a shop"), ("x.parquet", "v1 of a shop"), ("x.npy", None)):
        export_version(source, "v1", tmp_path / name, origin="v1 of a shop")
        assert open_vectors(tmp_path / name).origin == kept
        export_version(source, "v1", tmp_path / name)
        assert open_vectors(tmp_path / name).origin is None


MAKING = """
import sys, time
from pathlib import Path
from fixstar.gallery import open_gallery
from fixstar.gallery.transfer import made_or_same
end = time.monotonic() + 120  # where the other one has failed
for number in range(20):
    with open_gallery(f"{sys.argv[1]}-{number}.db") as gallery:
        Path(f"{sys.argv[1]}-{number}.{sys.argv[2]}").touch()
        while not Path(f"{sys.argv[1]}-{number}.{sys.argv[3]}").exists():
            assert time.monotonic() < end
            time.sleep(0.001)
        assert made_or_same(gallery, "v1", 8, None)
"""


def test_two_processes_may_create_the_same_version_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAKING, str(tmp_path / "g")]
    with (
        subprocess.Popen([*command, "a", "b"], stderr=subprocess.PIPE, text=True) as one,
        subprocess.Popen([*command, "b", "a"], stderr=subprocess.PIPE, text=True) as other,
    ):
        assert one.wait(180) == other.wait(180) == 0, (
            f"{one.communicate()[1]}{other.communicate()[1]}"
        )


def test_a_version_created_meanwhile_must_have_the_same_space() -> None:
    class Raced(MemoryGallery):
        """Another one creates the version just before."""

        width, matrix = 3, P

        def create_version(self, name: str, width: int, projection: Any = None) -> None:
            if not self.versions():
                super().create_version(name, self.width, self.matrix)
            super().create_version(name, width, projection)

    assert made_or_same(Raced(), "v1", 3, P)
    assert not made_or_same(Raced(), "v1", 3, None)
    assert not made_or_same(Raced(), "v1", 3, P + 1)
    assert not made_or_same(Raced(), "v1", 4, None)
    with refuses(GalleryError):
        made_or_same(MemoryGallery(), "v1", 0, None)
    with pytest.raises(GalleryError, match="different version"):
        copy_gallery(example(MemoryGallery()), Raced())


def test_importing_and_exporting_streams(tmp_path: Path) -> None:
    """Far less memory than the 20 MB of vectors."""
    np.save(
        tmp_path / "big.npy",
        np.random.default_rng(0).standard_normal((10_000, 512), dtype=np.float32),
    )
    with SqliteGallery(tmp_path / "g.db") as gallery:
        tracemalloc.start()
        import_version(gallery, "big", tmp_path / "big.npy")
        export_version(gallery, "big", tmp_path / "out.npz")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 20 << 20
