"""Queries with known relevant items of the gallery (BEIR's layout), as evidence for the gate.

Queries are the texts of a ``queries.jsonl``; what is relevant for them are stored items, by their ids. They search
these items among others of the gallery, which are drawn at random where it is large.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fixstar.data.image_set import ImageSet
from fixstar.errors import InputError
from fixstar.evaluation.relevance import Relevant, matched, query_texts, read_relevance
from fixstar.gallery import Gallery
from fixstar.workspace.items import text_of

_AT_ONCE = 1000  # items read from the gallery


class KnownRelevant(NamedTuple):
    """Queries, the stored texts that they search, and which of them are relevant; ``stored`` counts the gallery."""

    queries: ImageSet
    gallery: ImageSet
    relevant: Relevant
    stored: int
    data: dict[str, Any]


def known_relevant(gallery: Gallery, files: Sequence[Path], most: int, seed: int) -> KnownRelevant:
    """What ``files`` say about stored items: a queries.jsonl and a file of relevant items, in any order.

    Up to ``most`` stored items are searched, the relevant ones always.
    """
    texts = query_texts(files)
    wanted = read_relevance(files)
    named = {item for judged in wanted.values() for item, grade in judged.items() if grade > 0}
    stored = [item.id for item in gallery.iterate() if text_of(item) is not None]
    if not stored:
        raise InputError("the gallery holds no texts, so no query can find a relevant one; index them first")
    others = [name for name in stored if name not in named]
    room = max(0, most - (len(stored) - len(others)))
    if len(others) > room:
        drawn = np.random.default_rng(seed).permutation(len(others))[:room]
        others = [others[row] for row in np.sort(drawn).tolist()]
    searched = {*others, *named}
    names = [name for name in stored if name in searched]
    relevant = matched(wanted, list(texts), names)
    asked = [list(texts.values())[row] for row in relevant.queries.tolist()]
    name = " and ".join(Path(file).name for file in files)
    return KnownRelevant(
        queries=_as_set(asked, "queries"),
        gallery=_as_set(_texts_of(gallery, names), "items"),
        relevant=relevant,
        stored=len(stored),
        data={"name": name, "source": "relevant", "images": len(names), "fingerprint": _digest(asked, names, wanted)},
    )


def _texts_of(gallery: Gallery, names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for start in range(0, len(names), _AT_ONCE):
        part = names[start : start + _AT_ONCE]
        items = gallery.get(part)
        found += [text_of(items[name]) or "" for name in part]
    return found


def _as_set(texts: Sequence[str], name: str) -> ImageSet:
    """Texts without classes."""
    return ImageSet(images=tuple(texts), labels=np.zeros(len(texts), np.int64), classes=("unlabelled",), name=name)


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
