"""Every error that fixstar raises on purpose.

    FixstarError
    ├── InputError            an argument or a setting is wrong          (also a ValueError)
    │   ├── UnknownNameError  no such method, backbone, dataset, ...     lists the valid names
    │   └── DeploymentMovedError   another version is deployed than the caller expected
    ├── DataError             a dataset or one of its files is unusable
    │   └── ImageError        one image cannot be read; carries its name
    ├── ModelError            a saved model is damaged, foreign or does not fit
    │   └── UntrustedCodeError   a model needs code that its operator does not trust
    ├── CheckpointError       a run cannot be resumed from what is on disk
    ├── GalleryError          vectors that a gallery cannot take or find
    │   ├── DamagedItemError  one stored item cannot be read; carries its id and version
    │   ├── UnknownItemError  the gallery has no item of this id
    │   ├── ItemChangedError  an item has another revision than the caller expected
    │   └── GalleryUnavailableError   its file or server is full, busy, unreachable or damaged
    ├── GateError             an upgrade without proven compatibility, or a backfill with a predicted loss
    └── MissingExtraError     an optional dependency is not installed    (also an ImportError)

A message says what was seen and what is allowed. Next steps are data (``next_steps``): the command line prints them as
commands, the HTTP service as requests. ``type`` is a stable name for programs.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any, ClassVar

ACTIONS = frozenset(
    {
        "add",
        "backfill",
        "check",
        "delete-items",
        "deploy",
        "drop",
        "evaluate",
        "grow",
        "import-vectors",
        "index",
        "init",
        "install",
        "repeat",
        "rollback",
        "status",
        "train",
        "upgrade",
        "use-gallery",
        "verify-gallery",
    }
)
Argument = str | int | float | bool | EllipsisType


@dataclass(frozen=True)
class NextStep:
    """A next step after an error or a refusal: an action and its arguments, for any front end to render.

    An argument of ``...`` must be filled in by the user. ``note`` briefly says when or why.

    >>> print(NextStep("check", {"version": "v2", "data": ...}, "about 400 labelled images"))
    check(version='v2', data=...): about 400 labelled images
    """

    action: str
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ValueError(
                f"{self.action!r} is not an action; known: {', '.join(sorted(ACTIONS))}"
            )

    def __str__(self) -> str:
        arguments = ", ".join(
            f"{key}={'...' if value is ... else repr(value)}"
            for key, value in self.arguments.items()
        )
        return f"{self.action}({arguments}){self.note and ': ' + self.note}"

    def to_json(self) -> dict[str, Any]:
        """As JSON; arguments to fill in are null."""
        arguments = {key: None if value is ... else value for key, value in self.arguments.items()}
        return {"action": self.action, "arguments": arguments, "note": self.note}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> NextStep:
        """The step from the output of ``to_json``."""
        arguments = {
            key: ... if value is None else value for key, value in content["arguments"].items()
        }
        return cls(content["action"], arguments, content["note"])


def plural(count: int, noun: str) -> str:
    """A number of things in words.

    >>> plural(1, "item"), plural(2000, "query"), plural(3, "class")
    ('1 item', '2,000 queries', '3 classes')
    """
    if count != 1:
        if noun.endswith("y"):
            noun = f"{noun[:-1]}ies"
        elif noun.endswith("s"):
            noun = f"{noun}es"
        else:
            noun = f"{noun}s"
    return f"{count:,} {noun}"


class FixstarError(Exception):
    """Base of every error that fixstar raises on purpose."""

    type: ClassVar[str] = "error"

    def __init__(self, message: str = "", *next_steps: NextStep) -> None:
        super().__init__(message)
        self.next_steps = next_steps
        for step in next_steps:  # shown below a traceback
            self.add_note(f"Next step: {step}")


class InputError(FixstarError, ValueError):
    """An argument or a setting is wrong."""

    type = "invalid-input"


class UnknownNameError(InputError):
    """A name that is not in its registry.

    >>> raise UnknownNameError("method", "hco", ["er", "hoc"])
    Traceback (most recent call last):
    fixstar.errors.UnknownNameError: unknown method 'hco'; did you mean 'hoc'? Known: er, hoc

    >>> raise UnknownNameError("version", "v1", [])
    Traceback (most recent call last):
    fixstar.errors.UnknownNameError: unknown version 'v1': there is none yet
    """

    type = "unknown-name"

    def __init__(
        self, kind: str, name: str, known: Iterable[str], hint: str = "", *next_steps: NextStep
    ) -> None:
        known = sorted(known)
        close = difflib.get_close_matches(name, known, n=1)
        message = f"unknown {kind} {name!r}"
        if close:
            message += f"; did you mean {close[0]!r}? Known: {', '.join(known)}"
        elif known:
            message += f". Known: {', '.join(known)}"
        else:
            message += ": there is none yet"
        if hint:
            message += f". {hint}"
        super().__init__(message, *next_steps)


class DeploymentMovedError(InputError):
    """The deployment changed since the caller read it; nothing was moved."""

    type = "deployment-moved"


class DataError(FixstarError):
    """A dataset, or one of its files, is unusable."""

    type = "unusable-data"


class ItemError(DataError):
    """One item cannot be read, with its ``name``, the ``reason``, and its position ``index``."""

    type = "unreadable-item"

    def __init__(self, name: str, reason: str, index: int = 0) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason
        self.index = index

    def __reduce__(self) -> tuple[Any, ...]:  # for sending it between processes
        return type(self), (self.name, self.reason, self.index)


class ImageError(ItemError):
    """One image cannot be read."""

    type = "unreadable-image"


class TextError(ItemError):
    """One text cannot be embedded."""

    type = "unreadable-text"


class ModelError(FixstarError):
    """A saved model is damaged, of another kind, or does not fit."""

    type = "unusable-model"


class UntrustedCodeError(ModelError):
    """A model needs code that the operator of its workspace does not trust. Nothing was run."""

    type = "untrusted-code"


class EmbeddingServerError(ModelError):
    """A server that embeds texts does not answer, or gives an invalid answer."""

    type = "embedding-server"


class CheckpointError(FixstarError):
    """A run cannot be resumed from what is on disk."""

    type = "unusable-checkpoint"


class GalleryError(FixstarError):
    """Vectors that a gallery cannot take or find."""

    type = "gallery"


class DamagedItemError(GalleryError):
    """One stored item cannot be read. ``item`` is its id, ``version`` made its vector, ``reason`` is the damage."""

    type = "damaged-item"

    def __init__(self, item: str, version: str | None, reason: str) -> None:
        super().__init__(
            f"{item!r} of version {version!r}: {reason}. Delete it and store it again, or restore the gallery",
            NextStep("delete-items", {"id": item}),
        )
        self.item = item
        self.version = version
        self.reason = reason


class UnknownItemError(GalleryError):
    """The gallery has no item of this id."""

    type = "unknown-item"

    def __init__(self, item: str) -> None:
        super().__init__(f"the gallery has no item {item!r}")


class ItemChangedError(GalleryError):
    """The item changed since the caller read it; nothing was written."""

    type = "item-changed"

    def __init__(self, item: str, expected: int, seen: int | None) -> None:
        now = "it was deleted"
        if seen is not None:
            now = f"it has revision {seen}"
        super().__init__(
            f"{item!r} has changed since revision {expected}: {now}. Read it again before you retry"
        )


class GalleryUnavailableError(GalleryError):
    """The gallery is unavailable: full, busy, unreachable or damaged."""

    type = "gallery-unavailable"


class GateError(FixstarError):
    """The upgrade has no passed check, or a loss is predicted for the backfill: an explicit override is needed."""

    type = "not-compatible"


class MissingExtraError(FixstarError, ImportError):
    """An optional dependency is not installed."""

    type = "missing-extra"

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}", NextStep("install", {"extra": extra}))
