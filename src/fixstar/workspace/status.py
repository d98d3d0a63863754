"""Where a workspace stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fixstar.gallery import Gallery
from fixstar.gallery.address_secrets import without_secret
from fixstar.lifecycle import Registry, Rollout, last_check
from fixstar.lifecycle.adapter_book import AdapterBook

__all__ = ["Status", "read_status"]


@dataclass(frozen=True)
class Status:
    """Where a workspace stands: ``vectors`` counts items by the version that made them.

    ``adapters`` says for a gallery version with a space of its own which versions' queries reach it.
    """

    path: str
    deployed: str | None
    previous: str | None
    versions: tuple[str, ...]
    retired: tuple[str, ...]
    vectors: dict[str, int]
    gallery: str
    checks: Mapping[str, str]
    training: str | None
    adapters: Mapping[str, list[str]] = field(default_factory=dict)


def read_status(registry: Registry, rollout: Rollout, gallery: Gallery, url: str, training: bool) -> Status:
    """Look everything up; ``training`` says whether the next version has been begun."""
    names = registry.names()
    book = AdapterBook(registry.path)
    reached = {name: [by for by in names if name in book.reached(by)] for name in sorted(book.apart())}
    checks = {name: check.outcome for name in names if (check := last_check(registry.path, name)) is not None}
    return Status(
        str(registry.path),
        rollout.current() if names else None,
        rollout.before() if names else None,
        tuple(names),
        tuple(registry.retired()),
        gallery.count(),
        without_secret(url),
        checks,
        f"v{registry.next_number()}" if training else None,
        reached,
    )
