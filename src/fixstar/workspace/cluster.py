"""Embedding on many machines with Ray (extra "cluster"): an ``Embedder`` whose batches run on workers.

Every worker loads the version's encoder from its directory, once; no model travels. Workers read images by their paths,
so directory and images must be at the same place on every machine (a shared file system). Ray restarts a worker that
died and repeats its batches. Results come in the order of the batches, and only a few are in progress at a time. Where
a server embeds, the workers together keep to its requests per minute.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fixstar.errors import InputError, MissingExtraError, ModelError
from fixstar.images import ImageSource
from fixstar.models import EmbeddedBatch, Encoder
from fixstar.models.backbones.endpoint import EndpointBackbone
from fixstar.models.encoder import read_card
from fixstar.trust import remembered, trusted_modules, trusting
from fixstar.workspace.items import LocalEmbedder

RETRIES = 2  # retries of a batch whose worker died, before the batch is blamed
_AHEAD = 2  # batches in progress per worker: one is decoded while the model works on the other


class RayEmbedder:
    """The encoder in ``directory``, on ``workers`` (default: all free CPUs) of a Ray cluster. Close it when done."""

    def __init__(
        self,
        directory: Path,
        address: str | None = None,
        workers: int | None = None,
        device: str = "cpu",
    ) -> None:
        if workers is not None and workers < 1:
            raise InputError(f"a cluster embeds with one worker or more, got {workers}")
        read_card(directory)  # fails here, not in every worker
        self._ray = _connected(address)
        free = int(self._ray.available_resources().get("CPU", 1))
        most = int(self._ray.cluster_resources().get("CPU", 1))  # more would wait forever
        gpus = int(device.startswith("cuda"))
        actor = self._ray.remote(
            num_cpus=1,
            num_gpus=gpus,
            max_restarts=-1,
            max_task_retries=RETRIES,
            max_concurrency=_AHEAD,
        )(_Worker)
        count = max(1, min(workers or free, most))
        trusted = sorted(
            trusted_modules() | remembered(directory.absolute().parents[1])
        )  # of the workspace
        self._workers = [
            actor.remote(str(directory.absolute()), device, trusted, count) for _ in range(count)
        ]

    def __call__(self, batches: Iterable[Sequence[ImageSource]]) -> Iterator[EmbeddedBatch]:
        """One result per batch, in order."""
        in_progress: deque[Any] = deque()
        for number, batch in enumerate(batches):
            worker = self._workers[number % len(self._workers)]
            portable = [image.absolute() if isinstance(image, Path) else image for image in batch]
            in_progress.append(worker.embed.remote(portable))
            if len(in_progress) >= _AHEAD * len(self._workers):
                yield self._result(in_progress.popleft())
        while in_progress:
            yield self._result(in_progress.popleft())

    def _result(self, promise: Any) -> EmbeddedBatch:
        try:
            vectors, bad = self._ray.get(promise)
        except self._ray.exceptions.RayTaskError as failure:
            cause = failure.cause
            raise cause if isinstance(cause, Exception) else ModelError(str(failure)) from None
        except self._ray.exceptions.RayActorError as death:
            reason = str(death).strip().partition("\n")[0]
            raise ModelError(
                f"{RETRIES + 1} workers died on the same images ({reason}); see Ray's logs"
            ) from None
        return EmbeddedBatch(np.array(vectors), bad)  # a copy: Ray's own is read-only

    def close(self) -> None:
        """Stop the workers; the cluster keeps running."""
        for worker in self._workers:
            self._ray.kill(worker)
        self._workers = []

    def __enter__(self) -> RayEmbedder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Worker:
    """What runs on a worker: one encoder, loaded once. Threads may share it; ``workers`` counts all workers."""

    def __init__(self, directory: str, device: str, trusted: Sequence[str], workers: int) -> None:
        with trusting(*trusted):
            encoder = Encoder.load(directory, device)
        if isinstance(encoder.backbone, EndpointBackbone):
            encoder.backbone.share_rate(workers)
        self._embedder = LocalEmbedder(encoder)

    def embed(self, images: list[Any]) -> tuple[Any, Any]:
        """Vectors, and the images that could not be read."""
        vectors, bad = self._embedder.one(images)
        return vectors, bad


def _connected(address: str | None) -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise MissingExtraError("ray", "cluster", "embedding on a cluster") from None
    if not ray.is_initialized():
        try:
            ray.init(
                address=address or "local",
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InputError(
                f"no Ray cluster answers at {address!r} ({str(error).splitlines()[0]}). Start one (ray start --head), "
                'or use processes of this machine (cluster="local")'
            ) from error
    return ray
