"""Indexing, searching, deploying and rolling back in one directory."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from shops import passed, pictures, shop
from wording import refuses

from fixstar.data import open_images
from fixstar.errors import (
    FixstarError,
    GalleryError,
    GateError,
    ImageError,
    InputError,
    ModelError,
    UnknownNameError,
)
from fixstar.gallery import import_version
from fixstar.models import Encoder
from fixstar.workspace import Workspace, catalogue, labelled_items
from fixstar.workspace.held_out import keep_held_out, split_off


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return shop(tmp_path / "shop")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return pictures(tmp_path / "photos")


def test_an_indexed_image_is_found_by_itself_with_label_and_version(
    space: Workspace, photos: Path
) -> None:
    with space:
        done = space.index(catalogue(photos))
        assert (done.version, done.added, done.unchanged, done.bad) == ("v1", 9, 0, ())
        answer = space.search([photos / "hat" / "1.png"], k=3)
    (hits,) = answer.hits
    assert answer.version == "v1"
    assert (hits[0].id, hits[0].version, hits[0].payload["label"]) == ("hat/1.png", "v1", "hat")
    assert hits[0].score == pytest.approx(1, abs=1e-5)


def test_indexing_again_embeds_only_what_changed(space: Workspace, photos: Path) -> None:
    with space:
        space.index(catalogue(photos))
        Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(photos / "bag" / "0.png")
        done = space.index(catalogue(photos))
        assert (done.added, done.unchanged) == (1, 8)
        assert space.index(catalogue(photos), again=True).added == 9


def test_an_unreadable_image_is_told_and_the_rest_is_there(space: Workspace, photos: Path) -> None:
    (photos / "hat" / "broken.png").write_bytes(b"no image")
    with space:
        done = space.index(catalogue(photos, prefix="x/"))
        assert [image.name for image in done.bad] == ["x/hat/broken.png"]
        assert space.gallery.count() == {"v1": 9}
        with pytest.raises(ImageError, match=r"broken\.png"):
            space.search([photos / "hat" / "broken.png"])


def test_items_after_a_deployment_are_of_the_new_version_and_all_are_found(
    space: Workspace, photos: Path
) -> None:
    with space:
        space.index(list(catalogue(photos))[:5])
        passed(space, "v2", "v1")
        assert space.deploy("v2").version == "v2"
        assert space.index(catalogue(photos)).added == 4
        assert space.gallery.count() == {"v1": 5, "v2": 4}
        answer = space.search([photos / "bag" / "0.png"], k=9)
        assert answer.version == "v2"
        assert {hit.version for hit in answer.hits[0]} == {"v1", "v2"}
        like = space.like("bag/0.png", k=3)
        assert (like.version, len(like.hits[0])) == ("v1", 3)
        assert "bag/0.png" not in [hit.id for hit in like.hits[0]]


def test_the_gate_stands_before_a_deployment(space: Workspace, photos: Path) -> None:
    with space:
        space.index(catalogue(photos))
        with pytest.raises(GateError, match="v2 was never checked"):
            space.deploy("v2")
        passed(space, "v2")  # against nothing
        with pytest.raises(GateError, match="before vectors of v1"):
            space.deploy("v2")
        with pytest.raises(GateError, match="needs a reason"):
            space.deploy("v2", force=" ")
        assert space.deployed() == "v1"
        assert space.deploy("v2", force="we looked at it").reason == "we looked at it"
        with pytest.raises(InputError, match="deployed already"):
            space.deploy("v2")
        space.deploy("v2", force="ask v1 too", queries="old")
        with pytest.raises(InputError, match="deployed already"):
            space.deploy("v2", force="ask v1 too", queries="old")
        assert len(space.rollout.history()) == 2
        with pytest.raises(UnknownNameError, match="v7"):
            space.deploy("v7", force="x")


def test_a_rollback_leads_back_and_no_further(space: Workspace, photos: Path) -> None:
    with space:
        space.index(catalogue(photos))
        space.deploy("v2", force="test")
        assert space.rollback().version == "v1"
        assert space.search([photos / "bag" / "0.png"]).version == "v1"
        with refuses(InputError):
            space.rollback()


def test_a_damaged_version_is_not_deployed(space: Workspace) -> None:
    weights = space.path / "versions" / "v2" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with space, pytest.raises(ModelError):
        space.deploy("v2", force="test")
    assert space.deployed() == "v1"


def test_eight_threads_search_through_twenty_deployments_and_rollbacks(
    space: Workspace, photos: Path
) -> None:
    """No error, and the version said is the one whose vector was used: it finds the image at cosine 1 under it."""
    image = photos / "hat" / "2.png"
    errors: list[BaseException] = []
    seen: set[str] = set()
    stop = threading.Event()

    def search() -> None:
        while not stop.is_set():
            try:
                answer = space.search([image], k=18)
                own = next(hit for hit in answer.hits[0] if hit.id == f"{answer.version}/hat/2.png")
                assert own.score == pytest.approx(1, abs=1e-5)
                seen.add(answer.version)
            except BaseException as error:
                errors.append(error)
                return

    with space:
        space.index(catalogue(photos, prefix="v1/"))
        space.deploy("v2", force="test")
        space.index(catalogue(photos, prefix="v2/"))
        space.rollback()
        threads = [threading.Thread(target=search) for _ in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            space.deploy("v2", force="test")
            space.rollback()
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors
    assert seen <= {"v1", "v2"}
    assert len(space.rollout.history()) == 42


def test_only_versions_that_nothing_needs_are_retired(tmp_path: Path, photos: Path) -> None:
    with shop(tmp_path / "three", versions=4) as space:
        space.index(catalogue(photos))
        space.deploy("v2", force="test")
        space.deploy("v3", force="test", queries="old")
        for name in (
            "v1",
            "v2",
            "v3",
            "v4",
        ):
            with refuses(InputError):
                space.retire(name)
        space.gallery.delete([item.id for item in space.gallery.iterate()])
        space.retire("v1")
        assert space.versions() == ["v2", "v3", "v4"]
        assert space.registry.retired() == ["v1"]
        assert space.registry.lineage("v4") == ["v1", "v2", "v3", "v4"]
        assert space.registry.next_number() == 5
        with pytest.raises(ModelError, match="retired"):
            space.encoder("v1")


def test_weights_that_no_query_needs_can_go_and_the_vectors_are_still_found(
    tmp_path: Path, photos: Path
) -> None:
    with shop(tmp_path / "three", versions=4) as space:
        space.index(catalogue(photos))
        space.deploy("v2", force="test")
        space.deploy("v3", force="test")
        found = space.search([photos / "bag" / "0.png"], k=9)
        with refuses(InputError, "backfill", "delete-items"):
            space.drop("v1")
        space.retire("v1")
        again = space.search([photos / "bag" / "0.png"], k=9)
        assert (again.hits, again.left_out, again.models) == (found.hits, (), ("v3",))
        space.rollback()
        assert len(space.search([photos / "bag" / "0.png"], k=9).hits[0]) == 9


def test_weights_that_a_rollback_needs_are_not_retired(tmp_path: Path, photos: Path) -> None:
    with shop(tmp_path / "three", versions=4) as space:
        space.index(catalogue(photos))
        import_version(
            space.gallery,
            "moved@v1",
            vectors_of(space, "v1", tmp_path / "moved.npz"),
            take_over=True,
        )
        space.deploy("v2", force="test", queries="old")
        space.deploy("v3", force="test")
        with refuses(InputError, "backfill", "delete-items"):
            space.retire("v1")
        assert space.rollback().version == "v2"
        answer = space.search([photos / "bag" / "0.png"], k=9)
        assert (len(answer.hits[0]), answer.models) == (9, ("v1",))


def vectors_of(space: Workspace, version: str, file: Path) -> Path:
    """A file with all vectors of a version, as another system would hand them over."""
    items = list(space.gallery.iterate(version))
    np.savez(
        file,
        vectors=np.stack([item.vector for item in items]),
        ids=np.array([item.id for item in items]),
    )
    return file


def test_a_version_that_was_half_retired_is_retired_by_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop(tmp_path / "three", versions=3) as space:
        space.deploy("v2", force="test")
        space.deploy("v3", force="test")

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", killed)
            with pytest.raises(KeyboardInterrupt):
                space.retire("v1")
        assert space.registry.directory("v1").is_dir()
        space.retire("v1")
        assert not space.registry.directory("v1").exists()
        with pytest.raises(ModelError, match="retired"):
            space.retire("v1")


def test_status_says_where_everything_stands(space: Workspace, photos: Path) -> None:
    with space:
        space.index(catalogue(photos))
        passed(space, "v2", "v1")
        status = space.status()
    assert (status.deployed, status.previous, status.versions) == ("v1", None, ("v1", "v2"))
    assert status.vectors == {"v1": 9}
    assert status.checks == {"v2": "pass"}
    assert status.training is None


def test_slots_are_exported_and_growth_is_remembered(space: Workspace) -> None:
    manifest = space.registry.manifest()
    assert manifest["by_class"] == {"bag": 0, "hat": 1, "shoe": 2}
    assert (manifest["capacity"], manifest["free"], manifest["added"]) == (8, 5, [])
    assert space.grow(4) == (4,)
    assert Workspace(space.path).grow(6) == (4, 6)
    with refuses(InputError):
        space.grow(1)


def test_a_workspace_may_keep_its_gallery_elsewhere(tmp_path: Path, photos: Path) -> None:
    address = str(tmp_path / "elsewhere.db")
    Workspace.create(tmp_path / "shop", gallery=address)
    with shop(tmp_path / "shop") as space:
        space.index(catalogue(photos))
    assert (tmp_path / "elsewhere.db").is_file()
    assert not (tmp_path / "shop" / "gallery.db").exists()
    with pytest.raises(InputError, match="password"):
        Workspace.create(tmp_path / "other", gallery="postgresql://ann:secret@host/db")


def test_nothing_is_deployed_without_a_version(tmp_path: Path) -> None:
    space = Workspace.create(tmp_path)
    for verb in (space.deployed, space.rollback, lambda: space.search([b""])):
        with pytest.raises(FixstarError, match="no version yet"):
            verb()


def test_queries_do_not_wait_while_another_version_is_read(
    space: Workspace, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    load = space.registry.encoder

    def slow(name: str, device: str) -> Encoder:
        if name == "v2":
            begun.set()
            assert go_on.wait(120)
        return load(name, device)

    monkeypatch.setattr(space.registry, "encoder", slow)
    with space:
        space.index(catalogue(photos))
        deploying = threading.Thread(target=lambda: space.deploy("v2", force="test"))
        deploying.start()
        assert begun.wait(120)
        assert space.search([photos / "bag" / "0.png"]).version == "v1"
        go_on.set()
        deploying.join()
        assert space.deployed() == "v2"


def test_a_gallery_with_vectors_of_another_model_under_the_same_name_is_refused(
    tmp_path: Path, photos: Path
) -> None:
    address = str(tmp_path / "shared.db")
    Workspace.create(tmp_path / "one", gallery=address)
    with shop(tmp_path / "one") as one:
        one.index(catalogue(photos))
    Workspace.create(tmp_path / "two", gallery=address)
    with (
        shop(tmp_path / "two", capacity=9) as two,
        refuses(GalleryError, "init"),
    ):
        two.search([photos / "bag" / "0.png"])


def test_a_moved_folder_and_another_payload_are_noticed(
    space: Workspace, photos: Path, tmp_path: Path
) -> None:
    listed = tmp_path / "items.csv"
    with space:
        listed.write_text(
            f"path,id,price\n{photos / 'bag' / '0.png'},a,7\n{photos / 'hat' / '0.png'},b,007\n"
        )
        assert space.index(catalogue(listed)).added == 2
        before = space.gallery.get(["a", "b"])
        assert (before["a"].payload["price"], before["b"].payload["price"]) == (7, "007")
        listed.write_text(
            f"path,id,price\n{photos / 'bag' / '0.png'},a,8.5\n{photos / 'hat' / '0.png'},b,007\n"
        )
        done = space.index(catalogue(listed))
        after = space.gallery.get(["a", "b"])
        assert (done.added, done.unchanged, after["a"].payload["price"]) == (0, 2, 8.5)
        assert np.array_equal(after["a"].vector, before["a"].vector)
        assert (
            space.search([photos / "bag" / "0.png"], where={"price": {"gt": 8}}).hits[0][0].id
            == "a"
        )
        space.index(catalogue(photos))
        photos.rename(tmp_path / "moved")
        done = space.index(catalogue(tmp_path / "moved"))
        assert (done.added, done.unchanged) == (9, 0)
        assert (
            space.images.find(space.gallery.get(["hat/1.png"])["hat/1.png"])
            == tmp_path / "moved" / "hat" / "1.png"
        )


def test_images_of_one_name_in_deeper_folders_stay_apart(tmp_path: Path) -> None:
    for place in ("shoe/a", "shoe/b", "hat"):
        (tmp_path / "photos" / place).mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "photos" / place / "1.png")
    names = [item.id for item in labelled_items(open_images(tmp_path / "photos", label="top"))]
    assert sorted(names) == ["hat/1.png", "shoe/a/1.png", "shoe/b/1.png"]


def test_what_was_held_out_outlives_its_version(tmp_path: Path) -> None:
    with shop(tmp_path / "three", versions=3) as space:
        images = open_images(pictures(tmp_path / "photos"))
        keep_held_out(space.path, "v1", images, space.encoder("v1").preprocessing)
        space.deploy("v2", force="test")
        space.deploy("v3", force="test")
        space.retire("v1")
        check = space.check("v3", progress=False)
    assert check.data["images"] == len(images)


def test_a_refused_address_leaves_no_workspace_behind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="password"):
        Workspace.create(tmp_path / "shop", gallery="postgresql://ann:secret@host/db")
    assert Workspace.create(tmp_path / "shop", gallery="other.db").versions() == []


def test_a_broken_image_is_never_held_out(tmp_path: Path) -> None:
    """Held out, nobody would read it before training, and nobody would say that it is broken."""
    folder = pictures(tmp_path / "photos", per_class=4)
    for number in range(20):
        (folder / "hat" / f"broken-{number}.png").write_bytes(f"no image {number}".encode())
    shown, _, held = split_off(open_images(folder), 0.5)
    assert held is not None
    assert not [path for path in map(Path, held.images) if path.name.startswith("broken")]
    assert len([path for path in map(Path, shown.images) if path.name.startswith("broken")]) == 20
