"""What methods say of themselves: the model card, the advice, the head and the loop go by it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from fixstar.methods import METHODS, create_method

# Defaults are the published ones; others are given by hand.
DEFAULTS: dict[str, dict[str, Any]] = {
    "advbct-er": {
        "adversarial": 1.0,
        "reversal": 1.0,
        "boundary": 1.0,
        "threshold": 0.5,
        "width": 100,
        "fade": True,
        "batch_norm": True,
        "head": "softmax",
    },
    "cl2r-ub": {"base": 5.0},
    "cvs": {"model": 10.0, "data": 1.0, "margin": 0.1, "scale": 20.0, "head": "cosine"},
    "lce-er": {"align": 100.0, "boundary": 1.0, "head": "norm-softmax"},
    "podnet": {"spatial": 3.0, "flat": 1.0, "proxies": 10, "margin": 0.0},
}
CHOSEN: dict[str, dict[str, Any]] = {
    "advbct-er": {
        "adversarial": 2.5,
        "reversal": 3.5,
        "boundary": 4.5,
        "threshold": 0.25,
        "width": 7,
        "fade": False,
        "batch_norm": False,
        "head": "norm-softmax",
    },
    "cl2r-ub": {"base": 2.5},
    "cvs": {"model": 2.5, "data": 3.5, "margin": 0.25, "scale": 7.0, "head": "cosine"},
    "lce-er": {"align": 2.5, "boundary": 3.5, "head": "softmax"},
    "podnet": {"spatial": 2.5, "flat": 3.5, "proxies": 4, "margin": 0.25},
}
HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "advbct-er": ("cosine", {"scale": 32.0, "margin": 0.0}),
    "cl2r-ub": ("simplex", {}),
    "cvs": ("cosine", {"scale": 7.0, "margin": 0.0}),
    "lce-er": ("linear", {}),
    "podnet": ("proxy", {"proxies": 4, "margin": 0.25}),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_option_is_recorded(name: str) -> None:
    """A version is upgraded with its own method again: what is not on its card would be the default."""
    parameters = inspect.signature(METHODS[name]).parameters
    assert create_method(name).options == {option: it.default for option, it in parameters.items()}


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen_options_are_recorded_and_reach_the_head(name: str) -> None:
    assert create_method(name).options == DEFAULTS[name]
    method = create_method(name, **CHOSEN[name])
    assert method.options == CHOSEN[name]
    assert (method.classifier, dict(method.classifier_options)) == HEADS[name]


@pytest.mark.parametrize("name", METHODS)
def test_what_is_needed_from_the_past_fits_how_it_is_trained(name: str) -> None:
    """Images come from a memory in lifelong learning, and all again in retraining; stored vectors stand for neither."""
    method = create_method(name)
    images = method.needs & {"replay", "all images"}
    if "old vectors" in method.needs:
        assert not images
    else:
        assert images == {"replay" if method.scenario == "lifelong" else "all images"}
    if name in CHOSEN:
        assert "old model" in method.needs


def test_maps_are_asked_for_by_podnet_alone() -> None:
    assert [name for name in METHODS if create_method(name).maps] == ["podnet"]
