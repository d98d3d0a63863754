"""Where a workspace keeps its vectors: fixstar gallery move and use, and what they say about addresses."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from documents import rewrite
from shops import indexed_shop
from typed import typed
from wording import check_wording, refuses

from fixstar.errors import GalleryUnavailableError
from fixstar.gallery import open_gallery
from fixstar.models import Encoder
from fixstar.workspace import Workspace

AWAY = "postgresql:///postgres?host=/nowhere&gallery=shop"


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return indexed_shop(tmp_path_factory.mktemp("gallery-place"))


@pytest.fixture
def full(ready: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ready, tmp_path / "shop"))


def mark(path: Path) -> str:
    return (path / "workspace.json").read_text()


class TestPasswords:
    @pytest.mark.parametrize(
        "secret", ["postgresql://me:geheim@127.0.0.1:1/db", f"{AWAY}&password=geheim"]
    )
    def test_a_workspace_refuses_it_before_anything_is_copied(
        self, full: Path, secret: str
    ) -> None:
        before = mark(full)
        for verb in ("move", "use"):
            refused = typed("gallery", verb, secret, "-w", full)
            assert (refused.code, refused.out) == (1, "")
            assert (
                "~/.pgpass or PGPASSWORD" in refused.err
            )  # the server, which is away, was not asked
            assert "geheim" not in refused.err
        assert mark(full) == before

    def test_one_that_was_written_there_by_hand_is_not_shown(self, full: Path) -> None:
        rewrite(
            full / "workspace.json",
            lambda written: written.update(gallery=f"{AWAY}&password=geheim"),
        )
        for words in (["stats"], ["move", "x.db"], ["use", full / "gallery.db"]):
            told = typed("gallery", *words, "-w", full)
            assert "geheim" not in told.out + told.err


class TestUse:
    def test_what_it_lacks_is_told_first(self, full: Path, tmp_path: Path) -> None:
        assert typed("gallery", "move", tmp_path / "new.db", "-w", full).code == 0
        with open_gallery(tmp_path / "new.db") as gallery:
            gallery.create_version("old-system", 2)
            gallery.upsert("old-system", ["x"], np.array([[1.0, 0.0]]))
        with open_gallery(full / "gallery.db") as gallery:
            gallery.delete(["hat/1.png"])
        before = mark(full)
        asked = typed("gallery", "use", full / "gallery.db", "-w", full)
        assert (asked.code, asked.out, mark(full)) == (1, "", before)
        check_wording(asked.err)
        assert "Confirm with --yes" in asked.err
        done = typed("gallery", "use", full / "gallery.db", "-w", full, "--yes", "--json")
        assert done.code == 0, done.err
        assert (done.json["vectors"], done.json["compared"]) == ({"v1": 8}, True)
        assert len(done.json["differences"]) == 2
        with open_gallery(tmp_path / "new.db") as gallery:
            assert gallery.count() == {"v1": 9, "old-system": 1}

    def test_galleries_that_it_cannot_use(self, full: Path, tmp_path: Path) -> None:
        stranger = Encoder.create("tiny", classes=["bag", "hat", "shoe"], capacity=8)
        projection = stranger.projection_matrix()
        assert projection is not None
        with open_gallery(tmp_path / "stranger.db") as gallery:
            gallery.create_version("v1", min(projection.shape), projection)
        with closing(sqlite3.connect(tmp_path / "other.db")) as file, file:
            file.execute("CREATE TABLE notes (text)")
        before = mark(full)
        for target, told in (
            (tmp_path / "absent.db", "there is no gallery"),
            (tmp_path / "other.db", "of another program"),
            (tmp_path / "stranger.db", "another model under the name 'v1'"),
            (full / "gallery.db", "already"),
            (":memory:", "ends with the command"),
            (AWAY, "cannot connect"),
        ):
            refused = typed("gallery", "use", target, "-w", full)
            assert (refused.code, refused.out, mark(full)) == (1, "", before), target
            assert told in refused.err
        assert not (tmp_path / "absent.db").exists()

    def test_versions_that_the_workspace_does_not_know_or_miss(
        self, full: Path, tmp_path: Path
    ) -> None:
        with open_gallery(tmp_path / "newer.db") as gallery:
            gallery.create_version("v7", 2)
            gallery.upsert("v7", ["x"], np.array([[1.0, 0.0]]))
        rewrite(full / "workspace.json", lambda written: written.update(gallery=AWAY))
        asked = typed("gallery", "use", tmp_path / "newer.db", "-w", full)
        assert asked.code == 1
        check_wording(asked.err)


def test_a_workspace_on_a_server_says_how_to_leave_it(full: Path) -> None:
    rewrite(full / "workspace.json", lambda written: written.update(gallery=AWAY))
    with (
        Workspace(full, device="cpu") as space,
        refuses(GalleryUnavailableError, "use-gallery", varies=r"(?s)\(connection.*\?\)") as away,
    ):
        _ = space.gallery
    assert away.value.next_steps[-1].action == "use-gallery"
    shown = typed("gallery", "stats", "--gallery", AWAY)
    assert "fixstar gallery use" not in shown.err  # no workspace is meant
