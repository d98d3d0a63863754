"""Training the versions of a workspace: the first, and every upgrade."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fixstar.data.image_set import ImageSet
from fixstar.data.replay import ReplayMemory
from fixstar.errors import CheckpointError, InputError, ModelError, UnknownNameError
from fixstar.evaluation.verification import gallery_query_split
from fixstar.methods import Method, OldVectors, create_method
from fixstar.models import Encoder, backbone_names
from fixstar.scenarios import Past, Settings, Validation, Version, train_version
from fixstar.scenarios.run_directory import RunDirectory
from fixstar.scenarios.sequences import remember
from fixstar.scenarios.start import require_its_classifier, weights_digest
from fixstar.training import Recipe
from fixstar.training.distributed import on_first
from fixstar.workspace.held_out import SHARE, SplitOff, keep_held_out, keep_learnt, split_off
from fixstar.workspace.reachability import OLD_WIDTH
from fixstar.workspace.registry import Registry

__all__ = ["UpgradeOptions", "VersionTraining"]

Bad = Literal["refuse", "skip"]


@dataclass(frozen=True)
class UpgradeOptions:
    """How the next version differs from the last: what is None stays as it was.

    ``from_scratch`` starts from random weights instead of the last version's. ``replace`` takes another model as the
    start: the name of a backbone, or a directory with a saved encoder. ``keep_images=False`` trains without replayed
    images and keeps none, nor do later versions. ``hold_out`` is the share of images that the gate asks about instead
    of training on them; with ``select`` they also choose the epoch (CoReS, eq. 11).
    """

    recipe: Recipe | None = None
    method: Method | None = None
    device: str = "auto"
    bad_images: Bad = "refuse"
    from_scratch: bool = False
    replace: str | None = None
    keep_images: bool = True
    hold_out: float = 0.0
    select: bool = False
    progress: bool = True


@dataclass(frozen=True)
class VersionTraining:
    """The trainer of one workspace directory."""

    path: Path

    @property
    def registry(self) -> Registry:
        """The finished versions."""
        return Registry(self.path)

    @property
    def run(self) -> RunDirectory:
        """Where checkpoints and memories are."""
        return RunDirectory(self.path)

    def first(
        self,
        images: ImageSet,
        settings: Settings,
        method: Method,
        old_vectors: OldVectors | None = None,
        hold_out: float = 0.0,
        progress: bool = True,
    ) -> Version:
        """Train v1; see ``Workspace.train``."""
        if (old_vectors is not None) != ("old vectors" in method.needs):
            raise InputError(
                f"method {method.name!r} trains without old vectors; take --method bct-vectors for them"
                if old_vectors is not None
                else f"method {method.name!r} needs the vectors to stay compatible with: give --old-vectors FILE.npz"
            )
        if names := self.registry.names():
            raise InputError(
                f"{self.path} has {names[-1]} already; train its successor with: fixstar upgrade IMAGES -w {self.path}"
            )
        past = Past(None, ReplayMemory(settings.replay_per_class), old_vectors=old_vectors)
        split = split_off(images, hold_out)
        about = {SHARE: hold_out if split.held is not None else 0.0}
        if old_vectors is not None:
            about[OLD_WIDTH] = old_vectors.vectors.shape[1]
        return self._next(split, past, settings, method, None, about, progress)

    def upgrade(self, images: ImageSet, options: UpgradeOptions) -> Version:
        """Train the next version; see ``Workspace.upgrade``."""
        newest, (settings, last_method, about) = self.newest(), self.trained()
        settings = replace(
            settings,
            device=options.device,
            bad_images=options.bad_images,
            recipe=options.recipe or settings.recipe,
            grown=self.registry.growth(),
        )
        if options.hold_out and not (options.keep_images or options.select):
            raise InputError("--hold-out keeps images, and --keep-images no says not to; leave one of them out")
        if not options.keep_images:
            settings = replace(settings, replay_per_class=0)
        previous = self.registry.encoder(newest)
        past, settings, method = _started(Past(previous), settings, options.method or last_method, options)
        split = split_off(images, options.hold_out)
        validation = _validation(split.held) if options.select else None
        if _is_done(about, split.shown, past, settings, method, validation):
            raise InputError(f"{newest} was trained on exactly these images in exactly this way; the upgrade is done")
        require_its_classifier(past, method)
        _check_classes(method, previous, images, newest)
        if options.keep_images:
            past = replace(past, memory=ReplayMemory.load(self.run.memory(int(newest[1:]))))
        told = {SHARE: options.hold_out if split.held is not None else 0.0}
        kept = split if options.keep_images else split._replace(held=None)
        return self._next(kept, past, settings, method, validation, told, options.progress)

    def newest(self) -> str:
        """The name of the newest version."""
        if not (names := self.registry.names()):
            raise InputError(
                f"{self.path} has no version yet; train the first with: fixstar train IMAGES -w {self.path}"
            )
        return names[-1]

    def trained(self) -> tuple[Settings, Method, dict[str, Any]]:
        """How the newest version was trained, from its card alone: settings, method, and what else it says."""
        name = self.newest()
        try:
            about: dict[str, Any] = self.registry.card(name)["about"]
            method = create_method(about["method"]["name"], **about["method"]["options"])
            return Settings.from_json(about["settings"]), method, about
        except (AttributeError, KeyError, TypeError) as error:
            raise ModelError(f"the card of {name} does not say how it was trained (missing or odd: {error})") from error

    def _next(
        self,
        split: SplitOff,
        past: Past,
        settings: Settings,
        method: Method,
        validation: Validation | None,
        about: dict[str, float],
        progress: bool,
    ) -> Version:
        """Train the next version; its card says ``about`` too."""
        number = self.registry.next_number()
        shown = past if method.scenario == "lifelong" else replace(past, memory=ReplayMemory(0))
        _refuse_too_few(split.shown, shown)
        with self.run.held():
            if self.run.finished(number):
                raise CheckpointError(f"another process has just finished v{number} in {self.path}; run again")
            checkpoint = self.run.checkpoint(number)
            version = train_version(number, split.shown, shown, method, settings, checkpoint, progress, validation)
            version.encoder.about.update(about)
            on_first(lambda: self._keep_apart(version, split))
            self.run.finish(number, version.encoder, remember(past.memory, version, settings))
        return version

    def _keep_apart(self, version: Version, split: SplitOff) -> None:
        """What the gate needs to know: which images the version has learnt, and those that it has not."""
        name = f"v{version.number}"
        keep_learnt(self.path, name, split.drawn)
        if split.held is not None:
            keep_held_out(self.path, name, split.held, version.encoder.preprocessing)


def _refuse_too_few(images: ImageSet, past: Past) -> None:
    """Before anything else is said: one image makes no batch. Replayed ones count."""
    replayed = len(past.memory.images or ())
    if (seen := len(images) + replayed) < 2:
        kinds = sum(count > 0 for count in images.counts().values())
        raise InputError(
            f"{seen} image{'s' * (seen != 1)} of {kinds} class{'es' * (kinds != 1)} to train on: it takes at least 2 "
            "images, and 2 classes for anything to be learnt. Give a folder with one folder a class, or a list (.csv "
            "with the columns path and label)"
        )


def _is_done(
    about: dict[str, Any],
    images: ImageSet,
    past: Past,
    settings: Settings,
    method: Method,
    validation: Validation | None,
) -> bool:
    """Whether the newest version is what this upgrade would make: a retried command must not make another.

    Images that cannot be read may have been refused at first and left out later.
    """
    way, last, now = about["method"], dict(about["settings"]), json.loads(json.dumps(settings.to_json()))
    last["bad_images"] = now["bad_images"]
    return (
        about.get("parent") is not None
        and (way["name"], way["options"]) == (method.name, dict(method.options))
        and way.get("initialisation", method.initialisation) == method.initialisation
        and about.get("replacement") == (None if past.replacement is None else weights_digest(past.replacement))
        and about.get("validation") == (None if validation is None else validation.fingerprint())
        and last == now
        and about.get("data", {}).get("fingerprint") == images.fingerprint()
    )


def _check_classes(method: Method, previous: Encoder, images: ImageSet, newest: str) -> None:
    missing = [name for name in previous.slots.classes if name not in images.classes]
    if missing and "all images" in method.needs:
        raise InputError(
            f"method {method.name!r} retrains on all images so far, and {len(missing)} classes of "
            f"{newest} are not among these ({', '.join(missing[:5])}, ...). "
            "Give a folder with old and new classes, or take a lifelong method such as hoc"
        )


def _started(past: Past, settings: Settings, method: Method, options: UpgradeOptions) -> tuple[Past, Settings, Method]:
    """Where training starts, if not from the last version's weights."""
    if options.replace is not None and options.from_scratch:
        raise InputError("--from-scratch and --replace both say where to start; give one of them")
    if options.from_scratch:
        return past, settings, replace(method, initialisation="fresh")
    if options.replace is None:
        return past, settings, method
    if Path(options.replace).is_dir():
        model = Encoder.load(options.replace)
        body, shape = model.backbone.name, dict(model.backbone.options)
        return replace(past, replacement=model), replace(settings, backbone=body, backbone_options=shape), method
    if options.replace not in (known := backbone_names()) and not options.replace.startswith("hf:"):
        raise UnknownNameError("backbone", options.replace, known, "Or name a directory with a saved model")
    other = replace(settings, backbone=options.replace, backbone_options={})
    return past, settings if other.backbone == settings.backbone else other, replace(method, initialisation="fresh")


def _validation(held: ImageSet | None) -> Validation:
    """The images held out, half of each class as gallery and half as queries."""
    if held is None:
        raise InputError("choosing the epoch needs images that are not trained on: give --hold-out 0.1")
    counts = held.counts()
    several = held.of_classes([name for name in held.classes if counts[name] >= 2])
    if not len(several):
        raise InputError("of no class two images were held out; hold out more, or train without --select")
    split = gallery_query_split(several.labels, seed=0)
    return Validation(several.take(split.queries), several.take(split.gallery))
