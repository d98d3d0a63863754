"""Training one version: the step that every scenario repeats."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from fixstar.data.batches import Batches, Lane
from fixstar.data.budget import available_memory, resident_budget
from fixstar.data.image_set import ImageSet
from fixstar.data.pixels import PixelSource, ResidentPixels, pixel_source
from fixstar.data.replay import HeldOut, hold_out
from fixstar.methods import Method, OldVectors, Upgrade
from fixstar.models import Encoder, FrozenEncoder, Slots
from fixstar.scenarios.fingerprint import fingerprint_of
from fixstar.scenarios.settings import Settings
from fixstar.scenarios.start import Past, growth_to_come, starting_encoder, weights_digest
from fixstar.scenarios.validation import Validation
from fixstar.training import EpochLog, Training, train
from fixstar.training.distributed import local_device, told_by_all, world
from fixstar.training.selection import selected_epoch
from fixstar.training.shared_step import SharedPixels

__all__ = ["Version", "train_version"]


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
    past: Past,
    method: Method,
    settings: Settings,
    checkpoint: Path | None = None,
    progress: bool = True,
    validation: Validation | None = None,
) -> Version:
    """Train version ``number`` on ``images`` and the memory, from where the method starts.

    With ``validation`` the epoch is kept that does best among the compatible ones (CoReS, eq. 11).
    """
    world()  # joins the other processes, if any, before a device is touched
    device = local_device(settings.torch_device())
    encoder = starting_encoder(number, images, past, method, settings).to(device)
    _warn_of_one_class(encoder)
    predecessor, seed = past.predecessor, settings.seed * 1009 + number
    teacher = _teacher(predecessor, encoder).to(device) if predecessor is not None and _needs_teacher(method) else None
    shown = hold_out(
        images,
        past.memory.images,
        method.hold_out if predecessor is not None else 0.0,
        settings.seed,
        lambda part: part.load(encoder.preprocessing, settings.bad_images).images,
    )
    batches, readable = _batches(encoder, shown.images, shown.memory, method, settings, number, progress)
    upgrade = _upgrade(encoder, teacher, shown._replace(images=readable), past, method, seed)
    fingerprint = fingerprint_of(number, images, past, method, settings, validation)
    run = Training(
        encoder=encoder,
        objective=method.objective(upgrade),
        batches=batches,
        recipe=settings.recipe,
        teacher=teacher if "old model" in method.needs else None,  # its classifier alone needs no forward pass
        first=_first(past, encoder, method, device),
        seed=seed,
        checkpoint=checkpoint,
        fingerprint=fingerprint.whole,
        fingerprint_parts=fingerprint.parts,
        title=f"training v{number}",
        progress=progress,
        maps=method.maps,
        select=validation.select(predecessor) if validation is not None and predecessor is not None else None,
    )
    log = train(run)
    encoder.about = _about(number, images, past, method, settings, log, validation)
    return Version(number, encoder, tuple(log), readable)


def _warn_of_one_class(encoder: Encoder) -> None:
    """Such a version is trained all the same: classes may follow. Alone it shows nothing, and neither does a check."""
    if len(encoder.slots) == 1:
        warnings.warn(
            f"there is one class only, {encoder.slots.classes[0]!r}: a model learns nothing where there is nothing to "
            "tell apart. Give one folder a class, or the folder above if this is one class of several",
            stacklevel=3,
        )


def _teacher(predecessor: Encoder, encoder: Encoder) -> FrozenEncoder:
    """The predecessor, with the simplices that the new version has and it lacks: its features are zero there."""
    return FrozenEncoder(predecessor, growth_to_come(predecessor, encoder.classifier.added))


def _first(past: Past, encoder: Encoder, method: Method, device: torch.device) -> FrozenEncoder | None:
    """The first version as a second teacher, from the third version on, for methods that ask for it."""
    first = past.first
    if first is None or first is past.previous or past.previous is None or not method.first:
        return None
    return _teacher(first, encoder).to(device)


def _needs_teacher(method: Method) -> bool:
    return bool({"old model", "old classifier"} & method.needs)


def _upgrade(
    encoder: Encoder,
    teacher: FrozenEncoder | None,
    shown: HeldOut,
    past: Past,
    method: Method,
    seed: int,
) -> Upgrade:
    predecessor, images = past.predecessor, shown.images
    known = predecessor.slots if predecessor is not None else Slots()
    new = tuple(name for name in images.classes if name not in known)
    vectors = past.old_vectors
    if vectors is None and predecessor is not None and "old vectors" in method.needs:
        vectors = _stored(predecessor, images.of_classes([name for name in images.classes if name in known]))
    return Upgrade(encoder, teacher, images, known.classes, new, shown.memory, shown.held_out, vectors, seed)


def _stored(predecessor: Encoder, images: ImageSet) -> OldVectors | None:
    """The vectors that a gallery would hold of these images, which may be fitted to a successor of another size."""
    if not len(images):
        return None
    return OldVectors(FrozenEncoder(predecessor).encode(images.images), images.labels, images.classes)


def _batches(
    encoder: Encoder,
    images: ImageSet,
    memory: ImageSet | None,
    method: Method,
    settings: Settings,
    number: int,
    progress: bool,
) -> tuple[Batches, ImageSet]:
    """Batches of new and replayed images, and the new images without those that cannot be read."""
    lanes, kept = [], []
    for part, replay in ((images, False), (memory, True)):
        if part is not None and len(part):
            source, readable = pixel_source(
                part,
                encoder.preprocessing,
                settings.augmentation,
                encoder.device,
                settings.bad_images,
                _budget(encoder.device),
                show_progress=progress and world().first,
            )
            targets = encoder.targets(readable.classes)[torch.from_numpy(readable.labels)]
            lanes.append(Lane(_shared(source), targets, replay))
            kept.append(readable)
    seed = settings.seed * 1009 + number
    batches = Batches(lanes, settings.recipe.batch_size, settings.augmentation, seed, method.views, method.rotated)
    return batches, kept[0]


def _budget(device: torch.device) -> int | None:
    """Bytes of pixels that may stay in memory, the same in all processes, which share the memory of their machine."""
    here = world()
    if here.size == 1:
        return None
    return int(min(told_by_all(min(resident_budget(device), available_memory() // (3 * here.local_size)))))


def _shared(source: PixelSource) -> PixelSource:
    return source if isinstance(source, ResidentPixels) or world().size == 1 else SharedPixels(source)


def _selected(log: list[EpochLog]) -> int | None:
    """The epoch, counted from 1, whose weights model selection kept; None where it was not asked, or found none."""
    judged = [entry for entry in log if entry.standing is not None]
    best = selected_epoch([entry.standing for entry in judged if entry.standing is not None])
    return None if best is None else judged[best].epoch + 1


def _about(
    number: int,
    images: ImageSet,
    past: Past,
    method: Method,
    settings: Settings,
    log: list[EpochLog],
    validation: Validation | None,
) -> dict[str, object]:
    way = {"name": method.name, "options": dict(method.options), "initialisation": method.initialisation}
    return {
        "version": f"v{number}",
        "parent": f"v{number - 1}" if number > 1 else None,
        "method": {**way, "source": method.source},
        "replacement": None if past.replacement is None else weights_digest(past.replacement),
        "data": {"name": images.name, "images": len(images), "classes": len(images.classes)}
        | {"fingerprint": images.fingerprint()},
        "validation": None if validation is None else validation.fingerprint(),
        "settings": settings.to_json(),
        "loss": log[-1].terms if log else {},
        "selected_epoch": _selected(log),
    }
