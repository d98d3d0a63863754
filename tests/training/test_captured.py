"""The recorded step, replayed by hand where there is no GPU: the same updates as the eager loop, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fixstar.data import Augmentation, Batches, BatchSource, from_arrays, pixel_source
from fixstar.methods import Objective, Step, Terms, create_method
from fixstar.models import Encoder, FrozenEncoder
from fixstar.training import Recipe, Training
from fixstar.training.captured import (
    _PROGRAMS,
    CapturedSteps,
    Program,
    _faster,
    _restored,
    _without_batch_counts,
    compiled,
    use_program,
)
from fixstar.training.checkpoint import Checkpoint
from fixstar.training.run import PlacedStage, create_optimiser, parts_of
from fixstar.training.steps import EagerSteps

RECIPE = Recipe(epochs=2, learning_rate=0.05, milestones=(), batch_size=8)


def encoder(seed: int = 0) -> Encoder:
    torch.manual_seed(seed)
    return Encoder.create(
        "tiny", classes=[*"abcd"], capacity=10, backbone_options={"in_channels": 1, "width": 4}
    ).train()


def training(views: int = 1, recipe: Recipe = RECIPE) -> Training:
    model, augmentation, lanes = encoder(), Augmentation(crop_padding=2), []
    for replay, count in ((False, 20), (True, 12)):
        labels = np.arange(count) % 4
        pixels = np.random.default_rng(count).integers(0, 256, (count, 32, 32), dtype=np.uint8)
        source, _ = pixel_source(
            from_arrays(pixels, labels), model.preprocessing, augmentation, torch.device("cpu")
        )
        lanes.append(BatchSource(source, torch.from_numpy(labels), replay))
    terms = create_method("hoc").terms
    assert terms is not None
    batches = Batches(lanes, 8, augmentation, seed=1, views=views)
    return Training(
        model, Objective(terms), batches, recipe, FrozenEncoder(encoder(1)), progress=False
    )


def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CapturedSteps, "_record", lambda self: SimpleNamespace(replay=self._step))
    monkeypatch.setattr("fixstar.training.captured._stream", lambda: None)


def trained(
    make: Callable[..., Any], views: int = 1, recipe: Recipe = RECIPE
) -> tuple[Training, list[dict[str, float]], list[int]]:
    run = training(views, recipe)
    (part,) = parts_of(run)
    optimiser = create_optimiser(run, part)
    shown: list[int] = []
    steps = make(run, part, optimiser)
    sums = [steps.epoch(number, lambda images, _: shown.append(images)) for number in range(2)]
    return run, [{name: value.item() for name, value in each.items()} for each in sums], shown


ADAMW = replace(
    RECIPE,
    optimizer="adamw",
    learning_rate=1e-3,
    schedule="cosine",
    warmup=0.5,
    clip=0.1,
    backbone_rate=0.3,
)


@pytest.mark.parametrize(("views", "recipe"), [(1, RECIPE), (2, RECIPE), (1, ADAMW)])
def test_replayed_steps_make_the_updates_of_the_eager_loop(
    views: int, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand(monkeypatch)
    eager, eager_sums, eager_shown = trained(EagerSteps, views, recipe)
    replayed, sums, shown = trained(CapturedSteps, views, recipe)
    weights = eager.encoder.state_dict()
    assert all(
        torch.equal(value, weights[name]) for name, value in replayed.encoder.state_dict().items()
    )
    for a, b in zip(sums, eager_sums, strict=True):
        assert a == pytest.approx(b)
    assert sum(shown) == sum(eager_shown)


def test_the_step_is_told_how_far_the_stage_is(monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand(monkeypatch)
    seen: list[float] = []
    run = training()
    terms = run.objective.terms

    def told(step: Step) -> Terms:
        seen.append(float(step.progress))
        return terms(step)

    run.objective = Objective(told)
    (part,) = parts_of(run)
    steps = CapturedSteps(run, part, create_optimiser(run, part))
    for number in range(2):
        steps.epoch(number, lambda *_: None)
    assert seen == pytest.approx(np.arange(8) / 8)


@pytest.mark.parametrize(
    "make", [partial(torch.optim.SGD, lr=0.1, momentum=0.9), torch.optim.AdamW]
)
def test_warming_up_leaves_no_trace(make: Callable[..., torch.optim.Optimizer]) -> None:
    model = encoder()
    optimiser = make(model.parameters())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with _restored(model, optimiser):
        model(torch.zeros(4, 1, 32, 32, dtype=torch.uint8)).z.square().sum().backward()
        optimiser.step()
        assert any(
            not torch.equal(value, before[name]) for name, value in model.state_dict().items()
        )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(not value.any() for state in optimiser.state.values() for value in state.values())
    first = [p.detach().clone() for p in model.parameters()]
    with _restored(model, optimiser):
        optimiser.step()
    assert all(torch.equal(a, b) for a, b in zip(first, model.parameters(), strict=True))


def test_a_replayed_update_is_noticed_by_what_is_derived_from_the_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replay writes weights behind the back of their version counters; the short form is cached by those."""
    by_hand(monkeypatch)
    run = training()
    (part,) = parts_of(run)
    steps = CapturedSteps(run, part, create_optimiser(run, part))
    projection = run.encoder.projection
    assert projection is not None

    def behind() -> None:
        projection.weight.data.mul_(torch.linspace(1, 2, projection.in_features))

    steps._graph = SimpleNamespace(replay=behind)  # type: ignore[assignment]
    pixels = (
        np.zeros((2, 32, 32, 1), np.uint8) + np.arange(2, dtype=np.uint8)[:, None, None, None] * 90
    )
    before = run.encoder._short_factor().clone()
    steps._sums = {}
    steps.epoch(0, lambda *_: None)
    assert not torch.equal(run.encoder._short_factor(), before)
    short, full = (run.encoder.encode(pixels, form=form) for form in ("short", "full"))
    assert short @ short.T == pytest.approx(full @ full.T, abs=1e-5)


def test_momenta_are_laid_out_like_their_weights() -> None:
    weight = torch.nn.Parameter(
        torch.randn(4, 3, 3, 3).contiguous(memory_format=torch.channels_last)
    )
    optimiser = torch.optim.SGD([weight], 0.1, momentum=0.9)
    momentum = torch.randn(4, 3, 3, 3)
    Checkpoint(optimiser={0: {"momentum_buffer": momentum}}).restore_optimiser(optimiser)
    restored = optimiser.state[weight]["momentum_buffer"]
    assert restored.stride() == weight.stride()
    torch.testing.assert_close(restored, momentum)


def test_batch_norms_count_again_afterwards() -> None:
    model = encoder()
    with _without_batch_counts(model):
        model(torch.zeros(4, 1, 32, 32, dtype=torch.uint8))
    counts = [
        value for name, value in model.state_dict().items() if name.endswith("num_batches_tracked")
    ]
    assert len(counts) == 4
    model(torch.zeros(4, 1, 32, 32, dtype=torch.uint8))
    assert all(int(count) == 1 for count in counts)


def test_one_compiled_program_serves_every_version(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def compile_nothing(function: Any, **_: Any) -> Any:
        made.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compile_nothing)
    monkeypatch.setattr("fixstar.training.captured._PROGRAMS", {})
    pixels = torch.randint(0, 256, (6, 1, 32, 32), dtype=torch.uint8)
    for seed in (0, 1):
        one, other = encoder(seed), encoder(seed)
        with compiled(one.backbone):
            inside = one(pixels).z
            inside.sum().backward()
        outside = other(pixels).z
        outside.sum().backward()
        torch.testing.assert_close(inside, outside)
        for (name, a), (_, b) in zip(one.named_parameters(), other.named_parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, msg=name)
        for (name, mine), (_, theirs) in zip(
            one.named_buffers(), other.named_buffers(), strict=True
        ):
            torch.testing.assert_close(mine, theirs, msg=name)
    assert len(made) == 1
    assert one.backbone._compiled_call_impl is None


def test_a_backbone_with_a_program_of_its_own_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fixstar.training.captured._MAKERS", [])
    monkeypatch.setattr("fixstar.training.captured.compiled", lambda _: nullcontext("compiled"))
    run = training(recipe=replace(RECIPE, precision="bfloat16"))
    known = run.encoder.backbone

    def doubled(images: Tensor) -> Tensor:
        return torch.full((len(images), known.feature_dim), 2.0)

    def maker(backbone: nn.Module, sides: tuple[int, int]) -> Program | None:
        assert sides == run.encoder.preprocessing.size
        return doubled if backbone is known else None

    use_program(maker)
    use_program(maker)
    pixels = torch.zeros(3, 1, 32, 32)
    with _faster(run):
        assert torch.equal(known(pixels), doubled(pixels))
    assert not torch.equal(known(pixels), doubled(pixels))
    in_float32 = replace(run, recipe=replace(RECIPE, precision="float32"))
    for left in (in_float32, replace(run, encoder=encoder(1))):
        with _faster(left) as how:
            assert how == "compiled"


def test_a_part_knows_its_place() -> None:
    (part,) = parts_of(training())
    assert isinstance(part, PlacedStage)
    assert (part.first, part.after, part.steps) == (0, 2, 8)
    assert [part.images(epoch) for epoch in (0, 1, 2, 3)] == [0, 32, 64, 64]
    assert _PROGRAMS == {}
