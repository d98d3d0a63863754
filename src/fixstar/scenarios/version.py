"""Training one version: the step that every scenario repeats."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch

from fixstar.data.batches import Batches, Lane
from fixstar.data.image_set import ImageSet
from fixstar.data.pixels import pixel_source
from fixstar.data.replay import ReplayMemory
from fixstar.methods import Method, Upgrade
from fixstar.models import Encoder, FrozenEncoder, Slots
from fixstar.scenarios.settings import Settings
from fixstar.training import EpochLog, Training, train

__all__ = ["Version", "train_version"]


@dataclass(frozen=True)
class Version:
    """A trained encoder with its number in the sequence. ``log`` is empty for a version read back from disk."""

    number: int
    encoder: Encoder
    log: tuple[EpochLog, ...] = ()

    @property
    def name(self) -> str:
        """v1, v2, ..."""
        return f"v{self.number}"


def train_version(
    number: int,
    images: ImageSet,
    previous: Encoder | None,
    memory: ReplayMemory,
    method: Method,
    settings: Settings,
    checkpoint: Path | None = None,
    progress: bool = True,
) -> Version:
    """Train version ``number`` on ``images`` and the memory, from where the method starts."""
    device = settings.torch_device()
    encoder = _starting_encoder(number, images, previous, method, settings).to(device)
    teacher = FrozenEncoder(previous.to(device)) if previous is not None and _needs_teacher(method) else None
    upgrade = _upgrade(encoder, teacher, images, previous)
    lanes = _lanes(encoder, images, memory, settings, progress)
    seed = settings.seed * 1009 + number
    run = Training(
        encoder=encoder,
        objective=method.objective(upgrade),
        batches=Batches(lanes, settings.recipe.batch_size, settings.augmentation, seed),
        recipe=settings.recipe,
        teacher=teacher,
        seed=seed,
        checkpoint=checkpoint,
        fingerprint=_fingerprint(number, images, memory, method, settings),
        title=f"training v{number}",
        progress=progress,
    )
    log = train(run)
    encoder.about = _about(number, images, method, settings, log)
    return Version(number, encoder, tuple(log))


def _needs_teacher(method: Method) -> bool:
    return bool({"old model", "old classifier"} & method.needs)


def _upgrade(encoder: Encoder, teacher: FrozenEncoder | None, images: ImageSet, previous: Encoder | None) -> Upgrade:
    known = previous.slots if previous is not None else Slots()
    new = tuple(name for name in images.classes if name not in known)
    return Upgrade(encoder, teacher, images, known.classes, new)


def _starting_encoder(
    number: int, images: ImageSet, previous: Encoder | None, method: Method, settings: Settings
) -> Encoder:
    """The previous weights, or new ones; classes seen before keep their slots either way."""
    if previous is None:
        return settings.new_encoder(method, list(images.classes), settings.seed)
    if method.initialisation == "previous":
        encoder = copy.deepcopy(previous)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed * 1009 + number)  # the new rows of a trainable classifier
            encoder.add_classes(images.classes)
        return encoder
    seed = settings.seed if method.initialisation == "same" else settings.seed + 1_000_003 * number
    slots = previous.slots.assign(images.classes)
    encoder = settings.new_encoder(method, list(slots.classes), seed)
    encoder.slots = slots
    return encoder


def _lanes(encoder: Encoder, images: ImageSet, memory: ReplayMemory, settings: Settings, progress: bool) -> list[Lane]:
    lanes = []
    for part, replay in ((images, False), (memory.images, True)):
        if part is not None and len(part):
            source, readable = pixel_source(
                part,
                encoder.preprocessing,
                settings.augmentation,
                encoder.device,
                settings.bad_images,
                show_progress=progress,
            )
            lanes.append(Lane(source, encoder.targets(readable.classes)[torch.from_numpy(readable.labels)], replay))
    return lanes


def _fingerprint(number: int, images: ImageSet, memory: ReplayMemory, method: Method, settings: Settings) -> str:
    """A digest of all that the weights depend on."""
    content = {
        "version": number,
        "images": images.fingerprint(),
        "memory": None if memory.images is None else memory.images.fingerprint(),
        "method": [method.name, dict(method.options)],
        "settings": settings.to_json(),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _about(number: int, images: ImageSet, method: Method, settings: Settings, log: list[EpochLog]) -> dict[str, object]:
    return {
        "version": f"v{number}",
        "parent": f"v{number - 1}" if number > 1 else None,
        "method": {"name": method.name, "options": dict(method.options), "source": method.source},
        "data": {"name": images.name, "images": len(images), "classes": len(images.classes)}
        | {"fingerprint": images.fingerprint()},
        "settings": settings.to_json(),
        "loss": log[-1].terms if log else {},
    }
