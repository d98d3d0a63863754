"""A workspace comes back from its snapshot as it was; damage is refused; a kill leaves the old one or the new one."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import fork
from service_clients import client, ended, picture
from shops import indexed_shop
from typed import typed
from whole_workspace import answers, whole_workspace
from wording import refuses

from fixstar.durable import document, exclusive
from fixstar.errors import InputError, ModelError
from fixstar.service.jobs import JobFiles
from fixstar.workspace import CatalogueItem, Workspace, snapshot
from fixstar.workspace.snapshot import restore_snapshot, take_snapshot
from fixstar.workspace.verify import verify_workspace


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_workspace(tmp_path_factory.mktemp("snapshots"))


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return indexed_shop(tmp_path)


def add(path: Path, *numbers: int) -> None:
    with Workspace(path, device="cpu") as space:
        for number in numbers:
            kept = space.images.keep(picture(number))
            space.index([CatalogueItem(f"kept/{number}", path / str(kept["image"]), dict(kept))])


def items(path: Path) -> list[str]:
    with Workspace(path, device="cpu") as space:
        return [item.id for item in space.gallery.iterate()]


@pytest.mark.parametrize("name", ["backup", "backup.tar"])
def test_a_workspace_comes_back_as_it_was(whole: Path, tmp_path: Path, name: str) -> None:
    taken = typed("snapshot", tmp_path / name, "-w", whole, "--json").json
    assert taken["copied"] <= taken["files"]
    done = typed("restore", tmp_path / name, "-w", tmp_path / "again")
    assert (done.code, f"{taken['files']} files" in done.out) == (0, True), done.err
    assert answers(tmp_path / "again") == answers(whole)
    assert list(verify_workspace(tmp_path / "again")) == []
    keys = tmp_path / "again" / "state" / "keys.json"
    assert keys.stat().st_mode & 0o777 == 0o600


def test_a_folder_gets_only_what_it_lacks(shop: Path, tmp_path: Path) -> None:
    add(shop, 1, 2, 3)
    first = take_snapshot(shop, tmp_path / "backup")
    add(shop, 4)
    second = take_snapshot(shop, tmp_path / "backup")
    assert second.files == first.files + 1
    assert second.copied == 2  # the image and the gallery
    with Workspace(shop, device="cpu") as space:
        space.gallery.delete(["kept/1"])
        unused = [
            path for path in space.path.glob("images/??/*") if path.read_bytes() == picture(1)
        ]
        unused[0].unlink()
    third = take_snapshot(shop, tmp_path / "backup")
    assert third.files == first.files
    objects = [path for path in (tmp_path / "backup").glob("objects/??/*") if path.is_file()]
    named = json.loads((tmp_path / "backup" / "manifest.json").read_text())["files"]
    assert {path.name for path in objects} == {entry[0] for entry in named.values()}
    restore_snapshot(tmp_path / "backup", tmp_path / "again")
    assert items(tmp_path / "again") == items(shop)


def test_what_was_stored_before_is_in_a_snapshot_that_is_taken_meanwhile(
    shop: Path, tmp_path: Path
) -> None:
    written, stop = list[int](), threading.Event()

    def write() -> None:
        for number in itertools.count(1):
            add(shop, number)
            written.append(number)
            if stop.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for turn in range(4):
            before = set(written)
            take_snapshot(shop, tmp_path / "backup")
            restore_snapshot(tmp_path / "backup", tmp_path / f"again-{turn}")
            assert list(verify_workspace(tmp_path / f"again-{turn}")) == []
            with Workspace(tmp_path / f"again-{turn}", device="cpu") as space:
                found = {
                    item.id: item
                    for item in space.gallery.iterate("v1")
                    if item.id.startswith("kept/")
                }
                assert {f"kept/{number}" for number in before} <= set(found)
                assert all(space.images.find(item) is not None for item in found.values())
    finally:
        stop.set()
        writer.join()


def test_a_gallery_elsewhere_comes_back_as_one_of_the_workspace(shop: Path, tmp_path: Path) -> None:
    moved = typed("gallery", "move", tmp_path / "elsewhere.db", "-w", shop)
    assert moved.code == 0, moved.err
    take_snapshot(shop, tmp_path / "backup")
    expected = items(shop)
    (tmp_path / "elsewhere.db").unlink()
    restore_snapshot(tmp_path / "backup", tmp_path / "again")
    assert items(tmp_path / "again") == expected


class TestRefused:
    @pytest.mark.parametrize("name", ["backup", "backup.tar"])
    def test_a_damaged_snapshot_changes_nothing(
        self, shop: Path, tmp_path: Path, name: str
    ) -> None:
        add(shop, 1)
        take_snapshot(shop, tmp_path / name)
        before = answers_of(shop)
        files = [tmp_path / name] if name.endswith(".tar") else sorted((tmp_path / name).rglob("*"))
        for file in (path for path in files if path.is_file()):
            content = file.read_bytes()
            places = (
                range(600, len(content), len(content) // 9)
                if name.endswith(".tar")
                else [len(content) // 2]
            )
            for place in places:
                changed = bytearray(content)
                changed[place] ^= 1
                for damaged in (bytes(changed), content[:place]):
                    file.write_bytes(damaged)
                    try:
                        restore_snapshot(tmp_path / name, shop, replace=True)
                    except ModelError:
                        continue
                    assert answers_of(shop) == before  # a padding byte of the archive
            file.write_bytes(content)
        assert answers_of(shop) == before
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["photos", "shop", name])

    def test_nothing_is_overwritten(self, shop: Path, tmp_path: Path) -> None:
        take_snapshot(shop, tmp_path / "backup")
        refused = typed("restore", tmp_path / "backup", "-w", shop)
        assert (refused.code, "is not empty" in refused.err, "--replace" in refused.err) == (
            1,
            True,
            True,
        )
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "letter.txt").touch()
        with refuses(InputError):
            restore_snapshot(tmp_path / "backup", tmp_path / "other", replace=True)
        with refuses(ModelError):
            take_snapshot(shop, tmp_path / "other")
        (tmp_path / "letter.tar").write_text("Dear reader")
        with refuses(ModelError):
            take_snapshot(shop, tmp_path / "letter.tar")
        shutil.copytree(shop, tmp_path / "second")
        with refuses(InputError):
            take_snapshot(tmp_path / "second", tmp_path / "backup")
        with pytest.raises(InputError, match="within the workspace"):
            take_snapshot(shop, shop / "backup")
        assert (tmp_path / "other" / "letter.txt").exists()

    def test_a_served_workspace_is_not_replaced(self, shop: Path, tmp_path: Path) -> None:
        take_snapshot(shop, tmp_path / "backup")
        with exclusive(shop / "state" / "jobs"), pytest.raises(InputError, match="a service uses"):
            restore_snapshot(tmp_path / "backup", shop, replace=True)
        restore_snapshot(tmp_path / "backup", shop, replace=True)

    def test_a_damaged_workspace_does_not_replace_its_good_snapshot(
        self, shop: Path, tmp_path: Path
    ) -> None:
        add(shop, 1)
        take_snapshot(shop, tmp_path / "backup")
        manifest = (tmp_path / "backup" / "manifest.json").read_bytes()
        (image,) = shop.glob("images/??/*")
        for file in (image, shop / "versions" / "v1" / "card.json", shop / "gallery.db"):
            whole = file.read_bytes()
            file.write_bytes(whole[: len(whole) // 2])
            if file == image:
                shutil.rmtree(
                    tmp_path / "backup" / "objects" / image.stem[:2]
                )  # else its good copy is kept
            refused = typed("snapshot", tmp_path / "backup", "-w", shop)
            assert refused.code == 1
            file.write_bytes(whole)
            take_snapshot(shop, tmp_path / "new")
            shutil.copytree(
                tmp_path / "new" / "objects", tmp_path / "backup" / "objects", dirs_exist_ok=True
            )
            assert (tmp_path / "backup" / "manifest.json").read_bytes() == manifest

    @pytest.mark.parametrize(
        "name", ["../escaped.json", "/escaped.json", "a/../../escaped.json", ""]
    )
    def test_a_manifest_cannot_name_a_file_elsewhere(
        self, shop: Path, tmp_path: Path, name: str
    ) -> None:
        take_snapshot(shop, tmp_path / "backup")
        manifest = tmp_path / "backup" / "manifest.json"
        content = json.loads(manifest.read_text())
        files = {**content["files"], name: content["files"]["workspace.json"]}
        changed = {"when": content["when"], "workspace": content["workspace"], "files": files}
        manifest.write_text(json.dumps(document("snapshot", changed)))
        with refuses(ModelError):
            restore_snapshot(tmp_path / "backup", tmp_path / "again")

    def test_links_of_an_archive_are_not_followed(self, shop: Path, tmp_path: Path) -> None:
        take_snapshot(shop, tmp_path / "backup.tar")
        with (
            tarfile.open(tmp_path / "linked.tar", "w") as linked,
            tarfile.open(tmp_path / "backup.tar") as archive,
        ):
            for member in archive:
                if member.name != "manifest.json":
                    member.type, member.linkname, member.size = tarfile.SYMTYPE, "/etc/passwd", 0
                linked.addfile(member, archive.extractfile(member) if member.isreg() else None)
        with pytest.raises(ModelError, match="cannot be read"):
            restore_snapshot(tmp_path / "linked.tar", tmp_path / "again")
        assert not (tmp_path / "again").exists()

    @pytest.mark.parametrize(
        ("name", "entry"),
        [
            ("state/run", ["ab" * 32, 3, 0o4755]),
            ("state/\0", ["ab" * 32, 3, 0o644]),
            ("state/\ud800", ["ab" * 32, 3, 0o644]),
            ("state/run", [5, 3, 0o644]),
            ("state/run", ["../../../../etc/passwd", 3, 0o644]),
            ("state/run", ["ab" * 32, "3", 0o644]),
            ("state/run", ["ab" * 32, -1, 0o644]),
            ("state/run", ["ab" * 32, 3, "rw"]),
            ("state/run", ["ab" * 32, 3]),
        ],
    )
    def test_a_manifest_that_no_snapshot_has(
        self, shop: Path, tmp_path: Path, name: str, entry: list[Any]
    ) -> None:
        take_snapshot(shop, tmp_path / "backup")
        (tmp_path / "backup" / "objects" / "ab").mkdir(exist_ok=True)
        (tmp_path / "backup" / "objects" / "ab" / ("ab" * 32)).write_bytes(b"ls\n")
        change_manifest(tmp_path / "backup", {name: entry})
        with refuses(ModelError):
            restore_snapshot(tmp_path / "backup", tmp_path / "again")
        assert not (tmp_path / "again").exists()

    def test_a_file_below_another_one_is_refused(self, shop: Path, tmp_path: Path) -> None:
        take_snapshot(shop, tmp_path / "backup")
        files = json.loads((tmp_path / "backup" / "manifest.json").read_text())["files"]
        change_manifest(tmp_path / "backup", {"workspace.json/below": files["workspace.json"]})
        with refuses(ModelError):
            restore_snapshot(tmp_path / "backup", tmp_path / "again")

    def test_more_than_the_disk_has_room_for_is_refused_first(
        self, shop: Path, tmp_path: Path
    ) -> None:
        take_snapshot(shop, tmp_path / "backup")
        size = 1 << 50
        holes = tmp_path / "backup" / "objects" / "ab" / ("ab" * 32)
        holes.parent.mkdir(exist_ok=True)
        holes.touch()
        os.truncate(holes, 1 << 40)
        change_manifest(
            tmp_path / "backup",
            {f"state/{i}": ["ab" * 32, 1 << 40, 0o644] for i in range(size >> 40)},
        )
        with pytest.raises(InputError, match="are free"):
            restore_snapshot(tmp_path / "backup", tmp_path / "again")
        change_manifest(tmp_path / "backup", {"state/0": ["ab" * 32, 3, 0o644]})
        with refuses(ModelError):
            restore_snapshot(tmp_path / "backup", tmp_path / "again")
        os.truncate(tmp_path / "backup" / "manifest.json", 1 << 40)
        with refuses(ModelError):
            restore_snapshot(tmp_path / "backup", tmp_path / "again")

    def test_sparse_members_are_not_unpacked(self, shop: Path, tmp_path: Path) -> None:
        """A member that takes no bytes in the archive, and as many as it likes on the disk."""
        take_snapshot(shop, tmp_path / "backup")
        change_manifest(tmp_path / "backup", {"state/holes": ["ab" * 32, 1 << 30, 0o644]})
        with tarfile.open(tmp_path / "sparse.tar", "w") as archive:
            archive.add(tmp_path / "backup", ".", filter=without_dot)
            member = tarfile.TarInfo(f"objects/ab/{'ab' * 32}")
            member.pax_headers = {
                "GNU.sparse.major": "0",
                "GNU.sparse.minor": "1",
                "GNU.sparse.map": f"{1 << 30},0",
                "GNU.sparse.size": str(1 << 30),
            }
            archive.addfile(member)
        with refuses(ModelError):
            restore_snapshot(tmp_path / "sparse.tar", tmp_path / "again")

    @pytest.mark.parametrize("kind", ["pipe", "zeros", "endless pipe"])
    def test_only_regular_files_are_read(self, shop: Path, tmp_path: Path, kind: str) -> None:
        take_snapshot(shop, tmp_path / "backup")
        if kind == "endless pipe":  # in the place of the whole snapshot
            os.mkfifo(tmp_path / "pipe.tar")
            with refuses(ModelError, varies=r"\S+(?= of the snapshot)|objects/\w\w"):
                restore_snapshot(tmp_path / "pipe.tar", tmp_path / "again")
            return
        for place in (
            next((tmp_path / "backup").glob("objects/??/*")),
            tmp_path / "backup" / "manifest.json",
        ):
            place.unlink()
            os.mkfifo(place) if kind == "pipe" else place.symlink_to("/dev/zero")
            with refuses(ModelError, varies=r"\S+(?= of the snapshot)|objects/\w\w"):
                restore_snapshot(tmp_path / "backup", tmp_path / "again")


def change_manifest(folder: Path, files: dict[str, list[Any]]) -> None:
    """Name more files in a snapshot's manifest, with a digest that fits."""
    content = json.loads((folder / "manifest.json").read_text())
    whole = {**content["files"], **files}
    changed = {"when": content["when"], "workspace": content["workspace"], "files": whole}
    (folder / "manifest.json").write_text(json.dumps(document("snapshot", changed)))


def without_dot(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.name = member.name.removeprefix("./")
    return member


def answers_of(path: Path) -> Any:
    with Workspace(path, device="cpu") as space:
        found = space.search([np.zeros((32, 32, 3), np.uint8)], k=20)
        return [
            (item.id, item.version, item.vector.tobytes()) for item in space.gallery.iterate()
        ], found


# --- kills: at every place where something becomes durable


def _killed_at(place: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """In a process of its own: die at the n-th time that something is flushed or renamed."""
    count = itertools.count()

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def stand_in(*values: Any, **named: Any) -> Any:
            if next(count) == place:
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*values, **named)

        return stand_in

    durable = [(os, name) for name in ("fsync", "rename", "replace", "unlink")]
    for module, name in (*durable, (shutil, "rmtree"), (snapshot, "_exchange")):
        setattr(module, name, counted(getattr(module, name)))
    work(*arguments)


def _killed_before(file: Path, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """In a process of its own: die before a finished file gets its name."""
    replace = os.replace

    def stand_in(source: Any, target: Any) -> None:
        if Path(target) == file:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)

    os.replace = stand_in  # type: ignore[assignment]
    work(*arguments)


def places(work: Callable[..., Any], *arguments: Any, at: Path | None = None) -> Any:
    """Run the work again and again, killed ever later, until it comes to its end; after each kill, a look.

    Each run begins with ``at`` as it is now, or with what the last one left. FIXSTAR_KILL_STEP=1 leaves out no place;
    ``-s`` prints how many there were.
    """
    if at is not None:
        kept = at.with_name(f"kept-{at.name}")
        (shutil.copytree if at.is_dir() else shutil.copy)(at, kept)
    step = int(os.environ.get("FIXSTAR_KILL_STEP", "7"))
    for place in itertools.count(0, step):
        if at is not None and at.is_dir():
            shutil.rmtree(at)
            shutil.copytree(kept, at)
        elif at is not None:
            shutil.copy(kept, at)
        process = fork(_killed_at, place, work, arguments)
        process.join(120)
        assert process.exitcode in (0, -signal.SIGKILL)
        yield place
        if process.exitcode == 0:
            print(f"\n{work.__name__}: {place // step} kills")
            return


@pytest.mark.parametrize("name", ["backup", "backup.tar"])
def test_a_killed_snapshot_leaves_the_older_one(shop: Path, tmp_path: Path, name: str) -> None:
    add(shop, 1, 2)
    take_snapshot(shop, tmp_path / name)
    older = items(shop)
    add(shop, 3, 4)
    newer, seen = items(shop), list[Any]()
    for _ in places(take_snapshot, shop, tmp_path / name, at=tmp_path / name):
        restore_snapshot(tmp_path / name, tmp_path / "again", replace=True)
        seen.append(items(tmp_path / "again"))
        assert seen[-1] in (older, newer)
    assert seen[0] == older
    assert seen[-1] == newer
    assert len(seen) > 2


@pytest.mark.long
def test_a_killed_first_snapshot_is_taken_again(shop: Path, tmp_path: Path) -> None:
    kills = sum(1 for _ in places(take_snapshot, shop, tmp_path / "backup"))
    assert kills > 2
    restore_snapshot(tmp_path / "backup", tmp_path / "again")
    assert items(tmp_path / "again") == items(shop)


@pytest.mark.parametrize("name", ["backup", "backup.tar"])
def test_a_later_snapshot_removes_what_a_killed_one_left(
    shop: Path, tmp_path: Path, name: str
) -> None:
    last = tmp_path / name if name.endswith(".tar") else tmp_path / name / "manifest.json"
    killed = fork(_killed_before, last, take_snapshot, (shop, tmp_path / name))
    killed.join(120)
    assert killed.exitcode == -signal.SIGKILL
    assert len(list(last.parent.glob(f".{last.name}.*-*.partial"))) == 1
    other = (
        tmp_path / f".{name}.other.tar.7-7.partial"
    )  # of another snapshot, which may be in progress
    other.touch()
    take_snapshot(shop, tmp_path / name)
    assert list(tmp_path.rglob("*.partial")) == [other]


def test_a_killed_restore_leaves_the_old_workspace_or_the_new_one(
    shop: Path, tmp_path: Path
) -> None:
    add(shop, 1)
    take_snapshot(shop, tmp_path / "backup")
    newer = items(shop)
    with Workspace(shop, device="cpu") as space:
        space.gallery.delete(["kept/1"])
    older, seen = items(shop), list[Any]()
    for _ in places(restore_snapshot, tmp_path / "backup", shop, True, at=shop):
        assert list(verify_workspace(shop)) == []
        seen.append(items(shop))
        assert seen[-1] in (older, newer)
    assert seen[0] == older
    assert seen[-1] == newer
    assert not list(tmp_path.glob(".*.partial"))


# --- over HTTP


def test_an_admin_asks_the_service_for_a_snapshot(shop: Path, tmp_path: Path) -> None:
    with client(Workspace(shop, device="cpu"), snapshots=tmp_path / "backup") as http:
        assert http.put("/v1/item?id=new", files={"image": picture(5)}).status_code == 200
        started = http.post("/v1/snapshot")
        assert (started.status_code, started.json()["kind"]) == (202, "snapshot")
        done = ended(http, started.json())
        assert (done["state"], done["result"]["copied"] > 0) == ("done", True)
        assert str(tmp_path) not in json.dumps(done)
    restore_snapshot(tmp_path / "backup", tmp_path / "again")
    assert "new" in items(tmp_path / "again")
    assert JobFiles(tmp_path / "again").load() == []  # not the snapshot itself


def test_without_a_place_no_snapshot_is_taken(shop: Path) -> None:
    with client(Workspace(shop, device="cpu")) as http:
        refused = http.post("/v1/snapshot")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/no-snapshots")
    assert "fixstar serve --snapshots" in refused.json()["hint"]
