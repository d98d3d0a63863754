"""Methods that use little of the past: stored vectors alone, no labels, or everything at once."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_lifelong_baselines import SETTINGS, blobs
from test_methods import OLD, situation, terms
from torch.nn import functional
from wording import refuses

from fixstar.data import ImageSet, class_stream
from fixstar.errors import InputError, ModelError
from fixstar.losses import feature_distillation, two_view_contrast
from fixstar.methods import OldVectors, create_method
from fixstar.methods.advice import advise, parse_needs
from fixstar.models import Encoder, SimplexClassifier
from fixstar.training import TrainingContext, run_scenario, train_version


def foreign(classes: tuple[str, ...] = OLD, width: int = 6, each: int = 4) -> OldVectors:
    """Vectors of another system, in no order; each class along its own axis, with noise."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(len(classes)), each))
    vectors = 3 * np.eye(max(width, len(classes)))[labels][:, :width] + rng.standard_normal(
        (len(labels), width)
    )
    return OldVectors(vectors, labels, classes)


# Stored vectors


@pytest.mark.parametrize("wider", [4, 6, 9])
def test_the_influence_loss_is_the_cosine_to_the_class_means_of_stored_vectors(wider: int) -> None:
    """Stored classes are c, a and one that has no images; d, e and b have no vectors and no influence."""
    method = create_method("bct-vectors", lam=2.0, scale=10.0)
    upgrade, step = situation(method, wider=wider, first=True)
    stored = foreign(("c", "gone", "a"))
    values = method.objective(replace(upgrade, old_vectors=stored)).terms(step)
    means = {
        name: np.mean(
            [v for v, label in zip(stored.vectors, stored.labels, strict=True) if label == i],
            axis=0,
        )
        for i, name in enumerate(stored.classes)
    }
    losses = []
    names = upgrade.encoder.slots.classes
    for z, target in zip(step.new.z.detach().double().numpy(), step.targets.tolist(), strict=True):
        if names[target] not in means:
            continue
        z = np.pad(z, (0, 2))[:6]  # zero in components that it lacks
        logits = {
            n: 10 * float(z @ means[n] / np.linalg.norm(z) / np.linalg.norm(means[n]))
            for n in means
        }
        losses.append(math.log(sum(map(math.exp, logits.values()))) - logits[names[target]])
    assert len(losses) == 8
    assert values["influence"].item() == pytest.approx(2 * float(np.mean(losses)), abs=1e-4)
    torch.testing.assert_close(
        values["ce"], functional.cross_entropy(step.new.logits, step.targets)
    )


def test_without_stored_vectors_it_is_plain_training() -> None:
    values, _, _ = terms(create_method("bct-vectors"), first=True)
    assert values.keys() == {"ce"}


def test_a_successor_without_an_image_of_an_old_class_is_refused() -> None:
    """It would be trained plainly, and its vectors would meet none of the old ones."""
    with refuses(ModelError):
        terms(create_method("bct-vectors"))


def test_no_class_in_common_is_told_and_so_is_a_class_without_vectors() -> None:
    upgrade, _ = situation(create_method("bct-vectors"))
    empty = OldVectors(np.ones((2, 6)), np.array([1, 1]), ("a", "elsewhere"))
    for stored in (foreign(("x", "y")), empty):
        with refuses(ModelError):
            create_method("bct-vectors").objective(replace(upgrade, old_vectors=stored))


def test_vectors_of_a_foreign_system_influence_the_very_first_version() -> None:
    data = blobs()
    stored = foreign(data.classes, width=8, each=6)
    method = create_method("bct-vectors")
    influenced = train_version(
        1, data, TrainingContext(old_vectors=stored), method, SETTINGS, progress=False
    )
    plain = train_version(1, data, TrainingContext(), method, SETTINGS, progress=False)
    assert influenced.log[0].terms.keys() == {"ce", "influence"}
    assert plain.log[0].terms.keys() == {"ce"}
    assert influenced.log[-1].terms["influence"] < influenced.log[0].terms["influence"]


def test_the_vectors_of_the_previous_version_are_made_again_where_it_is_at_hand() -> None:
    versions = list(
        run_scenario(
            class_stream(blobs(), 2, 2), create_method("bct-vectors"), SETTINGS, progress=False
        )
    )
    assert [set(v.log[0].terms) for v in versions] == [{"ce"}, {"ce", "influence"}]


def test_bct_vectors_mistakes_and_advice() -> None:
    with pytest.raises(InputError, match="scale > 0"):
        create_method("bct-vectors", scale=0.0)
    methods = {name: create_method(name) for name in ("bct-vectors", "hoc", "itm")}
    assert advise(parse_needs("old-vectors"), methods).recommended == "bct-vectors"
    assert advise(
        parse_needs("old-model,all-images"), {"bct-vectors": methods["bct-vectors"]}
    ).recommended
    assert advise(parse_needs("all-images"), methods).possible == ("itm",)


# The upper bound of CL2R


def test_the_upper_bound_distils_all_images_of_old_classes() -> None:
    values, _, step = terms(create_method("cl2r-ub", base=2.0))
    assert step.old is not None
    lam = 2 * math.sqrt(
        2 / 3
    )  # two new classes, three old ones; the first twelve images are of old ones
    torch.testing.assert_close(
        values["fd"], lam * feature_distillation(step.new.z[:12], step.old.z[:12])
    )


def test_the_upper_bound_is_retrained_on_everything_from_the_same_start() -> None:
    method = create_method("cl2r-ub")
    assert (method.scenario, method.initialisation, method.classifier) == (
        "retraining",
        "same",
        "simplex",
    )
    settings = replace(SETTINGS, capacity=9)
    versions = list(
        run_scenario(
            class_stream(blobs(), 2, 2), method, settings, progress=False, scenario="retraining"
        )
    )
    assert [len(v.images) if v.images is not None else 0 for v in versions] == [16, 32]
    assert versions[1].log[0].terms.keys() == {"ce", "fd"}
    with pytest.raises(InputError, match="base >= 0"):
        create_method("cl2r-ub", base=-1.0)


# Without labels


def test_the_contrast_is_that_of_the_simplex_logits() -> None:
    for first in (True, False):
        values, _, step = terms(create_method("cores-contrastive", temperature=0.4), first=first)
        torch.testing.assert_close(values, {"contrast": two_view_contrast(step.new.logits, 0.4)})


def test_the_simplex_keeps_cosines_so_the_contrast_does_not_see_a_rotation() -> None:
    """This is why versions must start from the same weights to be compatible."""
    torch.manual_seed(0)
    simplex, z = SimplexClassifier(9), torch.randn(12, 8)
    rotation, _ = torch.linalg.qr(torch.randn(8, 8))
    expected = two_view_contrast(z)
    torch.testing.assert_close(two_view_contrast(simplex(z)), expected)
    torch.testing.assert_close(two_view_contrast(simplex(z @ rotation)), expected)


def test_labels_do_not_matter_to_contrastive_cores() -> None:
    """Permuted labels, the same images: the same weights, bit for bit."""
    data = blobs()
    permuted = ImageSet(
        data.images, np.random.default_rng(1).permutation(data.labels), data.classes
    )
    settings = replace(SETTINGS, capacity=9)

    def trained(name: str, images: ImageSet) -> Encoder:
        return train_version(
            1, images, TrainingContext(), create_method(name), settings, progress=False
        ).encoder

    assert _same(trained("cores-contrastive", data), trained("cores-contrastive", permuted))
    assert not _same(trained("cores", data), trained("cores", permuted))


def test_contrastive_mistakes_are_told() -> None:
    with pytest.raises(InputError, match="temperature > 0"):
        create_method("cores-contrastive", temperature=0.0)
    with pytest.raises(InputError, match="same, fresh, previous"):
        create_method("cores-contrastive", initialisation="pretrained")
    assert create_method("cores-contrastive").cost == 2


def _same(a: Encoder, b: Encoder) -> bool:
    return all(
        torch.equal(x, y)
        for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )
