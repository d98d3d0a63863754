"""Collections of Chroma, of a server or in a folder. Translated vectors go into a second collection.

Chroma has no aliases but can rename collections: ``switch`` gives the old collection's name to the new one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from fixstar.errors import (
    DataError,
    FixstarError,
    GalleryUnavailableError,
    InputError,
    MissingExtraError,
    NextStep,
)
from fixstar.gallery.addresses import ChromaAddress, parse_chroma_address
from fixstar.gallery.filters import Payload
from fixstar.gallery.store import Floats
from fixstar.gallery.vector_files import MARK, PAGE, FileRows, VectorPlace

DOCUMENT = "chroma:document"  # the payload field for a record's text; Chroma reserves this name
_OF = "fixstar_of"  # metadata of a new collection: the name of the old one
_TO = "fixstar_to"  # its own name before any switch


def chroma_collection(server: str | Any, name: str, old: bool = False) -> VectorPlace:
    """The records of a Chroma collection; ``server`` is chroma://host:8000, chroma:///folder or a client.

    ``old``: after a switch, the collection that had this name before.
    """
    if not isinstance(server, str):
        return _ChromaCollection(client=server, address="the given client", name=name, old=old)
    address = parse_chroma_address(server)
    return _ChromaCollection(client=_connect(address), address=address.shown, name=name, old=old)


def _connect(address: ChromaAddress) -> Any:
    try:
        chromadb = importlib.import_module("chromadb")
    except ImportError as error:
        raise MissingExtraError(
            "chromadb", "chroma", f"a collection of Chroma ({address.shown})"
        ) from error
    settings = chromadb.Settings(anonymized_telemetry=False)
    with _translated(address.shown):
        if address.folder is not None:
            if not (address.folder / "chroma.sqlite3").is_file():
                raise DataError(
                    f"{address.folder} is not a folder of Chroma: it has no chroma.sqlite3"
                )
            return chromadb.PersistentClient(str(address.folder), settings)
        headers = {}
        if address.token is not None:
            headers["x-chroma-token"] = address.token
        return chromadb.HttpClient(
            host=address.host,
            port=address.port,
            ssl=address.encrypted,
            headers=headers,
            settings=settings,
            tenant=address.tenant,
            database=address.database,
        )


@contextmanager
def _translated(address: str) -> Iterator[None]:
    """Translate the errors of Chroma's client, which have no common base class."""
    try:
        yield
    except FixstarError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise GalleryUnavailableError(
            f"Chroma at {address} failed ({reason}); is it running, and may you write there? Stored data is unchanged"
        ) from error


class _ChromaCollection:
    projection: Floats | None = None
    origin: str | None = None

    def __init__(self, client: Any, address: str, name: str, old: bool) -> None:
        self.name = f"collection {name!r}"
        self.client = client
        self.address = address
        self.title = name
        with _translated(address):
            there = collections(client)
            self.collection: Any = there.get(name)
            moved = there.get(before(name))
            if (
                old
                and moved is not None
                and (self.collection is None or _about(self.collection).get(_OF) == name)
            ):
                self.collection = moved
            if self.collection is None:
                raise InputError(
                    f"{address} has no collection {name!r}; it has {', '.join(sorted(there)) or 'none'}"
                )
            self.ids: list[str] = []
            for page in self._pages(PAGE, []):
                self.ids += page["ids"]
            if not self.ids:
                raise DataError(f"{self.name} is empty")
            first = self.collection.get(limit=1, include=["embeddings"])["embeddings"]
        self.width = len(first[0])

    def blocks(self, rows: int) -> Iterator[FileRows]:
        """All records, ``rows`` at a time; the text of a record is a field of its payload."""
        for page in self._pages(rows, ["embeddings", "metadatas", "documents"]):
            payloads: list[Payload] = []
            for metadata, text in zip(page["metadatas"], page["documents"], strict=True):
                payloads.append({**(metadata or {}), **({} if text is None else {DOCUMENT: text})})
            yield FileRows(page["ids"], np.asarray(page["embeddings"], np.float32), payloads)

    def beside(self, to: str) -> _ChromaBeside:
        """Another collection, of records with the same ids, metadata and texts."""
        return _ChromaBeside(self, to)

    def _pages(self, rows: int, include: list[str]) -> Iterator[Any]:
        start = 0
        with _translated(self.address):
            while (page := self.collection.get(limit=rows, offset=start, include=include))["ids"]:
                yield page
                start += len(page["ids"])


def collections(client: Any) -> dict[str, Any]:
    """All collections by name."""
    found: dict[str, Any] = {}
    while page := client.list_collections(limit=PAGE, offset=len(found)):
        found |= {one.name: one for one in page}
    return found


def before(name: str) -> str:
    """The name of a collection after another one got its name."""
    return f"{name}_before"


def _about(collection: Any) -> dict[str, Any]:
    return dict(collection.metadata or {})


class _ChromaBeside:
    copies = True

    def __init__(self, old: _ChromaCollection, to: str) -> None:
        if to in (old.title, before(old.title)):
            raise InputError(
                f"{to!r} is a name of the old collection, which is never written; choose another name"
            )
        self.name = f"collection {to!r}"
        self._old = old
        self._client = old.client
        self._to = to

    def _found(self) -> Any:
        """The new collection by either of its names, or None."""
        there = collections(self._client)
        if self._to in there:
            return there[self._to]
        switched = there.get(self._old.title)
        if switched is not None and _about(switched).get(_TO) == self._to:
            return switched
        return None

    def there(self) -> bool:
        """Whether the collection exists."""
        with _translated(self._old.address):
            return self._found() is not None

    def open(self, width: int) -> None:
        """Create the collection, with the old one's kind of distance; one that exists must be as wide."""
        with _translated(self._old.address):
            found = self._found()
            if found is None:
                space = (self._old.collection.configuration.get("hnsw") or {}).get("space", "l2")
                self._client.create_collection(
                    self._to,
                    metadata={_OF: self._old.title, _TO: self._to},
                    configuration={"hnsw": {"space": space}},
                    embedding_function=None,
                )
                return
            first = found.get(limit=1, include=["embeddings"])["embeddings"]
            made_here = _about(found).get(_OF) == self._old.title
        if not made_here or (len(first) and len(first[0]) != width):
            seen = "no vectors"
            if len(first):
                seen = f"vectors of {len(first[0])} components"
            raise InputError(
                f"{self.name} exists with {seen}, and is not the one for vectors of {width} components made from "
                f"{self._old.name}; choose another name",
                NextStep("repeat", {"to": ...}),
            )

    def marks(self, ids: Sequence[str]) -> dict[str, str | None]:
        """The marks of existing records."""
        with _translated(self._old.address):
            found = self._found()
            if found is None:
                return {}
            page = found.get(ids=list(ids), include=["metadatas"])
        return {
            name: (about or {}).get(MARK)
            for name, about in zip(page["ids"], page["metadatas"], strict=True)
        }

    def marked(self) -> Iterator[list[str]]:
        """The ids of records with a mark, page by page."""
        start = 0
        with _translated(self._old.address):
            found = self._found()
            while (page := found.get(limit=PAGE, offset=start, include=["metadatas"]))["ids"]:
                pairs = zip(page["ids"], page["metadatas"], strict=True)
                yield [name for name, about in pairs if MARK in (about or {})]
                start += len(page["ids"])

    def write(self, rows: FileRows, marks: Sequence[str]) -> None:
        """Store records, replacing those with the same ids; first those with a text, then the others."""
        with _translated(self._old.address):
            found = self._found()
            for with_text in (True, False):
                chosen = [
                    i
                    for i, payload in enumerate(rows.payloads)
                    if (DOCUMENT in payload) == with_text
                ]
                if not chosen:
                    continue
                texts = None
                if with_text:
                    texts = [rows.payloads[i][DOCUMENT] for i in chosen]
                abouts = []
                for i in chosen:
                    about = {
                        field: value
                        for field, value in rows.payloads[i].items()
                        if field != DOCUMENT
                    }
                    abouts.append({**about, MARK: marks[i]})
                names = [rows.ids[i] for i in chosen]
                found.upsert(
                    ids=names, embeddings=rows.vectors[chosen], metadatas=abouts, documents=texts
                )

    def remove(self, ids: Sequence[str]) -> None:
        """Delete records."""
        with _translated(self._old.address):
            self._found().delete(ids=list(ids))

    def close(self) -> None:
        """Nothing to do: every block is already stored."""

    def switch(self, alias: str | None) -> str:
        """Give the old collection's name to the new one; finishes a switch that was interrupted by a kill."""
        _refuse_alias(alias)
        title = self._old.title
        with _translated(self._old.address):
            there = collections(self._client)
            new = self._found()
            if new is None:
                raise InputError(
                    f"{self._old.address} has no collection {self._to!r}: migrate first"
                )
            if new.name != title:
                if title in there:
                    there[title].modify(name=before(title))
                new.modify(name=title)
        return (
            f"Collection {title!r} now holds the translated vectors; the old ones are in {before(title)!r}. Running "
            "searches must open the collection again, and embed queries with the new model"
        )

    def undo(self, alias: str | None) -> str:
        """Give the name back."""
        _refuse_alias(alias)
        title = self._old.title
        with _translated(self._old.address):
            there = collections(self._client)
            if title in there and _about(there[title]).get(_TO) == self._to:
                there[title].modify(name=self._to)
            if before(title) in there:
                there[before(title)].modify(name=title)
        return (
            f"Collection {title!r} holds the old vectors; the translated ones are in {self._to!r}"
        )


def _refuse_alias(alias: str | None) -> None:
    if alias is not None:
        raise InputError("Chroma has no aliases: collections are renamed; leave the alias out")
