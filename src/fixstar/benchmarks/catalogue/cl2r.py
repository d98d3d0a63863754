"""The experiments of CL2R: 1:1 verification after two, three, five and ten tasks (section 7)."""

from __future__ import annotations

from functools import partial
from typing import Any

from fixstar.benchmarks.catalogue.entry import Benchmark, MethodChoice, Tasks
from fixstar.data import Augmentation
from fixstar.images import Preprocessing
from fixstar.training import CIFAR_LIFELONG, Recipe

_IMAGENET = Recipe(epochs=90, milestones=(30, 60), batch_size=256)
_FACES = Recipe(epochs=120, milestones=(30, 60, 90), batch_size=1024)
_STATISTICS: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_INCREMENTAL = ("er", "lwf", "bic", "lucir", "fan", "bct-er", "bct", "cl2r-ub")
_WORDS = {2: "two", 3: "three", 5: "five", 10: "ten"}
_REST = "Classes beyond an even split come with the last task."


_lifelong = partial(Benchmark, scenario="lifelong", query_split="test")
_verified = partial(_lifelong, protocols=("verification", "verification-published"), pairs=(3000, 3000))


def _methods(names: tuple[str, ...], base: float) -> dict[str, MethodChoice]:
    """The methods by name and "Ours", with lambda_base of section 7.2."""
    return {**{name: MethodChoice(name) for name in names}, "fd": MethodChoice("fd", {"base": base})}


def _even(classes: int, tasks: int) -> Tasks:
    """As many classes a task as section 7 says; what is left over joins the last task."""
    each = classes // tasks
    return Tasks((*(each,) * (tasks - 1), classes - each * (tasks - 1)))


def _table_9() -> dict[str, MethodChoice]:
    """The ablation of the components."""
    return {
        "er-fd": MethodChoice("fd", {"base": 5.0, "head": "softmax"}),
        "er-fd-all": MethodChoice("fd", {"base": 5.0, "on": "all", "head": "softmax"}),
        "simplex-er": MethodChoice("fd", {"base": 0.0}),
        "fd-all": MethodChoice("fd", {"base": 5.0, "on": "all"}),
    }


def _cifar(tasks: int) -> Benchmark:
    source = "CL2R, table 2" if tasks == 2 else "CL2R, table 3"
    methods = _methods((*_INCREMENTAL, "foster", "podnet"), 5.0)
    return _verified(
        name=f"cifar100-10-verification/{tasks}",
        title=f"CIFAR-100 learnt in {_WORDS[tasks]} tasks, CIFAR-10 pairs verified",
        sources=(source, "CL2R, table 9") if tasks == 10 else (source,),
        training="cifar100",
        evaluation="cifar10",
        tasks=_even(100, tasks),
        backbone="resnet32",
        capacity=100,
        recipe=CIFAR_LIFELONG,
        methods=methods | _table_9() if tasks == 10 else methods,
        ablations={"replay": {str(n): {"replay_per_class": n} for n in (10, 20, 50)}} if tasks == 10 else {},
        note=f"{_REST} The class order is not stated.",
    )


def _tiny(tasks: int) -> Benchmark:
    return _verified(
        name=f"tinyimagenet200-imagenet20/{tasks}",
        title=f"Tiny-ImageNet-200 learnt in {_WORDS[tasks]} tasks, pairs of 20 other ImageNet classes verified",
        sources=("CL2R, table 4" if tasks == 2 else "CL2R, table 5",),
        training="tinyimagenet200",
        evaluation="imagenet20",
        tasks=_even(200, tasks),
        backbone="resnet18",
        capacity=200,
        preprocessing=Preprocessing(size=(64, 64), **_STATISTICS),
        recipe=_IMAGENET,
        augmentation=Augmentation(crop_padding=8),
        methods=_methods(_INCREMENTAL, 5.0),
        note=f"{_REST} Augmentation, class order and the split that the pairs come from are not stated.",
    )


def _imagenet(tasks: int) -> Benchmark:
    return _verified(
        name=f"imagenet900-100/{tasks}",
        title=f"900 ImageNet classes learnt in {_WORDS[tasks]} tasks, pairs of the other 100 verified",
        sources=("CL2R, table 6",),
        training="imagenet900",
        evaluation="imagenet100",
        tasks=_even(900, tasks),
        backbone="resnet18",
        capacity=900,
        recipe=_IMAGENET,
        augmentation=Augmentation(crop_padding=28),
        methods=_methods(("bct-er",), 10.0),
        note="Which 100 classes, augmentation, class order and the split that the pairs come from are not stated.",
    )


def _faces(tasks: int, evaluation: str) -> Benchmark:
    ijbc = evaluation == "ijbc"
    return _lifelong(
        name=f"casia-{evaluation}/{tasks}",
        title=f"CASIA-WebFace learnt in {_WORDS[tasks]} tasks, {'IJB-C' if ijbc else 'LFW'} pairs verified",
        sources=("CL2R, table 8" if ijbc else "CL2R, table 7",),
        training="casia-webface",
        evaluation=evaluation,
        tasks=_even(10_575, tasks),
        protocols=("TAR@FAR=1e-1", "TAR@FAR=1e-2", "TAR@FAR=1e-4") if ijbc else ("verification",),
        backbone="resnet50",
        capacity=10_575,
        preprocessing=Preprocessing(size=(112, 112), **_STATISTICS),
        recipe=_FACES,
        augmentation=Augmentation(crop_padding=14),
        methods=_methods(("bct-er",), 10.0),
        note=f"{_REST} Augmentation and class order are not stated.",
    )


def _few_faces(tasks: Tasks) -> Benchmark:
    """In no paper: what can be run with data that anybody can have."""
    return _lifelong(
        name=f"celeba200-lfw/{tasks.count}",
        title=f"200 people of CelebA learnt in {tasks.count} tasks, LFW pairs verified",
        sources=("ours, after CL2R, section 7.6",),
        training="celeba200",
        evaluation="lfw",
        tasks=tasks,
        protocols=("verification", "TAR@FAR=1e-2"),
        backbone="resnet18",
        capacity=200,
        preprocessing=Preprocessing(size=(112, 112), **_STATISTICS),
        recipe=Recipe(epochs=90, milestones=(30, 60)),
        augmentation=Augmentation(crop_padding=14),
        methods={**_methods(("er",), 5.0), "hoc": MethodChoice("hoc", {"lam": 0.1, "rho": 10.0})},
        note="Faces are cut otherwise in LFW than in CelebA, and some people may be in both.",
    )


BENCHMARKS: list[Benchmark] = [
    *(_cifar(tasks) for tasks in (2, 3, 5, 10)),
    *(_tiny(tasks) for tasks in (2, 3, 5, 10)),
    *(_imagenet(tasks) for tasks in (2, 3)),
    *(_faces(tasks, evaluation) for evaluation in ("lfw", "ijbc") for tasks in (2, 3, 5, 10)),
    *(_few_faces(Tasks(sizes)) for sizes in ((100, 100), (50, *(25,) * 6))),
]
"""The benchmarks of this paper."""
