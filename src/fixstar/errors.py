"""Every error that fixstar raises on purpose.

    FixstarError
    ├── InputError            an argument or a setting is wrong          (also a ValueError)
    │   ├── UnknownNameError  no such method, backbone, dataset, ...     lists the valid names
    │   └── DeploymentMovedError   another version is deployed than the caller believed
    ├── DataError             a dataset or one of its files is unusable
    │   └── ImageError        one image cannot be read; carries its name
    ├── ModelError            a saved model is damaged, foreign or does not fit
    ├── CheckpointError       a run cannot be resumed from what is on disk
    ├── GalleryError          vectors that a gallery cannot take or find
    │   ├── DamagedItemError  one stored item cannot be read; carries its id and version
    │   └── GalleryUnavailableError   its file or server does not do its part: full, busy, away, damaged
    ├── GateError             an upgrade that was not shown to be compatible, a backfill that would lose
    └── MissingExtraError     an optional dependency is not installed    (also an ImportError)

A message says what was seen, what is allowed, and what to type next. Catch ``FixstarError`` to catch all of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CheckpointError",
    "DamagedItemError",
    "DataError",
    "DeploymentMovedError",
    "FixstarError",
    "GalleryError",
    "GalleryUnavailableError",
    "GateError",
    "ImageError",
    "InputError",
    "MissingExtraError",
    "ModelError",
    "UnknownNameError",
]


class FixstarError(Exception):
    """Base of every error that fixstar raises on purpose."""


class InputError(FixstarError, ValueError):
    """An argument or a setting is wrong."""


class UnknownNameError(InputError):
    """A name that is not in its registry.

    >>> raise UnknownNameError("method", "hco", ["er", "hoc"])
    Traceback (most recent call last):
    fixstar.errors.UnknownNameError: unknown method 'hco'; did you mean 'hoc'? Known: er, hoc

    >>> raise UnknownNameError("version", "v1", [], "Train the first with: fixstar train IMAGES")
    Traceback (most recent call last):
    fixstar.errors.UnknownNameError: unknown version 'v1': there is none yet. Train the first with: fixstar train IMAGES
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        known = sorted(known)
        if not known:
            super().__init__(f"unknown {kind} {name!r}: there is none yet{hint and '. ' + hint}")
            return
        close = difflib.get_close_matches(name, known, n=1)
        guess = f"; did you mean {close[0]!r}?" if close else "."
        super().__init__(f"unknown {kind} {name!r}{guess} Known: {', '.join(known)}{hint and '. ' + hint}")


class DeploymentMovedError(InputError):
    """The deployment is no longer where the caller believed it to be; nothing was moved."""


class DataError(FixstarError):
    """A dataset, or one of its files, is unusable."""


class ImageError(DataError):
    """One image cannot be read. ``name`` says which, ``reason`` why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason


class ModelError(FixstarError):
    """A saved model is damaged, foreign, or does not fit where it is used."""


class CheckpointError(FixstarError):
    """A run cannot be resumed from what is on disk."""


class GalleryError(FixstarError):
    """Vectors that a gallery cannot take or find."""


class DamagedItemError(GalleryError):
    """One stored item cannot be read. ``item`` is its id, ``version`` who made its vector, ``reason`` what is wrong."""

    def __init__(self, item: str, version: str | None, reason: str) -> None:
        super().__init__(
            f"{item!r} of version {version!r}: {reason}; delete it (fixstar gallery delete ID) and store it again, or "
            "restore the gallery from a copy"
        )
        self.item = item
        self.version = version
        self.reason = reason


class GalleryUnavailableError(GalleryError):
    """The file or the server of a gallery does not do its part: no room, busy, not reachable, damaged."""


class GateError(FixstarError):
    """An upgrade that was not shown to be compatible, or a backfill that is predicted to lose: not by itself."""


class MissingExtraError(FixstarError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f'{purpose} needs {package}. In the directory of fixstar\'s source: pip install -e ".[{extra}]"'
        )
