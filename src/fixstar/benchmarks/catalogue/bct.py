"""The experiments of BCT: faces (sections 3.4 to 3.6) and people (table 5)."""

from __future__ import annotations

from functools import partial
from typing import Any

from fixstar.benchmarks.catalogue.entry import Ablations, Benchmark, MethodChoice, Tasks
from fixstar.data import Augmentation
from fixstar.images import Preprocessing
from fixstar.training import Recipe

_STATISTICS: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_RECIPE = Recipe(epochs=16, milestones=(8, 12, 14), weight_decay=5e-4, batch_size=320)  # section 3.2
_retrained = partial(
    Benchmark, scenario="retraining", backbone="resnet101", recipe=_RECIPE, replay_per_class=0, orders=(1,)
)
_HEAD = {"head": "cosine-margin"}
_METHODS = {  # all have a cosine margin, and l2 and lwf too (table 8a)
    **{name: MethodChoice(name, _HEAD) for name in ("itm", "l2")},
    "lwf": MethodChoice("lwf", {**_HEAD, "on": "new"}),
    "bct": MethodChoice("bct", _HEAD),
    "bct-kd": MethodChoice("bct", {**_HEAD, "new_classes": "kd"}),
    "bct-sys": MethodChoice("bct", {**_HEAD, "new_classes": "synthesised"}),
}
_CURVES = (
    *("TAR@FAR=1e-5", "TAR@FAR=1e-4", "TAR@FAR=1e-3", "TAR@FAR=1e-2"),
    *("TPIR@FPIR=1e-3", "TPIR@FPIR=1e-2", "TPIR@FPIR=1e-1", "rank1", "rank5"),
)


def _new_model(backbone: str, **options: Any) -> dict[str, Any]:
    """The new model has another backbone than the old one."""
    change = {"backbone": backbone, "backbone_options": {"feature_dim": 128, **options}}
    return {"methods": {"bct": MethodChoice("bct", _HEAD)}, "extra": {"later_models": {2: change}}}


def _old_head(head: str) -> dict[str, Any]:
    """The old model has another head than the new one; both are trained on all data (table 3a)."""
    choice = {"bct": MethodChoice("bct", _HEAD)}
    return {"methods": choice, "tasks": Tasks(class_shares=(1.0, 0.0)), "extra": {"first_head": head}}


_TABLES_3_AND_7: Ablations = {
    "model": {
        "resnet152": _new_model("resnet152"),
        "resnet152-256": _new_model("resnet152", feature_dim=256),
        "relu": _new_model("resnet152", final_relu=True),
        "norm-softmax": _old_head("norm-softmax"),
        "softmax": _old_head("softmax"),
    },
    "backfill": {"partial": {"methods": {"bct": MethodChoice("bct", _HEAD)}, "extra": {"partial_backfill": True}}},
    "data": {
        "25%": {"tasks": Tasks(class_shares=(0.25, 0.75))},
        "90%": {"tasks": Tasks(class_shares=(0.9, 0.1))},
    },
}


def _faces(name: str, title: str, tables: tuple[str, ...], tasks: Tasks, ablations: Ablations) -> Benchmark:
    return _retrained(
        name=name,
        title=title,
        sources=tuple(f"BCT, table {table}" for table in tables),
        training="imdbface",
        evaluation="ijbc",
        tasks=tasks,
        protocols=_CURVES,
        capacity=59_000,
        preprocessing=Preprocessing(size=(112, 112), **_STATISTICS),
        augmentation=Augmentation(crop_padding=14),
        methods=_METHODS,
        query_split="test",
        ablations=ablations,
        backbone_options={"feature_dim": 128},
        note="Augmentation is misalignment and colour distortion; a crop stands in. Which people are old is random. "
        "The loose crops of IJB-C are taken as they are, and rates are means over its two galleries.",
    )


BENCHMARKS: list[Benchmark] = [
    _faces(
        "imdbface-ijbc/1",
        "IMDb-Face, half of the people and then all, searched and verified on IJB-C",
        ("1", "2", "3", "7", "8"),
        Tasks(class_shares=(0.5, 0.5)),
        _TABLES_3_AND_7,
    ),
    _faces(
        "imdbface-ijbc/2",
        "IMDb-Face, a chain of three models, searched and verified on IJB-C",
        ("4", "9"),
        Tasks(class_shares=(0.25, 0.25, 0.5)),
        {},
    ),
    _retrained(
        name="market1501-bct/1",
        title="Market-1501, half of the data and then all, people searched across cameras",
        sources=("BCT, table 5",),
        training="market1501",
        evaluation="market1501",
        tasks=Tasks(class_shares=(0.5, 0.5)),
        protocols=("map",),
        capacity=751,
        preprocessing=Preprocessing(size=(256, 128), fit="squash", **_STATISTICS),
        augmentation=Augmentation(crop_padding=10),
        methods={name: _METHODS[name] for name in ("itm", "bct")},
        query_split="query",
        note="Model and recipe follow another paper and are not stated: those of the faces stand in.",
    ),
]
"""The benchmarks of this paper."""
