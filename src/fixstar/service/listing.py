"""Pages of the gallery, sorted by id: each costs about the same, however few items pass the filter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

from pydantic import BaseModel

from fixstar.gallery import Gallery, Item
from fixstar.gallery.filters import payload_test
from fixstar.gallery.store import Where
from fixstar.service.shapes import ItemShape, item_shape

__all__ = ["LOOKED_AT", "ItemPage", "item_page"]

LOOKED_AT = 5000  # items that a filter is compared with for one page, at most


class ItemPage(BaseModel):
    """Some items, sorted by id. ``next`` is what to send as ``after`` for the following ones; null at the end.

    With a filter a page may hold fewer items than asked for, or none, before the end: ``looked_at`` counts those that
    were compared with it for this page.
    """

    items: list[ItemShape]
    next: str | None
    looked_at: int


def item_page(
    gallery: Gallery, limit: int, version: str | None = None, after: str | None = None, where: Where | None = None
) -> ItemPage:
    """Up to ``limit`` items behind ``after`` that pass; where the last one looked at stands, the next page begins."""
    passes = payload_test(where or {})
    found: list[Item] = []
    looked_at, last = 0, after
    with closing(cast(Any, gallery.iterate(version, after))) as source:
        for item in cast(Iterator[Item], source):
            if len(found) == limit or looked_at == LOOKED_AT:
                return ItemPage(items=list(map(item_shape, found)), next=last, looked_at=looked_at)
            looked_at, last = looked_at + 1, item.id
            if passes(item.payload):
                found.append(item)
    return ItemPage(items=list(map(item_shape, found)), next=None, looked_at=looked_at)
