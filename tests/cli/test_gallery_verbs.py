"""index, search, and what fixstar gallery does with the stored vectors."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from shops import pictures, shop
from typed import typed
from wording import check_wording

from fixstar.gallery import open_gallery
from fixstar.models import Encoder
from fixstar.service.jobs import Job, JobFiles
from fixstar.workspace import Check, Workspace, catalogue
from fixstar.workspace.checks import save_check
from fixstar.workspace.files import gallery_url


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with "photos", "empty" (a workspace with two versions), and "shop", where the photos are indexed."""
    folder = tmp_path_factory.mktemp("gallery-verbs")
    pictures(folder / "photos")
    shop(folder / "empty").close()
    shutil.copytree(folder / "empty", folder / "shop")
    with Workspace(folder / "shop", device="cpu") as space:
        space.index(catalogue(folder / "photos"))
    return folder


@pytest.fixture
def photos(ready: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ready / "photos", tmp_path / "photos"))


@pytest.fixture
def empty(ready: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ready / "empty", tmp_path / "empty"))


@pytest.fixture
def full(ready: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ready / "shop", tmp_path / "shop"))


def ids(path: Path) -> list[str]:
    with open_gallery(gallery_url(path), create=False) as gallery:
        return [item.id for item in gallery.iterate()]


class TestIndex:
    def test_a_folder_then_only_what_changed_then_all_of_it_again(
        self, empty: Path, photos: Path
    ) -> None:
        first = typed("index", photos, "-w", empty)
        assert first.code == 0, first.err
        check_wording(first.out)
        assert f"fixstar search IMAGE -w {empty}" in first.out
        Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(photos / "bag" / "0.png")
        changed = typed("index", photos, "-w", empty, "--json")
        counts = {
            "added": 1,
            "changed": 1,
            "replaced": 0,
            "unchanged": 8,
            "updated": 0,
            "deleted": 0,
            "items": 9,
        }
        assert changed.json == {"version": "v1", **counts, "bad": []}
        assert typed("index", photos, "-w", empty, "--again", "--json").json["added"] == 9
        assert len(ids(empty)) == 9

    def test_other_images_under_known_ids_are_replaced_only_with_consent(
        self, empty: Path, photos: Path, tmp_path: Path
    ) -> None:
        typed("index", photos, "-w", empty)
        other = tmp_path / "other" / "hat"
        other.mkdir(parents=True)
        for name, source in (("1.png", "bag/0.png"), ("new.png", "bag/1.png")):
            (other / name).write_bytes((photos / source).read_bytes())
        refused = typed("index", other.parent, "-w", empty)
        assert (refused.code, refused.out) == (1, "")
        check_wording(refused.err)
        assert f"hat/1.png: {photos / 'hat/1.png'} would become {other / '1.png'}" in refused.err
        assert len(ids(empty)) == 9
        done = typed("index", other.parent, "-w", empty, "--replace")
        check_wording(done.out)
        shutil.move(
            other.parent, tmp_path / "moved"
        )  # the same files elsewhere are no other images
        moved = typed("index", tmp_path / "moved", "-w", empty, "--json").json
        assert (moved["changed"], moved["replaced"]) == (2, 0)

    def test_sync_lists_what_is_gone_and_deletes_it(self, empty: Path, photos: Path) -> None:
        typed("index", photos, "-w", empty)
        typed("index", photos / "hat", "-w", empty, "--prefix", "hats/")
        (photos / "hat" / "1.png").unlink()
        asked = typed("index", photos, "-w", empty, "--sync")
        assert (asked.code, len(ids(empty))) == (1, 12)
        assert "No longer in" in asked.err
        assert "  hat/1.png\n" in asked.err
        assert "Delete 1 item? Confirm with --yes" in asked.err
        done = typed("index", photos, "-w", empty, "--sync", "--yes", "--json").json
        assert (done["deleted"], done["items"]) == (1, 11)
        assert "hat/1.png" not in ids(empty)
        assert "hats/1.png" in ids(empty)  # of another prefix
        assert (
            "compares a folder"
            in typed("index", photos / "bag" / "0.png", "-w", empty, "--sync").err
        )

    def test_links_hidden_files_and_labels_are_treated_as_in_training(
        self, empty: Path, photos: Path
    ) -> None:
        more = photos.parent / "more"
        for folder, source in (("2024/shoes", "shoe"), ("2025/hats", "hat")):
            shutil.copytree(photos / source, more / folder)
        (more / ".thumbs").mkdir()
        shutil.copy(photos / "bag" / "0.png", more / ".thumbs")
        (more / "bags").symlink_to(photos / "bag")
        (more / "up").symlink_to("..")
        (more / "bags" / "gone.png").symlink_to("nowhere.png")
        done = typed("index", more, "-w", empty)
        assert "9 new, 1 unreadable" in done.out
        assert "left out bags/gone.png: no such file" in done.err
        assert "The top folder is taken as the label" in done.err
        again = typed("index", more, "-w", empty, "--label", "parent")
        check_wording(again.out)
        again = typed("index", more, "-w", empty, "--label", "parent", "--json")
        assert (again.json["unchanged"], again.json["updated"], again.err.count("warning")) == (
            9,
            0,
            0,
        )
        with Workspace(empty) as space:
            assert {item.payload["label"] for item in space.gallery.iterate()} == {
                "bags",
                "hats",
                "shoes",
            }

    def test_a_list_with_ids_and_payloads(self, empty: Path, photos: Path) -> None:
        (photos / "list.csv").write_text("path,id,price\nhat/0.png,h0,12\nbag/1.png,,\n")
        assert (
            typed("index", photos / "list.csv", "-w", empty, "--prefix", "paris/", "--json").json[
                "added"
            ]
            == 2
        )
        with open_gallery(gallery_url(empty), create=False) as gallery:
            found = {item.id: dict(item.payload) for item in gallery.iterate()}
        assert set(found) == {"paris/h0", "paris/bag/1.png"}
        assert found["paris/h0"]["price"] == 12
        assert "price" not in found["paris/bag/1.png"]

    def test_one_image_and_a_labelled_dataset_of_pixels(
        self, empty: Path, photos: Path, tmp_path: Path
    ) -> None:
        assert typed("index", photos / "hat" / "1.png", "-w", empty, "--json").json["added"] == 1
        rows = np.random.default_rng(0).integers(0, 256, (2, 3074)).astype(np.uint8)
        rows[:, 0], rows[:, 1] = [0, 1], [0, 1]  # two labels, coarse and fine
        (tmp_path / "cifar").mkdir()
        for part in ("train", "test"):
            (tmp_path / "cifar" / f"{part}.bin").write_bytes(rows.tobytes())
        for name, count in (("coarse", 20), ("fine", 100)):
            (tmp_path / "cifar" / f"{name}_label_names.txt").write_text(
                "".join(f"{name}{i}\n" for i in range(count))
            )
        done = typed(
            "index", tmp_path / "cifar", "-w", empty, "--labelled", "--prefix", "c/", "--json"
        )
        assert done.code == 0, done.err
        assert done.json["added"] == 2
        assert ids(empty) == ["1.png", "c/0", "c/1"]
        assert (
            len(list((empty / "images").rglob("*.png"))) == 2
        )  # kept, so that a backfill finds them
        again = typed(
            "index", tmp_path / "cifar", "-w", empty, "--labelled", "--prefix", "c/", "--json"
        )
        assert (again.json["added"], again.json["unchanged"]) == (0, 2)

    def test_a_bad_image_is_told_and_the_others_are_there(self, empty: Path, photos: Path) -> None:
        (photos / "hat" / "torn.png").write_bytes(b"no image")
        done = typed("index", photos, "-w", empty, "--json")
        assert done.code == 0
        assert [image["id"] for image in done.json["bad"]] == ["hat/torn.png"]
        assert "left out hat/torn.png: " in done.err
        assert len(ids(empty)) == 9

    def test_what_cannot_be_indexed(self, empty: Path, photos: Path, tmp_path: Path) -> None:
        (tmp_path / "nothing").mkdir()
        (tmp_path / "text.txt").write_text("words")
        (tmp_path / "nothing.bin").write_text("words")
        refusals: list[tuple[list[str | Path], str]] = [
            (["index", tmp_path / "nothing", "-w", empty], "holds no image"),
            (["index", tmp_path / "absent", "-w", empty], "absent does not exist"),
            (["index", tmp_path / "absent.csv", "-w", empty], "absent.csv does not exist"),
            (["index", tmp_path / "absent.png", "-w", empty], "absent.png does not exist"),
            (["index", tmp_path / "text.txt", "-w", empty], "text.txt holds texts"),
            (["index", tmp_path / "nothing.bin", "-w", empty], "an image (.avif"),
            (["index", photos, "-w", tmp_path], "is not a workspace"),
        ]
        for words, message in refusals:
            refused = typed(*words)
            assert refused.code == 1, words
            assert message in refused.err
            assert refused.err.startswith("fixstar: ")
            assert refused.out == ""
        typed("init", tmp_path / "fresh")
        (tmp_path / "torn.png").write_bytes(b"no image")
        torn = typed("index", tmp_path / "torn.png", "-w", empty)
        assert torn.code == 1
        assert "left out torn.png" in torn.err
        untrained = typed("index", photos, "-w", tmp_path / "fresh")
        assert (untrained.code, untrained.out) == (1, "")
        assert "fixstar train" in untrained.err


class TestSearch:
    def test_an_image_finds_itself(self, full: Path, photos: Path) -> None:
        shown = typed("search", photos / "hat" / "1.png", "-k", "3", "-w", full)
        assert shown.code == 0, shown.err
        lines = shown.out.splitlines()
        assert "(query by v1)" in lines[0]
        assert lines[2].split() == ["1", "1.000", "hat/1.png", "hat", "v1"]
        assert len(lines) == 5
        two = typed(
            "search",
            photos / "hat" / "1.png",
            photos / "bag" / "0.png",
            "-k",
            "2",
            "-w",
            full,
            "--json",
        ).json
        assert two["version"] == "v1"
        assert [query["hits"][0]["id"] for query in two["queries"]] == ["hat/1.png", "bag/0.png"]
        assert two["queries"][0]["hits"][0]["payload"]["label"] == "hat"
        assert two["left_out"] == []

    def test_hits_of_two_versions_come_with_a_relative_score_or_raw(
        self, full: Path, photos: Path
    ) -> None:
        with Workspace(full, device="cpu") as space:
            space.deploy("v2", force="test")
            space.index(list(catalogue(photos))[:4], again=True)
        image = photos / "hat" / "1.png"
        before = typed("search", image, "-w", full, "--json").json
        assert before["calibrated"] is False
        steep = {"v1": (5.0, -4.0), "v2": (5.0, -4.0)}
        save_check(full, Check("v2", "pass", (), (), 0.5, 100, 100, 0.95, 0.0, calibrations=steep))
        found = typed("search", image, "-w", full, "--json").json
        assert found["calibrated"] is True
        for hit, raw in zip(found["queries"][0]["hits"], before["queries"][0]["hits"], strict=True):
            assert hit["id"] == raw["id"]  # one curve for both versions changes no order
            assert hit["score"] == pytest.approx(1 / (1 + np.exp(4 - 5 * raw["score"])))
        assert typed("search", image, "-w", full, "--raw", "--json").json == before
        shown = typed("search", image, "-w", full).out
        assert "relative score" in shown.splitlines()[1]
        assert "if the gallery holds that class" in shown
        assert (
            "relative score"
            not in typed("search", image, "--where", "label=cat", "-w", full).out.lower()
        )
        assert typed("search", image, "-w", full, "--raw").out.splitlines()[1].split()[0] == "score"

    def test_a_stored_item_where_the_payload_says_so(self, full: Path) -> None:
        found = typed(
            "search", "--like", "hat/1.png", "--where", "label=bag", "-k", "9", "-w", full, "--json"
        ).json
        assert sorted(hit["id"] for hit in found["queries"][0]["hits"]) == [
            "bag/0.png",
            "bag/1.png",
            "bag/2.png",
        ]
        either = 'label={"in": ["hat", "shoe"]}'
        found = typed(
            "search", "--like", "hat/1.png", "--where", either, "-k", "9", "-w", full, "--json"
        ).json
        assert len(found["queries"][0]["hits"]) == 5  # without itself
        none = typed("search", "--like", "hat/1.png", "--where", "label=cat", "-w", full)
        assert (none.code, none.out.strip()) == (0, "hat/1.png: nothing found")
        assert "field" not in none.err
        mistyped = typed("search", "--like", "hat/1.png", "--where", "lable=hat", "-w", full)
        check_wording(mistyped.err)
        approximate = typed("search", "--like", "hat/1.png", "--approximate", "-k", "1", "-w", full)
        assert approximate.code == 0

    def test_names_with_brackets_are_shown_as_they_are(self, empty: Path, photos: Path) -> None:
        (photos / "hat" / "0.png").rename(photos / "hat" / "[red].png")
        typed("index", photos, "-w", empty)
        shown = typed("search", photos / "hat" / "[red].png", "-k", "1", "-w", empty).out
        assert shown.count("[red].png") == 2

    def test_a_contact_sheet(self, full: Path, photos: Path, tmp_path: Path) -> None:
        (photos / "shoe" / "0.png").unlink()
        drawn = typed(
            "search",
            photos / "hat" / "1.png",
            "-w",
            full,
            "--sheet",
            tmp_path / "new" / "found.png",
        )
        assert f"Picture: {tmp_path / 'new' / 'found.png'}" in drawn.out
        assert Image.open(tmp_path / "new" / "found.png").format == "PNG"
        like = typed(
            "search", "--like", "hat/1.png", "-w", full, "--sheet", tmp_path / "like.png", "--json"
        )
        assert like.json["queries"][0]["query"] == "hat/1.png"
        assert Image.open(tmp_path / "like.png").format == "PNG"

    def test_what_cannot_be_searched(self, full: Path, photos: Path, tmp_path: Path) -> None:
        image = photos / "hat" / "1.png"
        (tmp_path / "torn.png").write_bytes(b"no image")
        for words, message in (
            ([], "images or texts, or --like ID"),
            ([image, "--like", "hat/1.png"], "images or texts, or --like ID"),
            (["--like", "hat/99.png"], "no item 'hat/99.png'"),
            ([tmp_path / "torn.png"], "torn.png"),
            ([tmp_path / "absent.png"], "absent.png"),
            ([image, "--where", "label"], "FIELD=VALUE"),
            ([image, "--where", 'label={"near": 3}'], "near"),
            ([image, "-k", "0"], "at least 1"),
            ([image, "--sheet", tmp_path / "found.jpg"], "a .png file"),
        ):
            refused = typed("search", *words, "-w", full)
            assert (refused.code, refused.out) == (1, ""), words
            assert message in refused.err
            assert "Traceback" not in refused.err


class TestGallery:
    def test_stats_and_verify(self, full: Path, tmp_path: Path) -> None:
        shown = typed("gallery", "stats", "-w", full)
        assert "9 items" in shown.out
        assert "v1: 9 vectors" in shown.out
        counted = typed("gallery", "stats", "-w", full, "--json").json
        assert (counted["items"], counted["versions"][0]["version"]) == (9, "v1")
        assert typed("gallery", "stats", "--gallery", full / "gallery.db", "--json").json == counted
        sound = typed("gallery", "verify", "-w", full)
        assert (sound.code, sound.out) == (0, "9 items, no problems\n")
        with closing(sqlite3.connect(full / "gallery.db")) as file, file:
            file.execute(
                "UPDATE items SET vector = zeroblob(length(vector)) WHERE id = 'hat/1.png'"
            )
        wrong = typed("gallery", "verify", "-w", full, "--json")
        assert (wrong.code, wrong.json["items"], len(wrong.json["problems"])) == (1, 9, 1)
        assert "'hat/1.png' of version 'v1'" in typed("gallery", "verify", "-w", full).out
        os.truncate(full / "gallery.db", (full / "gallery.db").stat().st_size // 2)
        broken = typed("gallery", "verify", "-w", full)
        assert broken.code == 1
        assert "Traceback" not in broken.err
        absent = typed("gallery", "stats", "--gallery", tmp_path / "absent.db")
        assert (absent.code, absent.out) == (1, "")
        assert not (tmp_path / "absent.db").exists()

    def test_looking_does_not_make_a_gallery_beside_a_wrong_path(self, tmp_path: Path) -> None:
        refused = typed("gallery", "stats", "-w", tmp_path)
        assert (refused.code, list(tmp_path.iterdir())) == (1, [])
        check_wording(refused.err)

    @pytest.mark.parametrize("suffix", ["npz", "parquet"])
    def test_out_to_a_file_and_in_again_under_another_name(
        self, full: Path, tmp_path: Path, suffix: str
    ) -> None:
        file = tmp_path / f"v1.{suffix}"
        out = typed("gallery", "export", "v1", file, "-w", full, "--json")
        assert out.json == {"version": "v1", "items": 9, "file": str(file)}
        other = tmp_path / "other.db"
        open_gallery(other).close()
        into = typed(
            "gallery", "import", file, "--as", "old-system", "--gallery", other, "--trust-images"
        )
        assert (into.code, into.out) == (0, "9 items stored as version old-system\n")
        with open_gallery(other) as there, open_gallery(full / "gallery.db") as here:
            old = {item.id: item for item in here.iterate()}
            for item in there.iterate():
                assert item.version == "old-system"
                assert np.array_equal(item.vector, old[item.id].vector)
                assert dict(item.payload) == dict(old[item.id].payload)

    @pytest.mark.parametrize("name", ["a b/c", "old system", "../old"])
    def test_a_name_that_cannot_be_typed_is_refused(
        self, full: Path, tmp_path: Path, name: str
    ) -> None:
        np.savez(tmp_path / "old.npz", vectors=np.eye(3), ids=np.array(["x", "y", "z"]))
        before = typed("gallery", "stats", "-w", full, "--json").json
        for option, place in (("-w", full), ("--gallery", full / "gallery.db")):
            refused = typed("gallery", "import", tmp_path / "old.npz", "--as", name, option, place)
            assert refused.code == 1
            assert (
                f"cannot be called {name!r}: a name has letters, digits and . _ - + : @ only"
                in refused.err
            )
        assert typed("gallery", "stats", "-w", full, "--json").json == before

    def test_files_that_cannot_come_in_or_go_out(self, full: Path, tmp_path: Path) -> None:
        (tmp_path / "torn.npz").write_bytes(b"PK no archive")
        refusals: list[tuple[list[str | Path], str]] = [
            (["export", "v9", tmp_path / "v9.npz"], "no version 'v9' (it has: v1)\n"),
            (["export", "v1", tmp_path / "v1.txt"], "v1.txt"),
            (["import", tmp_path / "absent.npz", "--as", "old"], "absent.npz"),
            (["import", tmp_path / "torn.npz", "--as", "old"], "torn.npz"),
            (["import", tmp_path / "absent.parquet", "--as", "old"], "absent.parquet"),
        ]
        for words, message in refusals:
            refused = typed("gallery", *words, "-w", full)
            assert (refused.code, refused.out) == (1, ""), words
            assert message in refused.err
        assert typed("gallery", "stats", "-w", full, "--json").json["items"] == 9

    def test_columns_of_other_names(self, full: Path, tmp_path: Path) -> None:
        parquet = pytest.importorskip("pyarrow.parquet")
        arrow = pytest.importorskip("pyarrow")
        table = arrow.table(
            {"sku": ["a", "b"], "embedding": [[1.0, 0.0], [0.0, 2.0]], "price": [3, 4]}
        )
        parquet.write_table(table, tmp_path / "clip.parquet")
        words: list[str | Path] = [
            "gallery",
            "import",
            tmp_path / "clip.parquet",
            "--as",
            "clip",
            "-w",
            full,
        ]
        for options, told in (
            ([], "--id-column "),
            (["--id-column", "sku"], "--vector-column "),
            (["--id-column", "price", "--vector-column", "clip"], "no column 'clip'"),
        ):
            refused = typed(*words, *options)
            assert (refused.code, refused.out) == (1, ""), options
            assert told in refused.err
        assert (
            typed(*words, "--id-column", "sku", "--vector-column", "embedding", "--json").json[
                "items"
            ]
            == 2
        )
        with open_gallery(full / "gallery.db") as gallery:
            assert {item.id: dict(item.payload) for item in gallery.iterate("clip")} == {
                "a": {"price": 3},
                "b": {"price": 4},
            }
        typed("gallery", "export", "clip", tmp_path / "clip.npz", "-w", full)
        other = typed(
            "gallery",
            "import",
            tmp_path / "clip.npz",
            "--as",
            "clip",
            "-w",
            full,
            "--id-column",
            "sku",
        )
        assert (other.code, other.out) == (1, "")
        assert "has no columns" in other.err

    def test_only_its_own_exports_come_back_under_names_that_a_workspace_gives(
        self, full: Path, photos: Path, tmp_path: Path
    ) -> None:
        """Where there is no projection to compare, vectors of any model would pass as v1's."""
        path = tmp_path / "linear"
        with Workspace.create(path, device="cpu") as space:
            encoder = Encoder.create("tiny", classes=["bag", "hat"], classifier="linear")
            encoder.save(path / "versions" / "v1")
            space.index(catalogue(photos))
            (one,) = space.gallery.versions()
            space.gallery.create_version("old@v1", one.width)
            space.gallery.upsert("old@v1", ["x"], np.eye(1, one.width, dtype=np.float32))
        strangers = np.random.default_rng(0).standard_normal((3, one.width)).astype(np.float32)
        np.save(tmp_path / "strangers.npy", strangers)
        np.savez(tmp_path / "strangers.npz", vectors=strangers)
        typed(
            "gallery", "export", "v1", tmp_path / "shop.npz", "-w", full
        )  # v1 of another workspace
        typed("gallery", "export", "v1", tmp_path / "bare.npz", "--gallery", path / "gallery.db")
        for version, name in (("v1", "v1.npz"), ("v1", "v1.parquet"), ("old@v1", "old.npz")):
            assert typed("gallery", "export", version, tmp_path / name, "-w", path).code == 0
        before = typed("gallery", "stats", "-w", path, "--json").json
        for file, name, told in (
            ("strangers.npy", "v1", "does not say that it holds v1 of this workspace"),
            ("strangers.npz", "v1", "does not say"),
            ("strangers.npz", "v2", "does not say"),  # the next version's name
            ("bare.npz", "v1", "does not say"),
            ("shop.npz", "v1", "holds v1 of another workspace"),
            ("old.npz", "v1", "does not say"),
            ("v1.npz", "v2", "v1.npz holds v1"),
        ):
            refused = typed("gallery", "import", tmp_path / file, "--as", name, "-w", path)
            assert (refused.code, refused.out) == (1, ""), (file, name)
            assert told in refused.err
            assert "--as old-system" in refused.err
        assert typed("gallery", "stats", "-w", path, "--json").json == before
        with open_gallery(path / "gallery.db") as gallery:
            gallery.delete([item.id for item in gallery.iterate()])
        for file, name, count in (
            ("v1.npz", "v1", 9),
            ("v1.parquet", "v1", 9),
            ("old.npz", "old@v1", 1),
        ):
            back = typed("gallery", "import", tmp_path / file, "--as", name, "-w", path, "--json")
            assert (back.code, back.json) == (0, {"version": name, "items": count})
        for name in ("v1-of-them", "v", "old", "V1", "old@v1"):
            taken = typed(
                "gallery",
                "import",
                tmp_path / "strangers.npy",
                "--as",
                name,
                "-w",
                path,
                "--take-over",
            )
            assert taken.code == 0, name
        bare = tmp_path / "bare.db"
        open_gallery(bare).close()
        assert (
            typed(
                "gallery", "import", tmp_path / "strangers.npy", "--as", "v1", "--gallery", bare
            ).code
            == 0
        )

    def test_an_import_takes_no_items_from_other_versions_unless_told_to(
        self, full: Path, tmp_path: Path
    ) -> None:
        typed("gallery", "export", "v1", tmp_path / "v1.npz", "-w", full)
        refused = typed("gallery", "import", tmp_path / "v1.npz", "--as", "old-system", "-w", full)
        assert refused.code == 1
        listed = re.search(
            r"hold 9 ids of these \(9 of v1\): (.*) and 4 more\. An item", refused.err
        )
        assert listed is not None
        named = [name.strip("'") for name in listed[1].split(", ")]
        assert len(named) == 5
        assert set(named) <= set(ids(full))
        assert [
            row["items"] for row in typed("gallery", "stats", "-w", full, "--json").json["versions"]
        ] == [9]
        taken = typed(
            "gallery",
            "import",
            tmp_path / "v1.npz",
            "--as",
            "old-system",
            "-w",
            full,
            "--take-over",
        )
        assert taken.code == 0
        rows = typed("gallery", "stats", "-w", full, "--json").json["versions"]
        assert {row["version"]: row["items"] for row in rows} == {"v1": 0, "old-system": 9}

    def test_a_refused_import_suggests_commands_that_keep_the_options(
        self, full: Path, tmp_path: Path
    ) -> None:
        parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
        file, taken = tmp_path / "clip.parquet", ids(full)
        parquet.write_table(
            arrow.table({"sku": taken[:1], "vector": [[1.0, 0.0]], "image": ["a.png"]}), file
        )
        given = ["--gallery", str(full / "gallery.db"), "--id-column", "sku", "--trust-images"]
        refused = typed("gallery", "import", file, "--as", "clip", *given)
        assert refused.code == 1
        assert f"hold 1 id of these (1 of v1): {taken[0]!r}. An item" in refused.err
        for option in (["--prefix", "PREFIX"], ["--take-over"]):  # both work as they are printed
            (line,) = (line for line in refused.err.splitlines() if option[0] in line)
            program, *words = shlex.split(line.removeprefix("Next: ").partition("   # ")[0])
            assert program == "fixstar"
            assert set(given) | set(option) <= set(words)
            assert typed(*words, "--json").json == {"version": "clip", "items": 1}
        assert sorted(ids(full)) == sorted([*taken, f"PREFIX{taken[0]}"])
        with open_gallery(full / "gallery.db") as gallery:
            assert [item.payload for item in gallery.iterate("clip")] == [{"image": "a.png"}] * 2
        column = typed(
            "gallery", "import", file, "--as", "clip", *given[:2], "--vector-column", "vector"
        )
        assert (
            f"import {file} --gallery {given[1]} --vector-column vector --id-column ID_COLUMN --as clip"
            in column.err
        )

    def test_rows_without_ids_of_two_files_do_not_meet(self, full: Path, tmp_path: Path) -> None:
        for name in ("one", "two"):
            np.save(tmp_path / f"{name}.npy", np.eye(3, 5))
            assert (
                typed("gallery", "import", tmp_path / f"{name}.npy", "--as", name, "-w", full).code
                == 0
            )
        assert {"one/0", "one/2", "two/0"} <= set(ids(full))

    def test_an_export_of_a_retired_version_comes_back(self, full: Path, tmp_path: Path) -> None:
        typed("gallery", "export", "v1", tmp_path / "v1.npz", "-w", full)
        (full / "retired").mkdir()
        (full / "versions" / "v1" / "card.json").rename(full / "retired" / "v1.json")
        shutil.rmtree(full / "versions" / "v1")
        assert typed("gallery", "import", tmp_path / "v1.npz", "--as", "v1", "-w", full).code == 0

    def test_a_gallery_moves_and_the_workspace_follows(
        self, full: Path, photos: Path, tmp_path: Path
    ) -> None:
        target = tmp_path / "elsewhere" / "vectors.db"
        target.parent.mkdir()
        moved = typed("gallery", "move", target, "-w", full)
        assert moved.code == 0, moved.err
        assert f"9 items copied to {target}; the workspace now uses it" in moved.out
        (full / "gallery.db").unlink()
        found = typed("search", photos / "hat" / "1.png", "-k", "1", "-w", full, "--json").json
        assert found["queries"][0]["hits"][0]["id"] == "hat/1.png"
        for same in (target, tmp_path / "elsewhere" / ".." / "elsewhere" / "vectors.db"):
            again = typed("gallery", "move", same, "-w", full)
            assert (again.code, again.out) == (1, "")
            assert "already" in again.err
        nowhere = typed("gallery", "move", tmp_path / "no" / "folder" / "vectors.db", "-w", full)
        assert (nowhere.code, nowhere.out) == (1, "")

    def test_a_move_onto_other_vectors_switches_nothing(self, full: Path, tmp_path: Path) -> None:
        with open_gallery(tmp_path / "other.db") as other:
            other.create_version("else", 2)
            other.upsert("else", ["x"], np.array([[1.0, 0.0]]))
        refused = typed("gallery", "move", tmp_path / "other.db", "-w", full)
        assert refused.code == 1
        assert "still uses the old gallery" in refused.err
        assert typed("gallery", "stats", "-w", full, "--json").json["items"] == 9

    def test_an_index_is_made_where_there_is_something_to_index(self, full: Path) -> None:
        made = typed("gallery", "build-index", "-w", full)
        assert made.code == 0, made.err
        assert "v1: " in made.out
        assert "over 9 vectors" in made.out
        shown = typed("gallery", "build-index", "--version", "v1", "-w", full, "--json").json
        assert [state["version"] for state in shown] == ["v1"]
        assert "over 9" in typed("gallery", "stats", "-w", full).out
        assert typed("gallery", "build-index", "--version", "v7", "-w", full).code == 1


def test_help_of_every_verb_shows_an_example() -> None:
    for words in (
        ["index"],
        ["search"],
        ["gallery", "export"],
        ["gallery", "move"],
        ["gallery", "use"],
    ):
        assert f"fixstar {' '.join(words)}" in typed(*words, "--help").out.replace("\n", " "), words


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"path,id\nhat/0.png,x\nbag/1.png,x\n", "line 3: duplicate id 'x' (first used on line 2)"),
        (b"id,path\nx,hat/0.png\ny\n", "line 3: no path"),
        (b"path,image\nhat/0.png,front\n", "the column image is reserved"),
        (b"path,label\nhat/0.png,caf\xe9\n", "is not UTF-8"),
    ],
)
def test_a_list_that_cannot_be_meant_so_is_refused_whole(
    empty: Path, photos: Path, content: bytes, told: str
) -> None:
    (photos / "list.csv").write_bytes(content)
    refused = typed("index", photos / "list.csv", "-w", empty)
    assert refused.code == 1
    assert told in refused.err
    assert typed("gallery", "stats", "-w", empty, "--json").json["items"] == 0


def test_images_that_neither_an_item_nor_a_waiting_job_needs_are_pruned(full: Path) -> None:
    with Workspace(full, device="cpu") as space:
        names = [
            str(space.images.keep(np.full((8, 8, 3), shade, np.uint8))["image"])
            for shade in (1, 2, 3, 4)
        ]
        old = [full / name for name in names[:3]]
        for path in old:
            os.utime(path, (0, 0))
        unit = np.eye(1, space.gallery.versions()[0].width, dtype=np.float32)
        space.gallery.upsert("v1", ["uploaded"], unit, [{"image": names[0]}])
        waiting = Job.new("index", {"items": [{"id": "later", "image": names[1], "payload": {}}]})
        JobFiles(full).save(waiting)
    told = typed("gallery", "prune-images", "-w", full, "--dry-run")
    assert told.code == 0, told.err
    assert "To be deleted: 1 unused image, 0.0 MB" in told.out
    assert all(path.is_file() for path in old)
    assert '"images": 1' in typed("gallery", "prune-images", "-w", full, "--json").out
    assert [path.is_file() for path in old] == [True, True, False]
    assert (full / names[3]).is_file()  # kept a moment ago: its item may be on its way


def test_damaged_items_are_told_and_can_be_deleted(full: Path) -> None:
    first, second, third = ids(full)[:3]
    with closing(sqlite3.connect(full / "gallery.db")) as file, file:
        file.execute("UPDATE items SET payload = 'torn' WHERE id IN (?, ?)", (first, third))
    wrong = typed("gallery", "verify", "-w", full)
    assert wrong.code == 1
    assert [line.split("'")[1] for line in wrong.out.splitlines()] == [first, third]
    done = typed("gallery", "delete", first, "absent", second, third, "-w", full, "--json")
    assert done.json == {"deleted": 3, "items": 6, "unknown": ["absent"]}
    assert typed("gallery", "verify", "-w", full).code == 0


def test_items_are_deleted_by_id_and_by_version(
    full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ids(full)[:2]
    told = typed("gallery", "delete", first, "absent", "-w", full)
    assert told.out == "1 item deleted; the gallery holds 8\nNot in the gallery: absent\n", told.err
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{second}\n\n"))
    assert typed("gallery", "delete", "-", "-w", full, "--json").json == {
        "deleted": 1,
        "items": 7,
        "unknown": [],
    }
    none = typed("gallery", "delete", *(f"nope/{i}" for i in range(30)), "-w", full)
    assert (none.code, none.out.count("nope/"), none.out.endswith("nope/19 and 10 more\n")) == (
        0,
        20,
        True,
    )
    assert typed("gallery", "delete", "x", "y", "x", "-w", full, "--json").json["unknown"] == [
        "x",
        "y",
    ]
    for words, why in (
        (["delete"], "name the items"),
        (["delete", "x", "--version", "v1"], "not both"),
        (["delete", "--version", "v9", "--yes"], "no version 'v9' (it has: v1)\n"),
        (["delete", "--version", "v1"], "Delete all 7 items of v1? Confirm with --yes"),
    ):
        refused = typed("gallery", *words, "-w", full)
        assert refused.code == 1
        assert why in refused.err
    assert len(ids(full)) == 7
    assert (
        typed("gallery", "delete", "--version", "v1", "--yes", "-w", full, "--json").json["deleted"]
        == 7
    )
    assert ids(full) == []
