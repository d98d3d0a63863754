"""Where the training of a version starts from."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass, field

import torch

from fixstar.data.image_set import ImageSet
from fixstar.data.replay import ReplayMemory
from fixstar.errors import ModelError
from fixstar.methods import Method, OldVectors
from fixstar.models import Encoder
from fixstar.models.classifiers import CLASSIFIERS
from fixstar.scenarios.settings import Settings

__all__ = ["Past", "growth_to_come", "require_its_classifier", "starting_encoder", "weights_digest"]


@dataclass(frozen=True, eq=False)
class Past:
    """What a version has behind it.

    A ``replacement`` takes the place of the previous version: training starts from it, and it becomes the teacher.
    ``pretrained`` weights are where a method starts that does not go on from the last version's. ``old_vectors`` may be
    all that is left of an old model. ``first`` is the oldest version whose vectors still count, for methods that hold
    a model to it as well.
    """

    previous: Encoder | None = None
    memory: ReplayMemory = field(default_factory=lambda: ReplayMemory(0))
    replacement: Encoder | None = None
    pretrained: Encoder | None = None
    old_vectors: OldVectors | None = None
    first: Encoder | None = None

    @property
    def predecessor(self) -> Encoder | None:
        """The model that the new version must agree with."""
        return self.previous if self.replacement is None else self.replacement


def starting_encoder(number: int, images: ImageSet, past: Past, method: Method, settings: Settings) -> Encoder:
    """The previous weights, the replacement's, or new ones; classes seen before keep their slots in any case."""
    require_its_classifier(past, method)
    base = past.replacement
    if base is None and method.initialisation == "previous":
        base = past.previous
    if base is None:
        base = past.pretrained
    if base is not None:
        return _continued(number, images, base, past.previous, settings)
    if past.previous is None:
        return settings.new_encoder(method, list(images.classes), settings.seed)
    _require_the_same_prototypes(past.previous, settings)
    seed = settings.seed if method.initialisation == "same" else settings.seed + 1_000_003 * number
    room = sum(growth_to_come(past.previous, settings.grown))
    slots = past.previous.slots.grown(room) if room else past.previous.slots
    slots = slots.assign(images.classes, settings.side)
    encoder = settings.new_encoder(method, list(slots.classes), seed)
    encoder.slots = slots
    return encoder


def require_its_classifier(past: Past, method: Method) -> None:
    """Refuse models of the past with another kind of classifier than the method trains.

    A method that starts each version anew may follow another kind where neither is fixed, as BCT may with its heads
    (tables 3 and 7): there a slot is only the number of a row.
    """
    kind, previous = method.classifier, past.previous
    anew = past.replacement is None and method.initialisation != "previous"
    models = [
        (past.replacement, "the replacement", "choose a method that goes on with it"),
        (past.pretrained, "the pre-trained model", "pre-train it with the same kind"),
    ]
    if previous is not None and (not anew or previous.classifier.fixed or CLASSIFIERS[kind].fixed):
        name = previous.about.get("version", "the previous version")
        models.insert(0, (previous, name, "choose a method that goes on with it"))
    for model, name, advice in models:
        if model is not None and model.classifier.kind != kind:
            raise ModelError(
                f"method {method.name!r} trains a {kind} classifier and {name} has a {model.classifier.kind} one; "
                f"{advice}"
            )


def growth_to_come(encoder: Encoder, grown: tuple[int, ...]) -> tuple[int, ...]:
    """The simplices among ``grown`` that an encoder does not have yet; one without capacity needs none."""
    done = encoder.classifier.added
    shared = min(len(done), len(grown))
    if done[:shared] != grown[:shared]:
        raise ModelError(
            f"this model has grown by {_sizes(done)}, the settings say {_sizes(grown)}; models that are to stay "
            "compatible grow alike, in the same order"
        )
    return grown[shared:] if encoder.classifier.fixed else ()


def _sizes(grown: tuple[int, ...]) -> str:
    return ", then ".join(map(str, grown))


def _require_the_same_prototypes(previous: Encoder, settings: Settings) -> None:
    """A version made from scratch must have the prototypes of the one before, or its classes' slots mean nothing."""
    head = previous.classifier
    old = (head.outputs - sum(head.added), *head.added)
    new = (settings.classifier_options.get("capacity", settings.capacity), *settings.grown)
    if head.fixed and new[: len(old)] != old:
        raise ModelError(
            f"the settings make room for {_sizes(new)} classes, the previous version has it for {_sizes(old)}: its "
            "classes would lose their prototypes. Keep its capacity, and grow as it has grown"
        )


def _continued(number: int, images: ImageSet, base: Encoder, previous: Encoder | None, settings: Settings) -> Encoder:
    """A copy of ``base`` with room for every class so far and the new ones."""
    encoder = copy.deepcopy(base)
    encoder.adapter = None  # it led to the version that it was made with
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed * 1009 + number)  # the new rows of a trainable classifier
        for extra in growth_to_come(encoder, settings.grown):
            encoder.grow(extra)
        if previous is not None and previous is not base:
            encoder.join_slots(previous)
        encoder.add_classes(images.classes, settings.side)
    return encoder


def weights_digest(encoder: Encoder) -> str:
    """A SHA-256 of an encoder's weights."""
    digest = hashlib.sha256()
    for name, value in sorted(encoder.state_dict().items()):
        digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
