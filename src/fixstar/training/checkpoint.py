"""The state of a training run after an epoch: one safetensors file, replaced at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn, optim

from fixstar.durable import replace_file
from fixstar.errors import CheckpointError

__all__ = ["load_checkpoint", "save_checkpoint"]

_FORMAT = "fixstar-checkpoint"


def save_checkpoint(
    path: Path, model: nn.Module, optimiser: optim.Optimizer, fingerprint: str, log: Sequence[Any]
) -> None:
    """Write weights, optimiser state and the log of the epochs so far."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for number, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{number}.{key}": value for key, value in state.items() if isinstance(value, Tensor)}
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    metadata = {"format": _FORMAT, "fingerprint": fingerprint, "log": json.dumps(list(log))}
    replace_file(path, lambda partial: save_file(tensors, partial, metadata))


def load_checkpoint(path: Path, model: nn.Module, optimiser: optim.Optimizer, fingerprint: str) -> list[Any]:
    """Restore ``model`` and ``optimiser`` in place; returns the log of the epochs done (empty without a checkpoint)."""
    if not path.exists():
        return []
    try:
        with safe_open(path, framework="pt") as stored:
            metadata = stored.metadata() or {}
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); delete it to train this version anew") from error
    if metadata.get("format") != _FORMAT:
        raise CheckpointError(f"{path} is not a fixstar checkpoint; move it away to train this version anew")
    if metadata.get("fingerprint") != fingerprint:
        raise CheckpointError(
            f"{path} was written with other settings or other data; "
            "repeat the first command to go on with it, or delete it to train this version anew"
        )
    _restore(tensors, model, optimiser)
    log: list[Any] = json.loads(metadata["log"])
    return log


def _restore(tensors: dict[str, Tensor], model: nn.Module, optimiser: optim.Optimizer) -> None:
    weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    model.load_state_dict(weights)
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimiser."):
            _, number, key = name.split(".", 2)
            state.setdefault(int(number), {})[key] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
