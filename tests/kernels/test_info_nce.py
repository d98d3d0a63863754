"""The contrastive loss in two kernels against the same in float64: on a GPU, or by Triton's interpreter without one."""

from __future__ import annotations

import pytest
import torch
from kernel_device import DEVICE, needs_triton, on_a_gpu
from torch import Tensor
from torch.nn import functional

from fixstar import losses as loss_functions
from fixstar.errors import InputError
from fixstar.kernels.info_nce import fused_info_nce, suits
from fixstar.losses import SameClass, info_nce

pytestmark = needs_triton

READINGS: list[SameClass] = ["masked", "published", "kept"]


def exact(new: Tensor, old: Tensor, targets: Tensor, rho: float, same_class: SameClass) -> Tensor:
    """Equations 4 and 5 of HOC in float64, an anchor at a time."""
    units, anchors = functional.normalize(new.double()), functional.normalize(old.double())
    losses = []
    for i in range(len(targets)):
        s = rho * units @ anchors[i]
        related, others = targets == targets[i], torch.arange(len(targets), device=new.device) != i
        counted = s[others & ~related] if same_class == "masked" else s[others]
        if same_class == "published":
            counted = s.masked_fill(related, 0.0)  # the positive is of its own class
        losses.append(counted.logsumexp(0) - s[i] if len(counted) else 0 * s.sum())
    return torch.stack(losses).mean()


def batch(images: int, d: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * images + d)
    new, old = (3 * torch.randn(2, images, d, generator=generator)).to(DEVICE)
    old = old + new  # an upgraded model sees much of what the old one saw
    return new, old, torch.randint(classes, (images,), generator=generator).to(DEVICE)


def agrees(new: Tensor, old: Tensor, targets: Tensor, rho: float, same_class: SameClass) -> None:
    """Loss and gradient, row by row; what a row's projection cancels is measured by the row before it."""
    mine, theirs = new.detach().clone().requires_grad_(), new.detach().double().requires_grad_()
    loss, expected = (
        f(z, old, targets, rho, same_class) for f, z in ((fused_info_nce, mine), (exact, theirs))
    )
    (gradient,), (by_hand,) = (
        torch.autograd.grad(2 * loss, mine),
        torch.autograd.grad(2 * expected, theirs),
    )
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
    cancelled = 2 * rho / len(new) / torch.linalg.vector_norm(theirs, dim=1).clamp_min(1e-12)
    allowed = 1e-4 * by_hand.abs().amax(dim=1) + 2e-6 * cancelled
    assert ((gradient - by_hand).abs().amax(dim=1) <= allowed).all()


@pytest.mark.parametrize("same_class", READINGS)
@pytest.mark.parametrize(
    ("images", "d"), [(1, 5), (3, 1), (3, 300), (16, 63), (17, 99), (64, 99), (67, 1)]
)
def test_loss_and_gradient_are_those_of_the_equations(
    images: int, d: int, same_class: SameClass
) -> None:
    agrees(*batch(images, d, classes=max(2, images // 8)), 5.0, same_class)


@pytest.mark.long
@pytest.mark.parametrize(
    ("images", "d", "same_class"), [(130, 63, "published"), (128, 300, "masked"), (256, 16, "kept")]
)
def test_larger_batches(images: int, d: int, same_class: SameClass) -> None:
    agrees(*batch(images, d, classes=10), 20.0, same_class)


def test_the_loss_hands_over_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    new, old, targets = batch(6, 7, classes=3)
    plain = [
        info_nce(new.cpu(), old.cpu(), targets.cpu(), 7.0, same_class).item()
        for same_class in READINGS
    ]
    monkeypatch.setattr(loss_functions, "suits", lambda new, old: True)  # noqa: ARG005
    fused = [info_nce(new, old, targets, 7.0, same_class).item() for same_class in READINGS]
    assert fused == pytest.approx(plain, rel=1e-5)
    assert len({round(value, 3) for value in fused}) == 3


@pytest.mark.parametrize("same_class", READINGS)
def test_images_of_one_class(same_class: SameClass) -> None:
    new, old, _ = batch(20, 9, classes=1)
    agrees(new, old, torch.full((20,), 4, device=DEVICE), 5.0, same_class)


def test_anchors_without_negatives_add_nothing() -> None:
    new, old, targets = batch(20, 9, classes=1)
    new.requires_grad_()
    loss = fused_info_nce(new, old, targets, 5.0, "masked")
    (gradient,) = torch.autograd.grad(loss, new)
    assert loss.item() == 0
    assert not gradient.any()


@pytest.mark.parametrize("length", [0.0, 5e-13, 2e-12])
def test_features_shorter_than_any_direction(length: float) -> None:
    """Below 1e-12 a feature is divided by that instead of its length, and its gradient keeps the radial part."""
    new, old, targets = batch(18, 40, classes=3)
    for features, row in ((new, 0), (new, 17), (old, 5), (old, 17)):
        features[row] *= length / features[row].norm()
    agrees(new, old, targets, 5.0, "masked")


def test_what_is_not_a_number_is_not_hidden() -> None:
    new, old, targets = batch(20, 9, classes=4)
    new[3, 2] = float("nan")
    assert fused_info_nce(new, old, targets, 5.0, "masked").isnan()


def test_other_layouts_and_precisions() -> None:
    new, old, targets = batch(12, 8, classes=4)
    expected = fused_info_nce(new, old, targets, 5.0, "kept")
    turned = new.T.contiguous().T.requires_grad_()
    strided = torch.stack([targets, targets], dim=1)[:, 0]
    torch.testing.assert_close(
        fused_info_nce(turned, old.T.contiguous().T, strided, 5, "kept"), expected
    )
    narrow = new.to(torch.bfloat16).requires_grad_()
    loss = fused_info_nce(narrow, old, targets, 5.0, "kept")
    (gradient,) = torch.autograd.grad(loss, narrow)
    assert loss.item() == pytest.approx(expected.item(), rel=0.01)
    assert gradient.dtype == torch.bfloat16


def test_the_gradient_is_not_differentiated_again() -> None:
    new, old, targets = batch(4, 3, classes=2)
    new.requires_grad_()
    loss = fused_info_nce(new, old, targets, 5.0, "kept")
    with pytest.raises(InputError, match=r"old\.requires_grad_"):
        torch.autograd.grad(loss, new, create_graph=True)


def test_what_does_not_fit_is_refused() -> None:
    new, old, targets = batch(4, 3, classes=2)
    with pytest.raises(InputError, match=r"\(4, 2\)"):
        fused_info_nce(new, old[:, :2], targets, 5.0, "kept")
    with pytest.raises(InputError, match=r"\(3,\)"):
        fused_info_nce(new, old, targets[:3], 5.0, "kept")
    with pytest.raises(InputError, match=r"1 to 256 .*\(257, 2\)"):
        fused_info_nce(torch.ones(257, 2), torch.ones(257, 2), torch.ones(257), 5.0, "kept")
    with pytest.raises(InputError, match="masked, published, kept"):
        fused_info_nce(new, old, targets, 5.0, "ignored")


def test_without_a_gpu_the_loss_stays_in_torch() -> None:
    assert not suits(torch.ones(4, 3), torch.ones(4, 3))


@on_a_gpu
def test_only_what_the_kernels_can_do_is_given_to_them() -> None:
    new, old, _ = batch(4, 3, classes=2)
    assert suits(new, old)
    assert not suits(new, old.requires_grad_())
    assert not suits(new[:0], old[:0].detach())
    assert not suits(torch.ones(257, 2, device=DEVICE), torch.ones(257, 2, device=DEVICE))


@on_a_gpu
def test_a_graph_records_it() -> None:
    new, old, targets = batch(128, 99, classes=10)
    new.requires_grad_()

    def step() -> tuple[Tensor, Tensor]:
        loss = info_nce(new, old, targets)
        return loss, torch.autograd.grad(loss, new)[0]

    for _ in range(3):
        step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
    with torch.no_grad():
        new.copy_(2 * torch.randn_like(new))
    graph.replay()
    for seen, expected in zip(recorded, step(), strict=True):
        torch.testing.assert_close(seen, expected)
