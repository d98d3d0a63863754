"""Pipes and devices in the place of a workspace's files: a plain error at once, and nobody waits for ever."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from service_clients import picture
from whole_workspace import answers, whole_workspace
from wording import check_wording, refuses

from fixstar.durable import exclusive
from fixstar.errors import FixstarError, GalleryError, ModelError
from fixstar.gallery import SqliteGallery
from fixstar.workspace import Workspace
from fixstar.workspace.files import require_plain_files
from fixstar.workspace.snapshot import restore_snapshot, take_snapshot
from fixstar.workspace.verify import verify_workspace

SECONDS = 20


class HangError(BaseException):
    """Nothing may catch it."""


@contextmanager
def in_time() -> Iterator[None]:
    """Stop what hangs."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_workspace(tmp_path_factory.mktemp("pipes"))


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "shop")
    return tmp_path / "shop"


def require_told(path: Path, file: Path, snapshots: Path) -> None:
    """Opening, searching, verifying and copying name the file."""
    with in_time():
        for use in (answers, Workspace, lambda path: take_snapshot(path, snapshots)):
            with pytest.raises(
                FixstarError, match=r"not a workspace|pipes, sockets or devices"
            ) as told:
                use(path)
            assert file.name == "workspace.json" or str(file) in str(told.value)
        assert any(str(file) in problem for problem in verify_workspace(path))


def test_a_pipe_in_the_place_of_any_file(copy: Path, tmp_path: Path) -> None:
    files = sorted(
        file for file in copy.rglob("*") if file.is_file() and "images" not in file.parts
    )
    logs = [copy / "gallery.db-wal", copy / "gallery.db-shm", copy / "state" / "jobs" / ".lock"]
    assert {"card.json", "model.safetensors", "gallery.db", "deployment.json"} <= {
        file.name for file in files
    }
    for file in {*files, *logs}:
        kept = file.read_bytes() if file.exists() else None
        file.unlink(missing_ok=True)
        os.mkfifo(file)
        require_told(copy, file, tmp_path / "snapshots")
        file.unlink()
        if kept is not None:
            file.write_bytes(kept)
    assert list(verify_workspace(copy)) == []


def test_links_to_devices_and_sockets(copy: Path, tmp_path: Path) -> None:
    card = copy / "versions" / "v1" / "card.json"
    card.unlink()
    card.symlink_to("/dev/zero")
    require_told(copy, card, tmp_path / "snapshots")
    card.unlink()
    with socket.socket(socket.AF_UNIX) as place:
        place.bind(os.path.relpath(card))  # an address is short
        require_told(copy, card, tmp_path / "snapshots")


def test_a_pipe_in_the_place_of_a_kept_image(copy: Path) -> None:
    with in_time(), Workspace(copy, device="cpu") as space:
        kept = space.path / str(space.images.keep(picture(0))["image"])
        kept.unlink()
        os.mkfifo(kept)
        (told,) = verify_workspace(copy)
        assert str(kept) in told
        check_wording(told, varies=r"images/\w\w")
        item = space.gallery.get(["kept/0"])["kept/0"]
        assert space.images.find(item) is None
        assert space.search([picture(0)], k=3).hits
        space.images.keep(picture(0))  # the image is put in its place
    assert list(verify_workspace(copy)) == []


def test_a_pipe_as_a_lock_or_a_gallery(whole: Path, copy: Path, tmp_path: Path) -> None:
    take_snapshot(whole, tmp_path / "backup")
    lock = copy / "state" / "jobs" / ".lock"
    lock.unlink(missing_ok=True)
    os.mkfifo(lock)
    with in_time():
        with refuses(FixstarError):
            restore_snapshot(tmp_path / "backup", copy, replace=True)
        with pytest.raises(FixstarError, match="not a lock"), exclusive(lock.parent):
            pass
        for name in ("g.db", "g.db-wal"):
            os.mkfifo(tmp_path / name)
            with pytest.raises(GalleryError, match=f"{name} is a pipe"):
                SqliteGallery(tmp_path / "g.db")
            (tmp_path / name).unlink()


def test_what_is_not_there_is_no_pipe(tmp_path: Path) -> None:
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    (tmp_path / "round").symlink_to(tmp_path)
    require_plain_files(tmp_path)
    require_plain_files(tmp_path / "absent")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelError, match="pipe: pipes"):
        require_plain_files(tmp_path)
