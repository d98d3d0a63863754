"""The registry's answers about names and folders: which versions are newer, and where a card is after a retirement."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixstar.errors import InputError
from fixstar.versions import version_number
from fixstar.workspace.registry import Registry


def test_versions_are_ordered_by_number_and_other_names_are_refused() -> None:
    assert sorted(["v10", "v2", "v1"], key=version_number) == ["v1", "v2", "v10"]
    for name in ("clip", "clip@v1", "v", "1", "v1 ", "v²", "v-1"):
        with pytest.raises(InputError):
            version_number(name)


def test_a_card_stays_where_the_registry_says_when_its_version_is_retired(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    kept = registry.directory("v1")
    assert registry.card_file("v1") == kept / "card.json"
    assert not registry.is_retired("v1")

    kept.mkdir(parents=True)
    registry.directory("v2").mkdir()
    registry.files.retired.mkdir()
    (registry.files.retired / "v1.json").write_text("{}")
    assert registry.is_retired("v1")
    assert registry.card_file("v1") == tmp_path / "retired" / "v1.json"
    assert registry.directories() == [
        registry.directory("v2")
    ]  # v1 is what a killed retirement left behind
