from __future__ import annotations

import json
from pathlib import Path

import pytest

from fixstar.errors import InputError
from fixstar.methods import METHODS, create_method
from fixstar.methods.advice import advise, parse_needs

OMNIGLOT = Path(__file__).parents[2] / "benchmarks" / "results" / "methods_omniglot.json"
ALL = {name: create_method(name) for name in METHODS}


@pytest.mark.parametrize(
    ("have", "recommended"),
    [
        ("old-model,replay", "polaris"),
        ("old-model,all-images", "polaris"),
        ("all-images", None),
        ("all-images,old-vectors", None),
        ("old-classifier,all-images", "bct"),
        ("old-vectors", "bct-vectors"),
        ("old-classifier,replay", "bct-er"),
        ("replay", None),
        ("old-model", None),
        ("", None),
    ],
)
def test_the_recommendation_needs_no_more_than_there_is(have: str, recommended: str | None) -> None:
    advice = advise(parse_needs(have), ALL)
    assert advice.recommended == recommended
    assert recommended is None or recommended in advice.possible


def test_an_old_model_brings_its_classifier_and_all_images_bring_replay() -> None:
    advice = advise(parse_needs("old-model,all-images"), ALL)
    assert set(advice.possible) == set(ALL)
    assert "polaris" not in advise(parse_needs("all-images"), ALL).possible


def test_the_control_is_possible_but_never_recommended() -> None:
    advice = advise(parse_needs("all-images"), {"itm": ALL["itm"]})
    assert advice.possible == ("itm",)
    assert advice.recommended is None


def test_where_all_images_remain_without_the_old_model_they_are_to_be_embedded_again() -> None:
    """CoReS was compatible in less than half of the pairs in every run here, so it is possible, but not advised."""
    for have in ("all-images", "all-images,old-vectors", "all-images,replay"):
        advice = advise(parse_needs(have), ALL)
        assert "cores" in advice.possible
        assert "embed them again" in advice.reason
        assert "0 to .33 of the pairs" in advice.reason


@pytest.mark.parametrize("have", ["old-vectors", "old-classifier,replay"])
def test_of_what_is_possible_that_is_advised_which_lost_least(have: str) -> None:
    """By the mean gain on older galleries (BC) on Omniglot, both protocols together."""
    gains: dict[str, list[float]] = {}
    for run in json.loads(OMNIGLOT.read_text()):
        gain = run["protocols"]["template"]["BC"] + run["protocols"]["image"]["BC"]
        gains.setdefault(run["method"], []).append(gain)
    advice = advise(parse_needs(have), ALL)
    means = {name: sum(gains[name]) / len(gains[name]) for name in advice.possible}
    assert max(means, key=lambda name: means[name]) == advice.recommended


def test_a_trainable_classifier_has_its_own_evidence() -> None:
    everything = advise(parse_needs("old-model,all-images"), ALL).reason
    assert everything.endswith(
        "there is less evidence: on Omniglot lwf was compatible in 1.00 of the pairs"
    )
    assert "on Omniglot fd with head=softmax" in advise(parse_needs("old-model,replay"), ALL).reason
    assert (
        "check before you deploy"
        in advise(parse_needs("old-model,replay"), {"polaris": ALL["polaris"]}).reason
    )


def test_unknown_words_are_told() -> None:
    with pytest.raises(InputError, match="old-classifier"):
        parse_needs("old-modle")


def test_the_old_models_forward_pass_is_in_the_cost() -> None:
    assert ALL["hoc"].cost == pytest.approx(4 / 3)
    assert ALL["cores"].cost == 1
    assert create_method("bct").cost == 1
    assert create_method("bct", new_classes="kd").cost == pytest.approx(4 / 3)
