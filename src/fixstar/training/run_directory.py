"""A run on disk.

run.json                     method, settings and data; resuming with others is refused, except for the
                             ``later`` settings of versions that are not finished
versions/v1, v2, ...         finished encoders, never rewritten
memory/v1.safetensors, ...   the replay memory after each version
checkpoint-vN.safetensors    the version being trained, after its last complete epoch
features/                    a frozen backbone's features of images; may be deleted
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
from fixstar.training.distributed import from_rank_zero, on_rank_zero
from fixstar.versions import VersionFiles, version_name


@dataclass(frozen=True)
class RunDirectory:
    """Paths and rules of a run directory. Only rank zero writes, and the other processes wait."""

    path: Path

    @property
    def files(self) -> VersionFiles:
        """Where the files of each version lie."""
        return VersionFiles(self.path)

    @classmethod
    def open(cls, path: str | Path, description: dict[str, Any]) -> RunDirectory:
        """Start a run there, or resume it if it was started with the same ``description``."""
        run = cls(Path(path))
        on_rank_zero(lambda: run._check_or_create(description))
        return run

    def update(self, description: dict[str, Any]) -> None:
        """Record the description, which may change settings of future versions. The run must be locked."""
        on_rank_zero(lambda: self._check_or_create(description, update=True))

    def _check_or_create(self, description: dict[str, Any], update: bool = False) -> None:
        description = json.loads(json.dumps(description))  # as read back: lists instead of tuples
        record = self.path / "run.json"
        if not record.exists():
            if not is_vacant(self.path):
                raise CheckpointError(
                    f"{self.path} holds other files; choose an empty or new directory for the run"
                )
            replace_json(record, description)
            return
        try:
            started = json.loads(record.read_text())
        except ValueError as error:
            raise CheckpointError(
                f"{record} is not valid JSON ({error}); choose another directory"
            ) from error
        if changed := _differences(self._settled(started), self._settled(description)):
            hint = ""
            if any(line.startswith("settings.grown ") for line in changed):
                hint = ". To grow from version N on, keep the settings and pass later={N: replace(settings, grown=...)}"
            raise CheckpointError(
                f"{self.path} was started with other settings ({'; '.join(changed[:6])}). "
                f"Use the same settings to resume it, or choose another directory{hint}"
            )
        if update and started != description:
            replace_json(record, description)

    def _settled(self, description: dict[str, Any]) -> dict[str, Any]:
        """A description without the ``later`` settings of unfinished versions: these may still change."""
        later = description.get("later") or {}
        finished = {
            number: settings
            for number, settings in later.items()
            if self.version(int(number)).exists()
        }
        return {**description, "later": finished}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run against other processes, and remove partial files of a killed run."""
        with contextlib.ExitStack() as lock:
            on_rank_zero(lambda: lock.enter_context(self._exclusive()))
            yield

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        try:
            with exclusive(self.path):
                for part in (self.path, self.files.finished, self.files.memories):
                    remove_leftovers(part)
                yield
        except BlockingIOError:
            raise CheckpointError(
                f"another process is training in {self.path}; wait for it or stop it"
            ) from None

    def checkpoint(self, number: int) -> Path:
        """The checkpoint of version ``number`` while it is trained."""
        return self.files.checkpoint(version_name(number))

    def version(self, number: int) -> Path:
        """The directory of version ``number``."""
        return self.files.encoder(version_name(number))

    def memory(self, number: int) -> Path:
        """The replay memory after version ``number``."""
        return self.files.memory(version_name(number))

    @property
    def features(self) -> Path:
        """A frozen backbone's features."""
        return self.path / "features"

    def finish(self, number: int, encoder: Encoder, memory: ReplayMemory) -> None:
        """Save a finished version. The memory is written first, so that a version on disk is always complete."""

        def save() -> None:
            memory.save(self.memory(number))
            encoder.save(self.version(number))
            self.checkpoint(number).unlink(missing_ok=True)

        on_rank_zero(save)

    def finished(self, number: int) -> bool:
        """Whether version ``number`` is complete."""
        return bool(from_rank_zero(self.version(number).exists))


def _differences(started: Any, asked: Any, prefix: str = "") -> list[str]:
    if isinstance(started, dict) and isinstance(asked, dict):
        keys = sorted(started.keys() | asked.keys())
        return [
            line
            for key in keys
            for line in _differences(started.get(key), asked.get(key), f"{prefix}{key}.")
        ]
    if started == asked:
        return []
    return [f"{prefix.rstrip('.')} was {started!r}, now {asked!r}"]
