"""Stages of a version's training: what each trains, for how long, and that an interruption anywhere changes nothing."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_training_loop import same, training, weights
from torch import Tensor, nn

from fixstar.methods import Objective, Stage, Step, Terms
from fixstar.progress import Advance
from fixstar.training import Recipe, Training, train
from fixstar.training.checkpoint import save_checkpoint

RECIPE = Recipe(epochs=2, learning_rate=0.05, milestones=(1,), batch_size=8)


class Toy:
    """Main training; then a linear layer is learnt on the features alone; then, from a changed start, everything."""

    def __init__(self, **changes: Any) -> None:
        prepared = training(RECIPE, **changes)
        torch.manual_seed(3)
        self.probe = nn.Linear(9, 1)
        self.encoder = prepared.encoder
        self.calls: list[str] = []
        self.seen: list[
            tuple[str, float, bool, bool]
        ] = []  # stage, progress, modes of encoder and probe
        stages = (
            Stage(self.probing, "probing", epochs=1.5, learning_rate=0.5, trains=self.probe),
            Stage(self.joint, "joint", epochs=0.5, begin=self.begin),
        )
        objective = Objective(self.main, self.probe, stages, self.finish)
        self.run: Training = replace(prepared, objective=objective)

    def note(self, stage: str, step: Step) -> None:
        self.seen.append((stage, float(step.progress), self.encoder.training, self.probe.training))

    def main(self, step: Step) -> Terms:
        self.note("training", step)
        return {"main": step.new.logits.logsumexp(1).mean() + step.new.z.square().mean()}

    def probing(self, step: Step) -> Terms:
        self.note("probing", step)
        return {"probe": (self.probe(step.new.z).squeeze(1) - step.targets).square().mean()}

    def joint(self, step: Step) -> Terms:
        self.note("joint", step)
        return {"probe": (self.probe(step.new.z).squeeze(1) - step.targets).square().mean()}

    @torch.no_grad()
    def begin(self) -> None:
        self.calls.append("begin")
        self.probe.weight *= 0.5

    @torch.no_grad()
    def finish(self) -> None:
        self.calls.append("finish")
        self.probe.weight += 1


EPOCHS = ["training"] * 2 + ["probing"] * 3 + ["joint"]


def cut_off(run: Training, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train until ``after`` epochs are saved, then stop as a kill would."""
    saved = 0

    def save_and_stop(path: Path, *state: Any) -> None:
        nonlocal saved
        save_checkpoint(path, *state)
        saved += 1
        if saved == after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fixstar.training.loop.save_checkpoint", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            train(run)


def test_stages_follow_one_another_each_with_its_share_of_the_recipe() -> None:
    toy = Toy()
    log = train(toy.run)
    assert [entry.stage for entry in log] == EPOCHS
    assert [entry.epoch for entry in log] == list(range(6))
    # milestones move with the length: at 1 of 2, at 1.5 (rounded to 2) of 3, at 0.5 (rounded to 0) of 1
    assert [entry.learning_rate for entry in log] == pytest.approx(
        [0.05, 0.005, 0.025, 0.025, 0.0025, 0.005]
    )
    assert [set(entry.terms) for entry in log] == [{"main"}] * 2 + [{"probe"}] * 4
    assert toy.calls == ["begin", "finish"]
    assert not toy.encoder.training


def test_progress_goes_from_nothing_to_almost_all_within_each_stage() -> None:
    toy = Toy()
    train(toy.run)
    for name, steps in (("training", 6), ("probing", 9), ("joint", 3)):
        progress = [done for stage, done, _, _ in toy.seen if stage == name]
        assert progress == pytest.approx([i / steps for i in range(steps)])


def test_a_stage_trains_what_it_says_and_the_rest_stands_still_in_evaluation_mode() -> None:
    toy = Toy()
    after: dict[str, dict[str, Tensor]] = {}
    toy.run = replace(
        toy.run, objective=replace(toy.run.objective, then=toy.run.objective.then[:1], finish=None)
    )

    def keep(step: Step) -> Terms:
        after.setdefault("training", weights(toy.run.modules()))
        return toy.probing(step)

    stage = replace(toy.run.objective.then[0], terms=keep)
    train(replace(toy.run, objective=replace(toy.run.objective, then=(stage,))))
    before, now = after["training"], weights(toy.run.modules())
    changed = {name for name in now if not torch.equal(now[name], before[name])}
    assert changed == {"objective.weight", "objective.bias"}  # not even batch-norm statistics
    assert {(stage, e, p) for stage, _, e, p in toy.seen} == {
        ("training", True, True),
        ("probing", False, True),
    }


@pytest.mark.parametrize("after", range(1, 7))
def test_an_interruption_after_any_epoch_changes_nothing(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Toy()
    log = train(whole.run)
    path = tmp_path / "c.safetensors"
    first, second = Toy(checkpoint=path), Toy(checkpoint=path)
    cut_off(first.run, after, monkeypatch)
    assert "finish" not in first.calls
    assert train(second.run) == log
    assert same(weights(second.run.modules()), weights(whole.run.modules()))
    assert [stage for stage, *_ in second.seen] == [
        stage for stage in EPOCHS[after:] for _ in range(3)
    ]
    # begun before the interruption or after it, never twice; an interrupted run has no end, so the second one has
    assert first.calls + second.calls == ["begin", "finish"]


def test_interrupted_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Toy()
    train(whole.run)
    path = tmp_path / "c.safetensors"
    for _ in range(6):
        cut_off(Toy(checkpoint=path).run, 1, monkeypatch)
    last = Toy(checkpoint=path)
    train(last.run)
    assert last.seen == []
    assert same(weights(last.run.modules()), weights(whole.run.modules()))


def test_a_finished_checkpoint_is_finished_again_and_to_the_same_end(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    first, second = Toy(checkpoint=path), Toy(checkpoint=path)
    train(first.run)
    train(second.run)
    assert second.calls == ["finish"]
    assert second.seen == []
    assert same(weights(first.run.modules()), weights(second.run.modules()))


def test_the_optimiser_starts_afresh_with_each_stage() -> None:
    """One step each on a constant gradient g: with momentum left over, the second step would be 1.9 times as long."""
    prepared = training(
        Recipe(epochs=1, learning_rate=0.1, milestones=(), weight_decay=0.0, batch_size=24)
    )
    batches = type(prepared.batches)(
        prepared.batches._sources, 24, prepared.batches._augmentation, seed=1
    )
    place = nn.Linear(1, 1, bias=False)
    path: list[float] = []

    def constant(_: Step) -> Terms:
        path.append(place.weight.item())
        return {"g": place.weight.sum()}

    objective = Objective(constant, place, (Stage(constant, "again", trains=place),))
    train(replace(prepared, objective=objective, batches=batches))
    path.append(place.weight.item())
    assert [b - a for a, b in itertools.pairwise(path)] == pytest.approx([-0.1, -0.1], abs=1e-6)


def test_the_bar_ends_full_whatever_was_done_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several views of an image count once, and epochs of an earlier run count too."""
    bars: list[list[int]] = []

    @contextlib.contextmanager
    def bar(_: str, total: int, *__: Any, done: int, **___: Any) -> Iterator[Advance]:
        bars.append([total, done])

        def advance(count: int = 1, note: str | None = None) -> None:  # noqa: ARG001
            bars[-1].append(count)

        yield advance

    monkeypatch.setattr("fixstar.training.loop.progress_bar", bar)
    path = tmp_path / "c.safetensors"
    toys = [Toy(checkpoint=path), Toy(checkpoint=path)]
    for toy in toys:
        batches = toy.run.batches
        twice = type(batches)(batches._sources, 8, batches._augmentation, seed=1, views=2)
        toy.run = replace(toy.run, batches=twice)
    cut_off(toys[0].run, 4, monkeypatch)
    train(toys[1].run)
    assert sum(bars[1][1:]) == bars[1][0] == 24 * 6
    assert sum(bars[0][1:]) == 24 * 4
