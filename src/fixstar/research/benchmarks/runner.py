"""One run of a benchmark, from images to its matrices. After a kill the same call resumes it.

Each run has its own folder in the work folder:

../pretrained/  models that were trained before the tasks, shared by the runs
run/            the scenario's run directory: finished versions, memory, checkpoint
features/       vectors of queries and gallery by finished versions; removed at the end
translations/   between finished versions, if old vectors are translated
progress.json   seconds and losses so far, and the number of restarts
log.txt         its output, if it ran as one of several jobs
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fixstar import __version__
from fixstar.data import ImageSet, TaskStream, class_order
from fixstar.durable import exclusive, replace_json
from fixstar.errors import CheckpointError
from fixstar.evaluation import (
    VerificationPairs,
    VersionFeatures,
    backfill_curve,
    cross_test,
    cross_test_scores,
    draw_pairs,
    gallery_query_split,
    kfold_accuracy,
    sample_pairs,
    templates,
)
from fixstar.evaluation.compatibility import lower_triangle
from fixstar.evaluation.features import save_arrays
from fixstar.methods import Method, Scenario, create_method
from fixstar.models import Encoder
from fixstar.research.benchmarks.catalogue import Benchmark, Replacement
from fixstar.research.benchmarks.datasets import Protocol, dataset
from fixstar.research.benchmarks.plan import SEARCHES, Run
from fixstar.research.benchmarks.result import TRANSLATED, RunResult, measured
from fixstar.research.benchmarks.translations import (
    VIEWS,
    Fitters,
    embedded,
    fit_translations,
    missing_sources,
    read_translation,
)
from fixstar.research.fused_resnets import fused_program
from fixstar.training import (
    Settings,
    TrainingContext,
    Validation,
    Version,
    run_scenario,
    train_version,
)
from fixstar.training.captured import use_program
from fixstar.training.run_directory import RunDirectory
from fixstar.training.version import VersionPlan
from fixstar.translation import Translation, score

PAIRS_SEED = 0  # the same pairs in every run

use_program(fused_program)  # most of the papers' networks are CIFAR ResNets


@dataclass(frozen=True, eq=False)
class SearchedImages:
    """Queries and gallery (the same set for verification), and how they are measured.

    ``drawn`` are pairs in the order in which the code of CoReS and CL2R draws them, for "verification-published".
    """

    queries: ImageSet
    gallery: ImageSet
    protocol: Protocol = field(default_factory=Protocol)
    drawn: VerificationPairs | None = None

    @classmethod
    def open(cls, benchmark: Benchmark, data: str | Path) -> SearchedImages:
        """The benchmark's splits of its evaluation dataset."""
        source = dataset(benchmark.evaluation)
        gallery = source.open(data, benchmark.gallery_split)
        same = benchmark.query_split == benchmark.gallery_split
        queries = gallery
        if not same:
            queries = source.open(data, benchmark.query_split)
        if benchmark.pairs is not None:
            pairs, drawn = (
                draw(gallery.labels, *benchmark.pairs, seed=PAIRS_SEED)
                for draw in (sample_pairs, draw_pairs)
            )
            return cls(queries, gallery, Protocol(pairs), drawn)
        if same and "image" in benchmark.protocols:  # no image may find itself
            split = gallery_query_split(gallery.labels, seed=PAIRS_SEED)
            queries = gallery.take(split.queries)
            gallery = gallery.take(split.gallery)
        if queries.classes != gallery.classes:  # a label must mean the same class in both
            names = tuple(dict.fromkeys([*gallery.classes, *queries.classes]))
            position = {name: i for i, name in enumerate(names)}
            labels = np.array([position[name] for name in queries.classes])[queries.labels]
            queries = replace(queries, labels=labels, classes=names)
            gallery = replace(gallery, classes=names)
        return cls(queries, gallery, source.protocol(data, queries, gallery))

    @property
    def images(self) -> int:
        """The number of images that every version embeds."""
        if self.queries is self.gallery:
            return len(self.gallery)
        return len(self.gallery) + len(self.queries)

    def matrix(
        self, versions: Sequence[VersionFeatures], protocol: str, device: str | None = None
    ) -> NDArray[np.float64]:
        """C[t, k] for t >= k, NaN above; in verification the first image of a pair is by t, the second by k."""
        if protocol == "verification-published" and self.drawn is not None:
            (published,) = self._by_folds(versions, [self.drawn], stratified=False)
            return np.asarray(published)
        given = self.protocol
        labels = (self.queries.labels, self.gallery.labels)
        if given.media is not None:
            versions = [self._templates(version) for version in versions]
            labels = (np.arange(len(self.queries.classes)),) * 2
        versions = [
            replace(version, shared_components=True) for version in versions
        ]  # as BCT compares them
        measure = partial(cross_test, device=device)
        if given.searches and protocol.startswith(("TPIR", "rank")):
            mated = protocol.startswith(
                "rank"
            )  # ranks are those of queries whose person is in the gallery
            parts = [_rows_of(versions, search, mated) for search in given.searches]
            return np.asarray(np.mean([measure(*part, protocol).matrix for part in parts], axis=0))
        pairs = given.pairs
        cameras = given.cameras
        relevant = given.relevant
        return measure(
            versions, *labels, protocol, pairs=pairs, cameras=cameras, relevant=relevant
        ).matrix

    def backfilled(self, old: VersionFeatures, new: VersionFeatures) -> list[float]:
        """Accuracy of new queries over the share of classes re-embedded, in steps of 2 % (BCT, figure 3)."""
        curves = []
        if self.protocol.media is not None:
            old = self._templates(old)
            new = self._templates(new)
        everything = (
            np.arange(len(new.queries)),
            self.queries.labels,
            np.arange(len(new.gallery)),
            self.gallery.labels,
        )
        for search in self.protocol.searches or [everything]:
            (before, after), truth, labels = _rows_of([old, new], search)
            after = replace(after, shared_components=True)
            curves.append(
                backfill_curve(
                    old=before,
                    new=after,
                    query_labels=truth,
                    gallery_labels=labels,
                    shares=_SHARES,
                    order="classes",
                )
            )
        return [
            round(float(value), 6)
            for value in np.mean([curve.accuracy for curve in curves], axis=0)
        ]

    def _templates(self, version: VersionFeatures) -> VersionFeatures:
        """A version's features of templates: the mean over media of the means over the frames of each."""
        means, _ = templates(version.gallery, self.gallery.labels, self.protocol.media)
        return replace(version, queries=means, gallery=means)

    def translated(
        self,
        versions: Sequence[VersionFeatures],
        way: Callable[[int, int], Translation],
        plain: Mapping[str, NDArray[np.float64]],
        device: str | None = None,
    ) -> dict[str, NDArray[np.float64]]:
        """C[t, k] through ``way(k, t)`` by the protocols of ``plain``, with one model per query and with two.

        A version's own gallery needs no translation: C[k, k] is that of ``plain``.
        """
        itself = np.eye(len(versions), dtype=bool)
        found = {
            f"{name}, {how}": np.where(itself, C, np.nan)
            for name, C in plain.items()
            for how in TRANSLATED
        }
        for t, new in enumerate(versions):
            for k, old in enumerate(versions[:t]):
                with_two = way(k, t)
                for how, asked in zip(
                    TRANSLATED, (with_two.with_one_model(), with_two), strict=True
                ):
                    view = score.translated(asked, old, new)
                    for name in plain:
                        found[f"{name}, {how}"][t, k] = self.matrix([view], name, device)[0, 0]
        return found

    def over_draws(
        self,
        versions: Sequence[VersionFeatures],
        protocol: str,
        counts: tuple[int, int],
        draws: int = 50,
    ) -> dict[str, Any]:
        """The effect of the draw of pairs: AC with its middle 95 %, every cell with its deviation."""
        published = protocol == "verification-published"
        draw = draw_pairs if published else sample_pairs
        drawn = [draw(self.gallery.labels, *counts, seed=seed) for seed in range(draws)]
        matrices = self._by_folds(versions, drawn, stratified=not published)
        compatible = [measured(matrix, ties=published)["AC"] for matrix in matrices]
        return {
            "draws": draws,
            "AC": float(np.mean(compatible)),
            "AC_interval": np.quantile(compatible, (0.025, 0.975)).tolist(),
            "mean": lower_triangle(matrices.mean(axis=0)),
            "deviation": lower_triangle(matrices.std(axis=0, ddof=1)),
        }

    def _by_folds(
        self,
        versions: Sequence[VersionFeatures],
        drawn: Sequence[VerificationPairs],
        stratified: bool,
    ) -> NDArray[np.float64]:
        """C of each draw of pairs, [draws, T, T]; a cell's cosines are computed once for all draws."""
        first, second, same = (
            np.concatenate([getattr(one, rows) for one in drawn]) for rows in _PAIRS
        )
        matrices = np.full((len(drawn), len(versions), len(versions)), np.nan)
        for cell, scores in cross_test_scores(
            versions, VerificationPairs(first, second, same)
        ).items():
            for matrix, pairs, own in zip(
                matrices, drawn, np.split(scores, len(drawn)), strict=True
            ):
                matrix[cell] = kfold_accuracy(own, pairs.same, stratified=stratified).mean
        return matrices


def _rows_of(
    versions: Sequence[VersionFeatures], search: tuple[NDArray[np.int64], ...], mated: bool = True
) -> tuple[list[VersionFeatures], NDArray[np.int64], NDArray[np.int64]]:
    """The rows of a search, and the labels of both; ``mated`` leaves out queries without their class in the gallery."""
    queries, truth, gallery, labels = search
    if mated:
        kept = np.isin(truth, labels)
        queries = queries[kept]
        truth = truth[kept]
    return (
        [replace(v, queries=v.queries[queries], gallery=v.gallery[gallery]) for v in versions],
        truth,
        labels,
    )


_PAIRS = ("first", "second", "same")
_SHARES = np.linspace(0, 1, 51)  # of the gallery's classes that are re-embedded
_VALIDATION = 2000  # images of the evaluation dataset's training split, which no pair is drawn from


def scenario_options(
    run: Run, data: Path, work: Path, settings: Settings, progress: bool
) -> dict[str, Any]:
    """Further arguments of ``run_scenario``; models that are already pre-trained are read from ``work``."""
    entry = run.benchmark
    choice = run.choice
    if entry.scenario == "replacing":
        return {"replacements": _replacements(run, data, work, settings, progress)}
    if _is_lifelong(run):
        return {}
    later = {}
    for number, changes in entry.later_models.items():
        changed = dict(changes)
        if "backbone" in changed:
            changed.setdefault("backbone_options", {})
        later[number] = replace(settings, **changed)
        if "recipe" in changes:
            later[number] = replace(later[number], recipe=run.shortened(changes["recipe"]))
    options: dict[str, Any] = {"later": later}
    if entry.first_head is not None:
        options["first_method"] = replace(
            choice, options={**choice.options, "head": entry.first_head}
        ).create()
    if entry.model_selection:
        options["validation"] = _validation(run, data)
    if entry.pretraining_classes:  # of those that no task uses (CoReS, section 6.3)
        images = dataset(entry.training).open(data, "train")
        taken = sum(entry.tasks.sizes)
        names = class_order(images.classes, run.class_order or None)[
            taken : taken + entry.pretraining_classes
        ]
        options["pretrained"] = _pretrained(
            images.of_classes(names), run.create(), settings, work, progress
        )
    return options


def _validation(run: Run, data: Path) -> Validation:
    images = dataset(run.benchmark.evaluation).open(data, "train")
    chosen = images.take(np.sort(np.random.default_rng(0).permutation(len(images))[:_VALIDATION]))
    if run.benchmark.pairs is not None:  # M of eq. 11 is the measure of the benchmark
        return Validation(
            chosen,
            chosen,
            "verification",
            sample_pairs(chosen.labels, *run.benchmark.pairs, seed=0),
        )
    split = gallery_query_split(chosen.labels, seed=0)
    return Validation(chosen.take(split.queries), chosen.take(split.gallery))


def _pretrained(
    images: ImageSet, method: Method, settings: Settings, work: Path, progress: bool
) -> Encoder:
    """A model trained by cross-entropy before the tasks; kept, so runs that need the same one train it once."""
    plain = replace(
        create_method("er"),
        name="pretraining",
        classifier=method.classifier,
        classifier_options=method.classifier_options,
        options={
            "classifier": method.classifier,
            **method.classifier_options,
        },  # distinguishes models
    )
    nothing = TrainingContext()
    place = (
        work
        / "pretrained"
        / VersionPlan(0, images, nothing, plain, settings).fingerprint().whole[:16]
    )
    with exclusive(place, wait=math.inf):
        if not (place / "model").exists():
            version = train_version(
                number=0,
                images=images,
                context=nothing,
                method=plain,
                settings=settings,
                checkpoint=place / "checkpoint",
                progress=progress,
            )
            version.encoder.save(place / "model")
            (place / "checkpoint").unlink(missing_ok=True)
    return Encoder.load(place / "model", settings.torch_device())


def _replacements(
    run: Run, data: Path, work: Path, settings: Settings, progress: bool
) -> dict[int, Encoder]:
    """The models of IAM-CL2R by the task that each begins with (HOC, section 5.3): their classes are on the left."""
    models = {}
    for model, images in _pretraining_images(run, data):
        own = replace(
            settings,
            backbone=model.backbone,
            backbone_options=model.backbone_options,
            recipe=run.pretraining(model),
            side="left",
            replay_per_class=0,
        )
        models[model.task] = _pretrained(images, run.create(), own, work, progress)
    return models


def _pretraining_images(run: Run, data: Path) -> Iterator[tuple[Replacement, ImageSet]]:
    """The images of each replacement. Their classes are not those of the tasks, even if they are named alike."""
    if run.benchmark.pretraining is None:
        return
    name, classes = run.benchmark.pretraining
    images = dataset(name).open(data, "train")
    for model in run.benchmark.replacements:
        seen = images.of_classes(images.classes[: round(model.share * classes)])
        yield model, replace(seen, classes=tuple(f"{name}: {one}" for one in seen.classes))


@dataclass
class Progress:
    """The progress of a run, on disk: one record per finished version, and the current stage."""

    path: Path
    restarts: int = -1
    passes: list[float] = field(
        default_factory=list
    )  # of images through a network, version by version
    versions: list[dict[str, Any]] = field(default_factory=list)
    stage: str = ""

    @classmethod
    def read(cls, path: Path) -> Progress:
        """The last saved state, or a new one."""
        try:
            return cls(path, **json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return cls(path)

    def save(self, stage: str) -> None:
        """Save the state and the stage that comes next."""
        self.stage = stage
        replace_json(self.path, {key: value for key, value in vars(self).items() if key != "path"})

    @property
    def share(self) -> float:
        """The share of the work that is done, in passes of finished versions."""
        finished = sum("seconds_embedding" in version for version in self.versions)
        if self.passes:
            return sum(self.passes[:finished]) / sum(self.passes)
        return 0.0


def run_benchmark(
    run: Run,
    data: str | Path,
    work: str | Path,
    device: str = "auto",
    progress: bool = True,
    *,
    fitters: int = 0,
) -> RunResult:
    """Train every version of a run, embed queries and gallery once with each, and measure every protocol.

    Translations are fitted before the next version is trained, or beside it by ``fitters`` processes.
    """
    folder = Path(work) / run.name
    try:
        with exclusive(folder), Fitters(fitters) as beside:
            return _run(run, Path(data), folder, device, progress, beside)
    except BlockingIOError:
        raise CheckpointError(
            f"another process is running in {folder}; wait for it or stop it"
        ) from None


def _run(
    run: Run, data: Path, folder: Path, device: str, progress: bool, beside: Fitters
) -> RunResult:
    state = Progress.read(folder / "progress.json")
    state.restarts += 1
    searched = SearchedImages.open(run.benchmark, data)
    stream = run.stream(data)
    settings = run.settings(device)
    state.passes = _passes(run, stream, searched, data)
    state.save("training v1")
    features = []
    for version, seconds in _timed(
        _versions(
            run=run, stream=stream, settings=settings, data=data, folder=folder, progress=progress
        )
    ):
        if len(state.versions) < version.number:
            state.versions.append(_record(version, stream, seconds))
            state.save(f"embedding with {version.name}")
        started = time.monotonic()
        features.append(
            _features(version, searched, folder / "features" / f"{version.name}.npz", progress)
        )
        record = state.versions[version.number - 1]
        record.setdefault("seconds_embedding", round(time.monotonic() - started, 2))
        if run.translated:
            fit = partial(fit_part, run, data, folder, device, version.number)
            state.save(f"translating to {version.name}")
            if beside.count:
                beside.begin(version.number, fit)
                _note_translating(state, beside.seconds(wait=False))
            else:
                record.setdefault("seconds_translating", round(fit((0, 1)), 2))
        if version.number < len(stream):
            state.save(f"training v{version.number + 1}")
        else:
            _note_translating(state, beside.seconds(wait=True))
            state.save("measuring")
    started = time.monotonic()
    found_on = None
    if settings.torch_device().type == "cuda":
        found_on = str(settings.torch_device())
    matrices = {name: searched.matrix(features, name, found_on) for name in run.benchmark.protocols}
    if run.translated:
        plain = {name: matrix for name, matrix in matrices.items() if name in SEARCHES}
        matrices |= searched.translated(features, partial(_translation, folder), plain, found_on)
    protocols = {
        name: measured(matrix, ties=name == "verification-published")
        for name, matrix in matrices.items()
    }
    if run.benchmark.pairs is not None:
        for name in [name for name in protocols if name.startswith("verification")]:
            protocols[name]["over_draws"] = searched.over_draws(features, name, run.benchmark.pairs)
    if run.benchmark.partial_backfill:
        protocols["rank1"]["backfill"] = searched.backfilled(features[0], features[-1])
    result = _result(
        run=run,
        stream=stream,
        settings=settings,
        state=state,
        protocols=protocols,
        measuring=time.monotonic() - started,
    )
    shutil.rmtree(folder / "features")
    return result


def _note_translating(state: Progress, seconds: dict[int, float]) -> None:
    for number, took in seconds.items():
        state.versions[number - 1].setdefault("seconds_translating", round(took, 2))


def fit_part(
    run: Run, data: Path, folder: Path, device: str, number: int, part: tuple[int, int]
) -> float:
    """Fit a part (i, n) of the translations to a finished version, in any process; the seconds that it took."""
    started = time.monotonic()
    missing = missing_sources(folder, number, part)
    if not missing:
        return 0.0
    settings = run.settings(device)
    encoder = Encoder.load(RunDirectory(folder / "run").version(number), settings.torch_device())
    fit_translations(
        Version(number, encoder),
        run.stream(data),
        settings,
        folder,
        lifelong=_is_lifelong(run),
        shared=run.create().shares_space,
        weight=run.weight,
        sources=missing,
    )
    return time.monotonic() - started


def _translation(folder: Path, source: int, target: int) -> Translation:
    """The translation between two versions by their place, from 0."""
    return read_translation(folder, source + 1, target + 1)


def _versions(
    run: Run, stream: TaskStream, settings: Settings, data: Path, folder: Path, progress: bool
) -> Iterator[Version]:
    """The versions; what is trained before them counts for the first."""
    scenario: Scenario = "lifelong" if _is_lifelong(run) else "retraining"
    options = scenario_options(run, data, folder.parent, settings, progress)
    yield from run_scenario(
        stream, run.create(), settings, folder / "run", progress, scenario=scenario, **options
    )


def _is_lifelong(run: Run) -> bool:
    """Whether versions continue from the last one; methods that start from new weights are retrained everywhere."""
    return run.benchmark.scenario != "retraining" and run.create().initialisation == "previous"


def _passes(run: Run, stream: TaskStream, searched: SearchedImages, data: Path) -> list[float]:
    """Passes through a network for each version and models before it: three per image trained on, one per embedding."""
    new = [len(task.images) for task in stream]
    shown = list(itertools.accumulate(new))  # all images so far
    if _is_lifelong(run):
        known = itertools.accumulate((len(task.images.classes) for task in stream), initial=0)
        shown = [
            n + run.benchmark.replay_per_class * classes
            for n, classes in zip(new, known, strict=False)
        ]
    passes = [
        3 * run.create().cost * run.recipe.epochs * images + searched.images for images in shown
    ]
    passes[0] += sum(
        3 * run.pretraining(model).epochs * len(images)
        for model, images in _pretraining_images(run, data)
    )
    return passes


def _timed(versions: Iterator[Version]) -> Iterator[tuple[Version, float]]:
    started = time.monotonic()
    for version in versions:
        yield version, time.monotonic() - started
        started = time.monotonic()


def _record(version: Version, stream: TaskStream, seconds: float) -> dict[str, Any]:
    task = stream[version.number - 1].images
    return {
        "name": version.name,
        "classes": len(task.classes),
        "images": len(task),
        "loss": version.log[-1].terms if version.log else {},
        "losses": [round(epoch.loss, 4) for epoch in version.log],  # of each epoch
        "seconds": round(seconds, 2),
    }


def _features(
    version: Version, searched: SearchedImages, path: Path, progress: bool
) -> VersionFeatures:
    """Short forms of queries and gallery; after a restart they are read back."""
    encoder = version.encoder
    if not path.exists():
        sets = {"gallery": searched.gallery}
        if searched.queries is not searched.gallery:
            sets["queries"] = searched.queries
        arrays = {name: embedded(encoder, images.images, progress) for name, images in sets.items()}
        save_arrays(path, arrays)
    with np.load(path, allow_pickle=False) as content:
        gallery = content["gallery"]
        queries = content.get("queries", gallery)
    adapt = None if encoder.adapter is None else encoder.adapter.adapt
    return VersionFeatures(version.name, queries, gallery, encoder.projection_matrix(), adapt)


def _result(
    run: Run,
    stream: TaskStream,
    settings: Settings,
    state: Progress,
    protocols: dict[str, Any],
    measuring: float,
) -> RunResult:
    training = sum(version["seconds"] for version in state.versions)
    kinds = ("seconds_embedding", "seconds_translating")
    evaluation = (
        sum(version.get(kind, 0) for version in state.versions for kind in kinds) + measuring
    )
    method = run.create()
    device = settings.torch_device()
    is_gpu = device.type == "cuda"
    return RunResult(
        benchmark=run.benchmark.name,
        method=run.method,
        settings={
            "method": {"name": method.name, "options": dict(method.options)},
            **settings.to_json(),
            **({"translation": {"weight": run.weight, "views": VIEWS}} if run.translated else {}),
        },
        tasks=[len(task.images.classes) for task in stream],
        class_order=run.class_order,
        seed=run.seed,
        epochs=settings.recipe.epochs,
        seconds=round(training + evaluation, 1),
        seconds_training=round(training, 1),
        seconds_evaluation=round(evaluation, 1),
        device=torch.cuda.get_device_name(device)
        if is_gpu
        else f"{device.type}, {torch.get_num_threads()} threads",
        fixstar=__version__,
        torch=torch.__version__,
        restarts=state.restarts,
        versions=state.versions,
        protocols=protocols,
    )
