"""The operation that a path is for, also where a request was refused before the framework looked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from re import Pattern

from starlette.routing import compile_path

__all__ = ["RouteNames"]

_BESIDE = ("/", "/static/{name}", "/v1/docs", "/v1/openapi.json")  # not in the document


class RouteNames:
    """Paths of the operations as they are documented. ``documented`` is asked once, when the first name is."""

    def __init__(self, documented: Callable[[], Iterable[str]]) -> None:
        self._documented = documented

    def of(self, path: str) -> str | None:
        """The documented form of a path; None where there is no such operation."""
        plain, patterns = self._known
        if path in plain:
            return path
        return next((name for pattern, name in patterns if pattern.match(path)), None)

    @cached_property
    def _known(self) -> tuple[frozenset[str], list[tuple[Pattern[str], str]]]:
        paths = [*self._documented(), *_BESIDE]
        plain = frozenset(path for path in paths if "{" not in path)
        return plain, [(compile_path(path)[0], path) for path in paths if path not in plain]
