"""The plan of a backfill on disk, so that it goes on after a kill.

state/backfill/plan.jsonl     what it is, then one id a line in the order of work; whole or absent, never rewritten
state/backfill/cursor.json    how many of the ids have been dealt with, and how; may be behind, never ahead
state/backfill/kept.jsonl     items that keep their old vector, and why
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from fixstar.durable import replace_file, replace_json
from fixstar.errors import CheckpointError, InputError

__all__ = ["BUDGETS", "BackfillPlan", "KeptItem", "PlanFiles", "budget_items"]

BUDGETS = (
    'a budget is a share such as "10%" (above 0%, up to 100%), a number of items such as "5000" (1 or more), or "all"'
)

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")


class KeptItem(NamedTuple):
    """An item that keeps its old vector."""

    id: str
    reason: str


@dataclass(frozen=True)
class BackfillPlan:
    """What is re-embedded: ``ids`` in order, with the version ``target``. ``old`` items had older vectors by then.

    ``without_image`` of them were passed over: their turn had come, and no image of theirs could be found.
    """

    target: str
    order: str
    budget: str
    old: int
    ids: tuple[str, ...]
    token: str
    when: str
    without_image: int = 0

    @classmethod
    def made(
        cls, target: str, order: str, budget: str, old: int, ids: Sequence[str], without_image: int = 0
    ) -> BackfillPlan:
        """A new plan."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(target, order, budget, old, tuple(ids), uuid.uuid4().hex, now, without_image)


def budget_items(budget: str, total: int) -> int:
    """How many of ``total`` items a budget means: a share, a number, or all.

    >>> budget_items("10%", 205), budget_items("50", 205), budget_items("500", 205), budget_items("all", 205)
    (21, 50, 205, 205)
    """
    text = budget.strip().lower()
    if text == "all":
        return total
    if (match := _PERCENT.fullmatch(text)) and 0 < float(match[1]) <= 100:
        return min(total, -int(-total * float(match[1]) // 100))
    if text.isdecimal() and int(text):
        return min(total, int(text))
    raise InputError(f"{BUDGETS}; got {budget!r}")


class PlanFiles:
    """The files of one workspace's backfill."""

    def __init__(self, workspace: Path) -> None:
        self.directory = workspace / "state" / "backfill"
        self._plan, self._cursor, self._kept = (
            self.directory / name for name in ("plan.jsonl", "cursor.json", "kept.jsonl")
        )

    def save(self, plan: BackfillPlan) -> None:
        """Put a plan in the place of the one before. Cursor and list of the old one no longer count."""
        head = {"format": "fixstar-backfill", **asdict(plan)}
        head.pop("ids")
        lines = [json.dumps(head, ensure_ascii=False), *(json.dumps(name, ensure_ascii=False) for name in plan.ids)]
        text = "\n".join(lines) + "\n"
        replace_file(self._plan, lambda partial: partial.write_text(text, encoding="utf-8", newline="\n"))

    def plan(self) -> BackfillPlan | None:
        """The plan that is there, if any."""
        if not self._plan.is_file():
            return None
        try:
            with self._plan.open(encoding="utf-8", newline="\n") as lines:
                head = json.loads(next(lines))
                head.pop("format")
                return BackfillPlan(**head, ids=tuple(json.loads(line) for line in lines))
        except (ValueError, KeyError, TypeError, StopIteration) as error:
            raise CheckpointError(
                f"{self._plan} is damaged ({error}); delete it and plan again: what was re-embedded stays so"
            ) from error

    def position(self, plan: BackfillPlan) -> int:
        """How many ids of the plan have been dealt with, at least."""
        try:
            cursor = json.loads(self._cursor.read_text(encoding="utf-8"))
            return int(cursor["position"]) if cursor["token"] == plan.token else 0
        except (OSError, ValueError, KeyError, TypeError):
            return 0  # the gallery knows what is done; looking through the plan again costs little

    def counts(self, plan: BackfillPlan) -> dict[str, int]:
        """What became of those, over all calls; empty where nothing is known, as after an older release."""
        try:
            cursor = json.loads(self._cursor.read_text(encoding="utf-8"))
            return dict(cursor["counts"]) if cursor["token"] == plan.token else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def move(self, plan: BackfillPlan, position: int, counts: Mapping[str, int]) -> None:
        """Note that the first ``position`` ids have been dealt with, and what became of them."""
        replace_json(self._cursor, {"token": plan.token, "position": position, "counts": dict(counts)})

    def keep(self, plan: BackfillPlan, kept: Sequence[KeptItem]) -> None:
        """Note items that keep their old vector."""
        if kept:
            rows = [json.dumps([plan.token, *item], ensure_ascii=False) for item in kept]
            with self._kept.open("a", encoding="utf-8", newline="\n") as file:
                file.write("\n" + "\n".join(rows) + "\n")  # after a line that a kill cut off, a new one begins

    def kept(self, plan: BackfillPlan) -> list[KeptItem]:
        """The items of a plan that kept their old vector, each once."""
        if not self._kept.is_file():
            return []
        found: dict[str, KeptItem] = {}
        for line in self._kept.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                token, name, reason = json.loads(line)
            except ValueError:  # empty, or cut off
                continue
            if token == plan.token:
                found[name] = KeptItem(name, reason)
        return list(found.values())
