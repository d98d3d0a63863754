"""An approximate index of one version's rows: FAISS's HNSW graph over them, with 8 bits per component.

The index is a cache, derived from the rows. It finds rows that are likely among the nearest; their cosines are then
computed from the vectors themselves. Removed rows are skipped and rows newer than the index are searched exactly, so
an outdated index costs time and never an item.

A quarter of the memory is a quarter of what a search reads, and 8 bits are enough to find candidates: all that may be
among the nearest within rounding are scored again. The graph is built by distance, which is not affected by removing
the mean, and searched by inner product, whose ranking does not depend on the length of the query.

A saved index is a checksum of all that follows, a header, and FAISS's own bytes. FAISS reads nothing before the
checksum was verified, and an index is used only if its rows are those of the gallery: their numbers, and a digest of
every vector.

``IndexKeeper`` loads, builds and updates the indexes of an embedded gallery in the background. Nobody waits for it. One
thread on one core builds an index aside, from the rows as they were when it started; then the new index
replaces the old one at once. One process builds at a time, the others load what it saved. A version whose index cannot
be built is searched exactly, and the others keep theirs. Without FAISS there are no indexes at all, and if one cannot
be saved, all stay in memory.

FAISS's own CenteringTransform before QT_8bit_uniform finds as much, but takes 17 % longer to build and 5 % longer to
search than codes made here (8,000 vectors of 256 components, one thread).
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import math
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.durable import exclusive, replace_file
from fixstar.errors import GalleryError, MissingExtraError
from fixstar.gallery.matrix import (
    QUERIES_OF_A_THREAD,
    Allowed,
    ExactSearch,
    Mask,
    Numbers,
    Rows,
)
from fixstar.gallery.ranking import Indices, exact_cosines, first_of_each
from fixstar.gallery.store import Floats, IndexState

KIND = "FAISS HNSW"
LINKS = 32  # per row (M)
BREADTH_BUILDING = 100  # candidates kept while a row is linked (efConstruction)
BREADTH = 40  # candidates kept by a search (efSearch), more if some rows are excluded
_SPARE = 6  # requested beyond k, at least: rounding may swap neighbours
_LEAST = 8  # if less than an eighth of the rows may be found, searching those exactly is as fast
_CHUNK = 128  # rows linked between two checks whether to stop: about 0.1 s
_PAGE = 4096  # rows read at once
_SAMPLE = 200  # queries of the recall that is reported
_NEAREST = 10  # neighbours of the recall that is reported
_LARGEST = 127  # of a code
_REACH = 8  # components beyond this many root mean squares are clipped
_TINY = 1e-30  # for queries that are 0 in another version's space
_ROUNDING = 1.2  # three standard deviations of the difference of two products: 3 sqrt(2 / 12)
_MAGIC = b"fixstar hnsw 3\n"
_PIECE = 1 << 20
_LARGE_PAGE = 2 << 20
_STEP = 16 << 20  # bytes moved at once: about 20 ms
_WANTED = 14  # MADV_HUGEPAGE
_NOW = 25  # MADV_COLLAPSE; older kernels do not know it and move the pages later
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")

Digests = NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class Codes:
    """Vectors as integers of 8 bits: (vector - mean) * scale, usually of this ``length``; float32 for FAISS.

    Many features share a large mean; removing it changes no ranking. The few components beyond eight times the usual
    size are clipped, so that one odd vector does not cost all others their precision. Each query has its own scale,
    which changes no ranking either. Queries are rounded here because FAISS truncates them.
    """

    mean: Floats
    scale: float
    length: float

    def of(self, vectors: Floats) -> Floats:
        """[N, width] of vectors."""
        codes = vectors - self.mean
        codes *= np.float32(self.scale)
        return np.clip(np.rint(codes, out=codes), -_LARGEST, _LARGEST, out=codes)

    def of_one_query(self, query: Floats) -> tuple[Floats, float]:
        """[1, width] of a query, and how much rounding may change the difference of its products with two vectors.

        A component of either is off by 1 / sqrt(12) of a code. A query is at most 1 long. In half the time of
        ``of_queries``.
        """
        scale = _LARGEST / max(float(np.maximum.reduce(np.abs(query), axis=None)), _TINY)
        codes = query * np.float32(scale)
        return np.rint(codes, out=codes), _ROUNDING * math.hypot(scale, self.length)

    def of_queries(self, queries: Floats) -> tuple[Floats, Floats]:
        """[N, width] and [N, 1]: the same for many."""
        scale = _LARGEST / np.maximum(np.abs(queries).max(axis=1, keepdims=True), np.float32(_TINY))
        codes = queries * scale
        return np.rint(codes, out=codes), _ROUNDING * np.hypot(scale, np.float32(self.length))


def fitted_codes(pages: Iterable[Floats], again: Iterable[Floats], width: int) -> Codes:
    """The codes for vectors that are read page by page, twice."""
    total = np.zeros(width)
    count = 0
    for vectors in pages:
        total += vectors.sum(axis=0, dtype=np.float64)
        count += len(vectors)
    mean = (total / max(count, 1)).astype(np.float32)
    squares = 0.0
    largest = 0.0
    for vectors in again:
        off = vectors - mean
        squares += float(np.einsum("ij,ij->", off, off, dtype=np.float64))
        largest = max(largest, float(np.abs(off).max(initial=0)))
    usual = math.sqrt(squares / max(count * width, 1))
    scale = _LARGEST / max(min(largest, _REACH * usual), _TINY)
    return Codes(mean, scale, scale * usual * math.sqrt(width))


class _Choice(NamedTuple):
    """Which nodes of the graph may be found: how many, and which ones if not all."""

    size: int
    mask: Mask | None


class HnswIndex:
    """A graph whose nodes 0, 1, ... are the rows with these ``numbers``, as ``codes``; see ``RowIndex``.

    ``digests`` identify the vectors it was built from; ``recall`` was measured then.
    """

    def __init__(
        self, graph: Any, numbers: Numbers, digests: Digests, codes: Codes, recall: float | None
    ) -> None:
        self.graph = graph
        self.numbers = numbers
        self.digests = digests
        self.codes = codes
        self.recall = recall
        self.last = int(numbers[-1])
        stored = engine().downcast_index(graph.storage).codes
        links = graph.hnsw.neighbors
        use_large_pages(int(stored.data()), stored.size())
        use_large_pages(int(links.data()), 4 * links.size())
        self._lock = threading.Lock()
        self._places: tuple[int, Indices] | None = (
            None  # the layout, and the rows of the nodes in it
        )
        self._chosen: tuple[int, Allowed | None, _Choice] | None = None
        self._whole: tuple[weakref.ref[Rows], Indices, int] | None = (
            None  # rows with all nodes; the first new one
        )

    def candidates(
        self, rows: Rows, queries: Floats, k: int, allowed: Allowed | None
    ) -> tuple[Indices, Indices]:
        """Pairs (query, row) that include most of the k nearest of each query [N, width]."""
        if (
            len(queries) == 1
            and allowed is None
            and (row := self._likely(rows, queries, k)) is not None
        ):
            return np.zeros(len(row), np.intp), row
        place, choice = self._look(rows, allowed)
        if max(k, _LEAST) * _LEAST > choice.size or choice.size * _LEAST < len(self.numbers):
            return rows.candidates(queries, k, allowed)
        query, node = self._ask(queries, k, choice)
        found = [(query, place[node])]
        count = np.bincount(query, minlength=len(queries))
        if count.min() < k:  # nearly all neighbours of some are excluded
            missed = np.flatnonzero(count < k)
            query, row = rows.candidates(queries[missed], k, allowed)
            found.append((missed[query], row))
        if (first := rows.after(self.last)) < rows.end:
            found.append(rows.candidates(queries, k, allowed, first))
        if len(found) == 1:
            return found[0]
        pairs = np.unique(np.concatenate([query * rows.end + row for query, row in found]))
        return pairs // rows.end, pairs % rows.end

    def _likely(self, rows: Rows, query: Floats, k: int) -> Indices | None:
        """The rows of ``candidates`` for one query [1, width]; None if rows were removed since the graph was built.

        In few steps: a graph search leaves little else in the processor's cache, so each step is expensive.
        """
        whole = self._whole
        if whole is None or whole[0]() is not rows:
            whole = self._whole = self._all_of(rows)
        if whole is None or max(k, _LEAST) * _LEAST > len(self.numbers):
            return None
        codes, rounding = self.codes.of_one_query(query)
        breadth = max(BREADTH, k + _SPARE)
        score, nodes = self.graph.search(codes, breadth, params=_parameters(breadth))
        if nodes.item(k - 1) < 0:
            return None
        row: Indices = whole[1].take(nodes[score >= score.item(k - 1) - rounding])  # nearest first
        if whole[2] == rows.end:
            return row
        return np.concatenate([row, rows.candidates(query, k, None, whole[2])[1]])

    def _all_of(self, rows: Rows) -> tuple[weakref.ref[Rows], Indices, int] | None:
        place, choice = self._look(rows, rows.allowed(None))
        if choice.mask is None:
            return weakref.ref(rows), place, rows.after(self.last)
        return None

    def lag(self, rows: Rows) -> tuple[int, int]:
        """How many rows were added since, and how many in the index were removed."""
        came = rows.count_from(rows.after(self.last))
        return came, len(self.numbers) - (len(rows) - came)

    def _ask(self, queries: Floats, k: int, choice: _Choice) -> tuple[Indices, Indices]:
        """Pairs (query, node): allowed nodes that may be among the k nearest within rounding."""
        breadth = max(BREADTH, k + _SPARE)
        if choice.mask is not None:
            breadth = max(breadth, 5 * (k + _SPARE) // 2) * len(self.numbers) // choice.size + 1
        codes, rounding = self.codes.of_queries(queries)
        with _one_thread(len(queries)):
            score, nodes = self.graph.search(codes, breadth, params=_parameters(breadth))
        good = nodes >= 0
        if choice.mask is None:
            kth = score[:, k - 1 : k]  # nearest first
        else:
            good &= choice.mask[nodes]
            kth = np.sort(np.where(good, score, -np.inf), axis=1)[:, -k, None]
        good &= score >= kth - rounding
        return good.nonzero()[0], nodes[good]

    def _look(self, rows: Rows, allowed: Allowed | None) -> tuple[Indices, _Choice]:
        """The rows of the nodes, and which of them may be found; cached until the rows change."""
        with self._lock:  # searches run in parallel
            if self._places is None or self._places[0] != rows.layout:
                self._places = (rows.layout, rows.find(self.numbers))
                self._chosen = None
            place = self._places[1]
            if (
                self._chosen is None
                or self._chosen[0] != rows.layout
                or self._chosen[1] is not allowed
            ):
                self._chosen = rows.layout, allowed, _choice(place, allowed)
            return place, self._chosen[2]


def _choice(place: Indices, allowed: Allowed | None) -> _Choice:
    mask = place >= 0
    if allowed is not None:
        mask &= allowed.mask[place]
    size = int(np.count_nonzero(mask))
    return _Choice(size, None if size == len(mask) else mask)


@lru_cache(maxsize=64)
def _parameters(breadth: int) -> Any:
    """FAISS's search parameters; parallel searches only read them."""
    return engine().SearchParametersHNSW(efSearch=breadth)


@contextmanager
def _one_thread(queries: int) -> Iterator[None]:
    """Let FAISS search for few queries in the calling thread: ``ExactSearch`` shares many out among threads."""
    faiss = engine()
    threads = faiss.omp_get_max_threads()
    if threads == 1 or queries > QUERIES_OF_A_THREAD:
        yield
        return
    faiss.omp_set_num_threads(1)  # of the calling thread only
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)


def engine() -> Any:
    """FAISS, or an error that says how to install it."""
    try:
        return importlib.import_module("faiss")
    except ImportError as error:
        raise MissingExtraError(
            "faiss-cpu", "index", "an approximate index of an embedded gallery"
        ) from error


def build_hnsw(
    rows: Rows, keep_going: Callable[[], bool], threads: int = 1, base: HnswIndex | None = None
) -> HnswIndex | None:
    """The index of all rows, built from scratch or by extending ``base``; None if ``keep_going`` returned False.

    There must be rows. Sets the number of threads that FAISS uses in the calling thread.
    """
    faiss = engine()
    faiss.omp_set_num_threads(threads)
    if base is None:
        kind = faiss.ScalarQuantizer.QT_8bit_direct_signed
        graph = faiss.IndexHNSWSQ(rows.width, kind, LINKS, faiss.METRIC_L2)
        graph.hnsw.efConstruction = BREADTH_BUILDING
        first_look, second_look = (
            (vectors for _, vectors in rows.pages(0, _PAGE)) for _ in range(2)
        )
        codes = fitted_codes(first_look, second_look, rows.width)
        numbers = []
        digests = []
        first = 0
    else:
        graph = faiss.clone_index(base.graph)
        codes = base.codes
        first = rows.after(base.last)
        numbers = [base.numbers]
        digests = [base.digests]
        _measure_by(graph, faiss.METRIC_L2)
    for some, vectors in rows.pages(first, _CHUNK * threads):
        if not keep_going():
            return None
        graph.add(codes.of(vectors))
        numbers.append(some)
        digests.append(row_digests(vectors))
    _measure_by(graph, faiss.METRIC_INNER_PRODUCT)
    index = HnswIndex(
        graph=graph,
        numbers=np.concatenate(numbers),
        digests=np.concatenate(digests),
        codes=codes,
        recall=None,
    )
    index.recall = _recall(index, rows, keep_going)
    return None if index.recall is None else index


def _measure_by(graph: Any, metric: int) -> None:
    """Set the metric for adding and searching; stored codes do not change.

    Recall on features of a ReLU, efSearch 40: .99, as without codes; if also built by products .21 to .79.
    """
    graph.metric_type = engine().downcast_index(graph.storage).metric_type = metric
    if hasattr(graph.hnsw, "is_similarity"):  # newer versions keep it here as well
        graph.hnsw.is_similarity = metric == engine().METRIC_INNER_PRODUCT


def row_digests(vectors: Floats) -> Digests:
    """[n]: a hash of every vector [n, width]."""
    random = np.random.default_rng(0).integers(1 << 31, size=vectors.shape[1], dtype=np.uint32)
    digests: Digests = np.ascontiguousarray(vectors, "<f4").view("<u4") @ (
        random * np.uint32(2) + np.uint32(1)
    )
    return digests


def _recall(index: HnswIndex, rows: Rows, keep_going: Callable[[], bool]) -> float | None:
    """The share of the true nearest that stored vectors find; None if ``keep_going`` returned False."""
    row = rows.find(index.numbers)
    row = row[row >= 0]
    asked = rows.vectors(row[np.linspace(0, len(row) - 1, min(_SAMPLE, len(row))).astype(np.intp)])
    allowed = rows.allowed(None)
    found = 0
    there = 0
    for query in asked:
        if not keep_going():
            return None
        one = query[None]
        exact = _nearest(rows, one, rows.candidates(one, _NEAREST, allowed))
        quick = _nearest(rows, one, index.candidates(rows, one, _NEAREST, allowed))
        found += len(exact & quick)
        there += len(exact)
    return found / there


def _nearest(rows: Rows, query: Floats, pairs: tuple[Indices, Indices]) -> set[int]:
    row = np.sort(pairs[1])
    cosine = exact_cosines(rows.vectors(row), query.astype(np.float64), pairs[0])
    return set(
        row[first_of_each(pairs[0], rank=cosine, number=rows.numbers(row), k=_NEAREST)].tolist()
    )


def index_path(folder: Path, version: str) -> Path:
    """The file of a version's index; a version name may not be a valid file name."""
    return folder / (hashlib.sha256(version.encode()).hexdigest()[:16] + ".hnsw")


def save_hnsw(path: Path, index: HnswIndex, version: str) -> None:
    """Write an index atomically."""
    codes = {
        "mean": index.codes.mean.tolist(),
        "scale": index.codes.scale,
        "length": index.codes.length,
    }
    header = {
        "version": version,
        "rows": len(index.numbers),
        "codes": codes,
        "recall": index.recall,
    }
    replace_file(path, lambda partial: _write(partial, header, index))


def _write(path: Path, header: dict[str, Any], index: HnswIndex) -> None:
    faiss = engine()
    checksum = hashlib.sha256()
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
    """The index in a file, or None if it does not match these rows; ``position`` is the newest number."""
    try:
        with path.open("rb") as file:
            index = _read(file, version)
    except Exception:  # FAISS has no base class for its errors; the index can be built again
        return None
    if index is not None and _fits(index, rows, position):
        return index
    return None


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
    return HnswIndex(
        graph=graph, numbers=numbers, digests=digests, codes=codes, recall=header["recall"]
    )


def _is_whole(file: IO[bytes]) -> bool:
    """Whether the checksum is right; leaves the file positioned behind it."""
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
        node = np.searchsorted(
            index.numbers, numbers[covered]
        )  # ascending, so this never passes the last one
        same = index.numbers[node] == numbers[covered]
        if not same.all() or not (index.digests[node] == row_digests(vectors[covered])).all():
            return False
    return True


def use_large_pages(address: int, size: int) -> None:
    """Ask the kernel to keep memory in pages of 2 MiB, if it can. The content does not change.

    A graph search reads about a thousand vectors, each in another page, and the processor caches the addresses of few
    pages. CPU time of a query of 200,000 x 256 on a busy machine, with and without, 12 turns of 150 queries: 261 and
    338 us in the median, 156 and 188 at best. Of 40,000 x 128, which are 15 MB, it brought nothing: 269 and 245 us.
    """
    if sys.platform != "linux" or not _are_allowed():
        return
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    first = -(-address // _LARGE_PAGE) * _LARGE_PAGE
    last = (address + size) // _LARGE_PAGE * _LARGE_PAGE
    for start in range(first, last, _STEP):
        for advice in (_WANTED, _NOW):
            advise(start, min(_STEP, last - start), advice)


def _are_allowed() -> bool:
    try:
        return "[never]" not in _SETTING.read_text()
    except OSError:
        return False


_CAME = 20  # an index is extended when a twentieth was added since, but at least
_CAME_LEAST = 1000
_GONE = 4  # and rebuilt when a quarter of it is gone
_RETRY = 10.0  # seconds to wait if another process is building
_NICE = 5  # leaves a quarter of a core against searches that take all cores
_ABANDONED = 600.0  # seconds after which a partial file is removed


def _lower_priority() -> None:
    """Lower the priority of this thread and of those it starts, so that searches go first. Linux only."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


class IndexKeeper:
    """Keeps indexes of versions with more than ``above`` vectors; saved in ``folder`` unless ``read_only``.

    ``position`` returns the last sequence number that was read.
    """

    def __init__(
        self,
        exact: ExactSearch,
        position: Callable[[], int],
        folder: Path,
        above: int,
        read_only: bool,
    ) -> None:
        self._exact = exact
        self._position = position
        self._folder = folder
        self._above = above
        self._read_only = read_only
        self._reading = threading.Lock()
        self._building = threading.Lock()
        self._starting = threading.Lock()
        self._read: dict[str, object] = {}  # the state of each file when last read or written
        self._failed: set[str] = (
            set()
        )  # versions whose index could not be built; build() tries again
        self._thread: threading.Thread | None = None
        self._seen: object = None  # the rows when there was nothing to do
        self._not_before = 0.0
        self._asked = 0  # running calls of ``build``: the background thread makes way for them
        self._saves = not read_only  # whether the background thread saves
        self._off = self._closed = False

    def update_in_background(self) -> None:
        """Start what is due, in the background. Costs nothing if no rows have changed."""
        rows = self._exact.rows
        if rows is self._seen or self._off or time.monotonic() < self._not_before:
            return
        with self._starting:
            if self._closed or (self._thread is not None and self._thread.is_alive()):
                return
            self._seen = rows
            if any(self._is_due(name) for name in rows):
                self._thread = threading.Thread(
                    target=self._work, name="fixstar-index", daemon=True
                )
                self._thread.start()

    def build(self, versions: list[str]) -> None:
        """Rebuild the indexes of these versions, and wait."""
        if self._read_only:
            raise GalleryError(f"{self._folder} cannot be written, so an index could not be kept")
        engine()
        with self._starting:
            self._asked += 1
        try:
            with self._building:
                for name in versions:
                    rows = self._exact.rows[name]
                    if len(rows):
                        self._build_aside(name, rows)
        finally:
            with self._starting:
                self._asked -= 1
                self._seen = None

    def states(self) -> list[IndexState]:
        """The indexes in use; saved ones are loaded first."""
        try:
            for name in self._exact.rows:
                if name not in self._exact.indexes and name not in self._read:
                    self._load(name)
        except MissingExtraError:
            return []
        indexes = {name: self._index(name) for name, rows in self._exact.rows.items() if len(rows)}
        return [
            IndexState(version=name, kind=KIND, items=len(i.numbers), recall=i.recall)
            for name, i in indexes.items()
            if i is not None
        ]

    def close(self) -> None:
        """Stop the background thread and wait for it."""
        self._closed = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _index(self, name: str) -> HnswIndex | None:
        index = self._exact.indexes.get(name)
        return index if isinstance(index, HnswIndex) else None

    def _is_due(self, name: str) -> bool:
        rows = self._exact.rows[name]
        index = self._index(name)
        if name in self._failed:
            return False
        if not len(rows):  # remove what is left of its index
            return index is not None or (self._saves and self._state(name) is not None)
        if index is None:
            return len(rows) > self._above or (
                name not in self._read and self._state(name) is not None
            )
        came, gone = index.lag(rows)
        return came > max(_CAME_LEAST, len(index.numbers) // _CAME) or gone * _GONE > len(
            index.numbers
        )

    def _work(self) -> None:
        """The background thread: ends when there is nothing left to do."""
        _lower_priority()
        try:
            while due := [name for name in self._exact.rows if self._is_due(name)]:
                if self._closed or self._asked:
                    return
                self._try(due[0])
        except MissingExtraError:
            self._off = True  # searches stay exact
        except BlockingIOError:
            self._seen = None
            self._not_before = time.monotonic() + _RETRY

    def _try(self, name: str) -> None:
        """Update one version's index; a failure is reported once and does not affect other versions."""
        try:
            self._update(name)
        except (MissingExtraError, BlockingIOError):
            raise
        except Exception as error:  # a cache that cannot be built must not crash the program
            if isinstance(error, OSError) and self._saves:
                self._saves = False
                warnings.warn(
                    f"approximate indexes cannot be saved ({error}); they stay in memory",
                    stacklevel=1,
                )
            else:
                self._failed.add(name)
                warnings.warn(
                    f"the approximate index of version {name!r} could not be built ({error}); its vectors are searched "
                    "exactly",
                    stacklevel=1,
                )

    def _update(self, name: str) -> None:
        if len(self._exact.rows[name]) and self._state(name) != self._read.get(name):
            self._load(name)  # saved by another process, or before this one began
            return
        with self._building, self._held():
            index = self._index(name)
            rows = self._exact.rows[name]
            if not len(rows):
                self._drop(name)
                return
            if index is None or index.lag(rows)[1] * _GONE > len(index.numbers):
                base = None
            else:
                base = index
            new = build_hnsw(rows, lambda: not self._closed and not self._asked, base=base)
            if new is not None:
                self._use(name, new)
                if self._saves:
                    self._save(name, new)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Be the only process that builds; BlockingIOError if another one does."""
        if not self._saves:
            yield
            return
        with exclusive(self._folder):
            for path in self._folder.glob(".*.partial"):  # of a process that was killed
                if time.time() - path.stat().st_mtime > _ABANDONED:
                    path.unlink()
            yield

    def _build_aside(self, name: str, rows: Rows) -> None:
        """Build in a thread of its own, so that the number of FAISS threads is reset with it."""

        def work() -> None:
            threads = max(1, (os.cpu_count() or 1) - 1)  # searches keep a core
            new = build_hnsw(rows, lambda: not self._closed, threads)
            if new is None:
                raise GalleryError("the gallery was closed while its index was being built")
            self._use(name, new)
            self._failed.discard(name)
            self._save(name, new)

        with ThreadPoolExecutor(1, "fixstar-index", _lower_priority) as thread:
            try:
                thread.submit(work).result()
            except OSError as error:
                raise GalleryError(
                    f"the index of {name!r} is in use and could not be saved: {error}"
                ) from error

    def _use(self, name: str, index: HnswIndex) -> None:
        with self._reading:
            self._exact.indexes = {**self._exact.indexes, name: index}

    def _drop(self, name: str) -> None:
        """Remove the index of a version without rows, and its file."""
        with self._reading:
            self._exact.indexes = {
                other: index for other, index in self._exact.indexes.items() if other != name
            }
            self._read.pop(name, None)
        if self._saves:
            index_path(self._folder, name).unlink(missing_ok=True)

    def _save(self, name: str, index: HnswIndex) -> None:
        if not self._read_only:
            save_hnsw(index_path(self._folder, name), index, name)
            self._read[name] = self._state(name)

    def _load(self, name: str) -> None:
        """Load a saved index, if there is one that matches the rows."""
        with self._reading:
            state = self._state(name)
            rows = self._exact.rows[name]
            index = None
            if state is not None and len(rows) > 0:
                index = load_hnsw(
                    index_path(self._folder, name),
                    version=name,
                    rows=rows,
                    position=self._position(),
                )
            self._read[name] = state
            if index is not None:
                self._exact.indexes = {**self._exact.indexes, name: index}

    def _state(self, name: str) -> object:
        """Changes whenever the file is replaced; None if it does not exist."""
        try:
            found = index_path(self._folder, name).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
