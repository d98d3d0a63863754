"""Vectors of a model that nobody connected with the query's are not searched; those that somebody did are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shops import CLASSES, passed, pictures, shop
from typed import typed
from wording import check_wording

from fixstar.gallery import VersionSpace
from fixstar.geometry import unit
from fixstar.methods import create_method
from fixstar.models import Encoder
from fixstar.workspace import Check, Workspace, catalogue
from fixstar.workspace.checks import save_check
from fixstar.workspace.registry import Registry
from fixstar.workspace.translations import OWN_SPACE, sharing_space

FOREIGN = 300


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return pictures(tmp_path / "photos")


@pytest.fixture
def space(tmp_path: Path, photos: Path) -> Iterator[Workspace]:
    with shop(tmp_path / "shop") as space:
        space.index(catalogue(photos))
        yield space


def imported(space: Workspace, name: str, width: int, seed: int = 0) -> None:
    """Vectors whose first components are large, so that a comparison of these alone finds them first."""
    rows = (
        np.random.default_rng(seed).standard_normal((FOREIGN, width))
        / np.arange(1, width + 1) ** 1.5
    )
    space.gallery.create_version(name, width)
    space.gallery.upsert(
        name, [f"{name}/{i}" for i in range(FOREIGN)], unit(rows).astype(np.float32)
    )


@pytest.mark.parametrize("width", [7, 40])  # v1's is 7
def test_foreign_vectors_are_left_out_whatever_their_width(
    space: Workspace, photos: Path, width: int
) -> None:
    queries = [photos / name / "1.png" for name in CLASSES]
    before = space.search(queries, k=5)
    imported(space, "old-system", width)
    answer = space.search(queries, k=5)
    assert (answer.hits, answer.left_out) == (before.hits, ("old-system",))
    assert before.left_out == ()
    mine = space.serving.search_vectors(
        "old-system", space.gallery.get(["old-system/3"])["old-system/3"].vector[None]
    )
    assert (mine.hits[0][0].id, {hit.version for hit in mine.hits[0]}) == (
        "old-system/3",
        {"old-system"},
    )
    assert mine.left_out == ("v1",)
    space.gallery.delete([f"old-system/{i}" for i in range(FOREIGN)])
    assert space.search(queries, k=5).left_out == ()


def test_an_item_of_a_model_that_nothing_connects_finds_items_of_that_model(
    space: Workspace,
) -> None:
    imported(space, "old-system", 40)
    answer = space.like("old-system/0", k=5)
    assert {hit.version for hit in answer.hits[0]} == {"old-system"}
    assert answer.left_out == ("v1",)
    assert space.like("hat/1.png", k=2).left_out == ("old-system",)


def test_vectors_said_to_lie_in_a_version_s_space_are_searched(
    space: Workspace, photos: Path
) -> None:
    (item,) = [item for item in space.gallery.iterate("v1") if item.id == "hat/1.png"]
    for name in ("elsewhere@v1", "elsewhere@v9", "elsewhere@v1x"):
        space.gallery.create_version(name, 7)
        space.gallery.upsert(name, [f"{name}/hat"], item.vector[None])
    space.gallery.create_version("wide@v1", 9)
    space.gallery.upsert("wide@v1", ["w"], np.eye(1, 9))
    for version in ("v1", "v2"):
        space.serving.encoder(version)  # the gallery has room for it then
        answer = space.serving.search_vectors(version, item.vector[None], k=50)
        assert {hit.version for hit in answer.hits[0]} == {"v1", "elsewhere@v1"}
        assert set(answer.left_out) == {"elsewhere@v9", "elsewhere@v1x", "wide@v1"}
    assert space.like("elsewhere@v1/hat", k=1).hits[0][0].id == "hat/1.png"
    assert space.search([photos / "hat" / "1.png"], k=2).hits[0][0].score == pytest.approx(
        1, abs=1e-5
    )


def test_vectors_of_the_same_model_come_back_under_their_own_name(
    space: Workspace, tmp_path: Path
) -> None:
    """What one workspace exports, another one with the same model imports: no translation is asked for."""
    file = tmp_path / "v1.npz"
    typed("gallery", "export", "v1", file, "-w", space.path)
    space.gallery.delete([item.id for item in list(space.gallery.iterate("v1"))][:4])
    assert typed("gallery", "import", file, "--as", "v1", "-w", space.path).code == 0
    answer = space.like("hat/1.png", k=50)
    assert (len(answer.hits[0]), answer.left_out) == (8, ())


def card(**about: Any) -> dict[str, Any]:
    return {"version": "v1", "parent": None, "method": {"name": "hoc", "options": {}}, **about}


@pytest.mark.parametrize(
    ("about", "met"),
    [
        (card(), set()),
        (card(old_vectors_width=5), {"narrow"}),
        (card(old_vectors_width=5, method={"name": "bct-vectors", "options": {}}), {"narrow"}),
        (
            card(method={"name": "bct-vectors", "options": {}}, parent="v1"),
            set(),
        ),  # agrees with its parent
    ],
)
def test_old_vectors_that_a_version_was_trained_to_agree_with_are_met(
    tmp_path: Path, about: dict[str, Any], met: set[str]
) -> None:
    encoder = Encoder.create("tiny", classes=list(CLASSES), capacity=8)
    encoder.about = about
    encoder.save(tmp_path / "versions" / "v1")
    encoder.about = card(version="v2", parent="v1")
    encoder.save(tmp_path / "versions" / "v2")
    spaces = [
        VersionSpace("narrow", 5, 5),
        VersionSpace("narrower", 4, 4),
        *(VersionSpace(f"v{n}", 7, 7) for n in (1, 2)),
    ]
    registry = Registry(tmp_path)
    for version in ("v1", "v2"):
        assert sharing_space(registry, version, spaces) == {"v1", "v2"} | met
    for name in met:
        assert sharing_space(registry, name, spaces) == {name, "v1", "v2"}


def test_versions_of_other_widths_are_met_only_where_one_has_grown_from_the_other(
    tmp_path: Path,
) -> None:
    grown = {"classifier_options": {"added": (4,)}}
    options: dict[str, dict[str, Any]] = {
        "v1": {"capacity": 8},
        "v2": {"capacity": 8, **grown},
        "v3": {"capacity": 11},
    }
    made = {name: Encoder.create("tiny", classes=["a"], **given) for name, given in options.items()}
    for name, encoder in made.items():
        encoder.save(tmp_path / "versions" / name)
    spaces = [VersionSpace(name, 7, made[name].feature_dim) for name in ("v1", "v2", "v3")]
    assert [space.full_width for space in spaces] == [7, 10, 10]
    registry = Registry(tmp_path)
    assert sharing_space(registry, "v1", spaces) == {"v1", "v2"}
    assert sharing_space(registry, "v2", spaces) == {
        "v1",
        "v2",
        "v3",
    }
    assert sharing_space(registry, "v3", spaces) == {"v2", "v3"}
    assert sharing_space(registry, "v1", spaces[:1]) == {"v1"}  # another gallery, another answer


def test_bct_holds_the_first_components_of_any_width_together(tmp_path: Path) -> None:
    """v3 is narrower than v4 and all before: v4's other components were held to v3 alone, which lacks them."""
    trained = {
        "v1": (64, "itm"),
        "v2": (96, "bct"),
        "v3": (32, "bct-er"),
        "v4": (80, "bct"),
        "v5": (40, "er"),  # holds them to nothing
    }
    for number, (name, (width, method)) in enumerate(trained.items()):
        encoder = Encoder.create(
            "tiny", "linear", classes=["a"], backbone_options={"feature_dim": width}
        )
        parent = f"v{number}" if number else None
        made = create_method(method)
        about = {"name": method, "options": {}, "shared_components": made.shared_components}
        encoder.about = card(version=name, parent=parent, method=about)
        encoder.save(tmp_path / "versions" / name)
    spaces = [VersionSpace(name, width, width) for name, (width, _) in trained.items()]
    registry = Registry(tmp_path)
    assert sharing_space(registry, "v1", spaces) == {"v1", "v2", "v3"}
    assert sharing_space(registry, "v2", spaces) == {"v1", "v2", "v3"}
    assert sharing_space(registry, "v3", spaces) == {"v1", "v2", "v3", "v4"}
    assert sharing_space(registry, "v4", spaces) == {"v3", "v4"}
    assert sharing_space(registry, "v5", spaces) == {"v5"}


def test_a_version_that_was_trained_freely_begins_a_space_of_its_own(tmp_path: Path) -> None:
    encoder = Encoder.create("tiny", classes=list(CLASSES), capacity=8)
    for number in range(1, 5):
        parent = f"v{number - 1}" if number > 1 else None
        encoder.about = card(version=f"v{number}", parent=parent)
        if number == 3:
            encoder.about[OWN_SPACE] = True
        encoder.save(tmp_path / "versions" / f"v{number}")
    spaces = [VersionSpace(f"v{n}", 7, 7) for n in range(1, 5)]
    registry = Registry(tmp_path)
    assert sharing_space(registry, "v2", spaces) == {"v1", "v2"}
    assert sharing_space(registry, "v3", spaces) == {"v3", "v4"}  # v4 was held to v3
    assert sharing_space(registry, "v4", spaces) == {"v3", "v4"}


def test_calibrations_are_used_beside_vectors_that_are_not_searched(
    space: Workspace, photos: Path
) -> None:
    passed(space, "v2", "v1")
    space.deploy("v2")
    space.index(catalogue(photos / "hat", prefix="new/"))
    pairs = {"v1": (5.0, -4.0), "v2": (5.0, -3.0)}
    save_check(
        space.path, Check("v2", "pass", (), (), 0.5, 100, 100, 0.95, 0.0, calibrations=pairs)
    )
    imported(space, "old-system", 7)
    answer = space.search([photos / "hat" / "1.png"], k=500)
    assert (answer.calibrated, answer.left_out, len(answer.hits[0])) == (True, ("old-system",), 12)


def test_the_command_line_says_what_makes_them_searchable(space: Workspace, photos: Path) -> None:
    imported(space, "old-system", 40)
    found = typed("search", photos / "hat" / "1.png", "-w", space.path)
    assert found.code == 0
    assert f"Next: fixstar check v1 -w {space.path}" in found.err
    assert "old-system@v1" in found.err
    checked = typed("check", "v2", "--data", photos, "-w", space.path, "--json").json
    (told,) = [reason for reason in checked["reasons"] if "old-system" in reason]
    check_wording(told)
    assert any("pairs" in step["arguments"] for step in checked["next_steps"])
    moved = typed("deploy", "v2", "--force", "a trial", "-w", space.path).out
    check_wording(moved)
    assert f"Not searched: {FOREIGN} vectors of old-system" in moved


@pytest.mark.usefixtures("space")
def test_what_was_asked_with_is_not_counted_as_found(tmp_path: Path) -> None:
    with Workspace(tmp_path / "shop", "cpu", record_usage=True) as counting:
        ((first, _),) = counting.like("hat/1.png", k=2).hits
        assert counting.usage is not None
        assert counting.usage.counts() == {first.id: 1}
        assert first.id != "hat/1.png"
