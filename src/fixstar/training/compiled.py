"""A backbone compiled once in a process and used by every version: its weights are inputs, not part of the program."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fixstar.models import Backbone

__all__ = ["compiled"]

_PROGRAMS: dict[str, Callable[[dict[str, Tensor], Tensor], Tensor]] = {}


@contextlib.contextmanager
def compiled(backbone: Backbone) -> Iterator[None]:
    """Inside, calling ``backbone`` runs its compiled program. Copies of it made inside are not compiled."""
    key = json.dumps([backbone.name, backbone.options, backbone.training], sort_keys=True)
    if key not in _PROGRAMS:
        _PROGRAMS[key] = _program(copy.deepcopy(backbone))
    program, state = _PROGRAMS[key], {**dict(backbone.named_parameters()), **dict(backbone.named_buffers())}
    module: Any = backbone
    module._compiled_call_impl = lambda images: program(state, images)
    try:
        yield
    finally:
        module._compiled_call_impl = None


def _program(template: Backbone) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    def run(state: dict[str, Tensor], images: Tensor) -> Tensor:
        features: Tensor = torch.func.functional_call(template, state, (images,))
        return features

    program: Callable[[dict[str, Tensor], Tensor], Tensor] = torch.compile(run, dynamic=False)
    return program
