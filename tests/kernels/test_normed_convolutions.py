"""A whole CIFAR ResNet by the fused kernels against the library's operations in float64, gradients and all."""

from __future__ import annotations

import copy

import pytest
import torch
from kernel_device import DEVICE, GPU, needs_triton, on_a_gpu
from torch import Tensor

from fixstar.models.backbones.cifar_resnet import CifarResNet
from fixstar.models.fused import FusedCifarResNet, fused

pytestmark = needs_triton

# depth, images, height, width, channels of the images, whether the last block ends with a ReLU
CASES = [(8, 3, 8, 8, 3, True), (8, 2, 4, 8, 1, False)]
ON_A_GPU = [(32, 100, 32, 32, 3, True), (20, 37, 28, 32, 1, False)]


def network(depth: int, channels: int, final_relu: bool) -> CifarResNet:
    """With gains and shifts that are not those of the start, so that no gradient is the same by chance."""
    torch.manual_seed(depth)
    net = CifarResNet(depth, in_channels=channels, final_relu=final_relu).to(DEVICE).train()
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return net


def apart(ours: Tensor, exact: Tensor) -> float:
    return float((ours.detach().double() - exact.detach()).norm() / exact.detach().norm())


@pytest.mark.parametrize("case", [*CASES, *(ON_A_GPU if GPU else [])])
def test_features_gradients_and_statistics_are_those_of_the_library(case: tuple[int, int, int, int, int, bool]) -> None:
    depth, images, height, width, channels, final_relu = case
    net = network(depth, channels, final_relu)
    reference = copy.deepcopy(net).double()
    x = torch.randn(images, channels, height, width, device=DEVICE)
    weight = torch.randn(images, 64, device=DEVICE)

    h = FusedCifarResNet(net, torch.float32)(x)
    torch.autograd.backward((h * weight).sum())
    expected = reference(x.double())
    torch.autograd.backward((expected * weight.double()).sum())

    assert h.dtype == torch.float32
    assert apart(h, expected) < 1e-5
    for (name, ours), (_, exact) in zip(net.named_parameters(), reference.named_parameters(), strict=True):
        assert ours.grad is not None
        assert exact.grad is not None
        assert apart(ours.grad, exact.grad) < (5e-3 if depth == 32 else 2e-5), name
    statistics = zip(net.named_buffers(), reference.named_buffers(), strict=True)
    for (name, moved), (_, expected_there) in statistics:
        if name.endswith(("mean", "var")):
            assert apart(moved, expected_there) < 1e-5, name


def test_rounding_is_that_of_bfloat16() -> None:
    net = network(8, 3, True)
    reference = copy.deepcopy(net).double()
    x = torch.randn(4, 3, 8, 8, device=DEVICE)
    h = FusedCifarResNet(net)(x)
    assert 1e-4 < apart(h, reference(x.double())) < 0.03


def test_only_what_the_kernels_are_made_for_is_trained_by_them() -> None:
    net = network(8, 3, True)
    assert FusedCifarResNet.suits(net, (32, 32)) == GPU
    assert not FusedCifarResNet.suits(net, (32, 30))  # does not halve twice
    assert not FusedCifarResNet.suits(net.eval(), (32, 32))
    assert not FusedCifarResNet.suits(torch.nn.Linear(2, 2), (32, 32))


@on_a_gpu
def test_a_backbone_trains_by_the_kernels_inside_the_context_alone() -> None:
    net = network(20, 3, True)
    images = torch.randn(16, 3, 32, 32, device=DEVICE)
    with fused(net):
        ours = net(images)
    assert ours.grad_fn is not None
    assert "Function" in ours.grad_fn.name()
    assert apart(ours, net(images).double()) < 0.03
