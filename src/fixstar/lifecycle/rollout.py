"""Which version answers queries: one pointer, moved at once, with the history of its moves.

state/deployment.json    the moves, oldest first; the last one says what is deployed
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from fixstar.durable import WatchedFile, exclusive, replace_json
from fixstar.errors import InputError, ModelError

__all__ = ["Move", "Rollout"]

Kind = Literal["deploy", "rollback"]

_WAIT = 10.0  # seconds for another process that moves the pointer


@dataclass(frozen=True)
class Move:
    """One move of the pointer. ``reason`` is why a check was passed over, where one was; ``by`` who moved it."""

    version: str
    kind: Kind
    when: str
    reason: str | None = None
    by: str = ""


class Rollout:
    """The pointer of one workspace. Before its first move it stands on ``first``.

    Reading it costs one look at the file's stamp, so every search may ask. Threads and processes may share it.
    """

    def __init__(self, path: Path, first: str = "v1") -> None:
        self._directory = path / "state"
        self._file = self._directory / "deployment.json"
        self._first = first
        self._moves: WatchedFile[tuple[Move, ...]] = WatchedFile(self._file, _parsed, ())

    def current(self) -> str:
        """The version that is deployed."""
        moves = self.history()
        return moves[-1].version if moves else self._first

    def history(self) -> tuple[Move, ...]:
        """All moves, oldest first."""
        return self._moves.content()

    def deploy(self, version: str, reason: str | None = None, by: str = "") -> Move:
        """Move the pointer to a version."""
        return self._move(lambda _: (version, "deploy"), reason, by)

    def rollback(self, reason: str | None = None, by: str = "") -> Move:
        """Move the pointer back to where it stood before the last deployment that was not rolled back."""
        return self._move(self._before, reason, by)

    def before(self) -> str | None:
        """Where a rollback would lead; None where there is nothing to go back to."""
        stood = self._stood(self.history())
        return stood[-2] if len(stood) > 1 else None

    def _before(self, moves: tuple[Move, ...]) -> tuple[str, Kind]:
        stood = self._stood(moves)
        if len(stood) < 2:
            raise InputError(f"{stood[-1]} is the first version that was deployed; there is nothing to roll back to")
        return stood[-2], "rollback"

    def _stood(self, moves: tuple[Move, ...]) -> list[str]:
        """Where the pointer stands, with where it stood before: a rollback takes the last deployment back."""
        stood = [self._first]
        for move in moves:
            if move.kind == "rollback":
                stood.pop()
            else:
                stood.append(move.version)
        return stood

    def _move(self, target: Callable[[tuple[Move, ...]], tuple[str, Kind]], reason: str | None, by: str) -> Move:
        with self._alone():
            moves = self.history()
            version, kind = target(moves)
            move = Move(version, kind, datetime.now(UTC).isoformat(timespec="milliseconds"), reason, by)
            replace_json(self._file, {"format": "fixstar-deployment", "moves": [asdict(m) for m in (*moves, move)]})
        return move

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            with exclusive(self._directory, wait=_WAIT):
                yield
        except BlockingIOError:
            raise InputError(
                f"another process has been moving the deployment in {self._directory} for {_WAIT:.0f} s; "
                "see what it does, then run again"
            ) from None


def _parsed(file: Path) -> tuple[Move, ...]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return tuple(Move(**move) for move in content["moves"])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file} is damaged ({error}); restore it from a copy") from error
