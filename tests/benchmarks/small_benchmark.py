"""Three benchmarks that run in seconds, on CIFAR's binary layout with a few noisy images per class."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fixstar.data.formats import cifar10, cifar100
from fixstar.research.benchmarks import DATASETS, Benchmark, Dataset, MethodChoice, Tasks
from fixstar.research.benchmarks.catalogue import _CATALOGUE, Replacement
from fixstar.research.benchmarks.datasets import DatasetFile, divide_classes
from fixstar.training import Recipe

SEARCH = Benchmark(
    name="small/3",
    title="A few images of CIFAR's shape learnt in 3 tasks, others searched",
    sources=("HOC, table 2",),
    training="small100",
    evaluation="small10",
    scenario="lifelong",
    tasks=Tasks((4, 3, 3)),
    protocols=("template", "image"),
    backbone="tiny",
    backbone_options={"width": 4, "feature_dim": 8},
    capacity=12,
    recipe=Recipe(epochs=4, learning_rate=0.05, milestones=(3,), batch_size=8),
    methods={
        "er": MethodChoice("er"),
        "hoc": MethodChoice("hoc", {"lam": 0.1}),
        "itm": MethodChoice("itm"),
    },
    replay_per_class=2,
    orders=(None, 1),
    note="Too small to mean anything.",
)
VERIFICATION = replace(
    SEARCH,
    name="small-pairs/3",
    protocols=("verification", "verification-published"),
    query_split="test",
    pairs=(20, 20),
    scenario="retraining",
)

_PRETRAINING = Recipe(epochs=8, learning_rate=0.05, milestones=(), batch_size=8, schedule="cosine")
REPLACING = replace(
    SEARCH,
    name="small-replaced/3",
    scenario="replacing",
    methods={name: MethodChoice(name) for name in ("er", "fd", "hoc", "bct-er", "cvs")},
    images_per_class=4,
    pretraining=("small100rest", 6),
    replacements=tuple(
        Replacement(task, share, "tiny", SEARCH.backbone_options, _PRETRAINING)
        for task, share in ((1, 0.5), (3, 1.0))
    ),
    capacity=20,
)
ALL = (SEARCH, VERIFICATION, REPLACING)


def _dataset(name: str, folder: str, file: str, load: object) -> Dataset:
    assert callable(load)
    return Dataset(
        name,
        name,
        "noise",
        "this test",
        "none",
        "none",
        f"{folder}/{file}",
        (DatasetFile(f"{folder}/{file}"),),
        load,
    )


def register() -> None:
    """Make the benchmarks known to ``fixstar bench`` of this process."""
    DATASETS["small100"] = _dataset("small100", "cifar-100-binary", "train.bin", cifar100)
    DATASETS["small10"] = _dataset("small10", "cifar-10-batches-bin", "test_batch.bin", cifar10)
    rest = _dataset(
        "small100rest",
        "cifar-100-binary",
        "train.bin",
        lambda *at: divide_classes(cifar100(*at), 4)[1],
    )
    DATASETS["small100rest"] = rest
    _CATALOGUE.update({entry.name: entry for entry in ALL})


def unregister() -> None:
    """Forget them."""
    for entry in ALL:
        del _CATALOGUE[entry.name]
    del DATASETS["small100"], DATASETS["small10"], DATASETS["small100rest"]


def write_data(folder: Path) -> Path:
    """CIFAR-100 with 6 images a class, CIFAR-10 with 6 test and 9 training images a class."""
    hundred, ten = folder / "cifar-100-binary", folder / "cifar-10-batches-bin"
    for place in (hundred, ten):
        place.mkdir(parents=True)
    (hundred / "fine_label_names.txt").write_text("\n".join(f"thing{i:02}" for i in range(100)))
    (ten / "batches.meta.txt").write_text("\n".join(f"kind{i}" for i in range(10)))
    _write(hundred / "train.bin", 100, 6, label_bytes=2, seed=0)
    _write(ten / "data_batch.bin", 10, 9, label_bytes=1, seed=1)
    _write(ten / "test_batch.bin", 10, 6, label_bytes=1, seed=2)
    return folder


def _write(path: Path, classes: int, images: int, label_bytes: int, seed: int) -> None:
    """Every class has a colour of its own, the same in all files of as many classes, under noise."""
    colours = np.random.default_rng(classes).integers(0, 120, (classes, 3, 1))
    labels = np.repeat(np.arange(classes), images)
    noise = np.random.default_rng(seed).integers(0, 130, (len(labels), 3, 1024))
    heads = np.zeros((len(labels), label_bytes), np.uint8)
    heads[:, -1] = labels
    pixels = (colours[labels] + noise).astype(np.uint8).reshape(len(labels), -1)
    np.concatenate([heads, pixels], axis=1).tofile(path)


def site(folder: Path) -> Path:
    """A folder for PYTHONPATH: every Python that starts with it knows the benchmarks."""
    folder.mkdir()
    here = str(Path(__file__).parent)
    lines = [
        "import sys",
        f"sys.path.insert(0, {here!r})",
        "import small_benchmark",
        "small_benchmark.register()",
    ]
    (folder / "sitecustomize.py").write_text("\n".join(lines))
    return folder
