"""What a deployment asks for: a passed check of everything that is searched, or a reason to do without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fixstar.errors import GateError, InputError
from fixstar.lifecycle import Move, demand
from fixstar.lifecycle.adapter_book import demand_adapters

if TYPE_CHECKING:
    from fixstar.workspace.workspace import Workspace

__all__ = ["checked_reason", "deploy"]


def deploy(space: Workspace, version: str, force: str | None, by: str) -> Move:
    """Move the pointer to a version, if its check, or a reason, allows to."""
    space.registry.checked(version)
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
    return space.rollout.deploy(version, force, by)


def checked_reason(force: str | None, what: str) -> str | None:
    """The reason to do without a passed check, if there is one; an empty one is refused."""
    if force is not None and not force.strip():
        raise GateError(f'{what} without a passed check needs a reason: --force "REASON"')
    return force
