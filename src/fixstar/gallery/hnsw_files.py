"""Saved indexes. A file holds a checksum of all that follows, then what it is an index of, then FAISS's own bytes.

FAISS is given nothing to read before the checksum has been found right, and an index counts for nothing before its
rows have been found to be those of the gallery: their numbers, and a digest of every vector.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import IO, Any

import numpy as np

from fixstar.durable import replace_file
from fixstar.gallery.codes import Codes
from fixstar.gallery.hnsw import HnswIndex, engine, row_digests
from fixstar.gallery.matrix import Rows

__all__ = ["index_path", "load_hnsw", "save_hnsw"]

_MAGIC = b"fixstar hnsw 3\n"
_PIECE = 1 << 20


def index_path(folder: Path, version: str) -> Path:
    """Where the index of a version is kept; version names may be no file names."""
    return folder / (hashlib.sha256(version.encode()).hexdigest()[:16] + ".hnsw")


def save_hnsw(path: Path, index: HnswIndex, version: str) -> None:
    """Write an index; the file is whole or absent."""
    codes = {"mean": index.codes.mean.tolist(), "scale": index.codes.scale, "length": index.codes.length}
    header = {"version": version, "rows": len(index.numbers), "codes": codes, "recall": index.recall}
    replace_file(path, lambda partial: _write(partial, header, index))


def _write(path: Path, header: dict[str, Any], index: HnswIndex) -> None:
    faiss, checksum = engine(), hashlib.sha256()
    with path.open("wb") as file:

        def write(content: bytes) -> int:
            checksum.update(content)
            return file.write(content)

        file.write(_MAGIC + bytes(checksum.digest_size))
        write(json.dumps(header).encode() + b"\n")
        write(index.numbers.astype("<i8").tobytes())
        write(index.digests.astype("<u4").tobytes())
        faiss.write_index(index.graph, faiss.PyCallbackIOWriter(write, _PIECE))
        file.seek(len(_MAGIC))
        file.write(checksum.digest())


def load_hnsw(path: Path, version: str, rows: Rows, position: int) -> HnswIndex | None:
    """The index in a file, or None if it is not an index of these rows, the newest written as ``position``."""
    try:
        with path.open("rb") as file:
            index = _read(file, version)
    except (
        OSError,
        ValueError,
        KeyError,
        RuntimeError,
        MemoryError,
    ):  # cut off, or of a FAISS that this one cannot read
        return None
    return index if index is not None and _fits(index, rows, position) else None


def _read(file: IO[bytes], version: str) -> HnswIndex | None:
    if file.read(len(_MAGIC)) != _MAGIC or not _is_whole(file):
        return None
    header = json.loads(file.readline())
    if header["version"] != version:
        return None
    count = header["rows"]
    numbers = np.frombuffer(file.read(8 * count), "<i8").astype(np.int64)
    digests = np.frombuffer(file.read(4 * count), "<u4").astype(np.uint32)
    faiss = engine()
    graph = faiss.read_index(faiss.PyCallbackIOReader(file.read, _PIECE))
    if graph.ntotal != count or count == 0:
        return None
    known = header["codes"]
    codes = Codes(np.array(known["mean"], np.float32), known["scale"], known["length"])
    return HnswIndex(graph, numbers, digests, codes, header["recall"])


def _is_whole(file: IO[bytes]) -> bool:
    """Whether the checksum is right; leaves the file behind it."""
    checksum = hashlib.sha256()
    expected = file.read(checksum.digest_size)
    start = file.tell()
    while piece := file.read(_PIECE):
        checksum.update(piece)
    file.seek(start)
    return checksum.digest() == expected


def _fits(index: HnswIndex, rows: Rows, position: int) -> bool:
    """Whether all rows up to the newest in the index are in it, with the same vectors."""
    if index.graph.d != rows.width or index.last > position:
        return False
    for numbers, vectors in rows.pages(0, 4096):
        covered = numbers <= index.last
        node = np.searchsorted(index.numbers, numbers[covered])  # numbers rise, so the last one is never passed
        same = index.numbers[node] == numbers[covered]
        if not same.all() or not (index.digests[node] == row_digests(vectors[covered])).all():
            return False
    return True
