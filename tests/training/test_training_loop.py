"""The loop: sums named terms, follows the recipe, resumes to the same weights."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from wording import refuses

from fixstar.data import Augmentation, Batches, BatchSource, from_arrays, pixel_source
from fixstar.errors import CheckpointError, FixstarError, InputError
from fixstar.methods import Method, Objective, Step, Terms, Upgrade, create_method
from fixstar.models import Encoder, FrozenEncoder
from fixstar.training import Recipe, Training, paper_recipe, train

RECIPE = Recipe(epochs=3, learning_rate=0.05, milestones=(2,), batch_size=8)


def training(
    recipe: Recipe = RECIPE, method: Method | None = None, teacher: bool = False, **changes: Any
) -> Training:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 6)
    pixels = (labels[:, None, None] * 50 + rng.integers(0, 40, (24, 32, 32))).astype(np.uint8)
    images = from_arrays(pixels, labels)
    encoder = Encoder.create(
        "tiny", classes=images.classes, capacity=10, backbone_options={"in_channels": 1, "width": 4}
    )
    augmentation = Augmentation(crop_padding=2)
    source, _ = pixel_source(images, encoder.preprocessing, augmentation, torch.device("cpu"))
    batches = Batches(
        [BatchSource(source, encoder.targets(images.classes)[torch.from_numpy(labels)])],
        8,
        augmentation,
        seed=1,
    )
    old = FrozenEncoder(encoder) if teacher else None
    objective = (method or create_method("hoc")).objective(
        Upgrade(encoder, old, images, images.classes, ())
    )
    run = Training(encoder, objective, batches, recipe, old, progress=False, fingerprint="f")
    return replace(run, **changes)


def weights(encoder: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in encoder.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_training_learns_and_logs_its_terms() -> None:
    log = train(training(RECIPE.shortened(8)))
    assert [entry.epoch for entry in log] == list(range(8))
    assert log[-1].loss < 0.7 * log[0].loss
    assert set(log[0].terms) == {"ce"}


def test_with_a_teacher_every_term_is_logged() -> None:
    assert set(train(training(teacher=True))[0].terms) == {"ce", "hoc"}


def test_one_step_is_sgd_on_the_sum_of_the_terms() -> None:
    """One batch, one epoch, no momentum: the new weights are w - lr (gradient + decay w), computed here by hand."""
    recipe = Recipe(
        epochs=1, learning_rate=0.1, milestones=(), momentum=0.0, weight_decay=0.01, batch_size=24
    )

    def two_terms(step: Step) -> Terms:
        return {"a": step.new.logits.square().mean(), "b": 2 * step.new.z.abs().mean()}

    method = Method("two", "", "", two_terms)
    run = training(recipe, method)
    run.batches.batch_size = 24
    run = replace(run, batches=Batches(run.batches._sources, 24, Augmentation(2), seed=1))
    reference = training(recipe, method).encoder.train()
    (batch,) = run.batches.epoch(0)
    out = reference(batch.pixels, batch.targets)
    torch.autograd.backward(out.logits.square().mean() + 2 * out.z.abs().mean())
    train(run)
    for name, old in reference.named_parameters():
        assert old.grad is not None
        expected = old - 0.1 * (old.grad + 0.01 * old)
        torch.testing.assert_close(run.encoder.get_parameter(name), expected, atol=1e-6, rtol=1e-5)


def test_the_learning_rate_falls_at_the_milestones() -> None:
    assert [entry.learning_rate for entry in train(training())] == pytest.approx(
        [0.05, 0.05, 0.005]
    )


def test_the_seed_decides_and_the_callers_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    first, second = training(), training()
    torch.manual_seed(5)
    train(first)
    assert torch.rand(1) == expected
    train(second)
    assert same(weights(first.encoder), weights(second.encoder))


@pytest.mark.parametrize("stop_after", [1, 2])
def test_a_run_cut_off_ends_with_the_same_weights(tmp_path: Path, stop_after: int) -> None:
    whole = training(teacher=True)
    full_log = train(whole)
    cut = training(RECIPE, teacher=True, checkpoint=tmp_path / "c.safetensors")
    train(replace(cut, recipe=replace(RECIPE, epochs=stop_after)))
    resumed = training(teacher=True, checkpoint=tmp_path / "c.safetensors")
    log = train(resumed)
    assert same(weights(whole.encoder), weights(resumed.encoder))
    assert log == full_log


def test_a_module_of_the_objective_is_trained_and_resumed(tmp_path: Path) -> None:
    def run(**changes: Any) -> Training:
        prepared = training(**changes)
        torch.manual_seed(7)
        extra = torch.nn.Linear(9, 1, bias=False)

        def terms(step: Step) -> Terms:
            return {"extra": extra(step.new.z).square().mean() + (extra.weight.sum() - 1).square()}

        return replace(prepared, objective=Objective(terms, extra))

    whole = run()
    before = weights(whole.modules())
    train(whole)
    assert not torch.equal(
        whole.modules().state_dict()["objective.weight"], before["objective.weight"]
    )
    cut = run(checkpoint=tmp_path / "c.safetensors")
    train(replace(cut, recipe=replace(RECIPE, epochs=1)))
    resumed = run(checkpoint=tmp_path / "c.safetensors")
    train(resumed)
    assert same(weights(whole.modules()), weights(resumed.modules()))


def test_a_finished_checkpoint_trains_nothing_more(tmp_path: Path) -> None:
    first = training(checkpoint=tmp_path / "c.safetensors")
    train(first)
    second = training(checkpoint=tmp_path / "c.safetensors")
    train(second)
    assert same(weights(first.encoder), weights(second.encoder))


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    train(training(checkpoint=path))
    with pytest.raises(CheckpointError, match="other settings"):
        train(training(checkpoint=path, fingerprint="g"))
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(CheckpointError, match="delete it"):
        train(training(checkpoint=path))


def test_a_loss_that_is_not_a_number_stops_the_run() -> None:
    def broken(step: Step) -> Terms:
        return {"ce": step.new.logits.mean() * math.nan}

    with refuses(InputError, "repeat"):
        train(training(method=Method("broken", "", "", broken)))


@pytest.mark.parametrize(("size", "stops"), [(2e15, True), (1001.0, True), (46.0, False)])
def test_a_loss_that_has_exploded_stops_the_run_and_a_passing_one_does_not(
    size: float, stops: bool
) -> None:
    def large(step: Step) -> Terms:
        return {"ce": step.new.logits.mean() * 0 + size}

    run = training(method=Method("large", "", "", large))
    if not stops:
        assert train(run)[-1].loss == pytest.approx(size)
        return
    with pytest.raises(InputError, match="the training diverged") as refused:
        train(run)
    (step,) = refused.value.next_steps
    assert (step.action, step.arguments) == ("repeat", {"learning_rate": RECIPE.learning_rate / 10})


def test_a_failed_run_leaves_no_checkpoint_in_the_way_of_the_next(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    train(training(checkpoint=path))
    with pytest.raises(FixstarError, match="diverged"):
        train(training(replace(RECIPE, epochs=9, learning_rate=1e30), checkpoint=path))
    assert not path.exists()


def test_recipes_check_themselves_and_scale() -> None:
    with pytest.raises(InputError, match=r"epochs=0.*batch_size=1"):
        Recipe(epochs=0, batch_size=1)
    with refuses(InputError):
        Recipe().shortened(-3)
    assert [Recipe().shortened(7).rate(epoch) for epoch in (4, 5, 6)] == pytest.approx(
        [0.1, 0.01, 0.001]
    )
    there_and_back = Recipe().shortened(1).shortened(70)
    assert [there_and_back.rate(e) for e in range(70)] == pytest.approx(
        [Recipe().rate(e) for e in range(70)]
    )
    assert paper_recipe("retraining").weight_decay == 5e-4
    assert Recipe().rate(0) == pytest.approx(0.1)
    assert Recipe().rate(69) == pytest.approx(0.001)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 1.5},
        {"batch_size": 2.5},
        {"learning_rate": math.inf},
        {"weight_decay": math.inf},
        {"milestones": (-5,)},
        {"milestones": (5, math.inf)},
        {"milestones": (math.nan,)},
    ],
)
def test_recipes_take_whole_and_finite_numbers(wrong: dict[str, Any]) -> None:
    with refuses(InputError):
        Recipe(**wrong)


def test_a_recipe_is_shortened_to_whole_epochs() -> None:
    with refuses(InputError):
        Recipe().shortened(7.5)  # type: ignore[arg-type]
