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

__all__ = ["Version", "train_version", "weights_digest"]


@dataclass(frozen=True)
class Version:
    """A trained encoder with its number in the sequence.

    ``log`` and ``images``, those that it was trained on and could be read, are empty for one read back from disk.
    """

    number: int
    encoder: Encoder
    log: tuple[EpochLog, ...] = ()
    images: ImageSet | None = None

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
    replacement: Encoder | None = None,
) -> Version:
    """Train version ``number`` on ``images`` and the memory, from where the method starts.

    A ``replacement`` takes the place of the previous version: training starts from it, and it becomes the teacher.
    """
    device = settings.torch_device()
    encoder = _starting_encoder(number, images, previous, method, settings, replacement).to(device)
    predecessor = previous if replacement is None else replacement
    teacher = FrozenEncoder(predecessor).to(device) if predecessor is not None and _needs_teacher(method) else None
    lanes, readable = _lanes(encoder, images, memory, settings, progress)
    upgrade = _upgrade(encoder, teacher, readable, predecessor)
    seed = settings.seed * 1009 + number
    run = Training(
        encoder=encoder,
        objective=method.objective(upgrade),
        batches=Batches(lanes, settings.recipe.batch_size, settings.augmentation, seed),
        recipe=settings.recipe,
        teacher=teacher if "old model" in method.needs else None,  # its classifier alone needs no forward pass
        seed=seed,
        checkpoint=checkpoint,
        fingerprint=_fingerprint(number, images, memory, method, settings, replacement),
        title=f"training v{number}",
        progress=progress,
    )
    log = train(run)
    encoder.about = _about(number, images, method, settings, log)
    return Version(number, encoder, tuple(log), readable)


def _needs_teacher(method: Method) -> bool:
    return bool({"old model", "old classifier"} & method.needs)


def _upgrade(encoder: Encoder, teacher: FrozenEncoder | None, images: ImageSet, previous: Encoder | None) -> Upgrade:
    known = previous.slots if previous is not None else Slots()
    new = tuple(name for name in images.classes if name not in known)
    return Upgrade(encoder, teacher, images, known.classes, new)


def _starting_encoder(
    number: int,
    images: ImageSet,
    previous: Encoder | None,
    method: Method,
    settings: Settings,
    replacement: Encoder | None,
) -> Encoder:
    """The previous weights, the replacement's, or new ones; classes seen before keep their slots in any case."""
    if previous is None and replacement is None:
        return settings.new_encoder(method, list(images.classes), settings.seed)
    if replacement is not None or method.initialisation == "previous":
        return _continued(number, images, previous, replacement, settings)
    assert previous is not None
    seed = settings.seed if method.initialisation == "same" else settings.seed + 1_000_003 * number
    slots = previous.slots.assign(images.classes, settings.side)
    encoder = settings.new_encoder(method, list(slots.classes), seed)
    encoder.slots = slots
    return encoder


def _continued(
    number: int, images: ImageSet, previous: Encoder | None, replacement: Encoder | None, settings: Settings
) -> Encoder:
    """A copy of the replacement or of the previous version, with room for every class so far and the new ones."""
    base = replacement if replacement is not None else previous
    assert base is not None
    encoder = copy.deepcopy(base)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed * 1009 + number)  # the new rows of a trainable classifier
        if replacement is not None and previous is not None:
            encoder.join_slots(previous.slots)
        encoder.add_classes(images.classes, settings.side)
    return encoder


def _lanes(
    encoder: Encoder, images: ImageSet, memory: ReplayMemory, settings: Settings, progress: bool
) -> tuple[list[Lane], ImageSet]:
    """Where batches come from, and the new images without those that cannot be read."""
    lanes, kept = [], []
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
            kept.append(readable)
    return lanes, kept[0]


def weights_digest(encoder: Encoder) -> str:
    """A SHA-256 of an encoder's weights."""
    digest = hashlib.sha256()
    for name, value in sorted(encoder.state_dict().items()):
        digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _fingerprint(
    number: int,
    images: ImageSet,
    memory: ReplayMemory,
    method: Method,
    settings: Settings,
    replacement: Encoder | None,
) -> str:
    """A digest of all that the weights depend on."""
    content = {
        "replacement": None if replacement is None else weights_digest(replacement),
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
