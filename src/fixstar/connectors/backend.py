"""The operations of connectors on a workspace, in this process or behind HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from fixstar.data.texts import TEXT
from fixstar.errors import InputError
from fixstar.gallery import Hit
from fixstar.gallery.filters import Where, payload_test
from fixstar.workspace import CatalogueItem, Workspace, catalogue
from fixstar.workspace.items import IMAGE, STAMP, text_item

if TYPE_CHECKING:
    from PIL import Image

    from fixstar.service.client import Client
    from fixstar.texts import Reads

    Backend = Workspace | Client
    Picture = str | Path | bytes | Image.Image

VERSION = "model_version"  # the metadata field that names the version that made an item's vector
_AT_ONCE = 32  # images per request


def reads(backend: Backend) -> Reads:
    """What the models of a workspace or of a service read. A service is asked once."""
    if isinstance(backend, Workspace):
        return backend.registry.reads()
    if backend not in _reads:
        _reads[backend] = backend.status().reads
    return _reads[backend]


_reads: WeakKeyDictionary[Client, Reads] = WeakKeyDictionary()


def search_original(backend: Backend, query: Picture, **options: Any) -> list[Hit]:
    """The items nearest to an image or a text, whatever version made their vectors; options as of ``SearchRequest``."""
    if reads(backend) == "images":
        return _search_image(backend, query, **options)
    if not isinstance(query, str):
        raise InputError(
            f"this gallery holds texts: a query is a text, got a {type(query).__name__}"
        )
    if isinstance(backend, Workspace):
        return backend.search([query], **options).hits[0]
    return [_hit(hit) for hit in backend.search_text(query, **options).hits]


def _search_image(backend: Backend, image: Picture, **options: Any) -> list[Hit]:
    if isinstance(image, str) and not Path(image).is_file():
        raise InputError(f"{image!r} is not a file; a query is an image: give the path of one")
    if isinstance(backend, Workspace):
        return backend.search([image], **options).hits[0]
    return [_hit(hit) for hit in backend.search(image, **options).hits]


def search_vector(
    backend: Backend, vector: Sequence[float], version: str | None = None, **options: Any
) -> list[Hit]:
    """The items nearest to a unit vector in the short form that a version made, the deployed one by default."""
    if isinstance(backend, Workspace):
        query = np.asarray(vector, dtype=np.float32)[None]
        return backend.serving.search_vectors(version or backend.deployed(), query, **options).hits[
            0
        ]
    return [_hit(hit) for hit in backend.search_vector(vector, version, **options).hits]


def _hit(hit: Any) -> Hit:
    return Hit(hit.id, hit.score, hit.version, hit.payload)


def add_texts(
    backend: Backend, texts: Mapping[str, str], payloads: Iterable[Mapping[str, Any]]
) -> None:
    """Embed and store texts by id with the deployed version. One that cannot be used raises; the others are stored."""
    ours = {TEXT, STAMP, VERSION}
    fields = [
        {key: value for key, value in payload.items() if key not in ours} for payload in payloads
    ]
    if isinstance(backend, Workspace):
        rows = zip(texts.items(), fields, strict=True)
        if bad := backend.index(
            text_item(name, text, payload) for (name, text), payload in rows
        ).bad:
            raise bad[0]
        return
    by_name = dict(zip(texts, fields, strict=True))
    for start in range(0, len(texts), _AT_ONCE):
        some = dict(islice(texts.items(), start, start + _AT_ONCE))
        backend.add_texts(some, {name: by_name[name] for name in some})


def add_images(
    backend: Backend, images: Mapping[str, Picture], payloads: Iterable[Mapping[str, Any]]
) -> None:
    """Embed and store images by id with the deployed version. An unreadable one raises after the others are stored."""
    ours = {IMAGE, STAMP, VERSION}  # so that a found item can be added again
    fields = [
        {key: value for key, value in payload.items() if key not in ours} for payload in payloads
    ]
    rows = [
        (name, image, payload)
        for (name, image), payload in zip(images.items(), fields, strict=True)
    ]
    if isinstance(backend, Workspace):
        if bad := backend.index(_item(backend, *row) for row in rows).bad:
            raise bad[0]
        return
    for some in (rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE)):
        backend.add(
            {name: image for name, image, _ in some}, {name: payload for name, _, payload in some}
        )


def _item(space: Workspace, name: str, image: Picture, payload: Mapping[str, Any]) -> CatalogueItem:
    """An item whose payload has the path of its image, for a later backfill."""
    if isinstance(image, (str, Path)):
        (item,) = catalogue(Path(image))
        return replace(item, id=name, payload={**payload, **item.payload})
    kept = space.images.keep(image)
    return CatalogueItem(name, space.path / kept[IMAGE], {**payload, **kept})


def delete_items(backend: Backend, ids: Sequence[str]) -> int:
    """Delete items; returns how many existed."""
    return backend.gallery.delete(ids) if isinstance(backend, Workspace) else backend.delete(*ids)


def get_items(
    backend: Backend, ids: Sequence[str] | None = None, where: Where | None = None
) -> list[Hit]:
    """Stored items, by id or by payload, with a score of 1; unknown ids are left out."""
    if isinstance(backend, Workspace):
        found: Iterable[Any] = (
            backend.gallery.iterate() if ids is None else backend.gallery.get(ids).values()
        )
    elif ids is None:
        found = backend.items(where=where)
    else:
        found = _found(backend, ids)
    passes = payload_test(where or {})
    return [Hit(item.id, 1.0, item.version, item.payload) for item in found if passes(item.payload)]


def _found(client: Client, ids: Sequence[str]) -> Iterator[Any]:
    from fixstar.service.client import ServiceError

    for name in ids:
        try:
            yield client.item(name)
        except ServiceError as error:
            if error.status != 404:
                raise


def image_path(backend: Backend, hit: Hit) -> Path | None:
    """The local path of a hit's image; None with a service."""
    if not isinstance(backend, Workspace) or IMAGE not in hit.payload:
        return None
    return backend.path.absolute() / str(hit.payload[IMAGE])


def stored_text(backend: Backend, hit: Hit) -> str | None:
    """The text of a hit where texts are stored."""
    if reads(backend) == "images":
        return None
    text = hit.payload.get(TEXT)
    return text if isinstance(text, str) else None


def metadata(backend: Backend, hit: Hit) -> dict[str, Any]:
    """The user's payload, and the version of the vector."""
    ours = {IMAGE, STAMP}
    if reads(backend) == "texts":
        ours.add(TEXT)
    return {
        **{key: value for key, value in hit.payload.items() if key not in ours},
        VERSION: hit.version,
    }
