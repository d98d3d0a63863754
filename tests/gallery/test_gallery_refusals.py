"""What every gallery refuses, with nothing lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_gallery_contract import GALLERIES, vectors
from wording import refuses

from fixstar.errors import GalleryError
from fixstar.gallery import (
    Gallery,
    MemoryGallery,
    SqliteGallery,
    open_gallery,
)


@pytest.fixture(params=GALLERIES)
def gallery(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gallery]:
    with GALLERIES[request.param](tmp_path) as opened:
        opened.create_version("v1", 3)
        opened.upsert("v1", ["a", "b"], vectors(2, 3), [{"x": 1}, {"x": 2}])
        yield opened
        assert opened.count() == {"v1": 2}
        assert {item.id: item.payload for item in opened.iterate()} == {
            "a": {"x": 1},
            "b": {"x": 2},
        }
        assert len(opened.search("v1", vectors(1, 3))[0]) == 2


def broken(kind: str) -> Any:
    good = vectors(2, 3)
    return {
        "nan": np.where([[True], [False]], np.nan, good),
        "zero": good * np.array([[1], [0]]),
        "long": good * 2,
        "wide": vectors(2, 4),
        "one row": good[0],
        "words": np.array([["a", "b", "c"]] * 2),
    }[kind]


@pytest.mark.parametrize("kind", ["nan", "zero", "long", "wide", "one row", "words"])
def test_vectors_that_make_no_sense(gallery: Gallery, kind: str) -> None:
    with pytest.raises(
        GalleryError, match="length 1" if kind in ("nan", "zero", "long") else "matrix"
    ):
        gallery.upsert("v1", ["a", "c"], broken(kind))
    with pytest.raises(GalleryError):
        gallery.search("v1", broken(kind))


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        (lambda g: g.create_version("v1", 3), "already"),
        (lambda g: g.create_version("", 3), "non-empty"),
        (
            lambda g: g.create_version("a b/c", 3),
            "'a b/c': a name has letters, digits and . _ - [+] : @ only",
        ),
        (lambda g: g.create_version("v1@a b", 3), "'v1@a b': a name has letters"),
        (lambda g: g.create_version("-v2", 3), "does not start with - or [.]"),
        (lambda g: g.create_version("..", 3), "does not start with - or [.]"),
        (lambda g: g.create_version("v2", 0), "at least 1"),
        (lambda g: g.create_version("v2", 3, np.zeros((100, 48))), "48 wide"),
        (lambda g: g.create_version("v2", 3, np.full((9, 3), np.nan)), "finite"),
        (lambda g: g.upsert("v9", ["a"], vectors(1, 3)), r"no version 'v9' \(it has: v1\)"),
        (lambda g: g.search("v9", vectors(1, 3)), "no version 'v9'"),
        (lambda g: g.search(["v1"], vectors(1, 3)), "no version"),
        (lambda g: g.search("v1", vectors(1, 3), versions=["v9"]), "no version 'v9'"),
        (lambda g: g.iterate("v9"), "no version 'v9'"),
        (lambda g: g.projection("v9"), r"no version 'v9' \(it has: v1[^)]*\)$"),
        (lambda g: g.upsert("v1", ["a", "c"], vectors(1, 3)), "2 ids, 1 vector"),
        (lambda g: g.upsert("v1", ["a"], vectors(1, 3), []), "0 payloads"),
        (lambda g: g.upsert("v1", ["c", "c"], vectors(2, 3)), "1 distinct; 'c' comes twice"),
        (lambda g: g.upsert("v1", "ab", vectors(2, 3)), "list of strings"),
        (lambda g: g.upsert("v1", [7], vectors(1, 3)), "got 7"),
        (lambda g: g.upsert("v1", [""], vectors(1, 3)), "non-empty"),
        (lambda g: g.upsert("v1", ["a\0"], vectors(1, 3)), "NUL"),
        (lambda g: g.upsert("v1", ["\ud800"], vectors(1, 3)), "valid characters"),
        (lambda g: g.delete(["a", None]), "got None"),
        (lambda g: g.delete("ab"), "list of strings"),
        (lambda g: g.upsert("v1", ["a", "c"], vectors(2, 3), [{}, ["list"]]), "payload of 'c'"),
        (lambda g: g.upsert("v1", ["a", "c"], vectors(2, 3), [{}, {1: 2}]), "payload of 'c'"),
        (lambda g: g.upsert("v1", ["a", "c"], vectors(2, 3), [{}, {"x": {1, 2}}]), "JSON"),
        (lambda g: g.upsert("v1", ["a", "c"], vectors(2, 3), [{}, {"x": float("nan")}]), "JSON"),
        (lambda g: g.search("v1", vectors(1, 3), k=0), "at least 1"),
        (
            lambda g: g.search("v1", vectors(1, 3), where={"x": {"near": 1}}),
            "no condition 'near'; use one of",
        ),
        (lambda g: g.search("v1", vectors(1, 3), where={"x": {"in": "ab"}}), "a list"),
        (
            lambda g: g.search("v1", vectors(1, 3), where={"x": {"lt": None}}),
            "a number or a string",
        ),
        (lambda g: g.search("v1", vectors(1, 3), where={"x": {"exists": 1}}), "True or False"),
        (lambda g: g.search("v1", vectors(1, 3), where=["x"]), "maps payload fields"),
        (lambda g: g.search("v1", vectors(1, 3), where={"x": {1, 2}}), "a filter holds"),
    ],
)
def test_mistakes_are_told(gallery: Gallery, mistake: Callable[[Any], object], told: str) -> None:
    with pytest.raises(GalleryError, match=told):
        mistake(gallery)


@pytest.mark.parametrize(
    "name",
    [
        "a b",
        "a/b",
        "a\\b",
        "a?b",
        "a#b",
        "a%20b",
        "a=b",
        "a&b",
        "a'b",
        "a$b",
        "a\nb",
        "a\u00a0b",
        "a,b",
        "\U0001f4f7",
    ],
)
def test_a_version_is_called_what_can_be_typed(name: str) -> None:
    gallery = MemoryGallery()
    with refuses(GalleryError):
        gallery.create_version(name, 3)
    assert gallery.versions() == []


@pytest.mark.parametrize(
    "name",
    [
        "v1",
        "old-system",
        "old@v2",
        "clip:ViT-B+32",
        "2024.05_a",
        "版本1",
        "Größe",
        "u\u0308",
        "हिन्दी",
        "_x",
        "@x",
    ],
)
def test_names_of_any_script_are_taken(name: str) -> None:
    gallery = MemoryGallery()
    gallery.create_version(name, 3)
    assert [space.name for space in gallery.versions()] == [name]


def test_an_address_picks_the_gallery(tmp_path: Path) -> None:
    assert isinstance(open_gallery(":memory:"), MemoryGallery)
    with open_gallery(tmp_path / "g.db") as made:
        assert isinstance(made, SqliteGallery)
        made.create_version("v1", 3)
    with open_gallery(str(tmp_path / "g.db")) as found:
        assert found.count() == {"v1": 0}


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me@127.0.0.1:1/db",
        "qdrant://127.0.0.1:1",
        "qdrant+https://host",
        "ftp://host",
        "missing/folder/g.db",
        ".",
    ],
)
def test_addresses_that_are_none(url: str) -> None:
    with refuses(GalleryError, varies=r"\(conn.*?\)"):
        open_gallery(url)
