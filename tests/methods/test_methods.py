"""Each method's terms against its equation, on a real pair of small models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from wording import refuses

from fixstar.data import ImageSet, from_arrays
from fixstar.errors import InputError, UnknownNameError
from fixstar.losses import cross_entropy, feature_distillation, info_nce, knowledge_distillation
from fixstar.methods import METHODS, Method, OldVectors, Step, Terms, Upgrade, create_method
from fixstar.methods.method import above, at_least, one_of, require, whole
from fixstar.models import Encoder, FrozenEncoder

OLD, NEW = ("a", "b", "c"), ("d", "e")


def images(seed: int = 0) -> ImageSet:
    """Four images of each of five classes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 32, 32, 1), dtype=np.uint8)
    return from_arrays(pixels, np.repeat(np.arange(5), 4), [*OLD, *NEW])


def encoder(method: Method, classes: tuple[str, ...], seed: int, feature_dim: int = 6) -> Encoder:
    torch.manual_seed(seed)
    options: dict[str, Any] = {"in_channels": 1, "width": 4, "feature_dim": feature_dim}
    return Encoder.create(
        "tiny",
        method.classifier,
        classes=classes,
        capacity=80 if method.rotated else 8,
        backbone_options=options,
        classifier_options=dict(method.classifier_options),
    ).eval()


def situation(method: Method, wider: int = 6, first: bool = False) -> tuple[Upgrade, Step]:
    """A new model and its predecessor looking at a batch of all classes; the last half is replayed."""
    new, old = encoder(method, OLD + NEW, 1, wider), encoder(method, OLD, 0)
    teacher = None if first else FrozenEncoder(old)
    data = images()
    upgrade = Upgrade(new, teacher, data, () if first else OLD, OLD + NEW if first else NEW)
    pixels = torch.from_numpy(np.asarray(data.images)).permute(0, 3, 1, 2)
    targets = new.targets(data.classes)[torch.from_numpy(data.labels)]
    seen = None if teacher is None else teacher(pixels, maps=True)
    replayed = torch.arange(20) >= 10
    return upgrade, Step(
        new(pixels, targets, maps=True), seen, targets, replayed, progress=0.3, pixels=pixels
    )


def terms(method: Method, **changes: Any) -> tuple[Terms, Upgrade, Step]:
    upgrade, step = situation(method, **changes)
    return method.objective(upgrade).terms(step), upgrade, step


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_registered_under_its_name_cites_its_source_and_has_finite_terms(
    name: str,
) -> None:
    method = create_method(name)
    assert method.name == name
    assert any(paper in method.source for paper in ("BCT", "CoReS", "CL2R", "HOC"))
    for first in (True, False):
        upgrade, step = situation(method, first=first)
        if "old vectors" in method.needs:
            upgrade = replace(upgrade, old_vectors=OldVectors(np.eye(3, 6), np.arange(3), OLD))
        values = method.objective(upgrade).terms(step)
        assert all(torch.isfinite(value) and value.ndim == 0 for value in values.values())


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"podnet", "cores-contrastive"}))
def test_the_first_version_is_plain_cross_entropy(name: str) -> None:
    values, _, step = terms(create_method(name), first=True)
    torch.testing.assert_close(values, {"ce": cross_entropy(step.new.logits, step.targets)})


@pytest.mark.parametrize("name", ["er", "cores", "itm", "ift"])
def test_plain_methods_look_only_at_the_new_logits(name: str) -> None:
    values, _, step = terms(create_method(name))
    torch.testing.assert_close(values, {"ce": cross_entropy(step.new.logits, step.targets)})


def test_hoc_is_the_convex_combination_of_equation_2() -> None:
    values, _, step = terms(create_method("hoc", lam=0.3, rho=7.0))
    assert step.old is not None
    torch.testing.assert_close(values["ce"], 0.3 * cross_entropy(step.new.logits, step.targets))
    torch.testing.assert_close(
        values["hoc"], 0.7 * info_nce(step.new.z, step.old.z, step.targets, 7.0)
    )


def test_fd_distils_replayed_images_with_the_weight_of_the_class_counts() -> None:
    lam = 5 * (2 / 3) ** 0.5
    values, _, step = terms(create_method("fd"))
    assert step.old is not None
    expected = lam * feature_distillation(step.new.z[10:], step.old.z[10:])
    torch.testing.assert_close(values["fd"], expected)
    everywhere, _, _ = terms(create_method("fd", on="all"))
    torch.testing.assert_close(everywhere["fd"], lam * feature_distillation(step.new.z, step.old.z))


def test_fds_weight_counts_the_old_classes_in_the_memory() -> None:
    """Section 7.2 of CL2R: classes of pre-training are old to the model, but no image of them is remembered."""
    method = create_method("fd", on="all")
    upgrade, step = situation(method)
    assert step.old is not None
    memory = upgrade.images.of_classes(["b"])
    values = method.objective(replace(upgrade, memory=memory)).terms(step)
    expected = 5 * (2 / 1) ** 0.5 * feature_distillation(step.new.z, step.old.z)
    torch.testing.assert_close(values["fd"], expected)


def test_fd_with_a_trainable_head() -> None:
    values, upgrade, step = terms(create_method("fd", head="softmax"))
    assert step.old is not None
    assert upgrade.encoder.classifier.kind == "linear"
    expected = 5 * (2 / 3) ** 0.5 * feature_distillation(step.new.z[10:], step.old.z[10:])
    torch.testing.assert_close(values["fd"], expected)


def test_l2_holds_images_of_old_classes_at_their_features_as_they_are() -> None:
    """Equation 3 of BCT, as a mean: the first twelve images are of old classes."""
    values, _, step = terms(create_method("l2", lam=2.0))
    assert step.old is not None
    distances = [((step.new.z[i] - step.old.z[i]) ** 2).sum() / 2 for i in range(12)]
    torch.testing.assert_close(values["l2"], 2 * torch.stack(distances).mean())


def test_the_cosine_margin_is_that_of_bct() -> None:
    options = create_method("bct", head="cosine-margin").classifier_options
    assert options == {"scale": 32.0, "margin": 0.4}  # section 3.2, appendix A
    for name in ("itm", "l2", "lwf"):
        assert create_method(name, head="cosine-margin").classifier_options == options


def test_a_teacher_of_other_classes_judges_none() -> None:
    """A model that replaced the last one has outputs of its own pre-training classes only."""
    for name in ("bct-er", "lwf", "lucir", "bic", "foster", "cvs", "l2"):
        method = create_method(name)
        upgrade, step = situation(method)
        values = method.objective(replace(upgrade, old_classes=("p", "q", "r"))).terms(step)
        others = {key: value for key, value in values.items() if key not in ("ce", "model", "data")}
        torch.testing.assert_close(values["ce"], cross_entropy(step.new.logits, step.targets))
        assert all(value == 0 for value in others.values())


def test_lwf() -> None:
    values, _, step = terms(create_method("lwf", lam=3.0, temperature=2.0))
    assert step.old is not None
    expected = 3 * knowledge_distillation(step.new.logits[:, :3], step.old.logits, 2.0)
    torch.testing.assert_close(values["lwf"], expected)
    values, _, step = terms(
        create_method("lwf", on="new")
    )  # table 1a of BCT; the last eight images are of new classes
    assert step.old is not None
    torch.testing.assert_close(values["ce"], cross_entropy(step.new.logits[12:], step.targets[12:]))
    expected = knowledge_distillation(step.new.logits[12:, :3], step.old.logits[12:], 2.0)
    torch.testing.assert_close(values["lwf"], expected)


@pytest.mark.parametrize("name", ["bct", "bct-er"])
@pytest.mark.parametrize("wider", [6, 9])
def test_the_influence_loss_is_the_old_classifier_on_the_shared_components_of_old_classes(
    name: str, wider: int
) -> None:
    values, upgrade, step = terms(create_method(name, lam=2.0), wider=wider)
    assert upgrade.teacher is not None
    old_rows = upgrade.teacher.classifier.get_parameter("weight")
    logits = (
        step.new.z[:12, :6] @ old_rows.T
    )  # the first twelve images are of the three old classes
    torch.testing.assert_close(
        values["influence"], 2 * functional.cross_entropy(logits, step.targets[:12])
    )


def test_kd_adds_the_old_models_answers_for_new_classes() -> None:
    plain, _, _ = terms(create_method("bct"))
    values, upgrade, step = terms(create_method("bct", new_classes="kd"))
    assert upgrade.teacher is not None
    assert step.old is not None
    answers = step.new.z[12:] @ upgrade.teacher.classifier.get_parameter("weight").T
    expected = plain["influence"] + knowledge_distillation(answers, step.old.logits[12:])
    torch.testing.assert_close(values["influence"], expected)


def test_synthesised_prototypes_are_the_old_models_mean_features() -> None:
    values, upgrade, step = terms(create_method("bct", new_classes="synthesised"))
    assert upgrade.teacher is not None
    assert step.old is not None
    old_rows = upgrade.teacher.classifier.get_parameter("weight")
    means = torch.stack([step.old.z[12:16].mean(0), step.old.z[16:20].mean(0)])
    rows = torch.cat(
        [old_rows, means / means.norm(dim=1, keepdim=True) * old_rows.norm(dim=1).mean()]
    )
    expected = functional.cross_entropy(step.new.z @ rows.T, step.targets)
    torch.testing.assert_close(values["influence"], expected, atol=1e-4, rtol=1e-4)


def test_the_margin_of_the_old_head_applies_to_the_influence_loss() -> None:
    values, upgrade, step = terms(create_method("bct", head="cosine-margin"))
    assert upgrade.teacher is not None
    logits = upgrade.teacher.classifier(step.new.z[:12], step.targets[:12])
    torch.testing.assert_close(
        values["influence"], functional.cross_entropy(logits, step.targets[:12])
    )
    without = functional.cross_entropy(
        upgrade.teacher.classifier(step.new.z[:12]), step.targets[:12]
    )
    assert values["influence"] > without + 1


def test_old_and_new_heads_may_differ() -> None:
    old_method, new_method = (
        create_method("bct", head="norm-softmax"),
        create_method("bct", head="softmax"),
    )
    upgrade, step = situation(new_method)
    teacher = FrozenEncoder(encoder(old_method, OLD, 0))
    changed = Upgrade(upgrade.encoder, teacher, upgrade.images, OLD, NEW)
    values = new_method.objective(changed).terms(step)
    expected = functional.cross_entropy(teacher.classifier(step.new.z[:12]), step.targets[:12])
    torch.testing.assert_close(values["influence"], expected)


@pytest.mark.parametrize("head", ["softmax", "norm-softmax"])
def test_a_narrower_feature_is_zero_in_the_old_components_that_it_lacks(head: str) -> None:
    values, upgrade, step = terms(create_method("bct", head=head), wider=4)
    assert upgrade.teacher is not None
    z = torch.zeros(12, 6)
    z[:, :4] = step.new.z[:12]  # of old classes
    answers = upgrade.teacher.classifier(z, step.targets[:12])
    expected = functional.cross_entropy(answers, step.targets[:12])
    torch.testing.assert_close(values["influence"], expected)


def test_mistakes_are_told_with_what_is_allowed() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'hoc'"):
        create_method("hco")
    with refuses(InputError):
        create_method("hoc", lambda_=0.1)
    with pytest.raises(InputError, match=r"lam in \[0, 1\], got lam=2"):
        create_method("hoc", lam=2)
    with pytest.raises(InputError, match="cosine-margin"):
        create_method("bct", head="arcface")
    with pytest.raises(InputError, match="replay, all"):
        create_method("fd", on="new")
    with refuses(InputError):
        create_method("hoc", same_class="wrong")


def test_every_option_that_breaks_its_rule_is_named() -> None:
    rules = {"lam": at_least(0), "rho": above(0), "k": whole(1), "head": one_of(("a", "b"))}
    require("m", {"lam": 0, "rho": 0.1, "k": 1, "head": "a"}, **rules)
    with pytest.raises(InputError) as caught:
        require("m", {"lam": -1, "rho": 0, "k": 1.5, "head": "a"}, **rules)
    assert (
        str(caught.value)
        == "m needs lam >= 0 and rho > 0 and k a whole number >= 1, got lam=-1, rho=0, k=1.5"
    )
    with refuses(InputError):
        require("m", {"lam": 1, "rho": 1, "k": 2, "head": "c"}, **rules)
