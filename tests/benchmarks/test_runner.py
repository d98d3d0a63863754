"""Runs: what a plan makes of a request, what a run records, and that a run goes on to the same figures."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sized
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_benchmark
import torch
from small_benchmark import REPLACING, SEARCH, VERIFICATION
from wording import REASON, refuses

from fixstar.cli.bench import _command
from fixstar.data import from_arrays
from fixstar.errors import CheckpointError, DataError, InputError, UnknownNameError
from fixstar.evaluation import VersionFeatures, summary
from fixstar.evaluation.verification import draw_pairs, kfold_accuracy
from fixstar.geometry import unit
from fixstar.models import Encoder
from fixstar.research.benchmarks import MethodChoice, Tasks, benchmark, jobs
from fixstar.research.benchmarks.jobs import Folders, QueuedRun, complete
from fixstar.research.benchmarks.plan import Run, plan
from fixstar.research.benchmarks.result import RunResult
from fixstar.research.benchmarks.runner import (
    Progress,
    SearchedImages,
    _pretraining_images,
    run_benchmark,
    scenario_options,
)
from fixstar.training.checkpoint import weights_digest


@pytest.fixture(scope="module", autouse=True)
def _known() -> Iterator[None]:
    small_benchmark.register()
    yield
    small_benchmark.unregister()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_benchmark.write_data(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def searched(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, Path]:
    """HOC on the small search benchmark in class order 1, and its work folder."""
    work = tmp_path_factory.mktemp("work")
    return run_benchmark(
        Run(SEARCH, "hoc", 1, seed=3, epochs=2), data, work, "cpu", progress=False
    ), work


def test_names_say_what_differs_from_the_catalogue() -> None:
    entry = benchmark("cifar100-10/7")
    assert Run(entry, "hoc", 1).name == "cifar100-10_7__hoc__order1__seed0"
    same = Run(entry, "hoc", 1, epochs=70, capacity=100, options={"lam": 0.1})
    assert same.name == "cifar100-10_7__hoc__order1__seed0"
    other = Run(entry, "hoc", 2, 5, epochs=40, capacity=1000, options={"lam": 0.25})
    assert other.name == "cifar100-10_7__hoc__lam=0.25__K=1000__order2__seed5__e40"
    assert (
        Run(benchmark("cifar100-10/16:K=500"), "hoc").name
        == "cifar100-10_16_K=500__hoc__order0__seed0"
    )
    assert other.recipe.epochs == 40
    assert other.recipe.milestones == pytest.approx((50 * 4 / 7, 64 * 4 / 7))
    assert other.settings().capacity == 1000


def test_a_plan_gives_options_to_those_that_have_them() -> None:
    runs = plan(
        benchmark("cifar100-10/7"),
        ["hoc", "er"],
        [1, 2],
        [0, 1],
        capacity=1000,
        options={"lam": 0.25},
    )
    assert len(runs) == 8
    assert {run.capacity for run in runs if run.method == "hoc"} == {1000}
    assert {(run.capacity, len(run.options)) for run in runs if run.method == "er"} == {(None, 0)}
    everything = plan(benchmark("cifar100-10/7"))
    assert {run.class_order for run in everything} == {1, 2, 3}
    assert {run.method for run in everything} == set(benchmark("cifar100-10/7").methods)


def test_every_run_of_a_variant_without_class_order_is_another_one() -> None:
    """All classes come with the first task: the same seed in another order would be the same run again."""
    runs = plan(benchmark("cifar100-10-upgrades/1:upgrade=old"), ["cores"], seeds=(0, 1))
    assert [(run.class_order, run.seed) for run in runs] == [(0, 0), (0, 1)]
    assert len(plan(benchmark("cifar100-10-upgrades/1:upgrade=old-and-new"), ["cores"])) == 3


def test_settings_are_changed_where_they_apply_and_stand_in_the_name() -> None:
    changes = {"length": 0.1, "weight_decay": 5e-4, "replay_per_class": 20}
    hoc, er = plan(benchmark("cifar100-10/7"), ["hoc", "er"], [1], changes=changes)
    assert (
        hoc.name == "cifar100-10_7__hoc__weight_decay=0.0005__length=0.1__order1__seed0"
    )  # 20 is the usual memory
    assert (
        er.name == "cifar100-10_7__er__weight_decay=0.0005__order1__seed0"
    )  # its prototypes are learnt
    settings = hoc.settings()
    assert (settings.recipe.weight_decay, settings.classifier_options) == (5e-4, {"scale": 0.1})
    assert er.settings().classifier_options == {}
    command = " ".join(_command(hoc, Folders(Path(), Path(), Path()), "cpu"))
    assert "--setting length=0.1 --setting weight_decay=0.0005" in command
    for wrong, told in (
        ({"lenght": 1.0}, "did you mean 'length'"),
        ({"replay_per_class": 2.5}, "whole number"),
    ):
        with pytest.raises(InputError, match=told):
            plan(benchmark("cifar100-10/7"), ["hoc"], [1], changes=wrong)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cifar100-10/7", {"methods": ["hco"]}),
        ("cifar100-10/7", {"methods": ["er"], "options": {"lam": 0.5}}),
        ("cifar100-10/7", {"methods": ["hoc"], "options": {"lam": 5}}),
        ("cifar100-10/7", {"methods": ["hoc"], "epochs": 0}),
        ("cifar100-10/7", {"methods": ["hoc"], "orders": [-1]}),
        ("cifar100-10/7", {"methods": ["hoc"], "capacity": 0}),
        ("cifar100-10-upgrades/1:upgrade=old", {"orders": [0, 1]}),
        ("cifar100r-10/7", {"methods": ["itm"]}),
        ("cifar100r-10/31:replacements=architectures", {"methods": ["er"]}),
    ],
)
def test_wrong_requests_are_refused_before_anything_is_trained(
    name: str, words: dict[str, object]
) -> None:
    with refuses(InputError):
        plan(benchmark(name), **words)  # type: ignore[arg-type]


def test_class_orders_are_torchs_permutations(data: Path) -> None:
    names = [f"thing{i:02}" for i in range(100)]
    assert list(Run(SEARCH, "er", 0).stream(data).class_order) == names[:10]
    for seed in (1, 2):
        drawn = torch.randperm(100, generator=torch.Generator().manual_seed(seed))[:10]
        assert list(Run(SEARCH, "er", seed).stream(data).class_order) == [names[i] for i in drawn]


def test_a_limited_benchmark_takes_the_first_images_of_each_class(data: Path) -> None:
    whole = Run(SEARCH, "er").stream(data)[0].images
    few = Run(replace(SEARCH, images_per_class=2), "er").stream(data)[0].images
    assert list(few.counts().values()) == [2] * 4
    assert isinstance(few.images, np.ndarray)
    assert isinstance(whole.images, np.ndarray)
    assert np.array_equal(few.images[few.labels == 1], whole.images[whole.labels == 1][:2])


KEYS = {
    *(
        "benchmark",
        "method",
        "settings",
        "tasks",
        "class_order",
        "seed",
        "seconds",
        "device",
        "versions",
        "protocols",
    ),
    *("epochs", "fixstar", "torch", "seconds_training", "seconds_evaluation", "restarts"),
}


def test_a_run_records_what_it_is_and_what_it_measured(
    searched: tuple[RunResult, Path], tmp_path: Path
) -> None:
    result, _ = searched
    result.save(tmp_path / "result.json")
    content = json.loads((tmp_path / "result.json").read_text())
    assert set(content) == KEYS
    assert (content["benchmark"], content["method"], content["tasks"]) == (
        "small/3",
        "hoc",
        [4, 3, 3],
    )
    assert (content["class_order"], content["seed"], content["epochs"], content["restarts"]) == (
        1,
        3,
        2,
        0,
    )
    assert content["settings"]["method"]["options"]["lam"] == 0.1
    assert content["settings"]["recipe"]["milestones"] == [1.5]
    assert [version["name"] for version in content["versions"]] == ["v1", "v2", "v3"]
    assert content["seconds"] == pytest.approx(
        content["seconds_training"] + content["seconds_evaluation"], abs=0.11
    )
    assert set(content["protocols"]) == {"template", "image"}
    for protocol, record in content["protocols"].items():
        assert set(record) == {"matrix", "AC", "AA", "ACA", "BC", "FC"}
        assert [len(row) for row in record["matrix"]] == [1, 2, 3]
        assert summary(np.nan_to_num(result.matrix(protocol))) == pytest.approx(
            result.metrics(protocol)
        )
    assert asdict(RunResult.load(tmp_path / "result.json")) == content


def test_the_matrix_is_what_the_saved_versions_find(
    searched: tuple[RunResult, Path], data: Path
) -> None:
    """The full features of the versions on disk, searched by plain NumPy."""
    result, work = searched
    images = SearchedImages.open(SEARCH, data)
    versions = [
        Encoder.load(next(work.iterdir()) / "run" / "versions" / f"v{t}") for t in (1, 2, 3)
    ]
    galleries = [encoder.encode(images.gallery.images) for encoder in versions]
    for t, encoder in enumerate(versions):
        queries = encoder.encode(images.queries.images)
        for k in range(t + 1):
            near = (queries @ galleries[k].T).argmax(axis=1)
            accuracy = (images.gallery.labels[near] == images.queries.labels).mean()
            assert result.matrix("image")[t, k] == pytest.approx(
                accuracy, abs=0.012
            )  # one tie among 90 queries


def test_features_are_gone_when_the_run_is_done(searched: tuple[RunResult, Path]) -> None:
    folder = next(searched[1].iterdir())
    assert not (folder / "features").exists()
    assert not list(folder.glob("run/checkpoint*"))
    assert Progress.read(folder / "progress.json").share == 1.0


@pytest.mark.long
def test_verification_pairs_new_first_with_old_second(data: Path, tmp_path: Path) -> None:
    """Retrained with CoReS; every cell against cosines of full features."""
    entry = replace(VERIFICATION, methods={"cores": MethodChoice("cores")})
    result = run_benchmark(Run(entry, "cores", epochs=1), data, tmp_path, "cpu", progress=False)
    images = SearchedImages.open(entry, data)
    pairs, drawn = images.protocol.pairs, images.drawn
    assert pairs is not None
    assert drawn is not None
    assert images.queries is images.gallery
    folder = next(tmp_path.iterdir()) / "run" / "versions"
    full = [Encoder.load(folder / f"v{t}").encode(images.gallery.images) for t in (1, 2, 3)]
    for t in range(3):
        for k in range(t + 1):
            scores = (full[t][pairs.first] * full[k][pairs.second]).sum(axis=1)
            expected = kfold_accuracy(scores, pairs.same, 10).mean
            assert result.matrix("verification")[t, k] == pytest.approx(
                expected, abs=0.026
            )  # one pair of 40
            scores = (full[t][drawn.first] * full[k][drawn.second]).sum(axis=1)
            expected = kfold_accuracy(scores, drawn.same, 10, stratified=False).mean
            assert result.matrix("verification-published")[t, k] == pytest.approx(
                expected, abs=0.026
            )
            others = [draw_pairs(images.gallery.labels, 20, 20, seed=seed) for seed in range(50)]
            found = [
                kfold_accuracy(
                    (full[t][p.first] * full[k][p.second]).sum(axis=1), p.same, 10, stratified=False
                ).mean
                for p in others
            ]
            over = result.protocols["verification-published"]["over_draws"]
            assert over["mean"][t][k] == pytest.approx(np.mean(found), abs=0.005)
            assert over["deviation"][t][k] == pytest.approx(np.std(found, ddof=1), abs=0.005)
    for protocol in ("verification", "verification-published"):
        over = result.protocols[protocol]["over_draws"]
        low, high = over["AC_interval"]
        assert 0 <= low <= over["AC"] <= high <= 1


def test_the_interval_over_draws_holds_95_of_100_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.repeat(np.arange(10), 6)
    images = from_arrays(
        np.zeros((60, 4, 4, 3), np.uint8), labels, [str(name) for name in range(10)]
    )
    vectors = unit(np.random.default_rng(0).normal(size=(60, 8)))
    versions = [VersionFeatures(name, vectors, vectors) for name in ("v1", "v2")]
    spread = iter(np.linspace(0, 1, 21))  # AC of each draw
    monkeypatch.setattr(
        "fixstar.research.benchmarks.runner.measured", lambda *_, **__: {"AC": next(spread)}
    )
    over = SearchedImages(images, images).over_draws(versions, "verification", (20, 20), draws=21)
    assert over["AC"] == pytest.approx(0.5)
    assert over["AC_interval"] == pytest.approx([0.025, 0.975])


def test_a_stopped_run_goes_on_and_embeds_nothing_twice(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(SEARCH, "er", 1, epochs=1)
    whole = run_benchmark(run, data, tmp_path / "whole", "cpu", progress=False)
    calls: list[int] = []
    encode = Encoder.encode

    def counted(stop: int) -> Callable[..., object]:
        def one(self: Encoder, images: Sized, **options: Any) -> object:
            if len(calls) == stop:
                raise KeyboardInterrupt
            calls.append(len(images))
            return encode(self, images, **options)  # type: ignore[arg-type]

        return one

    monkeypatch.setattr(Encoder, "encode", counted(stop=4))  # when v3 is trained and about to embed
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(run, data, tmp_path / "cut", "cpu", progress=False)
    monkeypatch.setattr(Encoder, "encode", counted(stop=99))
    resumed = run_benchmark(run, data, tmp_path / "cut", "cpu", progress=False)
    assert calls == [60, 90] * 3
    assert resumed.protocols == whole.protocols
    assert resumed.restarts == 1
    assert [version["loss"] for version in resumed.versions] == [
        version["loss"] for version in whole.versions
    ]


def test_a_finished_run_is_read_and_not_run_again(
    searched: tuple[RunResult, Path], data: Path, tmp_path: Path
) -> None:
    run, folders = (
        Run(SEARCH, "hoc", 1, seed=3, epochs=2),
        Folders(data, tmp_path / "work", tmp_path / "results"),
    )
    searched[0].save(folders.result(run))
    assert complete(run, folders) == RunResult.load(folders.result(run))
    assert not folders.work.exists()
    folders.result(run).write_text("{}")
    with refuses(DataError, varies=REASON):
        complete(run, folders)


def test_a_run_has_one_process(data: Path, tmp_path: Path) -> None:
    from fixstar.durable import exclusive

    run = Run(SEARCH, "er")
    with exclusive(tmp_path / run.name), pytest.raises(CheckpointError, match="another process"):
        run_benchmark(run, data, tmp_path, "cpu", progress=False)


def test_what_is_missing_is_named(data: Path, tmp_path: Path) -> None:
    for source in SEARCH.datasets:
        source.require(data)
    with pytest.raises(DataError, match="small100 is not complete"):
        SEARCH.datasets[0].require(tmp_path)


def test_time_left_comes_from_the_versions_finished_since_the_start() -> None:
    job = QueuedRun(
        Run(SEARCH, "er"),
        state="running",
        share=0.5,
        first_share=0.25,
        seconds=120,
        seconds_at_share=100,
    )
    assert job.seconds_left() == pytest.approx(0.75 / 0.25 * 100 - 120)
    job.share = 0.25
    assert job.seconds_left() is None


def test_unknown_methods_name_those_of_the_benchmark() -> None:
    with pytest.raises(UnknownNameError, match="bct-kd"):
        plan(replace(SEARCH, methods={"bct-kd": MethodChoice("bct")}), ["bct-k"])


def test_mps_is_started_for_the_runs_and_stopped_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the service writes down how it is called."""
    calls = tmp_path / "calls"
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(
        f'#!/bin/sh\necho "$@" $CUDA_MPS_PIPE_DIRECTORY >> {calls}\n[ "$1" = -d ] || cat >> {calls}\n'
    )
    control.chmod(0o755)
    said: list[str] = []
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(jobs, "_has_gpu", lambda: True)
    for attempt, works in (("pass", True), ("raise SystemExit(1)", False)):
        calls.unlink(missing_ok=True)
        monkeypatch.setattr(jobs, "_TRY", attempt)
        with jobs.shared_gpu(said.append) as environment:
            assert set(environment) == ({"CUDA_MPS_PIPE_DIRECTORY"} if works else set())
            assert ("quit" in calls.read_text()) is not works
        assert calls.read_text().startswith("-d ")
        assert "quit" in calls.read_text()
    assert said == [
        "the GPU is shared by MPS",
        "the GPU is shared without MPS, which does not answer here",
    ]
    monkeypatch.setattr(jobs, "_has_gpu", lambda: False)
    with jobs.shared_gpu(said.append) as environment:
        assert environment == {}


def test_the_ablations_of_cores_reach_the_scenario(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model selection, pre-training on classes that the tasks leave over, another backbone for the last version."""
    entry = replace(
        VERIFICATION,
        name="small-pairs/3:extras",
        model_selection=True,
        pretraining_classes=5,
        later_models={3: {"backbone": "lenet++"}},
        backbone_options={},
    )
    run = Run(entry, "cores", epochs=1)
    settings = run.settings("cpu")
    first = scenario_options(run, data, tmp_path, settings, progress=False)
    validation = first["validation"]
    assert len(first["pretrained"].slots) == 5
    known = {name for task in run.stream(data) for name in task.images.classes}
    assert not known & set(first["pretrained"].slots.classes)
    assert validation.queries is validation.gallery
    assert len(validation.queries) == 90
    assert {number: later.backbone for number, later in first["later"].items()} == {3: "lenet++"}
    monkeypatch.setattr(
        "fixstar.research.benchmarks.runner.train_version",
        lambda *_, **__: pytest.fail("trained again"),
    )
    again = scenario_options(run, data, tmp_path, settings, progress=False)
    assert weights_digest(again["pretrained"]) == weights_digest(first["pretrained"])
    assert validation.protocol == "verification"  # M of eq. 11 is what the benchmark measures


@pytest.mark.long
def test_replacements_are_pretrained_once_and_take_over(data: Path, tmp_path: Path) -> None:
    """HOC and FD share models behind the simplex; ER has heads of its own. All resume where they are."""
    folders = Folders(data, tmp_path / "work", tmp_path / "results")
    made = tmp_path / "work" / "pretrained"
    for method, models in (("hoc", 2), ("fd", 2), ("er", 4)):
        run = Run(REPLACING, method, 1, epochs=2)
        result = complete(run, folders, "cpu", progress=False)
        assert result.tasks == [4, 3, 3]
        assert [version["images"] for version in result.versions] == [16, 12, 12]
        assert {"template", "image"} <= result.protocols.keys()
        assert len(list(made.iterdir())) == models
        versions = [
            Encoder.load(folders.work / run.name / "run" / "versions" / f"v{t}") for t in (1, 2, 3)
        ]
        digests = {weights_digest(Encoder.load(place / "model")) for place in made.iterdir()}
        started = [version.about["replacement"] for version in versions]
        assert started[1] is None
        assert {started[0], started[2]} <= digests
        assert started[0] != started[2]
        slots = versions[2].slots
        learnt = [name for name in slots.classes if not name.startswith("small100rest: ")]
        assert set(learnt) == set(run.stream(data).class_order)
        if method == "er":
            assert len(slots) == 10
        else:
            assert slots.of([f"small100rest: thing{i:02}" for i in range(6)]) == list(range(6))
            assert sorted(slots.of(learnt)) == list(range(10, 20))


def test_the_pretraining_is_that_of_the_catalogue(data: Path) -> None:
    run = Run(REPLACING, "hoc", epochs=2)
    sets = [images for _, images in _pretraining_images(run, data)]
    assert [len(images) for images in sets] == [
        3 * 2,
        6 * 2,
    ]  # two images per class are left by the tasks
    assert sets[0].classes == (
        "small100rest: thing00",
        "small100rest: thing01",
        "small100rest: thing02",
    )
    assert [run.pretraining(model).epochs for model in REPLACING.replacements] == [
        4,
        4,
    ]  # 8 of 4, as 2 are of 4
    whole = benchmark("cifar100r-10/7")
    assert Run(whole, "hoc").pretraining(whole.replacements[0]).epochs == 300


@pytest.mark.parametrize("method", ["bct-er", "cvs"])
def test_methods_with_a_teacher_go_through_a_replacement(
    data: Path, tmp_path: Path, method: str
) -> None:
    result = run_benchmark(Run(REPLACING, method, epochs=1), data, tmp_path, "cpu", progress=False)
    assert all(
        np.isfinite(value) for version in result.versions for value in version["loss"].values()
    )


def test_a_pair_of_bct_may_differ_in_width_and_head_and_is_searched_half_way(
    data: Path, tmp_path: Path
) -> None:
    """Tables 3 and 7 and figure 3 of BCT, on small models."""
    head = {"bct": MethodChoice("bct", {"head": "cosine-margin"})}
    entry = replace(
        SEARCH,
        scenario="retraining",
        tasks=Tasks((5, 5)),
        protocols=("rank1", "map"),
        methods=head,
        first_head="softmax",
        later_models={2: {"backbone_options": {"width": 4, "feature_dim": 12}}},
        partial_backfill=True,
    )
    result = run_benchmark(Run(entry, "bct", epochs=1), data, tmp_path, "cpu", progress=False)
    folder = next(tmp_path.glob("*/run/versions"))
    old, new = (Encoder.load(folder / name) for name in ("v1", "v2"))
    assert (old.classifier.kind, new.classifier.kind) == ("linear", "cosine")
    assert (old.feature_dim, new.feature_dim) == (8, 12)
    assert "influence" in result.versions[1]["loss"]
    curve = result.protocols["rank1"]["backfill"]
    assert len(curve) == 51
    matrix = result.matrix("rank1")
    assert [curve[0], curve[-1]] == pytest.approx([matrix[1, 0], matrix[1, 1]], abs=1e-6)
    images = SearchedImages.open(entry, data)
    near = (new.encode(images.queries.images)[:, :8] @ old.encode(images.gallery.images).T).argmax(
        axis=1
    )
    accuracy = (images.gallery.labels[near] == images.queries.labels).mean()
    assert matrix[1, 0] == pytest.approx(accuracy, abs=0.012)  # one tie among 90 queries


def test_two_models_of_the_same_data(data: Path, tmp_path: Path) -> None:
    entry = replace(
        SEARCH, scenario="retraining", tasks=Tasks(class_shares=(1.0, 0.0)), capacity=100
    )
    result = run_benchmark(Run(entry, "itm", epochs=1), data, tmp_path, "cpu", progress=False)
    assert result.tasks == [100, 0]
    folder = next(tmp_path.glob("*/run/versions"))
    old, new = (Encoder.load(folder / name) for name in ("v1", "v2"))
    images = SearchedImages.open(entry, data)
    queries = new.encode(images.queries.images)
    found = []
    for gallery in (old, new):
        near = (queries @ gallery.encode(images.gallery.images).T).argmax(axis=1)
        found.append((images.gallery.labels[near] == images.queries.labels).mean())
    assert result.matrix("image")[1] == pytest.approx(found, abs=0.012)  # one tie among 90 queries
