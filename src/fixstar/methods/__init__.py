"""Methods by name. A method is named loss terms plus what it needs from the past; the training loop does the rest."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fixstar.errors import InputError, UnknownNameError
from fixstar.methods.method import Initialisation, Method, Need, Scenario, Step, Terms
from fixstar.methods.replay import experience_replay
from fixstar.methods.retrained import cores, independent
from fixstar.methods.simplex import simplex_hoc

__all__ = ["METHODS", "Initialisation", "Method", "Need", "Scenario", "Step", "Terms", "create_method"]

METHODS: dict[str, Callable[..., Method]] = {
    "cores": cores,
    "er": experience_replay,
    "hoc": simplex_hoc,
    "itm": independent,
}


def create_method(name: str, **options: Any) -> Method:
    """The method of that name, with its options.

    >>> create_method("hoc", lam=0.1).options["lam"]
    0.1
    """
    if name not in METHODS:
        raise UnknownNameError("method", name, METHODS)
    allowed = list(inspect.signature(METHODS[name]).parameters)
    if unknown := sorted(set(options) - set(allowed)):
        raise InputError(f"method {name!r} has no option {', '.join(unknown)}; it has: {', '.join(allowed) or 'none'}")
    return METHODS[name](**options)
