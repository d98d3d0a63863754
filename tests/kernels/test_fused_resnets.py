"""A whole CIFAR ResNet by the fused kernels against the library's operations in float64, gradients and all."""

from __future__ import annotations

import copy

import pytest
import torch
from kernel_device import DEVICE, GPU, needs_triton, on_a_gpu
from torch import Tensor, nn
from wording import refuses

from fixstar.errors import InputError
from fixstar.models.backbones.resnets import CifarResNet
from fixstar.research.fused_resnets import (
    _BACKWARD,
    _FORWARD,
    WEIGHTS,
    FusedCifarResNet,
    fused_program,
    layers_of,
)
from fixstar.training.captured import called_by

pytestmark = needs_triton

# depth, images, height, width, channels of the images, whether the last block ends with a ReLU
CASES = [(8, 2, 8, 4, 3, True)]
ON_A_GPU = [(8, 2, 4, 8, 1, False), (32, 100, 32, 32, 3, True), (20, 37, 28, 32, 1, False)]


def network(depth: int, channels: int, final_relu: bool) -> CifarResNet:
    """With gains and shifts that are not those of the start, so that no gradient is the same by chance."""
    torch.manual_seed(depth)
    net = CifarResNet(depth, in_channels=channels, final_relu=final_relu).to(DEVICE).train()
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return net


@pytest.fixture(autouse=True)
def large_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter takes as long for a program of 64 weights as for one of 4,096."""
    if not GPU:
        monkeypatch.setattr("fixstar.research.fused_resnets.SUM_BLOCK", (4096, 64))


def apart(ours: Tensor, exact: Tensor) -> float:
    return float((ours.detach().double() - exact.detach()).norm() / exact.detach().norm())


@pytest.mark.parametrize("case", [*CASES, *(ON_A_GPU if GPU else [])])
def test_features_gradients_and_statistics_are_those_of_the_library(
    case: tuple[int, int, int, int, int, bool],
) -> None:
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
    for (name, ours), (_, exact) in zip(
        net.named_parameters(), reference.named_parameters(), strict=True
    ):
        assert ours.grad is not None
        assert exact.grad is not None
        assert apart(ours.grad, exact.grad) < (5e-3 if depth == 32 else 2e-5), name
    statistics = zip(net.named_buffers(), reference.named_buffers(), strict=True)
    for (name, moved), (_, expected_there) in statistics:
        if name.endswith(("mean", "var")):
            assert apart(moved, expected_there) < 1e-5, name


@pytest.mark.long
def test_sums_in_several_turns_are_those_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """More programs than a channel looks at together, chunks of several turns, more chunks than are summed at once."""
    monkeypatch.setattr("fixstar.research.fused_resnets._STATISTICS", 2)
    monkeypatch.setattr("fixstar.research.fused_resnets.SUM_BLOCK", (256 if GPU else 4096, 1))
    for channels, (taps, *_) in WEIGHTS.items():
        monkeypatch.setitem(WEIGHTS, channels, (taps, 16, 2, 9))
    for channels in (16, 32, 64):
        monkeypatch.setitem(_FORWARD, channels, (1, 16, 2))
        monkeypatch.setitem(_BACKWARD, channels, (1, 16, 2))
    chunks, turns = layers_of(network(8, 1, False), 4, 8)[1].chunks(2)
    assert chunks > 1
    assert turns > 1
    test_features_gradients_and_statistics_are_those_of_the_library((8, 2, 4, 8, 1, False))


@pytest.mark.long
def test_features_in_bfloat16_are_near() -> None:
    net = network(8, 3, True)
    reference = copy.deepcopy(net).double()
    x = torch.randn(2, 3, 8, 4, device=DEVICE)
    h = FusedCifarResNet(net)(x)
    assert 1e-4 < apart(h, reference(x.double())) < 0.03


@on_a_gpu
def test_gradients_in_bfloat16_are_as_near_as_the_library_brings_them() -> None:
    net = network(20, 3, True)
    plain, exact = copy.deepcopy(net), copy.deepcopy(net).double()
    x, weight = torch.randn(64, 3, 32, 32, device=DEVICE), torch.randn(64, 64, device=DEVICE)
    torch.autograd.backward((FusedCifarResNet(net)(x) * weight).sum())
    with torch.autocast("cuda", torch.bfloat16):
        features = plain(x.contiguous(memory_format=torch.channels_last))
    torch.autograd.backward((features.float() * weight).sum())
    torch.autograd.backward((exact(x.double()) * weight.double()).sum())

    def all_of(net: CifarResNet) -> Tensor:
        return torch.cat(
            [p.grad.double().flatten() for p in net.parameters() if p.grad is not None]
        )

    assert apart(all_of(net), all_of(exact)) < 1.2 * apart(all_of(plain), all_of(exact))


@pytest.mark.long
def test_a_failed_training_is_not_hidden() -> None:
    net = network(8, 3, True)
    with torch.no_grad():
        next(net.blocks()).conv1.weight[0, 0, 0, 0] = float("nan")
    assert FusedCifarResNet(net)(torch.randn(2, 3, 4, 4, device=DEVICE)).isnan().any()


def test_what_it_cannot_do_is_refused() -> None:
    net = FusedCifarResNet(network(8, 3, True))
    with pytest.raises(InputError, match="6 x 8"):
        net(torch.randn(2, 3, 6, 8, device=DEVICE))
    with refuses(InputError):
        net(torch.randn(2, 3, 8, 8, device=DEVICE, requires_grad=True))


def test_only_what_the_kernels_are_made_for_is_trained_by_them() -> None:
    assert FusedCifarResNet.supports(network(8, 3, True), (32, 32)) == GPU
    assert (fused_program(network(8, 3, True), (32, 32)) is None) != GPU
    assert FusedCifarResNet.follows(network(8, 3, True), (32, 28))
    assert not FusedCifarResNet.follows(network(8, 3, True), (32, 30))  # does not halve twice
    assert not FusedCifarResNet.follows(network(8, 3, True).eval(), (32, 32))
    assert not FusedCifarResNet.follows(nn.Linear(2, 2), (32, 32))

    class Other(CifarResNet):
        pass

    assert not FusedCifarResNet.follows(Other(8).train(), (32, 32))


@pytest.mark.parametrize(
    "change", ["frozen", "no statistics", "no momentum", "one in evaluation", "hook"]
)
def test_a_network_that_departs_from_the_usual_is_left_to_the_library(change: str) -> None:
    net = network(8, 3, True)
    block = next(net.blocks())
    if change == "frozen":
        block.conv2.weight.requires_grad_(False)
    elif change == "no statistics":
        block.bn1.track_running_stats = False
    elif change == "no momentum":
        block.bn1.momentum = None
    elif change == "one in evaluation":
        block.bn2.eval()
    else:
        block.register_forward_hook(lambda *_: None)
    assert not FusedCifarResNet.follows(net, (32, 32))


@on_a_gpu
def test_a_backbone_trains_by_the_kernels_inside_the_context_alone() -> None:
    net = network(20, 3, True)
    images = torch.randn(16, 3, 32, 32, device=DEVICE)
    program = fused_program(net, (32, 32))
    assert program is not None
    with called_by(net, program):
        ours = net(images)
    assert ours.grad_fn is not None
    assert "Function" in ours.grad_fn.name()
    assert apart(ours, net(images).double()) < 0.03
