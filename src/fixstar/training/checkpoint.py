"""The state of a training run after an epoch: one safetensors file, replaced atomically."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn, optim

from fixstar.durable import DAMAGE, disk_errors, document, open_document, replace_file
from fixstar.errors import CheckpointError, ModelError
from fixstar.training.run import lay_out_state

_FORMAT = "checkpoint"


@dataclass(frozen=True)
class Checkpoint:
    """The state to resume from: the log of epochs, the best weights so far, and the optimiser."""

    log: list[Any] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)
    optimiser: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def restore_optimiser(self, optimiser: optim.Optimizer) -> None:
        """Restore the momenta of ``optimiser``."""
        groups = optimiser.state_dict()["param_groups"]
        optimiser.load_state_dict({"state": self.optimiser, "param_groups": groups})
        lay_out_state(optimiser)


def weights_digest(module: nn.Module) -> str:
    """A SHA-256 of a module's weights."""
    return _tensors_digest(module.state_dict())


def _tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimiser: optim.Optimizer,
    fingerprint: str,
    log: Sequence[Any],
    best: Mapping[str, Tensor] | None = None,
    parts: Mapping[str, str] | None = None,
) -> None:
    """Write weights, best weights of an earlier epoch, optimiser state, log, and the fingerprint's ``parts``."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"best.{name}": value for name, value in (best or {}).items()}
    for number, state in optimiser.state_dict()["state"].items():
        tensors |= {
            f"optimiser.{number}.{key}": value
            for key, value in state.items()
            if isinstance(value, Tensor)
        }
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    about = {"fingerprint": fingerprint, "log": list(log), "parts": dict(parts or {})}
    written = document(_FORMAT, {**about, "sha256": _tensors_digest(tensors)})
    with disk_errors(path):
        replace_file(
            path, lambda partial: save_file(tensors, partial, {"document": json.dumps(written)})
        )


def load_checkpoint(
    path: Path, model: nn.Module, fingerprint: str, parts: Mapping[str, str] | None = None
) -> Checkpoint:
    """Restore ``model`` in place; an empty checkpoint if there is none."""
    if not path.exists():
        return Checkpoint()
    try:
        with safe_open(path, framework="pt") as stored:
            metadata = stored.metadata() or {}
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        if "document" not in metadata:
            raise CheckpointError(
                f"{path} is not a fixstar checkpoint; move it away to train this version from the start"
            )
        about = open_document(json.loads(metadata["document"]), _FORMAT)
        if about["sha256"] != _tensors_digest(tensors):
            raise ValueError("the digest of its tensors does not match")
    except (SafetensorError, OSError, ModelError, *DAMAGE) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}); delete it to train this version from the start"
        ) from error
    if about["fingerprint"] != fingerprint:
        written = about["parts"]
        asked = parts or {}
        names = [name for name in {**asked, **written} if written.get(name) != asked.get(name)]
        differ = ""
        if names:
            differ = f" (different now: {', '.join(names)})"
        raise CheckpointError(
            f"{path} was written with other settings or other data{differ}; use the same settings to resume it, or "
            "delete it to train this version from the start"
        )
    model.load_state_dict(_under("model.", tensors))
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in _under("optimiser.", tensors).items():
        number, key = name.split(".", 1)
        state.setdefault(int(number), {})[key] = value
    return Checkpoint(about["log"], _under("best.", tensors), state)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
