"""LUCIR, LCE-ER, AdvBCT-ER and CVS: their terms against slow code, and a short run of each through two versions."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_methods import NEW, OLD, encoder, situation, terms
from torch import Tensor, nn
from torch.nn import functional
from wording import refuses

from fixstar.data import Augmentation, ImageSet, class_stream, from_arrays
from fixstar.errors import InputError, ModelError
from fixstar.losses import cross_entropy, cross_model_triplet, feature_distillation
from fixstar.methods import OldVectors, Step, Terms, Upgrade, create_method
from fixstar.methods.centres import Adversary, OldCentres
from fixstar.models import FrozenEncoder, Outputs
from fixstar.training import Recipe, Settings, Version, run_scenario
from fixstar.training.checkpoint import save_checkpoint

# In a situation the images 0 to 11 are of the old classes 0, 1, 2 and 12 to 19 of the new classes 3, 4: four of each.

TERMS = {
    "lucir": {"ce", "less_forget", "ranking"},
    "lce-er": {"ce", "align", "boundary"},
    "advbct-er": {"ce", "adversarial", "boundary"},
    "cvs": {"ce", "model", "data"},
}


def unit(features: Tensor) -> Tensor:
    return functional.normalize(features)


def lifelong_upgrade(upgrade: Upgrade) -> Upgrade:
    """As in lifelong learning: images of old classes come from memory, not with the task."""
    return replace(
        upgrade, images=upgrade.images.of_classes(NEW), memory=upgrade.images.of_classes(OLD)
    )


# LUCIR


@pytest.mark.parametrize(
    ("ratio", "factor"), [("old/new", math.sqrt(3 / 2)), ("new/old", math.sqrt(2 / 3))]
)
def test_lucir_holds_all_features_with_the_weight_of_the_class_counts(
    ratio: str, factor: float
) -> None:
    values, _, step = terms(create_method("lucir", base=4.0, ratio=ratio))
    assert step.old is not None
    torch.testing.assert_close(
        values["less_forget"], 4 * factor * feature_distillation(step.new.z, step.old.z)
    )


def test_lucir_ranks_cosines_not_scaled_logits() -> None:
    values, upgrade, step = terms(create_method("lucir", ranking=3.0, scale=7.0))
    rows = unit(upgrade.encoder.classifier.get_parameter("weight"))
    losses = []
    for i in range(12):
        cosines = rows @ unit(step.new.z)[i]
        hardest = cosines[3:].sort(descending=True).values[:2]
        losses += [(0.5 - cosines[step.targets[i]] + cosine).clamp(min=0) for cosine in hardest]
    torch.testing.assert_close(values["ranking"], 3 * torch.stack(losses).mean())


def test_lucir_without_a_cosine_classifier_says_so() -> None:
    upgrade, _ = situation(create_method("er"))
    with refuses(ModelError):
        create_method("lucir").objective(upgrade)


# What the old model knows of each class


@pytest.mark.parametrize("remembered", [False, True])
def test_centres_are_measured_on_new_and_remembered_images(remembered: bool) -> None:
    upgrade, step = situation(create_method("lce-er"))
    assert step.old is not None
    centres = OldCentres.at(lifelong_upgrade(upgrade) if remembered else upgrade, OLD + NEW)
    for slot in range(5):
        features = unit(step.old.z[4 * slot : 4 * slot + 4])
        mean = features.mean(dim=0)
        torch.testing.assert_close(centres.means[slot], mean, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(
            centres.loosest[slot], (features @ unit(mean[None])[0]).min(), atol=1e-5, rtol=1e-4
        )
        distances = (features - mean).norm(dim=1)
        torch.testing.assert_close(centres.radii[slot], distances.max(), atol=1e-3, rtol=1e-3)
    assert centres.known.all()


def test_a_class_that_is_not_asked_for_or_has_no_images_is_not_known() -> None:
    upgrade, _ = situation(create_method("lce-er"))
    assert OldCentres.at(upgrade, OLD).known.tolist() == [True, True, True, False, False]
    forgotten = replace(upgrade, images=upgrade.images.of_classes(NEW))
    assert OldCentres.at(forgotten, OLD + NEW).known.tolist() == [False, False, False, True, True]
    assert not OldCentres.at(forgotten, OLD).means.any()


def test_centres_by_hand() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 5.0]])
    centres = OldCentres(features, torch.tensor([1, 1, 1, 2]), 3)
    assert centres.known.tolist() == [False, True, False]  # one image has no boundary to speak of
    torch.testing.assert_close(
        centres.means, torch.tensor([[0.0, 0.0], [2 / 3, 1 / 3], [0.0, 1.0]])
    )
    torch.testing.assert_close(
        centres.loosest, torch.tensor([1.0, 1 / 5**0.5, 1.0])
    )  # (0, 1) against (2, 1) / sqrt 5
    torch.testing.assert_close(
        centres.radii[1], torch.tensor(8.0).sqrt() / 3
    )  # (0, 1) - (2/3, 1/3)


# LCE


@pytest.mark.parametrize("head", ["norm-softmax", "softmax"])
def test_lce_aligns_prototypes_and_keeps_classes_inside_their_old_boundary(head: str) -> None:
    values, upgrade, step = terms(create_method("lce-er", align=5.0, boundary=2.0, head=head))
    assert step.old is not None
    rows, outside, apart = unit(upgrade.encoder.classifier.get_parameter("weight")), [], []
    for slot in range(5):
        own = slice(4 * slot, 4 * slot + 4)
        centre = unit(unit(step.old.z[own]).mean(dim=0)[None])[0]
        loosest = (unit(step.old.z[own]) @ centre).min()
        apart.append((rows[slot] - centre).square().mean())
        outside += [(loosest - cosine).clamp(min=0) for cosine in unit(step.new.z[own]) @ centre]
    torch.testing.assert_close(values["align"], 5 * torch.stack(apart).mean(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        values["boundary"], 2 * torch.stack(outside).mean(), atol=1e-4, rtol=1e-4
    )


def test_it_makes_no_difference_to_lce_whether_an_image_is_new_or_remembered() -> None:
    method = create_method("lce-er")
    upgrade, step = situation(method)
    at_hand = method.objective(upgrade).terms(step)
    remembered = method.objective(lifelong_upgrade(upgrade)).terms(step)
    torch.testing.assert_close(remembered, at_hand, atol=1e-4, rtol=1e-4)


def test_lce_without_prototypes_says_so() -> None:
    upgrade, _ = situation(create_method("hoc"))
    with refuses(ModelError):
        create_method("lce-er").objective(upgrade)


# AdvBCT


def adversarial(**options: object) -> tuple[Terms, Adversary, Upgrade, Step]:
    method = create_method("advbct-er", **options)
    upgrade, step = situation(method)
    objective = method.objective(upgrade)
    assert isinstance(objective.module, Adversary)
    return objective.terms(step), objective.module, upgrade, step


def judged_by(adversary: Adversary, z: Tensor, batch_norm: bool) -> Tensor:
    """The discriminator's answer for each feature, by its weights."""
    first, last = adversary.discriminator[0], adversary.discriminator[-1]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    hidden = unit(z) @ first.weight.T + first.bias
    if batch_norm:
        norm = adversary.discriminator[1]
        assert isinstance(norm, nn.BatchNorm1d)
        hidden = (hidden - hidden.mean(dim=0)) / (hidden.var(dim=0, unbiased=False) + 1e-5).sqrt()
        hidden = hidden * norm.weight + norm.bias
    return (hidden.clamp(min=0) @ last.weight.T + last.bias).sigmoid()


@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize("fade", [True, False])
def test_the_discriminator_learns_what_the_encoder_unlearns(fade: bool, batch_norm: bool) -> None:
    values, adversary, upgrade, step = adversarial(reversal=0.5, fade=fade, batch_norm=batch_norm)
    assert step.old is not None
    new, old = (judged_by(adversary, z, batch_norm) for z in (step.new.z, step.old.z))
    plain = -(1 - new).log().mean() - old.log().mean()  # new features are class 0, old ones class 1
    if fade:
        plain = 0.7 * plain  # a situation is at progress 0.3
    torch.testing.assert_close(values["adversarial"], plain)
    judge, weights = (
        list(adversary.discriminator.parameters()),
        list(upgrade.encoder.backbone.parameters()),
    )
    gradients = torch.autograd.grad(values["adversarial"], judge + weights, retain_graph=True)
    expected = torch.autograd.grad(plain, judge + weights)
    reversal = 0.5 * (2 / (1 + math.exp(-10 * 0.3)) - 1)
    for i, (gradient, forward) in enumerate(zip(gradients, expected, strict=True)):
        torch.testing.assert_close(
            gradient, forward if i < len(judge) else -reversal * forward, atol=1e-6, rtol=1e-3
        )


def test_at_the_start_the_encoder_unlearns_nothing() -> None:
    method = create_method("advbct-er", boundary=0.0)
    upgrade, step = situation(method)
    objective = method.objective(upgrade)
    assert isinstance(objective.module, Adversary)
    values = objective.terms(replace(step, progress=0.0))
    weights = [
        objective.module.get_parameter("discriminator.0.weight"),
        upgrade.encoder.get_parameter("backbone.fc.weight"),
    ]
    learnt, unlearnt = torch.autograd.grad(values["adversarial"], weights)
    assert learnt.any()
    assert not unlearnt.any()


def test_the_adversarial_loss_fades_to_nothing() -> None:
    upgrade, step = situation(create_method("advbct-er"))
    for fade in (True, False):
        objective = create_method("advbct-er", fade=fade).objective(upgrade)
        loss = objective.terms(replace(step, progress=1.0))["adversarial"]
        assert bool(loss == 0) == fade


def test_the_boundary_lies_between_the_old_radius_and_the_threshold() -> None:
    values, adversary, _, step = adversarial(boundary=2.0, threshold=0.3)
    assert step.old is not None
    outside = []
    for i in range(20):
        features = unit(step.old.z[4 * (i // 4) : 4 * (i // 4) + 4])
        centre = features.mean(dim=0)
        radius = (features - centre).norm(dim=1).max()
        excess = (unit(step.new.z)[i] - centre).norm() - (
            radius + 0.3
        ) / 2  # the elasticity starts half way
        outside += [excess] if excess > 0 else []
    torch.testing.assert_close(
        values["boundary"], 2 * torch.stack(outside).mean(), atol=1e-3, rtol=1e-3
    )
    (pull,) = torch.autograd.grad(values["boundary"], adversary.elasticity)
    assert torch.isfinite(pull).all()
    assert pull.any()


def test_the_adversary_starts_the_same_in_every_run() -> None:
    _, first, _, _ = adversarial()
    torch.rand(3)
    _, again, _, _ = adversarial()
    torch.testing.assert_close(dict(first.named_parameters()), dict(again.named_parameters()))


# CVS


def test_cvs_is_coherent_with_the_previous_model_and_with_the_means_of_old_classes() -> None:
    method = create_method("cvs", model=3.0, data=2.0, margin=0.2)
    upgrade, step = situation(method)
    values = method.objective(lifelong_upgrade(upgrade)).terms(step)
    assert step.old is not None
    distances = []
    for i in range(12):
        mean = unit(step.old.z[4 * (i // 4) : 4 * (i // 4) + 4]).mean(dim=0)
        distances.append((unit(step.new.z)[i] - mean).square().sum())
    torch.testing.assert_close(values["data"], 2 * torch.stack(distances).mean())
    triplet = cross_model_triplet(step.new.z, step.old.z, step.targets, 0.2)
    torch.testing.assert_close(values["model"], 3 * triplet)
    torch.testing.assert_close(values["ce"], cross_entropy(step.new.logits, step.targets))


def test_cvs_holds_classes_where_the_version_put_them_that_learnt_them() -> None:
    method = create_method("cvs", data=2.0, head="softmax")
    assert method.classifier == "linear"
    upgrade, step = situation(method)
    stored = unit(torch.randn(4, 6, generator=torch.Generator().manual_seed(5)))
    vectors = OldVectors(stored.numpy(), np.array([0, 0, 1, 2]), ("b", "a", "gone"))
    values = method.objective(replace(lifelong_upgrade(upgrade), old_vectors=vectors)).terms(step)
    centres = {0: stored[2], 1: stored[:2].mean(dim=0)}  # of slots a and b; nothing is stored of c
    distances = [(unit(step.new.z)[i] - centres[i // 4]).square().sum() for i in range(8)]
    torch.testing.assert_close(values["data"], 2 * torch.stack(distances).mean())


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize(
    "chosen", [slice(12, 20), slice(0, 1), slice(0, 4)], ids=["no old class", "one", "one class"]
)
def test_poor_batches_have_finite_terms_and_gradients(name: str, chosen: slice) -> None:
    method = create_method(name)
    upgrade, step = situation(method)
    assert step.old is not None
    old, new = (
        Outputs(seen.h[chosen], seen.classifier, seen.projection) for seen in (step.old, step.new)
    )
    poor = Step(new, old, step.targets[chosen], torch.zeros_like(step.replay[chosen]))
    values = method.objective(lifelong_upgrade(upgrade)).terms(poor)
    assert values.keys() == TERMS[name]
    weights = list(upgrade.encoder.parameters())
    gradients = torch.autograd.grad(
        torch.stack(list(values.values())).sum(), weights, allow_unused=True
    )
    assert all(torch.isfinite(value) and value.ndim == 0 for value in values.values())
    assert all(torch.isfinite(gradient).all() for gradient in gradients if gradient is not None)


@pytest.mark.parametrize("name", TERMS)
def test_a_copy_of_the_old_model_starts_with_finite_gradients(name: str) -> None:
    method = create_method(name)
    upgrade, step = situation(method)
    copy = encoder(method, OLD, 0)
    copy.add_classes(NEW)
    pixels = torch.from_numpy(np.asarray(upgrade.images.images)).permute(0, 3, 1, 2)
    teacher = FrozenEncoder(encoder(method, OLD, 0))
    objective = method.objective(Upgrade(copy, teacher, upgrade.images, OLD, NEW))
    values = objective.terms(
        Step(copy(pixels, step.targets), teacher(pixels), step.targets, step.replay)
    )
    gradients = torch.autograd.grad(
        torch.stack(list(values.values())).sum(), list(copy.parameters())
    )
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_mistakes_are_told_with_what_is_allowed() -> None:
    with pytest.raises(InputError, match="old/new, new/old"):
        create_method("lucir", ratio="old")
    with pytest.raises(InputError, match="norm-softmax"):
        create_method("lce-er", head="arcface")
    with refuses(InputError):
        create_method("advbct-er", width=0)
    with pytest.raises(InputError, match="margin >= 0"):
        create_method("cvs", margin=-1.0)


def blobs() -> ImageSet:
    """Four classes of eight noisy images, bright in one quarter each."""
    pixels = np.random.default_rng(0).integers(0, 100, (32, 32, 32, 1), dtype=np.uint8)
    labels = np.repeat(np.arange(4), 8)
    for image, label in zip(pixels, labels, strict=True):
        image[16 * (label // 2) :][:16, 16 * (label % 2) :][:, :16] += 120
    return from_arrays(pixels, labels)


SETTINGS = Settings(
    backbone="tiny",
    backbone_options={"in_channels": 1, "width": 4, "feature_dim": 8},
    recipe=Recipe(epochs=2, learning_rate=0.02, milestones=(1,), batch_size=8),
    augmentation=Augmentation(crop_padding=1),
    replay_per_class=4,
    device="cpu",
)


def two_versions(name: str, directory: Path | None = None) -> list[Version]:
    return list(
        run_scenario(
            class_stream(blobs(), 2, 2), create_method(name), SETTINGS, directory, progress=False
        )
    )


@pytest.mark.parametrize("name", TERMS)
def test_two_versions_are_trained_with_every_term_logged(name: str) -> None:
    first, second = two_versions(name)
    assert all(entry.terms.keys() == {"ce"} for entry in first.log)
    assert all(entry.terms.keys() == TERMS[name] for entry in second.log)
    assert all(math.isfinite(value) for entry in second.log for value in entry.terms.values())
    assert second.encoder.classifier.outputs == 4


@pytest.mark.parametrize("name", ["advbct-er", "lce-er"])
def test_what_is_trained_along_survives_an_interruption(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = two_versions(name)[1].encoder.state_dict()
    saved: list[Path] = []

    def save_and_stop(path: Path, *state: Any) -> None:
        save_checkpoint(path, *state)
        saved.append(path)
        if len(saved) == 3:  # the first epoch of the second version
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fixstar.training.loop.save_checkpoint", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            two_versions(name, tmp_path / "run")
    resumed = two_versions(name, tmp_path / "run")[1].encoder.state_dict()
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)
