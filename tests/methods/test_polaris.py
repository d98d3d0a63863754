"""Polaris: its terms by hand, its reserved slots, and the models that it is held to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional
from wording import refuses

from fixstar.data import Augmentation, ImageSet, from_arrays
from fixstar.data.streams import class_stream
from fixstar.errors import InputError
from fixstar.losses import info_nce, search_contrast
from fixstar.methods import Step, Upgrade, create_method
from fixstar.methods.simplex import rotated_slots
from fixstar.models import Encoder, FrozenEncoder
from fixstar.training import Recipe, Settings, run_scenario

SETTINGS = Settings(
    backbone="tiny",
    backbone_options={"in_channels": 1, "width": 4, "feature_dim": 12},
    capacity=200,
    recipe=Recipe(epochs=1, learning_rate=0.05, milestones=(), batch_size=16),
    augmentation=Augmentation(crop_padding=1, flip=False),
    device="cpu",
)


def digits(per_class: int = 12) -> ImageSet:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    rows = np.concatenate([np.flatnonzero(labels == digit)[:per_class] for digit in range(6)])
    return from_arrays(
        (pixels[rows].reshape(-1, 8, 8) * 15).astype(np.uint8).repeat(4, 1).repeat(4, 2),
        labels[rows],
    )


def encoder(seed: int, classes: tuple[str, ...] = ("0", "1"), capacity: int = 200) -> Encoder:
    torch.manual_seed(seed)
    options = {"in_channels": 1, "width": 4, "feature_dim": 12}
    return Encoder.create(
        "tiny", classes=classes, capacity=capacity, backbone_options=options
    ).eval()


def test_cosines_by_the_short_form_are_those_of_the_features() -> None:
    pixels = torch.randint(0, 256, (5, 1, 32, 32), dtype=torch.uint8)
    new, old = encoder(0)(pixels), encoder(1)(pixels[:3])
    assert new.projection is not None
    expected = functional.normalize(new.z) @ functional.normalize(old.z).T
    assert torch.allclose(new.cosines(old), expected, atol=1e-6)
    small = encoder(2, capacity=8)(pixels)  # d <= m: from the features themselves
    assert torch.allclose(small.cosines(small).diagonal(), torch.ones(5), atol=1e-6)


def test_gradients_by_the_short_form_are_those_of_the_features() -> None:
    pixels = torch.randint(0, 256, (4, 1, 32, 32), dtype=torch.uint8)
    model, old = encoder(0), FrozenEncoder(encoder(1))(pixels)
    gradients = []
    for short in (True, False):
        model.zero_grad()
        seen = model(pixels)
        cosines = (
            seen.cosines(old)
            if short
            else functional.normalize(seen.z) @ functional.normalize(old.z).T
        )
        torch.autograd.backward((cosines * torch.arange(16.0).view(4, 4)).sum())
        assert model.projection is not None
        gradient = model.projection.weight.grad
        assert gradient is not None
        gradients.append(gradient.clone())
    assert torch.allclose(gradients[0], gradients[1], atol=1e-5)


def test_hoc_compares_wide_features_without_making_them() -> None:
    new_model, old_model = (encoder(seed, capacity=9000) for seed in range(2))
    pixels, targets = (
        torch.randint(0, 256, (6, 1, 32, 32), dtype=torch.uint8),
        torch.tensor([0, 1, 1, 0, 1, 0]),
    )
    with torch.no_grad():
        new, old = new_model(pixels), FrozenEncoder(old_model)(pixels)
        method = create_method("hoc", lam=0.25)
        assert method.terms is not None
        found = method.terms(Step(new, old, targets, torch.zeros(6, dtype=torch.bool)))["hoc"]
    assert "z" not in vars(old)  # never made
    assert float(found) == pytest.approx(
        0.75 * float(info_nce(new.z, old.z, targets, 5.0)), abs=1e-4
    )


def test_the_terms_are_cross_entropy_hold_and_contrast() -> None:
    new_model, old_model, first_model = (encoder(seed) for seed in range(3))
    pixels = torch.randint(0, 256, (6, 1, 32, 32), dtype=torch.uint8)
    targets, turns = torch.tensor([0, 1, 1, 0, 1, 1]), torch.tensor([0, 0, 0, 1, 2, 3])
    with torch.no_grad():
        new, old, first = new_model(pixels), old_model(pixels), first_model(pixels)
    upgrade = Upgrade(new_model, FrozenEncoder(old_model), digits(), ("0",), ("1",))
    objective = create_method("polaris", hold=3.0, contrast=0.5, rho=2.0).objective(upgrade)
    step = Step(new, old, targets, torch.zeros(6, dtype=torch.bool), turns=turns, first=first)
    terms = objective.terms(step)
    slots = torch.tensor(
        [0, 1, 1, 25, 51, 76]
    )  # K = 200: 25 slots for classes, then 25 for each quarter turn
    z, y, x = (functional.normalize(seen.z) for seen in (new, old, first))
    held = 1 - ((z * y).sum(1) + (z * x).sum(1)) / 2
    assert float(terms["ce"].detach()) == pytest.approx(
        float(functional.cross_entropy(new.logits, slots)), abs=1e-5
    )
    assert float(terms["hold"]) == pytest.approx(3 * float(held.mean()), abs=1e-5)
    contrast = search_contrast(z @ y.T, z @ z.T, slots, 2.0)
    assert float(terms["contrast"]) == pytest.approx(0.5 * float(contrast), abs=1e-5)


def test_every_class_owns_four_slots_of_its_own() -> None:
    model = encoder(0, tuple("abcdefgh"), capacity=80)
    model.slots = model.slots.assign(("x", "y"), "right")
    table = rotated_slots(model)[list(model.slots.of(model.slots.classes))]
    assert table[:, 0].tolist() == list(model.slots.of(model.slots.classes))
    assert len(set(table.flatten().tolist())) == table.numel()
    assert int(table.max()) < model.classifier.outputs


def test_too_many_classes_for_rotated_slots_are_refused_with_the_way_out() -> None:
    with refuses(InputError, "train", "upgrade"):
        rotated_slots(encoder(0, tuple("abcd"), capacity=24))


def test_the_first_version_is_a_second_teacher_from_the_third_on() -> None:
    shown: list[bool] = []
    method = create_method("polaris")
    begin = method.begin
    assert begin is not None

    def watched(upgrade: Upgrade) -> object:
        objective = begin(upgrade)

        def terms(step: Step) -> dict[str, torch.Tensor]:
            shown.append(step.first is not None)
            return objective.terms(step)

        return type(objective)(terms)

    object.__setattr__(method, "begin", watched)
    counts = []
    for _ in run_scenario(
        class_stream(digits(), 2, 2), method, SETTINGS, progress=False, scenario="lifelong"
    ):
        counts.append(shown.copy())
        shown.clear()
    assert [set(seen) for seen in counts] == [{False}, {False}, {True}]


def test_upgrades_take_smaller_steps_the_fewer_classes_they_bring() -> None:
    method = create_method("polaris", rate=0.4, fade=0.5)
    stream = class_stream(digits(), 4, 1)  # 4 classes, then 1 over 4, then 1 over 5
    versions = run_scenario(stream, method, SETTINGS, progress=False, scenario="lifelong")
    rates = [version.log[0].learning_rate for version in versions]
    assert rates == pytest.approx([0.05, 0.05 * 0.4 * 0.5, 0.05 * 0.4 * 0.2**0.5])
    more = Upgrade(
        encoder(0), FrozenEncoder(encoder(1)), digits(), ("0", "1"), ()
    )  # more classes than before: no more
    assert method.objective(more).learning_rate == pytest.approx(0.4)


def test_wrong_weights_are_refused() -> None:
    with pytest.raises(InputError, match="hold >= 0"):
        create_method("polaris", hold=-1.0)
    with pytest.raises(InputError, match="rho > 0"):
        create_method("polaris", rho=0.0)
    with pytest.raises(InputError, match="rate > 0"):
        create_method("polaris", rate=0.0)


@pytest.mark.parametrize("name", ["hoc", "fd"])
def test_methods_of_papers_can_be_lent_rotated_classes_and_the_first_model(name: str) -> None:
    """By hand: the cross-entropy of turned targets, and the mean over both teachers."""
    method = create_method(name, with_rotated=True, with_first=True)
    assert (method.views, method.rotated, method.first) == (2, True, True)
    assert not create_method(name).rotated  # only where it is asked for
    model = encoder(0)
    pixels = torch.randint(0, 256, (6, 1, 32, 32), dtype=torch.uint8)
    old, first = (FrozenEncoder(encoder(seed))(pixels) for seed in (1, 2))
    targets, turns = torch.tensor([0, 1, 0, 0, 1, 0]), torch.tensor([0, 0, 0, 1, 2, 3])
    upgrade = Upgrade(model, FrozenEncoder(encoder(1)), digits(), ("0",), ("1",))
    objective = method.objective(upgrade)
    replay = torch.ones(6, dtype=torch.bool)
    both = objective.terms(Step(model(pixels), old, targets, replay, turns=turns, first=first))
    with_old = objective.terms(Step(model(pixels), old, targets, replay, turns=turns))
    with_first = objective.terms(Step(model(pixels), first, targets, replay, turns=turns))
    assert torch.allclose(both[name], (with_old[name] + with_first[name]) / 2, atol=1e-6)
    slots = rotated_slots(model)
    plain = model(pixels).cross_entropy(slots[targets, turns])
    share = 0.25 if name == "hoc" else 1.0
    assert torch.allclose(both["ce"], share * plain, atol=1e-6)


def test_a_trained_head_has_no_slots_for_rotated_classes() -> None:
    with refuses(InputError):
        create_method("fd", head="softmax", with_rotated=True)
