"""Frozen backbones: features are made once, kept, verified, and stand in for pixels in every method."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import own_models
import pytest
import torch
from PIL import Image
from torch.nn import functional
from wording import refuses

from fixstar.data import (
    Augmentation,
    Batches,
    BatchSource,
    ImageSet,
    from_arrays,
    open_images,
    pixel_source,
)
from fixstar.errors import DataError, InputError
from fixstar.images import Preprocessing
from fixstar.methods import METHODS, create_method
from fixstar.models import Encoder, FrozenEncoder
from fixstar.training import (
    Recipe,
    Settings,
    TrainingContext,
    Validation,
    Version,
    loop,
    train_version,
)
from fixstar.training import features as made_features
from fixstar.training.checkpoint import save_checkpoint
from fixstar.training.features import FrozenFeatures, View
from fixstar.training.scenarios import remember

PREPARED = Preprocessing(size=(16, 16), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
SETTINGS = Settings(
    backbone="own_models:small",
    preprocessing=PREPARED,
    capacity=80,
    recipe=Recipe(epochs=2, learning_rate=0.05, milestones=(), batch_size=8),
    augmentation=Augmentation(crop_padding=0, flip=False),
    replay_per_class=4,
    frozen=True,
    device="cpu",
)


def patches(names: str = "abc", per_class: int = 6, seed: int = 0) -> ImageSet:
    labels = np.repeat(np.arange(len(names)), per_class)
    colours = np.array([[ord(name) * k % 180 for k in (3, 7, 11)] for name in names])[labels]
    noise = np.random.default_rng([seed, ord(names[0])]).integers(0, 70, (len(labels), 16, 16, 3))
    return from_arrays((colours[:, None, None] + noise).astype(np.uint8), labels, list(names))


def files(folder: Path, images: ImageSet) -> ImageSet:
    for row, (pixels, label) in enumerate(zip(images.images, images.labels, strict=True)):
        path = folder / images.classes[label] / f"{row:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(pixels)).save(path)
    return open_images(folder)


def trained(
    images: ImageSet,
    settings: Settings = SETTINGS,
    method: str = "hoc",
    context: Any = None,
    number: int = 1,
) -> Version:
    chosen = create_method(method)
    return train_version(
        number, images, context or TrainingContext(), chosen, settings, progress=False
    )


def same(first: Encoder, second: Encoder) -> bool:
    a, b = first.state_dict(), second.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def forwards(act: Any) -> int:
    """How many images go through the backbone."""
    own_models.FORWARDS.clear()
    act()
    return sum(own_models.FORWARDS)


def test_training_on_features_is_a_plain_loop_over_them() -> None:
    images = patches()
    version = trained(images)
    reference = SETTINGS.new_encoder(
        create_method("hoc"), list(images.classes), SETTINGS.seed
    ).eval()
    assert reference.projection is not None
    pixels = torch.from_numpy(np.asarray(images.images)).permute(0, 3, 1, 2)
    with torch.no_grad():
        h = reference.backbone(reference.normalise(pixels))
    source, _ = pixel_source(images, PREPARED, SETTINGS.augmentation, torch.device("cpu"))
    targets = reference.targets(images.classes)[torch.from_numpy(images.labels)]
    order = Batches(
        [BatchSource(source, targets)], 8, SETTINGS.augmentation, seed=1
    )  # seed * 1009 + number
    weight = reference.projection.weight
    recipe = SETTINGS.recipe
    optimiser = torch.optim.SGD(
        [weight], recipe.learning_rate, 0.9, weight_decay=recipe.weight_decay
    )
    rows = {bytes(image.numpy()): row for row, image in enumerate(pixels)}
    for epoch in range(2):
        for batch in order.epoch(epoch):
            chosen = [rows[bytes(image.numpy())] for image in batch.pixels]
            optimiser.zero_grad()
            logits = reference.classifier(functional.linear(h[chosen], weight))
            torch.autograd.backward(functional.cross_entropy(logits, batch.targets))
            optimiser.step()
    assert version.encoder.projection is not None
    torch.testing.assert_close(version.encoder.projection.weight, weight, atol=1e-6, rtol=1e-5)
    assert weights_of(version.encoder) == weights_of(reference)


def weights_of(encoder: Encoder) -> dict[str, list[float]]:
    return {name: value.flatten().tolist() for name, value in encoder.backbone.state_dict().items()}


def test_the_backbone_runs_once_per_image_and_view(tmp_path: Path) -> None:
    images = patches()
    context = TrainingContext(features=tmp_path)
    measured = 2  # a new backbone is tried with two images
    assert forwards(lambda: trained(images, context=context)) == len(images) + measured
    assert forwards(lambda: trained(images, context=context)) == measured
    flipped = replace(SETTINGS, augmentation=Augmentation(0, flip=True))
    assert forwards(lambda: trained(images, flipped, context=context)) == len(images) + measured
    more = patches("abcd")
    with_known = ImageSet(
        np.concatenate([images.images, more.images[-6:]]), more.labels, more.classes
    )
    assert forwards(lambda: trained(with_known, context=context)) == 6 + measured


def test_an_upgrade_finds_the_features_of_its_teacher(tmp_path: Path) -> None:
    images, more = patches(), patches("de")
    first = trained(images, context=TrainingContext(features=tmp_path))
    memory = remember(TrainingContext().memory, first, replace(SETTINGS, replay_per_class=0))
    context = TrainingContext(first.encoder, memory, features=tmp_path)
    assert forwards(lambda: trained(more, context=context, number=2)) == len(more)


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"podnet", "bct-vectors"}))
def test_every_method_trains_on_features(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIXSTAR_TRUST", "own_models")
    images, more = patches("abc"), patches("de")
    settings = replace(SETTINGS, capacity=200)
    first = trained(images, settings, method, TrainingContext(features=tmp_path))
    chosen = create_method(method)
    memory = replace(TrainingContext().memory, per_class=4)
    if chosen.scenario == "lifelong":
        memory = remember(memory, first, settings)
    else:
        more = ImageSet(
            np.concatenate([images.images, more.images]),
            np.concatenate([images.labels, more.labels + 3]),
            tuple("abcde"),
        )
    context = TrainingContext(first.encoder, memory, first=first.encoder, features=tmp_path)
    second = trained(more, settings, method, context, number=2)
    assert weights_of(first.encoder) == weights_of(second.encoder)
    assert np.isfinite([entry.loss for entry in second.log]).all()
    assert second.encoder.projection is not None
    assert not torch.equal(first.encoder.projection.weight, second.encoder.projection.weight)  # type: ignore[union-attr]
    saved = Encoder.load(second.encoder.save(tmp_path / "v2"))
    assert saved.encode(patches("xy").images) == pytest.approx(
        second.encoder.encode(patches("xy").images), abs=1e-6
    )


def test_maps_and_random_backbones_are_refused() -> None:
    pytest.importorskip("transformers", reason="the backbones extra is not installed")
    with refuses(InputError):
        trained(patches(), method="podnet")
    with refuses(InputError):
        trained(patches(), replace(SETTINGS, backbone="tiny", preprocessing=None))
    with refuses(InputError):
        trained(patches(), replace(SETTINGS, backbone="hf:dinov2", preprocessing=None))


def test_a_kill_while_embedding_loses_one_file_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = patches()
    monkeypatch.setattr(made_features, "_SHARD", 4)
    whole = trained(images)
    context, calls = TrainingContext(features=tmp_path), list[int]()
    seen = made_features._seen

    def killed(model: Encoder, pixels: Any, view: View) -> Any:
        calls.append(len(pixels))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return seen(model, pixels, view)

    with monkeypatch.context() as patch:
        patch.setattr(made_features, "_seen", killed)
        with pytest.raises(KeyboardInterrupt):
            trained(images, context=context)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2
    assert (
        forwards(
            lambda: calls.append(same(trained(images, context=context).encoder, whole.encoder))
        )
        == 18 - 8 + 2
    )
    assert calls[-1] is True


def test_an_interrupted_run_resumes_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, context, method = (
        patches(),
        TrainingContext(features=tmp_path / "features"),
        create_method("hoc"),
    )
    checkpoint = tmp_path / "checkpoint.safetensors"
    whole = trained(images, context=context)
    monkeypatch.setattr(loop, "_PAUSE", 0.0)

    def killed(*state: Any) -> None:
        save_checkpoint(*state)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", killed)
        with pytest.raises(KeyboardInterrupt):
            train_version(1, images, context, method, SETTINGS, checkpoint, progress=False)
    resumed = train_version(1, images, context, method, SETTINGS, checkpoint, progress=False)
    assert same(resumed.encoder, whole.encoder)
    assert resumed.log == whole.log


def test_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    images, context = patches(), TrainingContext(features=tmp_path)
    whole = trained(images, context=context)
    (file,) = tmp_path.rglob("*.safetensors")
    content = bytearray(file.read_bytes())
    for damaged in (content[:-40], content[:-4] + b"\0\0\0\1"):
        file.write_bytes(damaged)
        with pytest.warns(UserWarning, match="is damaged; its features are made again"):
            assert same(trained(images, context=context).encoder, whole.encoder)
    assert forwards(lambda: trained(images, context=context)) == 2  # all of it is there again


def test_another_model_or_preparation_has_features_of_its_own(tmp_path: Path) -> None:
    images, context = patches(), TrainingContext(features=tmp_path)
    trained(images, context=context)
    trained(images, replace(SETTINGS, backbone_options={"arguments": {"seed": 1}}), context=context)
    trained(
        images,
        replace(SETTINGS, preprocessing=replace(PREPARED, mean=(0.4, 0.5, 0.5))),
        context=context,
    )
    assert len(list(tmp_path.iterdir())) == 3


def test_files_are_known_by_their_bytes(tmp_path: Path) -> None:
    images = files(tmp_path / "images", patches())
    context = TrainingContext(features=tmp_path / "features")
    first = trained(images, context=context)
    (tmp_path / "images").rename(tmp_path / "moved")
    moved = open_images(tmp_path / "moved")
    assert forwards(lambda: trained(moved, context=context)) == 2
    assert same(trained(moved, context=context).encoder, first.encoder)


def test_images_that_cannot_be_read_are_refused_or_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    images = files(folder, patches())
    broken = [folder / "a" / "00.png", folder / "b" / "06.png"]
    for path in broken:
        path.write_bytes(b"no image")  # the same bytes twice
    with refuses(DataError, "repeat"):
        trained(open_images(folder))
    with pytest.warns(UserWarning, match="left out"):
        version = trained(open_images(folder), replace(SETTINGS, bad_images="skip"))
    assert version.images is not None
    assert not set(broken) & set(version.images.images)
    assert len(version.images) == len(images) - 2


@pytest.mark.parametrize("flip", [False, True])
def test_rotated_and_flipped_views_are_those_of_the_pixels(flip: bool) -> None:
    images, augmentation = patches(), Augmentation(crop_padding=0, flip=flip)
    encoder = SETTINGS.new_encoder(create_method("hoc"), list(images.classes), 0).eval()
    made = FrozenFeatures(encoder, flip=flip, rotated=True)
    source, _ = made.source(images)
    pixels, _ = pixel_source(images, PREPARED, augmentation, torch.device("cpu"))
    targets = torch.from_numpy(images.labels)
    by_features, by_pixels = (
        Batches([BatchSource(one, targets)], 8, augmentation, seed=3, views=2, rotated=True)
        for one in (source, pixels)
    )
    plan, at = by_features.plan_on_device(0), torch.zeros(1, dtype=torch.long)
    for features, seen in zip(by_features.epoch(0), by_pixels.epoch(0), strict=True):
        with torch.no_grad():
            expected = encoder.backbone(encoder.normalise(seen.pixels))
        torch.testing.assert_close(features.pixels, expected, atol=1e-5, rtol=1e-4)
        assert torch.equal(features.turns, seen.turns)  # type: ignore[arg-type]
        assert torch.equal(
            by_features.cut_at(plan, at).pixels, features.pixels
        )  # as a recorded step cuts it
        at += 1


def test_another_backbone_takes_over_and_its_teacher_reads_its_own_features(tmp_path: Path) -> None:
    images = patches()
    first = trained(images, context=TrainingContext(features=tmp_path)).encoder
    wider = replace(SETTINGS, backbone_options={"arguments": {"width": 20, "seed": 2}})
    encoder = wider.new_encoder(create_method("hoc"), list(images.classes), 0)
    made = FrozenFeatures(encoder, tmp_path)
    teacher = FrozenEncoder(first).reads(made.columns(first), made.of)
    source, _ = made.source(images)
    assert source.table.shape == (18, 1, 32)
    rows = source.table[:, 0]
    pixels = torch.from_numpy(np.asarray(images.images)).permute(0, 3, 1, 2)
    torch.testing.assert_close(
        teacher(rows).z, FrozenEncoder(first)(pixels).z, atol=1e-5, rtol=1e-4
    )
    torch.testing.assert_close(encoder(rows).z, encoder.eval()(pixels).z, atol=1e-5, rtol=1e-4)
    assert teacher.encode(images.images) == pytest.approx(first.encode(images.images), abs=1e-5)
    second = trained(
        patches("de"),
        wider,
        context=TrainingContext(first, remember_of(first, images), features=tmp_path),
        number=2,
    )
    assert second.encoder.backbone.feature_dim == 12  # hoc continues from the last weights


def remember_of(encoder: Encoder, images: ImageSet) -> Any:
    return remember(
        replace(TrainingContext().memory, per_class=4), Version(1, encoder, (), images), SETTINGS
    )


def test_model_selection_embeds_its_images_once(tmp_path: Path) -> None:
    images = patches()
    first = trained(images, context=TrainingContext(features=tmp_path)).encoder
    validation = Validation(patches("de", 4, seed=1), patches("de", 4, seed=2))
    context = TrainingContext(first, remember_of(first, images), features=tmp_path)

    def upgrade() -> None:
        method = create_method("hoc")
        version = train_version(
            2, patches("de"), context, method, SETTINGS, progress=False, validation=validation
        )
        assert all(entry.scores is not None for entry in version.log)

    assert (
        forwards(upgrade) == 12 + 16
    )  # new images and those of the validation; remembered ones are known
    assert forwards(upgrade) == 0


@pytest.mark.long
def test_an_onnx_model_is_only_trained_frozen(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    path = tmp_path / "model.onnx"
    exported = Encoder.wrap(own_models.small(), PREPARED).backbone
    path.write_bytes(exported.get_buffer("file").numpy().tobytes())
    settings = replace(SETTINGS, backbone=str(path))
    first = trained(patches(), settings)
    copied = copy.deepcopy(first.encoder)
    saved = Encoder.load(first.encoder.save(tmp_path / "v1"))
    for encoder in (copied, saved):
        assert encoder.encode(patches("x").images) == pytest.approx(
            first.encoder.encode(patches("x").images), abs=1e-6
        )
    own = trained(patches()).encoder
    assert first.encoder.encode(patches("x").images) == pytest.approx(
        own.encode(patches("x").images), abs=1e-4
    )
    context = TrainingContext(saved, remember_of(saved, patches()))
    second = trained(patches("de"), settings, context=context, number=2)
    assert second.encoder.slots.classes == ("a", "b", "c", "d", "e")
    with refuses(InputError, "repeat") as refused:
        trained(patches(), replace(settings, frozen=False))
    assert refused.value.next_steps[0].arguments == {"frozen": True}


def test_a_model_without_its_preprocessing_is_refused_with_what_to_add() -> None:
    with refuses(InputError, "repeat") as refused:
        trained(patches(), replace(SETTINGS, preprocessing=None))
    assert refused.value.next_steps[0].arguments == {"size": ...}


def test_a_module_is_fine_tuned_after_it_was_frozen() -> None:
    first = trained(patches())
    context = TrainingContext(first.encoder, remember_of(first.encoder, patches()))
    second = trained(patches("de"), replace(SETTINGS, frozen=False), context=context, number=2)
    assert weights_of(first.encoder) != weights_of(second.encoder)
    again = trained(patches("fg"), SETTINGS, context=TrainingContext(second.encoder), number=3)
    assert weights_of(again.encoder) == weights_of(second.encoder)
