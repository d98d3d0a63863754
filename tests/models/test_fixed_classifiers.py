"""Every fixed classifier: its logits against the dense product, and its place in an encoder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dense_geometry import cube_prototypes, orthoplex_prototypes, simplex_prototypes
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from wording import refuses

from fixstar.data import from_arrays
from fixstar.data.streams import class_stream
from fixstar.errors import InputError
from fixstar.methods import create_method
from fixstar.models import Encoder, FixedClassifier, Outputs, create_classifier
from fixstar.models.classifiers import CLASSIFIERS
from fixstar.polytopes import polygon_prototypes
from fixstar.training import Recipe, Settings, run_scenario

DENSE: dict[str, Callable[[int], NDArray[np.float64]]] = {
    "cube": cube_prototypes,
    "orthoplex": lambda K: orthoplex_prototypes((K + 1) // 2)[:K],
    "polygon": polygon_prototypes,
    "simplex": simplex_prototypes,
}
SMALLEST = {"cube": 2, "orthoplex": 2, "polygon": 3, "simplex": 2}


def encoder(
    kind: str, capacity: int = 9, classes: tuple[str, ...] = ("cat", "dog", "owl")
) -> Encoder:
    torch.manual_seed(0)
    options = {"in_channels": 1, "width": 4}
    return Encoder.create(
        "tiny", kind, classes=classes, capacity=capacity, backbone_options=options
    ).eval()


def test_all_fixed_kinds_are_tested_here() -> None:
    assert {kind for kind, made in CLASSIFIERS.items() if made.fixed} == DENSE.keys()
    assert all(issubclass(CLASSIFIERS[kind], FixedClassifier) for kind in DENSE)


@pytest.mark.parametrize("capacity", [3, 4, 9, 16, 33])
@pytest.mark.parametrize("kind", DENSE)
def test_logits_are_the_dense_product_without_parameters(kind: str, capacity: int) -> None:
    head = create_classifier(kind, capacity=capacity, scale=3.0)
    W = DENSE[kind](capacity)
    assert (head.outputs, head.feature_dim) == W.shape
    z = torch.randn(4, head.feature_dim, generator=torch.Generator().manual_seed(1))
    np.testing.assert_allclose(head(z), 3 * z.numpy() @ W.T, atol=1e-5)
    assert list(head.state_dict()) == []


@pytest.mark.parametrize("kind", DENSE)
def test_a_polytope_never_changes(kind: str) -> None:
    head = create_classifier(kind, capacity=5, scale=2.0)
    assert head.grown(5) is head
    with pytest.raises(InputError, match="cannot grow"):
        head.grown(6)
    again = create_classifier(kind, **head.options)
    assert (type(again), again.options) == (type(head), {"capacity": 5, "scale": 2.0})


@pytest.mark.parametrize("kind", DENSE)
def test_mistakes_are_told(kind: str) -> None:
    least = SMALLEST[kind]
    assert create_classifier(kind, capacity=least).outputs == least
    with pytest.raises(
        InputError, match=f"^a {kind} needs capacity >= {least}, got capacity={least - 1}$"
    ):
        create_classifier(kind, capacity=least - 1)
    with pytest.raises(InputError, match=f"^a {kind} needs scale > 0, got scale=0.0$"):
        create_classifier(kind, capacity=8, scale=0.0)


@pytest.mark.parametrize("kind", DENSE)
def test_an_encoder_projects_to_it_and_gives_classes_their_slots(kind: str) -> None:
    made = encoder(kind)
    W = DENSE[kind](9)
    assert made.projection is not None
    assert made.projection.weight.shape == (W.shape[1], made.backbone.feature_dim)
    assert made.slots.of(["owl", "cat"]) == [2, 0]
    made.add_classes(["fox"], side="right")
    assert made.slots.of(["fox"]) == [8]
    pixels = torch.randint(
        0, 256, (2, 1, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    z, logits = made(pixels).z, made(pixels).logits
    np.testing.assert_allclose(logits.detach(), z.detach().numpy() @ W.T, atol=1e-4)
    with pytest.raises(InputError, match="cannot fit"):
        made.add_classes([str(i) for i in range(6)])


class SaidToBeOnAGPU(Tensor):
    """Features in host memory that say otherwise."""

    is_cuda = True


@pytest.mark.parametrize(
    ("on_a_gpu", "available", "added", "fused"),
    [
        (True, True, (), True),
        (True, True, (4,), False),  # the kernel knows one simplex only
        (True, False, (), False),
        (False, True, (), False),
    ],
)
def test_the_kernel_is_used_on_a_gpu_for_one_simplex_alone(
    on_a_gpu: bool,
    available: bool,
    added: tuple[int, ...],
    fused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[Tensor, Tensor, float]] = []

    def kernel(z: Tensor, targets: Tensor, scale: float) -> Tensor:
        calls.append((z, targets, scale))
        return torch.tensor(-1.0)

    monkeypatch.setattr("fixstar.models.classifiers.AVAILABLE", available)
    monkeypatch.setattr("fixstar.models.classifiers.simplex_cross_entropy", kernel)
    head, targets = (
        create_classifier("simplex", capacity=5, scale=3.0, added=added),
        torch.tensor([0, 4, 2]),
    )
    z = torch.randn(3, head.feature_dim, generator=torch.Generator().manual_seed(0))
    seen = z.as_subclass(SaidToBeOnAGPU) if on_a_gpu else z
    loss = Outputs(seen, head).cross_entropy(targets)
    if fused:
        ((given, labels, scale),) = calls
        assert given is seen
        assert labels is targets
        assert (scale, float(loss)) == (3.0, -1.0)
    else:
        assert not calls
        torch.testing.assert_close(float(loss), float(functional.cross_entropy(head(z), targets)))


@pytest.mark.parametrize("kind", DENSE)
def test_it_comes_back_from_disk(kind: str, tmp_path: Path) -> None:
    made = encoder(kind)
    again = Encoder.load(made.save(tmp_path / "v1"))
    assert (again.classifier.kind, again.classifier.options) == (kind, made.classifier.options)
    assert again.slots == made.slots
    pixels = torch.randint(
        0, 256, (3, 1, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(again(pixels).logits, made(pixels).logits, rtol=0, atol=0)


@pytest.mark.parametrize("kind", DENSE)
def test_cores_trains_against_any_of_them(kind: str) -> None:
    """Two versions on light bands at three heights: features come to lie near their prototypes, which stay."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 20)
    pixels = rng.integers(0, 100, (60, 32, 32, 1), dtype=np.uint8)
    for label in range(3):
        pixels[labels == label, 10 * label : 10 * label + 10] += 150
    stream = class_stream(from_arrays(pixels, labels, ["a", "b", "c"]), 2, 1)
    method = create_method("cores", polytope=kind)
    assert (method.classifier, method.options["polytope"]) == (kind, kind)
    options: dict[str, Any] = {"in_channels": 1, "width": 4, "feature_dim": 8}
    recipe = Recipe(epochs=8, learning_rate=0.02, milestones=(6,), batch_size=10)
    settings = Settings(
        backbone="tiny", backbone_options=options, capacity=6, recipe=recipe, device="cpu"
    )
    for version in run_scenario(stream, method, settings, progress=False, scenario="retraining"):
        made, known = version.encoder, version.number + 1
        assert made.classifier.kind == kind
        features = made.encode(pixels[labels < known])
        nearest = (features @ DENSE[kind](6)[:known].T).argmax(axis=1)
        assert (nearest == labels[labels < known]).mean() > 0.95


def test_cores_knows_its_polytopes() -> None:
    with refuses(InputError):
        create_method("cores", polytope="dodecahedron")
