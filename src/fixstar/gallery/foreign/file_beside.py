"""A file of translated vectors beside the file of the old ones: .npz, .npy, .parquet, or a FAISS index.

A file is written atomically: after a kill the same command starts again, and an earlier file is unchanged.
TARGET.migration.json records the rows it was made from, and allows the same migration to replace it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from fixstar.durable import document, read_document, replace_file, replace_json
from fixstar.errors import DataError, InputError, NextStep
from fixstar.gallery.store import Item
from fixstar.gallery.vector_files import FileRows, write_parquet, write_vector_file

_FAISS = (".faiss", ".index")
_KINDS = (".npz", ".npy", ".parquet", *_FAISS)
_DOCUMENT = "migration"


class FileBeside:
    """The file ``to`` beside the file ``old``."""

    copies = True

    def __init__(self, old: Path, to: Path) -> None:
        if to.suffix not in _KINDS:
            raise InputError(
                f"{to}: translated vectors go to a file that ends in {', '.join(_KINDS)}"
            )
        if to.resolve() == old.resolve():
            raise InputError(f"{old} is the old file, which is never written; choose another name")
        self.name = str(to)
        self._old = old
        self._to = to
        self._record = to.with_name(f"{to.name}.migration.json")
        self._width = 0
        self._ids: list[str] = []
        self._marks: dict[str, str | None] = {}
        self._vectors: IO[bytes] | None = None
        self._lines: IO[bytes] | None = None

    def there(self) -> bool:
        """Whether the file exists; raises if it was not made by a migration."""
        if not self._to.exists():
            return False
        if not self._record.exists():
            raise InputError(
                f"{self._to} exists, and no migration made it ({self._record.name} is not beside it); choose another "
                "name",
                NextStep("repeat", {"to": ...}),
            )
        return True

    def open(self, width: int) -> None:
        """Start a new file; the existing one is kept until the new one is complete."""
        self.there()
        self._to.parent.mkdir(parents=True, exist_ok=True)
        self._width = width
        self._ids = []
        self._marks = {}
        self._vectors = tempfile.TemporaryFile()  # noqa: SIM115
        self._lines = tempfile.TemporaryFile()  # noqa: SIM115

    def marks(self, ids: Sequence[str]) -> dict[str, str | None]:
        """The marks in the file; empty while a new one is written, so that all rows are written."""
        if self._vectors is not None or not self.there():
            return {}
        if not self._marks:
            self._marks = read_document(self._record, _DOCUMENT)["rows"]
        return {name: self._marks[name] for name in ids if name in self._marks}

    def marked(self) -> Iterator[list[str]]:
        """All ids of the existing file."""
        if self.there():
            yield list(read_document(self._record, _DOCUMENT)["rows"])

    def write(self, rows: FileRows, marks: Sequence[str]) -> None:
        """Add rows to the new file."""
        assert self._vectors is not None
        assert self._lines is not None
        self._vectors.write(np.ascontiguousarray(rows.vectors, "<f4").tobytes())
        for payload in rows.payloads:
            self._lines.write(json.dumps(payload, ensure_ascii=False).encode() + b"\n")
        self._ids += rows.ids
        self._marks |= dict(zip(rows.ids, marks, strict=True))

    def remove(self, ids: Sequence[str]) -> None:
        """Nothing to do: the new file holds only what the old one holds now."""

    def close(self) -> None:
        """Move the new file to its place."""
        assert self._vectors is not None
        assert self._lines is not None
        try:
            with self._vectors, self._lines:
                self._note({})  # until the file exists, no row counts as written
                if self._to.suffix in _FAISS:
                    self._write_index()
                elif self._to.suffix == ".parquet":
                    write_parquet(self._to, self._width, self._items())
                else:
                    write_vector_file(self._to, self._width, self._items())
                self._note(self._marks)
        except PermissionError as error:
            raise DataError(
                f"{self._to} cannot be written: {error.strerror}. Choose a folder that can be, with --to"
            ) from error
        finally:
            self._vectors = None
            self._lines = None

    def switch(self, alias: str | None) -> str:
        """Files have no aliases; returns what to do instead."""
        _refuse_alias(alias, str(self._to))
        return (
            f"A file has no alias. Let your program load {self._to} instead of {self._old}, and embed queries with the "
            "new model from then on"
        )

    def undo(self, alias: str | None) -> str:
        """Returns how to go back."""
        _refuse_alias(alias, str(self._to))
        return f"{self._old} was never changed. Let your program load it again, with the old model's queries"

    def _note(self, marks: dict[str, str | None]) -> None:
        replace_json(self._record, document(_DOCUMENT, {"rows": marks}))

    def _items(self) -> Iterator[Item]:
        assert self._vectors is not None
        assert self._lines is not None
        self._vectors.seek(0)
        self._lines.seek(0)
        for name, line in zip(self._ids, self._lines, strict=True):
            vector = np.frombuffer(self._vectors.read(4 * self._width), "<f4")
            yield Item(name, "", vector, json.loads(line))

    def _write_index(self) -> None:
        """A flat index by inner product, which is the cosine of unit vectors, with the ids of the old one."""
        from fixstar.gallery.foreign.faiss import load_faiss

        assert self._vectors is not None
        faiss = load_faiss(f"writing {self._to}")
        self._vectors.seek(0)
        rows = np.frombuffer(self._vectors.read(), "<f4").reshape(len(self._ids), self._width)
        index = faiss.IndexFlatIP(self._width)
        counted = [f"{self._old.stem}/{row}" for row in range(len(self._ids))]
        if self._ids == counted:
            index.add(rows)
        else:
            numbered = faiss.IndexIDMap2(index)
            numbered.add_with_ids(
                rows, np.array([self._number(name) for name in self._ids], np.int64)
            )
            index = numbered
        replace_file(self._to, lambda partial: faiss.write_index(index, str(partial)))

    def _number(self, name: str) -> int:
        if not name.lstrip("-").isdecimal():
            raise DataError(
                f"a FAISS index has numbers as ids, and {self._old} has {name!r}; write FILE.npz or FILE.parquet",
                NextStep("repeat", {"to": ...}),
            )
        return int(name)


def _refuse_alias(alias: str | None, what: str) -> None:
    if alias is not None:
        raise InputError(f"{what}: a file has no alias; leave it out")
