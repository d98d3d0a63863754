"""Vectors of one version in files, read and written block by block, and the interface of vector sources.

FILE.npz      ``vectors`` [N, width]; optional ``ids`` [N], ``labels`` [N], ``projection`` [d, m], and the members
              ``payloads.jsonl`` and ``origin.txt``, the origin of the vectors. A non-empty label becomes the
              payload field ``label``
FILE.npy      the vectors [N, width], optionally with FILE.jsonl beside it
FILE.parquet  columns ``id`` (strings or integers), ``vector`` (lists of real numbers of one length), and optional
              ``payload`` (JSON texts, or structs); without it every other column is a field of the payload. The
              projection and the origin are in the file's metadata. The columns may have other names

A line of .jsonl is a payload; beside a .npy file it is {"id": ..., "payload": {...}}, and the first line of an export
also has the digest of the vectors ("vectors_sha256"): two files cannot be replaced atomically, so a kill between them
could leave ids beside the wrong vectors. Without ids, items are called FILE/0, FILE/1, ... Nothing is unpickled.

A null cell in Parquet is an absent field. So is NaN, which many tools write for null. Dates become ISO texts.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import hashlib
import importlib
import io
import json
import math
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fixstar.durable import (
    DAMAGED_ARCHIVE,
    open_regular_file,
    replace_file,
    require_plausible_archive,
    require_regular_file,
)
from fixstar.errors import DataError, FixstarError, InputError, MissingExtraError, NextStep, plural
from fixstar.gallery.filters import Payload
from fixstar.gallery.store import Floats, Item

_VECTORS = "vectors.npy"
_PAYLOADS = "payloads.jsonl"
_ORIGIN = "origin.txt"
_DIGEST = "vectors_sha256"
_PAYLOAD = "payload"
_PROJECTION = "fixstar.projection"  # base64 of float32, after its shape: "20000 64 AAAA..."
_PARQUET_ORIGIN = "fixstar.origin"
_GROUP = 4 << 20  # components in a row group
_ROWS = 8192
PAGE = 1000  # rows per read, without vectors
MARK = "fixstar_mark"
"""The column or field that identifies the old vector and the translation of a translated vector."""
_METADATA = (1 << 31) - 1  # a projection may be larger than the usual limit for texts


class FileRows(NamedTuple):
    """Some rows: ids, vectors [n, width] as in the file, payloads."""

    ids: list[str]
    vectors: NDArray[Any]
    payloads: list[Payload]


class VectorSource(Protocol):
    """Vectors of one version from any source. ``name`` is for messages, ``ids`` are all of them.

    ``blocks`` is read twice: once to check everything, once to store it.
    """

    name: str
    ids: list[str]
    width: int
    projection: Floats | None
    origin: str | None  # origin of the vectors, if the source knows it

    def blocks(self, rows: int) -> Iterator[FileRows]:
        """All rows, up to ``rows`` at a time."""


class VectorPlace(VectorSource, Protocol):
    """A source that can store other vectors beside its own."""

    def beside(self, to: str) -> Beside:
        """The target for the same items' vectors by another model: a table, collection or file called ``to``."""


class Beside(Protocol):
    """The same items' vectors by another model, in a separate table, collection or file beside the source.

    The source itself is never written. Every row written here has a mark, which shows whether it is up to date with the
    source's row. Rows without a mark belong to the user, who embedded them with the new model; they are not touched.
    """

    name: str
    copies: bool  # whether payloads are written too

    def there(self) -> bool:
        """Whether the target exists."""

    def open(self, width: int) -> None:
        """Create the target, or raise if an existing one is not for vectors of this width."""

    def marks(self, ids: Sequence[str]) -> dict[str, str | None]:
        """The marks of existing rows, None for rows without a mark."""

    def marked(self) -> Iterator[list[str]]:
        """The ids of all rows with a mark, page by page."""

    def write(self, rows: FileRows, marks: Sequence[str]) -> None:
        """Store rows of the last block with their marks, replacing rows with the same ids."""

    def remove(self, ids: Sequence[str]) -> None:
        """Delete rows."""

    def close(self) -> None:
        """Finish writing, for targets that do not commit row by row."""

    def switch(self, alias: str | None) -> str:
        """Let searches use the target, by a view or alias if the store has them; returns what is left to do."""

    def undo(self, alias: str | None) -> str:
        """Let searches use the source again."""


class VectorFile:
    """A .npz or .npy file; its vectors are not read yet."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = str(path)
        if self.path.suffix not in (".npz", ".npy"):
            raise InputError(
                f"{path}: vectors come from FILE.parquet, FILE.npz or FILE.npy; convert other formats with np.save"
            )
        self.projection: Floats | None = None
        self.origin: str | None = None
        self._labels: list[Any] | None = None
        self._digest: str | None = None  # digest of the vectors that belong to the ids
        with self._reading():
            require_regular_file(self.path)
            require_plausible_archive(self.path)
        with self._reading(), self._open(_VECTORS) as stream:
            (self.count, self.width), self._dtype = self._header(stream)
            claimed = self.count * self.width * self._dtype.itemsize
            there = self._size() - stream.tell()
            if there < claimed:  # before memory of that size is allocated
                raise DataError(
                    f"{path} is cut off: its header claims {self.count:,} vectors, which take {claimed:,} bytes, and "
                    f"{there:,} are there"
                )
            self.ids = self._read_ids()
        for what, of in (("id", self.ids), ("label", self._labels)):
            if of is not None and len(of) != self.count:
                raise DataError(
                    f"{path} has {plural(self.count, 'vector')} and {plural(len(of), what)}; each needs one"
                )

    def blocks(self, rows: int) -> Iterator[FileRows]:
        """All rows, ``rows`` at a time; raises at the end if the separate ids belong to other vectors."""
        digest = hashlib.sha256()
        with self._reading(), self._open(_VECTORS) as stream, self._open(_PAYLOADS) as lines:
            self._header(stream)
            for start in range(0, self.count, rows):
                ids = self.ids[start : start + rows]
                size = len(ids) * self.width * self._dtype.itemsize
                content = stream.read(size)
                if len(content) < size:
                    raise DataError(
                        f"{self.path} is cut off: it ends before row {start + len(ids)} of {self.count}"
                    )
                digest.update(content)
                vectors = np.frombuffer(content, self._dtype).reshape(len(ids), self.width)
                payloads = [json.loads(line) for line in islice(lines, len(ids))]
                payloads += [{}] * (len(ids) - len(payloads))
                if self.path.suffix == ".npy":
                    payloads = [line.get("payload", {}) for line in payloads]
                if self._labels is not None:
                    labels = self._labels[start : start + rows]
                    payloads = [
                        payload if label == "" else {"label": label, **payload}
                        for label, payload in zip(labels, payloads, strict=True)
                    ]
                yield FileRows(ids, vectors, payloads)
        if self._digest not in (None, digest.hexdigest()):
            beside = self.path.with_suffix(".jsonl")
            raise DataError(
                f"{self.path} is not the matrix that {beside.name} was written with: an export was interrupted between "
                f"the two, or one was changed. Export again; if you changed the vectors on purpose, delete {_DIGEST} "
                f"from the first line of {beside.name}"
            )

    def beside(self, to: str) -> Beside:
        """Another file."""
        from fixstar.gallery.foreign.file_beside import FileBeside

        return FileBeside(self.path, Path(to))

    def _size(self) -> int:
        if self.path.suffix == ".npy":
            return self.path.stat().st_size
        with zipfile.ZipFile(self.path) as archive:
            return archive.getinfo(_VECTORS).file_size

    def _header(self, stream: IO[bytes]) -> tuple[tuple[int, int], np.dtype[Any]]:
        version = npy.read_magic(stream)
        if version == (1, 0):
            read = npy.read_array_header_1_0
        else:
            read = npy.read_array_header_2_0
        shape, fortran, dtype = read(stream)
        if len(shape) != 2 or 0 in shape or dtype.kind not in "fiu" or fortran:
            raise DataError(
                f"{self.path}: vectors are a matrix of real numbers [items, components] in C order, not empty; got "
                f"{dtype} of shape {shape}{' in Fortran order' if fortran else ''}"
            )
        return (shape[0], shape[1]), dtype

    @contextmanager
    def _open(self, member: str) -> Iterator[IO[bytes]]:
        """Open the vectors, or the payload lines, which may be empty."""
        if self.path.suffix == ".npy":
            if member == _VECTORS:
                path = self.path
            else:
                path = self.path.with_suffix(".jsonl")
            with (
                open_regular_file(path)
                if member == _VECTORS or path.exists()
                else io.BytesIO() as file
            ):
                yield file
            return
        with zipfile.ZipFile(self.path) as archive:
            there = member in archive.namelist()
            if member == _VECTORS and not there:
                names = ", ".join(Path(name).stem for name in archive.namelist()[:8]) or "nothing"
                raise DataError(
                    f"{self.path} has no array named vectors; it has {names}. Write np.savez(file, vectors=[items, "
                    "components], ids=..., labels=...): ids and labels may be left out"
                )
            with archive.open(member) if there else io.BytesIO() as file:
                yield file

    def _read_ids(self) -> list[str]:
        ids: list[str] = []
        if self.path.suffix == ".npz":
            with np.load(self.path, allow_pickle=False) as archive:
                if "ids" in archive.files:
                    ids = [str(item) for item in archive["ids"].tolist()]
                if "labels" in archive.files:
                    self._labels = archive["labels"].tolist()
                if "projection" in archive.files:
                    self.projection = archive["projection"]
                if _ORIGIN in archive.files:
                    self.origin = archive[_ORIGIN].decode()
        elif self.path.with_suffix(".jsonl").exists():
            with self._open(_PAYLOADS) as lines:
                for line in lines:
                    record = json.loads(line)
                    if not ids:
                        self._digest = record.get(_DIGEST)
                    ids.append(record["id"])
            return ids
        return ids or [f"{self.path.stem}/{row}" for row in range(self.count)]

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror or error}") from error
        except DAMAGED_ARCHIVE as error:
            raise DataError(f"{self.path} is damaged, or has no vectors: {error}") from error


def write_vector_file(
    path: Path,
    width: int,
    items: Iterable[Item],
    projection: Floats | None = None,
    origin: str | None = None,
) -> int:
    """Write items of one version, atomically; returns their number.

    A .npy file holds only numbers, so ``origin`` is not stored there.
    """
    if path.suffix not in (".npz", ".npy"):
        raise InputError(f"{path}: vectors go to FILE.parquet, FILE.npz or FILE.npy")
    if path.suffix == ".npy" and projection is not None:
        raise InputError(
            f"{path}: short forms need their projection beside them; write {path.with_suffix('.npz')}"
        )
    ids: list[str] = []
    digest = hashlib.sha256()
    with tempfile.TemporaryFile() as vectors, tempfile.TemporaryFile() as lines:
        for item in items:
            ids.append(item.id)
            content = item.vector.astype("<f4", copy=False).tobytes()
            digest.update(content)
            vectors.write(content)
            if path.suffix == ".npz":
                line = dict(item.payload)
            else:
                line = {"id": item.id, "payload": dict(item.payload)}
            lines.write(_json_line(line))

        if path.suffix == ".npz":
            matrices = {"ids": np.array(ids, dtype=np.str_)} | (
                {} if projection is None else {"projection": projection}
            )
            replace_file(
                path,
                lambda partial: _write_archive(
                    partial,
                    width=width,
                    vectors=vectors,
                    lines=lines,
                    matrices=matrices,
                    origin=origin,
                ),
            )
        else:
            replace_file(
                path.with_suffix(".jsonl"),
                lambda partial: _write_lines(partial, lines, digest.hexdigest()),
            )
            replace_file(path, lambda partial: _write_matrix(partial, width, vectors))
    return len(ids)


def _write_archive(
    path: Path,
    width: int,
    vectors: IO[bytes],
    lines: IO[bytes],
    matrices: dict[str, NDArray[Any]],
    origin: str | None,
) -> None:
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        with archive.open(_VECTORS, "w", force_zip64=True) as member:
            _copy_matrix(vectors, member, width)
        for name, matrix in matrices.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, matrix, allow_pickle=False)
        with archive.open(_PAYLOADS, "w", force_zip64=True) as member:
            lines.seek(0)
            shutil.copyfileobj(lines, member, 1 << 20)
        if origin is not None:
            archive.writestr(_ORIGIN, origin)


def _write_matrix(path: Path, width: int, vectors: IO[bytes]) -> None:
    with path.open("wb") as file:
        _copy_matrix(vectors, file, width)


def _copy_matrix(vectors: IO[bytes], file: IO[bytes], width: int) -> None:
    shape = vectors.tell() // (4 * width), width
    npy.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    vectors.seek(0)
    shutil.copyfileobj(vectors, file, 1 << 20)


def _write_lines(path: Path, lines: IO[bytes], digest: str) -> None:
    lines.seek(0)
    with path.open("wb") as file:
        if first := lines.readline():
            file.write(_json_line({**json.loads(first), _DIGEST: digest}))
        shutil.copyfileobj(lines, file, 1 << 20)


def _json_line(content: Payload) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode() + b"\n"


class ParquetFile:
    """A Parquet file as a ``VectorSource``; its vectors are not read yet."""

    def __init__(
        self, path: str | Path, id_column: str = "id", vector_column: str = "vector"
    ) -> None:
        self.name = str(path)
        self._id = id_column
        self._vector = vector_column
        self._arrow = _pyarrow(f"reading {path}")
        with self._opened() as file:
            self._check_columns(file.schema_arrow)
            metadata = file.metadata.metadata or {}
            self.projection = _projection(metadata)
            self.origin = None
            if _PARQUET_ORIGIN.encode() in metadata:
                self.origin = metadata[_PARQUET_ORIGIN.encode()].decode()
            self.ids = self._read_ids(file)
            first = next(file.iter_batches(1, columns=[vector_column])).column(0)[0]
            self.width = len(first) if first.is_valid else 0  # all others must have the same width
            if not self.width:
                raise DataError(f"{path}: row 0 has no vector")

    def blocks(self, rows: int) -> Iterator[FileRows]:
        """All rows, at most ``rows`` at a time."""
        start = 0
        with self._opened() as file:
            names = file.schema_arrow.names
            if _PAYLOAD in names:
                fields = [_PAYLOAD]
            else:
                fields = [n for n in names if n not in (self._id, self._vector)]
            for batch in file.iter_batches(rows, columns=[self._vector, *fields]):
                ids = self.ids[start : start + len(batch)]
                vectors = self._matrix(batch.column(self._vector), start)
                yield FileRows(ids, vectors, self._payloads(batch.select(fields), start))
                start += len(batch)

    def beside(self, to: str) -> Beside:
        """Another file."""
        from fixstar.gallery.foreign.file_beside import FileBeside

        return FileBeside(Path(self.name), Path(to))

    def _check_columns(self, schema: Any) -> None:
        for column, what in ((self._id, "id"), (self._vector, "vector")):
            if column not in schema.names:
                raise InputError(
                    f"{self.name} has no column {column!r}; it has {', '.join(schema.names)}. Set {what}_column",
                    NextStep("import-vectors", {"file": self.name, f"{what}_column": ...}),
                )
        types = self._arrow.types
        kind = schema.field(self._id).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind)):
            raise DataError(
                f"{self.name}: ids are strings or integers, column {self._id!r} holds {kind}"
            )
        kind = schema.field(self._vector).type
        lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        if not lists or not (
            types.is_floating(kind.value_type) or types.is_integer(kind.value_type)
        ):
            raise DataError(
                f"{self.name}: vectors are lists of real numbers, column {self._vector!r} holds {kind}"
            )

    def _read_ids(self, file: Any) -> list[str]:
        ids: list[str] = []
        for batch in file.iter_batches(_ROWS, columns=[self._id]):
            column = batch.column(0)
            if column.null_count:
                raise DataError(f"{self.name}: row {len(ids) + _first_null(column)} has no id")
            ids += map(str, column.to_pylist())
        if not ids:
            raise DataError(f"{self.name} has no rows")
        return ids

    def _matrix(self, column: Any, start: int) -> NDArray[Any]:
        """[rows, width] of a column of lists."""
        if column.null_count:
            raise DataError(
                f"{self.name}: row {start + _first_null(column)} has no vector; nothing was stored"
            )
        lengths = self._arrow.compute.list_value_length(column).to_numpy(zero_copy_only=False)
        if len(odd := np.flatnonzero(lengths != self.width)):
            raise DataError(
                f"{self.name}: row {start + odd[0]} has a vector of {lengths[odd[0]]} components, the first row one of "
                f"{self.width}; all need the same. Nothing was stored"
            )
        values = column.flatten()
        if values.null_count:
            raise DataError(
                f"{self.name}: row {start + _first_null(values) // self.width} has a null in its vector; nothing was "
                "stored"
            )
        matrix: NDArray[Any] = values.to_numpy(zero_copy_only=False).reshape(
            len(column), self.width
        )
        return matrix

    def _payloads(self, batch: Any, start: int) -> list[Payload]:
        rows = batch.to_pylist()
        try:
            if batch.schema.names != [_PAYLOAD]:
                return [json_fields(row) for row in rows]
            return [_payload(row[_PAYLOAD]) for row in rows]
        except (ValueError, TypeError, RecursionError) as error:
            raise DataError(
                f"{self.name}: a payload from row {start} on cannot be kept as JSON: {error}"
            ) from error

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        parquet = importlib.import_module("pyarrow.parquet")
        try:
            require_regular_file(Path(self.name))
            with parquet.ParquetFile(
                self.name, buffer_size=1 << 20, pre_buffer=False, thrift_string_size_limit=_METADATA
            ) as file:
                yield file
        except FixstarError:
            raise
        except OSError as error:
            raise DataError(f"{self.name} cannot be read: {error.strerror or error}") from error
        except (self._arrow.ArrowException, ValueError, KeyError) as error:
            raise DataError(f"{self.name} is damaged, or has no vectors: {error}") from error


def _pyarrow(purpose: str) -> Any:
    """pyarrow, untyped; raises with the package to install if it is missing."""
    try:
        importlib.import_module("pyarrow.compute")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet", purpose) from error


def _first_null(column: Any) -> int:
    return int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])


def _payload(cell: Any) -> Any:
    """The payload in a cell of the payload column."""
    if isinstance(cell, str):
        return json.loads(cell, parse_constant=_refuse)
    return json_fields(dict(cell or {}))


def json_fields(row: dict[str, Any]) -> dict[str, Any]:
    """A table row as a payload: without absent cells, with values converted to JSON types."""
    return {field: _value(value) for field, value in row.items() if not _is_missing(value)}


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _value(value: Any) -> Any:
    """A value converted to a JSON type."""
    if isinstance(value, dict):
        return json_fields(value)
    if isinstance(value, list):
        return [None if _is_missing(one) else _value(one) for one in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        if value == value.to_integral_value():
            return int(value)
        return float(value)
    if isinstance(value, float) and math.isinf(value):
        raise ValueError("it has an infinite number")
    if not isinstance(value, (str, bool, int, float)):
        raise TypeError(f"it has a value of type {type(value).__name__}; leave that column out")
    return value


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _projection(metadata: dict[bytes, bytes]) -> Floats | None:
    if _PROJECTION.encode() not in metadata:
        return None
    rows, columns, content = metadata[_PROJECTION.encode()].split(b" ")
    values = np.frombuffer(base64.b64decode(content, validate=True), "<f4")
    return values.reshape(int(rows), int(columns)).astype(np.float32)


def write_parquet(
    path: Path,
    width: int,
    items: Iterable[Item],
    projection: Floats | None = None,
    origin: str | None = None,
) -> int:
    """Write items of one version, atomically; returns their number."""
    arrow = _pyarrow(f"writing {path}")
    parquet = importlib.import_module("pyarrow.parquet")
    vector = arrow.list_(arrow.float32(), width)
    schema = arrow.schema([("id", arrow.string()), ("vector", vector), (_PAYLOAD, arrow.string())])
    rows = max(1, min(_ROWS, _GROUP // width))
    written = 0
    waiting = iter(items)

    def write(partial: Path) -> None:
        nonlocal written
        with parquet.ParquetWriter(partial, schema, use_dictionary=[_PAYLOAD]) as writer:
            while group := list(islice(waiting, rows)):
                flat = arrow.array(
                    np.concatenate([item.vector for item in group]).astype(np.float32, copy=False)
                )
                texts = [json.dumps(dict(item.payload), ensure_ascii=False) for item in group]
                columns = [
                    [item.id for item in group],
                    arrow.FixedSizeListArray.from_arrays(flat, width),
                    texts,
                ]
                writer.write_batch(arrow.record_batch(columns, schema=schema))
                written += len(group)
            if projection is not None:
                content = base64.b64encode(projection.astype("<f4").tobytes()).decode("ascii")
                text = f"{projection.shape[0]} {projection.shape[1]} {content}"
                writer.add_key_value_metadata({_PROJECTION: text})
            if origin is not None:
                writer.add_key_value_metadata({_PARQUET_ORIGIN: origin})

    replace_file(path, write)
    return written
