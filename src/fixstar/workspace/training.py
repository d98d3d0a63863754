"""Training the versions of a workspace: the first, and every upgrade. Imported only to train."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fixstar.data.image_set import ImageSet
from fixstar.data.replay import ReplayMemory
from fixstar.errors import CheckpointError, InputError, NextStep, UnknownNameError, plural
from fixstar.evaluation.verification import gallery_query_split
from fixstar.images import Preprocessing
from fixstar.methods import Method, OldVectors, create_method
from fixstar.models import Encoder, backbone_names
from fixstar.training import Recipe, Settings, TrainingContext, Validation, Version, train_version
from fixstar.training.checkpoint import weights_digest
from fixstar.training.distributed import on_rank_zero
from fixstar.training.run_directory import RunDirectory
from fixstar.training.scenarios import remember
from fixstar.training.version import require_same_classifier
from fixstar.workspace.held_out import SHARE, SplitOff, keep_held_out, keep_learnt, split_off, unlearnt_images
from fixstar.workspace.reachability import OLD_WIDTH
from fixstar.workspace.registry import Registry
from fixstar.workspace.trials import Say, Setup, Trials, alternatives, checked_trials, choose_setup, delete_trials


class AlreadyTrainedError(InputError):
    """The newest version is what the upgrade would make."""


@dataclass(frozen=True)
class UpgradeOptions:
    """How the next version differs from the last: what is None stays the same. Trials do not vary what is given.

    ``start`` names another version than the newest to continue from; ``from_scratch`` takes random weights; ``replace``
    another model: a backbone, with its ``preprocessing``, or the directory of an encoder. ``keep_images=False`` neither
    replays nor keeps images. ``hold_out`` is the share kept for the gate; with ``select`` it chooses the epoch (CoReS,
    eq. 11).
    """

    recipe: Recipe | None = None
    method: Method | None = None
    learning_rate: float | None = None
    start: str | None = None
    seed: int | None = None
    device: str = "auto"
    bad_images: Literal["refuse", "skip"] = "refuse"
    from_scratch: bool = False
    replace: str | None = None
    preprocessing: Preprocessing | None = None
    frozen: bool | None = None
    keep_images: bool = True
    hold_out: float = 0.0
    select: bool = False
    progress: bool = True


def train_first(
    registry: Registry,
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
            f"method {method.name!r} trains without old vectors; bct-vectors uses them"
            if old_vectors is not None
            else f"method {method.name!r} needs the vectors to stay compatible with",
            NextStep("train", {"data": ..., "method": "bct-vectors", "old_vectors": ...}),
        )
    if names := registry.names():
        raise InputError(f"{registry.path} has {names[-1]} already", NextStep("upgrade", {"data": ...}))
    features = RunDirectory(registry.path).features
    past = TrainingContext(None, ReplayMemory(settings.replay_per_class), old_vectors=old_vectors, features=features)
    split = split_off(images, hold_out)
    about = {SHARE: hold_out if split.held is not None else 0.0}
    if old_vectors is not None:
        about[OLD_WIDTH] = old_vectors.vectors.shape[1]
    with _next_version(registry) as (run, number):
        return _train_in(run, number, split, Setup("first", "", past, settings, method), None, about, progress)


def train_upgrade(registry: Registry, images: ImageSet, options: UpgradeOptions, trials: Trials, say: Say) -> Version:
    """Train the next version; see ``Workspace.upgrade``."""
    newest, trials = registry.newest(), checked_trials(trials)
    about = trained_with(registry, newest)[2]
    if options.hold_out and not (options.keep_images or options.select):
        raise InputError("hold_out keeps images, and keep_images=False says not to; use only one of them")
    setups = _setups(registry, options)
    base = setups[0]
    split = split_off(images, options.hold_out)
    validation = _validation(split.held) if options.select else None
    repeated = options.start in (None, about.get("parent"))
    for setup in setups if about.get("trials") else [base]:
        if repeated and _is_done(about, split.shown, setup.past, setup.settings, setup.method, validation):
            raise AlreadyTrainedError(
                f"{newest} was trained on exactly these images in exactly this way; the upgrade is done"
            )
    require_same_classifier(base.past, base.method)
    missing = [name for name in base.previous.slots.classes if name not in images.classes]
    if missing and "all images" in base.method.needs:
        raise InputError(
            f"method {base.method.name!r} retrains on all images so far, and {plural(len(missing), 'class')} of "
            f"{base.start} {'is' if len(missing) == 1 else 'are'} not among these ({', '.join(missing[:5])}, ...). "
            "Give a folder with old and new classes, or use a lifelong method such as polaris"
        )
    kept = split if options.keep_images else split._replace(held=None)
    with _next_version(registry) as (run, number):
        held_out = unlearnt_images(registry, newest, [], base.previous.preprocessing, split).images if trials else None
        progress = options.progress
        setup, tried = choose_setup(registry.path, number, setups, split.shown, held_out, trials, progress, say)
        card: dict[str, Any] = {SHARE: options.hold_out if split.held is not None else 0.0, "parent": setup.start}
        if tried:
            card["trials"] = [asdict(one) for one in tried]
        version = _train_in(run, number, kept, setup, validation, card, progress)
        on_rank_zero(lambda: delete_trials(registry.path, number + 1))
    return version


def _setups(registry: Registry, options: UpgradeOptions) -> list[Setup]:
    """What is asked for, and other settings worth a trial."""
    newest, known = registry.newest(), registry.names()
    start = newest if options.start is None else registry.checked(options.start)
    base = _setup(registry, start, options)
    first = next(name for name in registry.lineage(start) if name in known)  # older ones are retired
    last_rate = trained_with(registry, start)[0].recipe.learning_rate
    first_rate = trained_with(registry, first)[0].recipe.learning_rate
    rate_is_free = options.learning_rate is None and (
        options.recipe is None or options.recipe.learning_rate == last_rate
    )
    setups = alternatives(base, first_rate, options.method is None, rate_is_free)
    continues = options.start is None and options.replace is None and base.method.initialisation == "previous"
    if continues and first != start:
        setups.append(replace(_setup(registry, first, replace(options, method=base.method)), name=f"from {first}"))
    return setups


def _setup(registry: Registry, start: str, options: UpgradeOptions) -> Setup:
    settings, last_method, _ = trained_with(registry, start)
    recipe = options.recipe or settings.recipe
    settings = replace(
        settings,
        device=options.device,
        bad_images=options.bad_images,
        recipe=recipe if options.learning_rate is None else replace(recipe, learning_rate=options.learning_rate),
        seed=settings.seed if options.seed is None else options.seed,
        frozen=settings.frozen if options.frozen is None else options.frozen,
        grown=registry.growth(),
        replay_per_class=settings.replay_per_class if options.keep_images else 0,
    )
    previous, known = registry.encoder(start), registry.names()
    first = next(name for name in registry.lineage(start) if name in known)
    past = TrainingContext(
        previous,
        first=previous if first == start else registry.encoder(first),
        features=RunDirectory(registry.path).features,
    )
    past, settings, method = _starting_point(past, settings, options.method or last_method, options)
    if options.keep_images:
        past = replace(past, memory=ReplayMemory.load(RunDirectory(registry.path).memory(int(start[1:]))))
    return Setup(f"as {start}", start, past, settings, method)


def add_version(registry: Registry, encoder: Encoder, compatible_with: str | None, source: str) -> str:
    """Store a model from elsewhere as the next version; see ``Workspace.add_version``."""
    digest, run = weights_digest(encoder), RunDirectory(registry.path)
    with run.locked():
        for name in registry.names():
            if registry.card(name)["about"].get("added", {}).get("weights") == digest:
                raise InputError(f"{name} is this model already")
        if compatible_with is not None:
            theirs = registry.encoder(registry.checked(compatible_with)).feature_dim
            if theirs != encoder.feature_dim:
                raise InputError(
                    f"vectors of {encoder.feature_dim} components cannot be compatible with those of "
                    f"{compatible_with}, which have {theirs}; add the model without that, and bridge the two by an "
                    "adapter",
                    NextStep("adapt", {"version": compatible_with, "queries_by": ...}),
                )
        encoder.about = {"parent": compatible_with, "added": {"source": source, "weights": digest}}
        number = registry.next_number()
        run.finish(number, encoder, ReplayMemory(0))
    return f"v{number}"


def trained_with(registry: Registry, name: str) -> tuple[Settings, Method, dict[str, Any]]:
    """How a version was trained, from its card alone: settings, method, and everything about it."""
    try:
        about: dict[str, Any] = registry.card(name)["about"]
        if "added" in about:
            raise InputError(
                f"{name} was added, not trained here, so there is nothing to continue from. Train its successor where "
                "it was trained, and add that",
                NextStep("add", {"model": ..., "compatible_with": name}, "if it was trained to be compatible"),
                NextStep("add", {"model": ...}),
            )
        method = create_method(about["method"]["name"], **about["method"]["options"])
        return Settings.from_json(about["settings"]), method, about
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"the card of {name} does not say how it was trained (missing or wrong: {error})") from error


def discard_unfinished(registry: Registry) -> None:
    """Give up an interrupted training: the next one starts from its beginning."""
    number, run = registry.next_number(), RunDirectory(registry.path)
    with run.locked():
        run.checkpoint(number).unlink(missing_ok=True)
        delete_trials(registry.path, number + 1)


@contextlib.contextmanager
def _next_version(registry: Registry) -> Iterator[tuple[RunDirectory, int]]:
    """Let no other process train here; the run, and the number of the next version."""
    number, run = registry.next_number(), RunDirectory(registry.path)
    with run.locked():
        if run.finished(number):
            raise CheckpointError(f"another process has just finished v{number} in {registry.path}; try again")
        yield run, number


def _train_in(
    run: RunDirectory,
    number: int,
    split: SplitOff,
    setup: Setup,
    validation: Validation | None,
    about: dict[str, Any],
    progress: bool,
) -> Version:
    """Train a version in full and finish it; ``about`` goes into its card."""
    context, method, settings = setup.context, setup.method, setup.settings
    _refuse_too_few(split.shown, context)
    checkpoint = run.checkpoint(number)
    version = train_version(number, split.shown, context, method, settings, checkpoint, progress, validation)
    version.encoder.about.update(about)
    on_rank_zero(lambda: keep_learnt(run.path, version.name, split.drawn))
    if (held := split.held) is not None:
        on_rank_zero(lambda: keep_held_out(run.path, version.name, held, version.encoder.preprocessing))
    run.finish(number, version.encoder, remember(setup.past.memory, version, settings))
    if not settings.replay_per_class:  # nothing of the images may be kept
        on_rank_zero(lambda: shutil.rmtree(run.features, ignore_errors=True))
    return version


def _refuse_too_few(images: ImageSet, past: TrainingContext) -> None:
    """One image does not make a batch. Replayed ones count."""
    if (seen := len(images) + len(past.memory.images or ())) < 2:
        kinds = sum(count > 0 for count in images.counts().values())
        raise InputError(
            f"{seen} image{'s' * (seen != 1)} of {kinds} class{'es' * (kinds != 1)} to train on: it takes at least 2 "
            "images, and 2 classes for anything to be learnt. Give a folder with one folder per class, or a list (.csv "
            "with the columns path and label)"
        )


def _is_done(
    about: dict[str, Any],
    images: ImageSet,
    past: TrainingContext,
    settings: Settings,
    method: Method,
    validation: Validation | None,
) -> bool:
    """Whether the newest version is what this upgrade would make: a retried command must not make another."""
    way, last, now = about["method"], dict(about["settings"]), settings.to_json()
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


def _starting_point(
    past: TrainingContext, settings: Settings, method: Method, options: UpgradeOptions
) -> tuple[TrainingContext, Settings, Method]:
    """Where training starts, if not from the last version's weights."""
    if options.preprocessing is not None and options.replace is None:
        raise InputError("only a model that replaces the last one has a preprocessing of its own; name it (replace)")
    if options.replace is not None and options.from_scratch:
        raise InputError("from_scratch and replace both say where to start; use only one of them")
    if options.from_scratch:
        return past, settings, replace(method, initialisation="fresh")
    if options.replace is None:
        return past, settings, method
    if Path(options.replace).is_dir():
        model = Encoder.load(options.replace)
        body, shape = model.backbone.name, dict(model.backbone.options)
        return replace(past, replacement=model), replace(settings, backbone=body, backbone_options=shape), method
    foreign = ":" in options.replace or options.replace.endswith(".onnx")
    if options.replace not in (known := backbone_names()) and not foreign:
        raise UnknownNameError("backbone", options.replace, known, "Or name a directory with a saved model")
    prepared = options.preprocessing or (None if foreign else settings.preprocessing)
    other = replace(settings, backbone=options.replace, backbone_options={}, preprocessing=prepared)
    same = other.backbone == settings.backbone and options.preprocessing is None
    return past, settings if same else other, replace(method, initialisation="fresh")


def _validation(held: ImageSet | None) -> Validation:
    """The images held out, half of each class as gallery and half as queries."""
    if held is None:
        raise InputError("choosing the epoch needs images that are not trained on: pass hold_out, such as 0.1")
    counts = held.counts()
    several = held.of_classes([name for name in held.classes if counts[name] >= 2])
    if not len(several):
        raise InputError("no class has two images held out; hold out more, or train without select")
    split = gallery_query_split(several.labels, seed=0)
    return Validation(several.take(split.queries), several.take(split.gallery))
