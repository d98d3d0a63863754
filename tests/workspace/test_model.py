"""Random operations on a workspace, against a plain reference; see ``workspace_model``."""

from __future__ import annotations

import re
from typing import Any

import pytest
from workspace_model import MismatchError, run_model

from fixstar.gallery.sqlite import SqliteGallery
from fixstar.workspace.deployment import Move, Rollout


@pytest.mark.parametrize("seed", range(6))
def test_a_workspace_does_what_the_reference_says(seed: int) -> None:
    counts = run_model(seed, 250)  # make fire runs thousands
    assert counts.total() == 250
    assert counts["killed"] > 2
    assert counts["refused"] > 2


def loses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    delete = SqliteGallery._delete
    monkeypatch.setattr(SqliteGallery, "_delete", lambda self, names: delete(self, names[:3]) + len(names[3:]))


def forgets_the_last_move(monkeypatch: pytest.MonkeyPatch) -> None:
    def acknowledged(self: Rollout, moves: Any, move: Move) -> Move:
        return append(self, moves[:-1], move)

    append = Rollout._append
    monkeypatch.setattr(Rollout, "_append", acknowledged)


@pytest.mark.parametrize("break_it", [loses_one, forgets_the_last_move])
def test_a_fault_is_found_and_shrunk(break_it: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)
    with pytest.raises(MismatchError, match="--trace") as caught:
        run_model(0, 250)
    found = re.search(r"--trace '(.*)'", str(caught.value))
    assert found is not None
    assert len(found[1].split()) <= 6
