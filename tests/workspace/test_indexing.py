"""Indexing beside others who write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fixstar.errors import ImageError
from fixstar.gallery import Gallery, Item, open_gallery
from fixstar.images import Decode, DecodeProcesses, Preprocessing, read_pixels
from fixstar.models import EmbeddedBatch
from fixstar.workspace import CatalogueItem, items
from fixstar.workspace.items import LocalEmbedder, in_processes, index_items

SEEN = {"image": "/photo.png", "stamp": "1-1"}


def never(batches: Any) -> Any:
    """An embedder that must not be asked."""
    assert not list(batches)
    return iter(())


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    made = open_gallery(str(tmp_path / "gallery.db"))
    for version in ("v1", "v2"):
        made.create_version(version, 4)
    made.upsert("v1", ["a", "b", "c"], np.eye(4, dtype=np.float32)[:3], [SEEN] * 3)
    return made


def told(*names: str, **fields: Any) -> list[CatalogueItem]:
    return [CatalogueItem(name, Path("/photo.png"), {**SEEN, **fields}) for name in names]


def test_fields_that_changed_are_stored_without_embedding(gallery: Gallery) -> None:
    done = index_items(gallery, "v1", never, told("a", "b", "c", sizes=(1, 2)))
    assert (done.added, done.unchanged, done.updated) == (0, 3, 3)
    assert gallery.get(["b"])["b"].payload == {**SEEN, "sizes": [1, 2]}


def test_what_others_delete_or_embed_meanwhile_stays_so(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = gallery.get

    def others_are_faster(names: list[str]) -> dict[str, Item]:
        known = look(names)
        monkeypatch.setattr(gallery, "get", look)
        assert gallery.replace_vectors("v2", [known["a"]], np.eye(4, dtype=np.float32)[3:]) == ["a"]
        gallery.delete(["b"])
        return known

    monkeypatch.setattr(gallery, "get", others_are_faster)
    index_items(gallery, "v1", never, told("a", "b", "c", price=5))
    now = gallery.get(["a", "b", "c"])
    assert {name: item.version for name, item in now.items()} == {"a": "v2", "c": "v1"}
    assert [item.payload["price"] for item in now.values()] == [5, 5]
    np.testing.assert_array_equal(now["a"].vector, [0, 0, 0, 1])


@pytest.mark.parametrize(
    ("wait", "sizes"),
    [(0.0, [32, 16, 8, 4]), (1000.0, [32, 64, 128, 256])],  # every batch is late; none is
)
def test_a_slow_model_stores_what_it_has_before_it_is_interrupted(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch, wait: float, sizes: list[int]
) -> None:
    monkeypatch.setattr(items, "WAIT", wait)
    seen: list[int] = []

    def embed(batches: Any) -> Any:
        for batch in batches:
            if len(seen) == len(sizes):
                raise KeyboardInterrupt
            seen.append(len(batch))
            yield EmbeddedBatch(np.tile(np.eye(4, dtype=np.float32)[0], (len(batch), 1)), ())

    files = [CatalogueItem(f"new-{number}", Path("/photo.png")) for number in range(1000)]
    with pytest.raises(KeyboardInterrupt):
        index_items(gallery, "v1", embed, files)
    assert seen == sizes
    assert gallery.count()["v1"] == 3 + sum(sizes)


def test_a_name_that_is_no_text_is_told_and_the_others_are_indexed(gallery: Gallery) -> None:
    def embed(batches: Any) -> Any:
        for batch in batches:
            yield EmbeddedBatch(np.tile(np.eye(4, dtype=np.float32)[0], (len(batch), 1)), ())

    files = [
        CatalogueItem(name, Path("/photo.png"))
        for name in ("good", "bad\udcff.png", "\u00fcber \U0001f600")
    ]
    done = index_items(gallery, "v1", embed, files)
    assert done.added == 2
    assert [(bad.name, bad.reason) for bad in done.bad] == [
        ("bad\\udcff.png", "its name is not valid UTF-8; rename it")
    ]
    assert gallery.get(["\u00fcber \U0001f600"])


def test_many_images_are_decoded_in_processes_with_the_same_pixels_and_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo = tmp_path / "photo.png"
    Image.effect_noise((20, 30), 60).convert("RGB").save(photo)
    broken = tmp_path / "broken.png"
    broken.write_bytes(photo.read_bytes()[:200])
    preprocessing = Preprocessing(size=(8, 8), mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    sent: list[Any] = []
    usual = DecodeProcesses.pixels

    def noted(self: DecodeProcesses, source: Any, asked: Preprocessing) -> Any:
        sent.append(source)
        return usual(self, source, asked)

    monkeypatch.setattr(DecodeProcesses, "pixels", noted)
    decode = in_processes(first=2)
    here, _, there = [decode(photo, preprocessing) for _ in range(3)]
    assert np.array_equal(here, read_pixels(photo, preprocessing))
    assert np.array_equal(there, here)
    with pytest.raises(ImageError) as from_process:
        decode(broken, preprocessing)
    with pytest.raises(ImageError) as from_here:
        read_pixels(broken, preprocessing)
    assert (from_process.value.name, from_process.value.reason) == (
        from_here.value.name,
        from_here.value.reason,
    )
    assert sent == [photo, broken]


@pytest.mark.parametrize(("device", "expected"), [("cpu", False), ("cuda", True)])
def test_a_gpu_does_not_wait_for_threads_that_decode(device: str, expected: bool) -> None:
    asked: list[Decode | None] = []

    class Model:
        def __init__(self) -> None:
            self.device = torch.device(device)

        def encode_batches(self, batches: Any, *, form: str, decode: Decode | None) -> Any:
            assert form == "short"
            asked.append(decode)
            return iter(batches)

    def own(image: Any, preprocessing: Preprocessing) -> Any:
        return read_pixels(image, preprocessing)

    list(LocalEmbedder(Model())([]))  # type: ignore[arg-type]
    list(LocalEmbedder(Model(), own)([]))  # type: ignore[arg-type]
    assert [decode is not None for decode in asked] == [expected, True]
    assert asked[1] is own
