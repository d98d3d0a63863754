"""Embedding on a local Ray cluster: the same vectors in the same order, whoever dies on the way."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shops import passed, pictures, shop
from text_models import bert_folder, embeddings_server, own_settings, topic_texts
from wording import refuses

from fixstar.errors import InputError, ModelError
from fixstar.models import Encoder
from fixstar.trust import remember, trusting
from fixstar.workspace import BackfillOptions, Workspace, catalogue
from fixstar.workspace.cluster import RayEmbedder
from fixstar.workspace.items import LocalEmbedder, text_item

__all__ = ["own_settings"]  # a fixture

pytestmark = pytest.mark.skipif(
    find_spec("ray") is None, reason="the extra cluster is not installed"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two nodes on this machine. Ray gives up on a node after 30 s, whatever else runs: then it is started again."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    os.environ.update(RAY_worker_niceness="0")  # else they wait for every other test
    for attempt in range(4):
        nodes = Cluster()
        try:
            nodes.add_node(num_cpus=1, include_dashboard=False)
            nodes.add_node(num_cpus=1)
            ray.init(address=nodes.address, log_to_driver=False, logging_level=logging.ERROR)
            break
        except Exception as error:
            ray.shutdown()
            nodes.shutdown()  # type: ignore[no-untyped-call]
            if attempt == 3:
                pytest.skip(f"Ray did not start on this machine: {error}")
    yield
    ray.shutdown()
    nodes.shutdown()  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, Path]:
    folder = tmp_path_factory.mktemp("cluster")
    return shop(folder / "shop"), pictures(folder / "photos", 8)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_answers_are_those_of_one_process_in_order_and_a_dead_worker_costs_nothing(
    upgraded: tuple[Workspace, Path],
) -> None:
    import ray

    space, photos = upgraded
    directory = space.registry.directory("v2")
    paths: list[Any] = sorted(photos.rglob("*.png"))
    broken = photos / "hat" / "broken.png"
    broken.write_bytes(b"no image")
    batches = [
        paths[:5],
        [broken, *paths[5:7]],
        paths[7:8],
        [np.asarray(np.zeros((32, 32, 3), np.uint8))],
        paths[8:],
    ]
    expected = list(LocalEmbedder(Encoder.load(directory))(batches))
    broken_batch = [expected[1].bad[0].index, expected[1].bad[0].reason]
    with RayEmbedder(directory, "auto", workers=2) as embedder:
        assert len(embedder._workers) == 2
        process = ray.get(embedder._workers[0].__ray_call__.remote(lambda _: os.getpid()))
        answers = []
        for number, answer in enumerate(embedder(iter(batches))):
            answers.append(answer)
            if number == 0:
                os.kill(
                    process, signal.SIGKILL
                )  # batches 2 and 4 are its own, and may be under way
    broken.unlink()
    assert len(answers) == len(batches)
    for answer, wanted in zip(answers, expected, strict=True):
        np.testing.assert_allclose(answer.vectors, wanted.vectors, atol=1e-5)
        answer.vectors[:] = 0  # it may be written to
    assert [answers[1].bad[0].index, answers[1].bad[0].reason] == broken_batch
    assert [len(answer.bad) for answer in answers] == [0, 1, 0, 0, 0]


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_a_worker_prepares_a_batch_while_the_model_works_on_another(
    upgraded: tuple[Workspace, Path], tmp_path: Path
) -> None:
    import ray

    came = tmp_path / "came"

    def first(_: Any) -> bool:
        """Ends when the second call is there too."""
        until = time.monotonic() + 60
        while not came.exists() and time.monotonic() < until:
            time.sleep(0.05)
        return came.exists()

    with RayEmbedder(upgraded[0].registry.directory("v2"), "auto", workers=1) as embedder:
        (worker,) = embedder._workers
        waiting = worker.__ray_call__.remote(first)
        ray.get(worker.__ray_call__.remote(lambda _: came.touch()))
        assert ray.get(waiting)


@pytest.mark.usefixtures("cluster")
def test_a_backfill_runs_on_the_cluster(upgraded: tuple[Workspace, Path]) -> None:
    space, photos = upgraded
    with space:
        space.index(catalogue(photos))
        passed(space, "v2", "v1")
        space.deploy("v2")
        done = space.backfill(BackfillOptions("all", "random", cluster="auto", workers=1))
        assert (done.done, done.left, space.gallery.count()) == (24, 0, {"v1": 0, "v2": 24})
        items = list(space.gallery.iterate("v2"))
        vectors = space.serving.embed("v2", [photos / item.id for item in items])
        np.testing.assert_allclose(np.stack([item.vector for item in items]), vectors, atol=1e-5)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_texts_are_indexed_and_backfilled_on_the_cluster(tmp_path: Path) -> None:
    texts = topic_texts(4)
    with Workspace.create(tmp_path / "notes", device="cpu") as space:
        space.add_version(f"hf:{bert_folder(tmp_path / 'bert')}")
        items = [
            text_item(f"note-{row}", text, {"label": label})
            for row, (text, label) in enumerate(texts)
        ]
        with RayEmbedder(space.registry.directory("v1").absolute(), "auto", workers=1) as embedder:
            space.index(items, embedder=embedder)
        space.add_version(f"hf:{bert_folder(tmp_path / 'other', seed=1)}")
        passed(space, "v2", "v1")
        space.deploy("v2")
        ids = [item.id for item in items]
        for version in ("v1", "v2"):
            if version == "v2":
                done = space.backfill(BackfillOptions("all", "random", cluster="auto", workers=1))
                assert (done.done, done.left) == (len(texts), 0)
            stored = {item.id: item.vector for item in space.gallery.iterate(version)}
            expected = space.serving.embed(version, [text for text, _ in texts])
            np.testing.assert_allclose(
                np.stack([stored[name] for name in ids]), expected, atol=1e-5
            )


@pytest.mark.long
@pytest.mark.usefixtures("cluster", "own_settings")
def test_workers_ask_a_server_together_as_often_as_is_allowed(tmp_path: Path) -> None:
    texts = [text for text, _ in topic_texts(3)]
    with embeddings_server() as server, trusting(server.address):
        with Workspace.create(tmp_path / "notes", device="cpu") as space:
            space.add_version(server.url(), per_minute=600)
            directory = space.registry.directory("v1").absolute()
            remember(space.path, server.address)
        with RayEmbedder(directory, "auto", workers=2) as embedder:
            list(embedder([[texts[0]], [texts[1]]]))  # both workers have the model now
            server.requests.clear()
            started = time.monotonic()
            made = list(embedder([[text] for text in texts]))
            took = time.monotonic() - started
        assert sorted(body["input"][0] for body in server.requests) == sorted(texts)
        assert (
            took >= 0.8
        )  # twelve requests, ten per second: five pauses of 0.2 s for each of two workers
        expected = np.array([server.vector(text) for text in texts])
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(
            np.concatenate([one.vectors for one in made]), expected, atol=1e-5
        )


def test_what_a_worker_cannot_load_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nothing"):
        RayEmbedder(tmp_path / "nothing", workers=1)
    with refuses(InputError):
        RayEmbedder(tmp_path, workers=0)
