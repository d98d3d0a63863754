"""Sets without a common image: the rotation between them is found where they show the same things, else refused."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fixstar.errors import InputError
from fixstar.geometry import unit
from fixstar.workspace.adapters.fitting import fit_adapter
from fixstar.workspace.adapters.unpaired import _mutual, pseudo_pairs

Array = NDArray[np.float64]


class World:
    """Things of 30 kinds in 16 dimensions, that two models see from other directions."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.kinds = unit(self.rng.standard_normal((30, 16)) * np.linspace(2, 0.3, 16) + 0.5)
        self.turn = np.linalg.qr(self.rng.standard_normal((16, 16)))[0]

    def images(self, count: int) -> tuple[Array, NDArray[np.int64]]:
        labels = self.rng.integers(30, size=count)
        return unit(self.kinds[labels] + 0.06 * self.rng.standard_normal((count, 16))), labels


@pytest.mark.parametrize("labelled", [False, True])
def test_the_rotation_between_two_sets_is_found(labelled: bool) -> None:
    world = World(0)
    (X, x), (Y, y), (fresh, _) = world.images(700), world.images(600), world.images(100)
    found = pseudo_pairs(X, Y @ world.turn, *((x, [str(label) for label in y]) if labelled else ()))
    assert np.mean(x[found.first] == y[found.second]) > 0.95
    adapter = fit_adapter("procrustes", X[found.first], (Y @ world.turn)[found.second])
    assert np.sum(adapter(fresh) * (fresh @ world.turn), axis=1).mean() > 0.97
    assert found.anchors == ("30 class centres" if labelled else "the distribution of cosines")


def test_mutual_neighbours_are_those_of_slow_code() -> None:
    rng = np.random.default_rng(3)
    p, q = rng.standard_normal((40, 5)), rng.standard_normal((30, 5))
    distances = np.linalg.norm(p[:, None] - q[None], axis=2)
    slow = [
        (i, j) for i in range(40) for j in range(30) if distances[i].argmin() == j and distances[:, j].argmin() == i
    ]
    first, second = _mutual(p, q)
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == slow


def test_too_few_vectors_are_refused() -> None:
    X, _ = World(1).images(6)
    with pytest.raises(InputError, match="without a common image do not match"):
        pseudo_pairs(X, X @ World(1).turn)
