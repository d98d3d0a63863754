"""Training as jobs: a version or nothing, whatever ends them."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError
from service_clients import client, ended, picture
from shops import pictures
from wording import check_wording

from fixstar.data import open_images
from fixstar.data.formats import open_images_within
from fixstar.methods import create_method
from fixstar.service.client import Client
from fixstar.service.jobs import Job, JobFiles, Jobs
from fixstar.service.keys import Keys
from fixstar.training import Recipe, Settings, loop
from fixstar.training.checkpoint import save_checkpoint
from fixstar.workspace import Workspace, catalogue
from fixstar.workspace.verify import verify_workspace

EPOCHS = 3
QUICK = {"options": {"hold": 10.0}, "trials": 0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with v1, trained on nine pictures, and these as its items."""
    folder = tmp_path_factory.mktemp("trained")
    recipe = Recipe(epochs=EPOCHS, milestones=(), learning_rate=0.01, batch_size=8)
    settings = Settings("tiny", capacity=64, recipe=recipe, replay_per_class=2, device="cpu")
    with Workspace.create(folder / "shop", device="cpu") as space:
        space.train(
            open_images(pictures(folder / "photos")),
            settings,
            create_method("polaris"),
            progress=False,
        )
        space.index(catalogue(folder / "photos"))
    return folder


@pytest.fixture
def space(trained: Path, tmp_path: Path) -> Iterator[Workspace]:
    shutil.copytree(trained / "shop", tmp_path / "shop")
    with Workspace(tmp_path / "shop", device="cpu") as made:
        yield made


class Gate:
    """Holds a training after an epoch, once its checkpoint is on disk, until it is let go; counts the epochs."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, after: Callable[[], None] = lambda: None
    ) -> None:
        self.entered, self.free, self.epochs = threading.Semaphore(0), threading.Semaphore(0), 0
        save, held = save_checkpoint, self

        def saved(*state: Any) -> None:
            save(*state)
            held.epochs += 1
            after()
            held.entered.release()
            assert held.free.acquire(timeout=120)

        monkeypatch.setattr(loop, "save_checkpoint", saved)


def is_clean(space: Workspace) -> bool:
    """Whether nothing of a training is left but the versions."""
    jobs = list((space.path / "state" / "jobs").glob("*.images"))
    return (
        space.registry.unfinished() is None and not jobs and not list(space.path.rglob("*.partial"))
    )


def submitted(work: Jobs, **changes: Any) -> Job:
    settings = {
        "method": None,
        "epochs": None,
        "learning_rate": None,
        "hold_out": None,
        "backbone": None,
        "seed": None,
    }
    return work.submit("upgrade", {**settings, "data": None, **QUICK, **changes})


def waited(work: Jobs, job: Job) -> Job:
    end = threading.Event()
    for _ in range(6000):
        if (seen := work.get(job.id)).has_ended:
            return seen
        end.wait(0.02)
    raise AssertionError(seen)


def test_the_first_version_and_an_upgrade_over_http(tmp_path: Path, trained: Path) -> None:
    space = Workspace.create(tmp_path / "shop", device="cpu")
    with client(space, training_images=trained) as http:
        shop = Client()
        shop._http = http  # type: ignore[assignment]
        assert http.get("/readyz").status_code == 503
        assert shop.status().versions == ()
        quick = {"epochs": 1, "backbone": "tiny", "capacity": 64, "options": {"rotated": False}}
        first = shop.wait(shop.train("photos", **quick), every=0.02)
        assert first.result is not None
        assert (first.kind, first.result["version"], first.result["classes"]) == ("train", "v1", 3)
        assert http.get("/readyz").json()["version"] == "v1"
        for number in range(6):
            shop.add({f"i{number}": picture(number)}, {f"i{number}": {"label": "ab"[number % 2]}})
        shop.add([picture(9)])  # no label: nothing to learn from
        second = shop.wait(shop.upgrade(epochs=1, trials=0, hold_out=0), every=0.02)
        assert second.result is not None
        assert second.result["next_steps"][0]["request"]["path"] == "/v1/versions/v2/check"
        assert (second.result["version"], second.result["images"], second.result["classes"]) == (
            "v2",
            6 + 9,
            2 + 3,
        )
        card = http.get("/v1/versions/v2").json()
        assert (card["parent"], card["trained"]["name"], card["deployed"]) == (
            "v1",
            "stored items+earlier images",
            False,
        )
        assert shop.wait(shop.upgrade("photos", epochs=1, trials=0), every=0.02).result is not None
        assert [one.name for one in shop.versions()] == ["v1", "v2", "v3"]
        assert is_clean(space)


def test_a_cancelled_training_leaves_nothing(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    with client(space) as http:
        job = http.post("/v1/upgrade", json=QUICK).json()
        assert gate.entered.acquire(timeout=120)
        seen = http.get(f"/v1/jobs/{job['id']}").json()
        assert (seen["done"] > 0, seen["total"] > 0, "training v2" in seen["message"]) == (
            True,
            True,
            True,
        )
        assert http.get("/v1/status").json()["versions"] == ["v1"]
        again = http.post("/v1/upgrade", json=QUICK)
        assert (again.status_code, again.json()["type"]) == (409, "/problems/already-running")
        http.post(f"/v1/jobs/{job['id']}/cancel")
        gate.free.release(100)
        over = ended(http, job)
        assert (over["state"], over["message"]) == ("cancelled", "no version was made")
        assert gate.epochs < EPOCHS
        assert is_clean(space)
        assert space.versions() == ["v1"]
        other = http.post(
            "/v1/upgrade", json={**QUICK, "seed": 5}
        ).json()  # other settings: nothing to trip over
        assert ended(http, other)["state"] == "done"


def test_after_a_stop_the_training_resumes_with_the_same_images(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    work = Jobs(space)
    work.start()
    job = submitted(work)
    assert gate.entered.acquire(timeout=120)
    stopping = threading.Thread(target=work.stop)
    stopping.start()
    while not work._stopping:
        pass
    gate.free.release(100)
    stopping.join()
    assert gate.epochs == 1
    space.gallery.delete(["bag/0.png"])  # it was among the images
    again = Jobs(space)
    again.start()
    done = waited(again, job)
    again.stop()
    assert (done.state, gate.epochs) == ("done", EPOCHS)
    assert done.result is not None
    assert done.result["images"] == 9 - len(open_held_out(space))
    assert is_clean(space)


def open_held_out(space: Workspace) -> list[Any]:
    from fixstar.workspace.held_out import held_out_images

    found = held_out_images(space.path, ["v2"], space.encoder("v2").preprocessing)
    return [] if found is None else list(found.images)


def test_a_kill_just_after_the_training_makes_no_second_version(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, work, files = Gate(monkeypatch), Jobs(space), JobFiles(space.path)
    work.start()
    job = submitted(work)
    assert gate.entered.acquire(timeout=120)
    images = files.images(job.id).read_text()
    gate.free.release(100)
    done = waited(work, job)
    work.stop()
    files.save(replace(job, state="running", attempts=1))
    files.images(job.id).write_text(images)
    again = Jobs(space)
    again.start()
    assert waited(again, job).result == done.result
    again.stop()
    assert space.versions() == ["v1", "v2"]
    assert is_clean(space)


def test_a_failed_training_leaves_nothing(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "no room")

    Gate(monkeypatch, full)
    with client(space) as http:
        over = ended(http, http.post("/v1/upgrade", json=QUICK).json())
    assert (over["state"], over["error"]["type"]) == ("failed", "/problems/disk-full")
    assert is_clean(space)
    assert space.versions() == ["v1"]


@pytest.mark.parametrize(
    "error",
    [
        SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        ),
        OSError("1000000 requested and 131056 written"),  # NumPy's
    ],
)
def test_a_full_disk_is_not_a_bug(
    space: Workspace, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full() -> None:
        raise error

    Gate(monkeypatch, full)
    with client(space) as http:
        over = ended(http, http.post("/v1/upgrade", json=QUICK).json())
    assert (over["state"], over["error"]["type"]) == ("failed", "/problems/disk-full")


def test_readers_do_not_learn_what_is_on_the_disk(
    space: Workspace, trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained / "photos", tmp_path / "sets" / "photos")
    (tmp_path / "sets" / "photos" / "private.jpg").write_bytes(picture(1))  # a class is missing
    key = {
        role: {"X-API-Key": Keys(space.path).add(role, role)} for role in ("read", "write", "admin")
    }
    with client(space, training_images=tmp_path / "sets") as http:
        job = http.post(
            "/v1/upgrade", json={**QUICK, "data": "photos"}, headers=key["admin"]
        ).json()
        over = ended(http, job, headers=key["admin"])
        assert over["state"] == "failed"
        assert "private.jpg" in over["error"]["detail"]
        assert str(tmp_path) not in str(over)
        for role in ("read", "write"):
            one = http.get(f"/v1/jobs/{job['id']}", headers=key[role]).json()
            (listed,) = http.get("/v1/jobs", headers=key[role]).json()
            assert one == listed
            assert "private" not in str(one)
            assert one["error"]["title"] == over["error"]["title"]


@pytest.mark.parametrize("kind", ["folder", "file", "list"])
def test_a_training_folder_is_not_left(
    space: Workspace, trained: Path, tmp_path: Path, kind: str
) -> None:
    photos = tmp_path / "sets" / "photos"
    shutil.copytree(trained / "photos", photos)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(trained / "photos", elsewhere)
    inside = next(path for path in photos.iterdir() if path.is_dir())
    (photos / "same").symlink_to(inside)  # within: it may be followed
    assert len(open_images_within(photos)) == len(open_images(photos)) > 9
    (photos / "same").unlink()
    other = next(elsewhere.rglob("*.png"), None) or next(
        path for path in elsewhere.rglob("*") if path.is_file()
    )
    if kind == "folder":
        (photos / "more").symlink_to(elsewhere)
    elif kind == "file":
        (inside / f"more{other.suffix}").symlink_to(other)
    else:
        (photos / "train.csv").write_text(
            f"path,label\n../../elsewhere/{other.relative_to(elsewhere)},more\n"
        )
    with client(space, training_images=tmp_path / "sets") as http:
        over = ended(http, http.post("/v1/upgrade", json={**QUICK, "data": "photos"}).json())
    assert over["state"] == "failed"
    check_wording(over["error"]["detail"])
    assert space.versions() == ["v1"]


def test_names_that_are_not_utf8(space: Workspace, trained: Path, tmp_path: Path) -> None:
    photos = tmp_path / "sets" / "photos"
    shutil.copytree(trained / "photos", photos)
    folder = next(path for path in photos.iterdir() if path.is_dir())
    first = next(folder.iterdir())
    first.rename(folder / os.fsdecode(b"sch\xf6n" + first.suffix.encode()))
    with client(space, training_images=tmp_path / "sets") as http:
        done = ended(
            http, http.post("/v1/upgrade", json={**QUICK, "epochs": 1, "data": "photos"}).json()
        )
        assert done["state"] == "done", done["error"]
        folder.rename(photos / os.fsdecode(b"sch\xf6n"))
        over = ended(http, http.post("/v1/upgrade", json={**QUICK, "data": "photos"}).json())
    assert (over["state"], over["error"]["type"]) == ("failed", "/problems/unusable-data")
    check_wording(over["error"]["detail"])
    assert list(verify_workspace(space.path)) == []


def test_the_training_of_another_is_left_alone(space: Workspace) -> None:
    theirs = space.path / "checkpoint-v2.safetensors"
    theirs.write_bytes(b"theirs")
    work = Jobs(space)
    work.start()
    failed = waited(work, submitted(work))
    work.stop()
    assert failed.error is not None
    assert failed.error["type"] == "/problems/training-unfinished"
    assert theirs.read_bytes() == b"theirs"
    with client(space) as http:
        assert http.post("/v1/upgrade").status_code == 409


def test_what_cannot_be_trained_is_refused_at_once(space: Workspace, tmp_path: Path) -> None:
    allowed = tmp_path / "sets"
    allowed.mkdir()
    (allowed / "out").symlink_to(tmp_path)
    (allowed / "in").mkdir()
    key = {role: Keys(space.path).add(role, role) for role in ("write", "admin")}
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"method": "magic"}, 404, "magic"),
        ({"options": {"magic": 1}}, 400, "no option magic"),
        ({"backbone": "hf:facebook/dinov2-small"}, 404, "backbone"),
        ({"backbone": str(space.path)}, 422, "backbone"),
        ({"epochs": 0}, 422, "epochs"),
        ({"trials": 1}, 400, "2 or more"),
        ({"data": "none"}, 404, "no folder 'none'"),
        ({"data": "../shop"}, 404, "no folder"),
        ({"data": str(space.path)}, 404, "no folder"),
        ({"data": "out"}, 404, "leads out"),
        ({"data": "in/../../shop"}, 404, "no folder 'in/../../shop'"),
        ({"data": "in/../../none"}, 404, "no folder 'in/../../none'"),
        ({"data": "in/.."}, 404, "no folder"),
        ({"device": "cuda"}, 422, "device"),
    ]
    with client(space, training_images=allowed) as http:
        assert (
            http.post(
                "/v1/upgrade", headers={"Authorization": f"Bearer {key['write']}"}
            ).status_code
            == 403
        )
        admin = {"Authorization": f"Bearer {key['admin']}"}
        assert "in" in http.get("/v1/status", headers=admin).json()["training_images"]
        reading = {"Authorization": f"Bearer {key['write']}"}
        assert (
            http.get("/v1/status", headers=reading).json()["training_images"] == []
        )  # names are the operator's
        for body, status, says in cases:
            answer = http.post("/v1/upgrade", json=body, headers=admin)
            assert (answer.status_code, says in answer.json()["detail"]) == (status, True), (
                answer.json()
            )
        again = http.post("/v1/train", json={"data": "none"}, headers=admin)
        assert again.status_code == 404
        (allowed / "some").mkdir()
        again = http.post("/v1/train", json={"data": "some"}, headers=admin)
        assert (again.status_code, again.json()["next_steps"][0]["action"]) == (400, "upgrade")
        assert http.get("/v1/jobs", headers=admin).json() == []


def test_without_a_folder_or_labelled_items_there_is_nothing_to_train_on(
    space: Workspace, tmp_path: Path
) -> None:
    with client(Workspace.create(tmp_path / "new", device="cpu")) as http:
        assert (
            http.post("/v1/train", json={"data": "x"}).json()["type"]
            == "/problems/no-training-images"
        )
        empty = http.post("/v1/upgrade")
        assert (empty.status_code, empty.json()["next_steps"][0]["action"]) == (400, "train")
    space.gallery.delete([item.id for item in space.gallery.iterate()])
    with client(space) as http:
        over = ended(http, http.post("/v1/upgrade", json=QUICK).json())
    assert (over["state"], "no stored item" in over["error"]["detail"]) == ("failed", True)
    assert is_clean(space)
