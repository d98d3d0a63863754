"""Which version answers queries: one pointer, moved at once, with the history of its moves.

state/deployment.json    the moves, oldest first; the last one says what is deployed

What a deployment asks for: a passed check of everything that is searched, or a reason to do without.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fixstar.durable import WatchedFile, exclusive, replace_json
from fixstar.errors import DeploymentMovedError, GateError, InputError, ModelError
from fixstar.workspace.adapters.registry import demand_adapters
from fixstar.workspace.checks import demand
from fixstar.workspace.registry import Registry

if TYPE_CHECKING:
    from fixstar.workspace.workspace import Workspace

__all__ = ["Move", "Rollout", "checked_reason", "deploy", "needed_versions", "unchecked_vectors", "unreached_vectors"]

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
        self._path, self._directory = path, path / "state"
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

    def deploy(self, version: str, reason: str | None = None, by: str = "", deployed: str | None = None) -> Move:
        """Move the pointer to a version. ``deployed`` is where it must stand now, if that matters."""

        def target(moves: tuple[Move, ...]) -> tuple[str, Kind]:
            self._expect(deployed, moves)
            return version, "deploy"

        return self._move(target, reason, by)

    def rollback(
        self, reason: str | None = None, by: str = "", deployed: str | None = None, to: str | None = None
    ) -> Move:
        """Move the pointer back to where it stood before the last deployment that was not rolled back.

        ``deployed`` is where it must stand now, ``to`` where it must land, if that matters: else it is not moved.
        """

        def target(moves: tuple[Move, ...]) -> tuple[str, Kind]:
            self._expect(deployed, moves)
            back = self._before(moves)
            if to not in (None, back):
                raise DeploymentMovedError(
                    f"a rollback from {self._stood(moves)[-1]} leads to {back}, not to {to}; nothing was moved"
                )
            return back, "rollback"

        return self._move(target, reason, by)

    def expect(self, deployed: str | None) -> None:
        """Refuse where another version is deployed than the one named; None is any."""
        self._expect(deployed, self.history())

    def left_by(self, move: Move) -> str:
        """The version that was deployed until a move of the history."""
        moves = self.history()
        row = moves.index(move)
        return moves[row - 1].version if row else self._first

    def before(self) -> str | None:
        """Where a rollback would lead; None where there is nothing to go back to, or it was retired."""
        try:
            return self.demand_before()
        except InputError:
            return None

    def demand_before(self) -> str:
        """Where a rollback would lead, or an error that says why there is nothing to go back to."""
        return self._before(self.history())

    def _expect(self, deployed: str | None, moves: tuple[Move, ...]) -> None:
        now = moves[-1].version if moves else self._first
        if deployed not in (None, now):
            raise DeploymentMovedError(f"{now} is deployed now, not {deployed}; nothing was moved")

    def _before(self, moves: tuple[Move, ...]) -> str:
        stood = self._stood(moves)
        if len(stood) < 2:
            raise InputError(f"{stood[-1]} is the first version that was deployed; there is nothing to roll back to")
        if stood[-2] in Registry(self._path).retired():
            raise InputError(
                f"{stood[-2]}, which was deployed before {stood[-1]}, was retired: its weights are gone, so there is "
                "nothing to roll back to; deploy the version you want instead"
            )
        return stood[-2]

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


def deploy(space: Workspace, version: str, force: str | None, by: str, deployed: str | None = None) -> Move:
    """Move the pointer to a version, if its check, or a reason, allows to, and ``deployed`` is where it stands."""
    space.registry.checked(version)
    space.rollout.expect(deployed)
    force = checked_reason(force, "a deployment")
    if version == space.deployed():
        raise InputError(f"{version} is deployed already")
    if force is None:
        demand_adapters(space.adapters, version, space.gallery.count())
        demand(space.last_check(version), version, space.met_by(version))
    encoder = space.serving.encoder(version)  # a damaged model is found here, not by the first query
    if encoder.adapter is not None:
        raise GateError(
            f"{version} reads old vectors through an adapter of its own, and a gallery is searched as it is; "
            "deploy a version that was trained without one"
        )
    return space.rollout.deploy(version, force, by, deployed)


def unchecked_vectors(space: Workspace, version: str) -> dict[str, int]:
    """Vectors that the queries of a version meet and that its last check has not looked at, by who made them."""
    try:
        found = space.last_check(version)
    except ModelError:  # a damaged check is as good as none, and must not stand before a rollback
        found = None
    seen = {version, *(found.against if found is not None else ()), *space.adapters.apart()}
    met = set(space.met_by(version)).intersection(space.serving.met(version)) - seen
    return {name: count for name, count in space.gallery.count().items() if count and name in met}


def unreached_vectors(space: Workspace, version: str, counts: dict[str, int]) -> dict[str, int]:
    """Of the counts by version, those of vectors that the queries of a version do not find, and no adapter does."""
    reached = {version, *space.serving.met(version), *space.adapters.reached(version)}
    return {name: count for name, count in counts.items() if count and name not in reached}


def needed_versions(space: Workspace) -> dict[str, str]:
    """The versions whose weights must stay, each with why, and until when."""
    deployed = space.deployed()
    needed = {space.newest(): "the next upgrade starts from it. It can go once there is a newer version"}
    if (before := space.rollout.before()) is not None:
        needed[before] = (
            f"a rollback from {deployed} leads to it. It can go once a version newer than {deployed} is deployed"
        )
    return {**needed, deployed: "it is deployed. It can go once two others have been deployed after it"}


def checked_reason(force: str | None, what: str) -> str | None:
    """The reason to do without a passed check, if there is one; an empty one is refused."""
    if force is not None and not force.strip():
        raise GateError(f'{what} without a passed check needs a reason: --force "REASON"')
    return force
