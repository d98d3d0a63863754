"""Training the versions of a workspace: the first, and every upgrade. Imported only to train.

Before an upgrade short runs compare a few settings on held-out images, and the best one is trained in full:

    trials-vN/results.json          what the finished trials measured
    trials-vN/*.safetensors         the trial in progress, after its last whole epoch

After a kill the same upgrade resumes, also within trials. Trials are deleted once version N is finished.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fixstar.data.image_set import ImageSet, concatenate
from fixstar.data.replay import ReplayMemory
from fixstar.durable import document, parse_document, replace_json
from fixstar.errors import (
    CheckpointError,
    InputError,
    ModelError,
    NextStep,
    UnknownNameError,
    plural,
)
from fixstar.evaluation import VersionFeatures, gallery_query_split
from fixstar.evaluation.features import version_features
from fixstar.evaluation.labelled_vectors import searchable, vectors_of_images
from fixstar.methods import Method, OldVectors, create_method
from fixstar.models import Encoder, backbone_names
from fixstar.training import Settings, TrainingContext, Validation, Version, train_version
from fixstar.training.checkpoint import weights_digest
from fixstar.training.distributed import from_rank_zero, on_rank_zero
from fixstar.training.features import FrozenFeatures
from fixstar.training.run_directory import RunDirectory
from fixstar.training.scenarios import remember
from fixstar.training.version import VersionPlan, require_same_classifier
from fixstar.translation import Evidence, Translation, by_class
from fixstar.translation.fit import fit_translations
from fixstar.trust import import_path, remember_named, remembered, trusting
from fixstar.versions import version_name
from fixstar.workspace.held_out import (
    SHARE,
    SplitOff,
    found_images,
    keep_held_out,
    keep_learnt,
    split_off,
    unlearnt_images,
)
from fixstar.workspace.options import UpgradeOptions
from fixstar.workspace.pairs import from_images
from fixstar.workspace.registry import Registry
from fixstar.workspace.translations import OLD_WIDTH, OWN_SPACE

# Alternatives to the last version's settings: different enough to be told apart in short runs.
OPTIONS: dict[str, tuple[Any, ...]] = {
    "hold": (5.0, 40.0),  # polaris: weight of compatibility with the past
    "rate": (1.0, 0.3),  # polaris: factor of the learning rate
    "rotated": (False, True),  # vega: rotated classes help with photos and drawings, not with faces
}
RATES = (
    1.0,
    0.3,
)  # times the first version's learning rate, for methods without an option ``rate``

EPOCHS_SHARE = 0.1  # of the full run's epochs, for one trial
LEAST_EPOCHS = 3  # with fewer epochs the learning rate does not decay
TRIAL_PAIRS = 2000  # maximum number of images for a trial's translation
MOST = 1 / 3  # maximum cost of all trials as a share of the full run, unless their number is given
LEAST_QUERIES = 200  # with fewer queries settings cannot be told apart

Trials = int | Literal["auto"]
Say = Callable[[str], object]


class AlreadyTrainedError(InputError):
    """The newest version is already the result of this upgrade."""


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
        raise InputError(f"{registry.path} has {names[-1]} already", registry.next_version())
    context = TrainingContext(
        old_vectors=old_vectors, features=RunDirectory(registry.path).features
    )
    setup = Setup(name="first", start="", context=context, settings=settings, method=method)
    setup = setup.remembering(ReplayMemory(settings.replay_per_class))
    split = split_off(images, hold_out)
    about = {SHARE: hold_out if split.held is not None else 0.0}
    if old_vectors is not None:
        about[OLD_WIDTH] = old_vectors.vectors.shape[1]
    remember_named(registry.path, import_path(settings.backbone, settings.backbone_options))
    with _next_version(registry) as (run, number):
        return _train_in(
            run,
            number=number,
            split=split,
            setup=setup,
            validation=None,
            about=about,
            progress=progress,
        )


def train_upgrade(
    registry: Registry, images: ImageSet, options: UpgradeOptions, trials: Trials, say: Say
) -> Version:
    """Train the next version; see ``Workspace.upgrade``."""
    if options.replace is not None and not Path(options.replace).is_dir():
        remember_named(registry.path, import_path(options.replace, {}))
    newest = registry.newest()
    trials = checked_trials(trials)
    about = trained_with(registry, newest)[2]
    if options.hold_out and not (options.keep_images or options.select):
        raise InputError(
            "hold_out keeps images, but keep_images=False forbids that; use only one of them"
        )
    setups = _setups(registry, options)
    base = setups[0]
    split = split_off(images, options.hold_out)
    if base.method.own_space if options.earlier_images is None else options.earlier_images:
        split = _with_earlier(registry, start=base.start, split=split, say=say)
        images = concatenate([split.shown, *([] if split.held is None else [split.held])])
    if base.method.own_space:
        setups = [_without_known(setup, split.shown) for setup in setups]
        base = setups[0]
    validation = None
    if options.select:
        validation = _validation(split.held)
    repeated = options.start in (None, about.get("parent"))
    for setup in setups if about.get("trials") else [base]:
        if repeated and _is_done(about, images=split.shown, setup=setup, validation=validation):
            raise AlreadyTrainedError(
                f"{newest} was trained on exactly these images in exactly this way; the upgrade is done",
                NextStep("check", {"version": newest}, "fits what is still missing, and judges"),
            )
    require_same_classifier(base.context, base.method)
    missing = [name for name in base.previous.slots.classes if name not in images.classes]
    if missing and "all images" in base.method.needs:
        raise InputError(
            f"method {base.method.name!r} retrains on all images so far, and {plural(len(missing), 'class')} of "
            f"{base.start} {'is' if len(missing) == 1 else 'are'} not among these ({', '.join(missing[:5])}, ...). "
            "Give a folder with old and new classes, or use a lifelong method such as polaris"
        )
    if options.keep_images:
        kept = split
    else:
        kept = split._replace(held=None)
    with _next_version(registry) as (run, number):
        if trials:
            held_out = unlearnt_images(
                registry,
                version=newest,
                searched=[],
                preprocessing=base.previous.preprocessing,
                following=split,
            ).images
        else:
            held_out = None
        progress = options.progress
        setup, tried = choose_setup(
            registry.path,
            number=number,
            setups=setups,
            shown=split.shown,
            held_out=held_out,
            trials=trials,
            progress=progress,
            say=say,
        )
        card: dict[str, Any] = {
            SHARE: options.hold_out if split.held is not None else 0.0,
            "parent": setup.start,
        }
        if setup.method.own_space:
            card[OWN_SPACE] = True
        if tried:
            card["trials"] = [asdict(one) for one in tried]
        version = _train_in(
            run,
            number=number,
            split=kept,
            setup=setup,
            validation=validation,
            about=card,
            progress=progress,
        )
        on_rank_zero(lambda: delete_trials(registry.path, number + 1))
    return version


def _with_earlier(registry: Registry, start: str, split: SplitOff, say: Say) -> SplitOff:
    """The training images, with the images of earlier trainings that still exist."""
    found = found_images(registry.path, registry.lineage(start), split)
    if not found.of:
        return split
    if found.images is None:
        say(
            f"None of {plural(found.of, 'earlier image')} can be found: images in the replay memory stand for them"
        )
        return split
    say(
        f"Training on {len(found):,} of {plural(found.of, 'earlier image')} too: their files are still there"
    )
    drawn = np.concatenate([split.drawn, split_off(found.images, 0.0).drawn])
    return split._replace(shown=concatenate([split.shown, found.images]), drawn=drawn)


def _without_known(setup: Setup, images: ImageSet) -> Setup:
    """A setup without replayed images of classes that are trained on anyway."""
    kept = setup.memory.images
    if kept is None:
        return setup
    counts = images.counts()
    rest = [name for name in kept.classes if not counts.get(name)]
    return setup.remembering(
        ReplayMemory(setup.memory.per_class, kept.of_classes(rest) if rest else None)
    )


def _setups(registry: Registry, options: UpgradeOptions) -> list[Setup]:
    """The requested setup, and alternatives for trials."""
    newest = registry.newest()
    known = registry.names()
    if options.start is None:
        start = newest
    else:
        start = registry.checked(options.start)
    base = _setup(registry, start, options)
    first = next(
        name for name in registry.lineage(start) if name in known
    )  # older ones are retired
    last_rate = trained_with(registry, start)[0].recipe.learning_rate
    first_rate = trained_with(registry, first)[0].recipe.learning_rate
    rate_is_free = options.learning_rate is None and (
        options.recipe is None or options.recipe.learning_rate == last_rate
    )
    setups = alternatives(
        base,
        first_rate=first_rate,
        method_is_free=options.method is None,
        rate_is_free=rate_is_free,
    )
    continues = (
        options.start is None
        and options.replace is None
        and base.method.initialisation == "previous"
    )
    if continues and first != start:
        setups.append(
            replace(
                _setup(registry, first, replace(options, method=base.method)), name=f"from {first}"
            )
        )
    return setups


def _setup(registry: Registry, start: str, options: UpgradeOptions) -> Setup:
    settings, last_method, _ = trained_with(registry, start)
    recipe = options.recipe or settings.recipe
    settings = replace(
        settings,
        device=options.device,
        bad_images=options.bad_images,
        recipe=recipe
        if options.learning_rate is None
        else replace(recipe, learning_rate=options.learning_rate),
        seed=settings.seed if options.seed is None else options.seed,
        frozen=settings.frozen if options.frozen is None else options.frozen,
        grown=registry.growth(),
        replay_per_class=settings.replay_per_class if options.keep_images else 0,
    )
    previous = registry.encoder(start)
    known = registry.names()
    first = next(name for name in registry.lineage(start) if name in known)
    context = TrainingContext(
        previous,
        first=previous if first == start else registry.encoder(first),
        features=RunDirectory(registry.path).features,
    )
    context, settings, method = _starting_point(
        context, settings=settings, method=options.method or last_method, options=options
    )
    setup = Setup(
        name=f"as {start}", start=start, context=context, settings=settings, method=method
    )
    if options.keep_images:
        return setup.remembering(ReplayMemory.load(registry.files.memory(start)))
    return setup


def add_version(
    registry: Registry, encoder: Encoder, compatible_with: str | None, source: str
) -> str:
    """Store a model from elsewhere as the next version; see ``Workspace.add_version``."""
    digest = _model_digest(encoder)
    run = RunDirectory(registry.path)
    with run.locked():
        names = registry.names()
        if names and registry.reads() != encoder.reads:
            known = registry.reads()
            raise InputError(
                f"{names[-1]} reads {known}, and this model reads {encoder.reads}: a workspace holds one kind",
                NextStep("init", {"path": ...}, f"a workspace for {encoder.reads}"),
            )
        for name in names:
            if registry.card(name)["about"].get("added", {}).get("weights") == digest:
                raise InputError(f"{name} is this model already", after_adding(registry, name))
        if compatible_with is not None:
            theirs = registry.encoder(registry.checked(compatible_with)).feature_dim
            if theirs != encoder.feature_dim:
                raise InputError(
                    f"vectors of {encoder.feature_dim} components cannot be compatible with those of "
                    f"{compatible_with}, which have {theirs}; add it without that, and a check fits a translation",
                    NextStep("add", {"model": ...}),
                )
        remember_named(registry.path, encoder.code)
        encoder.about = {"parent": compatible_with, "added": {"source": source, "weights": digest}}
        number = registry.next_number()
        run.finish(number, encoder, ReplayMemory(0))
    return version_name(number)


def after_adding(registry: Registry, version: str) -> NextStep:
    """The step after adding a model: index with the first one, check a later one."""
    if registry.names() == [version]:
        return NextStep("index", {"items": ...}, "embed a catalogue")
    note = "fits how it searches stored vectors, and judges"
    return NextStep("check", {"version": version, "data": ...}, note)


def _model_digest(encoder: Encoder) -> str:
    """Identifies a model: by its weights, for texts also by prompts and pooling, or by the request to a server."""
    weights = weights_digest(encoder)
    if encoder.reads == "images":
        return weights
    facts = json.dumps(encoder.backbone.options, sort_keys=True, default=str)
    return hashlib.sha256(f"{weights} {facts}".encode()).hexdigest()


def trained_with(registry: Registry, name: str) -> tuple[Settings, Method, dict[str, Any]]:
    """How a version was trained, from its card alone: settings, method, and ``about``."""
    try:
        about: dict[str, Any] = registry.card(name)["about"]
        if "added" in about:
            raise InputError(
                f"{name} was added, not trained here, so there is nothing to continue from. Add another model as "
                f"the next version; a check of it translates {name}'s vectors",
                NextStep("add", {"model": ...}, "any other model"),
                NextStep(
                    "add",
                    {"model": ..., "compatible_with": name},
                    f"one that was trained to search {name}'s vectors",
                ),
            )
        method = create_method(about["method"]["name"], **about["method"]["options"])
        with trusting(*remembered(registry.path)):
            return Settings.from_json(about["settings"]), method, about
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(
            f"the card of {name} does not say how it was trained (missing or wrong: {error})"
        ) from error


def discard_unfinished(registry: Registry) -> None:
    """Discard an interrupted training: the next one starts from the beginning."""
    number = registry.next_number()
    run = RunDirectory(registry.path)
    with run.locked():
        run.checkpoint(number).unlink(missing_ok=True)
        delete_trials(registry.path, number + 1)


@contextlib.contextmanager
def _next_version(registry: Registry) -> Iterator[tuple[RunDirectory, int]]:
    """Lock the workspace for training; yields the run, and the number of the next version."""
    number = registry.next_number()
    run = RunDirectory(registry.path)
    with run.locked():
        if run.finished(number):
            raise CheckpointError(
                f"another process has just finished v{number} in {registry.path}; try again"
            )
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
    context = setup.context
    method = setup.method
    settings = setup.settings
    _refuse_too_few(split.shown, context)
    checkpoint = run.checkpoint(number)
    version = train_version(
        number,
        images=split.shown,
        context=context,
        method=method,
        settings=settings,
        checkpoint=checkpoint,
        progress=progress,
        validation=validation,
    )
    version.encoder.about.update(about)
    on_rank_zero(
        lambda: keep_learnt(run.path, version.name, split, files=settings.replay_per_class > 0)
    )
    if (held := split.held) is not None:
        on_rank_zero(
            lambda: keep_held_out(
                run.path,
                name=version.name,
                images=held,
                preprocessing=version.encoder.preprocessing,
            )
        )
    run.finish(number, version.encoder, remember(setup.memory, version, settings))
    if not settings.replay_per_class:  # no image may be kept
        on_rank_zero(lambda: shutil.rmtree(run.features, ignore_errors=True))
    return version


def _refuse_too_few(images: ImageSet, context: TrainingContext) -> None:
    """Raise if there are too few images for a batch. Replayed images count."""
    if (seen := len(images) + len(context.memory.images or ())) < 2:
        kinds = sum(count > 0 for count in images.counts().values())
        raise InputError(
            f"{plural(seen, 'image')} of {plural(kinds, 'class')} to train on: it takes at least 2 "
            "images, and 2 classes for anything to be learnt. Give a folder with one folder per class, or a list (.csv "
            "with the columns path and label)"
        )


def _is_done(
    about: dict[str, Any], images: ImageSet, setup: Setup, validation: Validation | None
) -> bool:
    """Whether the newest version is already the result of this upgrade: a repeated command must not train again."""
    context = setup.context
    method = setup.method
    way = about["method"]
    last = dict(about["settings"])
    now = setup.settings.to_json()
    last["bad_images"] = now["bad_images"]
    return (
        about.get("parent") is not None
        and (way["name"], way["options"]) == (method.name, dict(method.options))
        and way.get("initialisation", method.initialisation) == method.initialisation
        and about.get("replacement")
        == (None if context.replacement is None else weights_digest(context.replacement))
        and about.get("validation") == (None if validation is None else validation.fingerprint())
        and last == now
        and about.get("data", {}).get("fingerprint") == images.fingerprint()
    )


def _starting_point(
    context: TrainingContext, settings: Settings, method: Method, options: UpgradeOptions
) -> tuple[TrainingContext, Settings, Method]:
    """The weights that training starts from, if not those of the last version."""
    if options.preprocessing is not None and options.replace is None:
        raise InputError(
            "only a model that replaces the last one can have its own preprocessing; name it (replace)"
        )
    if options.replace is not None and options.from_scratch:
        raise InputError(
            "from_scratch and replace both set the starting weights; use only one of them"
        )
    if options.from_scratch:
        return context, settings, replace(method, initialisation="fresh")
    if options.replace is None:
        return context, settings, method
    if Path(options.replace).is_dir():
        model = Encoder.load(options.replace)
        body = model.backbone.name
        shape = dict(model.backbone.options)
        return (
            replace(context, replacement=model),
            replace(settings, backbone=body, backbone_options=shape),
            method,
        )
    foreign = ":" in options.replace or options.replace.endswith(".onnx")
    known = backbone_names()
    if options.replace not in known and not foreign:
        raise UnknownNameError(
            kind="backbone",
            name=options.replace,
            known=known,
            hint="Or name a directory with a saved model",
        )
    prepared = options.preprocessing or (None if foreign else settings.preprocessing)
    other = replace(settings, backbone=options.replace, backbone_options={}, preprocessing=prepared)
    same = other.backbone == settings.backbone and options.preprocessing is None
    return context, settings if same else other, replace(method, initialisation="fresh")


def _validation(held: ImageSet | None) -> Validation:
    """The held-out images, half of each class as gallery and half as queries."""
    if held is None:
        raise InputError("choosing the epoch needs held-out images: pass hold_out, such as 0.1")
    counts = held.counts()
    several = held.of_classes([name for name in held.classes if counts[name] >= 2])
    if not len(several):
        raise InputError("no class has two images held out; hold out more, or train without select")
    split = gallery_query_split(several.labels, seed=0)
    return Validation(several.take(split.queries), several.take(split.gallery))


# --- trials: short runs that choose the settings


@dataclass(frozen=True, eq=False)
class Setup:
    """One way to train the next version: after what, from which version's weights, and how.

    ``memory`` is what the version before left, and what the next one adds to; see ``remembering``.
    """

    name: str
    start: str
    context: TrainingContext
    settings: Settings
    method: Method
    memory: ReplayMemory = field(default_factory=lambda: ReplayMemory(0))

    @property
    def previous(self) -> Encoder:
        """The previous version."""
        assert self.context.previous is not None
        return self.context.previous

    def remembering(self, memory: ReplayMemory) -> Setup:
        """The same with a memory. Only lifelong methods replay it; the others pass it on."""
        replayed = memory if self.method.scenario == "lifelong" else ReplayMemory(0)
        return replace(self, memory=memory, context=replace(self.context, memory=replayed))

    def shortened(self, epochs: int) -> Setup:
        """The same setup with fewer epochs."""
        return replace(
            self, settings=replace(self.settings, recipe=self.settings.recipe.shortened(epochs))
        )


@dataclass(frozen=True)
class TrialResult:
    """The results of a trial: new and own queries on each old gallery, and the self-test of the new version.

    >>> TrialResult("as v1", {"v1": (0.62, 0.60)}, 0.70).holds, TrialResult("as v1", {"v1": (0.59, 0.60)}, 0.70).holds
    (True, False)
    """

    setting: str
    galleries: Mapping[str, tuple[float, float]]
    self_test: float
    epochs: int = 0
    chosen: bool = field(default=False, compare=False)
    queries: int = 0

    @property
    def holds(self) -> bool:
        """Whether the new queries beat the old ones on every old gallery."""
        return all(cross > own for cross, own in self.galleries.values())

    @property
    def score(self) -> tuple[bool, float]:
        """Sort key: settings that hold first, then the highest mean over old galleries and the self-test."""
        cross = [cross for cross, _ in self.galleries.values()]
        return self.holds, (
            sum(cross) / len(cross) + self.self_test
        ) / 2 if cross else self.self_test

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> TrialResult:
        """From the output of ``asdict``."""
        galleries = {
            name: (float(pair[0]), float(pair[1])) for name, pair in content["galleries"].items()
        }
        return cls(
            content["setting"],
            galleries,
            float(content["self_test"]),
            int(content["epochs"]),
            queries=int(content["queries"]),
        )


def checked_trials(trials: Trials) -> Trials:
    """Validate the number of settings to try, or "auto"."""
    if trials == "auto" or (
        isinstance(trials, int) and not isinstance(trials, bool) and (trials == 0 or trials >= 2)
    ):
        return trials
    raise InputError(
        f"trials is auto, 0 for none, or the number of settings to compare, 2 or more; got {trials!r}"
    )


def alternatives(
    base: Setup, first_rate: float, method_is_free: bool, rate_is_free: bool
) -> list[Setup]:
    """The last version's settings, and variants with one change each. Options set by the user are not varied."""
    found = [base]
    recipe = base.settings.recipe
    given = base.method.options
    for option, values in OPTIONS.items() if method_is_free else ():
        for value in values:
            if option in given and value != given[option] and (rate_is_free or option != "rate"):
                other = create_method(base.method.name, **{**given, option: value})
                method = replace(other, initialisation=base.method.initialisation)
                found.append(replace(base, name=f"{option}={value:g}", method=method))
    if rate_is_free and "rate" not in given:
        for rate in (times * first_rate for times in RATES):
            if abs(rate - recipe.learning_rate) > 1e-9:
                settings = replace(base.settings, recipe=replace(recipe, learning_rate=rate))
                found.append(replace(base, name=f"learning rate {rate:g}", settings=settings))
    return found


def choose_setup(
    workspace: Path,
    number: int,
    setups: Sequence[Setup],
    shown: ImageSet,
    held_out: ImageSet | None,
    trials: Trials,
    progress: bool,
    say: Say,
) -> tuple[Setup, list[TrialResult]]:
    """The setup to train in full, and the results of trials; empty if trials are not possible or not worthwhile."""
    base = setups[0]
    folder = workspace / f"trials-v{number}"
    epochs = base.settings.recipe.epochs
    short = min(epochs, max(LEAST_EPOCHS, round(EPOCHS_SHARE * epochs)))
    compared = setups[: int(MOST * epochs / short) if trials == "auto" else trials]
    if trials == 0 or (
        from_rank_zero(RunDirectory(workspace).checkpoint(number).exists) and not folder.is_dir()
    ):
        return base, []  # the second condition: an interrupted run without trials resumes
    if len(compared) < 2:
        if len(setups) > 1:
            say(
                f"No trial runs: with {plural(epochs, 'epoch')} in all they would cost more than a third of "
                "the training"
            )
        return base, []
    test = None
    queries = 0
    if held_out is not None:
        test = searchable(held_out, base.previous.preprocessing, "skip")
        queries = sum(count // 2 for count in test.counts().values())
    if test is None or queries < LEAST_QUERIES:
        say(
            f"No trial runs: held-out images give {plural(queries, 'query')}, and comparing settings takes "
            f"{LEAST_QUERIES}. Training with the settings of {base.start}"
        )
        return base, []
    cost = len(compared) * short / epochs
    say(
        f"{len(compared)} trial runs of {short} epochs each, about {cost:.0%} of the time of the full run ({epochs} "
        f"epochs): {', '.join(one.name for one in compared)}"
    )
    found = _run_trials(
        folder,
        number=number,
        setups=[one.shortened(short) for one in compared],
        shown=shown,
        test=test,
        progress=progress,
        say=say,
        epochs=epochs,
    )
    best = best_trial(found)
    why = "No other setting is clearly better on held-out images"
    if best:
        why = "Best on held-out images"
    say(f"{why}: {found[best].setting}. Training it in full")
    return compared[best], [replace(one, chosen=row == best) for row, one in enumerate(found)]


def best_trial(found: Sequence[TrialResult]) -> int:
    """The trial to train in full: the first, unless another is better by more than half a query's standard error.

    A setting that holds old vectors comes before one that does not, whatever its score.

    >>> first, second = TrialResult("a", {}, 0.60, queries=400), TrialResult("b", {}, 0.61, queries=400)
    >>> best_trial([first, second]), best_trial([first, replace(second, self_test=0.64)])
    (0, 1)
    """
    best = 0
    for row, one in enumerate(found):
        now = found[best]
        clear = 0.5 / max(one.queries, 1) ** 0.5
        if (one.holds, one.score[1] - clear) > (now.holds, now.score[1]):
            best = row
    return best


def _run_trials(
    folder: Path,
    number: int,
    setups: Sequence[Setup],
    shown: ImageSet,
    test: ImageSet,
    progress: bool,
    say: Say,
    epochs: int,
) -> list[TrialResult]:
    """The results of each setup; finished trials are read from ``folder``."""
    known: dict[str, Any] = from_rank_zero(lambda: _results(folder / "results.json"))
    found = []
    for row, setup in enumerate(setups):
        plan = VersionPlan(
            number=number,
            images=shown,
            context=setup.context,
            method=setup.method,
            settings=setup.settings,
        )
        fingerprint = plan.fingerprint().whole
        key = f"{fingerprint[:24]}-{test.fingerprint()[:24]}"
        if key not in known:
            say(f"Trial {row + 1} of {len(setups)}: {setup.name}")
            started = time.monotonic()
            checkpoint = folder / f"{key}.safetensors"
            version = train_version(
                number,
                images=shown,
                context=setup.context,
                method=setup.method,
                settings=setup.settings,
                checkpoint=checkpoint,
                progress=progress,
            )
            took = time.monotonic() - started
            known[key] = from_rank_zero(
                partial(_measured, setups[0], setup, version.encoder, test, shown)
            )
            on_rank_zero(
                partial(
                    replace_json, folder / "results.json", document("trials", {"results": known})
                )
            )
            on_rank_zero(partial(checkpoint.unlink, missing_ok=True))
            if row == 0:
                short = setup.settings.recipe.epochs
                say(
                    f"That took {_duration(took)}; about {_duration(took * (len(setups) - 1 + epochs / short))} to go"
                )
        found.append(TrialResult.from_json({**known[key], "setting": setup.name}))
    return found


def _measured(
    base: Setup, setup: Setup, encoder: Encoder, test: ImageSet, shown: ImageSet
) -> dict[str, Any]:
    """A trial's queries on the galleries of the versions it must stay compatible with, and on its own."""
    models = {base.start: base.previous}
    first = base.context.first
    if first is not None and first is not base.previous:
        models = {str(first.about.get("version", "first")): first, **models}
    models["new"] = encoder

    if setup.settings.frozen:
        made = FrozenFeatures(encoder, setup.context.features).of
    else:
        made = None

    def features(queries: ImageSet, gallery: ImageSet) -> list[VersionFeatures]:
        moved = {name: copy.deepcopy(model).to(encoder.device) for name, model in models.items()}
        return [
            version_features(name, encoder=model, queries=queries, gallery=gallery, made=made)
            for name, model in moved.items()
        ]

    labelled = vectors_of_images(features, test)
    *older, newest = labelled.versions
    measure = by_class(labelled.query_labels, labelled.gallery_labels)
    galleries = {}
    for one in older:
        evidence = Evidence(one, newest, measure)
        if setup.method.own_space:
            model = copy.deepcopy(models[one.name]).to(encoder.device)
            sample = from_images(model, encoder, shown, origin="a trial", most=TRIAL_PAIRS)
            way = fit_translations(sample.pairs(), one.name, newest.name)[
                -1
            ]  # the linear one, which is quick to fit
        elif newest.comparable_with(one):
            way = Translation.between_shared(one.name, newest.name)
        else:
            continue
        galleries[one.name] = (
            float(evidence.outcomes(way).mean()),
            float(evidence.before().mean()),
        )
    own = float(Evidence(newest, newest, measure).reembedded().mean())
    count = len(labelled.query_labels)
    epochs = setup.settings.recipe.epochs
    return asdict(
        TrialResult(
            setting=setup.name, galleries=galleries, self_test=own, epochs=epochs, queries=count
        )
    )


def _results(path: Path) -> dict[str, Any]:
    """Results of finished trials; empty if the file is missing or damaged, so that they run again."""
    try:
        return parse_document(path, "trials", _parse_results)
    except (ModelError, OSError):
        return {}


def _parse_results(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: asdict(TrialResult.from_json(value)) for key, value in content["results"].items()}


def _duration(seconds: float) -> str:
    """
    >>> _duration(42), _duration(600), _duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def delete_trials(workspace: Path, before: int) -> None:
    """Delete the trials of finished versions: all with a number below ``before``."""
    for path in workspace.glob("trials-v*"):
        if (
            path.name.removeprefix("trials-v").isdigit()
            and int(path.name.removeprefix("trials-v")) < before
        ):
            shutil.rmtree(path, ignore_errors=True)
