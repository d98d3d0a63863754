"""Two models in one collection are found; topics of one model are not taken for two."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fixstar.errors import InputError
from fixstar.evaluation.mixture import LEAST, find_mixture

WIDTH = 64


def model(seed: int) -> NDArray[np.float64]:
    """The axes of a model: it spreads along some directions far more than along others."""
    rng = np.random.default_rng(seed)
    turned = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0]
    matrix: NDArray[np.float64] = np.diag(0.93 ** np.arange(WIDTH)) @ turned
    return matrix


def items(count: int, topic: int, seed: int) -> NDArray[np.float64]:
    """What is to be embedded: 20 classes around the place of a topic, which is far from those of others."""
    place = 3 * np.random.default_rng(100 + topic).standard_normal(WIDTH)
    rng = np.random.default_rng(seed)
    classes = rng.standard_normal((20, WIDTH))
    drawn: NDArray[np.float64] = (
        place + classes[rng.integers(20, size=count)] + 0.7 * rng.standard_normal((count, WIDTH))
    )
    return drawn


@pytest.mark.parametrize("share", [0.5, 0.1])
@pytest.mark.parametrize("topics", [(1, 1), (1, 2)])
def test_two_models_are_found(share: float, topics: tuple[int, int]) -> None:
    first = round(share * 2000)
    both = [items(first, topics[0], 3) @ model(1), items(2000 - first, topics[1], 4) @ model(2)]
    found = find_mixture(np.concatenate(both))
    assert found.verdict == "mixed"
    assert found.alignment == pytest.approx(1, abs=0.1)
    assert found.share == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_two_topics_of_one_model_are_not_two_models(share: float) -> None:
    first = round(share * 2000)
    both = [items(first, 1, 3) @ model(1), items(2000 - first, 2, 4) @ model(1)]
    found = find_mixture(np.concatenate(both))
    assert found.verdict == "one model"
    assert found.alignment > 1.3


def test_vectors_without_axes_and_too_few_tell_nothing() -> None:
    rng = np.random.default_rng(0)
    assert find_mixture(rng.standard_normal((2000, WIDTH))).verdict == "cannot be told"
    assert find_mixture(items(LEAST - 1, 1, 3) @ model(1)).verdict == "cannot be told"
    with pytest.raises(InputError, match="finite"):
        find_mixture(np.full((500, 4), np.nan))


def test_the_alignment_is_what_the_covariances_say() -> None:
    """By the equation, with the two groups known."""
    vectors = np.concatenate([items(1000, 1, 3) @ model(1), items(1000, 2, 4) @ model(2)])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    one, other = np.cov(vectors[:1000].T), np.cov(vectors[1000:].T)
    whole = WIDTH * np.trace(one @ other) / (np.trace(one) * np.trace(other))
    assert find_mixture(vectors).alignment == pytest.approx(whole, abs=0.1)
