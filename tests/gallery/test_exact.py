"""Searches in memory while another thread changes what they search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fixstar.gallery import MemoryGallery
from fixstar.gallery.exact import ExactSearch


class Interrupted(ExactSearch):
    """Does what another thread might do just after somebody has taken the rows."""

    meanwhile: Callable[[], None] | None = None

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "rows" and (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            meanwhile()
        return value


@pytest.mark.parametrize("asked", [None, ["v1", "v2"]])
def test_a_version_that_comes_during_a_search_is_empty_to_it(asked: list[str] | None) -> None:
    """The item that moves there is found once by each search: before the move, or after it."""
    gallery, row = MemoryGallery(), np.eye(8, dtype=np.float32)[:1]
    gallery._exact = exact = Interrupted()
    gallery.create_version("v1", 8)
    gallery.upsert("v1", ["mover"], row)

    def move() -> None:
        gallery.create_version("v2", 8)
        gallery.upsert("v2", ["mover"], row)

    exact.meanwhile = move
    for version in ("v1", "v2"):
        found = [(hit.id, hit.version) for hit in gallery.search("v1", row, versions=asked)[0]]
        assert found == [("mover", version)]
