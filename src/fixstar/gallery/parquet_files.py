"""Vectors of one version in Parquet files, read and written group by group.

    id        strings, or integers
    vector    lists of real numbers, all of one length
    payload   optional: JSON texts, or structs. Without it every other column is a field of the payload

A cell that is null is a field that is not there; so is NaN, which is how many tools write null. Dates become ISO texts.
The projection of short forms, and what made the vectors, stand in the file's metadata. The columns may have other
names.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import importlib
import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.durable import replace_file
from fixstar.errors import DataError, FixstarError, InputError, MissingExtraError
from fixstar.gallery.store import Item, Payload
from fixstar.gallery.vector_files import Block

__all__ = ["ParquetFile", "write_parquet"]

_PAYLOAD = "payload"
_PROJECTION = "fixstar.projection"  # base64 of float32, after its shape: "20000 64 AAAA..."
_ORIGIN = "fixstar.origin"
_GROUP = 4 << 20  # numbers in a row group
_ROWS = 8192
_METADATA = (1 << 31) - 1  # a projection may be larger than what readers take for a harmless text


class ParquetFile:
    """What is in a file, without reading its vectors yet: a ``VectorSource``."""

    def __init__(self, path: str | Path, id_column: str = "id", vector_column: str = "vector") -> None:
        self.name, self._id, self._vector = str(path), id_column, vector_column
        self._arrow = _pyarrow(f"reading {path}")
        with self._opened() as file:
            self._check_columns(file.schema_arrow)
            metadata = file.metadata.metadata or {}
            self.projection = _projection(metadata)
            self.origin = metadata[_ORIGIN.encode()].decode() if _ORIGIN.encode() in metadata else None
            self.ids = self._read_ids(file)
            self.width = self._read_width(file)

    def blocks(self, rows: int) -> Iterator[Block]:
        """All rows, at most so many at a time."""
        start = 0
        with self._opened() as file:
            names = file.schema_arrow.names
            fields = [_PAYLOAD] if _PAYLOAD in names else [n for n in names if n not in (self._id, self._vector)]
            for batch in file.iter_batches(rows, columns=[self._vector, *fields]):
                ids = self.ids[start : start + len(batch)]
                vectors = self._matrix(batch.column(self._vector), start)
                yield Block(ids, vectors, self._payloads(batch.select(fields), start))
                start += len(batch)

    def _check_columns(self, schema: Any) -> None:
        for column, what in ((self._id, "id"), (self._vector, "vector")):
            if column not in schema.names:
                raise InputError(
                    f"{self.name} has no column {column!r}; it has {', '.join(schema.names)}. Say which one holds the "
                    f'{what}s: {what}_column="..." (--{what}-column ...)'
                )
        types, kind = self._arrow.types, schema.field(self._id).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind)):
            raise DataError(f"{self.name}: ids are strings or integers, column {self._id!r} holds {kind}")
        kind = schema.field(self._vector).type
        lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        if not lists or not (types.is_floating(kind.value_type) or types.is_integer(kind.value_type)):
            raise DataError(f"{self.name}: vectors are lists of real numbers, column {self._vector!r} holds {kind}")

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

    def _read_width(self, file: Any) -> int:
        """The length of the first vector; all others must have it."""
        first = next(file.iter_batches(1, columns=[self._vector])).column(0)[0]
        width = len(first) if first.is_valid else 0
        if not width:
            raise DataError(f"{self.name}: row 0 has no vector")
        return width

    def _matrix(self, column: Any, start: int) -> NDArray[Any]:
        """[rows, width] of a column of lists."""
        if column.null_count:
            raise DataError(f"{self.name}: row {start + _first_null(column)} has no vector; nothing was stored")
        lengths = self._arrow.compute.list_value_length(column).to_numpy(zero_copy_only=False)
        if len(odd := np.flatnonzero(lengths != self.width)):
            raise DataError(
                f"{self.name}: row {start + odd[0]} has a vector of {lengths[odd[0]]} numbers, the first row one of "
                f"{self.width}; all need the same. Nothing was stored"
            )
        values = column.flatten()
        if values.null_count:
            raise DataError(
                f"{self.name}: row {start + _first_null(values) // self.width} has a null in its vector; nothing was "
                "stored"
            )
        matrix: NDArray[Any] = values.to_numpy(zero_copy_only=False).reshape(len(column), self.width)
        return matrix

    def _payloads(self, batch: Any, start: int) -> list[Payload]:
        rows = batch.to_pylist()
        try:
            if batch.schema.names != [_PAYLOAD]:
                return [_fields(row) for row in rows]
            return [_payload(row[_PAYLOAD]) for row in rows]
        except (ValueError, TypeError, RecursionError) as error:
            raise DataError(f"{self.name}: a payload from row {start} on cannot be kept as JSON: {error}") from error

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        parquet = importlib.import_module("pyarrow.parquet")
        try:
            with parquet.ParquetFile(
                self.name, buffer_size=1 << 20, pre_buffer=False, thrift_string_size_limit=_METADATA
            ) as file:
                yield file
        except FixstarError:
            raise
        except OSError as error:
            raise DataError(f"{self.name} cannot be read: {error.strerror or error}") from error
        except (self._arrow.ArrowException, ValueError, KeyError) as error:
            raise DataError(f"{self.name} is damaged, or holds no vectors: {error}") from error


def _pyarrow(purpose: str) -> Any:
    """pyarrow, as untyped as it is."""
    try:
        importlib.import_module("pyarrow.compute")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet", purpose) from error


def _first_null(column: Any) -> int:
    return int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])


def _payload(cell: Any) -> Any:
    """The payload in a cell of the column that holds payloads."""
    if isinstance(cell, str):
        return json.loads(cell, parse_constant=_refuse)
    return _fields(dict(cell or {}))


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    return {field: _value(value) for field, value in row.items() if not _is_missing(value)}


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _value(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, dict):
        return _fields(value)
    if isinstance(value, list):
        return [None if _is_missing(one) else _value(one) for one in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float) and math.isinf(value):
        raise ValueError("it has an infinite number")
    if not isinstance(value, (str, bool, int, float)):
        raise TypeError(f"it has a value of type {type(value).__name__}; leave that column out")
    return value


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no number in JSON")


def _projection(metadata: dict[bytes, bytes]) -> NDArray[np.float32] | None:
    if _PROJECTION.encode() not in metadata:
        return None
    rows, columns, content = metadata[_PROJECTION.encode()].split(b" ")
    values = np.frombuffer(base64.b64decode(content, validate=True), "<f4")
    return values.reshape(int(rows), int(columns)).astype(np.float32)


def write_parquet(
    path: Path,
    width: int,
    items: Iterable[Item],
    projection: NDArray[np.float32] | None = None,
    origin: str | None = None,
) -> int:
    """Write items of one version; the file is whole or absent. How many there were."""
    arrow = _pyarrow(f"writing {path}")
    parquet = importlib.import_module("pyarrow.parquet")
    vector = arrow.list_(arrow.float32(), width)
    schema = arrow.schema([("id", arrow.string()), ("vector", vector), (_PAYLOAD, arrow.string())])
    rows, written, waiting = max(1, min(_ROWS, _GROUP // width)), 0, iter(items)

    def write(partial: Path) -> None:
        nonlocal written
        with parquet.ParquetWriter(partial, schema, use_dictionary=[_PAYLOAD]) as writer:
            while group := list(islice(waiting, rows)):
                flat = arrow.array(np.concatenate([item.vector for item in group]).astype(np.float32, copy=False))
                texts = [json.dumps(dict(item.payload), ensure_ascii=False) for item in group]
                columns = [[item.id for item in group], arrow.FixedSizeListArray.from_arrays(flat, width), texts]
                writer.write_batch(arrow.record_batch(columns, schema=schema))
                written += len(group)
            if projection is not None:
                content = base64.b64encode(projection.astype("<f4").tobytes()).decode("ascii")
                text = f"{projection.shape[0]} {projection.shape[1]} {content}"
                writer.add_key_value_metadata({_PROJECTION: text})
            if origin is not None:
                writer.add_key_value_metadata({_ORIGIN: origin})

    replace_file(path, write)
    return written
