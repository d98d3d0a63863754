"""Optimisers, schedules, groups and clipping against plain torch loops over the same batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_training_loop import same, training, weights
from torch import nn, optim
from wording import refuses

from fixstar.errors import CheckpointError, InputError
from fixstar.methods import create_method
from fixstar.training import Recipe, Settings, Training, train, train_version
from fixstar.training.checkpoint import save_checkpoint
from fixstar.training.run import create_optimiser, parts_of
from fixstar.training.version import TrainingContext

FLAT = Recipe(epochs=4, learning_rate=0.01, milestones=(), weight_decay=0.02, batch_size=8)


def plain_loop(
    recipe: Recipe,
    make: Callable[[nn.Module], optim.Optimizer],
    schedule: Callable[[optim.Optimizer], Any] | None = None,
    clip: float | None = None,
) -> dict[str, torch.Tensor]:
    """A loop as one writes it by hand: cross-entropy, ``make``'s optimiser, ``schedule`` stepped after every batch."""
    run = training(recipe)
    model = run.encoder.train()
    optimiser = make(model)
    scheduler = None if schedule is None else schedule(optimiser)
    for epoch in range(recipe.epochs):
        for batch in run.batches.epoch(epoch):
            optimiser.zero_grad()
            model(batch.pixels, batch.targets).cross_entropy(batch.targets).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimiser.step()
            if scheduler is not None:
                scheduler.step()
    return weights(model)


def trained(recipe: Recipe, **changes: Any) -> dict[str, torch.Tensor]:
    run = training(recipe, **changes)
    train(run)
    return weights(run.encoder)


def assert_close(ours: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> None:
    for name, value in plain.items():
        torch.testing.assert_close(ours[name], value, atol=1e-6, rtol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("optimizer", "make"),
    [
        ("sgd", lambda model: optim.SGD(model.parameters(), 0.01, 0.9, weight_decay=0.02)),
        ("adam", lambda model: optim.Adam(model.parameters(), 0.01, weight_decay=0.02)),
        ("adamw", lambda model: optim.AdamW(model.parameters(), 0.01, weight_decay=0.02)),
    ],
)
def test_each_optimiser_is_that_of_torch(
    optimizer: Any, make: Callable[[nn.Module], optim.Optimizer]
) -> None:
    assert_close(trained(replace(FLAT, optimizer=optimizer)), plain_loop(FLAT, make))


def test_cosine_after_warming_up_is_that_of_torch() -> None:
    """3 batches per epoch, 4 epochs: 3 steps of warm-up, then 9 of cosine annealing."""

    def schedule(optimiser: optim.Optimizer) -> optim.lr_scheduler.LRScheduler:
        return optim.lr_scheduler.LambdaLR(
            optimiser,
            lambda step: step / 3 if step < 3 else (1 + math.cos(math.pi * (step - 3) / 9)) / 2,
        )

    recipe = replace(FLAT, optimizer="adamw", schedule="cosine", warmup=1)
    plain = plain_loop(
        FLAT, lambda model: optim.AdamW(model.parameters(), 0.01, weight_decay=0.02), schedule
    )
    assert_close(trained(recipe), plain)
    cosine = plain_loop(
        FLAT,
        lambda model: optim.SGD(model.parameters(), 0.01, 0.9, weight_decay=0.02),
        lambda optimiser: optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=12),
    )
    assert_close(trained(replace(FLAT, schedule="cosine")), cosine)


def test_the_log_has_the_rate_of_the_last_step() -> None:
    log = train(training(replace(FLAT, schedule="cosine", warmup=1)))
    expected = [2 / 3, *((1 + math.cos(math.pi * step / 9)) / 2 for step in (2, 5, 8))]
    assert [entry.learning_rate for entry in log] == pytest.approx(
        [0.01 * factor for factor in expected]
    )


def test_gradients_are_clipped_to_their_norm() -> None:
    def make(model: nn.Module) -> optim.Optimizer:
        return optim.SGD(model.parameters(), 0.01, 0.9, weight_decay=0.02)

    clipped = trained(replace(FLAT, clip=0.05))
    assert_close(clipped, plain_loop(FLAT, make, clip=0.05))
    assert not same(clipped, trained(FLAT))
    assert_close(trained(replace(FLAT, clip=1e9)), trained(FLAT))


def test_the_backbone_has_a_rate_of_its_own_and_norms_and_biases_no_decay() -> None:
    recipe = replace(FLAT, optimizer="adamw", backbone_rate=0.1, decay_norms=False)

    def make(model: nn.Module) -> optim.Optimizer:
        groups = []
        for name, p in model.named_parameters():
            rate = 0.001 if name.startswith("backbone.") else 0.01
            groups.append({"params": [p], "lr": rate, "weight_decay": 0.02 if p.ndim > 1 else 0.0})
        return optim.AdamW(groups)

    assert_close(trained(recipe), plain_loop(FLAT, make))
    run = training(recipe)
    optimiser = create_optimiser(run, next(parts_of(run)))
    assert {(group["factor"], group["weight_decay"]) for group in optimiser.param_groups} == {
        (0.1, 0.02),
        (0.1, 0.0),
        (1.0, 0.02),
    }


@pytest.mark.parametrize("stop_after", [1, 3])
def test_any_recipe_resumes_to_the_same_weights(
    tmp_path: Path, stop_after: int, monkeypatch: Any
) -> None:
    recipe = replace(
        FLAT,
        optimizer="adamw",
        schedule="cosine",
        warmup=1.5,
        clip=0.5,
        backbone_rate=0.2,
        decay_norms=False,
    )
    whole = training(recipe, teacher=True)
    train(whole)
    path = tmp_path / "c.safetensors"
    _train_until(training(recipe, teacher=True, checkpoint=path), stop_after, monkeypatch)
    resumed = training(recipe, teacher=True, checkpoint=path)
    assert len(train(resumed)) == recipe.epochs
    assert same(weights(whole.encoder), weights(resumed.encoder))


def _train_until(run: Training, epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop as a kill would, after the checkpoint of an epoch."""
    saved: list[object] = []

    def killed(*state: Any) -> None:
        save_checkpoint(*state)
        saved.append(state)
        if len(saved) == epochs:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fixstar.training.loop.save_checkpoint", killed)
        with pytest.raises(KeyboardInterrupt):
            train(run)


def test_another_recipe_is_refused_and_named(tmp_path: Path) -> None:
    from fixstar.data import from_arrays

    images = from_arrays(
        torch.arange(8 * 32 * 32).remainder(251).byte().view(8, 32, 32).numpy(), [0, 0, 1, 1] * 2
    )
    settings = Settings(
        "tiny",
        {"in_channels": 1, "width": 4},
        capacity=10,
        recipe=replace(FLAT, epochs=1),
        replay_per_class=0,
    )
    state = (1, images, TrainingContext(), create_method("hoc"))
    path = tmp_path / "c.safetensors"
    train_version(*state, settings, path, progress=False)
    for change in ({"optimizer": "adamw"}, {"schedule": "cosine"}, {"warmup": 0.5}, {"clip": 1.0}):
        other = replace(settings, recipe=replace(settings.recipe, **change))
        with pytest.raises(CheckpointError, match=next(iter(change))):
            train_version(*state, other, path, progress=False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"optimizer": "lion"},
        {"schedule": "linear"},
        {"warmup": 70},
        {"clip": 0},
        {"backbone_rate": 0},
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    with refuses(InputError):
        Recipe(**wrong)


def test_another_optimiser_comes_with_its_usual_rate_and_decay() -> None:
    adamw = Recipe(weight_decay=5e-4).with_optimizer("adamw")
    assert (adamw.learning_rate, adamw.weight_decay) == (1e-3, 0.01)
    assert Recipe(weight_decay=5e-4).with_optimizer("sgd").weight_decay == 5e-4
    assert Recipe(warmup=7).shortened(10).warmup == 1
