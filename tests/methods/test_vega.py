"""Vega: its terms by hand, its heads, and that a run resumes to the same weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fixstar.data import Augmentation, ImageSet, ReplayMemory, from_arrays
from fixstar.data.streams import class_stream
from fixstar.errors import InputError
from fixstar.losses import search_contrast
from fixstar.methods import Objective, Step, Upgrade, create_method
from fixstar.models import Encoder, FrozenEncoder, Outputs
from fixstar.training import (
    Recipe,
    Settings,
    Training,
    TrainingContext,
    loop,
    run_scenario,
    train,
    train_version,
)
from fixstar.training.checkpoint import save_checkpoint, weights_digest

SETTINGS = Settings(
    backbone="tiny",
    backbone_options={"in_channels": 1, "width": 4, "feature_dim": 12},
    capacity=200,
    recipe=Recipe(epochs=1, learning_rate=0.05, milestones=(), batch_size=16),
    augmentation=Augmentation(crop_padding=1, flip=False),
    device="cpu",
)
TURNS = torch.tensor([0, 0, 0, 1, 2, 3])
TARGETS = torch.tensor([0, 1, 1, 0, 1, 1])
SLOTS = torch.tensor(
    [0, 1, 1, 25, 51, 76]
)  # K = 200: 25 slots for classes, then 25 for each quarter turn


def digits(per_class: int = 12) -> ImageSet:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    rows = np.concatenate([np.flatnonzero(labels == digit)[:per_class] for digit in range(6)])
    return from_arrays(
        (pixels[rows].reshape(-1, 8, 8) * 15).astype(np.uint8).repeat(4, 1).repeat(4, 2),
        labels[rows],
    )


def encoder(seed: int, feature_dim: int = 12) -> Encoder:
    torch.manual_seed(seed)
    options = {"in_channels": 1, "width": 4, "feature_dim": feature_dim}
    return Encoder.create("tiny", classes=("0", "1"), capacity=200, backbone_options=options).eval()


def upgrade_of(
    new: Encoder, old: Encoder | None, first: Encoder | None = None, seed: int = 3
) -> Upgrade:
    known = ("0",) if old is not None else ()
    frozen = [None if past is None else FrozenEncoder(past) for past in (old, first)]
    return Upgrade(new, frozen[0], digits(), known, ("1",), seed=seed, first=frozen[1])


def step_of(new: Encoder, old: Encoder | None, first: Encoder | None = None) -> Step:
    pixels = torch.randint(
        0, 256, (6, 1, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    seen: list[Outputs | None] = []
    with torch.no_grad():
        for model in (old, first):
            seen.append(None if model is None else model(pixels))
        replay = torch.zeros(6, dtype=torch.bool)
        return Step(new(pixels), seen[0], TARGETS, replay, turns=TURNS, first=seen[1])


def heads_of(objective: Objective) -> dict[str, Tensor]:
    assert isinstance(objective.module, nn.ModuleDict)
    return {name: head.get_parameter("weight") for name, head in objective.module.items()}


def expected_terms(
    step: Step, past: Outputs, weight: Tensor, contrast: float, rho: float
) -> tuple[float, float]:
    """1 - cos of the head's queries and the old features, and their search contrast, from full features."""
    assert past.projection is not None
    queries = functional.normalize(step.new.h @ weight.T @ past.projection.T)
    stored = functional.normalize(past.z)
    away = (1 - (queries * stored).sum(1)).mean()
    found = search_contrast(queries @ stored.T, queries @ queries.T, SLOTS, rho)
    return float(away.detach()), contrast * float(found.detach())


@pytest.mark.parametrize("width", [12, 20], ids=["as wide", "wider"])
def test_the_terms_are_cross_entropy_head_and_contrast(width: int) -> None:
    new, old, first = encoder(0, width), encoder(1), encoder(2)
    objective = create_method("vega", head=3.0, contrast=0.5, rho=2.0).objective(
        upgrade_of(new, old, first)
    )
    heads = heads_of(objective)
    for weight in heads.values():  # not the identity, as after some training
        nn.init.normal_(weight, generator=torch.Generator().manual_seed(1))
    step = step_of(new, old, first)
    terms = {name: float(value.detach()) for name, value in objective.terms(step).items()}
    assert set(terms) == {
        "ce",
        "head to old",
        "contrast to old",
        "head to first",
        "contrast to first",
    }
    assert terms["ce"] == pytest.approx(
        float(functional.cross_entropy(step.new.logits, SLOTS).detach()), abs=1e-5
    )
    for name, past in (("old", step.old), ("first", step.first)):
        assert past is not None
        away, found = expected_terms(step, past, heads[name], 0.5, 2.0)
        assert terms[f"head to {name}"] == pytest.approx(3 * away, abs=1e-4)
        assert terms[f"contrast to {name}"] == pytest.approx(found, abs=1e-4)


def test_nothing_holds_the_new_feature_and_the_first_version_is_plain_training() -> None:
    new, old = encoder(0), encoder(1)
    alone = create_method("vega").objective(upgrade_of(new, None))
    assert set(alone.terms(step_of(new, None))) == {"ce"}
    assert alone.module is None
    free = create_method("vega", head=0.0, contrast=0.0)
    objective = free.objective(upgrade_of(new, old))
    assert set(objective.terms(step_of(new, old))) == {"ce"}
    assert objective.module is None
    assert free.needs == {"replay"}
    assert not free.first
    assert not free.shares_space
    assert not create_method("vega").shares_space
    assert create_method("polaris").shares_space
    assert not create_method("er").shares_space


def test_only_the_head_is_pulled_if_the_feature_cannot_move() -> None:
    """The gradient of the head term reaches the backbone through the head, and never by the projection."""
    new, old = encoder(0), encoder(1)
    objective = create_method("vega", contrast=0.0).objective(upgrade_of(new, old))
    pixels = torch.randint(0, 256, (6, 1, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        past = old(pixels)
    step = Step(new(pixels), past, TARGETS, torch.zeros(6, dtype=torch.bool), turns=TURNS)
    torch.autograd.backward(objective.terms(step)["head to old"])
    assert new.projection is not None
    assert new.projection.weight.grad is None
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in new.backbone.parameters())


def test_a_head_starts_as_the_identity_or_by_the_seed_of_the_upgrade() -> None:
    new, old, wide = encoder(0), encoder(1), encoder(2, 20)
    method = create_method("vega")
    assert torch.equal(heads_of(method.objective(upgrade_of(new, old)))["old"], torch.eye(12))
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    wider = heads_of(method.objective(upgrade_of(wide, old)))["old"].detach().clone()
    assert torch.equal(
        torch.random.get_rng_state(), before
    )  # nothing was drawn from the global generator
    torch.manual_seed(12)
    again = heads_of(method.objective(upgrade_of(wide, old)))["old"]
    other = heads_of(method.objective(upgrade_of(wide, old, seed=4)))["old"]
    assert wider.shape == (12, 20)
    assert torch.equal(wider, again)
    assert not torch.equal(wider, other)


def kept_modules(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module | None]:
    modules: list[nn.Module | None] = []

    def keep(run: Training) -> Any:
        modules.append(run.objective.module)
        return train(run)

    monkeypatch.setattr("fixstar.training.version.train", keep)
    return modules


def test_a_second_head_asks_the_first_version_from_the_third_on_and_none_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    modules = kept_modules(monkeypatch)
    method = create_method("vega", longer=1.0)
    versions = list(
        run_scenario(
            class_stream(digits(), 2, 2), method, SETTINGS, progress=False, scenario="lifelong"
        )
    )
    assert modules[0] is None
    assert [sorted(dict(part.named_children())) for part in modules[1:] if part is not None] == [
        ["old"],
        ["first", "old"],
    ]
    assert set(versions[2].log[-1].terms) == {
        "ce",
        "head to old",
        "contrast to old",
        "head to first",
    } | {"contrast to first"}
    assert all(
        set(v.encoder.state_dict()) == set(versions[0].encoder.state_dict()) for v in versions
    )
    assert modules[1] is not None
    trained = modules[1].get_parameter("old.weight")
    assert not torch.equal(trained, torch.eye(12))  # the heads were trained along


def test_an_upgrade_trains_longer() -> None:
    settings = replace(SETTINGS, recipe=replace(SETTINGS.recipe, epochs=2, milestones=(1.0,)))
    stream = class_stream(digits(), 3, 3)
    method = create_method("vega")
    versions = run_scenario(stream, method, settings, progress=False, scenario="lifelong")
    rates = [[entry.learning_rate for entry in version.log] for version in versions]
    assert rates[0] == pytest.approx([0.05, 0.005])
    assert rates[1] == pytest.approx([0.05, 0.05, 0.005, 0.005])  # milestones move in proportion
    assert method.options["longer"] == 2.0
    assert method.objective(upgrade_of(encoder(0), encoder(1))).epochs == 2.0
    assert method.objective(upgrade_of(encoder(0), None)).epochs == 1.0


def test_a_killed_upgrade_of_another_width_resumes_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = class_stream(digits(), 3, 3)
    first, second = (task.images for task in stream)
    method = create_method("vega", longer=1.0)
    wide = replace(SETTINGS, recipe=replace(SETTINGS.recipe, epochs=3))
    wide = replace(wide, backbone_options={**SETTINGS.backbone_options, "feature_dim": 20})
    old = train_version(1, first, TrainingContext(), method, SETTINGS, progress=False).encoder
    memory = ReplayMemory(4).extended(first, old.preprocessing, seed=0)
    fresh = replace(method, initialisation="fresh")  # starts from new weights of the wider backbone
    context = TrainingContext(old, memory)

    def trained(checkpoint: Path | None) -> Any:
        return train_version(2, second, context, fresh, wide, checkpoint, progress=False)

    torch.manual_seed(1)
    whole = trained(None)
    torch.manual_seed(2)  # another process

    def killed(*state: Any) -> None:
        save_checkpoint(*state)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", killed)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "checkpoint.safetensors")
    torch.manual_seed(3)
    resumed = trained(tmp_path / "checkpoint.safetensors")
    assert whole.encoder.backbone.feature_dim == 20
    assert weights_digest(resumed.encoder) == weights_digest(whole.encoder)
    assert resumed.log == whole.log


def test_wrong_options_are_refused() -> None:
    for wrong, rule in (
        ({"head": -1.0}, "head >= 0"),
        ({"rho": 0.0}, "rho > 0"),
        ({"longer": 0.0}, "longer > 0"),
    ):
        with pytest.raises(InputError, match=rule):
            create_method("vega", **wrong)
    usual = create_method("vega").options
    assert usual == {"head": 0.5, "contrast": 0.3, "rho": 5.0, "rotated": True, "longer": 2.0}
