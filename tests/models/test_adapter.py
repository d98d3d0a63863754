"""The adapter: a network between two feature spaces, saved with the version that it leads to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from documents import rewrite
from wording import refuses

from fixstar.errors import InputError, ModelError
from fixstar.models import Adapter, Encoder
from fixstar.models.encoder import CARD


def with_adapter(seed: int = 0) -> Encoder:
    torch.manual_seed(seed)
    encoder = Encoder.create(
        "tiny", "linear", classes=["a", "b"], backbone_options={"feature_dim": 4, "width": 2}
    )
    encoder.adapter = Adapter(4, 6)
    return encoder.eval()


def test_adapted_vectors_equal_the_slow_way() -> None:
    torch.manual_seed(0)
    adapter = Adapter(3, 5)
    vectors = np.random.default_rng(0).standard_normal((7, 3))
    a, b, c, d = (p.detach().double().numpy() for p in adapter.parameters())
    for row, vector in zip(adapter.adapt(vectors, batch_size=2), vectors, strict=True):
        expected = c @ np.maximum(a @ vector + b, 0) + d
        np.testing.assert_allclose(row, expected / np.linalg.norm(expected), atol=1e-5)


def test_no_vectors_stay_none_and_a_wrong_width_is_told() -> None:
    assert Adapter(3, 5).adapt(np.zeros((0, 3))).shape == (0, 3)
    for wrong in (np.zeros((2, 4)), np.zeros(3)):
        with refuses(InputError):
            Adapter(3, 5).adapt(wrong)
    with pytest.raises(InputError, match="hidden >= 1"):
        Adapter(3, 0)


def test_an_encoder_comes_back_with_its_adapter(tmp_path: Path) -> None:
    encoder = with_adapter()
    again = Encoder.load(encoder.save(tmp_path / "v2"))
    assert encoder.adapter is not None
    assert again.adapter is not None
    assert again.adapter.options == {"width": 4, "hidden": 6}
    vectors = np.random.default_rng(0).standard_normal((5, 4))
    np.testing.assert_array_equal(again.adapter.adapt(vectors), encoder.adapter.adapt(vectors))


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {},
        {"width": 4},
        {"width": 4, "hidden": 7},
        {"width": 10**7, "hidden": 10**7},
        {"width": 4, "hidden": 6, "depth": 2},
        {"width": "4", "hidden": 6},
        [4, 6],
        "adapter",
    ],
    ids=str,
)
def test_a_damaged_card_is_refused(tmp_path: Path, entry: Any) -> None:
    card = with_adapter().save(tmp_path / "v2") / CARD
    rewrite(card, lambda content: content.update(adapter=entry))
    with pytest.raises(ModelError, match="v2"):
        Encoder.load(tmp_path / "v2")


def test_an_adapter_on_the_card_alone_is_refused(tmp_path: Path) -> None:
    encoder = with_adapter()
    encoder.adapter = None
    card = encoder.save(tmp_path / "v2") / CARD
    rewrite(card, lambda content: content.update(adapter={"width": 4, "hidden": 6}))
    with pytest.raises(ModelError, match="the card's adapter"):
        Encoder.load(tmp_path / "v2")
