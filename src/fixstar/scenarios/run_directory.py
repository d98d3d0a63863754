"""A run on disk: what it was started with, its finished versions, its memory, and where it stands.

run.json                     method, settings and data; a restart with others is refused, but for the
                             ``later`` settings of versions that are not finished
versions/v1, v2, ...         finished encoders, never rewritten
memory/v1.safetensors, ...   the replay memory after each version
checkpoint-vN.safetensors    the version being trained, after its last whole epoch

Of several processes that train together the first one writes; the others wait for it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fixstar.data.replay import ReplayMemory
from fixstar.durable import exclusive, is_vacant, remove_leftovers, replace_json
from fixstar.errors import CheckpointError
from fixstar.models import Encoder
from fixstar.training.distributed import from_first, on_first

__all__ = ["RunDirectory"]


@dataclass(frozen=True)
class RunDirectory:
    """Paths and rules of a run directory."""

    path: Path

    @classmethod
    def open(cls, path: str | Path, description: dict[str, Any]) -> RunDirectory:
        """Start a run there, or go on with it if it was started with the same ``description``."""
        run = cls(Path(path))
        on_first(lambda: run._begin(json.loads(json.dumps(description))))  # as it will read back: lists for tuples
        return run

    def renew(self, description: dict[str, Any]) -> None:
        """Write down what the run goes on with, while it is held: versions to come may have got other settings."""
        on_first(lambda: self._begin(json.loads(json.dumps(description)), renew=True))

    def _begin(self, description: dict[str, Any], renew: bool = False) -> None:
        record = self.path / "run.json"
        if not record.exists():
            if not is_vacant(self.path):
                raise CheckpointError(f"{self.path} holds other files; choose an empty or new directory for the run")
            replace_json(record, description)
            return
        try:
            started = json.loads(record.read_text())
        except ValueError as error:
            raise CheckpointError(f"{record} is not valid JSON ({error}); choose another directory") from error
        if changed := _differences(self._bound(started), self._bound(description)):
            raise CheckpointError(
                f"{self.path} was started with other settings ({'; '.join(changed[:6])}). "
                "Repeat the first command to go on with it, or choose another directory"
                f"{_growth_hint(changed)}"
            )
        if renew and started != description:
            replace_json(record, description)

    def _bound(self, description: dict[str, Any]) -> dict[str, Any]:
        """A description without the ``later`` settings of versions that are not finished: those may still change."""
        later = description.get("later") or {}
        finished = {number: settings for number, settings in later.items() if self.version(int(number)).exists()}
        return {**description, "later": finished}

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Be the only one who trains here; what a killed run left half-written is cleared away."""
        with contextlib.ExitStack() as lock:
            on_first(lambda: lock.enter_context(self._locked()))
            yield

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with exclusive(self.path):
                for part in (self.path, self.path / "versions", self.path / "memory"):
                    remove_leftovers(part)
                yield
        except BlockingIOError:
            raise CheckpointError(f"another process is training in {self.path}; wait for it or stop it") from None

    def checkpoint(self, number: int) -> Path:
        """Where the training of version ``number`` stands; one that is finished has none any more."""
        return self.path / f"checkpoint-v{number}.safetensors"

    def version(self, number: int) -> Path:
        """Where version ``number`` is, or will be."""
        return self.path / "versions" / f"v{number}"

    def memory(self, number: int) -> Path:
        """Where the replay memory after version ``number`` is."""
        return self.path / "memory" / f"v{number}.safetensors"

    def finish(self, number: int, encoder: Encoder, memory: ReplayMemory) -> None:
        """Keep a finished version. The memory is written first, so that a version on disk is always complete."""

        def keep() -> None:
            memory.save(self.memory(number))
            encoder.save(self.version(number))
            self.checkpoint(number).unlink(missing_ok=True)

        on_first(keep)

    def finished(self, number: int) -> bool:
        """Whether version ``number`` is complete."""
        return bool(from_first(self.version(number).exists))


def _growth_hint(changed: list[str]) -> str:
    """What to type where somebody wanted the next version grown, and changed the settings of all of them."""
    if not any(line.startswith("settings.grown ") for line in changed):
        return ""
    return ". To grow from version N on, keep the settings and give later={N: replace(settings, grown=...)}"


def _differences(started: Any, asked: Any, prefix: str = "") -> list[str]:
    """Readable lines for what differs between two JSON documents."""
    if isinstance(started, dict) and isinstance(asked, dict):
        keys = sorted(started.keys() | asked.keys())
        return [line for key in keys for line in _differences(started.get(key), asked.get(key), f"{prefix}{key}.")]
    return [] if started == asked else [f"{prefix.rstrip('.')} was {started!r}, now {asked!r}"]
