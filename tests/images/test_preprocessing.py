from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from example_images import rgb
from wording import refuses

from fixstar.errors import InputError
from fixstar.images import Preprocessing


def test_preprocessing_survives_json() -> None:
    p = rgb(224, 192, fit="pad", crop_fraction=0.9, interpolation="lanczos")
    assert Preprocessing.from_json(json.loads(json.dumps(p.to_json()))) == p
    assert hash(Preprocessing(size=[8, 8], mean=np.zeros(3), std=[1, 1, 1])) == hash(  # type: ignore[arg-type]
        Preprocessing(size=(8, 8), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    )


def test_preprocessing_reports_all_mistakes_at_once() -> None:
    with pytest.raises(InputError) as caught:
        Preprocessing(
            size=(0, 8), channels=2, mean=("a",), std=(0.0, 1.0), fit="zoom", crop_fraction=1.5, interpolation="cubic"  # type: ignore[arg-type]
        )  # fmt: skip
    message = str(caught.value)
    for said in (
        "size",
        "channels",
        "mean",
        "std must be positive",
        "fit must be one of crop, squash, pad",
        "crop_fraction",
        "lanczos",
    ):
        assert said in message


@pytest.mark.parametrize(
    "wrong",
    [
        {"mean": (0.5,)},
        {"std": (1, 1, float("nan"))},
        {"size": 8},
        {"size": (8, True)},
        {"crop_fraction": 0},
    ],
)
def test_preprocessing_refuses(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        Preprocessing(**{"size": (8, 8), "mean": (0, 0, 0), "std": (1, 1, 1), **wrong})


def test_from_json_names_unknown_and_missing_entries() -> None:
    with refuses(InputError):
        Preprocessing.from_json({"size": [8, 8], "mean": [0, 0, 0], "scale": 2})
