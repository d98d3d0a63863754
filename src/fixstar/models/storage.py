"""Encoders on disk: ``model.safetensors`` for the weights, ``card.json`` for everything else. Nothing is unpickled."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from fixstar.durable import flush, is_vacant
from fixstar.errors import FixstarError, ModelError
from fixstar.images import Preprocessing
from fixstar.models.adapter import Adapter
from fixstar.models.backbones import create_backbone
from fixstar.models.classifiers import create_classifier
from fixstar.models.encoder import Encoder
from fixstar.models.slots import Slots

__all__ = ["CARD", "WEIGHTS", "load_encoder", "read_card", "save_encoder"]

CARD, WEIGHTS = "card.json", "model.safetensors"
_FORMAT, _FORMAT_VERSION = "fixstar-encoder", 1


def save_encoder(encoder: Encoder, directory: Path) -> Path:
    """Write into a directory beside the target, flush, then rename: the target is whole or absent."""
    if not is_vacant(directory):
        raise ModelError(
            f"{directory} already exists, and a saved model is never overwritten; choose another directory"
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".partial", dir=directory.parent))
    try:
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in encoder.state_dict().items()}
        save_file(weights, partial / WEIGHTS)
        (partial / CARD).write_text(json.dumps(_card(encoder, partial / WEIGHTS), indent=2) + "\n")
        partial.chmod(0o755)
        for written in (partial / WEIGHTS, partial / CARD):
            written.chmod(0o644)
            flush(written)
        flush(partial)
        partial.replace(directory)  # also replaces an empty directory
        flush(directory.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return directory


def _card(encoder: Encoder, weights: Path) -> dict[str, Any]:
    from fixstar import __version__

    projection = encoder.projection
    return {
        "format": _FORMAT,
        "format_version": _FORMAT_VERSION,
        "fixstar": __version__,
        "backbone": {"name": encoder.backbone.name, "options": encoder.backbone.options},
        "projection": None if projection is None else {"in": projection.in_features, "out": projection.out_features},
        "classifier": {"kind": encoder.classifier.kind, "options": encoder.classifier.options},
        "adapter": None if encoder.adapter is None else encoder.adapter.options,
        "slots": {"capacity": encoder.slots.capacity, "by_class": dict(encoder.slots.by_class)},
        "preprocessing": encoder.preprocessing.to_json(),
        "weights": {"bytes": weights.stat().st_size, "sha256": _sha256(weights)},
        "about": encoder.about,
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_card(directory: Path) -> dict[str, Any]:
    """The card of a saved encoder, checked to be one."""
    if not directory.is_dir():
        raise ModelError(f"{directory} is not a directory; a saved model is a directory with {CARD} and {WEIGHTS}")
    for name in (CARD, WEIGHTS):
        if not (directory / name).is_file():
            seen = ", ".join(sorted(p.name for p in directory.iterdir())[:8]) or "nothing"
            raise ModelError(f"{directory} is not a saved fixstar model: {name} is missing (found: {seen})")
    try:
        card = json.loads((directory / CARD).read_text())
    except (ValueError, UnicodeDecodeError) as error:
        raise ModelError(f"{directory / CARD} is not valid JSON ({error}); restore the model from a copy") from None
    if not isinstance(card, dict) or card.get("format") != _FORMAT:
        raise ModelError(f"{directory / CARD} is not the card of a fixstar model")
    if card.get("format_version") != _FORMAT_VERSION:
        raise ModelError(
            f"{directory} has format version {card.get('format_version')!r}; this fixstar reads {_FORMAT_VERSION}. "
            "Upgrade fixstar"
        )
    return card


def load_encoder(directory: Path) -> Encoder:
    """The saved encoder, in evaluation mode, on the CPU."""
    card = read_card(directory)
    path = directory / WEIGHTS
    _check_weights(path, card)
    try:
        _check_shapes(path, card)
        encoder = _build(card)
        encoder.load_state_dict(load_file(path))
        if len(encoder.slots) and max(encoder.slots.by_class.values()) >= encoder.classifier.outputs:
            raise ModelError("its class slots lie outside of its classifier")
    except FixstarError as error:
        raise ModelError(f"{directory} cannot be rebuilt: {error}") from error
    except (AttributeError, SafetensorError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{directory} is damaged: card and weights do not belong together ({error})") from error
    return encoder.eval()


def _check_weights(path: Path, card: dict[str, Any]) -> None:
    expected = card.get("weights")
    if not isinstance(expected, dict) or not isinstance(expected.get("bytes"), int) or "sha256" not in expected:
        raise ModelError(f"{path.parent / CARD} does not describe its weights; restore the model from a copy")
    size = path.stat().st_size
    if size != expected["bytes"]:
        raise ModelError(
            f"{path} is damaged: {size:,} bytes, the card says {expected['bytes']:,}; restore it from a copy"
        )
    if _sha256(path) != expected["sha256"]:
        raise ModelError(f"{path} is damaged: its checksum is not the card's; restore it from a copy")


def _check_shapes(path: Path, card: dict[str, Any]) -> None:
    """Compare the card with the weights' header before anything of the size that it claims is allocated."""
    projection, adapter = card["projection"], card.get("adapter")  # cards before adapters have no entry
    for part, weight, shape in (
        ("projection", "projection.weight", None if projection is None else [projection["out"], projection["in"]]),
        ("adapter", "adapter.first.weight", None if adapter is None else [adapter["hidden"], adapter["width"]]),
    ):
        with safe_open(path, framework="pt") as stored:
            held = stored.get_slice(weight).get_shape() if weight in set(stored.keys()) else None
        if held != shape:
            raise ModelError(f"the card's {part} {card.get(part)} is not that of the weights, {held}")


def _build(card: dict[str, Any]) -> Encoder:
    with torch.random.fork_rng(devices=[]):  # building draws initial weights; leave the caller's generator alone
        backbone = create_backbone(card["backbone"]["name"], **card["backbone"]["options"])
        shape = card["projection"]
        projection = None if shape is None else nn.Linear(shape["in"], shape["out"], bias=False)
        classifier = create_classifier(card["classifier"]["kind"], **card["classifier"]["options"])
        adapter = None if card.get("adapter") is None else Adapter(**card["adapter"])
    slots = Slots(card["slots"]["capacity"], card["slots"]["by_class"])
    preprocessing = Preprocessing.from_json(card["preprocessing"])
    return Encoder(backbone, projection, classifier, slots, preprocessing, card["about"], adapter)
