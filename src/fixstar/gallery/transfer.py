"""Moving vectors: between galleries, from and to files, from other databases. Memory use is constant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import (
    DataError,
    GalleryError,
    GalleryUnavailableError,
    InputError,
    NextStep,
    plural,
)
from fixstar.gallery.addresses import parse_lance_address, without_secret
from fixstar.gallery.foreign import (
    chroma_collection,
    faiss_index,
    lance_table,
    milvus_collection,
    postgres_table,
    qdrant_collection,
)
from fixstar.gallery.store import Floats, Gallery, Item, checked_ids, payload_texts, unit_rows
from fixstar.gallery.vector_files import (
    ParquetFile,
    VectorFile,
    VectorPlace,
    VectorSource,
    write_parquet,
    write_vector_file,
)
from fixstar.progress import Advance, silent

BATCH = 1024
_NAMED = 5  # maximum number of ids in a message
_PARQUET = ".parquet"
_FAISS = (".faiss", ".index")
_PARAMETERS = (
    "table",
    "collection",
    "id",
    "vector",
)  # parameters of an address, besides the server's own
_STORES = {  # by scheme of an address: the container of vectors
    "postgresql": "table",
    "postgres": "table",
    "qdrant": "collection",
    "qdrant+https": "collection",
    "chroma": "collection",
    "chroma+https": "collection",
    "lancedb": "table",
    "milvus": "collection",
    "milvus+https": "collection",
}
_TINY = 1e-150  # squares of smaller numbers underflow, so that lengths are unknown


def copy_gallery(source: Gallery, target: Gallery, progress: Advance | None = None) -> int:
    """Copy all versions and items; returns the number of items. Existing items are replaced, so it can be repeated.

    Equal scores come in the order of ids afterwards, because that is the order of copying.
    """
    copied = 0
    advance = progress or silent
    for space in source.versions():
        _make_version(
            target, name=space.name, width=space.width, projection=source.projection(space.name)
        )
        items = source.iterate(space.name)
        while batch := list(islice(items, BATCH)):
            vectors = np.stack([item.vector for item in batch])
            target.upsert(
                space.name, [item.id for item in batch], vectors, [item.payload for item in batch]
            )
            copied += len(batch)
            advance(len(batch))
    with suppress(
        GalleryUnavailableError
    ):  # everything is stored, even if other processes still use the log
        target.flush()
    return copied


def export_version(
    gallery: Gallery,
    version: str,
    path: str | Path,
    progress: Advance | None = None,
    origin: str | None = None,
) -> int:
    """Write the items of one version to FILE.parquet, FILE.npz, or FILE.npy and FILE.jsonl; returns their number.

    ``origin`` is the origin of the vectors; FILE.parquet and FILE.npz store it.
    """
    width = gallery.space(version).width
    items = _counted(gallery.iterate(version), progress or silent)
    if Path(path).suffix == _PARQUET:
        write = write_parquet
    else:
        write = write_vector_file
    return write(Path(path), width, items, gallery.projection(version), origin)


def import_version(
    gallery: Gallery,
    version: str,
    source: str | Path | VectorSource,
    progress: Advance | None = None,
    id_column: str | None = None,
    vector_column: str | None = None,
    take_over: bool = False,
    without: Collection[str] = (),
    prefix: str = "",
) -> int:
    """Store vectors, by their address (``open_vectors``) or of a ``VectorSource``, as a version; returns their number.

    Everything is checked before anything is stored. An existing version must have the same width, so an interrupted
    import can be repeated. An item has one vector: ids of other versions are refused, unless ``take_over`` moves
    them to this one. ``prefix`` is put before every id. ``without`` lists payload fields to leave out.
    """
    opened: VectorSource
    if isinstance(source, (str, Path)):
        opened = open_vectors(source, id_column, vector_column)
    else:
        opened = source
    named = checked_ids([prefix + name for name in checked_ids(opened.ids)])
    _check(opened)
    if not take_over:
        _refuse_held(gallery, version=version, ids=named, source=opened.name)
    _make_version(gallery, name=version, width=opened.width, projection=opened.projection)
    stored = 0
    advance = progress or silent
    for ids, vectors, whole in opened.blocks(BATCH):
        payloads = [
            {name: value for name, value in one.items() if name not in without} for one in whole
        ]
        gallery.upsert(
            version,
            [prefix + name for name in ids],
            unit_rows(vectors, _lengths(vectors)),
            payloads,
        )
        stored += len(ids)
        advance(len(ids))
    with suppress(GalleryUnavailableError):  # as in copy_gallery
        gallery.flush()
    return stored


def open_vectors(
    address: str | Path,
    id_column: str | None = None,
    vector_column: str | None = None,
    old: bool = False,
) -> VectorPlace:
    """Vectors by their address; the columns may be part of it.

    FILE.npz, FILE.npy, FILE.faiss or FILE.index (FAISS), FILE.parquet?id=sku&vector=embedding,
    postgresql://host/database?table=photos&id=sku&vector=embedding (pgvector),
    qdrant://host:6333?collection=photos&id=sku&vector=clip,
    chroma://host:8000?collection=photos or chroma:///folder?collection=photos,
    lancedb:///folder?table=photos&id=sku&vector=embedding,
    milvus://host:19530/database?collection=photos&vector=embedding

    ``old``: the old collection, if a migration gave its name to another one.
    """
    place = str(address)
    given: dict[str, str] = {}
    if not Path(address).is_file():
        place, given = _split_address(place)
    names = {
        "id": id_column or given.pop("id", None),
        "vector": vector_column or given.pop("vector", None),
    }
    if "://" in place:
        return _in_store(place, given=given, names=names, old=old)
    if given:
        raise InputError(
            f"{place} is a file, but {' and '.join(given)} are for addresses of servers"
        )
    if Path(place).suffix == _PARQUET:
        return ParquetFile(place, names["id"] or "id", names["vector"] or "vector")
    if any(names.values()):
        raise InputError(
            f"{place} has no columns: those of ids and vectors are for FILE.parquet, tables, collections"
        )
    if Path(place).suffix in _FAISS:
        return faiss_index(place)
    return VectorFile(place)


def sampled_vectors(source: VectorSource, most: int, seed: int = 0) -> NDArray[np.float32]:
    """A uniform sample of up to ``most`` vectors of a source."""
    rng = np.random.default_rng(seed)
    drawn = np.zeros(len(source.ids), bool)
    drawn[rng.permutation(len(drawn))[:most]] = True
    parts = []
    start = 0
    for rows in source.blocks(BATCH):
        chosen = drawn[start : start + len(rows.ids)]
        parts.append(np.asarray(rows.vectors[: len(chosen)], np.float32)[chosen])
        start += len(rows.ids)
    return np.concatenate(parts)


def _split_address(address: str) -> tuple[str, dict[str, str]]:
    """Split an address: without the parameters that locate vectors in a file or server, and these parameters.

    >>> _split_address("qdrant://host?collection=my%20photos&timeout=5")
    ('qdrant://host?timeout=5', {'collection': 'my photos'})
    """
    head, _, query = address.partition("?")
    parts = [part.partition("=") for part in query.split("&") if part]
    own = {name: unquote(value) for name, _, value in parts if name in _PARAMETERS}
    rest = "&".join("".join(part) for part in parts if part[0] not in _PARAMETERS)
    return head + (rest and f"?{rest}"), own


def _in_store(
    place: str, given: dict[str, str], names: dict[str, str | None], old: bool
) -> VectorPlace:
    scheme = place.partition("://")[0]
    if scheme not in _STORES:
        known = ", ".join(
            f"{one}://" for one in ("postgresql", "qdrant", "chroma", "lancedb", "milvus")
        )
        raise InputError(f"vectors come from a file, {known}; got {scheme}://")
    kind = _STORES[scheme]
    if list(given) != [kind]:
        raise InputError(
            f"say which {kind} of {without_secret(place)} holds the vectors: {scheme}://...?{kind}=NAME"
        )
    (name,) = given.values()
    if scheme.startswith("chroma"):
        if any(names.values()):
            raise InputError(
                "records of Chroma have one id and one vector: leave id= and vector= out of the address"
            )
        return chroma_collection(place, name, old)
    if scheme.startswith("milvus"):
        if names["id"] is not None:
            raise InputError(
                "entities of Milvus have one id, the primary key: leave id= out of the address"
            )
        return milvus_collection(place, name, names["vector"])
    if kind == "collection":
        return qdrant_collection(place, name=name, vector=names["vector"], id_field=names["id"])
    columns = names["id"] or "id", names["vector"] or "vector"
    if scheme == "lancedb":
        return lance_table(parse_lance_address(place), name, *columns)
    return postgres_table(place, name, *columns)


def _check(source: VectorSource) -> None:
    """Refuse vectors that cannot be normalised, and payloads that a gallery would refuse later."""
    start = 0
    for ids, vectors, payloads in source.blocks(BATCH):
        lengths = _lengths(vectors)
        if wrong := np.flatnonzero(~(np.isfinite(lengths) & (lengths > _TINY))).tolist():
            raise DataError(
                f"{source.name}: row {start + wrong[0]} ({ids[wrong[0]]!r}) is zero, NaN or infinite; nothing was "
                "stored. Embed that image again, or leave it out"
            )
        if odd := [i for i, payload in enumerate(payloads) if not isinstance(payload, dict)]:
            raise DataError(
                f"{source.name}: the payload of row {start + odd[0]} is not an object; nothing was stored"
            )
        try:
            payload_texts(ids, len(vectors), payloads)
        except (GalleryError, RecursionError) as error:
            raise DataError(f"{source.name}: {error}; nothing was stored") from error
        start += len(ids)


def _lengths(vectors: NDArray[Any]) -> NDArray[np.float64]:
    lengths: NDArray[np.float64] = np.linalg.norm(vectors.astype(np.float64), axis=1)
    return lengths


def _refuse_held(gallery: Gallery, version: str, ids: list[str], source: str) -> None:
    """Refuse ids of other versions' items: those items would lose their vectors."""
    held = Counter[str]()
    first = list[str]()
    for start in range(0, len(ids), BATCH):
        others = [
            item
            for item in gallery.get(ids[start : start + BATCH]).values()
            if item.version != version
        ]
        held.update(item.version for item in others)
        first += [repr(item.id) for item in others[: _NAMED - len(first)]]
    if held:
        more = ""
        if held.total() > _NAMED:
            more = f" and {held.total() - _NAMED:,} more"
        counted = ", ".join(f"{count:,} of {name}" for name, count in held.items())
        raise GalleryError(
            f"{source}: nothing was stored, because other versions hold {plural(held.total(), 'id')} of these "
            f"({counted}): {', '.join(first)}{more}. An item has one vector: put a prefix before these ids to keep "
            "both, or replace the stored vectors with take_over",
            NextStep(
                "import-vectors",
                {"file": source, "name": version, "prefix": ...},
                "keep both, with other ids",
            ),
            NextStep(
                "import-vectors",
                {"file": source, "name": version, "take_over": True},
                "replace the stored vectors",
            ),
        )


def _make_version(gallery: Gallery, name: str, width: int, projection: Floats | None) -> None:
    """Create a version, or check that an existing one is the same."""
    if made_or_same(gallery, name=name, width=width, projection=projection):
        return
    other = gallery.space(name).width
    kept = gallery.projection(name)
    difference = "both hold short forms of the same width, under different projections: another model made them"
    if other != width:
        difference = f"its vectors have {other} components, these {width}"
    elif kept is None or projection is None:
        kinds = [
            "full features" if matrix is None else "short forms" for matrix in (kept, projection)
        ]
        difference = f"its vectors are {kinds[0]}, these {kinds[1]}"
    elif kept.shape != projection.shape:
        difference = f"its short forms stand for features of {len(kept)} components, these for {len(projection)}"
    raise GalleryError(
        f"the gallery has a different version {name!r}: {difference}. Versions never change: choose another name, or "
        "another gallery"
    )


def made_or_same(gallery: Gallery, name: str, width: int, projection: Floats | None) -> bool:
    """Create a version unless it exists; returns whether it has this width and projection.

    Others may create it at the same time: that is not an error.
    """
    if all(space.name != name for space in gallery.versions()):
        try:
            gallery.create_version(name, width, projection)
            return True
        except GalleryError:
            if all(space.name != name for space in gallery.versions()):
                raise
    kept = gallery.projection(name)
    if kept is None or projection is None:
        same = kept is projection
    else:
        same = np.array_equal(kept, projection)
    return gallery.space(name).width == width and same


def _counted(items: Iterable[Item], advance: Advance) -> Iterator[Item]:
    for item in items:
        yield item
        advance()
