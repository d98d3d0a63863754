"""Several prototypes a class: the local similarity classifier of PODNet."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fixstar.errors import InputError
from fixstar.losses import neighbourhood_components
from fixstar.models import Encoder, ProxyClassifier, create_classifier


def head(margin: float = 0.6, proxies: int = 3) -> ProxyClassifier:
    torch.manual_seed(0)
    made = ProxyClassifier(5, 4, proxies, margin)
    with torch.no_grad():
        made.scale.fill_(2.5)
    return made


def slow_logits(
    classifier: ProxyClassifier, z: Tensor, targets: list[int] | None
) -> list[list[float]]:
    """Eq. 6 of PODNet, one image, one class and one proxy at a time."""
    weight, rows = classifier.weight.detach().double().numpy(), []
    for i, feature in enumerate(z.double().numpy()):
        row = []
        for label in range(classifier.outputs):
            cosines = [
                float(p @ feature / np.linalg.norm(p) / np.linalg.norm(feature))
                for p in weight[label]
            ]
            total = sum(math.exp(cosine) for cosine in cosines)
            similarity = sum(math.exp(cosine) / total * cosine for cosine in cosines)
            if targets is not None and targets[i] == label:
                similarity -= classifier.margin
            row.append(classifier.scale.item() * similarity)
        rows.append(row)
    return rows


@pytest.mark.parametrize("targets", [None, [3, 0, 1]])
def test_logits_equal_the_slow_loop(targets: list[int] | None) -> None:
    classifier, z = head(), torch.randn(3, 5)
    logits = classifier(z, None if targets is None else torch.tensor(targets))
    torch.testing.assert_close(
        logits, torch.tensor(slow_logits(classifier, z, targets)), atol=1e-5, rtol=1e-4
    )


def test_the_margin_does_not_pull_at_the_scale() -> None:
    classifier, z = head(proxies=1), torch.randn(1, 5)
    cosine = classifier(z)[0, 2].item() / 2.5
    own = classifier(z, torch.tensor([2]))[0, 2]
    assert own.item() == pytest.approx(2.5 * (cosine - 0.6), abs=1e-6)
    own.backward()
    assert classifier.scale.grad is not None
    assert classifier.scale.grad.item() == pytest.approx(cosine, abs=1e-6)  # and not cosine - 0.6


def test_with_a_margin_the_classes_are_learnt() -> None:
    """A scale below zero would bring the loss to zero before the classes are learnt."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(50).repeat(5)
    centres = torch.randn(50, 16, generator=generator)
    z = centres[targets] + 0.5 * torch.randn(250, 16, generator=generator)
    torch.manual_seed(0)
    classifier = ProxyClassifier(16, 50, proxies=10)
    optimiser = torch.optim.SGD(classifier.parameters(), lr=0.1, momentum=0.9)
    for _ in range(200):
        optimiser.zero_grad()
        torch.autograd.backward(neighbourhood_components(classifier(z, targets), targets))
        optimiser.step()
    assert classifier.scale.item() > 1
    assert (classifier(z).argmax(dim=1) == targets).float().mean() > 0.95


def test_one_proxy_is_a_plain_cosine() -> None:
    classifier, z = head(proxies=1), torch.randn(3, 5)
    cosines = (
        torch.nn.functional.normalize(z) @ torch.nn.functional.normalize(classifier.weight[:, 0]).T
    )
    torch.testing.assert_close(classifier(z), 2.5 * cosines)


def test_growing_keeps_the_old_rows_the_scale_and_the_options() -> None:
    classifier = head()
    wider = classifier.grown(6)
    assert isinstance(wider, ProxyClassifier)
    assert wider.options == {**classifier.options, "outputs": 6}
    assert wider.weight.shape == (6, 3, 5)
    torch.testing.assert_close(wider.weight[:4], classifier.weight, rtol=0, atol=0)
    assert wider.weight[4:].abs().sum() > 0
    assert wider.scale.item() == 2.5
    z = torch.randn(2, 5)
    torch.testing.assert_close(wider(z)[:, :4], classifier(z))
    assert classifier.grown(4) is classifier


def test_every_parameter_is_learnt() -> None:
    classifier = head()
    loss = torch.nn.functional.cross_entropy(classifier(torch.randn(8, 5)), torch.arange(8) % 4)
    gradients = torch.autograd.grad(loss, list(classifier.parameters()))
    assert {name for name, _ in classifier.named_parameters()} == {"weight", "scale"}
    assert all(gradient.any() for gradient in gradients)


def test_an_encoder_with_proxies_comes_back_bit_for_bit(tmp_path: Path) -> None:
    options = {"proxies": 2, "margin": 0.1}
    encoder = Encoder.create("tiny", "proxy", classes=["a", "b"], classifier_options=options).eval()
    encoder.add_classes(["c"])
    again = Encoder.load(encoder.save(tmp_path / "v1"))
    pixels = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    torch.testing.assert_close(again(pixels).logits, encoder(pixels).logits, rtol=0, atol=0)
    assert again.classifier.options == {"feature_dim": 64, "outputs": 3, **options}


def test_mistakes_are_told() -> None:
    with pytest.raises(InputError, match="proxies >= 1"):
        create_classifier("proxy", feature_dim=2, outputs=2, proxies=0)
    with pytest.raises(InputError, match="margin < 2"):
        ProxyClassifier(2, 2, margin=-0.1)
