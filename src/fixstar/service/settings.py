"""What an operator may set, with safe defaults."""

from __future__ import annotations

import logging
import re
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fixstar.errors import InputError

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_NOT_LIMITS = (
    *(
        "access_log",
        "batch_wait",
        "gallery",
        "host",
        "jobs_in_processes",
        "names",
        "port",
        "read_through",
    ),
    *("shared", "snapshots", "training_images"),
)


@dataclass(frozen=True)
class ServiceSettings:
    """Limits of the service. Sizes in bytes, times in seconds, rates in requests per minute and key (or address).

    ``names`` are further host names that it answers to, those of a proxy in front of it; they require keys.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    names: tuple[str, ...] = ()
    gallery: str = ""  # its name, if one service has several
    upload_bytes: int = 20 * 2**20  # one image
    request_bytes: int = 256 * 2**20  # one request of several images
    field_bytes: int = (
        64 * 2**20
    )  # the payloads, or the ids, of one request: 64 KB per image of a full job
    memory_bytes: int = 1 << 30  # of the bodies of all requests that are being answered
    payload_bytes: int = 2 << 20  # one item's payload
    header_seconds: float = 20.0  # until the headers of a request have come
    pixels: int = 50_000_000
    decode_seconds: float = 10.0
    items_at_once: int = 64  # images or texts of one request
    images_a_job: int = 1000
    results: int = 100
    rate: int = 600
    batch: int = 32  # query images embedded together
    batch_wait: float = 0.004  # how long the first of a batch waits for others
    waiting: int = 256  # queries that may wait for the encoder before new ones are refused
    snapshots: Path | None = None  # where they go
    training_images: Path | None = None  # its subfolders are labelled images that jobs may train on
    read_through: float | None = None  # items an hour that searches met and that are embedded again
    access_log: bool = False  # one line per request
    shared: bool = (
        False  # other services over the same workspace may run: jobs and rates are shared with them
    )
    jobs_in_processes: bool = (
        False  # training, checks and backfills run in processes that give way to searches
    )

    def __post_init__(self) -> None:
        wrong = [
            f"{name}={value!r} must be above 0"
            for name, value in vars(self).items()
            if name not in _NOT_LIMITS and not value > 0
        ]
        if self.read_through is not None and not self.read_through > 0:
            wrong.append(f"read_through={self.read_through!r} must be above 0, in items an hour")
        if not 0 <= self.port <= 65535:
            wrong.append(f"port={self.port!r} must be a port number, 0 to 65535")
        wrong += [
            f"name {name!r} must be a host name in lower case, without scheme and port, such as shop.example"
            for name in self.names
            if not _NAME.fullmatch(name)
        ]
        if wrong:
            raise InputError("; ".join(wrong))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        return self.host in LOOPBACK


class AuditLog(logging.LoggerAdapter[logging.Logger]):
    """Who changed what: jobs and deployments. Names the gallery, if one service has several."""

    def __init__(self, gallery: str) -> None:
        super().__init__(logging.getLogger("fixstar.audit"))
        self._start = f"gallery {gallery}: " if gallery else ""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Put the gallery's name before a message."""
        return f"{self._start}{msg}", kwargs
