"""What searches meet is embedded again, as many items an hour as are allowed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from shops import pictures, shop

from fixstar.errors import InputError
from fixstar.gallery import Hit
from fixstar.workspace import Workspace, catalogue
from fixstar.workspace.backfill import read_through
from fixstar.workspace.backfill.read_through import ReadThrough


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Workspace]:
    """Nine items of v1; v2 is deployed."""
    with shop(tmp_path / "shop") as made:
        made.index(catalogue(pictures(tmp_path / "photos")))
        made.deploy("v2", force="to have old vectors")
        yield made


def noting(space: Workspace, per_hour: float = 36_000) -> ReadThrough:
    made = ReadThrough(space.serving, per_hour)
    space.serving.read_through = made
    return made


def test_what_a_search_meets_is_embedded_by_the_deployed_version(
    space: Workspace, tmp_path: Path
) -> None:
    reading = noting(space)
    query = tmp_path / "photos" / "hat" / "1.png"
    before = space.search([query], k=2)
    assert len(before.hits[0]) == 2
    assert len(reading) == 9  # all are among the best 50
    assert reading.work() == 9
    assert space.gallery.count() == {"v1": 0, "v2": 9}
    assert len(reading) == 0
    expected = space.encoder("v2").encode([query], form="short")[0]
    np.testing.assert_allclose(
        space.gallery.get(["hat/1.png"])["hat/1.png"].vector, expected, atol=1e-5
    )
    assert space.search([query], k=1).hits[0][0].id == "hat/1.png"
    assert len(reading) == 0  # nothing old is left to meet


def test_without_it_nothing_is_noted_and_as_many_items_are_found(
    space: Workspace, tmp_path: Path
) -> None:
    query = tmp_path / "photos" / "hat" / "1.png"
    plain = space.search([query], k=3)
    noting(space)
    assert space.search([query], k=3).hits == plain.hits


def test_only_the_best_fifty_count_and_a_search_by_another_version_does_not(
    space: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fixstar.workspace.search.DEPTH", 4)
    reading = noting(space)
    query = tmp_path / "photos" / "hat" / "1.png"
    vectors = space.encoder("v1").encode([query], form="short")
    space.serving.search_vectors("v1", vectors, k=2)
    assert len(reading) == 0
    space.search([query], k=2)
    assert len(reading) == 4


def test_an_hour_has_so_many_items(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("fixstar.workspace.backfill.read_through.time.monotonic", lambda: now[0])
    reading = ReadThrough(space.serving, per_hour=120)  # a burst of two
    items = list(space.gallery.iterate())
    reading.met([Hit(item.id, 1.0, item.version, {}) for item in items], "v2")
    assert reading.work() == 2
    assert reading.work() == 0
    now[0] += 30  # one more is due
    assert reading.work() == 1
    now[0] += 3600  # what was not used is not saved up
    assert reading.work() == 2


def test_those_met_last_come_first_and_the_oldest_make_room(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_through, "MOST_WAITING", 3)
    reading = ReadThrough(space.serving, per_hour=60)
    for name in ("bag/0.png", "hat/0.png", "shoe/0.png", "bag/1.png"):
        reading.met([Hit(name, 1.0, "v1", {})], "v2")
    assert len(reading) == 3
    assert reading.work() == 1
    assert space.gallery.get(["bag/1.png"])["bag/1.png"].version == "v2"


def test_what_is_gone_changed_or_newer_stays_as_it_is(space: Workspace, tmp_path: Path) -> None:
    reading = noting(space)
    space.search([tmp_path / "photos" / "hat" / "1.png"], k=2)
    (tmp_path / "photos" / "hat" / "0.png").unlink()
    space.gallery.delete(["hat/2.png"])
    assert reading.work() == 7
    assert space.gallery.count() == {"v1": 1, "v2": 7}
    space.rollback()
    reading.met([Hit(item.id, 1.0, item.version, {}) for item in space.gallery.iterate()], "v1")
    assert reading.work() == 0  # vectors of a newer version are never replaced by an older one
    assert space.gallery.count() == {"v1": 1, "v2": 7}


def test_nothing_is_written_once_another_version_is_deployed(
    space: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fixstar.workspace.items import LocalEmbedder

    reading = noting(space)
    space.search([tmp_path / "photos" / "hat" / "1.png"], k=2)
    usual = LocalEmbedder.one

    def slow(self: LocalEmbedder, *args: object, **options: object) -> object:
        made = usual(self, *args, **options)  # type: ignore[arg-type]
        Workspace(space.path).rollback()
        return made

    monkeypatch.setattr(LocalEmbedder, "one", slow)
    assert reading.work() == 0
    assert space.gallery.count()["v1"] == 9


def test_a_rate_is_above_nothing(space: Workspace) -> None:
    with pytest.raises(InputError, match="more than 0 items"):
        ReadThrough(space.serving, 0)
