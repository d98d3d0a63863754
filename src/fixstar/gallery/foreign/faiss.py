"""FAISS index files. Translated vectors go into a second index file, with the same numbers."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fixstar.errors import DataError, MissingExtraError
from fixstar.gallery.foreign.file_beside import FileBeside
from fixstar.gallery.store import Floats
from fixstar.gallery.vector_files import FileRows, VectorPlace


def faiss_index(path: str | Path) -> VectorPlace:
    """The vectors of a FAISS index file, as the index reconstructs them: only approximate if it compresses them.

    Ids are those of an IndexIDMap, or FILE/0, FILE/1, ...
    """
    return _FaissIndex(Path(path))


class _FaissIndex:
    projection: Floats | None = None
    origin: str | None = None

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.path = path
        faiss = load_faiss(f"reading {path}")
        if not path.is_file():
            raise DataError(f"there is no file {path}")
        try:
            index = faiss.read_index(str(path))
        except (RuntimeError, MemoryError) as error:
            raise DataError(
                f"{path} is damaged, or not a FAISS index: {_last_line(error)}"
            ) from error
        self.width = int(index.d)
        count = int(index.ntotal)
        self.ids = [f"{path.stem}/{row}" for row in range(count)]
        if isinstance(index, faiss.IndexIDMap):  # IndexIDMap2 as well
            self.ids = [str(one) for one in faiss.vector_to_array(index.id_map).tolist()]
            self._outer = index  # it owns the inner index
            index = faiss.downcast_index(index.index)
        if not count:
            raise DataError(f"{path} holds no vectors")
        if hasattr(
            index, "make_direct_map"
        ):  # an inverted file can look up vectors only after this
            index.make_direct_map()
        self._index = index

    def blocks(self, rows: int) -> Iterator[FileRows]:
        """All vectors, ``rows`` at a time."""
        for start in range(0, len(self.ids), rows):
            ids = self.ids[start : start + rows]
            try:
                vectors = self._index.reconstruct_n(start, len(ids))
            except RuntimeError as error:
                raise DataError(
                    f"{self.name}: this kind of index does not give its vectors back ({_last_line(error)})"
                ) from error
            yield FileRows(ids, vectors, [{}] * len(ids))

    def beside(self, to: str) -> FileBeside:
        """Another file: an index if its suffix is .faiss or .index."""
        return FileBeside(self.path, Path(to))


def load_faiss(purpose: str) -> Any:
    """The library, untyped; raises with the package to install if it is missing."""
    try:
        return importlib.import_module("faiss")
    except ImportError as error:
        raise MissingExtraError("faiss-cpu", "index", purpose) from error


def _last_line(error: BaseException) -> str:
    text = str(error).strip()
    if not text:
        return type(error).__name__
    return text.splitlines()[-1]
