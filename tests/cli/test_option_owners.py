"""What a command offers is a field of a dataclass: its description and default stand there, for HTTP too."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pytest
from pydantic import BaseModel
from typer.main import get_command

from fixstar.cli import app
from fixstar.cli.versions import ImageOptions
from fixstar.data import Augmentation
from fixstar.images import Preprocessing
from fixstar.options import described
from fixstar.service.schemas import BackfillRequest, CheckRequest, TrainRequest, UpgradeRequest
from fixstar.training import Recipe, Settings
from fixstar.workspace import BackfillOptions, FitOptions, GateRules, UpgradeOptions

KINDS: dict[str, list[Any]] = {
    "train": [Recipe, Settings, UpgradeOptions],
    "upgrade": [Recipe, UpgradeOptions],
    "check": [GateRules, FitOptions],
    "backfill": [BackfillOptions],
}
IMAGES = {field.name for field in fields(ImageOptions)}  # of Preprocessing
OWN = {  # where things are, what is printed, and what is made of words before a dataclass gets it
    "train": IMAGES
    | {"data", "workspace", "label", "backbone", "method", "option", "old_vectors", "flip"}
    | {"bad_images", "trust", "device", "as_json"},
    "upgrade": IMAGES
    | {"data", "workspace", "label", "backbone", "option", "trials"}
    | {"bad_images", "trust", "device", "as_json"},
    "check": {"version", "workspace", "data", "text", "name", "split", "label", "relevant"}
    | {"bridge", "device", "report", "history", "as_json"},
    "backfill": {"workspace", "text", "label", "plan_only", "device", "as_json"},
}
IN_WORDS = {("upgrade", "keep_images"): "yes"}  # True


def parameters(verb: str) -> dict[str, Any]:
    """The parameters of a command by name."""
    command: Any = get_command(app)
    return {one.name: one for one in command.commands[verb].params}


def owners(help_text: str, kinds: list[Any]) -> list[Any]:
    """The fields whose description an option shows; the command line may add to it."""
    return [
        field
        for kind in kinds
        for field in fields(kind)
        if "what" in field.metadata and help_text.startswith(field.metadata["what"])
    ]


@pytest.mark.parametrize("verb", KINDS)
def test_every_option_has_a_field_and_its_default(verb: str) -> None:
    without_field = set()
    for name, option in parameters(verb).items():
        found = owners(getattr(option, "help", None) or "", KINDS[verb])
        if not found:
            without_field.add(name)
            continue
        (field,) = found
        expected = IN_WORDS.get((verb, name), field.default)
        assert option.default in (expected, None), name  # None: as the method or the version says
    assert without_field == OWN[verb]


def test_every_described_field_is_an_option_of_a_command() -> None:
    offered = [
        getattr(option, "help", None) or ""
        for verb in KINDS
        for option in parameters(verb).values()
    ]
    for kind in {one for kinds in KINDS.values() for one in kinds}:
        for field in fields(kind):
            what = field.metadata.get("what")
            assert what is None or any(text.startswith(what) for text in offered), field.name


def test_an_option_without_a_field_is_seen() -> None:
    @dataclass
    class Pace:
        rate: float = described(2.0, "Items per second.")

    assert [field.name for field in owners("Items per second. Up to 5.", [Pace])] == ["rate"]
    assert not owners("Items per minute.", [Pace])


def test_options_made_of_words_have_the_default_of_their_field() -> None:
    shape = Preprocessing(size=(8, 8), mean=(0.5,) * 3, std=(0.5,) * 3)
    for name in ("fit", "crop_fraction", "interpolation"):
        assert getattr(ImageOptions(), name) == getattr(shape, name)
    assert parameters("train")["flip"].default == Augmentation().flip
    for name in ("bad_images", "device"):
        assert parameters("train")[name].default == getattr(Settings, name)
        assert parameters("upgrade")[name].default == getattr(UpgradeOptions, name)


@pytest.mark.parametrize(
    ("request_body", "kinds"),
    [
        (TrainRequest, [Recipe, Settings]),
        (UpgradeRequest, [Recipe, UpgradeOptions]),
        (CheckRequest, [GateRules, FitOptions]),
        (BackfillRequest, [BackfillOptions]),
    ],
)
def test_requests_have_the_defaults_of_the_fields(
    request_body: type[BaseModel], kinds: list[Any]
) -> None:
    defaults = {field.name: field.default for kind in kinds for field in fields(kind)}
    known = request_body.model_fields.keys() & defaults.keys()
    assert len(known) >= 4
    for name in known - {"data", "backbone"}:  # a name there, images or a network here
        assert request_body.model_fields[name].default in (defaults[name], None), name
