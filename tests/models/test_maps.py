"""Feature maps of every backbone, which PODNet compares between models."""

from __future__ import annotations

import pytest
import torch

from fixstar.errors import ModelError
from fixstar.images import Preprocessing
from fixstar.models import Encoder, FrozenEncoder, create_backbone
from fixstar.models.backbones import BACKBONES

# name: the side of an input, and width and side of each map

MAPS = {
    "lenet++": (28, [(32, 14), (64, 7), (128, 3)]),
    "regnetx_200mf": (32, [(24, 32), (56, 32), (152, 16), (368, 8)]),
    "regnety_400mf": (32, [(32, 32), (64, 32), (160, 16), (384, 8)]),
    "resnet18": (64, [(64, 16), (128, 8), (256, 4), (512, 2)]),
    "resnet20": (32, [(16, 32), (32, 16), (64, 8)]),
    "resnet32": (32, [(16, 32), (32, 16), (64, 8)]),
    "resnet34": (64, [(64, 16), (128, 8), (256, 4), (512, 2)]),
    "resnet50": (64, [(256, 16), (512, 8), (1024, 4), (2048, 2)]),
    "resnet101": (64, [(256, 16), (512, 8), (1024, 4), (2048, 2)]),
    "resnet152": (64, [(256, 16), (512, 8), (1024, 4), (2048, 2)]),
    "senet18": (32, [(64, 32), (128, 16), (256, 8), (512, 4)]),
    "tiny": (32, [(24, 16), (48, 8), (96, 4)]),
}


def test_the_maps_of_every_backbone_are_tested() -> None:
    assert MAPS.keys() == BACKBONES.keys()


@pytest.mark.parametrize("name", MAPS)
def test_maps_halve_as_documented(name: str) -> None:
    side, expected = MAPS[name]
    with torch.device("meta"):
        backbone = create_backbone(name)
        maps = backbone.maps(torch.zeros(2, backbone.preprocessing.channels, side, side))
        feature = backbone.pool(maps[-1])
    assert [tuple(m.shape) for m in maps] == [(2, width, size, size) for width, size in expected]
    assert feature.shape == (2, backbone.feature_dim)


@pytest.mark.parametrize(
    "name", ["lenet++", "regnetx_200mf", "resnet18", "resnet20", "senet18", "tiny"]
)
def test_the_feature_is_the_pooled_last_map(name: str) -> None:
    backbone = create_backbone(name).eval()
    images = torch.randn(2, backbone.preprocessing.channels, *backbone.preprocessing.size)
    with torch.no_grad():
        last = backbone.maps(images)[-1]
        torch.testing.assert_close(backbone(images), backbone.pool(last))
        if name not in ("lenet++", "tiny"):
            torch.testing.assert_close(backbone.pool(last), last.flatten(2).mean(2))


def test_an_encoder_gives_maps_only_where_they_are_asked_for() -> None:
    encoder = Encoder.create("tiny", classes=["a"], capacity=4).eval()
    pixels = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    plain, asked, frozen = (
        encoder(pixels),
        encoder(pixels, maps=True),
        FrozenEncoder(encoder)(pixels, maps=True),
    )
    assert plain.maps == ()
    assert [m.shape[1] for m in asked.maps] == [24, 48, 96]
    torch.testing.assert_close(asked.logits, plain.logits, rtol=0, atol=0)
    torch.testing.assert_close(frozen.maps, asked.maps, rtol=0, atol=0)
    assert not frozen.maps[0].requires_grad


def test_a_foreign_backbone_gives_features_and_says_that_it_has_no_maps() -> None:
    config = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    backbone = create_backbone("hf:vit", config={**config, "image_size": 32, "patch_size": 8})
    size = Preprocessing(size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
    encoder = Encoder.create(backbone, classes=["a"], capacity=4, preprocessing=size).eval()
    pixels = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    assert encoder(pixels).h.shape == (2, 16)
    with pytest.raises(ModelError, match=r"no feature maps.*backbone_names"):
        encoder(pixels, maps=True)
