"""Random operations on a workspace, against a plain reference; see ``workspace_model``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import workspace_model
from workspace_model import MismatchError, run_model

from fixstar.gallery import Gallery, Item, copy_gallery
from fixstar.gallery.sqlite import SqliteGallery
from fixstar.gallery.store import Question
from fixstar.workspace.deployment import Move, Rollout
from fixstar.workspace.search import Serving

pytest.importorskip("faiss", reason="the index extra is not installed")


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))]
)
def test_a_workspace_does_what_the_reference_says(seed: int) -> None:
    counts = run_model(seed, 250)  # make fire runs thousands
    assert counts.total() == 250
    assert counts["killed"] > 2
    assert counts["refused"] > 2


@pytest.mark.long
def test_it_runs_from_the_command_line_with_several_threads() -> None:
    """As ``make fire`` runs it. Its second process embeds too, after a fork."""
    several = {**os.environ, "OMP_NUM_THREADS": "2"}
    command = [
        sys.executable,
        workspace_model.__file__,
        "--trace",
        "index.process.1 index.process.2 index.killed.3",
    ]
    done = subprocess.run(command, env=several, capture_output=True, text=True, timeout=600)
    assert "3 operations, no mismatch" in done.stdout, done.stderr


def loses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    delete = SqliteGallery._delete
    monkeypatch.setattr(
        SqliteGallery,
        "_delete",
        lambda self, names, revision: delete(self, names[:3], revision) + len(names[3:]),
    )


def forgets_the_last_move(monkeypatch: pytest.MonkeyPatch) -> None:
    def acknowledged(self: Rollout, moves: Any, move: Move) -> Move:
        return append(self, moves[:-1], move)

    append = Rollout._append
    monkeypatch.setattr(Rollout, "_append", acknowledged)


def changes_payloads_in_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def update(self: SqliteGallery, name: str, changed: Callable[[Item], str]) -> Item | None:
        item = self._get([name]).get(name)
        if item is None:
            return None
        text = changed(item)
        time.sleep(0.005)
        self._upsert(item.version, [name], item.vector[None], [text], None)
        return self._get([name])[name]

    monkeypatch.setattr(SqliteGallery, "_update_payload", update)


def moves_all_but_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(source: Gallery, target: Gallery) -> int:
        count = copy(source, target)
        target.delete([item.id for item in source.iterate()][-1:])
        return count

    copy = copy_gallery
    monkeypatch.setattr(workspace_model, "copy_gallery", copied)


def names_no_translations(monkeypatch: pytest.MonkeyPatch) -> None:
    def acknowledged(self: Rollout, moves: Any, move: Move) -> Move:
        return append(self, moves, replace(move, translations={}))

    append = Rollout._append
    monkeypatch.setattr(Rollout, "_append", acknowledged)


def weighs_the_wrong_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def question(*words: Any) -> Question:
        asked = ask(*words)
        return asked if asked.forward is None else replace(asked, weight=1 - asked.weight)

    ask = Serving._question
    monkeypatch.setattr(Serving, "_question", question)


@pytest.mark.parametrize(
    "break_it",
    [
        loses_one,
        *(
            pytest.param(fault, marks=pytest.mark.long)
            for fault in (
                forgets_the_last_move,
                changes_payloads_in_two_steps,
                names_no_translations,
                moves_all_but_the_last,
                weighs_the_wrong_way,
            )
        ),
    ],
)
def test_a_fault_is_found_and_shrunk(break_it: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)
    with pytest.raises(MismatchError, match="--trace") as caught:
        run_model(0, 250)
    found = re.search(r"--trace '(.*)'", str(caught.value))
    assert found is not None
    assert len(found[1].split()) <= 6
