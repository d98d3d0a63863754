"""Backbones: ours against hand-worked values and slow code, those of transformers against transformers itself."""

from __future__ import annotations

import inspect
import json
import logging
import re
import shutil
import sys
import warnings
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from wording import refuses

from fixstar.errors import InputError, MissingExtraError, ModelError, UnknownNameError
from fixstar.images import Preprocessing
from fixstar.models.backbones import (
    BACKBONES,
    Backbone,
    backbone_names,
    create_backbone,
    hf,
    resnets,
)
from fixstar.models.backbones.hf import hf_inputs
from fixstar.models.backbones.resnets import ResNet, SqueezeExcitation, widen

# name: feature width, parameters as published minus the classifier's (or counted by hand)
PUBLISHED = {
    "lenet++": (
        2,
        832 + 25_632 + 51_264 + 102_464 + 204_928 + 409_728 + 448 + 2_306,
    ),  # convolutions, PReLU, linear
    "regnetx_200mf": (368, 2_321_946 - 3_690),
    "regnety_400mf": (384, 5_714_362 - 3_850),
    "resnet18": (512, 11_689_512 - 513_000),
    "resnet20": (64, 269_722 - 650),
    "resnet32": (64, 464_154 - 650),
    "resnet34": (512, 21_797_672 - 513_000),
    "resnet50": (2048, 25_557_032 - 2_049_000),
    "resnet101": (2048, 44_549_160 - 2_049_000),
    "resnet152": (2048, 60_192_808 - 2_049_000),
    "senet18": (512, 11_260_354 - 5_130),
    "tiny": (64, 1_800 + 10_368 + 41_472 + 336 + 98_304 + 128),  # convolutions, batch norm, linear
}

TRANSFORMER = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
TINY: dict[str, dict[str, Any]] = {
    "convnext": {"hidden_sizes": [8, 8, 8, 16], "depths": [1, 1, 1, 1], "image_size": 32},
    "dinov2": TRANSFORMER,
    "dinov3_vit": {**TRANSFORMER, "intermediate_size": 32, "num_register_tokens": 3},
    "regnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 8},
    "resnet": {
        "embedding_size": 8,
        "hidden_sizes": [8, 16],
        "depths": [1, 1],
        "layer_type": "basic",
    },
    "vit": {**TRANSFORMER, "intermediate_size": 32},
}


def shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in module.state_dict().items()}


def randomise(module: nn.Module) -> None:
    """Random parameters and statistics, so that a layer in the wrong place shows."""
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(
                torch.rand_like(tensor) * 0.5 + 0.1
                if tensor.ndim == 1
                else torch.randn_like(tensor) * 0.1
            )


def dead_parameters(backbone: Backbone, images: Tensor) -> list[str]:
    """The trainable parameters that a loss on the features does not reach."""
    features = backbone(images)
    assert features.shape == (len(images), backbone.feature_dim)
    (features * torch.randn_like(features)).sum().backward()
    trainable = [(name, p) for name, p in backbone.named_parameters() if p.requires_grad]
    return [
        name
        for name, p in trainable
        if p.grad is None or not p.grad.isfinite().all() or not p.grad.any()
    ]


# --- ours


def test_every_name_is_tested() -> None:
    assert backbone_names() == sorted(BACKBONES) == sorted(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_width_and_parameters_are_the_published_ones(name: str) -> None:
    feature_dim, parameters = PUBLISHED[name]
    with torch.device("meta"):
        backbone = create_backbone(name)
    assert backbone.feature_dim == feature_dim == list(backbone.parameters())[-1].shape[0]
    assert sum(p.numel() for p in backbone.parameters()) == parameters


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lenet++", {"feature_dim": 5, "in_channels": 3}),
        ("regnetx_200mf", {"in_channels": 1}),
        ("regnety_400mf", {}),
        ("resnet18", {"stem": "cifar", "in_channels": 1}),
        ("resnet20", {"final_relu": False, "in_channels": 1}),
        ("resnet50", {"stem": "imagenet"}),
        ("senet18", {}),
        ("tiny", {"in_channels": 1, "feature_dim": 5, "width": 8, "normalised": False}),
    ],
)
def test_name_and_options_rebuild_the_architecture(name: str, options: dict[str, Any]) -> None:
    with torch.device("meta"):
        backbone = create_backbone(name, **options)
        again = create_backbone(backbone.name, **json.loads(json.dumps(backbone.options)))
        plain = create_backbone(name)
    assert backbone.name == name
    assert options.items() <= backbone.options.items()
    assert shapes(again) == shapes(backbone)
    assert (again.options, again.preprocessing) == (backbone.options, backbone.preprocessing)
    if "in_channels" in options:
        assert shapes(plain) != shapes(backbone)
        assert (
            backbone.preprocessing.channels
            == options["in_channels"]
            != plain.preprocessing.channels
        )


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("lenet++", 28),
        ("regnetx_200mf", 8),
        ("regnety_400mf", 8),
        ("resnet20", 16),
        ("resnet32", 8),
        ("senet18", 8),
        ("tiny", 32),
    ],
)
def test_gradient_reaches_every_parameter(name: str, side: int) -> None:
    torch.manual_seed(0)
    backbone = create_backbone(name)
    assert (
        dead_parameters(backbone, torch.randn(4, backbone.preprocessing.channels, side, side)) == []
    )


def test_preprocessing_follows_the_data_of_the_papers() -> None:
    with torch.device("meta"):
        cifar, imagenet = (
            create_backbone("resnet32").preprocessing,
            create_backbone("resnet50").preprocessing,
        )
        grey = create_backbone("resnet20", in_channels=1).preprocessing
        assert create_backbone("resnet18", stem="cifar").preprocessing == cifar
    assert cifar == Preprocessing(
        size=(32, 32), mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761)
    )
    assert (imagenet.size, imagenet.mean, imagenet.crop_fraction) == (
        (224, 224),
        (0.485, 0.456, 0.406),
        0.875,
    )
    assert grey.mean == pytest.approx([(0.5071 + 0.4867 + 0.4408) / 3])


def test_widening_shortcut_takes_every_second_pixel_and_adds_empty_channels() -> None:
    x = torch.arange(16.0).view(1, 1, 4, 4)
    assert widen(x, 3).tolist() == [[[[0, 2], [8, 10]], [[0, 0], [0, 0]], [[0, 0], [0, 0]]]]


@pytest.mark.parametrize("final_relu", [True, False])
def test_cifar_resnet_equals_its_definition(final_relu: bool) -> None:
    backbone = create_backbone("resnet20", final_relu=final_relu).eval()
    randomise(backbone)
    weights, images = backbone.state_dict(), torch.randn(2, 3, 8, 8)

    def convolve(x: Tensor, conv: str, norm: str, stride: int = 1) -> Tensor:
        x = F.conv2d(x, weights[conv + ".weight"], stride=stride, padding=1)
        mean, var, gain, bias = (
            weights[f"{norm}.{key}"] for key in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(x, mean, var, gain, bias)

    x = convolve(images, "conv1", "bn1").relu()
    for stage in (1, 2, 3):
        for block in (0, 1, 2):
            key, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            shortcut = (
                torch.cat([x[:, :, ::2, ::2], 0 * x[:, :, ::2, ::2]], 1) if stride == 2 else x
            )
            x = convolve(x, f"{key}.conv1", f"{key}.bn1", stride).relu()
            x = convolve(x, f"{key}.conv2", f"{key}.bn2") + shortcut
            x = x.relu() if final_relu or (stage, block) != (3, 2) else x
    with torch.no_grad():
        torch.testing.assert_close(backbone(images), x.mean((2, 3)))


@pytest.fixture(params=["basic", "bottleneck"])
def shallow(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[ResNet, dict[str, Any]]:
    """A ResNet of few blocks, of either kind, and the config that describes it to transformers."""
    blocks: dict[str, resnets.Block] = {
        "basic": resnets._BasicBlock,
        "bottleneck": resnets._Bottleneck,
    }
    block = blocks[request.param]
    monkeypatch.setitem(resnets._LAYOUTS, 0, (block, (1, 2, 1, 1)))
    widths = [width * block.expansion for width in (64, 128, 256, 512)]
    return ResNet(0), {"layer_type": request.param, "hidden_sizes": widths, "depths": [1, 2, 1, 1]}


def test_gradient_reaches_every_parameter_of_resnets(
    shallow: tuple[ResNet, dict[str, Any]],
) -> None:
    torch.manual_seed(0)
    assert dead_parameters(shallow[0], torch.randn(4, 3, 32, 32)) == []


@pytest.mark.long
def test_resnet_equals_the_one_of_transformers(shallow: tuple[ResNet, dict[str, Any]]) -> None:
    """Also guards the parameter names, since the weights travel by name."""
    ours, config = shallow[0].eval(), shallow[1]
    randomise(ours)
    theirs = create_backbone("hf:resnet", config=config).eval()
    state = theirs.state_dict()
    for name, tensor in ours.state_dict().items():
        state[_name_in_transformers(name)].copy_(tensor)
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images))


def _name_in_transformers(name: str) -> str:
    """layer2.0.bn1.bias -> model.encoder.stages.1.layers.0.layer.0.normalization.bias"""
    layer, _, kind = name.rpartition(".")
    if layer in ("conv1", "bn1"):
        return f"model.embedder.embedder.{'convolution' if layer == 'conv1' else 'normalization'}.{kind}"
    stage, block, *part = layer.split(".")
    prefix = f"model.encoder.stages.{int(stage[-1]) - 1}.layers.{block}"
    if part[0] == "downsample":
        return f"{prefix}.shortcut.{('convolution', 'normalization')[int(part[1])]}.{kind}"
    which = "convolution" if part[0].startswith("conv") else "normalization"
    return f"{prefix}.layer.{int(part[0][-1]) - 1}.{which}.{kind}"


def test_resnet_parameters_have_their_common_names() -> None:
    with torch.device("meta"):
        keys = shapes(create_backbone("resnet50"))
    assert keys["conv1.weight"] == (64, 3, 7, 7)
    assert keys["layer1.0.downsample.0.weight"] == (256, 64, 1, 1)
    assert keys["layer1.0.downsample.1.running_mean"] == (256,)
    assert keys["layer4.2.conv3.weight"] == (2048, 512, 1, 1)
    assert "layer1.1.downsample.0.weight" not in keys


def test_cifar_stem_keeps_the_resolution() -> None:
    backbone: Any = create_backbone("resnet18", stem="cifar")
    seen: list[torch.Size] = []
    backbone.layer1.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0].shape))
    assert backbone(torch.zeros(2, 3, 16, 16)).shape == (2, 512)
    assert seen == [(2, 64, 16, 16)]


def test_excitation_scales_channels_by_a_sigmoid_of_their_averages() -> None:
    layer = SqueezeExcitation(2, 1)
    with torch.no_grad():
        for tensor, values in zip(
            layer.parameters(), ([1.0, 0.5], [0.0], [1.0, -1.0], [0.0, 1.0]), strict=True
        ):
            tensor.copy_(torch.tensor(values).view_as(tensor))
        x = torch.tensor([[[[1.0, 3.0]], [[2.0, 0.0]]]])  # averages 2 and 1, squeezed to 2.5
        up, down = torch.sigmoid(torch.tensor(2.5)).item(), torch.sigmoid(torch.tensor(-1.5)).item()
        torch.testing.assert_close(layer(x), torch.tensor([[[[up, 3 * up]], [[2 * down, 0.0]]]]))


def test_senet_blocks_are_pre_activated() -> None:
    """An empty residual branch leaves the input alone, negative values too; a widening shortcut sees the activation."""
    backbone: Any = create_backbone("senet18").eval()
    x = torch.randn(1, 64, 4, 4)
    with torch.no_grad():
        same, wider = backbone.layer1[0], backbone.layer2[0]
        for block in (same, wider):
            block.conv2.weight.zero_()
        torch.testing.assert_close(same(x), x)
        active = (x / (1 + wider.bn1.eps) ** 0.5).relu()
        torch.testing.assert_close(wider(x), F.conv2d(active, wider.shortcut.weight, stride=2))


def test_regnet_groups_strides_and_excitation() -> None:
    x_net: Any
    y_net: Any
    with torch.device("meta"):
        x_net, y_net = create_backbone("regnetx_200mf"), create_backbone("regnety_400mf")
    assert [
        stage[0].conv2.stride[0]
        for stage in (y_net.layer1, y_net.layer2, y_net.layer3, y_net.layer4)
    ] == [
        1,
        1,
        2,
        2,
    ]
    assert (x_net.layer3[0].conv2.groups, y_net.layer3[0].conv2.groups) == (152 // 8, 160 // 16)
    assert [block.excitation.fc1.out_channels for block in y_net.layer2] == [32 // 4, 64 // 4]
    assert not any("excitation" in key for key in shapes(x_net))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet18", {"steam": "cifar"}),
        ("resnet20", {"depth": 32}),
        ("resnet18", {"stem": "mnist"}),
        ("senet18", {"in_channels": 4}),
        ("lenet++", {"feature_dim": 0}),
        ("hf:vit", {"weights": "x"}),
    ],
)
def test_wrong_options_are_told_what_is_allowed(name: str, options: dict[str, Any]) -> None:
    with refuses(InputError):
        create_backbone(name, **options)


def test_unknown_name_lists_the_known_and_the_way_to_transformers() -> None:
    with refuses(UnknownNameError):
        create_backbone("resnet51")


# --- those of transformers


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    constants = pytest.importorskip(
        "huggingface_hub.constants", reason="the backbones extra is not installed"
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "no-cache"))


def save_tiny(model_type: str, folder: Path, auto: str = "AutoModel", **config: Any) -> Any:
    """A tiny model of transformers with random weights and statistics, saved to a folder."""
    import transformers

    values = transformers.AutoConfig.for_model(model_type, **TINY[model_type], **config)
    model = getattr(transformers, auto).from_config(values).eval()
    randomise(model)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("model_type", TINY)
def test_folder_gives_the_pooled_output_of_transformers(model_type: str, tmp_path: Path) -> None:
    theirs = save_tiny(model_type, tmp_path / "saved")
    ours = create_backbone(f"hf:{tmp_path / 'saved'}").eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        features, pooled = ours(images), theirs(pixel_values=images).pooler_output
    torch.testing.assert_close(features, pooled.reshape(2, 16))
    assert ours.feature_dim == 16
    state = ours.state_dict()
    assert all(
        torch.equal(tensor, state["model." + name]) for name, tensor in theirs.state_dict().items()
    )


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("model_type", TINY)
def test_transformers_model_is_rebuilt_without_folder_or_network(
    model_type: str, tmp_path: Path
) -> None:
    save_tiny(model_type, tmp_path / "saved")
    (tmp_path / "saved" / "preprocessor_config.json").write_text(
        json.dumps({"size": {"height": 32, "width": 32}})
    )
    backbone = create_backbone(f"hf:{tmp_path / 'saved'}").eval()
    shutil.rmtree(tmp_path / "saved")
    options = json.loads(json.dumps(backbone.options))
    assert options["pretrained"] is False
    assert str(tmp_path) not in json.dumps([backbone.name, options])
    again = create_backbone(backbone.name, **options).eval()
    assert (again.name, again.options, again.preprocessing) == (
        backbone.name,
        options,
        backbone.preprocessing,
    )
    again.load_state_dict(backbone.state_dict())
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(again(images), backbone(images))


@pytest.mark.parametrize("model_type", TINY)
def test_gradient_reaches_every_trainable_parameter_of_transformers(model_type: str) -> None:
    torch.manual_seed(0)
    backbone = create_backbone(f"hf:{model_type}", config=TINY[model_type])
    assert backbone.training
    assert all(module.training for module in backbone.modules())
    randomise(backbone)
    assert dead_parameters(backbone, torch.randn(4, 3, 32, 32)) == []
    frozen = [name for name, p in backbone.named_parameters() if not p.requires_grad]
    assert frozen == (["model.embeddings.mask_token"] if model_type.startswith("dino") else [])


def test_pooling_by_cls_token_and_by_the_mean_over_patches() -> None:
    images = torch.randn(2, 3, 32, 32)
    for pooling, rows in (
        ("cls", slice(0, 1)),
        ("mean", slice(4, None)),
    ):  # a CLS token and 3 registers, then 16 patches
        backbone: Any = create_backbone(
            "hf:dinov3_vit", config=TINY["dinov3_vit"], pooling=pooling
        ).eval()
        with torch.no_grad():
            hidden = backbone.model(pixel_values=images).last_hidden_state
            torch.testing.assert_close(backbone(images), hidden[:, rows].mean(1))
        assert hidden.shape[1] == 20
        assert backbone.options["pooling"] == pooling
    backbone = create_backbone("hf:resnet", config=TINY["resnet"], pooling="mean").eval()
    with torch.no_grad():
        hidden = backbone.model(pixel_values=images).last_hidden_state
        torch.testing.assert_close(backbone(images), hidden.mean((2, 3)))
    with pytest.raises(InputError, match="ResNetModel has no CLS token"):
        create_backbone("hf:resnet", config=TINY["resnet"], pooling="cls")
    with refuses(InputError):
        create_backbone("hf:resnet", config=TINY["resnet"], pooling="max")


def test_a_pooler_without_weights_is_not_used(tmp_path: Path) -> None:
    theirs = save_tiny("vit", tmp_path, auto="AutoModelForImageClassification", num_labels=7)
    ours = create_backbone(f"hf:{tmp_path}").eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        hidden = theirs.base_model(pixel_values=images).last_hidden_state
        torch.testing.assert_close(ours(images), hidden[:, 0])
    assert ours.options["pooling"] == "cls"
    assert not any(p.requires_grad for name, p in ours.named_parameters() if "pooler" in name)


def test_weights_are_float32(tmp_path: Path) -> None:
    save_tiny("vit", tmp_path).half().save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "float16"
    loaded = create_backbone(f"hf:{tmp_path}")
    fresh = create_backbone(f"hf:{tmp_path}", pretrained=False)
    again = create_backbone(loaded.name, **loaded.options)
    assert {p.dtype for backbone in (loaded, fresh, again) for p in backbone.parameters()} == {
        torch.float32
    }


def test_loading_says_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save_tiny("vit", tmp_path, auto="AutoModelForImageClassification", num_labels=7)
    capfd.readouterr()
    listener, logger = BufferingHandler(1000), logging.getLogger("transformers")
    logger.addHandler(listener)
    level = logger.level
    try:
        create_backbone(f"hf:{tmp_path}")
    finally:
        logger.removeHandler(listener)
    assert (
        listener.buffer == []
    )  # though the classifier's weights are left out and the pooler's are missing
    assert capfd.readouterr() == ("", "")
    assert logger.level == level != logging.ERROR


def test_masked_autoencoders_see_the_whole_image() -> None:
    backbone = create_backbone("hf:vit_mae", config={**TRANSFORMER, "intermediate_size": 32}).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(backbone(images), backbone(images))


def test_folder_without_its_weights(tmp_path: Path) -> None:
    save_tiny("resnet", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with refuses(ModelError):
        create_backbone(f"hf:{tmp_path}")
    assert create_backbone(f"hf:{tmp_path}", pretrained=False).feature_dim == 16


def test_damaged_folders(tmp_path: Path) -> None:
    theirs = save_tiny("resnet", tmp_path)
    state = {name: tensor for name, tensor in theirs.state_dict().items() if "stages.1" not in name}
    theirs.save_pretrained(tmp_path, state_dict=state)
    with refuses(ModelError, varies=r"(?<=lack )\d+|\(.*\)"):
        create_backbone(f"hf:{tmp_path}")
    (tmp_path / "model.safetensors").write_bytes(b"garbage")
    with refuses(ModelError, varies=r"(?<=loaded: ).*"):
        create_backbone(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text('{"model_type": "no-such-type"}')
    with refuses(ModelError, varies=r"(?s)(?<=unusable: ).*"):
        create_backbone(f"hf:{tmp_path}")
    (tmp_path / "config.json").unlink()
    with refuses(ModelError):
        create_backbone(f"hf:{tmp_path}")


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("hf:bert", {}, ModelError),
        ("hf:clip", {}, ModelError),
        ("hf:./no/such", {}, ModelError),
        ("hf:", {}, InputError),
        ("hf:vit", {"config": {"hiden_size": 8}}, InputError),
        ("hf:vit", {"config": {"hidden_size": "big"}}, InputError),
        ("hf:vit", {"config": {"model_type": "resnet"}}, InputError),
        ("hf:x", {"config": {"model_type": "dinvo2"}}, InputError),
        ("hf:vit", {"pretrained": True}, InputError),
        ("hf:vit", {"config": {**TINY["vit"], "num_channels": 4}}, InputError),
        ("hf:vit", {"config": {**TINY["vit"], "patch_size": 64}}, ModelError),
    ],
)
def test_mistakes_with_transformers(
    name: str, options: dict[str, Any], error: type[Exception]
) -> None:
    with refuses(error, varies=r"(?s)(?<=is wrong: ).*|(?<=32\): ).*"):
        create_backbone(name, **options)


@pytest.mark.usefixtures("offline")
def test_hub_name_without_a_network_says_how_to_get_it() -> None:
    with pytest.raises(ModelError, match="hf download nobody/no-such-model --local-dir FOLDER"):
        create_backbone("hf:nobody/no-such-model")
    with refuses(ModelError, varies=r"\(Off.*\.\)"):
        create_backbone("hf:dinvo2")


@pytest.mark.usefixtures("offline")
def test_hub_name_is_taken_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "models--owner--tiny"
    theirs = save_tiny("convnext", cache / "snapshots" / "abc")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    ours = create_backbone("hf:owner/tiny").eval()
    images = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(pixel_values=images).pooler_output)


def test_missing_transformers_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match="needs transformers"):
        create_backbone("hf:vit")


def test_no_module_imports_transformers_by_itself() -> None:
    files = list(Path(inspect.getfile(BACKBONES["lenet++"])).parent.glob("*.py"))
    imports = [
        line
        for file in files
        for line in file.read_text().splitlines()
        if re.match(r"\s*(import|from) ", line)
    ]
    assert any("torch" in line.split() for line in imports)
    assert [
        line for line in imports if re.search(r"transformers|torchvision|huggingface_hub", line)
    ] == []


CLIP_STATISTICS = {"image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28]}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param(
            {
                "size": {"height": 384, "width": 256},
                "resample": 2,
                "image_mean": [0.5] * 3,
                "image_std": [0.5] * 3,
            },
            {
                "size": (384, 256),
                "fit": "squash",
                "interpolation": "bilinear",
                "mean": (0.5,) * 3,
                "std": (0.5,) * 3,
            },
            id="vit",
        ),
        pytest.param(
            {
                "size": {"shortest_edge": 256},
                "crop_size": {"height": 224, "width": 224},
                "do_center_crop": True,
                "resample": 3,
                **CLIP_STATISTICS,
            },
            {
                "size": (224, 224),
                "fit": "crop",
                "crop_fraction": 0.875,
                "interpolation": "bicubic",
                "mean": (0.48, 0.46, 0.41),
                "std": (0.27, 0.26, 0.28),
            },
            id="dinov2",
        ),
        pytest.param(
            {"size": {"shortest_edge": 224}, "crop_pct": 0.875, "resample": 1},
            {"size": (224, 224), "fit": "crop", "crop_fraction": 0.875, "interpolation": "lanczos"},
            id="convnext-224",
        ),
        pytest.param(
            {"size": {"shortest_edge": 384}, "crop_pct": 0.875, "resample": 3},
            {"size": (384, 384), "fit": "squash"},
            id="convnext-384",
        ),
        pytest.param(
            {"size": 224, "resample": 0},
            {"size": (224, 224), "fit": "squash", "interpolation": "nearest"},
            id="old",
        ),
        pytest.param(
            {"size": 256, "crop_size": 224, "do_center_crop": True},
            {"size": (224, 224), "fit": "crop", "crop_fraction": 0.875},
            id="old-cropped",
        ),
        pytest.param(
            {
                "size": {"height": 240, "width": 240},
                "crop_size": {"height": 99, "width": 99},
                "do_center_crop": False,
            },
            {"size": (240, 240), "fit": "squash"},
            id="efficientnet",
        ),
        pytest.param(
            {"size": {"shortest_edge": 300}},
            {"size": (300, 300), "fit": "crop", "crop_fraction": 1.0},
            id="edge",
        ),
        pytest.param(
            {"size": {"height": 8, "width": 8}, "do_normalize": False},
            {"mean": (0.0,) * 3, "std": (1.0,) * 3},
            id="not-normalised",
        ),
        pytest.param(
            {
                "size": {"height": 8, "width": 8},
                "rescale_factor": 2 / 255,
                "image_mean": 1.0,
                "image_std": 1.0,
            },
            {"mean": (0.5,) * 3, "std": (0.5,) * 3},  # (2 p - 1) / 1 = (p - 1/2) / (1/2)
            id="minus-one-to-one",
        ),
        pytest.param(
            {},
            {"size": (96, 64), "crop_fraction": 0.875, "mean": (0.485, 0.456, 0.406)},
            id="empty",
        ),
    ],
)
def test_preprocessor_config(
    written: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(written))
    read = hf_inputs(_Config(), tmp_path)
    assert {name: getattr(read, name) for name in expected} == expected


class _Config:
    image_size = (96, 64)
    num_channels = 3


def test_preprocessing_of_a_folder_without_one_or_with_a_broken_one(tmp_path: Path) -> None:
    imagenet = Preprocessing(
        size=(96, 64), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), crop_fraction=0.875
    )
    assert hf_inputs(_Config(), tmp_path) == hf_inputs(_Config(), None) == imagenet
    assert hf_inputs(object(), None).size == (224, 224)
    for text in ("{", "[1]", '{"size": {"width": 3}}', '{"image_std": 0}'):
        (tmp_path / "preprocessor_config.json").write_text(text)
        with pytest.raises(ModelError, match=r"preprocessor_config\.json is unusable"):
            hf_inputs(_Config(), tmp_path)


def test_a_bare_architecture_warns_that_its_weights_are_random(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name reads like that of a trained model; somebody who gives its sizes, or says so, knows."""
    pytest.importorskip("transformers")
    monkeypatch.setattr(
        hf, "_from_config", lambda _, config: config
    )  # the default sizes take seconds
    with pytest.warns(UserWarning, match=r"hf:vit names an architecture.*random weights"):
        hf.load_model("vit", None, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hf.load_model("vit", False, None)
        hf.load_model("vit", None, TRANSFORMER)
