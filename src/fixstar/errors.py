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
    │   └── GalleryUnavailableError   its file or server does not do its part: full, busy, away, damaged
    ├── GateError             an upgrade that was not shown to be compatible
    └── MissingExtraError     an optional dependency is not installed    (also an ImportError)

A message says what was seen, what is allowed, and what to type next. Catch ``FixstarError`` to catch all of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CheckpointError",
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
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        known = sorted(known)
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


class GalleryUnavailableError(GalleryError):
    """The file or the server of a gallery does not do its part: no room, busy, not reachable, damaged."""


class GateError(FixstarError):
    """An upgrade that was not shown to be compatible, and may not be deployed without a reason."""


class MissingExtraError(FixstarError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f'{purpose} needs {package}. Install it with: pip install "fixstar[{extra}]"')
