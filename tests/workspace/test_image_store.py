"""Images that the workspace keeps: once each, and no longer than something needs them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fixstar.workspace import ImageStore

DAY = 86400


def aged(store: ImageStore, content: bytes) -> str:
    """The name of an image that was kept two days ago."""
    name = str(store.keep(content)["image"])
    os.utime(store.path / name, (time.time() - 2 * DAY,) * 2)
    return name


def test_an_image_is_kept_once_and_found_unused_when_nothing_names_it(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    one, two = aged(store, b"one"), aged(store, b"two")
    store.keep(b"fresh")
    before = time.time() - DAY
    assert store.unused([one, "elsewhere/photo.jpg", str(tmp_path / two)], before) == []
    assert store.unused([one], before) == [tmp_path / two]
    assert store.prune([tmp_path / two], before) == (1, 3)
    assert sorted(path.read_bytes() for path in tmp_path.glob("images/??/*")) == [b"fresh", b"one"]


def test_an_image_that_is_kept_again_meanwhile_stays(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    name = aged(store, b"content")
    before = time.time() - DAY
    unused = store.unused([], before)
    assert store.keep(b"content")["image"] == name
    assert store.prune(unused, before) == (0, 0)
    assert (tmp_path / name).read_bytes() == b"content"


def test_an_image_that_is_put_aside_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ImageStore(tmp_path)
    name = aged(store, b"content")
    before = time.time() - DAY
    unused, unlink = store.unused([], before), Path.unlink

    def kept_just_then(path: Path, missing_ok: bool = False) -> None:
        monkeypatch.undo()
        store.keep(b"content")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", kept_just_then)
    assert store.prune(unused, before) == (1, 7)
    assert (tmp_path / name).read_bytes() == b"content"
    assert [path.name for path in tmp_path.glob("images/??/*")] == [Path(name).name]


def test_two_who_prune_at_once_do_not_fail(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    aged(store, b"content")
    before = time.time() - DAY
    unused = store.unused([], before)
    assert store.prune(unused, before) == (1, 7)
    assert store.prune(unused, before) == (0, 0)
