"""What versions are called, and where the files of each lie in the directory of a run or a workspace.

versions/v1, v2, ...         finished encoders
retired/v1.json, ...         the cards of versions whose weights were deleted
memory/v1.safetensors, ...   the replay memory after each version
checkpoint-vN.safetensors    the version being trained
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fixstar.errors import InputError

_NAME = re.compile(r"v([0-9]+)")


@dataclass(frozen=True)
class VersionFiles:
    """Where the files of versions lie in one directory."""

    path: Path

    @cached_property
    def finished(self) -> Path:
        """The folder of finished encoders; it changes if a version is finished or retired."""
        return self.path / "versions"

    @cached_property
    def retired(self) -> Path:
        """The folder of the cards of retired versions."""
        return self.path / "retired"

    @property
    def memories(self) -> Path:
        """The folder of the replay memories."""
        return self.path / "memory"

    def encoder(self, name: str) -> Path:
        """The directory of a finished version's encoder."""
        return self.finished / name

    def retired_card(self, name: str) -> Path:
        """The card of a retired version."""
        return self.retired / f"{name}.json"

    def memory(self, name: str) -> Path:
        """The replay memory after a version."""
        return self.memories / f"{name}.safetensors"

    def checkpoint(self, name: str) -> Path:
        """The checkpoint of a version while it is trained."""
        return self.path / f"checkpoint-{name}.safetensors"


def version_name(number: int) -> str:
    """What a version is called.

    >>> version_name(12)
    'v12'
    """
    return f"v{number}"


def is_version_name(name: str) -> bool:
    """Whether a workspace may call a version so; vectors of other systems have other names.

    >>> is_version_name("v12"), is_version_name("clip"), is_version_name("clip@v1")
    (True, False, False)
    """
    return _NAME.fullmatch(name) is not None


def version_number(name: str) -> int:
    """The number of a version, by which versions are ordered: a higher one is newer.

    >>> sorted(["v10", "v9"], key=version_number)
    ['v9', 'v10']
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise InputError(f"{name!r} is not a version of a workspace; these are called v1, v2, ...")
    return int(found[1])


def version_numbers(names: Iterable[str]) -> set[int]:
    """The numbers of those names that are names of versions."""
    found = map(_NAME.fullmatch, names)
    return {int(match[1]) for match in found if match is not None}


def named_in_space(name: str, version: str) -> str:
    """What to call vectors that a version's model made elsewhere: the name says whose space they lie in.

    >>> named_in_space("clip", "v2"), named_in_space("clip@v1", "v2")
    ('clip@v2', 'clip@v2')
    """
    origin = name.partition("@")[0]
    return f"{origin}@{version}"


def home_of(name: str, known: Collection[str]) -> str | None:
    """The version whose space vectors of this name lie in, if the name says so.

    >>> home_of("v1", {"v1"}), home_of("clip@v1", {"v1"}), home_of("clip", {"v1"}), home_of("clip@v9", {"v1"})
    ('v1', 'v1', None, None)
    """
    if name in known:
        return name
    prefix, at, version = name.rpartition("@")
    if prefix and at and version in known:
        return version
    return None
