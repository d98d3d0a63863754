"""How images are prepared for the backbones of the papers: size and statistics of the data they were published with."""

from __future__ import annotations

from fixstar.errors import InputError
from fixstar.images import Preprocessing

__all__ = ["cifar_inputs", "imagenet_inputs", "mnist_inputs"]

_CIFAR100 = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_MNIST = (0.1307,), (0.3081,)

Statistics = tuple[tuple[float, ...], tuple[float, ...]]


def cifar_inputs(channels: int = 3) -> Preprocessing:
    """32x32, CIFAR-100 statistics."""
    mean, std = _for_channels(_CIFAR100, channels)
    return Preprocessing(size=(32, 32), channels=channels, mean=mean, std=std)


def imagenet_inputs(size: tuple[int, int] = (224, 224), channels: int = 3) -> Preprocessing:
    """ImageNet statistics; the central 224 of a shorter side of 256, as ImageNet models are evaluated."""
    mean, std = _for_channels(_IMAGENET, channels)
    return Preprocessing(size=size, channels=channels, mean=mean, std=std, crop_fraction=0.875)


def mnist_inputs(channels: int = 1) -> Preprocessing:
    """28x28, MNIST statistics."""
    mean, std = _for_channels(_MNIST, channels)
    return Preprocessing(size=(28, 28), channels=channels, mean=mean, std=std)


def _for_channels(statistics: Statistics, channels: int) -> Statistics:
    """The statistics as they are, or their average for every channel when the channels are not the data set's."""
    if isinstance(channels, bool) or channels not in (1, 3):
        raise InputError(f"a backbone takes images of 1 (grey) or 3 (RGB) channels, got {channels!r}")
    mean, std = statistics
    if len(mean) == channels:
        return mean, std
    return (sum(mean) / len(mean),) * channels, (sum(std) / len(std),) * channels
