"""The experiments of CoReS: retraining with one to nine upgrades (section 5) and the ablations (section 6)."""

from __future__ import annotations

from functools import partial
from typing import Any

from fixstar.benchmarks.catalogue.entry import Benchmark, MethodChoice, Tasks
from fixstar.data import Augmentation
from fixstar.images import Preprocessing
from fixstar.training import CIFAR_CORES, Recipe

_STATISTICS: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_FACES = Recipe(epochs=120, milestones=(30, 60, 90), weight_decay=5e-4, batch_size=1024)  # section 5.2
_PEOPLE = Recipe(25, 3e-4, milestones=(20,), weight_decay=0.0, batch_size=256, optimizer="adam")  # section 5.3
_SIZES = {1: (50, 50), 2: (33, 33, 34), 4: (20,) * 5, 9: (10,) * 10}
_WORDS = {1: "one upgrade", 2: "two upgrades", 3: "three upgrades", 4: "four upgrades", 5: "five upgrades"}
_WORDS |= {9: "nine upgrades"}
_TWENTY = tuple(range(1, 21))


_retrained = partial(Benchmark, scenario="retraining", replay_per_class=0, query_split="test", orders=(1,))


def _methods(*names: str) -> dict[str, MethodChoice]:
    return {name: MethodChoice(name) for name in names}


_ALL = _methods("itm", "l2", "ift", "lwf", "bct", "cores")


def _recipe(epochs: int, *milestones: int) -> Recipe:
    return Recipe(epochs=epochs, milestones=milestones, weight_decay=5e-4)


def _equal(upgrades: int) -> Tasks:
    return Tasks(class_shares=(1 / (upgrades + 1),) * (upgrades + 1))


def _nine() -> dict[str, Any]:
    """Sections 6.1 to 6.5."""
    schedules = {30: (), 70: (50,), 100: (70,), 200: (70, 140), 350: (150, 250)}
    starts = {how: MethodChoice("cores", {"initialisation": how}) for how in ("same", "fresh", "previous")}
    pretraining = {
        str(classes): {"tasks": Tasks((5,) * 10), "paper_runs": 20, "extra": {"pretraining_classes": classes}}
        for classes in (20, 30, 40, 50)
    }
    return {
        "epochs": {str(epochs): {"recipe": _recipe(epochs, *steps)} for epochs, steps in schedules.items()},
        "selection": {"no": {"paper_runs": 20}, "yes": {"paper_runs": 20, "extra": {"model_selection": True}}},
        "pretraining": pretraining,
        "initialisation": {how: {"methods": {"cores": start}, "paper_runs": 20} for how, start in starts.items()},
        "order": {
            "alphabetical": {"orders": (None,), "paper_runs": 20},
            "random": {"orders": _TWENTY, "paper_runs": 20},
        },
    }


def _architectures() -> dict[str, Any]:
    """Section 6.6: each with its own recipe, and a new architecture at each upgrade."""
    three = ("resnet20", "senet18", "regnetx_200mf")
    recipes = (_recipe(40), CIFAR_CORES, _recipe(150, 70, 120))
    return {
        "resnet20": {"backbone": "resnet20", "recipe": _recipe(40)},
        "resnet32": {"backbone": "resnet32", "recipe": _recipe(70, 50, 65)},
        "senet18": {"backbone": "senet18"},
        "regnetx_200mf": {"backbone": "regnetx_200mf", "recipe": _recipe(150, 70, 120)},
        "growing": {
            "backbone": three[0],
            "recipe": _recipe(40),
            "methods": {"cores": MethodChoice("cores")},  # others compare features of one width
            "extra": {
                "later_models": {i: {"backbone": three[i - 1], "recipe": recipes[i - 1]} for i in (2, 3)},
            },
        },
    }


def _sources_of_data() -> dict[str, Any]:
    """Section 6.8."""
    return {
        "new": {},
        "old": {"tasks": Tasks(sample_shares=(0.5, 0.5)), "orders": (None,)},  # all classes at once: in no order
        "old-and-new": {"tasks": Tasks((50, 50), first_share=0.5)},
    }


def _ablations(upgrades: int) -> dict[str, Any]:
    future = {str(K): {"capacity": K} for K in (100, 200, 500, 1000, 10000)}  # section 6.7
    others: dict[int, dict[str, Any]] = {
        1: {"upgrade": _sources_of_data()},
        2: {"backbone": _architectures()},
        4: {},
        9: _nine(),
    }
    return {"K": future, **others[upgrades]}


def _cifar(upgrades: int) -> Benchmark:
    tables = {1: ("1", "11", "12"), 2: ("2", "11"), 4: ("11",), 9: ("7", "8", "9", "10", "11")}[upgrades]
    return _retrained(
        name=f"cifar100-10-upgrades/{upgrades}",
        title=f"CIFAR-100 retrained from scratch with {_WORDS[upgrades]}, CIFAR-10 pairs verified",
        sources=tuple(f"CoReS, table {table}" for table in tables),
        training="cifar100",
        evaluation="cifar10",
        tasks=Tasks(_SIZES[upgrades]),
        protocols=("verification", "verification-published"),
        backbone="senet18",
        capacity=100,
        recipe=CIFAR_CORES,
        methods=_ALL,
        pairs=(3000, 3000),
        orders=(1, 2, 3),
        ablations=_ablations(upgrades),
        note="Random class orders are said to be the default, yet table 10 prints the default's figures for the "
        "alphabetical one, which the published code takes. It cuts the pairs into folds as they are drawn "
        "(verification-published). In section 6.1 the rates are taken to fall tenfold at each step.",
    )


def _faces(upgrades: int) -> Benchmark:
    return _retrained(
        name=f"casia-lfw-upgrades/{upgrades}",
        title=f"CASIA-WebFace retrained with {_WORDS[upgrades]}, LFW pairs verified",
        sources=("CoReS, table 3", "CoReS, section 5.2") if upgrades == 1 else ("CoReS, section 5.2",),
        training="casia-webface",
        evaluation="lfw",
        tasks=_equal(upgrades),
        protocols=("verification",),
        backbone="resnet50",
        capacity=10_575,
        preprocessing=Preprocessing(size=(112, 112), **_STATISTICS),
        recipe=_FACES,
        augmentation=Augmentation(crop_padding=14),
        methods=_ALL,
        note="Augmentation is not stated.",
    )


def _market(upgrades: int) -> Benchmark:
    return _retrained(
        name=f"market1501/{upgrades}",
        title=f"Market-1501 with {_WORDS[upgrades]}, people searched across cameras",
        sources=("CoReS, table 4",),
        training="market1501",
        evaluation="market1501",
        tasks=_equal(upgrades),
        protocols=("map",),
        backbone="hf:microsoft/resnet-101",
        capacity=751,
        preprocessing=Preprocessing(size=(256, 128), fit="squash", **_STATISTICS),
        recipe=_PEOPLE,
        augmentation=Augmentation(crop_padding=10),
        methods=_ALL,
        query_split="query",
        note="Input size, augmentation and weight decay are not stated, nor which weights of ImageNet.",
    )


def _landmarks() -> Benchmark:
    return _retrained(
        name="gldv2/1",
        title="Google landmarks with one upgrade, retrieval",
        sources=("CoReS, table 5",),
        training="gldv2",
        evaluation="gldv2",
        tasks=_equal(1),
        protocols=("map100",),
        backbone="resnet50",
        capacity=81_313,
        preprocessing=Preprocessing(size=(256, 256), **_STATISTICS),
        recipe=CIFAR_CORES,
        augmentation=Augmentation(crop_padding=32),
        methods=_methods("bct", "cores"),
        gallery_split="index",
        note="The recipe is not stated: that of section 5.1 stands in. The paper keeps the 512 largest components of "
        "each feature; short forms need no such loss.",
    )


def _met() -> Benchmark:
    return _retrained(
        name="met/1",
        title="Exhibits of the Met with one upgrade, kNN classification of visitors' photographs",
        sources=("CoReS, table 6",),
        training="met",
        evaluation="met",
        tasks=_equal(1),
        protocols=("knn1",),
        backbone="hf:microsoft/resnet-50",
        capacity=2049,
        recipe=CIFAR_CORES,
        augmentation=Augmentation(crop_padding=28),
        methods={"bct": MethodChoice("bct"), "cores": MethodChoice("cores-contrastive")},
        query_split="test",
        gallery_split="train",
        note="The recipe is that of the Met dataset's own baseline and not stated: that of section 5.1 stands in. K of "
        "kNN is not stated: one here, as most exhibits have one photograph.",
    )


BENCHMARKS: list[Benchmark] = [
    *(_cifar(upgrades) for upgrades in (1, 2, 4, 9)),
    *(_faces(upgrades) for upgrades in (1, 2, 3, 4, 5, 9)),
    *(_market(upgrades) for upgrades in (1, 2)),
    _landmarks(),
    _met(),
]
"""The benchmarks of this paper."""
