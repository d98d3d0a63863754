"""Upgrades with little to go by: classes of one image or of none, nothing new, old classes that lie apart."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_methods import NEW, OLD, situation
from torch.nn import functional

from fixstar.errors import InputError
from fixstar.losses import centre_alignment, cosine_boundary, feature_distillation, pooled_outputs
from fixstar.methods import Terms, Upgrade, create_method
from fixstar.methods.centres import OldCentres

# In a situation the images 0 to 11 are of the old classes 0, 1, 2 and 12 to 19 of the new classes 3, 4: four of each.


def nothing_new(upgrade: Upgrade) -> Upgrade:
    """The same images, all of classes that the old model knows."""
    return replace(upgrade, old_classes=OLD + NEW, new_classes=())


def test_the_boundary_of_images_that_are_all_alike_is_their_centre() -> None:
    """Rounding must not make a cosine larger than 1, nor a squared distance less than nothing."""
    features = torch.randn(500, 24, generator=torch.Generator().manual_seed(0))
    centres = OldCentres(features.repeat(3, 1), torch.arange(500).repeat(3), 500)
    assert centres.loosest.max() <= 1
    assert torch.isfinite(centres.radii).all()
    assert centres.radii.max() < 1e-3


def test_centres_of_a_class_that_comes_again_are_those_of_new_and_remembered_images() -> None:
    upgrade, step = situation(create_method("cvs"))
    assert step.old is not None
    data = upgrade.images
    centres = OldCentres.at(
        replace(upgrade, images=data.take([0, 12, 13]), memory=data.take([2, 3, 4])), OLD
    )
    unit = functional.normalize(step.old.z)
    torch.testing.assert_close(centres.means[0], unit[[0, 2, 3]].mean(dim=0), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(centres.means[1], unit[4], atol=1e-5, rtol=1e-4)
    assert centres.known.tolist() == [True, False, False, False, False]


def test_lce_leaves_out_classes_of_one_image_and_of_none() -> None:
    """One image is at the centre itself: a boundary of no width, which would hold the class to a single vector."""
    method = create_method("lce-er", align=5.0, boundary=2.0)
    upgrade, step = situation(method)
    assert step.old is not None
    values = method.objective(replace(upgrade, images=upgrade.images.take(np.arange(13)))).terms(
        step
    )
    own, features = step.targets[:12], functional.normalize(step.old.z[:12])
    means = torch.stack([features[4 * slot : 4 * slot + 4].mean(dim=0) for slot in range(3)])
    loosest = (features * functional.normalize(means)[own]).sum(dim=1).reshape(3, 4).amin(dim=1)
    prototypes = upgrade.encoder.classifier.get_parameter("weight")[:3]
    align = centre_alignment(prototypes, means, torch.ones(3, dtype=torch.bool))
    within = cosine_boundary(
        step.new.z[:12], means[own], loosest[own], torch.ones(12, dtype=torch.bool)
    )
    torch.testing.assert_close(values["align"], 5 * align, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(values["boundary"], 2 * within, atol=1e-4, rtol=1e-4)


def test_cvs_holds_a_class_to_the_one_image_that_is_remembered_of_it() -> None:
    method = create_method("cvs", data=2.0)
    upgrade, step = situation(method)
    assert step.old is not None
    memory = upgrade.images.take([0, 4, 8])
    values = method.objective(
        replace(upgrade, images=upgrade.images.of_classes(NEW), memory=memory)
    ).terms(step)
    new, old = functional.normalize(step.new.z), functional.normalize(step.old.z)
    distances = [(new[i] - old[4 * (i // 4)]).square().sum() for i in range(12)]
    torch.testing.assert_close(
        values["data"], 2 * torch.stack(distances).mean(), atol=1e-4, rtol=1e-4
    )


def test_podnet_without_a_new_class_counts_one() -> None:
    method = create_method("podnet", spatial=2.0, flat=4.0)
    upgrade, step = situation(method)
    assert step.old is not None
    values = method.objective(nothing_new(upgrade)).terms(step)
    torch.testing.assert_close(
        values["pod"], 2 * math.sqrt(5) * pooled_outputs(step.new.maps, step.old.maps)
    )
    torch.testing.assert_close(
        values["flat"], 4 * math.sqrt(5) * feature_distillation(step.new.h, step.old.h)
    )


def upper_bound(upgrade: Upgrade) -> Terms:
    return (
        create_method("cl2r-ub", base=2.0)
        .objective(upgrade)
        .terms(situation(create_method("cl2r-ub"))[1])
    )


def test_the_upper_bound_without_a_new_class_counts_one() -> None:
    upgrade, step = situation(create_method("cl2r-ub"))
    assert step.old is not None
    expected = 2 * math.sqrt(1 / 5) * feature_distillation(step.new.z, step.old.z)
    torch.testing.assert_close(upper_bound(nothing_new(upgrade))["fd"], expected)


def test_the_upper_bound_finds_old_classes_by_their_slots() -> None:
    """Fine-tuning classes take slots from the right: old classes need not be the first ones."""
    upgrade, step = situation(create_method("cl2r-ub"))
    assert step.old is not None
    apart = replace(upgrade, old_classes=("b", "e"), new_classes=("a", "c", "d"))
    old = [*range(4, 8), *range(16, 20)]
    expected = 2 * math.sqrt(3 / 2) * feature_distillation(step.new.z[old], step.old.z[old])
    torch.testing.assert_close(upper_bound(apart)["fd"], expected)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("podnet", {"spatial": -1.0}, "spatial=-1.0"),
        ("podnet", {"flat": math.nan}, "flat=nan"),
        ("lce-er", {"align": -1.0}, "align=-1.0"),
        ("lce-er", {"boundary": math.nan}, "boundary=nan"),
        ("cvs", {"model": -1.0}, "model=-1.0"),
        ("cvs", {"data": math.nan}, "data=nan"),
        ("cl2r-ub", {"base": math.nan}, "base=nan"),
    ],
)
def test_weights_below_zero_or_no_number_are_refused(
    name: str, options: dict[str, float], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        create_method(name, **options)


def test_weights_of_zero_are_allowed_and_switch_a_term_off() -> None:
    nothing: dict[str, dict[str, float]] = {
        "podnet": {"spatial": 0.0, "flat": 0.0},
        "lce-er": {"align": 0.0, "boundary": 0.0},
        "cvs": {"model": 0.0, "data": 0.0, "margin": 0.0},
        "cl2r-ub": {"base": 0.0},
    }
    for name, options in nothing.items():
        method = create_method(name, **options)
        upgrade, step = situation(method)
        first, *others = method.objective(upgrade).terms(step).items()
        assert first[0] in ("ce", "nca")
        assert others
        assert all(value.item() == 0 for _, value in others)
