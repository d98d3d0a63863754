"""Vectors by both models, from a file: as the gallery stores them, or as full features."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixstar.workspace.adapters.use import class_pairs, pairs_from_file
from shops import pictures, shop

from fixstar.errors import DataError
from fixstar.workspace import Workspace, catalogue

OLD = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Workspace]:
    """Versions whose full features, 199 numbers, are wider than their backbone's; and a system of 5."""
    with shop(tmp_path / "shop", capacity=200) as space:
        space.serving.encoder("v1")
        space.gallery.create_version("old", 5)
        yield space


def read(space: Workspace, path: Path, **arrays: Any) -> Any:
    np.savez(path / "pairs.npz", **arrays)
    return pairs_from_file(path / "pairs.npz", space.gallery, "old", "v1")


def test_full_features_become_the_short_forms_that_are_stored(space: Workspace, tmp_path: Path) -> None:
    images = [item.image for item in catalogue(pictures(tmp_path / "photos"))]
    encoder = space.encoder("v1")
    short, full, raw = (encoder.encode(images, form=form) for form in ("short", "full", "raw"))
    assert full.shape[1] == 199 > short.shape[1]
    for given in (short, full, raw, full.astype(np.float16)):
        both = read(space, tmp_path, old=OLD, new=given)
        assert both.new.shape == short.shape
        assert np.allclose(both.new, short, atol=2e-3 if given.dtype == np.float16 else 1e-5)
        assert np.allclose(np.linalg.norm(both.new, axis=1), 1, atol=1e-5)


def test_rows_that_are_no_features_of_the_version_are_refused(space: Workspace, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    width = next(one.width for one in space.gallery.versions() if one.name == "v1")
    with pytest.raises(DataError, match=r"row 0 is not one: 0\.\d\d of its length lies where v1 has no features"):
        read(space, tmp_path, old=OLD, new=rng.normal(size=(9, 199)))
    with pytest.raises(
        DataError, match=rf"new has 77.*v1 have {width} in the short form.*form='short'.*and 199 in full"
    ):
        read(space, tmp_path, old=OLD, new=rng.normal(size=(9, 77)))
    with pytest.raises(DataError, match=r"old has 7 components, vectors of old have 5$"):
        read(space, tmp_path, old=rng.normal(size=(9, 7)), new=rng.normal(size=(9, width)))


def test_an_empty_label_is_none(space: Workspace, tmp_path: Path) -> None:
    """Images without a label are no class of their own: finding one of them shows nothing."""
    width = next(one.width for one in space.gallery.versions() if one.name == "v1")
    new = np.random.default_rng(2).normal(size=(9, width))
    kinds: list[Any] = [["hat", "hat", "shoe", *[""] * 6], [1.0, 1.0, 2.0, *[np.nan] * 6], [b"hat", b"hat", *[b""] * 7]]
    for labels in kinds:
        both = read(space, tmp_path, old=OLD, new=new, labels=np.array(labels))
        assert len(both.searchable()) == 2
        assert both.labels[3:] == [None] * 6
    payloads = [{"label": ""}, {"label": "hat"}, {"label": "shoe"}]
    space.gallery.upsert("old", ["1", "2", "3"], np.eye(5)[:3], payloads)
    space.gallery.upsert("v1", ["4", "5", "6"], np.eye(width)[:3], payloads)
    np.testing.assert_allclose(class_pairs(space.serving, "old", "v1", 10, 0).old, np.eye(5)[1:3])
