"""Which version answers queries, and with which translations: one pointer, moved atomically, with its history.

state/deployment.json    the moves, oldest first; the last one says what is deployed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from fixstar.durable import WatchedFile, document, exclusive, parse_document, replace_json
from fixstar.errors import DeploymentMovedError, GateError, InputError, ModelError
from fixstar.versions import version_name
from fixstar.workspace.registry import Registry

Kind = Literal["deploy", "rollback", "translate"]

_WAIT = 10.0  # seconds to wait for another process that moves the pointer


@dataclass(frozen=True)
class Move:
    """One move of the pointer: who made it, and the reason if there was no passed check.

    ``translations`` holds file names by gallery version; ``calibrations`` holds the slope and offset of the scores, by
    gallery version.
    """

    version: str
    kind: Kind
    when: str
    reason: str | None = None
    by: str = ""
    translations: Mapping[str, str] = field(default_factory=dict)
    calibrations: Mapping[str, tuple[float, float]] = field(default_factory=dict)


class Rollout:
    """The pointer of one workspace. A read costs one ``stat``; threads may share it.

    Before any move it points to the first version: v1, or the next one if v1 was dropped before anything was stored.
    """

    def __init__(self, path: Path) -> None:
        self._registry = Registry(path)
        self._directory = path / "state"
        self._file = self._directory / "deployment.json"
        self._start = Move(version_name(1), "deploy", "")
        self._first = self._start
        self._moves: WatchedFile[tuple[Move, ...]] = WatchedFile(self._file, _parse, ())

    def current(self) -> str:
        """The version that is deployed."""
        return self.current_move().version

    def current_move(self) -> Move:
        """The deployed version and its translations: the last move."""
        return (self.history() or (self._first_move(),))[-1]

    def _first_move(self) -> Move:
        """The state before any move: the same object as long as the version is the same."""
        number = 1
        while self._registry.is_retired(version_name(number)):
            number += 1
        name = version_name(number)
        if self._first.version != name:
            self._first = Move(name, "deploy", "")
        return self._first

    def history(self) -> tuple[Move, ...]:
        """All moves, oldest first."""
        return self._moves.content()

    def deploy(
        self,
        version: str,
        reason: str | None = None,
        by: str = "",
        deployed: str | None = None,
        translations: Mapping[str, str] | None = None,
        calibrations: Mapping[str, tuple[float, float]] | None = None,
        models: Sequence[str] = (),
    ) -> Move:
        """Move the pointer to a version. If ``deployed`` is given, it must be the current version; see ``Move``.

        ``models`` are older versions that also embed queries: their weights must exist.
        """
        with self.moving():
            self.require_deployed(deployed)
            retired = self._registry.retired()
            gone = [name for name in (version, *models) if name in retired]
            if gone:
                raise ModelError(f"{gone[0]} was retired: its weights are gone; nothing was moved")
            move = Move(
                version=version,
                kind="deploy",
                when="",
                reason=reason,
                by=by,
                translations=dict(translations or {}),
                calibrations=dict(calibrations or {}),
            )
            return self._append(self.history(), move)

    def retranslate(self, move: Move, translations: Mapping[str, str]) -> Move | None:
        """Replace translations of the deployed version; None if another version has been deployed since.

        Removes the calibrations of replaced translations, which no longer apply.
        """
        with self.moving():
            if self.current_move() != move:
                return None
            changed = {
                name for name, file in translations.items() if move.translations.get(name) != file
            }
            kept = {} if changed else dict(move.calibrations)
            files = {**move.translations, **translations}
            return self._append(
                self.history(),
                replace(move, kind="translate", translations=files, calibrations=kept),
            )

    def rollback(
        self,
        reason: str | None = None,
        by: str = "",
        deployed: str | None = None,
        to: str | None = None,
    ) -> Move:
        """Undo the last deployment; if given, only from ``deployed`` and only to ``to``."""
        with self.moving():
            self.require_deployed(deployed)
            previous = self.previous_move()
            if to not in (None, previous.version):
                raise DeploymentMovedError(
                    f"a rollback from {self.current()} leads to {previous.version}, not to {to}; nothing was moved"
                )
            return self._append(
                self.history(), replace(previous, kind="rollback", reason=reason, by=by)
            )

    def forget(self, dropped: str) -> None:
        """Remove deployments whose only change concerned a dropped version, so that rollback skips them.

        The version's vectors are gone, so searches do not change. The caller holds ``moving``.
        """
        while self.previous() == self.current():
            now = self.current_move()
            before = self.previous_move()
            changed = {name for name, _ in now.translations.items() ^ before.translations.items()}
            if not changed <= {dropped}:
                return
            self._append(
                self.history(), replace(before, kind="rollback", reason=now.reason, by=now.by)
            )

    def require_deployed(self, version: str | None) -> None:
        """Raise unless this version is deployed; None accepts any."""
        now = self.current()
        if version is not None and version != now:
            raise DeploymentMovedError(f"{now} is deployed now, not {version}; nothing was moved")

    def left_by(self, move: Move) -> str:
        """The version that was deployed before a move of the history."""
        moves = (self._start, *self.history())
        return moves[moves.index(move) - 1].version

    def previous(self) -> str | None:
        """The version that a rollback restores; None if there is none, or if it was retired."""
        try:
            return self.require_previous()
        except InputError:
            return None

    def require_previous(self) -> str:
        """The version that a rollback restores; raises if there is none."""
        return self.previous_move().version

    def previous_move(self) -> Move:
        """The deployment that a rollback restores; raises if there is none."""
        history = self.history()
        stack = [self._start if history else self._first_move()]  # in effect, the current one last
        for move in history:
            if move.kind == "rollback":
                stack.pop()
            if move.kind == "translate":
                stack[-1] = move  # the same deployment with other translations
            if move.kind == "deploy":
                stack.append(move)
        *earlier, last = stack
        if not earlier:
            raise InputError(
                f"{last.version} is the first version that was deployed; there is nothing to roll back to"
            )
        found = earlier[-1]
        if found.version in self._registry.retired():
            raise InputError(
                f"{found.version}, which was deployed before {last.version}, was retired: its weights are gone, so "
                "there is nothing to roll back to; deploy the version you want instead"
            )
        return found

    def _append(self, moves: tuple[Move, ...], move: Move) -> Move:
        move = replace(move, when=datetime.now(UTC).isoformat(timespec="milliseconds"))
        first = self._first_move()
        if not moves and first.version != self._start.version:
            moves = (
                replace(first, when=move.when),
            )  # a rollback restores it, not the dropped version
        replace_json(
            self._file, document("deployment", {"moves": [asdict(m) for m in (*moves, move)]})
        )
        return move

    def moving(self) -> AbstractContextManager[None]:
        """A lock to hold while changing the deployment or deleting a version."""
        seen = (
            f"another process has been moving the deployment in {self._directory} for {_WAIT:.0f} s"
        )
        return exclusive(self._directory, _WAIT, InputError(f"{seen}; try again when it is done"))


def _parse(file: Path) -> tuple[Move, ...]:
    return parse_document(
        file, "deployment", lambda content: tuple(map(_parse_move, content["moves"]))
    )


def _parse_move(content: dict[str, Any]) -> Move:
    files = {str(name): str(file) for name, file in content["translations"].items()}
    fitted = {
        name: (float(slope), float(offset))
        for name, (slope, offset) in content["calibrations"].items()
    }
    return Move(**{**content, "translations": files, "calibrations": fitted})


def checked_reason(force: str | None, what: str) -> str | None:
    """The reason to deploy without a passed check, if given; an empty reason is refused."""
    if force is not None and not force.strip():
        raise GateError(
            f"{what} without a passed check needs a reason (force), and this one is empty"
        )
    return force
