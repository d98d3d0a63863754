from __future__ import annotations

import numpy as np
import pytest
import torch
from dense_geometry import simplex_prototypes

from fixstar.errors import InputError, UnknownNameError
from fixstar.models import CosineClassifier, LinearClassifier, SimplexClassifier, create_classifier


def test_simplex_logits_and_no_parameters() -> None:
    head = SimplexClassifier(5, scale=3.0)
    z = torch.randn(2, 4)
    np.testing.assert_allclose(head(z), 3 * z.numpy() @ simplex_prototypes(5).T, atol=1e-5)
    assert list(head.parameters()) == []
    assert head.grown(5) is head
    with pytest.raises(InputError, match="cannot grow"):
        head.grown(6)


def test_linear_is_a_product() -> None:
    head = LinearClassifier(3, 2, bias=True)
    z = torch.randn(4, 3)
    assert head.bias is not None
    torch.testing.assert_close(head(z), z @ head.weight.T + head.bias)


def test_the_margin_is_taken_off_the_targets_cosine_alone() -> None:
    head = CosineClassifier(2, 3, scale=10.0, margin=0.2)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[2.0, 0.0], [0.0, 5.0], [-1.0, 0.0]]))
    z = torch.tensor([[3.0, 4.0]])  # cosines 0.6, 0.8, -0.6
    torch.testing.assert_close(head(z), torch.tensor([[6.0, 8.0, -6.0]]))
    torch.testing.assert_close(head(z, torch.tensor([1])), torch.tensor([[6.0, 6.0, -6.0]]))


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_growing_keeps_the_old_rows(kind: str) -> None:
    head = create_classifier(kind, feature_dim=3, outputs=2)
    wider = head.grown(5)
    assert wider.outputs == 5
    torch.testing.assert_close(wider.get_parameter("weight")[:2], head.get_parameter("weight"))
    assert wider.get_parameter("weight")[2:].abs().sum() > 0
    assert head.grown(2) is head


def test_options_rebuild_it() -> None:
    for head in (
        SimplexClassifier(4, 2.0),
        LinearClassifier(3, 2, True),
        CosineClassifier(3, 2, 20.0, 0.1),
    ):
        again = create_classifier(head.kind, **head.options)
        assert again.options == head.options
        assert [p.shape for p in again.parameters()] == [p.shape for p in head.parameters()]


def test_mistakes_are_told() -> None:
    with pytest.raises(UnknownNameError, match="simplex"):
        create_classifier("simplx")
    with pytest.raises(InputError, match="bas"):
        create_classifier("linear", feature_dim=2, outputs=2, bas=True)
    with pytest.raises(InputError, match="margin"):
        CosineClassifier(2, 2, margin=-1)
    with pytest.raises(InputError, match="capacity >= 2"):
        SimplexClassifier(1)
