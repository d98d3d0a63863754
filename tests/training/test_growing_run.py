"""A run whose capacity is full: it grows, learns more classes, and meets what it stored before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from wording import refuses

from fixstar.data import Augmentation, ImageSet, ReplayMemory, from_arrays
from fixstar.errors import InputError, ModelError
from fixstar.evaluation import cross_test
from fixstar.methods import create_method
from fixstar.models import Encoder, SimplexClassifier
from fixstar.training import (
    Recipe,
    Settings,
    TrainingContext,
    Validation,
    Version,
    train_version,
    version_features,
)
from fixstar.training.version import VersionPlan, missing_growth

FULL = Settings(
    backbone="tiny",
    backbone_options={"in_channels": 1, "width": 8},
    capacity=4,
    recipe=Recipe(epochs=5, learning_rate=0.05, milestones=(4,), batch_size=32),
    augmentation=Augmentation(crop_padding=2, flip=False),
    device="cpu",
)
GROWN = replace(FULL, grown=(6,))


def digits(classes: range, start: int, stop: int) -> ImageSet:
    from sklearn.datasets import load_digits

    data = load_digits()
    images = np.kron((data.images * 15).astype(np.uint8), np.ones((1, 4, 4), np.uint8))
    rows = np.concatenate([np.flatnonzero(data.target == label)[start:stop] for label in classes])
    return from_arrays(images[rows], data.target[rows])


@pytest.fixture(scope="module")
def first() -> Version:
    """Four classes in four slots. Its training is that of hoc, fd and cores alike: cross-entropy."""
    return train_version(
        1, digits(range(4), 0, 60), TrainingContext(), create_method("hoc"), FULL, progress=False
    )


def second(name: str, first: Version, settings: Settings = GROWN) -> Version:
    """Six more classes."""
    method, known = create_method(name), digits(range(4), 0, 60)
    if method.scenario == "retraining":
        return train_version(
            2,
            digits(range(10), 0, 60),
            TrainingContext(first.encoder),
            method,
            settings,
            progress=False,
        )
    memory = ReplayMemory(20).extended(known, first.encoder.preprocessing)
    past = TrainingContext(first.encoder, memory)
    return train_version(2, digits(range(4, 10), 0, 60), past, method, settings, progress=False)


def still(settings: Settings) -> Settings:
    return replace(settings, recipe=replace(settings.recipe, epochs=1, learning_rate=1e-12))


# Settings


def test_settings_are_written_and_read_with_their_growth() -> None:
    old = FULL.to_json()
    assert old["grown"] == []
    assert Settings.from_json(old) == replace(FULL, device="auto")
    grown = replace(FULL, grown=(6, 3)).to_json()
    assert grown == {**old, "grown": [6, 3]}
    assert Settings.from_json(grown).grown == (6, 3)
    with pytest.raises(InputError, match="grown"):
        replace(FULL, grown=(1,))


def test_a_new_encoder_has_all_simplices_and_the_weights_it_would_have_had() -> None:
    """CoReS starts every version from the same weights; growth must not change those there were."""
    method, names = create_method("cores"), ["0", "1"]
    plain, grown = (
        settings.new_encoder(method, names, seed=7)
        for settings in (FULL, replace(FULL, grown=(6, 3)))
    )
    assert (grown.classifier.parts, grown.slots.capacity) == ((3, 5, 2), 13)
    weights, more = plain.state_dict(), grown.state_dict()
    assert weights.keys() == more.keys()
    assert torch.equal(more["projection.weight"][:3], weights["projection.weight"])
    assert more["projection.weight"][3:].abs().min() > 0
    assert all(
        torch.equal(more[name], value)
        for name, value in weights.items()
        if name != "projection.weight"
    )


def test_classifiers_without_capacity_have_nothing_to_grow_and_other_polytopes_cannot() -> None:
    assert GROWN.new_encoder(create_method("er"), ["0"], seed=0).classifier.outputs == 1
    with refuses(InputError):
        GROWN.new_encoder(create_method("cores", polytope="cube"), ["0"], seed=0)


# Where a version starts


@pytest.mark.parametrize("name", ["hoc", "fd", "cores"])
def test_a_full_model_says_what_to_do_and_a_grown_one_has_room(name: str, first: Version) -> None:
    images, method = digits(range(10), 0, 3), create_method(name)
    with refuses(InputError, "grow"):
        VersionPlan(2, images, TrainingContext(first.encoder), method, FULL).starting_encoder()
    encoder = VersionPlan(
        2, images, TrainingContext(first.encoder), method, GROWN
    ).starting_encoder()
    assert (encoder.classifier.parts, encoder.slots.capacity) == ((3, 5), 10)
    assert encoder.slots.by_class == {str(label): label for label in range(10)}
    assert first.encoder.classifier.parts == (3,)  # the model before is left as it was
    third = VersionPlan(
        3, images, TrainingContext(encoder), method, replace(FULL, grown=(6, 4))
    ).starting_encoder()
    assert (third.classifier.parts, third.slots.by_class) == ((3, 5, 3), encoder.slots.by_class)


def test_growth_in_another_order_is_refused(first: Version) -> None:
    grown = VersionPlan(
        2, digits(range(10), 0, 3), TrainingContext(first.encoder), create_method("hoc"), GROWN
    ).starting_encoder()
    assert missing_growth(grown, (6,)) == ()
    assert missing_growth(grown, (6, 4)) == (4,)
    assert missing_growth(grown, ()) == ()  # it has grown already
    with refuses(ModelError):
        missing_growth(grown, (5, 6))
    with refuses(ModelError):  # from scratch, without its growth
        VersionPlan(
            3, digits(range(10), 0, 3), TrainingContext(grown), create_method("cores"), FULL
        ).starting_encoder()
    wider = replace(FULL, capacity=10)
    with refuses(ModelError):
        VersionPlan(
            2, digits(range(4), 0, 3), TrainingContext(first.encoder), create_method("cores"), wider
        ).starting_encoder()


def test_a_replacement_that_has_not_grown_is_grown_first() -> None:
    torch.manual_seed(1)
    options = {"in_channels": 1, "width": 4}
    better = Encoder.create("tiny", classes=["p", "q"], capacity=4, backbone_options=options)
    previous = Encoder.create("tiny", capacity=4, backbone_options=options)
    previous.grow(6)
    previous.add_classes(["0", "1"], side="right")  # 9, 8: in the second simplex
    right = replace(GROWN, side="right")
    past = TrainingContext(previous, replacement=better)
    encoder = VersionPlan(
        3, digits(range(3), 0, 3), past, create_method("hoc"), right
    ).starting_encoder()
    assert (encoder.classifier.parts, better.classifier.parts) == ((3, 5), (3,))
    assert encoder.slots.by_class == {"p": 0, "q": 1, "0": 9, "1": 8, "2": 7}
    foreign = Encoder.create("tiny", classes=["p"], capacity=10, backbone_options=options)
    with pytest.raises(ModelError, match="different prototypes"):
        VersionPlan(
            3,
            digits(range(3), 0, 3),
            TrainingContext(previous, replacement=foreign),
            create_method("hoc"),
            replace(right, grown=()),
        ).starting_encoder()


# Training


@pytest.mark.parametrize("name", ["hoc", "fd", "cl2r-ub"])
def test_the_teacher_is_zero_in_the_new_dimensions(
    name: str, first: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def kept(new: torch.Tensor, old: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        seen.append((new, old))
        return (new * old).sum() * 0

    for loss in ("info_nce", "feature_distillation"):
        monkeypatch.setattr(f"fixstar.methods.simplex.{loss}", kept)
    second(name, first, still(GROWN))
    assert seen
    for new, old in seen:
        assert new.shape == old.shape == (32, 8)
        assert not old[:, 3:].any()
        assert old[:, :3].abs().sum(dim=1).min() > 0


@pytest.mark.parametrize(
    "name",
    ["hoc", *(pytest.param(name, marks=pytest.mark.long) for name in ("fd", "cores", "cl2r-ub"))],
)
def test_old_and_new_versions_meet(name: str, first: Version, tmp_path: Path) -> None:
    gallery, queries = digits(range(4), 110, 150), digits(range(4), 60, 110)
    before = first.encoder.encode(gallery.images)
    version = second(name, first)
    assert np.array_equal(first.encoder.encode(gallery.images), before)  # nothing stored changes
    version = Version(2, Encoder.load(version.encoder.save(tmp_path / "v2")))
    assert version.encoder.about["settings"]["grown"] == [6]
    features = [version_features(v.name, v.encoder, queries, gallery) for v in (first, version)]
    result = cross_test(features, queries.labels, gallery.labels, "template")
    assert result.matrix[1, 0] > 0.8  # by chance 0.25
    slow = np.pad(before, ((0, 0), (0, 5))) @ version.encoder.encode(queries.images).T
    labels = gallery.labels[slow.argmax(axis=0)]
    found = cross_test(features, queries.labels, gallery.labels, "image")
    assert found.matrix[1, 0] == pytest.approx(
        (labels == queries.labels).mean(), abs=0.011
    )  # near ties apart
    everything = digits(range(10), 60, 110), digits(range(10), 110, 150)
    new = version_features("v2", version.encoder, *everything)
    assert (
        cross_test([new], everything[0].labels, everything[1].labels).matrix[0, 0] > 0.5
    )  # by chance 0.1
    head = version.encoder.classifier
    assert isinstance(head, SimplexClassifier)
    assert head.capacities == (4, 6)


def test_an_epoch_is_selected_against_the_version_before_growth(first: Version) -> None:
    validation = Validation(digits(range(4), 60, 80), digits(range(4), 80, 100))
    version = train_version(
        2, digits(range(4, 10), 0, 20), TrainingContext(first.encoder, ReplayMemory(5)), create_method("hoc"),
        replace(GROWN, recipe=replace(GROWN.recipe, epochs=2)), progress=False, validation=validation,
    )  # fmt: skip
    assert all(entry.scores is not None for entry in version.log)
