"""What lies in a workspace is whole, or it is refused: documents, arrays, the gallery, images."""

from __future__ import annotations

import re
import sqlite3
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import rewrite
from service_clients import client, picture
from shops import indexed_shop, pictures, shop
from typed import typed
from wording import check_wording, refuses

from fixstar.durable import document, read_arrays, read_document, replace_json, write_arrays
from fixstar.errors import (
    DamagedItemError,
    DataError,
    GalleryError,
    GalleryUnavailableError,
    InputError,
    ModelError,
)
from fixstar.gallery import MemoryGallery, SqliteGallery, import_version, verify_gallery
from fixstar.gallery.sqlite import _log_sum
from fixstar.images import Preprocessing
from fixstar.workspace import CatalogueItem, Workspace, catalogue
from fixstar.workspace.verify import verify_workspace


def test_a_document_says_what_it_is_and_is_whole(tmp_path: Path) -> None:
    path, content = tmp_path / "a.json", {"b": [1, 0.1], "a": {"é": None}}
    replace_json(path, document("thing", content))
    assert read_document(path, "thing") == content
    whole = path.read_bytes()
    for place in range(len(whole)):
        if whole[place : place + 1].isspace():
            continue
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ModelError, match=r"a\.json"):
            read_document(path, "thing")
    path.write_bytes(whole)
    with refuses(ModelError):
        read_document(path, "other")
    path.write_text("[" * 100_000)  # deeper than any parser goes
    with pytest.raises(ModelError, match=r"a\.json"):
        read_document(path, "thing")


def test_a_document_of_a_newer_fixstar_is_refused_with_what_to_do(tmp_path: Path) -> None:
    replace_json(tmp_path / "a.json", document("thing", {}, version=3))
    assert read_document(tmp_path / "a.json", "thing", version=3) == {}
    with refuses(ModelError):
        read_document(tmp_path / "a.json", "thing", version=2)
    write_arrays(tmp_path / "a.safetensors", "thing", {}, {"x": np.eye(2)}, version=2)
    with refuses(ModelError):
        read_arrays(tmp_path / "a.safetensors", "thing")


def test_arrays_are_whole(tmp_path: Path) -> None:
    path, arrays = (
        tmp_path / "a.safetensors",
        {"x": np.arange(6.0).reshape(2, 3), "y": np.zeros(0, np.int64)},
    )
    write_arrays(path, "thing", {"a": 1}, arrays)
    about, found = read_arrays(path, "thing")
    assert (about, [array.tolist() for array in found.values()]) == (
        {"a": 1},
        [[[0, 1, 2], [3, 4, 5]], []],
    )
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 64]) + whole[place + 1 :])
        try:
            same = read_arrays(path, "thing")
        except ModelError:
            continue
        assert same[0] == about  # a space beside the header
        assert all(np.array_equal(same[1][name], array) for name, array in arrays.items())


def test_a_gallery_of_a_newer_fixstar_is_refused_with_what_to_do(tmp_path: Path) -> None:
    indexed_shop(tmp_path)
    with SqliteGallery(tmp_path / "shop" / "gallery.db") as gallery:
        gallery._session().db.execute("PRAGMA user_version = 9")
    with refuses(GalleryError):
        SqliteGallery(tmp_path / "shop" / "gallery.db")


@pytest.mark.parametrize("damage", ["missing", "empty"])
def test_a_gallery_that_is_gone_is_not_made_again(tmp_path: Path, damage: str) -> None:
    path = indexed_shop(tmp_path)
    (path / "gallery.db").unlink()
    if damage == "empty":
        (path / "gallery.db").touch()
    with (
        Workspace(path, device="cpu") as space,
        pytest.raises(GalleryUnavailableError, match=f"is {damage}") as caught,
    ):
        space.status()
    assert caught.value.next_steps[0].action == "use-gallery"
    assert f"is {damage}" in typed("gallery", "verify", "-w", path).out
    with client(Workspace(path, device="cpu")) as http:
        assert http.get("/readyz").status_code == 503
        told = http.get("/v1/status")
        assert (told.status_code, str(tmp_path) in told.text) == (503, False)
    assert not (path / "gallery.db").exists() or not (path / "gallery.db").stat().st_size


def test_a_killed_creation_is_repeated(tmp_path: Path) -> None:
    SqliteGallery(tmp_path / "shop.db").close()
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop.db").rename(
        tmp_path / "shop" / "gallery.db"
    )  # killed before workspace.json was there
    Workspace.create(tmp_path / "shop").close()
    with Workspace(tmp_path / "shop") as space:
        assert space.status().vectors == {}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".profile").touch()
    with pytest.raises(InputError, match="is not empty"):
        Workspace.create(tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == [".profile"]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE items SET payload = replace(payload, 'hat', 'hut') WHERE id = 'hat/0.png'",
        "UPDATE items SET vector = (SELECT vector FROM items WHERE id = 'bag/0.png') WHERE id = 'hat/0.png'",
        "UPDATE items SET digest = zeroblob(8) WHERE id = 'hat/0.png'",
    ],
)
def test_an_item_that_was_changed_is_never_an_answer(tmp_path: Path, change: str) -> None:
    path = indexed_shop(tmp_path)
    with sqlite3.connect(path / "gallery.db") as db:
        db.execute(change)
    db.close()
    with Workspace(path, device="cpu") as space:
        for use in (
            lambda: space.gallery.get(["hat/0.png"]),
            lambda: list(space.gallery.iterate()),
            lambda: space.search([picture(1)], k=1),
        ):
            with pytest.raises(DamagedItemError, match=r"'hat/0\.png'") as caught:
                use()
        assert len(verify_gallery(space.gallery)) == 1
        space.gallery.delete([caught.value.item])
        assert verify_gallery(space.gallery) == []
        assert space.search([picture(1)], k=99).hits


def test_a_changed_projection_is_refused(tmp_path: Path) -> None:
    with SqliteGallery(tmp_path / "g.db") as gallery:
        gallery.create_version("v1", 2, np.eye(5, 2))
        gallery.upsert("v1", ["a"], np.eye(2)[:1])
    with sqlite3.connect(tmp_path / "g.db") as db:
        db.execute("UPDATE versions SET projection = zeroblob(40)")
    db.close()
    with SqliteGallery(tmp_path / "g.db") as gallery:
        with refuses(GalleryError):
            gallery.search("v1", np.eye(2)[:1])
        check_wording(verify_gallery(gallery)[0])


def test_a_damaged_log_is_told(tmp_path: Path) -> None:
    gallery = SqliteGallery(tmp_path / "g.db")
    gallery.create_version("v1", 2)
    for number in range(5):
        gallery.upsert("v1", [str(number)], np.eye(2)[:1])
    assert verify_gallery(gallery) == []
    for file in ("g.db", "g.db-wal"):
        (tmp_path / f"copy-{file}").write_bytes((tmp_path / file).read_bytes())
    gallery.close()
    kept, log = ((tmp_path / f"copy-{file}").read_bytes() for file in ("g.db", "g.db-wal"))

    def opened(log: bytes) -> int:
        for ending in ("-wal", "-shm"):
            (tmp_path / f"copy.db{ending}").unlink(missing_ok=True)
        (tmp_path / "copy.db").write_bytes(kept)
        (tmp_path / "copy.db-wal").write_bytes(log)
        with SqliteGallery(tmp_path / "copy.db") as again:
            return again.count().get("v1", 0)

    assert opened(log) == 5
    assert opened(log[:-100]) == 4  # as a kill within the last write leaves it
    for place in (len(log) - 100, len(log) - 40_000):  # as a power cut within it does
        assert opened(log[:place] + bytes(50) + b"\1" + log[place + 51 :]) == 4
    for place in (9, 20, 30, 40, 50, len(log) // 2):
        damaged = log[:place] + bytes([log[place] ^ 1]) + log[place + 1 :]
        with refuses(GalleryUnavailableError, varies=r"[\d,]+(?= bytes)") as caught:
            opened(damaged)
        readable = re.search(r"after its first ([\d,]+) bytes", str(caught.value))
        assert readable is not None
        cut = damaged[: int(readable[1].replace(",", ""))]
        assert opened(cut) <= 4


def test_the_checksum_of_a_log_is_that_of_slow_code() -> None:
    words = np.random.default_rng(0).integers(2**32, size=40, dtype=np.uint64).tolist()
    first, second = 5, 2**32 - 3
    for one, two in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) % 2**32
        second = (second + two + first) % 2**32
    for order in "<>":
        assert _log_sum(struct.pack(f"{order}40I", *words), order, 5, 2**32 - 3) == (first, second)


def test_storing_an_image_again_repairs_its_damaged_copy(tmp_path: Path) -> None:
    with shop(tmp_path / "shop", versions=1) as space:
        kept = space.images.keep(picture(1))
        file = space.path / str(kept["image"])
        file.write_bytes(b"damaged")
        assert [str(file) in problem for problem in verify_workspace(space.path)] == [True]
        assert space.images.keep(picture(1)) == kept
        assert file.read_bytes() == picture(1)
        assert list(verify_workspace(space.path)) == []


@pytest.mark.parametrize(
    "name", ["../secret.png", "images/../../secret.png", "images/aa/../../../secret.png", "secret"]
)
def test_a_payload_cannot_name_a_file_outside_of_the_kept_images(tmp_path: Path, name: str) -> None:
    with shop(tmp_path / "shop", versions=1) as space:
        (tmp_path / "secret.png").write_bytes(picture(1))
        (space.path / "secret").write_bytes(picture(1))
        space.index([CatalogueItem("a", picture(1), {"image": name})])
        (item,) = space.gallery.iterate()
        assert space.images.find(item) is None


def test_imported_payloads_name_images_only_where_that_is_trusted(tmp_path: Path) -> None:
    path = indexed_shop(tmp_path)
    assert typed("gallery", "export", "v1", tmp_path / "v1.npz", "-w", path).code == 0
    for name, words, images in (("plain", [], 0), ("trusted", ["--trust-images"], 9)):
        done = typed(
            "gallery",
            "import",
            tmp_path / "v1.npz",
            "--as",
            name,
            "--take-over",
            "-w",
            path,
            *words,
        )
        assert done.code == 0, done.err
        with Workspace(path, device="cpu") as space:
            assert (
                sum(space.images.find(item) is not None for item in space.gallery.iterate(name))
                == images
            )
            assert all("label" in item.payload for item in space.gallery.iterate(name))


def test_a_header_that_claims_more_than_there_is_makes_no_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header: dict[str, Any] = {"descr": "<f4", "fortran_order": False, "shape": (10**12, 8)}
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(64))
    monkeypatch.setattr(
        "fixstar.gallery.vector_files.VectorFile._read_ids", lambda _: pytest.fail("ids were made")
    )
    with refuses(DataError):
        import_version(MemoryGallery(), "x", tmp_path / "a.npy")


def test_a_card_cannot_ask_for_a_huge_image(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="up to 16,777,216 pixels"):
        Preprocessing(size=(100_000, 100_000), mean=(0, 0, 0), std=(1, 1, 1))
    with shop(tmp_path / "shop", versions=1) as space:
        card = space.path / "versions" / "v1" / "card.json"
        rewrite(card, lambda content: content["preprocessing"].update(size=[100_000, 100_000]))
        with pytest.raises(ModelError, match="up to 16,777,216 pixels"):
            space.encoder("v1")


def test_a_damaged_mark_shows_no_path(tmp_path: Path) -> None:
    with shop(tmp_path / "shop", versions=1) as space, client(space) as http:
        space.index(catalogue(pictures(tmp_path / "photos", 1)))
        (space.path / "workspace.json").write_text("{")
        told = http.get("/v1/status")
        assert (told.status_code, str(tmp_path) in told.text) == (500, False)


def test_what_a_killed_retire_left_behind_is_not_damage(tmp_path: Path) -> None:
    with shop(tmp_path / "shop", versions=3) as space:
        space.retire("v2")
        (tmp_path / "shop" / "versions" / "v2").mkdir()
        assert list(verify_workspace(space.path)) == []
        space.retire("v2")
        assert not (tmp_path / "shop" / "versions" / "v2").exists()
