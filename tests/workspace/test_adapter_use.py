"""Adapters at work: stored vectors moved and the move repeated, the gate, files."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixstar.workspace.adapters.fitting import ADAPTERS, fit_adapter
from fixstar.workspace.adapters.maps import VectorAdapter, load_adapter, save_adapter
from fixstar.workspace.adapters.use import adapt_gallery, adapter_cross_test
from numpy.typing import NDArray
from test_adapters import rotation, vectors

from fixstar.errors import GalleryError, InputError, ModelError, UnknownNameError
from fixstar.evaluation import VersionFeatures, paired_bootstrap, verdicts
from fixstar.gallery import Gallery, MemoryGallery, SqliteGallery
from fixstar.geometry import unit

WIDTH, ITEMS = 8, 40
Q = rotation(WIDTH)


def rotating() -> VectorAdapter:
    X = vectors(100, WIDTH)
    return fit_adapter("procrustes", X, X @ Q, source="v1", target="v2")


def filled(gallery: Gallery) -> Gallery:
    gallery.create_version("v1", WIDTH)
    ids = [f"i{n:02}" for n in range(ITEMS)]
    gallery.upsert("v1", ids, vectors(ITEMS, WIDTH, seed=4), [{"n": n} for n in range(ITEMS)])
    return gallery


def check_adapted(gallery: Gallery, count: int = ITEMS) -> None:
    items = {item.id: item for item in gallery.iterate("v1@v2")}
    assert len(items) == count
    for n, row in enumerate(vectors(ITEMS, WIDTH, seed=4)):
        if item := items.get(f"i{n:02}"):
            np.testing.assert_allclose(item.vector, row @ Q, atol=1e-5)
            assert item.payload == {"n": n}


def test_stored_vectors_move_within_their_gallery() -> None:
    gallery, seen = filled(MemoryGallery()), []

    def advance(count: int = 1, note: str | None = None) -> None:
        assert note is None
        seen.append(count)

    assert adapt_gallery(gallery, "v1", rotating(), "v1@v2", progress=advance) == ITEMS == sum(seen)
    check_adapted(gallery)
    assert gallery.count() == {"v1": 0, "v1@v2": ITEMS}
    assert adapt_gallery(gallery, "v1", rotating(), "v1@v2") == 0
    hit = gallery.search("v1@v2", vectors(ITEMS, WIDTH, seed=4)[3:4] @ Q, k=1)[0][0]
    assert (hit.id, round(hit.score, 4)) == ("i03", 1.0)


def test_a_copy_leaves_the_source_alone_and_follows_its_changes(tmp_path: Path) -> None:
    source = filled(MemoryGallery())
    with SqliteGallery(tmp_path / "new.db") as target:
        target.create_version("v2", WIDTH)
        fresh = vectors(1, WIDTH, seed=11)
        target.upsert("v2", ["i05"], fresh)  # embedded by v2 itself: worth more than any adapted vector
        assert adapt_gallery(source, "v1", rotating(), "v1@v2", like="v2", target=target) == ITEMS - 1
        check_adapted(target, ITEMS - 1)
        assert target.get(["i05"])["i05"].version == "v2"
        assert source.count() == {"v1": ITEMS}
        assert adapt_gallery(source, "v1", rotating(), "v1@v2", like="v2", target=target) == 0
        source.upsert("v1", ["i07"], fresh, [{"n": "changed"}])
        assert adapt_gallery(source, "v1", rotating(), "v1@v2", like="v2", target=target) == 1
        assert target.get(["i07"])["i07"].payload == {"n": "changed"}


def test_adapted_vectors_are_stored_while_somebody_reads(tmp_path: Path) -> None:
    """A reader that keeps the log from being moved into the file loses nothing, so it is no failure."""
    path = tmp_path / "g.db"
    with SqliteGallery(path, wait=0.1) as gallery, closing(sqlite3.connect(path, isolation_level=None)) as reader:
        filled(gallery)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM items").fetchone()
        assert adapt_gallery(gallery, "v1", rotating(), "v1@v2") == ITEMS
    with SqliteGallery(path) as gallery:
        check_adapted(gallery)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_interrupted_move_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    monkeypatch.setattr("fixstar.workspace.adapters.use._BATCH", 7)
    done = 0

    def stop(count: int = 1, note: str | None = None) -> None:
        nonlocal done
        assert note is None
        done += count
        if done >= 21:
            raise KeyboardInterrupt

    with filled(SqliteGallery(tmp_path / "g.db")) as source:
        target = SqliteGallery(tmp_path / "other.db") if elsewhere else None
        with pytest.raises(KeyboardInterrupt):
            adapt_gallery(source, "v1", rotating(), "v1@v2", target=target, progress=stop)
        check_adapted(target or source, 21)
        if not elsewhere:  # nothing lost in between: every item has one vector, old or new
            assert source.count() == {"v1": ITEMS - 21, "v1@v2": 21}
        assert adapt_gallery(source, "v1", rotating(), "v1@v2", target=target) == ITEMS - 21
        check_adapted(target or source)
        if target is not None:
            target.close()


def test_an_item_embedded_anew_during_the_move_is_not_overwritten() -> None:
    gallery, adapter = filled(MemoryGallery()), rotating()
    gallery.create_version("v2", WIDTH)
    fresh = vectors(1, WIDTH, seed=11)
    listed = gallery.iterate

    def meanwhile(version: str | None = None, after: str | None = None) -> Any:
        for item in list(listed(version, after)):
            if item.id == "i09":
                gallery.upsert("v2", ["i09"], fresh)
            yield item

    gallery.iterate = meanwhile  # type: ignore[method-assign]
    assert adapt_gallery(gallery, "v1", adapter, "v1@v2") == ITEMS - 1
    assert gallery.get(["i09"])["i09"].version == "v2"


def test_adapted_vectors_take_over_the_projection_of_the_new_version() -> None:
    """v2 stores short forms: its queries must meet adapted vectors in the same space."""
    gallery = filled(MemoryGallery())
    P = np.random.default_rng(3).standard_normal((20, WIDTH)).astype(np.float32)
    gallery.create_version("v2", WIDTH, P)
    adapt_gallery(gallery, "v1", rotating(), "v1@v2", like="v2")
    hit = gallery.search("v2", vectors(ITEMS, WIDTH, seed=4)[8:9] @ Q, k=1)[0][0]
    assert (hit.id, round(hit.score, 4)) == ("i08", 1.0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("v9", "x", {}), "no version 'v9'"),
        (("v1", "v1", {}), "version of their own"),
        (("v1", "wide", {}), "of another kind"),
        (("wide", "x", {}), "takes 8"),
        (("v1", "x", {"like": "v9"}), "no version 'v9'"),
    ],
)
def test_moves_that_are_refused(arguments: tuple[str, str, dict[str, Any]], told: str) -> None:
    gallery = filled(MemoryGallery())
    gallery.create_version("wide", WIDTH + 1)
    version, new, options = arguments
    with pytest.raises((GalleryError, InputError), match=told):
        adapt_gallery(gallery, version, rotating(), new, **options)
    assert gallery.count()["v1"] == ITEMS


def features(noise: float, turn: NDArray[Any], seed: int) -> tuple[VersionFeatures, NDArray[np.int64]]:
    """20 classes in 16 dimensions, 10 images each on both sides; ``turn`` says in which basis the model sees them."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(20), 10)
    centres = vectors(20, 16, seed=100)
    parts = [unit(centres[labels] + noise * rng.standard_normal((200, 16))) @ turn for _ in range(2)]
    return VersionFeatures(f"v{seed}", parts[0], parts[1]), labels


def test_the_gate_passes_a_rotated_space_and_refuses_a_random_one() -> None:
    turn = rotation(16)
    old, labels = features(0.35, np.eye(16), seed=1)
    new, _ = features(0.2, turn, seed=2)  # a better model
    X = vectors(300, 16, seed=5)
    for applied, (a, b) in {"queries": (X @ turn, X), "stored": (X, X @ turn)}.items():
        good = adapter_cross_test(fit_adapter("procrustes", a, b), old, new, labels, labels, applied)  # type: ignore[arg-type]
        assert verdicts(good)[1, 0].verdict == "compatible"
        assert paired_bootstrap(good.hits[1, 0], good.hits[0, 0]) == verdicts(good)[1, 0]
        assert good.matrix[0, 0] < good.matrix[1, 0] <= good.matrix[1, 1] + 0.05
        bad = fit_adapter("ridge", a, vectors(300, 16, seed=6))
        refused = adapter_cross_test(bad, old, new, labels, labels, applied)  # type: ignore[arg-type]
        assert verdicts(refused)[1, 0].verdict == "incompatible"
        np.testing.assert_array_equal(refused.hits[0, 0], good.hits[0, 0])


def test_the_cross_test_is_the_search_it_stands_for() -> None:
    old, labels = features(0.3, np.eye(16), seed=1)
    new, _ = features(0.3, rotation(16), seed=2)
    X = vectors(300, 16, seed=5)
    adapter = fit_adapter("procrustes", X @ rotation(16), X)
    result = adapter_cross_test(adapter, old, new, labels, labels, "queries", "image")
    found = np.argmax(adapter(new.queries) @ old.gallery.T, axis=1)
    np.testing.assert_array_equal(result.hits[1, 0], labels[found] == labels)
    names = [f"class {label}" for label in labels]
    named = adapter_cross_test(adapter, old, new, names, names)
    np.testing.assert_array_equal(named.hits[1, 0], result.hits[1, 0])
    assert result.matrix[1, 1] == result.hits[1, 1].mean()
    assert np.isnan(result.matrix[0, 1])


def test_an_adapter_of_the_wrong_direction_is_refused() -> None:
    old, labels = features(0.3, np.eye(16), seed=1)
    wide = VersionFeatures("v2", vectors(200, 20), vectors(200, 20, seed=1))
    to_old = fit_adapter("procrustes", vectors(100, 20), vectors(100, 16))
    assert adapter_cross_test(to_old, old, wide, labels, labels).names == ("v1", "v2")
    with pytest.raises(InputError, match=r"leads from 16 to 20 .*from 20 to 16\. .*apply it to the queries"):
        adapter_cross_test(to_old, old, wide, labels, labels, "stored")
    with pytest.raises(UnknownNameError, match="queries, stored"):
        adapter_cross_test(to_old, old, wide, labels, labels, "gallery")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="protocol"):
        adapter_cross_test(to_old, old, wide, labels, labels, protocol="magic")


@pytest.mark.parametrize("kind", ADAPTERS)
def test_a_saved_adapter_is_the_same(tmp_path: Path, kind: str) -> None:
    X = vectors(120, 6)
    options: dict[str, Any] = {"epochs": 1} if kind == "mlp" else {}
    adapter = fit_adapter(kind, X, vectors(120, 9, seed=1), source="new", target="öld", **options)
    again = load_adapter(save_adapter(adapter, tmp_path / "sub" / "a.safetensors"))
    np.testing.assert_array_equal(again(X), adapter(X))
    assert (again.kind, again.source, again.target, again.about) == (kind, "new", "öld", dict(adapter.about))
    with pytest.raises(ModelError, match="never overwritten"):
        save_adapter(adapter, tmp_path / "sub" / "a.safetensors")
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["a.safetensors"]


def other_card(content: bytes) -> bytes:
    return content.replace(b"procrustes", b"procrustos")


def forged(path: Path, **card: Any) -> None:
    """A file whose checksum is right and whose card is not."""
    from fixstar.workspace.adapters.maps import weights_checksum
    from safetensors.numpy import save_file

    text = json.dumps({"format": "fixstar-adapter", "format_version": 1, "kind": "ridge", **card})
    weights = {"W": np.eye(2, dtype=np.float32), "c": np.zeros(2, np.float32)}
    save_file(weights, path, {"card": text, "sha256": weights_checksum(text, weights)})


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:0] + b"garbage",
        lambda content: content[:0],
        lambda content: content[:-10],
        lambda content: content[: len(content) // 2],
        lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:],
        other_card,
        lambda content: content.replace(b"sha256", b"sha255"),
        lambda content: b"\xff" * 8 + content[8:],
    ],
)
def test_a_damaged_file_gives_one_clear_error(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = save_adapter(rotating(), tmp_path / "a.safetensors")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelError, match=r"a\.safetensors is damaged, or not an adapter.*fit it again"):
        load_adapter(path)


@pytest.mark.parametrize(
    "card",
    [
        {"format_version": 2},
        {"format": "other"},
        {"kind": "magic", "source": "", "target": "", "about": {}},
        {"kind": "mlp", "source": "", "target": "", "about": {}},
        {},
    ],
)
def test_a_foreign_card_gives_the_same_error(tmp_path: Path, card: dict[str, Any]) -> None:
    forged(tmp_path / "a.safetensors", **card)
    with pytest.raises(ModelError, match="is damaged, or not an adapter"):
        load_adapter(tmp_path / "a.safetensors")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no adapter"):
        load_adapter(tmp_path / "a.safetensors")
    with pytest.raises(ModelError, match=r"FILE\.safetensors"):
        save_adapter(rotating(), tmp_path / "a.npz")
