"""Embedding on many machines, through Ray (extra "cluster"): an ``Embedder`` whose batches are worked on elsewhere.

Every worker loads the version's encoder from its directory, once; no model travels. Workers read images by their paths,
so directory and images must be at the same place on every machine (a shared file system). A batch whose worker died is
given to another one. Answers come in the order of the batches, and only a few are under way at a time.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from fixstar.errors import InputError, MissingExtraError, ModelError
from fixstar.images import ImageSource
from fixstar.models.encoder import read_card
from fixstar.workspace.items import Embedded

__all__ = ["RayEmbedder"]

TRIES = 3  # workers that a batch may cost before it is held to be the reason


class _Order(NamedTuple):
    """A batch under way: where it is worked on, and the promise of its answer."""

    images: list[Any]
    place: int
    worker: Any
    promise: Any


class RayEmbedder:
    """The encoder in ``directory``, on ``workers`` processes of a Ray cluster. Close it when done.

    ``address`` is that of a cluster ("auto" finds the one of this machine); None or "local" are processes of this
    machine alone. By default there is a worker for every CPU of the cluster that is free. ``device`` is a worker's.
    """

    def __init__(
        self,
        directory: Path,
        address: str | None = None,
        workers: int | None = None,
        device: str = "cpu",
        ahead: int = 2,
    ) -> None:
        if workers is not None and workers < 1:
            raise InputError(f"a cluster embeds with one worker or more, got {workers}")
        read_card(directory)  # what no worker could load is told at once
        self._ray = _connected(address)
        self._directory, self._device, self._ahead = str(directory.absolute()), device, ahead
        free = int(self._ray.available_resources().get("CPU", 1))
        most = int(self._ray.cluster_resources().get("CPU", 1))  # a worker too many would wait for its place for ever
        count = max(1, min(workers or free, most))
        self._actor = self._ray.remote(num_cpus=1, num_gpus=int(device.startswith("cuda")))(_Worker)
        self._workers = [self._new() for _ in range(count)]

    def __call__(self, batches: Iterable[Sequence[ImageSource]]) -> Iterator[Embedded]:
        """One answer for each batch, in order; ``ahead`` batches a worker are under way."""
        under_way: deque[_Order] = deque()
        for number, batch in enumerate(batches):
            under_way.append(self._ordered(number % len(self._workers), [_portable(image) for image in batch]))
            if len(under_way) >= self._ahead * len(self._workers):
                yield self._answer(under_way.popleft())
        while under_way:
            yield self._answer(under_way.popleft())

    def close(self) -> None:
        """End the workers; the cluster goes on."""
        for worker in self._workers:
            self._ray.kill(worker)
        self._workers = []

    def __enter__(self) -> RayEmbedder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _new(self) -> Any:
        return self._actor.remote(self._directory, self._device)

    def _ordered(self, place: int, images: list[Any]) -> _Order:
        worker = self._workers[place]
        return _Order(images, place, worker, worker.embed.remote(images))

    def _answer(self, order: _Order) -> Embedded:
        """A batch's answer; after the death of its worker, another one's."""
        reason = ""
        for _ in range(TRIES):
            try:
                vectors, bad = self._ray.get(order.promise)
                return Embedded(np.array(vectors), bad)  # a copy: what Ray hands out lies in its store, read only
            except self._ray.exceptions.RayActorError as death:
                reason = str(death).strip().partition("\n")[0]
                if self._workers[order.place] is order.worker:  # nobody has replaced it yet
                    self._workers[order.place] = self._new()
                order = self._ordered(order.place, order.images)
            except self._ray.exceptions.RayTaskError as failure:
                cause = failure.cause
                raise cause if isinstance(cause, Exception) else ModelError(str(failure)) from None
        raise ModelError(f"{TRIES} workers died on the same {len(order.images)} images ({reason}); see Ray's logs")


class _Worker:
    """What runs on a worker: one encoder, loaded once."""

    def __init__(self, directory: str, device: str) -> None:
        from fixstar.models import Encoder
        from fixstar.workspace.items import LocalEmbedder

        self._embedder = LocalEmbedder(Encoder.load(directory, device))

    def embed(self, images: list[Any]) -> tuple[Any, Any]:
        """Vectors, and what could not be read."""
        return tuple(self._embedder.one([Path(image) if isinstance(image, str) else image for image in images]))  # type: ignore[return-value]


def _portable(image: ImageSource) -> Any:
    """Paths travel as text, everything else as it is."""
    return str(image.absolute()) if isinstance(image, Path) else image


def _connected(address: str | None) -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise MissingExtraError("ray", "cluster", "embedding on a cluster") from None
    if not ray.is_initialized():
        try:
            ray.init(
                address=address or "local", log_to_driver=False, logging_level=logging.ERROR, configure_logging=False
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InputError(
                f"no Ray cluster answers at {address!r} ({str(error).splitlines()[0]}). Start one with: "
                "ray start --head; or take processes of this machine: --cluster local"
            ) from error
    return ray
