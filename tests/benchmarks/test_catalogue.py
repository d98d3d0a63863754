"""The catalogue: what the papers say about each experiment, and that fixstar's parts accept it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from wording import refuses

from fixstar.data import ImageSet, class_stream, from_arrays, sample_stream
from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation.cross_test import check_protocol
from fixstar.methods import METHODS
from fixstar.models import backbone_names, create_backbone
from fixstar.research.benchmarks import (
    DATASETS,
    METHOD_NAMES,
    Benchmark,
    Tasks,
    benchmark,
    catalogue,
)
from fixstar.research.benchmarks.plan import plan

CLASSES = {
    "cifar100": 100,
    "tinyimagenet200": 200,
    "tinyimagenet180": 180,
    "cub180": 180,
    "imagenet900": 900,
    "casia-webface": 10_575,
}


def variants(entry: Benchmark) -> list[Benchmark]:
    return [
        entry.variant({name: value}) for name, values in entry.ablations.items() for value in values
    ]


ALL = [entry for base in catalogue().values() for entry in (base, *variants(base))]


def numbered(classes: int, per_class: int = 4) -> ImageSet:
    pixels = np.zeros((classes * per_class, 2, 2, 1), np.uint8)
    return from_arrays(
        pixels, np.repeat(np.arange(classes), per_class), [f"c{i:03}" for i in range(classes)]
    )


def classes_of(name: str) -> list[int]:
    """Classes known after each task."""
    return list(itertools.accumulate(benchmark(name).tasks.sizes))


def pretraining_classes(name: str) -> list[int]:
    """Classes that each replacement is pre-trained on."""
    entry = benchmark(name)
    assert entry.pretraining is not None
    return [round(model.share * entry.pretraining[1]) for model in entry.replacements]


def test_names_are_keys() -> None:
    assert all(name == entry.name for name, entry in catalogue().items())
    assert len({entry.name for entry in ALL}) == len(ALL) > 100


def test_the_tasks_are_those_of_the_papers() -> None:
    # HOC, tables 2 to 5
    assert benchmark("cifar100-10/2").tasks.sizes == (10, 90)
    assert benchmark("cifar100-10/7").tasks.sizes == (10, *(15,) * 6)
    assert benchmark("cifar100-10/16").tasks.sizes == (10, *(6,) * 15)
    assert benchmark("cifar100-10/31").tasks.sizes == (10, *(3,) * 30)
    assert benchmark("tinyimagenet200-20/31").tasks.sizes == (50, *(5,) * 30)
    assert benchmark("cub180-20/16").tasks.sizes == (60, *(8,) * 15)
    assert benchmark("celeba/16").tasks.sizes == (512,) * 16
    # CL2R, sections 7.4 to 7.6; CoReS, section 5.1
    assert benchmark("cifar100-10-verification/3").tasks.sizes[0] == 33
    assert benchmark("tinyimagenet200-imagenet20/3").tasks.sizes[0] == 66
    assert [benchmark(f"casia-lfw/{T}").tasks.sizes[0] for T in (2, 3, 5, 10)] == [
        5287,
        3525,
        2115,
        1057,
    ]
    assert classes_of("cifar100-10-upgrades/2") == [33, 66, 100]
    assert classes_of("cifar100-10-upgrades/9") == [*range(10, 101, 10)]


def test_all_classes_are_learnt_in_the_end() -> None:
    for entry in catalogue().values():
        if entry.tasks.sizes and entry.training in CLASSES:
            assert sum(entry.tasks.sizes) == CLASSES[entry.training], entry.name
        if entry.tasks.class_shares:
            assert sum(entry.tasks.class_shares) == pytest.approx(1), entry.name
        if entry.training in CLASSES:
            assert entry.capacity >= CLASSES[entry.training], entry.name


def test_the_recipes_are_those_of_the_papers() -> None:
    lifelong, tiny, cub = (
        benchmark(f"{name}/7").recipe for name in ("cifar100-10", "tinyimagenet200-20", "cub180-20")
    )
    assert (lifelong.epochs, lifelong.milestones, lifelong.batch_size, lifelong.weight_decay) == (
        70,
        (50, 64),
        128,
        2e-4,
    )
    assert (tiny.epochs, tiny.milestones, tiny.batch_size, tiny.learning_rate) == (
        90,
        (30, 60),
        256,
        0.1,
    )
    assert (cub.epochs, cub.milestones, cub.batch_size, cub.learning_rate) == (
        150,
        (60, 90, 120),
        64,
        0.01,
    )
    cores, faces = benchmark("cifar100-10-upgrades/9").recipe, benchmark("imdbface-ijbc/1").recipe
    assert (cores.epochs, cores.milestones, cores.weight_decay) == (100, (70,), 5e-4)
    assert (faces.epochs, faces.milestones, faces.batch_size) == (16, (8, 12, 14), 320)
    rates = [faces.rate(epoch) for epoch in (0, 8, 12, 14)]
    assert rates == pytest.approx([0.1, 0.01, 0.001, 0.0001])


def test_hoc_has_the_weights_of_section_6() -> None:
    weights = {
        name: benchmark(f"{name}/7").methods["hoc"].options for name in ("cifar100-10", "cub180-20")
    }
    assert weights == {
        "cifar100-10": {"lam": 0.1, "rho": 5.0},
        "cub180-20": {"lam": 0.5, "rho": 10.0},
    }
    assert benchmark("cifar100r-10/7").methods["hoc"].options == {"lam": 0.1, "rho": 10.0}


def test_models_are_replaced_when_40_and_70_classes_are_known() -> None:
    for name in ("cifar100r-10/7", "cifar100r-10/31"):
        known, models = classes_of(name), benchmark(name).replacements
        assert [known[model.task - 1] for model in models[1:]] == [40, 70]
        assert pretraining_classes(f"{name}:pretraining=imagenet32") == [100, 300, 600]
        assert pretraining_classes(name) == [17, 50, 100]
    faces = benchmark("celeba/16")
    assert pretraining_classes("celeba/16") == [3525, 7050, 10_575]
    assert [classes_of("celeba/16")[model.task - 1] for model in faces.replacements[1:]] == [
        2560,
        5120,
    ]
    others = benchmark("cifar100r-10/31:replacements=architectures").replacements
    assert [model.backbone for model in others] == ["resnet18", "senet18", "regnety_400mf"]
    assert [
        model.task for model in benchmark("cifar100r-10/31:replacements=none").replacements
    ] == [1]


@pytest.mark.parametrize("entry", ALL, ids=lambda entry: entry.name)
def test_every_entry_fits_fixstars_parts(entry: Benchmark) -> None:
    settings = entry.settings(seed=3)
    assert settings.seed == 3
    assert settings.capacity == entry.capacity
    assert {source.name for source in entry.datasets} <= DATASETS.keys()
    assert entry.methods.keys() <= METHOD_NAMES.keys()
    for choice in entry.methods.values():
        assert choice.create().name == choice.name
    names = {entry.backbone, *(model.backbone for model in entry.replacements)}
    assert all(name in backbone_names() or name.startswith("hf:") for name in names)
    assert all(1 <= model.task <= entry.tasks.count for model in entry.replacements)
    assert (
        (entry.scenario == "replacing")
        == bool(entry.replacements)
        == (entry.pretraining is not None)
    )
    assert entry.sources
    assert entry.protocols


@pytest.mark.long
def test_backbone_options_are_known() -> None:
    options = {
        (e.backbone, tuple(e.backbone_options.items()))
        for e in ALL
        if not e.backbone.startswith("hf:")
    }
    with torch.device("meta"):  # no weights are drawn
        for name, chosen in options:
            assert create_backbone(name, **dict(chosen)).name == name


def test_every_method_of_a_paper_that_can_be_trained_here_is_reached() -> None:
    reached = {choice.name for entry in catalogue().values() for choice in entry.methods.values()}
    assert {
        "er",
        "bct-er",
        "lce-er",
        "advbct-er",
        "cvs",
        "fd",
        "hoc",
        "itm",
        "ift",
        "l2",
        "lwf",
        "bct",
        "cores",
    } <= reached
    assert reached <= METHODS.keys()


def test_ablations_change_what_they_name() -> None:
    nine = benchmark("cifar100-10-upgrades/9")
    assert benchmark("cifar100-10-upgrades/9:epochs=350").recipe.milestones == (150, 250)
    start = benchmark("cifar100-10-upgrades/9:initialisation=previous").methods["cores"].create()
    assert start.initialisation == "previous"
    both = benchmark("cifar100-10-upgrades/9:pretraining=40,selection=yes")
    assert (both.pretraining_classes, both.model_selection) == (40, True)
    assert both.name == "cifar100-10-upgrades/9:pretraining=40,selection=yes"
    assert (nine.pretraining_classes, nine.model_selection) == (0, False)  # the base is untouched
    assert benchmark("cifar100-10-upgrades/9:order=random").orders == tuple(range(1, 21))
    assert benchmark("cifar100-10/16:lam=0.25").methods["hoc"].options["lam"] == 0.25
    assert benchmark("cifar100r-10/31:images=5").images_per_class == 5


@pytest.mark.parametrize("entry", ALL, ids=lambda entry: entry.name)
def test_every_entry_can_be_planned_and_measured(entry: Benchmark) -> None:
    assert {run.method for run in plan(entry)} <= entry.methods.keys()
    assert {choice.name for choice in entry.methods.values()} <= METHODS.keys()
    for protocol in entry.protocols:
        if protocol != "verification-published":
            check_protocol(protocol)
    settings = entry.settings()
    for change in entry.later_models.values():
        replace(settings, **change)


def test_the_pairs_of_bct_have_the_models_of_its_tables() -> None:
    base = benchmark("imdbface-ijbc/1")
    assert (base.backbone, base.backbone_options) == ("resnet101", {"feature_dim": 128})
    new = {name: benchmark(f"imdbface-ijbc/1:model={name}") for name in base.ablations["model"]}
    wider = new["resnet152-256"].later_models[2]
    assert wider == {"backbone": "resnet152", "backbone_options": {"feature_dim": 256}}
    assert new["relu"].later_models[2]["backbone_options"] == {
        "feature_dim": 128,
        "final_relu": True,
    }
    for head in ("norm-softmax", "softmax"):  # both models are trained on all data (table 3a)
        assert new[head].first_head == head
        stream = new[head].tasks.stream(numbered(4))
        assert [len(task.images) for task in stream] == [16, 0]
        assert len(stream.seen(2)) == 16
    assert {choice.create().classifier_options["margin"] for choice in base.methods.values()} == {
        0.4
    }


@pytest.mark.parametrize(
    "name",
    [
        "cifar100-10/8",
        "cifar100-10/16:KK=5",
        "cifar100-10/16:K=7",
        "cifar100-10/7:K=100",
    ],
)
def test_unknown_names_say_which_are_near(name: str) -> None:
    with refuses(UnknownNameError):
        benchmark(name)


def test_a_variant_without_a_value_is_refused() -> None:
    for name in ("cifar100-10/16:", "cifar100-10/16:K", "cifar100-10/16:K=100,"):
        with pytest.raises(InputError, match="NAME=VALUE"):
            benchmark(name)


def test_the_catalogue_cannot_be_changed_from_outside() -> None:
    catalogue().clear()
    assert "cifar100-10/7" in catalogue()


# Tasks over images


@pytest.mark.parametrize("order", [None, 1])
def test_even_tasks_are_a_class_stream(order: int | None) -> None:
    images = numbered(100, 1)
    ours, theirs = (
        Tasks((10, *(15,) * 6)).stream(images, order),
        class_stream(images, 10, 15, order),
    )
    assert ours.class_order == theirs.class_order
    assert [task.images.classes for task in ours] == [task.images.classes for task in theirs]
    assert [task.number for task in ours] == [1, 2, 3, 4, 5, 6, 7]


def test_shares_of_classes_are_rounded_without_loss() -> None:
    stream = Tasks(class_shares=(1 / 3,) * 3).stream(numbered(10))
    assert [len(task.images.classes) for task in stream] == [3, 4, 3]
    assert [name for task in stream for name in task.images.classes] == list(stream.class_order)
    assert [
        len(task.images.classes)
        for task in Tasks(class_shares=(0.25, 0.25, 0.5)).stream(numbered(8))
    ] == [2, 2, 4]


def test_upgrade_data_from_old_classes_and_from_both() -> None:
    images = numbered(6)
    old = Tasks(sample_shares=(0.5, 0.5)).stream(images, seed=4)
    expected = sample_stream(images, (0.5, 0.5), 4)
    assert [len(task.images) for task in old] == [12, 12]
    assert [task.images.labels.tolist() for task in old] == [
        task.images.labels.tolist() for task in expected
    ]
    both = Tasks((3, 3), first_share=0.5).stream(images)
    assert [len(task.images) for task in both] == [6, 18]
    assert [len(set(task.images.labels.tolist())) for task in both] == [3, 6]


def test_fewer_classes_than_the_dataset_has() -> None:
    stream = Tasks((2, 2)).stream(numbered(6))
    assert stream.class_order == ("c000", "c001", "c002", "c003")
    with refuses(InputError):
        Tasks((2, 2)).stream(numbered(3))


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"sizes": (2, 0)},
        {"sizes": (2,), "class_shares": (1.0,)},
        {"class_shares": (0.6, 0.6)},
        {"sizes": (1, 1, 1), "first_share": 0.5},
        {"sizes": (1, 1), "first_share": 1.0},
    ],
)
def test_wrong_tasks_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Tasks(**wrong)
