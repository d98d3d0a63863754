from __future__ import annotations

import pytest

from fixstar.errors import InputError
from fixstar.methods import METHODS, create_method
from fixstar.methods.advice import advise, parse_needs

ALL = {name: create_method(name) for name in METHODS}


@pytest.mark.parametrize(
    ("have", "recommended"),
    [
        ("old-model,replay", "polaris"),
        ("old-model,all-images", "polaris"),
        ("all-images", "cores"),
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


def test_what_was_given_is_not_asked_for() -> None:
    assert "otherwise keep the old vectors too and take bct-vectors" in advise(parse_needs("all-images"), ALL).reason
    given = advise(parse_needs("all-images,old-vectors"), ALL)
    assert given.recommended == "cores"
    assert given.reason.endswith("otherwise take bct-vectors")


def test_unknown_words_are_told() -> None:
    with pytest.raises(InputError, match="old-classifier"):
        parse_needs("old-modle")


def test_the_old_models_forward_pass_is_in_the_cost() -> None:
    assert ALL["hoc"].cost == pytest.approx(4 / 3)
    assert ALL["cores"].cost == 1
    assert create_method("bct").cost == 1
    assert create_method("bct", new_classes="kd").cost == pytest.approx(4 / 3)
