"""What an operator may set, with limits that are safe as they stand."""

from __future__ import annotations

from dataclasses import dataclass

from fixstar.errors import InputError

__all__ = ["ServiceSettings"]

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class ServiceSettings:
    """Limits of the service. Sizes in bytes, times in seconds, rates in requests a minute and key (or address)."""

    host: str = "127.0.0.1"
    port: int = 8080
    upload_bytes: int = 20 * 2**20  # one image
    request_bytes: int = 256 * 2**20  # one request of several images
    pixels: int = 50_000_000
    decode_seconds: float = 10.0
    images_at_once: int = 64
    images_a_job: int = 1000
    results: int = 100
    rate: int = 600
    batch: int = 32  # query images embedded together
    batch_wait: float = 0.004  # how long the first of a batch waits for others
    waiting: int = 256  # queries that may wait for the encoder before new ones are told to come again

    def __post_init__(self) -> None:
        wrong = [
            f"{name}={value!r} must be above 0"
            for name, value in vars(self).items()
            if name not in ("host", "batch_wait", "port") and not value > 0
        ]
        if not 0 <= self.port <= 65535:
            wrong.append(f"port={self.port!r} must be a port number, 0 to 65535")
        if wrong:
            raise InputError("; ".join(wrong))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        return self.host in LOOPBACK
