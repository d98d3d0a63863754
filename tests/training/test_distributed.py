"""Two processes under torchrun train what one does: same losses, same weights, one writer, one voice."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distributed_cases import CASES, digest, first_session, interrupted, keep
from forked import fork
from PIL import Image
from wording import check_wording, refuses

from fixstar.durable import exclusive
from fixstar.errors import InputError
from fixstar.models import Encoder
from fixstar.training.distributed import World, all_gather_json, from_rank_zero, local_device, world
from fixstar.workspace import Workspace

SCRIPT = Path(__file__).with_name("distributed_cases.py")


def torchrun(out: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    return subprocess.run(
        [*command, str(SCRIPT), str(out)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        check=False,
    )


def write_images(folder: Path, classes: str) -> None:
    rng = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for i in range(6):
            pixels = rng.integers(0, 80, (32, 32, 3)) + 40 * "abcd".index(name)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{i}.png")


def stop() -> None:
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case by two processes (NAME) and by one (NAME-alone); the last one killed."""
    out = tmp_path_factory.mktemp("distributed")
    for name, versions in CASES.items():
        keep(versions(None), out / f"{name}-alone")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [fork(first_session, out, rank, port) for rank in range(2)]
    for process in ranks:
        process.join()
    assert (out / "streamed" / "v2.json").exists()
    assert ranks[0].exitcode == -signal.SIGKILL
    assert ranks[1].exitcode not in (0, -signal.SIGKILL)  # it has lost the other
    return out


@pytest.fixture(scope="module")
def second(first: Path) -> tuple[Path, subprocess.CompletedProcess[str]]:
    write_images(first / "images-train", "ab")
    write_images(first / "images-upgrade", "cd")
    Workspace.create(first / "shop")
    with pytest.raises(KeyboardInterrupt):
        interrupted(first / "begun-by-one", stop)
    list(CASES["hoc"](first / "held"))
    with exclusive(first / "held"):
        return first, torchrun(first)


def logged(out: Path, version: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((out / f"{version}.json").read_text())
    return entries


def weights(out: Path, version: str) -> Iterator[tuple[str, torch.Tensor]]:
    return iter(Encoder.load(out / version).state_dict().items())


def require_close(a: Path, b: Path, version: str) -> None:
    for (name, value), (_, other) in zip(weights(a, version), weights(b, version), strict=True):
        torch.testing.assert_close(value, other, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("case", CASES)
def test_two_processes_make_the_losses_and_weights_of_one(
    first: Path, case: str, version: str
) -> None:
    alone, together = (logged(first / name, version) for name in (f"{case}-alone", case))
    assert len(alone) == len(together) >= 2
    for one, two in zip(alone, together, strict=True):
        assert one["stage"] == two["stage"]
        assert two["terms"] == pytest.approx(one["terms"], rel=1e-5, abs=1e-6)
        assert one["scores"] == pytest.approx(two["scores"])
    require_close(first / f"{case}-alone", first / case, version)


def test_the_cases_are_not_trivial(first: Path) -> None:
    assert set(logged(first / "hoc", "v2")[0]["terms"]) == {"ce", "hoc"}
    assert {entry["stage"] for entry in logged(first / "foster", "v2")} == {
        "training",
        "compression",
    }
    assert logged(first / "selected", "v2")[0]["scores"] is not None
    assert logged(first / "hoc", "v2")[-1]["terms"] != logged(first / "hoc", "v2")[0]["terms"]


@pytest.mark.long
def test_a_killed_run_resumes_to_the_same_weights(second: tuple[Path, Any]) -> None:
    out, session = second
    for version in ("v1", "v2"):
        same = [digest(Encoder.load(out / name / version)) for name in ("hoc", "resumed")]
        assert same[0] == same[1], session.stderr
    assert logged(out / "resumed", "v2") == logged(out / "hoc", "v2")
    assert not list((out / "killed").glob("checkpoint-*"))


@pytest.mark.long
def test_two_processes_go_on_with_what_one_began(second: tuple[Path, Any]) -> None:
    out, _ = second
    require_close(out / "hoc-alone", out / "resumed-by-two", "v2")
    alone, together = (logged(out / name, "v2") for name in ("hoc-alone", "resumed-by-two"))
    for one, two in zip(alone, together, strict=True):
        assert two["terms"] == pytest.approx(one["terms"], rel=1e-5)


@pytest.mark.long
def test_what_cannot_work_is_refused_by_every_process(second: tuple[Path, Any]) -> None:
    out, session = second
    answers = [json.loads((out / f"answers-{rank}.json").read_text()) for rank in range(2)]
    assert answers[0] == answers[1], session.stderr
    kind, message = answers[0]["held"]
    assert kind == "CheckpointError"
    check_wording(message)
    check_wording(answers[0]["seeds"][1])


@pytest.mark.long
def test_the_command_line_speaks_with_one_voice(
    second: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    out, session = second
    assert json.loads(session.stdout)["version"] == "v1"  # one document, not two
    assert session.stderr.count("12 images of 2 classes: a, b") == 1
    assert Workspace(out / "shop").versions() == ["v1"]


@pytest.mark.long
def test_an_error_of_one_process_ends_all_and_is_told(
    second: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, session = second
    assert session.returncode != 0
    assert "fixstar: process 1: the second process cannot go on" in session.stderr
    told = [line for line in session.stderr.splitlines() if line.startswith("fixstar: ")]
    assert len(told) <= 2
    assert all("lost the others" in line or "cannot go on" in line for line in told)


@pytest.mark.parametrize(("total", "size"), [(9, 2), (8, 2), (7, 3), (2, 4)])
def test_shares_cover_every_row_once(total: int, size: int) -> None:
    rows = [list(range(total))[World(rank, size).share(total)] for rank in range(size)]
    assert [row for part in rows for row in part] == list(range(total))
    assert max(map(len, rows)) - min(map(len, rows)) <= 1
    assert len(rows[0]) == max(map(len, rows))


def test_one_process_is_a_world_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert world() == World(0, 1)
    assert all_gather_json({"a": 1}) == [{"a": 1}]
    assert from_rank_zero(lambda: 3) == 3
    assert local_device(torch.device("cuda", 1)) == torch.device("cuda", 1)


def test_each_process_takes_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(
        "fixstar.training.distributed.world", lambda: World(3, 4, local_rank=1, local_size=2)
    )
    assert local_device(torch.device("cuda")) == torch.device("cuda", 1)
    assert local_device(torch.device("cpu")) == torch.device("cpu")
    assert chosen == [1]
    with pytest.raises(InputError, match="device='cuda'"):
        local_device(torch.device("cuda", 0))
    monkeypatch.setattr(
        "fixstar.training.distributed.world", lambda: World(3, 4, local_rank=3, local_size=4)
    )
    with refuses(InputError):
        local_device(torch.device("cuda"))
