"""The service as a process of its own: starts, answers, stops, is killed and comes back."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import httpx
import pytest
from forked import fork_fixstar
from service_clients import client, picture
from shops import pictures, shop
from typer.testing import CliRunner
from wording import refuses

from fixstar.cli import app
from fixstar.errors import InputError
from fixstar.service.client import Client
from fixstar.service.jobs import JobFiles
from fixstar.service.keys import Keys
from fixstar.service.serve import serve
from fixstar.service.settings import ServiceSettings
from fixstar.workspace import Workspace
from fixstar.workspace.registry import FIRST


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return shop(tmp_path / "shop", versions=1)


@contextmanager
def serving(space: Workspace, *words: str) -> Iterator[tuple[ForkServerProcess, httpx.Client]]:
    """The service as a process of its own; what it prints is in the files "out" and "err" beside the workspace."""
    out, err = (space.path.with_name(name) for name in ("out", "err"))
    options = ["--device", "cpu", "--port", "0", "--rate", "1000000", *words]
    process = fork_fixstar(out, err, "serve", "-w", space.path, *options)
    try:
        while not (
            found := re.search(r"http://[^/\s]+:\d+", out.read_text() if out.exists() else "")
        ):
            assert process.is_alive(), err.read_text()
            time.sleep(0.01)
        with httpx.Client(base_url=found.group(), timeout=120) as http:
            yield process, http
    finally:
        process.kill()
        process.join()
        out.unlink()


@pytest.mark.long
def test_the_first_version_is_trained_by_a_job_that_a_kill_does_not_end(tmp_path: Path) -> None:
    space, sets = Workspace.create(tmp_path / "shop"), tmp_path / "sets"
    pictures(sets / "photos")
    with pytest.raises(InputError, match="no version yet"):
        serve(space, ServiceSettings())
    quick = {"data": "photos", "backbone": "tiny", "epochs": 30, "capacity": 100}
    with serving(space, "--training-images", str(sets)) as (process, http):
        job = f"/v1/jobs/{http.post('/v1/train', json=quick).json()['id']}"
        while http.get(job).json()["done"] == 0:
            time.sleep(0.01)
        process.kill()
        process.join()
    with serving(space, "--training-images", str(sets)) as (_, http):
        while (seen := http.get(job).json())["state"] in ("queued", "running"):
            time.sleep(0.02)
        assert (seen["state"], seen["result"]["version"]) == ("done", "v1"), seen
        assert http.get("/readyz").json()["version"] == "v1"
    assert (space.versions(), space.registry.unfinished()) == (["v1"], None)


def load(
    http: httpx.Client, stop: threading.Event, name: str, acknowledged: list[str], odd: list[object]
) -> None:
    """Store items until the service is gone; what it acknowledged is noted."""
    with httpx.Client(base_url=http.base_url, timeout=120) as own:
        for number in range(10_000):
            if stop.is_set():
                return
            item = f"{name}/{number}"
            try:
                answer = own.put("/v1/item", params={"id": item}, files={"image": picture(number)})
            except httpx.HTTPError:
                return
            (acknowledged if answer.status_code == 200 else odd).append(item)


def under_load(
    process: ForkServerProcess, http: httpx.Client, end: signal.Signals, job: str | None = None
) -> tuple[list[str], list[object]]:
    """Four writers, and a signal in their midst: once a job is under way, or some items are stored."""
    stop, acknowledged, odd = threading.Event(), list[str](), list[object]()
    writers = [
        threading.Thread(target=load, args=(http, stop, f"w{i}", acknowledged, odd))
        for i in range(4)
    ]
    for writer in writers:
        writer.start()
    while http.get(job).json()["done"] == 0 if job else len(acknowledged) < 30:
        assert process.is_alive()
        stop.wait(0.01)
    assert process.pid is not None
    os.kill(process.pid, end)
    process.join(120)
    stop.set()
    for writer in writers:
        writer.join()
    return acknowledged, odd


def test_it_starts_answers_and_ends_gracefully(space: Workspace) -> None:
    with serving(space) as (process, http):
        assert http.get("/readyz").json() == {"status": "ready", "version": "v1", "writes": True}
        answer = http.get("/v1/status")
        assert answer.json()["name"] == "shop"
        assert "server" not in answer.headers
        acknowledged, odd = under_load(process, http, signal.SIGTERM)
        assert process.exitcode == 0
        assert "Traceback" not in space.path.with_name("err").read_text()
    assert not odd  # what was begun was finished, what was not was not answered
    with Workspace(space.path) as again:
        assert len(again.gallery.get(acknowledged)) == len(acknowledged)


def test_after_a_kill_every_acknowledged_item_is_there(space: Workspace) -> None:
    with serving(space) as (process, http):
        acknowledged, odd = under_load(process, http, signal.SIGKILL)
    assert not odd
    with serving(space) as (_, http):
        assert http.get("/readyz").status_code == 200
        for item in acknowledged:
            assert http.get("/v1/item", params={"id": item}).status_code == 200
            assert http.get("/v1/item/image", params={"id": item}).status_code == 200


def test_after_a_kill_an_acknowledged_job_goes_on_to_its_end(space: Workspace) -> None:
    ids = [f"later/{number}" for number in range(640)]
    files = [("images", (f"{number}.png", picture(number, (8, 8)))) for number in range(len(ids))]
    with serving(space) as (process, http):
        taken = http.post("/v1/items/async", files=files, data={"ids": json.dumps(ids)})
        assert taken.status_code == 202
        job = f"/v1/jobs/{taken.json()['id']}"
        acknowledged, odd = under_load(process, http, signal.SIGKILL, job)
    assert not odd
    [left] = JobFiles(space.path).load()
    assert 0 < left.done < len(ids)
    with serving(space) as (process, http):
        while (told := http.get(job).json())["state"] in ("queued", "running"):
            assert process.is_alive()
            time.sleep(0.05)
        assert (told["state"], told["done"], told["result"]["bad_count"]) == ("done", len(ids), 0)
        assert http.get("/v1/status").json()["items"] >= len(ids) + len(acknowledged)
    with Workspace(space.path) as again:
        assert len(again.gallery.get([*ids, *acknowledged])) == len(ids) + len(acknowledged)


def test_other_machines_are_not_answered_without_keys(space: Workspace) -> None:
    with pytest.raises(InputError, match="fixstar keys add"):
        serve(space, ServiceSettings(host="0.0.0.0", port=0))
    token = Keys(space.path).add("a", "read")
    with client(space, host="0.0.0.0") as http:
        assert http.get("/v1/items").status_code == 401
        assert (
            http.get("/v1/items", headers={"Authorization": f"Bearer {token}"}).status_code == 200
        )


def test_several_galleries_are_served_though_one_is_broken(
    space: Workspace, tmp_path: Path
) -> None:
    broken = shop(tmp_path / "broken", versions=1)
    shutil.rmtree(broken.path / "versions" / "v1")
    others = [f"b={shop(tmp_path / 'more', versions=1).path}", str(broken.path)]
    with serving(space, *(word for path in others for word in ("-w", path))) as (process, http):
        with Client(str(http.base_url), gallery="b") as asking:
            assert asking.add({"a": picture()}).added == ("a",)
            assert asking.status().name == "b"
        assert http.get("/g/shop/v1/status").json()["items"] == 0
        assert http.get("/g/broken/v1/status").status_code == 503
        assert http.get("/readyz").json() == {"ready": 2, "galleries": 3}
        process.terminate()
        process.join()
        assert process.exitcode == 0
    assert "the gallery broken is not served" in (tmp_path / "err").read_text()


def test_a_name_needs_keys(space: Workspace) -> None:
    with refuses(InputError):
        serve(space, ServiceSettings(port=0, names=("shop.example",)))


def test_the_command_hands_names_on_and_counts_what_is_found(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Workspace, ServiceSettings]] = []
    monkeypatch.setattr("fixstar.service.serve.serve", lambda *given: seen.append(given))
    words = [
        "serve",
        "-w",
        str(space.path),
        "--device",
        "cpu",
        "--name",
        "Shop.example",
        "--name",
        "b.example",
    ]
    words += ["--header-seconds", "3.5", "--access-log"]
    assert CliRunner().invoke(app, words).exit_code == 0
    [(opened, settings)] = seen
    assert settings.names == ("shop.example", "b.example")
    assert (settings.header_seconds, settings.access_log) == (3.5, True)
    assert opened.usage is not None


def test_a_port_in_use_and_an_untrained_workspace_are_told(
    space: Workspace, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="--port"):
            serve(space, ServiceSettings(port=taken.getsockname()[1]))
    with pytest.raises(InputError, match="no version yet") as untrained:
        serve(Workspace.create(tmp_path / "empty"), ServiceSettings(port=0))
    assert untrained.value.next_steps == FIRST


def test_whatever_hangs_the_process_ends_after_its_grace_period() -> None:
    program = (
        "import signal, threading; from fixstar.service import serve; serve._GRACE = 1\n"
        "import uvicorn; server = serve._AnnouncingServer(uvicorn.Config(None), None)\n"
        "signal.signal(signal.SIGTERM, server.handle_exit); signal.raise_signal(signal.SIGTERM)\n"
        "while True: threading.Event().wait(1)"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], check=False, timeout=120).returncode
        == -signal.SIGALRM
    )
