"""The encoder: features, slots, saving, loading, and running over images."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dense_geometry import full_form
from documents import rewrite
from PIL import Image
from wording import refuses

from fixstar.errors import ImageError, InputError, ItemError, ModelError, UnknownNameError
from fixstar.models import Encoder, FrozenEncoder
from fixstar.models.encoder import CARD, WEIGHTS

CLASSES = ["cat", "dog", "owl"]


def tiny(
    classifier: str = "simplex", capacity: int = 100, seed: int = 0, **options: Any
) -> Encoder:
    torch.manual_seed(seed)
    encoder = Encoder.create("tiny", classifier, classes=CLASSES, capacity=capacity, **options)
    encoder(
        torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
    )  # moves the batch-norm statistics
    return encoder.eval()


def pixels(count: int = 5, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def test_forward_gives_backbone_feature_projection_and_logits() -> None:
    encoder = tiny()
    out = encoder(torch.from_numpy(pixels()).permute(0, 3, 1, 2))
    h, z, logits, maps = out.h, out.z, out.logits, out.maps
    assert h.shape == (5, 64)
    assert z.shape == (5, 99)
    assert logits.shape == (5, 100)
    assert maps == ()
    assert encoder.projection is not None
    torch.testing.assert_close(z, h @ encoder.projection.weight.T)


def test_an_encoder_of_a_placed_backbone_normalises_pixels_there() -> None:
    made = Encoder.create("tiny", classes=["a", "b"], capacity=10).to("meta")
    again = Encoder(made.backbone, made.projection, made.classifier, made.slots)
    assert again.device == torch.device("meta")
    shown = torch.zeros(2, 3, 32, 32, dtype=torch.uint8, device="meta")
    assert again.normalise(shown).device == again.device


def test_pixels_are_normalised_as_the_backbone_expects() -> None:
    encoder = tiny()
    image = torch.full((1, 3, 32, 32), 128, dtype=torch.uint8)
    expected = (128 / 255 - 0.5071) / 0.2675
    assert encoder.normalise(image)[0, 0, 0, 0].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "name", ["lenet++", "regnety_400mf", "resnet18", "resnet20", "senet18", "tiny"]
)
def test_channels_lie_last_on_a_cpu_and_change_no_feature(name: str) -> None:
    torch.manual_seed(0)
    encoder = Encoder.create(name, classes=CLASSES, capacity=10).eval()
    inputs = encoder.preprocessing
    planes = torch.randint(0, 256, (2, inputs.channels, *inputs.size), dtype=torch.uint8)
    layouts = []
    held = encoder.backbone.register_forward_pre_hook(
        lambda _, given: layouts.append(given[0].is_contiguous(memory_format=torch.channels_last))
    )
    with torch.no_grad():
        features = encoder.features(planes, "raw"), encoder(planes).z
        assert layouts == [True, True]
        held.remove()
        assert encoder.projection is not None
        plain = encoder.projection(encoder.backbone(encoder.normalise(planes)))
    for one in features:
        torch.testing.assert_close(one, plain, rtol=1e-4, atol=1e-5)


def test_trainable_heads_sit_on_the_backbones_feature() -> None:
    encoder = tiny("linear")
    assert encoder.projection is None
    assert encoder.feature_dim == 64
    assert encoder.projection_matrix() is None
    encoder.add_classes(["emu", "cat"])
    assert encoder.classifier.outputs == 4
    assert encoder.targets(["emu", "cat"]).tolist() == [3, 0]


def test_a_trainable_head_may_sit_on_a_projection(tmp_path: Path) -> None:
    narrow = tiny("linear", width=16)
    assert narrow.feature_dim == narrow.classifier.feature_dim == 16
    assert narrow.encode(pixels()).shape == (5, 16)
    again = Encoder.load(narrow.save(tmp_path / "narrow"))
    assert again.encode(pixels()) == pytest.approx(narrow.encode(pixels()))
    same = tiny("linear", width=64)
    out = same(torch.from_numpy(pixels()).permute(0, 3, 1, 2))
    torch.testing.assert_close(out.z, out.h)  # the identity at first
    with refuses(InputError):
        tiny("simplex", width=16)
    with pytest.raises(InputError, match="at least 1, got 0"):
        tiny("linear", width=0)


def test_a_trainable_head_needs_class_names() -> None:
    with pytest.raises(InputError, match="pass classes"):
        Encoder.create("tiny", "linear")
    with pytest.raises(UnknownNameError, match="simplex"):
        Encoder.create("tiny", "simplx")


def test_encode_returns_unit_vectors_and_short_forms_are_the_same_vectors() -> None:
    encoder = tiny()
    full, short = encoder.encode(pixels()), encoder.encode(pixels(), form="short")
    assert full.shape == (5, 99)
    assert short.shape == (5, 64)
    assert full.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(full, axis=1), 1, atol=1e-5)
    projection = encoder.projection_matrix()
    assert projection is not None
    np.testing.assert_allclose(full_form(short, projection), full, atol=1e-5)


def test_raw_features_are_z_itself() -> None:
    encoder = tiny()
    z = encoder(torch.from_numpy(pixels()).permute(0, 3, 1, 2)).z
    np.testing.assert_allclose(encoder.encode(pixels(), form="raw"), z.detach(), atol=1e-4)


def test_the_short_form_follows_the_weights() -> None:
    encoder = tiny()
    before = encoder.encode(pixels(), form="short")
    assert encoder.projection is not None
    with torch.no_grad():
        encoder.projection.weight.mul_(torch.rand_like(encoder.projection.weight))
    after, projection = encoder.encode(pixels(), form="short"), encoder.projection_matrix()
    assert np.abs(after - before).max() > 0.01
    assert projection is not None
    np.testing.assert_allclose(full_form(after, projection), encoder.encode(pixels()), atol=1e-5)


def test_every_kind_of_image_gives_the_same_vector(tmp_path: Path) -> None:
    encoder, images = tiny(), pixels()
    for i, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    expected = encoder.encode(images)
    kinds: list[Any] = [
        [tmp_path / f"{i}.png" for i in range(5)],
        [str(tmp_path / f"{i}.png") for i in range(5)],
        [Image.fromarray(image) for image in images],
        list(images),
        torch.from_numpy(images).permute(0, 3, 1, 2),
        [(tmp_path / f"{i}.png").read_bytes() for i in range(5)],
    ]
    for kind in kinds:
        np.testing.assert_allclose(encoder.encode(kind), expected, atol=1e-6)


def test_the_batch_size_does_not_matter() -> None:
    encoder = tiny()
    np.testing.assert_allclose(
        encoder.encode(pixels(7), batch_size=3), encoder.encode(pixels(7)), atol=1e-5
    )


def test_unreadable_images_are_refused_or_leave_a_row_of_nan(tmp_path: Path) -> None:
    encoder = tiny()
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    Image.fromarray(pixels(1)[0]).save(good)
    bad.write_bytes(good.read_bytes()[:60])
    with pytest.raises(ImageError, match=r"bad\.png"):
        encoder.encode([good, bad, good])
    told: list[ItemError] = []
    vectors = encoder.encode([good, bad, good], bad="skip", on_bad=told.append)
    assert np.isnan(vectors).all(axis=1).tolist() == [False, True, False]
    assert [image.index for image in told] == [1]


def test_encode_explains_what_it_takes() -> None:
    with pytest.raises(InputError, match=r"pass \[image\]"):
        tiny().encode("photo.jpg")
    with pytest.raises(InputError, match="full, short, raw"):
        tiny().encode(pixels(), form="long")  # type: ignore[arg-type]
    for one in (pixels(1)[0], torch.zeros(3, 32, 32, dtype=torch.uint8), {1, 2}):
        with pytest.raises(InputError, match=r"pass \[image\]"):
            tiny().encode(one)  # type: ignore[arg-type]
    assert tiny().encode([]).shape == (0, 99)


@pytest.mark.parametrize("count", [1, 3, 5])
def test_grey_images_in_an_array_are_encoded_however_many_there_are(count: int) -> None:
    """Arrays have their channels last, so three planes are three images; of a tensor they are one."""
    grey = pixels(count)[..., 0]
    assert np.array_equal(tiny().encode(grey), tiny().encode(list(grey)))


def test_decoding_overlaps_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the model works on a batch, images of the next one are being read."""
    encoder, read, during = tiny(), [0], []
    real = encoder.features

    def busy(*words: Any) -> torch.Tensor:
        before, deadline = read[0], time.monotonic() + 120
        while (
            read[0] == before < 80 and time.monotonic() < deadline
        ):  # forever, if nothing were read meanwhile
            time.sleep(0.01)
        during.append(read[0] - before)
        return real(*words)

    def slowly(*_: Any, **__: Any) -> Any:
        time.sleep(0.01)
        read[0] += 1
        return pixels(1)[0]

    monkeypatch.setattr("fixstar.images.reading._CORES", 2)
    monkeypatch.setattr("fixstar.images.reading.read_pixels", slowly)
    monkeypatch.setattr(encoder, "features", busy)
    encoder.encode(["a file"] * 80, batch_size=20)
    assert len(during) == 4
    assert min(during[:3]) >= 1


def test_encoding_leaves_training_mode_as_it_was() -> None:
    encoder = tiny().train()
    encoder.encode(pixels())
    assert encoder.training


def test_a_frozen_copy_does_not_follow_and_cannot_learn() -> None:
    encoder = tiny().train()
    frozen = FrozenEncoder(encoder)
    image = torch.from_numpy(pixels()).permute(0, 3, 1, 2)
    before = frozen(image)
    assert not before.z.requires_grad
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.zero_()
    encoder(image)  # moves the original's batch-norm statistics, not the copy's
    torch.testing.assert_close(frozen(image).z, before.z)
    assert not isinstance(frozen, torch.nn.Module)


# Saving and loading


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    encoder = tiny()
    encoder.about = {"method": "hoc", "parent": None}
    return encoder.save(tmp_path / "v1")


@pytest.mark.parametrize("classifier", ["simplex", "linear", "cosine"])
def test_a_saved_encoder_comes_back_bit_for_bit(tmp_path: Path, classifier: str) -> None:
    encoder = tiny(classifier)
    encoder.about = {"metrics": {"AC": 1.0}}
    again = Encoder.load(encoder.save(tmp_path / "v1"))
    assert not again.training
    assert again.about == encoder.about
    assert again.slots == encoder.slots
    assert again.preprocessing == encoder.preprocessing
    np.testing.assert_array_equal(again.encode(pixels()), encoder.encode(pixels()))
    x = torch.from_numpy(pixels()).permute(0, 3, 1, 2)
    torch.testing.assert_close(again(x).logits, encoder(x).logits, rtol=0, atol=0)


def test_a_backbone_of_transformers_comes_back_without_its_folder(tmp_path: Path) -> None:
    config = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    options = {"config": {**config, "image_size": 28, "patch_size": 14}}
    encoder = Encoder.create("hf:dinov2", capacity=10, backbone_options=options).eval()
    again = Encoder.load(encoder.save(tmp_path / "v1"))
    np.testing.assert_array_equal(again.encode(pixels()), encoder.encode(pixels()))


def test_loading_leaves_the_random_generator_alone(saved: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    Encoder.load(saved)
    assert torch.rand(1) == expected


def test_nothing_is_pickled(saved: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == [CARD, WEIGHTS]
    card = json.loads((saved / CARD).read_text())
    assert card["backbone"]["name"] == "tiny"
    assert card["slots"]["by_class"] == {"cat": 0, "dog": 1, "owl": 2}


def test_a_saved_model_is_never_overwritten(saved: Path) -> None:
    before = (saved / WEIGHTS).read_bytes()
    with pytest.raises(ModelError, match="never overwritten"):
        tiny(seed=1).save(saved)
    assert (saved / WEIGHTS).read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["v1"]  # no leftovers


def damage(saved: Path, how: str) -> None:
    weights, card = saved / WEIGHTS, saved / CARD
    content = weights.read_bytes()
    match how:
        case "truncated weights":
            weights.write_bytes(content[: len(content) // 2])
        case "flipped bit":
            weights.write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
        case "no weights":
            weights.unlink()
        case "no card":
            card.unlink()
        case "truncated card":
            card.write_text(card.read_text()[:100])
        case "binary card":
            card.write_bytes(b"\xff\xfe\x00")
        case "foreign card":
            card.write_text('{"model_type": "vit"}')
        case "list card":
            card.write_text("[]")
        case "newer format":
            card.write_text(card.read_text().replace('"format_version": 1', '"format_version": 99'))
        case "other backbone":
            rewrite(card, lambda edited: edited["backbone"].update(name="lenet++"))
        case "unknown backbone":
            rewrite(card, lambda edited: edited["backbone"].update(name="enormous"))
        case "missing key":
            rewrite(card, lambda edited: edited.pop("slots"))
        case "other capacity":
            rewrite(card, lambda edited: edited["projection"].update(out=7))
        case "huge projection":
            rewrite(card, lambda edited: edited["projection"].update(out=10**9))
        case "slots outside":
            rewrite(
                card,
                lambda edited: edited.update(slots={"capacity": 500, "by_class": {"cat": 400}}),
            )
        case "slots as a list":
            rewrite(card, lambda edited: edited["slots"].update(by_class=["cat"]))
        case "size as text":
            rewrite(card, lambda edited: edited["weights"].update(bytes="many"))
        case "no checksum":
            rewrite(card, lambda edited: edited.update(weights=None))


DAMAGES = [
    *(
        "truncated weights",
        "flipped bit",
        "no weights",
        "no card",
        "truncated card",
        "binary card",
        "foreign card",
    ),
    *(
        "list card",
        "newer format",
        "other backbone",
        "unknown backbone",
        "missing key",
        "other capacity",
    ),
    *("no checksum", "huge projection", "slots outside", "slots as a list", "size as text"),
]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_or_foreign_directory_gives_a_clear_error(saved: Path, how: str) -> None:
    damage(saved, how)
    with pytest.raises(ModelError, match="v1"):
        Encoder.load(saved)


def test_a_missing_directory_and_a_file_give_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a directory"):
        Encoder.load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="found: nothing"):
        Encoder.load(tmp_path / "empty")


def test_a_failed_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fixstar.models.encoder.save_file", full_disk)
    with pytest.raises(OSError, match="No space"):
        tiny().save(tmp_path / "v1")
    assert list(tmp_path.iterdir()) == []


def test_a_copy_of_the_directory_is_as_good(saved: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(saved, tmp_path / "elsewhere")
    np.testing.assert_array_equal(
        Encoder.load(moved).encode(pixels()), Encoder.load(saved).encode(pixels())
    )
