"""A workspace whose gallery is on a PostgreSQL server: there, and back again when the server is gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from documents import rewrite
from postgres_server import shared_server
from shops import indexed_shop
from typed import typed
from wording import check_wording

from fixstar.workspace.files import gallery_url, open_workspace_gallery


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return indexed_shop(tmp_path_factory.mktemp("on-postgres"))


@pytest.fixture
def full(ready: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ready, tmp_path / "shop"))


@pytest.mark.parametrize("secret", ["user", "parameter"])
def test_a_copy_is_told_without_the_password(full: Path, secret: str) -> None:
    address = shared_server().url(f"told_{secret}")
    with_it = (
        address.replace("postgres@", "postgres:geheim@")
        if secret == "user"
        else f"{address}&password=geheim"
    )
    done = typed("gallery", "move", with_it, "--gallery", full / "gallery.db")
    assert done.code == 0, done.err
    check_wording(done.out)
    assert "***" in done.out
    shown = typed("gallery", "move", full / "back.db", "--gallery", with_it, "--json")
    assert (shown.json["items"], "***" in shown.json["from"]) == (9, True)
    for told in (done, shown, typed("gallery", "move", with_it, "--gallery", with_it)):
        assert "geheim" not in told.out + told.err


def test_back_to_the_old_file_while_the_server_is_away(full: Path, tmp_path: Path) -> None:
    moved = typed("gallery", "move", shared_server().url("lost"), "-w", full)
    assert moved.code == 0, moved.err
    back = f"fixstar gallery use {full / 'gallery.db'} -w {full}"
    assert f"The old one stays as it is. To return to it: {back}" in moved.out
    away = str(shared_server().folder), "/nowhere"  # it is gone
    rewrite(
        full / "workspace.json", lambda mark: mark.update(gallery=mark["gallery"].replace(*away))
    )
    for words in (["gallery", "stats"], ["status"]):
        told = typed(*words, "-w", full)
        assert told.code == 1
        assert "fixstar gallery use ADDRESS" in told.err
    used = typed(*back.split()[1:])
    assert used.code == 0, used.err
    assert f"now uses {full / 'gallery.db'}: 9 items of v1" in used.out
    check_wording(used.out)
    assert typed("gallery", "stats", "-w", full, "--json").json["items"] == 9
    shutil.copytree(full, tmp_path / "copy")  # a copy of the workspace has a gallery of its own
    assert gallery_url(tmp_path / "copy") == str(tmp_path / "copy" / "gallery.db")


def test_a_snapshot_holds_the_items_of_the_server(full: Path, tmp_path: Path) -> None:
    assert typed("gallery", "move", shared_server().url("copied"), "-w", full).code == 0
    (full / "gallery.db").unlink()
    with open_workspace_gallery(full) as gallery:
        gallery.delete(["hat/0.png"])
        stored = [
            (item.id, item.version, item.vector.tobytes(), item.payload)
            for item in gallery.iterate()
        ]
    taken = typed("snapshot", tmp_path / "backup", "-w", full)
    assert taken.code == 0, taken.err
    assert typed("restore", tmp_path / "backup", "-w", tmp_path / "again").code == 0
    assert gallery_url(tmp_path / "again") == str(tmp_path / "again" / "gallery.db")
    with open_workspace_gallery(tmp_path / "again") as gallery:
        assert [
            (item.id, item.version, item.vector.tobytes(), item.payload)
            for item in gallery.iterate()
        ] == stored
