"""What a deployment asks for: a passed check of everything that is searched, or a reason to do without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fixstar.errors import GateError, InputError, ModelError
from fixstar.lifecycle import Move, demand
from fixstar.lifecycle.adapter_book import demand_adapters

if TYPE_CHECKING:
    from fixstar.workspace.workspace import Workspace

__all__ = ["checked_reason", "deploy", "needed_versions", "unchecked_vectors", "unreached_vectors"]


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
