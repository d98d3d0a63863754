"""Training one version: its starting point, the inputs of its weights, and the step that every scenario repeats."""

from __future__ import annotations

import copy
import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fixstar.data.batches import Batches, BatchSource
from fixstar.data.image_set import ImageSet
from fixstar.data.pixels import (
    PixelSource,
    ResidentFeatures,
    ResidentPixels,
    available_memory,
    pixel_source,
    resident_budget,
)
from fixstar.data.replay import HeldOut, ReplayMemory, hold_out
from fixstar.errors import InputError, ModelError, NextStep
from fixstar.evaluation import VerificationPairs, VersionFeatures, cross_test
from fixstar.evaluation.features import version_features
from fixstar.methods import METHODS, Method, OldVectors, Upgrade
from fixstar.models import Encoder, FrozenEncoder, Slots
from fixstar.models.classifiers import CLASSIFIERS
from fixstar.training.checkpoint import weights_digest
from fixstar.training.distributed import all_gather_json, local_device, world
from fixstar.training.features import FrozenFeatures
from fixstar.training.loop import EpochLog, train
from fixstar.training.run import Select, Training, ValidationScores, selected_epoch
from fixstar.training.settings import Settings
from fixstar.training.steps import SharedPixels
from fixstar.versions import version_name

_SHORT = 12  # hexadecimal digits of a part's digest
_PART_NAMES = {  # for settings whose name is not clear
    "grown": "growth",
    "previous": "the previous version",
    "first": "the first version",
    "replacement": "the model that replaces it",
    "pretrained": "the pre-trained model",
    "version": "the version's number",
    "images": "images (files, or the share held out)",
    "memory": "replayed images",
    "validation": "validation images",
    "replay_per_class": "replayed images per class",
    "bad_images": "the treatment of bad images",
    "side": "the side that slots are taken from",
}


@dataclass(frozen=True, eq=False)
class TrainingContext:
    """The state before a version is trained.

    Training starts from a ``replacement``, which becomes the teacher, or ``pretrained`` instead of the previous
    version. ``first`` is the oldest version in use. ``features`` is the folder for a frozen backbone's features.
    """

    previous: Encoder | None = None
    memory: ReplayMemory = field(default_factory=lambda: ReplayMemory(0))
    replacement: Encoder | None = None
    pretrained: Encoder | None = None
    old_vectors: OldVectors | None = None
    first: Encoder | None = None
    first_vectors: OldVectors | None = (
        None  # not in the fingerprint: determined by earlier versions and the memory
    )
    features: Path | None = None

    @property
    def predecessor(self) -> Encoder | None:
        """The model that the new version must be compatible with."""
        if self.replacement is None:
            return self.previous
        return self.replacement


@dataclass(frozen=True)
class Version:
    """A trained encoder with its number; one loaded from disk has no ``log`` and no ``images``."""

    number: int
    encoder: Encoder
    log: tuple[EpochLog, ...] = ()
    images: ImageSet | None = None

    @property
    def name(self) -> str:
        """v1, v2, ..."""
        return version_name(self.number)


def train_version(
    number: int,
    images: ImageSet,
    context: TrainingContext,
    method: Method,
    settings: Settings,
    checkpoint: Path | None = None,
    progress: bool = True,
    validation: Validation | None = None,
) -> Version:
    """Train version ``number``; with ``validation`` the best compatible epoch is kept (CoReS, eq. 11)."""
    world()  # joins the other processes, if any, before a device is used
    plan = VersionPlan(
        number=number,
        images=images,
        context=context,
        method=method,
        settings=settings,
        validation=validation,
    )
    device = local_device(settings.torch_device())
    predecessor = context.predecessor
    encoder = plan.starting_encoder().to(device)
    if len(encoder.slots) == 1:
        warnings.warn(
            f"there is only one class, {encoder.slots.classes[0]!r}: a model learns nothing from a single class. Give "
            "one folder per class, or the folder above if this is one class of several",
            stacklevel=2,
        )
    features = None
    if settings.frozen:
        flip = settings.augmentation.flip
        features = FrozenFeatures(
            encoder=encoder,
            folder=context.features,
            flip=flip,
            rotated=method.rotated,
            progress=progress,
        )
    teacher = None
    if predecessor is not None and {"old model", "old classifier"} & method.needs:
        teacher = _teacher(predecessor, encoder, features).to(device)
    first = None  # a second teacher, from the third version on, for methods that ask for it
    if method.first and context.first is not None and context.previous not in (None, context.first):
        first = _teacher(context.first, encoder, features).to(device)
    held = hold_out(
        images,
        memory=context.memory.images,
        share=method.hold_out if predecessor is not None else 0.0,
        seed=settings.seed,
        load=lambda part: part.load(encoder.preprocessing, settings.bad_images).images,
    )
    batches, readable = plan.batches(encoder, held, progress, features)
    upgrade = plan.upgrade(encoder, teacher, held._replace(images=readable), features)
    upgrade = replace(upgrade, first=first)
    fingerprint = plan.fingerprint()
    objective = method.objective(upgrade)
    select = None
    if validation is not None and predecessor is not None:
        encoder.about = plan.about([])  # says how versions of different widths are compared
        select = validation.select(predecessor, features)
    run = Training(
        encoder=encoder,
        objective=objective,
        batches=batches,
        recipe=settings.recipe,
        teacher=teacher
        if "old model" in method.needs
        else None,  # no forward pass if only its classifier is needed
        first=first,
        seed=plan.seed,
        checkpoint=checkpoint,
        fingerprint=fingerprint.whole,
        fingerprint_parts=fingerprint.parts,
        title=f"training v{number}",
        progress=progress,
        maps=method.maps,
        frozen=settings.frozen,
        select=select,
    )
    log = train(run)
    encoder.about = plan.about(log)
    return Version(number=number, encoder=encoder, log=tuple(log), images=readable)


def _teacher(
    predecessor: Encoder, encoder: Encoder, features: FrozenFeatures | None
) -> FrozenEncoder:
    """The predecessor, with the simplices that only the new version has: its features are zero there."""
    teacher = FrozenEncoder(predecessor, missing_growth(predecessor, encoder.classifier.added))
    if features is None:
        return teacher
    return teacher.reads(features.columns(predecessor), features.of)


def _budget(device: torch.device) -> int | None:
    """Maximum bytes of pixels in memory, the same on all ranks. The ranks of a machine share its memory."""
    here = world()
    if here.size == 1:
        return None
    return int(
        min(
            all_gather_json(
                min(resident_budget(device), available_memory() // (3 * here.local_size))
            )
        )
    )


def _shared(source: PixelSource) -> PixelSource:
    streamed = not isinstance(source, ResidentPixels | ResidentFeatures)
    if streamed and world().size > 1:
        return SharedPixels(source)
    return source


# The inputs of one version.


@dataclass(frozen=True, eq=False)
class VersionPlan:
    """Everything that the weights of version ``number`` depend on."""

    number: int
    images: ImageSet
    context: TrainingContext
    method: Method
    settings: Settings
    validation: Validation | None = None

    @property
    def seed(self) -> int:
        """The seed of batches, of new classifier rows, and of a method's random numbers."""
        return self.settings.seed * 1009 + self.number

    def starting_encoder(self) -> Encoder:
        """An encoder with previous, replacement or new weights. Classes seen before keep their slots."""
        require_same_classifier(self.context, self.method)
        encoder = self._started()
        _require_trainable(encoder, self.method, self.settings)
        if self.settings.frozen:
            encoder.project()  # otherwise a trainable classifier would not change the features
        return encoder

    def _started(self) -> Encoder:
        context = self.context
        method = self.method
        settings = self.settings
        base = context.replacement
        if base is None and method.initialisation == "previous":
            base = context.previous
        if base is None:
            base = context.pretrained
        if base is not None:
            return self._continued(base)
        if context.previous is None:
            return settings.new_encoder(method, list(self.images.classes), settings.seed)
        _require_same_prototypes(context.previous, settings)
        if method.initialisation == "same":
            seed = settings.seed
        else:
            seed = settings.seed + 1_000_003 * self.number
        room = sum(missing_growth(context.previous, settings.grown))
        if room:
            slots = context.previous.slots.grown(room)
        else:
            slots = context.previous.slots
        slots = slots.assign(self.images.classes, settings.side)
        encoder = settings.new_encoder(method, list(slots.classes), seed)
        encoder.slots = slots
        return encoder

    def _continued(self, base: Encoder) -> Encoder:
        """A copy of ``base`` with slots for every class so far; a replacement loses its other trainable outputs."""
        context = self.context
        settings = self.settings
        images = self.images
        previous = context.previous
        encoder = copy.deepcopy(base)
        encoder.adapter = None  # it maps to ``base``, not to the new version
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)  # for new rows of a trainable classifier
            for extra in missing_growth(encoder, settings.grown):
                encoder.grow(extra)
            if base is context.replacement and not encoder.classifier.fixed:
                known: tuple[str, ...] = ()
                if previous is not None:
                    known = previous.slots.classes
                encoder.leave_classes(list(dict.fromkeys([*known, *images.classes])))
            if previous is not None and previous is not base:
                encoder.join_slots(previous)
            encoder.add_classes(images.classes, settings.side)
        return encoder

    def batches(
        self, encoder: Encoder, held: HeldOut, progress: bool, features: FrozenFeatures | None
    ) -> tuple[Batches, ImageSet]:
        """Batches of new and replayed images, and the readable new images."""
        method = self.method
        settings = self.settings
        sources = []
        kept = []
        for part, replay in ((held.images, False), (held.memory, True)):
            if part is not None and len(part):
                source: PixelSource
                if features is not None:
                    source, readable = features.source(part, settings.bad_images)
                else:
                    source, readable = pixel_source(
                        images=part,
                        preprocessing=encoder.preprocessing,
                        augmentation=settings.augmentation,
                        device=encoder.device,
                        bad=settings.bad_images,
                        budget=_budget(encoder.device),
                        show_progress=progress and world().is_rank_zero,
                    )
                targets = encoder.targets(readable.classes)[torch.from_numpy(readable.labels)]
                sources.append(BatchSource(_shared(source), targets, replay))
                kept.append(readable)
        batches = Batches(
            sources=sources,
            batch_size=settings.recipe.batch_size,
            augmentation=settings.augmentation,
            seed=self.seed,
            views=method.views,
            rotated=method.rotated,
        )
        return batches, kept[0]

    def upgrade(
        self,
        encoder: Encoder,
        teacher: FrozenEncoder | None,
        held: HeldOut,
        features: FrozenFeatures | None,
    ) -> Upgrade:
        """The upgrade that the method's objective is built for."""
        context = self.context
        predecessor = self.context.predecessor
        images = held.images
        if predecessor is not None:
            known = predecessor.slots
        else:
            known = Slots()
        new = tuple(name for name in images.classes if name not in known)
        vectors = context.old_vectors or context.first_vectors
        if vectors is None and predecessor is not None and "old vectors" in self.method.needs:
            seen = images.of_classes([name for name in images.classes if name in known])
            if len(seen):  # the vectors that a gallery would store for them
                shown: Any = seen.images
                if features is not None:
                    shown = features.of(predecessor, seen.images)
                vectors = OldVectors(
                    FrozenEncoder(predecessor).encode(shown), seen.labels, seen.classes
                )
        return Upgrade(
            encoder=encoder,
            teacher=teacher,
            images=images,
            old_classes=known.classes,
            new_classes=new,
            memory=held.memory,
            held_out=held.held_out,
            old_vectors=vectors,
            seed=self.seed,
        )

    def fingerprint(self) -> Fingerprint:
        """Digests of everything that the weights depend on."""
        number = self.number
        images = self.images
        context = self.context
        method = self.method
        memory = context.memory.images
        vectors = context.old_vectors
        models = {
            name: getattr(context, name)
            for name in ("previous", "replacement", "first", "pretrained")
        }
        parts: dict[str, Any] = {
            **{
                name: None if model is None else weights_digest(model)
                for name, model in models.items()
            },
            "old vectors": None if vectors is None else _vectors_digest(vectors),
            "version": number,
            "images": images.fingerprint(),
            "classes": list(images.classes),
            "memory": None if memory is None else memory.fingerprint(),
            "validation": self.validation and self.validation.fingerprint(),
            "method": method.name,
            "method options": dict(method.options),
            "starting weights": method.initialisation,
            **_flat(self.settings.to_json()),
        }
        names = {name: _PART_NAMES.get(name, name.replace("_", " ")) for name in parts}
        return Fingerprint(
            _digest(parts), {names[name]: _digest(value)[:_SHORT] for name, value in parts.items()}
        )

    def about(self, log: list[EpochLog]) -> dict[str, object]:
        """The origin of a version, for its card; epochs count from 1."""
        number = self.number
        images = self.images
        context = self.context
        method = self.method
        selectable = [(entry.epoch + 1, entry.scores) for entry in log if entry.scores is not None]
        best = selected_epoch([scores for _, scores in selectable])
        data = {"name": images.name, "images": len(images), "classes": len(images.classes)}
        return {
            "version": version_name(number),
            "parent": version_name(number - 1) if number > 1 else None,
            "method": {
                "name": method.name,
                "options": dict(method.options),
                "initialisation": method.initialisation,
                "source": method.source,
                "shared_components": method.shared_components,
            },
            "replacement": None
            if context.replacement is None
            else weights_digest(context.replacement),
            "data": {**data, "fingerprint": images.fingerprint()},
            "validation": self.validation and self.validation.fingerprint(),
            "settings": self.settings.to_json(),
            "loss": log[-1].terms if log else {},
            "selected_epoch": None if best is None else selectable[best][0],
        }


def _require_trainable(encoder: Encoder, method: Method, settings: Settings) -> None:
    """Refuse what cannot be trained: a backbone without trainable weights, or a loss on frozen feature maps."""
    if settings.frozen and method.maps:
        raise InputError(
            f"method {method.name!r} compares feature maps, and a frozen backbone's never change; choose another method"
        )
    if not settings.frozen and not any(p.requires_grad for p in encoder.backbone.parameters()):
        raise InputError(
            f"the backbone {settings.backbone} has no weights that can be trained: an ONNX model only runs. Train the "
            "layers after it, with a frozen backbone",
            NextStep("repeat", {"frozen": True}),
        )


def require_same_classifier(context: TrainingContext, method: Method) -> None:
    """Refuse a different kind of classifier from earlier models, unless neither is fixed and weights are new."""
    kind = method.classifier
    previous = context.previous
    from_new_weights = context.replacement is None and method.initialisation != "previous"
    models = [
        (context.replacement, "the replacement"),
        (context.pretrained, "the pre-trained model"),
    ]
    if previous is not None and (
        not from_new_weights or previous.classifier.fixed or CLASSIFIERS[kind].fixed
    ):
        name = previous.about.get("version", "the previous version")
        models.insert(0, (previous, name))
    for model, name in models:
        if model is not None and (theirs := model.classifier.kind) != kind:
            fitting = [one for one, factory in METHODS.items() if factory().classifier == theirs]
            raise ModelError(
                f"method {method.name!r} trains a {kind} classifier and {name} has a {theirs} one. Methods that train "
                f"that kind: {', '.join(fitting) or 'none'}"
                + ("; or pre-train it with the same kind" if model is context.pretrained else "")
            )


def missing_growth(encoder: Encoder, grown: tuple[int, ...]) -> tuple[int, ...]:
    """The simplices among ``grown`` that an encoder does not have yet; a classifier without capacity needs none."""
    done = encoder.classifier.added
    shared = min(len(done), len(grown))
    if done[:shared] != grown[:shared]:
        raise ModelError(
            f"this model has grown by {_sizes(done)}, the settings say {_sizes(grown)}; compatible models must grow by "
            "the same capacities in the same order"
        )
    if encoder.classifier.fixed:
        return grown[shared:]
    return ()


def _sizes(grown: tuple[int, ...]) -> str:
    return ", then ".join(map(str, grown))


def _require_same_prototypes(previous: Encoder, settings: Settings) -> None:
    """Raise unless a version from new weights has the prototypes of the previous one, as slots refer to them."""
    head = previous.classifier
    old = (head.outputs - sum(head.added), *head.added)
    new = (settings.classifier_options.get("capacity", settings.capacity), *settings.grown)
    if head.fixed and new[: len(old)] != old:
        raise ModelError(
            f"the settings have room for {_sizes(new)} classes, the previous version for {_sizes(old)}: its classes "
            "would lose their prototypes. Keep its capacity and its growth"
        )


# Fingerprints.


class Fingerprint(NamedTuple):
    """A digest of everything that the weights depend on, and one per part, to report differences."""

    whole: str
    parts: dict[str, str]


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a flat mapping, with those of the recipe and of the augmentation."""
    nested = ("recipe", "augmentation")
    flat = {name: value for name, value in settings.items() if name not in nested}
    return flat | {name: value for part in nested for name, value in settings[part].items()}


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _vectors_digest(stored: OldVectors) -> str:
    digest = hashlib.sha256(
        json.dumps([stored.classes, stored.vectors.shape, str(stored.vectors.dtype)]).encode()
    )
    digest.update(stored.vectors.tobytes() + stored.labels.astype("int64").tobytes())
    return digest.hexdigest()


# Validation data, for choosing the best compatible epoch of an upgrade (CoReS, section 4.3).


@dataclass(frozen=True)
class Validation:
    """Labelled images like those of the gallery (eq. 11's G-hat) and queries for them, of the same classes."""

    queries: ImageSet
    gallery: ImageSet
    protocol: str = "template"
    pairs: VerificationPairs | None = None

    def __post_init__(self) -> None:
        if self.queries.classes != self.gallery.classes:
            raise InputError(
                "queries and gallery must name the same classes in the same order, got "
                f"{self.queries.classes} and {self.gallery.classes}; use of_classes on one of them"
            )

    def select(self, previous: Encoder, made: FrozenFeatures | None = None) -> Select:
        """A function that scores a model after an epoch against ``previous``, whose self-test is run once."""
        kept: dict[
            tuple[Encoder, int], Any
        ] = {}  # a frozen backbone's features do not change between epochs

        def features(model: Encoder, images: Any) -> Any:
            assert made is not None
            if (model, id(images)) not in kept:
                kept[model, id(images)] = made.of(model, images)
            return kept[model, id(images)]

        def embedded(name: str, model: Encoder) -> VersionFeatures:
            return version_features(
                name,
                encoder=model,
                queries=self.queries,
                gallery=self.gallery,
                made=features if made else None,
            )

        old = embedded("old", previous)
        old_self_test = float(self._matrix(old)[0, 0])

        def scores(encoder: Encoder) -> ValidationScores:
            matrix = self._matrix(old, embedded("new", encoder))
            return ValidationScores(float(matrix[1, 1]), float(matrix[1, 0]), old_self_test)

        return scores

    def _matrix(self, *features: VersionFeatures) -> NDArray[np.float64]:
        labels = self.queries.labels, self.gallery.labels
        return cross_test(features, *labels, self.protocol, pairs=self.pairs).matrix

    def fingerprint(self) -> str:
        """A digest of both sets, the protocol and the pairs."""
        pairs = ""
        if self.pairs is not None:
            pairs = " " + _digest([rows.tolist() for rows in vars(self.pairs).values()])
        return f"{self.queries.fingerprint()} {self.gallery.fingerprint()} {self.protocol}{pairs}"
