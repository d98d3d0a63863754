"""Every check is kept, and one with less evidence never replaces one with more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from shops import shop

from fixstar.errors import GateError
from fixstar.workspace import Check
from fixstar.workspace.checks import (
    CheckedCell,
    Outcome,
    check_history,
    checks_on_one_set,
    is_weaker,
    last_check,
    save_check,
)


def made(
    outcome: Outcome = "pass",
    queries: int = 1000,
    classes: int = 100,
    tolerance: float = 0.0,
    confidence: float = 0.95,
    against: tuple[str, ...] = ("v1",),
    source: str = "given",
) -> Check:
    cells = tuple(
        CheckedCell(name, 0.5, 0.6, 0.05, 0.15, "compatible", 40, 2, 12) for name in against
    )
    data = {"name": "photos", "source": source, "images": 2 * queries, "classes": classes}
    return Check("v2", outcome, ("why",), cells, 0.7, queries, queries, confidence, tolerance, data)


@pytest.mark.parametrize(
    ("earlier", "later", "stays"),
    [
        (made(), made("missing evidence", 30, 10), True),  # a bare check on few held-out images
        (made(), made("missing evidence", 30, 200), True),  # of however many classes
        (made("refuse"), made("pass", 30, 10), True),  # nor does luck on few images undo a refusal
        (made("missing evidence"), made("pass", 30, 10), True),
        (made("pass", 30, 10), made("missing evidence"), False),  # more evidence replaces a verdict
        (made("pass", 30, 10), made("refuse"), False),
        (
            made("missing evidence"),
            made("pass", tolerance=0.02),
            False,
        ),  # the same images, a loss accepted
        (
            made("pass", tolerance=0.02),
            made("missing evidence"),
            True,
        ),  # which a bare check does not take back
        (made("pass", tolerance=0.02), made("refuse"), False),  # a refusal does
        (
            made("pass", tolerance=0.02),
            made("refuse", 900),
            False,
        ),  # the earlier one asked an easier question
        (made("pass", confidence=0.5), made("refuse", 900), False),
        (made("refuse"), made("pass", 900, tolerance=0.3), True),
        (made(), made("refuse", 900, 200), True),  # more classes do not make up for fewer queries
        (made(), made("refuse", 1000, 200), False),  # as many queries of more classes
        (made(), made("refuse", 900, against=("v1", "v3")), False),  # it judged another gallery too
        (made("pass", against=("v1", "v3")), made("refuse", 900), True),
        (made(), made("missing evidence", 0, 0, against=()), True),  # no images at all
        (made("refuse"), made("pass", 30, 10, against=()), False),  # v1's vectors are gone
        (made("refuse", against=("v1", "v3")), made("pass", 900), False),  # v3's vectors are gone
        (
            made(against=()),
            made("pass", 30, 10, against=()),
            True,
        ),  # of a first version, which has no other to beat
        (made("pass", 30, 10, against=()), made(against=()), False),
        (made(source="held out"), made("refuse"), False),  # held-out and given images count alike
    ],
)
def test_which_of_two_checks_counts(
    tmp_path: Path, earlier: Check, later: Check, stays: bool
) -> None:
    assert is_weaker(later, earlier, later.against) == stays
    save_check(tmp_path, earlier)
    save_check(tmp_path, later)
    assert last_check(tmp_path, "v2") == (earlier if stays else later)
    assert check_history(tmp_path, "v2") == [earlier, later]


def test_a_damaged_file_hides_no_other_check_and_blocks_no_new_one(tmp_path: Path) -> None:
    for queries in (10, 20, 30):
        save_check(tmp_path, made(queries=queries))
    second = sorted((tmp_path / "checks" / "v2").glob("check-*.json"))[1]
    second.write_text("{")
    assert [check.queries for check in check_history(tmp_path, "v2")] == [10, 30]
    (tmp_path / "checks" / "v2.json").write_text("{")
    save_check(tmp_path, made(queries=5))
    assert last_check(tmp_path, "v2") == made(queries=5)


def test_a_deployment_rests_on_the_strongest_check_that_judged_what_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop(tmp_path / "shop", versions=3) as space:
        searched = ["v1"]
        monkeypatch.setattr(space, "versions_to_check", lambda _: list(searched))
        save_check(space.path, made())
        save_check(space.path, made("missing evidence", 30, 10))
        save_check(space.path, made("refuse", 500, against=("v1", "v3")))
        searched.append("v3")
        with pytest.raises(GateError, match=r"refuse \(500 queries, photos\)") as refused:
            space.deploy("v2")
        assert refused.value.next_steps[-1].action == "deploy"
        save_check(space.path, made("refuse", 5000, against=("v1", "v3")))
        searched.remove("v3")  # its vectors were deleted: the first check covers all that is left
        assert space.deploy("v2").version == "v2"
        assert [check.outcome for check in space.check_history("v2")] == [
            "pass",
            "missing evidence",
            "refuse",
            "refuse",
        ]


def test_vectors_that_no_check_has_seen_block_a_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop(tmp_path / "shop", versions=3) as space:
        monkeypatch.setattr(space, "versions_to_check", lambda _: ["v1", "v3"])
        save_check(space.path, made())
        with pytest.raises(GateError, match="before vectors of v3"):
            space.deploy("v2")
        save_check(space.path, replace(made(against=("v1", "v3")), reasons=()))
        assert space.deploy("v2").version == "v2"


def test_figures_that_stand_side_by_side_are_of_one_set_of_images(tmp_path: Path) -> None:
    def on(images: str, version: str, day: int, queries: int = 1000) -> Check:
        data = {"name": images, "source": "given", "fingerprint": images}
        return replace(made(queries=queries), version=version, data=data, when=f"2026-01-{day:02}")

    assert checks_on_one_set(tmp_path, ["v2", "v3"]) == []
    for check in (on("spring", "v2", 1, 100), on("autumn", "v2", 2), on("autumn", "v3", 3)):
        save_check(tmp_path, check)
    assert checks_on_one_set(tmp_path, ["v1", "v2", "v3"]) == [
        on("autumn", "v3", 3),
        on("autumn", "v2", 2),
    ]
    save_check(
        tmp_path, on("spring", "v3", 4, 2000)
    )  # v2's check that counts is of other images: an earlier is shown
    assert checks_on_one_set(tmp_path, ["v1", "v2", "v3"]) == [
        on("spring", "v3", 4, 2000),
        on("spring", "v2", 1, 100),
    ]
    empty = replace(
        on("none", "v3", 5), self_test=None, outcome="missing evidence", queries=0, cells=()
    )
    save_check(tmp_path, empty)
    assert checks_on_one_set(tmp_path, ["v2"]) == [on("autumn", "v2", 2)]
