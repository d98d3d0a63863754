"""Vectors of one version in NumPy files, read and written block by block, and what any source of vectors offers.

FILE.npz   ``vectors`` [N, width]; optional ``ids`` [N], ``projection`` [d, m], and the members ``payloads.jsonl`` and
           ``origin.txt``, which says what made the vectors
FILE.npy   the vectors [N, width]; beside it, optional, FILE.jsonl

A line of .jsonl is a payload; beside a .npy file it is {"id": ..., "payload": {...}}, and the first line of an export
has the digest of the vectors too ("vectors_sha256"): two files cannot be replaced at once, so a kill between them would
leave ids beside vectors of others. Without ids, items are called FILE/0, FILE/1, ... Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fixstar.durable import replace_file
from fixstar.errors import DataError, InputError
from fixstar.gallery.store import Item, Payload

__all__ = ["Block", "VectorFile", "VectorSource", "write_vector_file"]

_PAYLOADS, _ORIGIN = "payloads.jsonl", "origin.txt"
_DIGEST = "vectors_sha256"
_DAMAGE = (ValueError, EOFError, KeyError, TypeError, AttributeError, RecursionError)


class Block(NamedTuple):
    """Some rows: ids, vectors [n, width] as they are in the file, payloads."""

    ids: list[str]
    vectors: NDArray[Any]
    payloads: list[Payload]


class VectorSource(Protocol):
    """Vectors of one version, from wherever they come. ``name`` is for messages, ``ids`` are all of them.

    ``blocks`` is asked twice: once to check everything, once to store it.
    """

    name: str
    ids: list[str]
    width: int
    projection: NDArray[np.float32] | None

    def blocks(self, rows: int) -> Iterator[Block]:
        """All rows, at most so many at a time."""


class VectorFile:
    """What is in a file, without reading its vectors yet."""

    def __init__(self, path: str | Path) -> None:
        self.path, self.name = Path(path), str(path)
        if self.path.suffix not in (".npz", ".npy"):
            raise InputError(
                f"{path}: vectors come from FILE.parquet, FILE.npz or FILE.npy; convert other formats with np.save"
            )
        self.projection: NDArray[np.float32] | None = None
        self.origin: str | None = None
        self._digest: str | None = None  # of the vectors that the ids were written with
        with self._reading(), self._vectors() as stream:
            (self.count, self.width), self._dtype = self._header(stream)
            self.ids = self._read_ids()
        if len(self.ids) != self.count:
            raise DataError(f"{path} has {self.count} vectors and {len(self.ids)} ids; each needs one")

    def blocks(self, rows: int) -> Iterator[Block]:
        """All rows, so many at a time; an error at the end where the ids beside them are those of other vectors."""
        digest = hashlib.sha256()
        with self._reading(), self._vectors() as stream, self._lines() as lines:
            self._header(stream)
            for start in range(0, self.count, rows):
                ids = self.ids[start : start + rows]
                size = len(ids) * self.width * self._dtype.itemsize
                content = stream.read(size)
                if len(content) < size:
                    raise DataError(f"{self.path} is cut off: it ends before row {start + len(ids)} of {self.count}")
                digest.update(content)
                vectors = np.frombuffer(content, self._dtype).reshape(len(ids), self.width)
                yield Block(ids, vectors, self._payloads(lines, len(ids)))
        if self._digest not in (None, digest.hexdigest()):
            beside = self.path.with_suffix(".jsonl")
            raise DataError(
                f"{self.path} is not the matrix that {beside.name} was written with: an export was broken off between "
                f"the two, or one was changed. Export again; if you changed the vectors on purpose, delete {_DIGEST} "
                f"from the first line of {beside.name}"
            )

    def _header(self, stream: IO[bytes]) -> tuple[tuple[int, int], np.dtype[Any]]:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(stream)
        if len(shape) != 2 or 0 in shape or dtype.kind not in "fiu" or fortran:
            raise DataError(
                f"{self.path}: vectors are a matrix of real numbers [items, components] in C order, not empty; got "
                f"{dtype} of shape {shape}{' in Fortran order' if fortran else ''}"
            )
        return (shape[0], shape[1]), dtype

    @contextmanager
    def _vectors(self) -> Iterator[IO[bytes]]:
        if self.path.suffix == ".npy":
            with self.path.open("rb") as file:
                yield file
            return
        with zipfile.ZipFile(self.path) as archive, archive.open("vectors.npy") as member:
            yield member

    @contextmanager
    def _lines(self) -> Iterator[Iterator[bytes]]:
        if self.path.suffix == ".npy":
            beside = self.path.with_suffix(".jsonl")
            with beside.open("rb") if beside.exists() else tempfile.TemporaryFile() as file:
                yield iter(file)
            return
        with zipfile.ZipFile(self.path) as archive:
            if _PAYLOADS not in archive.namelist():
                yield iter(())
                return
            with archive.open(_PAYLOADS) as member:
                yield iter(member)

    def _payloads(self, lines: Iterator[bytes], count: int) -> list[Payload]:
        found = [json.loads(line) for line in islice(lines, count)]
        found += [{}] * (count - len(found))
        return [line.get("payload", {}) for line in found] if self.path.suffix == ".npy" else found

    def _read_ids(self) -> list[str]:
        if self.path.suffix == ".npy":
            ids = self._read_ids_beside()
            if self.path.with_suffix(".jsonl").exists():
                return ids
        else:
            with np.load(self.path, allow_pickle=False) as archive:
                ids = [str(item) for item in archive["ids"].tolist()] if "ids" in archive.files else []
                self.projection = archive["projection"] if "projection" in archive.files else None
                self.origin = archive[_ORIGIN].decode() if _ORIGIN in archive.files else None
        return ids or [f"{self.path.stem}/{row}" for row in range(self.count)]

    def _read_ids_beside(self) -> list[str]:
        ids: list[str] = []
        with self._lines() as lines:
            for line in lines:
                record = json.loads(line)
                if not ids:
                    self._digest = record.get(_DIGEST)
                ids.append(record["id"])
        return ids

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror or error}") from error
        except (*_DAMAGE, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{self.path} is damaged, or holds no vectors: {error}") from error


def write_vector_file(
    path: Path,
    width: int,
    items: Iterable[Item],
    projection: NDArray[np.float32] | None = None,
    origin: str | None = None,
) -> int:
    """Write items of one version; the file is whole or absent. How many there were.

    A .npy file holds numbers alone, so ``origin`` is not kept there.
    """
    if path.suffix not in (".npz", ".npy"):
        raise InputError(f"{path}: vectors go to FILE.parquet, FILE.npz or FILE.npy")
    if path.suffix == ".npy" and projection is not None:
        raise InputError(f"{path}: short forms need their projection beside them; write {path.with_suffix('.npz')}")
    ids: list[str] = []
    digest = hashlib.sha256()
    with tempfile.TemporaryFile() as vectors, tempfile.TemporaryFile() as lines:
        for item in items:
            ids.append(item.id)
            content = item.vector.astype("<f4", copy=False).tobytes()
            digest.update(content)
            vectors.write(content)
            line = dict(item.payload) if path.suffix == ".npz" else {"id": item.id, "payload": dict(item.payload)}
            lines.write(_json_line(line))
        shape = len(ids), width
        if path.suffix == ".npz":
            replace_file(path, lambda partial: _write_archive(partial, shape, ids, vectors, lines, projection, origin))
        else:
            replace_file(path.with_suffix(".jsonl"), lambda partial: _write_lines(partial, lines, digest.hexdigest()))
            replace_file(path, lambda partial: _write_matrix(partial, shape, vectors))
    return len(ids)


def _write_archive(
    path: Path,
    shape: tuple[int, int],
    ids: list[str],
    vectors: IO[bytes],
    lines: IO[bytes],
    projection: NDArray[np.float32] | None,
    origin: str | None,
) -> None:
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        with archive.open("vectors.npy", "w", force_zip64=True) as member:
            _write_header(member, shape)
            vectors.seek(0)
            shutil.copyfileobj(vectors, member, 1 << 20)
        with archive.open("ids.npy", "w", force_zip64=True) as member:
            npy.write_array(member, np.array(ids, dtype=np.str_), allow_pickle=False)
        if projection is not None:
            with archive.open("projection.npy", "w", force_zip64=True) as member:
                npy.write_array(member, projection, allow_pickle=False)
        with archive.open(_PAYLOADS, "w", force_zip64=True) as member:
            lines.seek(0)
            shutil.copyfileobj(lines, member, 1 << 20)
        if origin is not None:
            archive.writestr(_ORIGIN, origin)


def _write_matrix(path: Path, shape: tuple[int, int], vectors: IO[bytes]) -> None:
    with path.open("wb") as file:
        _write_header(file, shape)
        vectors.seek(0)
        shutil.copyfileobj(vectors, file, 1 << 20)


def _write_header(file: IO[bytes], shape: tuple[int, int]) -> None:
    npy.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})


def _write_lines(path: Path, lines: IO[bytes], digest: str) -> None:
    lines.seek(0)
    with path.open("wb") as file:
        if first := lines.readline():
            file.write(_json_line({**json.loads(first), _DIGEST: digest}))
        shutil.copyfileobj(lines, file, 1 << 20)


def _json_line(content: Payload) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode() + b"\n"
