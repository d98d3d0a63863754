"""Embedding items into the gallery, batch by batch: what is acknowledged stays, and a repeated call goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from fixstar.errors import ImageError
from fixstar.gallery import Gallery, Item
from fixstar.gallery.store import Payload, Vectors
from fixstar.lifecycle.catalogue import IMAGE, STAMP, CatalogueItem, without_repeats
from fixstar.lifecycle.embedding import Embedder
from fixstar.progress import Advance

__all__ = ["Indexed", "Store", "index_items"]

BATCH = 256

Store = Callable[[str, Sequence[str], Vectors, Sequence[Payload]], None]  # as Gallery.upsert


@dataclass(frozen=True)
class Indexed:
    """What was done: items embedded, items that were there already, images that could not be read."""

    version: str
    added: int
    unchanged: int
    bad: tuple[ImageError, ...]


def index_items(
    gallery: Gallery,
    version: str,
    embedder: Embedder,
    items: Iterable[CatalogueItem],
    again: bool = False,
    progress: Advance | None = None,
    store: Store | None = None,
) -> Indexed:
    """Embed items with a version and store them. Those whose image has not changed since keep their vector.

    ``again`` embeds those too. Memory stays flat, whatever the number of items. ``store`` writes what was embedded, in
    the place of ``Gallery.upsert``: for whoever has to look at what others wrote meanwhile.
    """
    unchanged, added = 0, 0
    bad: list[ImageError] = []
    waiting: list[list[CatalogueItem]] = []

    def batches() -> Iterator[list[object]]:
        nonlocal unchanged
        source = iter(items)
        while came := without_repeats(list(islice(source, BATCH))):
            batch = [item for item in came if _is_unicode(item.id)]
            bad.extend(_unnameable(item) for item in came if not _is_unicode(item.id))
            fresh = batch if again else _new_images(gallery, batch)
            unchanged += len(batch) - len(fresh)
            if progress is not None:
                progress(len(came) - len(fresh))
            if fresh:
                waiting.append(fresh)
                yield [item.image for item in fresh]

    for vectors, unread in embedder(batches()):  # type: ignore[arg-type]
        batch = waiting.pop(0)
        good = np.flatnonzero(~np.isnan(vectors).any(axis=1)).tolist()
        kept = [batch[i] for i in good]
        if kept:
            write = store or gallery.upsert
            write(version, [item.id for item in kept], vectors[good], [item.payload for item in kept])
        added += len(kept)
        bad += [ImageError(batch[image.index].id, image.reason, image.index) for image in unread]
        if progress is not None:
            progress(len(batch))
    return Indexed(version, added, unchanged, tuple(bad))


def _is_unicode(name: str) -> bool:
    """File names may hold any bytes; those that are no UTF-8 come as lone surrogates, which no store can hold."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _unnameable(item: CatalogueItem) -> ImageError:
    shown = item.id.encode("utf-8", "backslashreplace").decode()
    return ImageError(shown, "its name is not valid UTF-8; rename it")


def _new_images(gallery: Gallery, batch: list[CatalogueItem]) -> list[CatalogueItem]:
    """Items that the gallery does not have, or has of another image. Other fields that differ are stored."""
    known = gallery.get([item.id for item in batch])
    same = [item for item in batch if item.stamp is not None and _is_image_of(known.get(item.id), item)]
    _store_fields(gallery, known, same)
    kept = {item.id for item in same}
    return [item for item in batch if item.id not in kept]


def _store_fields(gallery: Gallery, known: dict[str, Item], items: list[CatalogueItem]) -> None:
    """Give stored items the fields that are told now. What others delete meanwhile stays deleted."""
    items = [item for item in items if dict(known[item.id].payload) != dict(item.payload)]
    while items:
        done: set[str] = set()
        for version in {known[item.id].version for item in items}:
            told = [item for item in items if known[item.id].version == version]
            stored = [known[item.id] for item in told]
            vectors = np.stack([one.vector for one in stored])
            done.update(gallery.replace_vectors(version, stored, vectors, [item.payload for item in told]))
        known = gallery.get([item.id for item in items if item.id not in done])  # embedded anew meanwhile: once more
        items = [item for item in items if item.id in known]


def _is_image_of(stored: Item | None, item: CatalogueItem) -> bool:
    return stored is not None and all(stored.payload.get(field) == item.payload.get(field) for field in (IMAGE, STAMP))
