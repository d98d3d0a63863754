"""What goes wrong on the service's side is told as that, and without saying where its files are."""

from __future__ import annotations

import errno
import json
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from service_clients import client, picture
from shops import shop

from fixstar.gallery import sqlite
from fixstar.workspace import ImageStore, Workspace


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return shop(tmp_path / "shop", versions=1)


def test_a_gallery_that_another_process_holds(
    space: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    space.gallery._wait = 0.05  # type: ignore[attr-defined]  # seconds that a write waits for others
    with client(space) as http:
        assert (
            http.put("/v1/item", params={"id": "a"}, files={"image": picture()}).status_code == 200
        )
        with closing(sqlite3.connect(space.path / "gallery.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            answer = http.delete("/v1/item", params={"id": "a"})
        assert_told_without_a_path(answer, space)
        assert "another process is writing" in caplog.text  # for the operator
        assert http.delete("/v1/item", params={"id": "a"}).status_code == 200


def test_a_full_disk_under_the_images(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(store: ImageStore, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(store.path))

    monkeypatch.setattr(ImageStore, "keep", full)
    with client(space) as http:
        assert_told_as_full(
            http.put("/v1/item", params={"id": "a"}, files={"image": picture()}), space
        )


def test_a_full_disk_under_the_gallery(space: Workspace, caplog: pytest.LogCaptureFixture) -> None:
    def asked() -> Any:
        return http.put(
            "/v1/item", params={"id": "a"}, files={"image": picture()}, data={"payload": payload}
        )

    payload = json.dumps({"text": "x" * 500_000})
    with client(space) as http:
        write_items = sqlite._write_items

        def little_room(db: sqlite3.Connection, **rest: Any) -> None:
            db.execute(
                "PRAGMA max_page_count = 1"
            )  # SQLite takes the pages there are: none may come
            write_items(db, **rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fixstar.gallery.sqlite._write_items", little_room)
            assert_told_as_full(asked(), space)
        assert "is full" in caplog.text  # for the operator
        assert http.get("/v1/items").json()["items"] == []


def test_a_job_on_a_full_disk_fails_as_that(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded", str(space.path))

    with client(space) as http:
        monkeypatch.setattr(space, "index", full)
        job = http.post("/v1/items/async", files={"images": picture()}).json()
        while (seen := http.get(f"/v1/jobs/{job['id']}").json())["state"] in ("queued", "running"):
            time.sleep(0.02)
        assert seen["error"]["status"] == 507


def test_readiness_says_whether_there_is_room(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client(space, upload_bytes=1000) as http:
        for free, writes in ((1000, True), (999, False)):
            monkeypatch.setattr(
                "shutil.disk_usage", lambda _, free=free: SimpleNamespace(free=free)
            )
            answer = http.get("/readyz")
            assert (answer.status_code, answer.json()["writes"]) == (200, writes)


def test_a_damaged_gallery_is_told_by_readiness(space: Workspace) -> None:
    with client(space) as http:
        assert http.get("/readyz").status_code == 200
        for name in ("gallery.db", "gallery.db-wal", "gallery.db-shm"):
            (space.path / name).unlink(missing_ok=True)
        (space.path / "gallery.db").write_bytes(b"SQLite format 3\0" + bytes(5000))
        space.gallery._own = threading.local()  # type: ignore[attr-defined]  # connections of before see the old file
        assert_told_without_a_path(http.get("/readyz"), space)
        assert_told_without_a_path(http.get("/v1/items"), space)


def test_a_damaged_version_is_a_fault_of_ours(space: Workspace) -> None:
    with client(space) as http:
        next((space.path / "versions" / "v1").glob("*.safetensors")).write_bytes(b"nothing")
        answer = http.post("/v1/search", files={"image": picture()})
        assert answer.status_code == 500
        assert str(space.path) not in answer.text


def assert_told_without_a_path(answer: Any, space: Workspace) -> None:
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) > 0
    assert str(space.path) not in answer.text
    assert "log" in answer.json()["hint"]


def assert_told_as_full(answer: Any, space: Workspace) -> None:
    told = answer.json()
    assert answer.status_code == told["status"] == 507
    assert "full" in told["title"]
    assert "room" in told["detail"]
    assert told["hint"]
    assert "retry-after" not in answer.headers
    assert str(space.path) not in answer.text
