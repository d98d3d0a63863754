"""Adapters on disk: one safetensors file with a card and a checksum in its header. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fixstar.durable import replace_file
from fixstar.errors import FixstarError, ModelError
from fixstar.lifecycle.adapter_maps import VectorAdapter

__all__ = ["load_adapter", "save_adapter"]

_FORMAT, _FORMAT_VERSION = "fixstar-adapter", 1


def save_adapter(adapter: VectorAdapter, path: str | Path) -> Path:
    """Write FILE.safetensors, whole or not at all; a file that exists is never overwritten."""
    from safetensors.numpy import save_file

    path = Path(path)
    if path.suffix != ".safetensors":
        raise ModelError(f"{path}: an adapter is saved as FILE.safetensors")
    if path.exists():
        raise ModelError(f"{path} exists already, and a saved adapter is never overwritten; choose another name")
    weights = {name: np.ascontiguousarray(array) for name, array in adapter.weights.items()}
    card = json.dumps(
        {
            "format": _FORMAT,
            "format_version": _FORMAT_VERSION,
            "kind": adapter.kind,
            "source": adapter.source,
            "target": adapter.target,
            "about": dict(adapter.about),
        }
    )
    metadata = {"card": card, "sha256": _checksum(card, weights)}
    replace_file(path, lambda partial: save_file(weights, partial, metadata))
    return path


def load_adapter(path: str | Path) -> VectorAdapter:
    """The adapter in a file; anything that is not whole and unchanged is refused."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise ModelError(f"there is no adapter {path}; save one with save_adapter(adapter, path)")
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        if "card" not in metadata or metadata.get("sha256") != _checksum(metadata["card"], weights):
            raise ModelError("its checksum is not that of its content" if "card" in metadata else "it has no card")
        return _adapter(json.loads(metadata["card"]), weights)
    except FixstarError as error:
        raise _damaged(path, error) from error
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(path, error) from error


def _adapter(card: dict[str, Any], weights: Mapping[str, Any]) -> VectorAdapter:
    if card.get("format") != _FORMAT or card.get("format_version") != _FORMAT_VERSION:
        seen = f"{card.get('format')!r}, version {card.get('format_version')!r}"
        raise ModelError(f"it is of format {seen}; this fixstar reads {_FORMAT!r}, version {_FORMAT_VERSION}")
    return VectorAdapter(card["kind"], weights, card["source"], card["target"], card["about"])


def _checksum(card: str, weights: Mapping[str, Any]) -> str:
    """Over the card, and over name, type, shape and numbers of every array."""
    digest = hashlib.sha256(card.encode())
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _damaged(path: Path, error: Exception) -> ModelError:
    return ModelError(f"{path} is damaged, or no adapter: {error}. Restore it from a copy, or fit it again")
