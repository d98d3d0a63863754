"""Which version answers queries: one pointer, moved at once, with the history of its moves.

state/deployment.json    the moves, oldest first; the last one says what is deployed
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from fixstar.durable import WatchedFile, exclusive, replace_json
from fixstar.errors import DeploymentMovedError, GateError, InputError, ModelError
from fixstar.workspace.registry import Registry

__all__ = ["Move", "Rollout", "checked_reason"]

Kind = Literal["deploy", "rollback"]

_WAIT = 10.0  # seconds for another process that moves the pointer


@dataclass(frozen=True)
class Move:
    """One move of the pointer. ``reason`` is why it was moved without a passed check, if so; ``by`` who moved it."""

    version: str
    kind: Kind
    when: str
    reason: str | None = None
    by: str = ""


class Rollout:
    """The pointer of one workspace. Before its first move it stands on ``first``.

    Reading it costs one ``stat`` of a file, so every search may ask. Threads and processes may share it.
    """

    def __init__(self, path: Path, first: str = "v1") -> None:
        self._path, self._directory = path, path / "state"
        self._file = self._directory / "deployment.json"
        self._first = first
        self._moves: WatchedFile[tuple[Move, ...]] = WatchedFile(self._file, _parse, ())

    def current(self) -> str:
        """The version that is deployed."""
        return self._deployed(self.history())

    def history(self) -> tuple[Move, ...]:
        """All moves, oldest first."""
        return self._moves.content()

    def deploy(self, version: str, reason: str | None = None, by: str = "", deployed: str | None = None) -> Move:
        """Move the pointer to a version. ``deployed`` is where it must stand now, if that matters."""
        with self._locked():
            moves = self.history()
            self._require_deployed(deployed, moves)
            return self._append(moves, version, "deploy", reason, by)

    def rollback(
        self, reason: str | None = None, by: str = "", deployed: str | None = None, to: str | None = None
    ) -> Move:
        """Move the pointer back to where it stood before the last deployment that was not rolled back.

        ``deployed`` is where it must stand now, ``to`` where it must land, if that matters: else it is not moved.
        """
        with self._locked():
            moves = self.history()
            self._require_deployed(deployed, moves)
            previous = self._previous(moves)
            if to not in (None, previous):
                raise DeploymentMovedError(
                    f"a rollback from {self._stack(moves)[-1]} leads to {previous}, not to {to}; nothing was moved"
                )
            return self._append(moves, previous, "rollback", reason, by)

    def require_deployed(self, version: str | None) -> None:
        """Refuse if another version is deployed than the one named; None is any."""
        self._require_deployed(version, self.history())

    def left_by(self, move: Move) -> str:
        """The version that was deployed until a move of the history."""
        moves = self.history()
        return self._deployed(moves[: moves.index(move)])

    def previous(self) -> str | None:
        """Where a rollback would lead; None if there is nothing to go back to, or it was retired."""
        try:
            return self.require_previous()
        except InputError:
            return None

    def require_previous(self) -> str:
        """Where a rollback would lead, or an error that says why there is nothing to go back to."""
        return self._previous(self.history())

    def _deployed(self, moves: tuple[Move, ...]) -> str:
        return moves[-1].version if moves else self._first

    def _require_deployed(self, version: str | None, moves: tuple[Move, ...]) -> None:
        if version not in (None, now := self._deployed(moves)):
            raise DeploymentMovedError(f"{now} is deployed now, not {version}; nothing was moved")

    def _previous(self, moves: tuple[Move, ...]) -> str:
        stack = self._stack(moves)
        if len(stack) < 2:
            raise InputError(f"{stack[-1]} is the first version that was deployed; there is nothing to roll back to")
        if stack[-2] in Registry(self._path).retired():
            raise InputError(
                f"{stack[-2]}, which was deployed before {stack[-1]}, was retired: its weights are gone, so there is "
                "nothing to roll back to; deploy the version you want instead"
            )
        return stack[-2]

    def _stack(self, moves: tuple[Move, ...]) -> list[str]:
        """The deployments that were not rolled back, the current one last."""
        stack = [self._first]
        for move in moves:
            if move.kind == "rollback":
                stack.pop()
            else:
                stack.append(move.version)
        return stack

    def _append(self, moves: tuple[Move, ...], version: str, kind: Kind, reason: str | None, by: str) -> Move:
        move = Move(version, kind, datetime.now(UTC).isoformat(timespec="milliseconds"), reason, by)
        replace_json(self._file, {"format": "fixstar-deployment", "moves": [asdict(m) for m in (*moves, move)]})
        return move

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with exclusive(self._directory, wait=_WAIT):
                yield
        except BlockingIOError:
            raise InputError(
                f"another process has been moving the deployment in {self._directory} for {_WAIT:.0f} s; "
                "try again when it is done"
            ) from None


def _parse(file: Path) -> tuple[Move, ...]:
    try:
        return tuple(Move(**move) for move in json.loads(file.read_text(encoding="utf-8"))["moves"])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file} is damaged ({error}); restore it from a copy") from error


def checked_reason(force: str | None, what: str) -> str | None:
    """The reason to do without a passed check, if there is one; an empty one is refused."""
    if force is not None and not force.strip():
        raise GateError(f"{what} without a passed check needs a reason (force), and this one is empty")
    return force
