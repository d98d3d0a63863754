"""A running job as its own work sees it, whether that runs in the service or in a process of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fixstar.errors import CheckpointError, ImageError, InputError
from fixstar.images import ImageSource, Pixels, Preprocessing
from fixstar.service.jobs import signs_of_life
from fixstar.service.jobs.records import Job, Result

if TYPE_CHECKING:
    from fixstar.service.jobs.queue import Jobs

PATIENCE = 5.0  # seconds that the current batch may still take where a job is to end


class StoppedError(Exception):
    """A job ended early: it was told to, or there is no point in continuing."""

    def __init__(self, message: str, result: Result | None = None) -> None:
        super().__init__(message)
        self.result = result


class RunningJob(Protocol):
    """What the work of a job may ask and say."""

    images: Path  # the file of what a training job learns from

    def job(self) -> Job:
        """As it is now."""

    def note(self, save: bool = False, **changes: Any) -> None:
        """Change what is reported about it; with ``save`` it is on disk when this returns."""

    def stopped(self) -> bool:
        """Whether it is to end after the current batch."""


class LocalJob:
    """A job as seen in the service that runs it."""

    def __init__(self, jobs: Jobs, job: Job) -> None:
        self._jobs = jobs
        self._name = job.id
        self._runner = job.runner
        self.images = jobs.training_images(job.id)
        self._patience = 0.0  # when the batch of a job that is to end is given up
        self._due = 0.0  # when other services are to see its progress

    def job(self) -> Job:
        """As it is now. Raises ``StoppedError`` if another service has taken it over."""
        job = self._jobs.current(self._name)
        if job is None or job.runner != self._runner:
            raise StoppedError("another service has taken it over")
        return job

    def note(self, save: bool = False, **changes: Any) -> None:
        """Change what is reported about it; with ``save`` also on disk, where other services see it every second."""
        if self._runner and time.monotonic() >= self._due:
            save = True
            self._due = time.monotonic() + signs_of_life.BEAT

        def changed() -> Job:
            job = self.job()
            if job.cancelling:
                changes.pop("message", None)  # that it is about to end is what counts
            return replace(job, **changes)

        self._jobs.change(changed, save)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Collection[str]]:
        """Held while it writes items, so that others wait. Yields what others wrote since it was accepted."""
        with self._jobs.writing():
            yield self.job().overtaken

    def stopped(self) -> bool:
        """Whether it is to end after the current batch."""
        return self._jobs.is_stopping or self.job().cancelling

    def decode(self, image: ImageSource, preprocessing: Preprocessing) -> Pixels:
        """The pixels of one image. If the job is to end, a batch that takes too long is abandoned."""
        if self.stopped():
            self._patience = self._patience or time.monotonic() + PATIENCE
        if not self._patience or time.monotonic() < self._patience:
            try:
                return self._jobs.decoding.pixels(image, preprocessing)
            except ImageError:
                if not self.stopped():  # else the image may be good
                    raise
        raise StoppedError("it ended within a batch, of which nothing was stored")


def await_predecessor(
    hold: Callable[[], AbstractContextManager[None]], running: RunningJob
) -> None:
    """Wait for a service that was taken for dead, or for a training that ends with it, to release its locks."""
    while running.job().attempts > 1:
        try:
            with hold():
                return
        except (InputError, CheckpointError) as error:
            if running.stopped():
                raise StoppedError("another service still works on it") from error
            time.sleep(signs_of_life.BEAT)
