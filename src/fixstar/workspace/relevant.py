"""Queries with known relevant items of the gallery (BEIR's layout), as evidence for the gate.

Queries are the texts of a ``queries.jsonl``. Their relevant items are ids of stored items. They search these items
among others of the gallery; from a large gallery, the others are a random sample.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.data.image_set import ImageSet
from fixstar.errors import InputError
from fixstar.evaluation import VersionFeatures
from fixstar.evaluation.relevance import Relevant, matched, query_texts, read_relevance
from fixstar.gallery import Gallery, Item
from fixstar.texts import checked_text
from fixstar.workspace.items import text_of

_AT_ONCE = 1000  # items read from the gallery


class KnownRelevant(NamedTuple):
    """Queries, the stored texts that they search, and which of them are relevant; ``stored`` counts the gallery.

    ``vectors`` holds the stored vectors by version: for each, its row among the texts, and the vector.
    """

    queries: ImageSet
    gallery: ImageSet
    relevant: Relevant
    stored: int
    data: dict[str, Any]
    vectors: Mapping[str, Mapping[int, NDArray[np.float32]]]

    def features(
        self,
        embed: Callable[[ImageSet, ImageSet, Sequence[str]], Sequence[VersionFeatures]],
        version: str,
    ) -> VersionFeatures:
        """Queries and texts as a version embeds them. Texts whose vectors are stored are not embedded again."""
        known = self.vectors.get(version, {})
        missing = [row for row in range(len(self.gallery)) if row not in known]
        rows = missing or [0]  # at least one: features must not be empty
        (made,) = embed(self.queries, self.gallery.take(np.array(rows)), [version])
        gallery = np.empty((len(self.gallery), made.gallery.shape[1]), np.float32)
        gallery[rows] = made.gallery
        for row, vector in known.items():
            gallery[row] = vector
        return replace(made, gallery=gallery)


def known_relevant(
    gallery: Gallery,
    relevant: Sequence[str | Path] | Mapping[str, Mapping[str, float]],
    most: int,
    seed: int,
) -> KnownRelevant:
    """What is relevant among stored items: files, queries.jsonl and one of relevant items; or grades by query text.

    Up to ``most`` stored items are searched, always including the relevant ones.
    """
    if isinstance(relevant, Mapping):
        texts = {text: checked_text(text, name=f"query {text!r:.80}") for text in relevant}
        name = "queries that were sent"
    else:
        texts = query_texts(relevant)
        name = " and ".join(Path(file).name for file in relevant)
    wanted = read_relevance(relevant)
    named = {item for judged in wanted.values() for item, grade in judged.items() if grade > 0}
    stored = [item.id for item in gallery.iterate() if text_of(item) is not None]
    if not stored:
        raise InputError(
            "the gallery holds no texts, so no query can find a relevant one; index them first"
        )
    others = [name for name in stored if name not in named]
    room = max(0, most - (len(stored) - len(others)))
    if len(others) > room:
        drawn = np.random.default_rng(seed).permutation(len(others))[:room]
        others = [others[row] for row in np.sort(drawn).tolist()]
    searched = {*others, *named}
    names = [name for name in stored if name in searched]
    found = matched(wanted, list(texts), names)
    asked = [list(texts.values())[row] for row in found.queries.tolist()]
    items = _items_of(gallery, names)
    vectors: dict[str, dict[int, NDArray[np.float32]]] = {}
    for row, item in enumerate(items):
        if item is not None:
            vectors.setdefault(item.version, {})[row] = item.vector
    return KnownRelevant(
        queries=_as_set(asked, "queries"),
        gallery=_as_set([_text(item) for item in items], "items"),
        relevant=found,
        stored=len(stored),
        vectors=vectors,
        data={
            "name": name,
            "source": "relevant",
            "images": len(names),
            "fingerprint": _digest(asked, names, wanted),
        },
    )


def _items_of(gallery: Gallery, names: Sequence[str]) -> list[Item | None]:
    """The items with these ids; None for one that has been deleted."""
    found: list[Item | None] = []
    for start in range(0, len(names), _AT_ONCE):
        part = names[start : start + _AT_ONCE]
        items = gallery.get(part)
        found += [items.get(name) for name in part]
    return found


def _text(item: Item | None) -> str:
    if item is None:
        return ""
    return text_of(item) or ""


def _as_set(texts: Sequence[str], name: str) -> ImageSet:
    """Texts without classes."""
    return ImageSet(
        images=tuple(texts),
        labels=np.zeros(len(texts), np.int64),
        classes=("unlabelled",),
        name=name,
    )


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
