"""Sequences of versions: slots, memory, initial weights, resuming after a real kill."""

from __future__ import annotations

import itertools
import json
import signal
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import fork, kill_at_call
from PIL import Image
from wording import refuses

from fixstar.data import (
    Augmentation,
    ImageSet,
    ReplayMemory,
    Task,
    TaskStream,
    class_stream,
    from_arrays,
)
from fixstar.data.formats import image_folder
from fixstar.errors import CheckpointError, InputError
from fixstar.methods import create_method
from fixstar.models import Encoder
from fixstar.training import EpochLog, Recipe, Settings, Training, run_scenario
from fixstar.training.scenarios import _first_vectors, remember

SETTINGS = Settings(
    backbone="tiny",
    backbone_options={"in_channels": 1, "width": 4},
    capacity=12,
    recipe=Recipe(epochs=2, learning_rate=0.05, milestones=(1,), batch_size=8),
    augmentation=Augmentation(crop_padding=1),
    replay_per_class=2,
)


def stripes(classes: int = 6, per_class: int = 8) -> ImageSet:
    """Class k: stripes of period k + 2, with noise."""
    rng = np.random.default_rng(0)
    columns = np.arange(32)
    patterns = np.stack([((columns // (k + 2)) % 2) * 120 for k in range(classes)])
    labels = np.repeat(np.arange(classes), per_class)
    noise = rng.integers(0, 100, (len(labels), 32, 32))
    return from_arrays((patterns[labels][:, None, :] + noise).astype(np.uint8), labels)


def stream() -> TaskStream:
    return class_stream(stripes(), 2, 2)


def same_weights(a: Encoder, b: Encoder) -> bool:
    x, y = a.state_dict(), b.state_dict()
    return x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)


def test_lifelong_versions_keep_slots_and_grow() -> None:
    versions = list(run_scenario(stream(), create_method("hoc"), SETTINGS, progress=False))
    assert [v.name for v in versions] == ["v1", "v2", "v3"]
    assert [len(v.encoder.slots) for v in versions] == [2, 4, 6]
    for older, newer in itertools.pairwise(versions):
        assert older.encoder.slots.by_class.items() <= newer.encoder.slots.by_class.items()
    assert "hoc" not in versions[0].log[0].terms
    assert "hoc" in versions[1].log[0].terms
    assert versions[1].encoder.about["parent"] == "v1"


def test_a_trainable_head_grows_with_the_classes() -> None:
    versions = list(run_scenario(stream(), create_method("er"), SETTINGS, progress=False))
    assert [v.encoder.classifier.outputs for v in versions] == [2, 4, 6]


def test_cores_starts_every_version_from_the_same_weights_and_itm_does_not() -> None:
    """With a learning rate of almost nothing the versions are their initial weights."""
    still = replace(SETTINGS, recipe=Recipe(epochs=1, learning_rate=1e-12, batch_size=8))

    def first_layers(name: str, **options: Any) -> list[torch.Tensor]:
        versions = list(
            run_scenario(
                stream(),
                create_method(name, **options),
                still,
                progress=False,
                scenario="retraining",
            )
        )
        return [v.encoder.get_parameter("backbone.fc.weight") for v in versions]

    for same in (first_layers("cores"), first_layers("cores", initialisation="previous")):
        torch.testing.assert_close(same[0], same[1], atol=1e-6, rtol=0)
    for other in (first_layers("itm"), first_layers("cores", initialisation="fresh")):
        assert (other[0] - other[1]).abs().max() > 0.01


def test_lifelong_goes_on_from_the_last_weights() -> None:
    """The learning rate is almost nothing, so the second version is still the first."""
    still = replace(SETTINGS, recipe=Recipe(epochs=1, learning_rate=1e-12, batch_size=8))
    a, b, _ = run_scenario(stream(), create_method("hoc"), still, progress=False)
    torch.testing.assert_close(
        a.encoder.get_parameter("backbone.fc.weight"),
        b.encoder.get_parameter("backbone.fc.weight"),
        atol=1e-6,
        rtol=0,
    )


def test_more_classes_than_slots_are_refused() -> None:
    small = replace(SETTINGS, capacity=5)
    with pytest.raises(InputError, match="K=5"):
        list(run_scenario(stream(), create_method("hoc"), small, progress=False))


def test_a_memory_holds_no_fewer_than_no_images() -> None:
    with refuses(InputError):
        ReplayMemory(-1)


def test_the_seed_decides() -> None:
    def final(seed: int) -> Encoder:
        settings = replace(SETTINGS, seed=seed)
        return list(run_scenario(stream(), create_method("hoc"), settings, progress=False))[
            -1
        ].encoder

    assert same_weights(final(1), final(1))
    assert not same_weights(final(1), final(2))


def test_a_finished_run_is_read_back_and_another_one_is_refused(tmp_path: Path) -> None:
    first = list(
        run_scenario(stream(), create_method("hoc"), SETTINGS, tmp_path / "run", progress=False)
    )
    again = list(
        run_scenario(stream(), create_method("hoc"), SETTINGS, tmp_path / "run", progress=False)
    )
    assert all(same_weights(a.encoder, b.encoder) for a, b in zip(first, again, strict=True))
    assert not list((tmp_path / "run").glob("checkpoint*"))
    with refuses(CheckpointError):
        list(
            run_scenario(
                stream(), create_method("hoc", lam=0.5), SETTINGS, tmp_path / "run", progress=False
            )
        )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("precious")
    with pytest.raises(CheckpointError, match="holds other files"):
        list(
            run_scenario(
                stream(), create_method("hoc"), SETTINGS, tmp_path / "other", progress=False
            )
        )


def test_settings_survive_json() -> None:
    assert Settings.from_json(json.loads(json.dumps(SETTINGS.to_json()))) == SETTINGS


def test_a_kill_between_saving_and_clearing_up_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of a finished version stays behind; the next version must not trip over it."""
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        (
            next(
                run_scenario(
                    stream(), create_method("hoc"), SETTINGS, tmp_path / "run", progress=False
                )
            )
        )
    assert list((tmp_path / "run").glob("checkpoint-v1*"))
    resumed = list(
        run_scenario(stream(), create_method("hoc"), SETTINGS, tmp_path / "run", progress=False)
    )
    whole = list(run_scenario(stream(), create_method("hoc"), SETTINGS, progress=False))
    assert all(same_weights(a.encoder, b.encoder) for a, b in zip(resumed, whole, strict=True))


def test_a_directory_has_one_trainer_at_a_time(tmp_path: Path) -> None:
    first = run_scenario(stream(), create_method("hoc"), SETTINGS, tmp_path / "run", progress=False)
    next(first)
    with pytest.raises(CheckpointError, match="another process"):
        next(
            run_scenario(stream(), create_method("hoc"), SETTINGS, tmp_path / "run", progress=False)
        )
    first.close()  # type: ignore[attr-defined]
    assert (
        len(
            list(
                run_scenario(
                    stream(), create_method("hoc"), SETTINGS, tmp_path / "run", progress=False
                )
            )
        )
        == 3
    )


class Spy:
    """Stands in for the loop and keeps what it was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs: list[Training] = []
        monkeypatch.setattr("fixstar.training.version.train", self)

    def __call__(self, run: Training) -> list[EpochLog]:
        self.runs.append(run)
        run.encoder.eval()
        return [EpochLog(0, 0.1, {"ce": 1.0})]

    def shown(self, run: int, replay: bool) -> list[tuple[bytes, str]]:
        """Every image of a lane with the class that its target stands for."""
        encoder = self.runs[run].encoder
        owners = {slot: name for name, slot in encoder.slots.by_class.items()}
        lane = next(lane for lane in self.runs[run].batches._sources if lane.replay == replay)
        padded = lane.pixels.padded.numpy()[:, :, 1:-1, 1:-1]  # type: ignore[attr-defined]
        return [
            (image.tobytes(), owners[int(t)]) for image, t in zip(padded, lane.targets, strict=True)
        ]


def truth() -> set[tuple[bytes, str]]:
    images = stripes()
    return {
        (i.tobytes(), images.classes[label])
        for i, label in zip(images.images, images.labels, strict=True)
    }


def test_what_a_lifelong_version_is_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(monkeypatch)
    shuffled = class_stream(stripes(), 2, 2, order_seed=4)
    list(run_scenario(shuffled, create_method("hoc"), SETTINGS, progress=False))
    assert [len(run.batches._sources) for run in spy.runs] == [1, 2, 2]
    assert [run.teacher is None for run in spy.runs] == [True, False, False]
    for number in (1, 2):
        new, old = spy.shown(number, replay=False), spy.shown(number, replay=True)
        assert {*new, *old} <= truth()
        assert {name for _, name in new} == set(shuffled[number].images.classes)
        assert Counter(name for _, name in old) == dict.fromkeys(
            shuffled.class_order[: 2 * number], 2
        )


def test_what_a_retrained_version_is_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(monkeypatch)
    list(
        run_scenario(
            class_stream(stripes(), 2, 2, order_seed=4),
            create_method("cores"),
            SETTINGS,
            progress=False,
        )
    )
    assert [len(run.batches._sources) for run in spy.runs] == [1, 1, 1]
    assert [len(spy.shown(number, replay=False)) for number in range(3)] == [16, 32, 48]
    assert set(spy.shown(2, replay=False)) == truth()


@pytest.mark.parametrize("selection", ["random", "herding"])
def test_images_that_were_skipped_are_not_remembered_and_stop_nothing(
    tmp_path: Path, selection: Any
) -> None:
    for i, (image, label) in enumerate(zip(stripes(2).images, stripes(2).labels, strict=True)):
        path = tmp_path / "images" / str(label) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.squeeze()).save(path)
    for broken in sorted((tmp_path / "images" / "0").iterdir())[:6]:
        broken.write_bytes(b"")
    settings = replace(SETTINGS, bad_images="skip", selection=selection)
    data = image_folder(tmp_path / "images")
    task = TaskStream((Task(1, data),), data.classes)
    with pytest.warns(UserWarning, match="left out"):
        list(run_scenario(task, create_method("hoc"), settings, tmp_path / "run", progress=False))
    memory = ReplayMemory.load(tmp_path / "run" / "memory" / "v1.safetensors").images
    assert memory is not None
    assert memory.counts() == {"0": 2, "1": 2}


def three_versions(directory: Path) -> None:
    list(run_scenario(stream(), create_method("hoc"), SETTINGS, directory, progress=False))


def killed_run(directory: Path, calls: int) -> None:
    sys.setprofile(kill_at_call(calls))
    three_versions(directory)


def test_kill_9_again_and_again_ends_with_bitwise_the_same_weights(tmp_path: Path) -> None:
    """Killed ever later, at a write or any other call into the system, until it comes to its end."""
    three_versions(tmp_path / "whole")
    for kills in itertools.count():
        process = fork(killed_run, tmp_path / "cut", 60 * 2**kills)
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert kills >= 3
    for name in ("v1", "v2", "v3"):
        a, b = (Encoder.load(tmp_path / run / "versions" / name) for run in ("whole", "cut"))
        assert same_weights(a, b), name
    assert [path.name for path in (tmp_path / "cut").rglob(".*")] == [".lock"]


def test_first_vectors_are_those_of_the_version_that_learnt_the_class() -> None:
    """CVS holds a class there ever after; models of another width begin again."""
    versions = list(run_scenario(stream(), create_method("cvs"), SETTINGS, progress=False))
    assert all(version.images is not None for version in versions)
    memory, kept = ReplayMemory(2), None
    for version in versions:
        memory = remember(memory, version, SETTINGS)
        kept = _first_vectors(kept, version.encoder, memory)
    assert kept is not None
    assert kept.classes == tuple("012345")
    assert memory.images is not None
    for number, version in enumerate(versions):
        mine = memory.images.of_classes([str(2 * number), str(2 * number + 1)])
        stored = kept.vectors[np.isin(kept.labels, [2 * number, 2 * number + 1])]
        np.testing.assert_allclose(stored, version.encoder.encode(mine.images), atol=1e-5)
    wider = Encoder.create(
        "tiny", "linear", classes=["0"], backbone_options={"in_channels": 1, "feature_dim": 9}
    )
    again = _first_vectors(kept, wider, memory)
    assert again is not None
    assert again.vectors.shape == (12, 9)
