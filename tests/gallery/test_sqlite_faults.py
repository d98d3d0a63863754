"""The embedded gallery when things go wrong: kills, damaged files, no permission, no room."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from test_gallery_contract import vectors
from wording import refuses

from fixstar.errors import DamagedItemError, GalleryError, GalleryUnavailableError, NextStep
from fixstar.gallery import (
    MemoryGallery,
    SqliteGallery,
    copy_gallery,
    export_version,
    import_version,
    sqlite,
    verify_gallery,
)


def made(path: Path, items: int = 100, width: int = 64) -> Path:
    with SqliteGallery(path) as gallery:
        gallery.create_version("v1", width)
        gallery.upsert("v1", [f"{i:03}" for i in range(items)], vectors(items, width))
    return path


def test_killed_writers_lose_nothing_that_was_acknowledged() -> None:
    kills = os.environ.get("FIXSTAR_KILLS", "8")
    command = [sys.executable, str(Path(__file__).with_name("killing.py")), "--kills", kills]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert f"{kills} kills" in run.stdout
    assert "0 lost" in run.stdout


def garbage(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 1000)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def scribbled(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"\xa5" * (len(content) - 100))


def foreign(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE recipes (name TEXT)")
    db.close()


def newer(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 7")
    db.close()


@pytest.mark.parametrize(
    "damage",
    [
        garbage,
        cut,
        scribbled,
        foreign,
        newer,
    ],
)
def test_a_file_that_cannot_be_opened_is_left_alone(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = made(tmp_path / "g.db", items=2000)
    damage(path)
    before = path.read_bytes()
    with refuses(GalleryError), SqliteGallery(path) as gallery:
        gallery.search("v1", vectors(1, 64))
    assert path.read_bytes() == before


def test_nothing_is_made_where_a_gallery_should_be(tmp_path: Path) -> None:
    for create, read_only in ((False, False), (True, True)):
        with refuses(GalleryError):
            SqliteGallery(tmp_path / "typo.db", create, read_only)
    assert not list(tmp_path.iterdir())


def test_an_empty_file_becomes_a_gallery(tmp_path: Path) -> None:
    (tmp_path / "g.db").touch()
    assert made(tmp_path / "g.db").stat().st_size


def test_a_gallery_opened_for_reading_refuses_writes(tmp_path: Path) -> None:
    path = made(tmp_path / "g.db")
    with SqliteGallery(path, read_only=True) as gallery:
        with pytest.raises(GalleryError, match="cannot be written"):
            gallery.upsert("v1", ["new"], vectors(1, 64))
        with pytest.raises(GalleryError, match="cannot be written"):
            gallery.create_version("v2", 3)
        assert gallery.delete([]) == 0
        assert [hit.id for hit in gallery.search("v1", vectors(100, 64)[7:8], k=1)[0]] == ["007"]
        with SqliteGallery(path) as writer:
            writer.delete(["007"])
            assert [hit.id for hit in gallery.search("v1", vectors(100, 64)[7:8], k=1)[0]] != [
                "007"
            ]


READ_ONLY = """
import os
import re
import sys
from fixstar.errors import GalleryError
from fixstar.gallery import SqliteGallery, verify_gallery
if os.geteuid() == 0:  # nothing is read-only for root
    os.setgid(65534)
    os.setuid(65534)
with SqliteGallery(sys.argv[1]) as gallery:
    row = next(gallery.iterate()).vector[None]
    try:
        gallery.upsert("v1", ["new"], row)
    except GalleryError as error:
        print("refused:", error)
    print("found:", gallery.search("v1", row, k=1)[0][0].id, gallery.count())
try:
    SqliteGallery(sys.argv[1] + ".new")
except GalleryError as error:
    print("not made:", error)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, as pytest's own are not."""
    folder = Path(tempfile.mkdtemp())
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_directory_can_be_searched(open_folder: Path) -> None:
    path = made(open_folder / "g.db")
    path.chmod(0o444)
    open_folder.chmod(0o555)
    command = [sys.executable, "-c", READ_ONLY, str(path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "refused:" in run.stdout
    assert "cannot be written" in run.stdout
    assert "found: 000 {'v1': 100}" in run.stdout
    assert "the directory is read-only" in run.stdout
    assert [file.name for file in open_folder.iterdir()] == ["g.db"]


def test_a_full_disk_is_told_and_loses_nothing(tmp_path: Path) -> None:
    path = made(tmp_path / "g.db")
    with SqliteGallery(path) as gallery:
        gallery.upsert("v1", ["last"], vectors(1, 64, seed=5))
        pages = gallery._session().db.execute("PRAGMA page_count").fetchone()[0]
        gallery._session().db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(GalleryError, match="is full"):
            gallery.upsert(
                "v1", ["000", *(f"n{i}" for i in range(3000))], vectors(3001, 64, seed=6)
            )
        assert gallery.count() == {"v1": 101}
        assert [hit.id for hit in gallery.search("v1", vectors(100, 64)[:1], k=1)[0]] == ["000"]
        gallery._session().db.execute("PRAGMA max_page_count = 1073741823")
        gallery.upsert("v1", ["later"], vectors(1, 64, seed=7))
    with SqliteGallery(path) as again:
        assert again.count() == {"v1": 102}
        assert set(again.get(["last", "later", "n0"])) == {"last", "later"}


def test_after_a_flush_the_file_alone_is_the_gallery(tmp_path: Path) -> None:
    with SqliteGallery(made(tmp_path / "g.db")) as gallery:
        gallery.upsert("v1", ["new"], vectors(1, 64))
        gallery.flush()
        shutil.copy(gallery.path, tmp_path / "copy.db")
    with SqliteGallery(tmp_path / "copy.db") as copy:
        assert copy.count() == {"v1": 101}
        assert "new" in copy.get(["new"])


def test_a_flush_that_readers_hold_up_says_so(tmp_path: Path) -> None:
    """The file alone would lack what is still in the log. Imports and copies are whole all the same."""
    path = made(tmp_path / "g.db")
    with (
        SqliteGallery(path, wait=0.1) as gallery,
        closing(sqlite3.connect(path, isolation_level=None)) as reader,
    ):
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM items").fetchone()
        gallery.upsert("v1", ["new"], vectors(1, 64))
        with refuses(GalleryUnavailableError):
            gallery.flush()
        export_version(gallery, "v1", tmp_path / "v1.npz")
        assert import_version(gallery, "v1", tmp_path / "v1.npz") == 101
        more = MemoryGallery()
        more.create_version("v2", 64)
        more.upsert("v2", ["more"], vectors(1, 64))
        assert copy_gallery(more, gallery) == 1
        reader.execute("ROLLBACK")
        gallery.flush()
        shutil.copy(path, tmp_path / "copy.db")
    with SqliteGallery(tmp_path / "copy.db") as copy:
        assert copy.count() == {"v1": 101, "v2": 1}


@pytest.mark.parametrize("flush", [False, True])
def test_damage_at_the_end_of_the_log_costs_the_last_write_at_most(
    tmp_path: Path, flush: bool
) -> None:
    """It looks like a write that a power cut interrupted, so it is not told: docs/appendix/durability.md."""
    with SqliteGallery(made(tmp_path / "g.db")) as gallery:
        for name in ("first", "second", "last"):
            gallery.upsert("v1", [name], vectors(1, 64))
        if flush:
            gallery.flush()
        for name in ("g.db", "g.db-wal"):  # as a kill leaves them
            shutil.copy(tmp_path / name, tmp_path / f"copy-{name}")
    log = tmp_path / "copy-g.db-wal"
    content = bytearray(log.read_bytes())
    assert (len(content) == 0) == flush
    if not flush:
        content[-100] ^= 1
        log.write_bytes(content)
    with SqliteGallery(tmp_path / "copy-g.db") as copy:
        assert verify_gallery(copy) == []
        kept = {"first", "second", "last"} if flush else {"first", "second"}
        assert set(copy.get(["first", "second", "last"])) == kept
        assert sum(copy.count().values()) == 100 + len(kept)


_HOLD_CHECKPOINT = """
import fcntl, sys, time
with open(sys.argv[1], "r+b") as shared:  # the lock of the process that moves the log: sqlite.org/walformat.html
    fcntl.lockf(shared, fcntl.LOCK_EX, 1, 121)
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize(("held", "wait"), [(0.4, 30.0), (30.0, 0.4)])
def test_a_flush_waits_for_another_one(tmp_path: Path, held: float, wait: float) -> None:
    """A writer moves the log now and then. SQLite does not wait for that."""
    with SqliteGallery(made(tmp_path / "g.db"), wait=wait) as gallery:
        gallery.upsert("v1", ["new"], vectors(1, 64))
        command = [sys.executable, "-c", _HOLD_CHECKPOINT, str(tmp_path / "g.db-shm"), str(held)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()
            began = time.monotonic()
            if held < wait:
                gallery.flush()
            else:
                with refuses(GalleryUnavailableError):
                    gallery.flush()
            assert time.monotonic() - began > 0.3
            other.kill()


def test_compacting_gives_back_the_room(tmp_path: Path) -> None:
    path = made(tmp_path / "g.db", items=4000, width=256)
    before = path.stat().st_size
    with SqliteGallery(path) as gallery:
        gallery.delete([f"{i:03}" for i in range(3900)])
        gallery.compact()
        assert gallery.count() == {"v1": 100}
        assert len(gallery.search("v1", vectors(1, 256), k=500)[0]) == 100
    assert path.stat().st_size < before / 5


def test_removals_that_were_forgotten_lead_to_a_fresh_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fixstar.gallery.sqlite._REMOVED_KEPT", 5)
    path = made(tmp_path / "g.db")
    with SqliteGallery(path) as reader, SqliteGallery(path) as writer:
        assert len(reader.search("v1", vectors(1, 64), k=200)[0]) == 100
        for i in range(40):
            writer.delete([f"{i:03}"])
        (hits,) = reader.search("v1", vectors(1, 64), k=200)
        assert sorted(hit.id for hit in hits) == [f"{i:03}" for i in range(40, 100)]
        kept = writer._session().db.execute("SELECT count(*) FROM removed").fetchone()[0]
        assert kept < 15


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            "UPDATE items SET vector = substr(vector, 1, 8) WHERE id = '005'",
            "'005' .* 2 components",
        ),
        ("UPDATE items SET vector = zeroblob(256) WHERE id = '006'", "'006' .* length 0"),
        ("UPDATE versions SET items = 7", "counts {'v1': 7} items and holds {'v1': 100}"),
        (
            "UPDATE items SET payload = '{' WHERE id = '007'",
            "'007' of version 'v1': the payload is damaged",
        ),
        ("UPDATE items SET payload = '[1]' WHERE id = '007'", "'007' .* not a JSON object"),
        (
            "UPDATE items SET payload = CAST(x'7bff7d' AS TEXT) WHERE id = '008'",
            "'008' .* payload .*codec",
        ),
        ("UPDATE items SET vector = substr(vector, 1, 7) WHERE id = '009'", "'009' .*7 bytes"),
    ],
)
def test_verifying_finds_what_others_did_to_the_file(
    tmp_path: Path, change: str, told: str
) -> None:
    path = made(tmp_path / "g.db")
    with SqliteGallery(path) as gallery:
        assert verify_gallery(gallery) == []
    with sqlite3.connect(path) as db:
        db.execute(change)
    db.close()
    with SqliteGallery(path) as gallery:
        assert len(problems := verify_gallery(gallery)) == 1
        assert re.search(told, problems[0])
        if "'005'" in change:
            with pytest.raises(GalleryError, match="'005' is damaged"):
                gallery.search("v1", vectors(1, 64))


def test_every_damaged_item_is_told_and_can_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(tmp_path / "g.db", items=700)  # three pages of iterate
    wrong = ("000", "010", "011", "255", "256", "699")
    with sqlite3.connect(path) as db:
        db.execute(
            "UPDATE items SET payload = 'torn' WHERE id IN (SELECT value FROM json_each(?))",
            (json.dumps(wrong),),
        )
        db.execute("UPDATE items SET vector = zeroblob(256) WHERE id = '300'")
    db.close()
    with SqliteGallery(path) as gallery:
        problems = verify_gallery(gallery)
        assert [problem.split("'")[1] for problem in problems] == sorted([*wrong, "300"])
        with pytest.raises(
            DamagedItemError, match=r"'010' of version 'v1'.*[Dd]elete it"
        ) as caught:
            gallery.get(["009", "010"])
        assert (caught.value.item, caught.value.version) == ("010", "v1")
        assert caught.value.next_steps == (NextStep("delete-items", {"id": "010"}),)
        monkeypatch.setattr("fixstar.gallery.store._LISTED", 2)
        assert [*problems[:2], "and 5 more items"] == verify_gallery(gallery)
        assert gallery.delete([*wrong, "300"]) == 7
        assert verify_gallery(gallery) == []


def test_verifying_finds_a_damaged_page(tmp_path: Path) -> None:
    path = made(tmp_path / "g.db", items=3000)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xa5" * 50_000)
    with SqliteGallery(path) as gallery:
        try:
            assert verify_gallery(gallery)
        except GalleryError as error:
            assert "damaged" in str(error)  # noqa: PT017


def test_a_file_that_another_process_fills_just_now_is_a_gallery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one makes the tables between two questions about the file: the answers must be of one moment."""
    path = tmp_path / "g.db"
    with closing(sqlite3.connect(path)) as empty:
        empty.execute("PRAGMA journal_mode = WAL")  # a header, and no table yet
    connect = sqlite._connect

    class Interrupted:
        """A connection; after its first question about the format the other process has made all tables."""

        def __init__(self, db: sqlite3.Connection) -> None:
            self.db = db

        def execute(self, statement: str) -> sqlite3.Cursor:
            answer = self.db.execute(statement)
            if statement == "PRAGMA user_version":
                with closing(connect(path, False, 5)[0]) as other:
                    sqlite._fill(other)
            return answer

        def close(self) -> None:
            self.db.close()

    def interrupted(*arguments: Any) -> tuple[Any, Any]:
        db, state = connect(*arguments)
        return Interrupted(db), state

    monkeypatch.setattr(sqlite, "_connect", interrupted)
    sqlite._prepare(path, True, False, 5)
    monkeypatch.undo()
    with SqliteGallery(path) as gallery:
        assert gallery.count() == {}
