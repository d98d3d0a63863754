"""Exit codes of mistakes in a command line, told apart from a verdict: ``check`` refuses with 2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import typer
from typer.core import TyperGroup

__all__ = ["EX_USAGE", "Verbs"]

EX_USAGE = 64  # of sysexits.h: the command was used incorrectly
_UsageError = cast(type[Exception], typer.BadParameter.__base__)  # click's, or the copy that newer typers bring


class Verbs(TyperGroup):
    """All verbs. A usage error of any of them ends with ``EX_USAGE``: a script takes 2 for a refusal."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Read the words before the verb."""
        with _as_usage():
            return super().make_context(*args, **kwargs)

    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        """Read the words of the verb, and run it."""
        with _as_usage():
            return super().invoke(*args, **kwargs)


@contextmanager
def _as_usage() -> Iterator[None]:
    try:
        yield
    except _UsageError as error:
        error.exit_code = EX_USAGE  # type: ignore[attr-defined]
        raise
