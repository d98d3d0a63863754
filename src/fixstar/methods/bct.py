"""Backward-compatible training: the old classifier must be able to use the new features (BCT).

L = L(new classifier, new features) + lam L(old classifier, new features): the second is the influence loss (eq. 8).
The old classifier knows old classes only. For images of new classes the influence loss is left out, or follows the old
model's answers (knowledge distillation), or uses prototypes synthesised from its features (section 2.5).

Features of different widths share their first components. A narrower new feature has zeros in the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fixstar.errors import ModelError
from fixstar.losses import cross_entropy, knowledge_distillation
from fixstar.methods.method import (
    Method,
    Need,
    Objective,
    Step,
    Terms,
    Upgrade,
    above,
    at_least,
    one_of,
    plain_terms,
    require,
)
from fixstar.models import Classifier, FrozenEncoder

Head = Literal["softmax", "norm-softmax", "cosine-margin"]
NewClasses = Literal["none", "kd", "synthesised"]

HEADS: dict[str, tuple[str, dict[str, object]]] = {
    "softmax": ("linear", {}),
    "norm-softmax": ("cosine", {"scale": 32.0, "margin": 0.0}),
    "cosine-margin": (
        "cosine",
        {"scale": 32.0, "margin": 0.4},
    ),  # BCT, section 3.2; temperature 32: appendix A
}


def trainable_head(method: str, head: str) -> tuple[str, dict[str, object]]:
    """The kind of a head and its options."""
    require(method, {"head": head}, head=one_of(HEADS))
    return HEADS[head]


def bct(lam: float = 1.0, new_classes: NewClasses = "none", head: Head = "softmax") -> Method:
    """BCT, retrained from scratch on all images (eq. 8). ``new_classes`` chooses -kd or -sys of section 2.5."""
    return _method(
        "bct",
        summary="retrain so that the old classifier can use the new features",
        lam=lam,
        new_classes=new_classes,
        head=head,
    )


def bct_replay(lam: float = 1.0, head: Head = "softmax") -> Method:
    """BCT-ER, also lifelong BCT (CL2R, section 7.3): continues from the last weights with replayed images."""
    return _method(
        "bct-er",
        summary="fine-tune so that the old classifier can use the new features",
        lam=lam,
        new_classes="none",
        head=head,
        lifelong=True,
    )


def bct_vectors(lam: float = 1.0, scale: float = 32.0, head: Head = "norm-softmax") -> Method:
    """BCT where only stored vectors are left of the old model: their class means classify (section 2.5)."""
    given = {"lam": lam, "scale": scale, "head": head}
    require("bct-vectors", given, lam=at_least(0), scale=above(0), head=one_of(HEADS))
    classifier, options = HEADS[head]
    return Method(
        "bct-vectors",
        "train so that the class means of stored vectors can classify the new features",
        "BCT, section 2.5 (synthesised prototypes)",
        begin=lambda upgrade: _judged_by_vectors(upgrade, lam, scale),
        classifier=classifier,
        classifier_options=options,
        scenario="retraining",
        initialisation="fresh",
        needs=frozenset({"old vectors"}),
        options=given,
        shared_components=True,
    )


def _judged_by_vectors(upgrade: Upgrade, lam: float, scale: float) -> Objective:
    stored = upgrade.old_vectors
    if stored is None and not upgrade.old_classes:
        return Objective(plain_terms)
    encoder = upgrade.encoder
    known: tuple[str, ...] = ()
    if stored is not None:
        known = tuple(c for i, c in enumerate(stored.classes) if (stored.labels == i).any())
    if stored is None or not set(known) & set(encoder.slots.classes):
        raise ModelError(_nothing_in_common(upgrade, known))
    width = stored.vectors.shape[1]
    means = np.stack(
        [stored.vectors[stored.labels == stored.classes.index(name)].mean(axis=0) for name in known]
    )
    prototypes = functional.normalize(torch.from_numpy(means).float()).to(
        encoder.device
    )  # [stored classes, d]
    rows = torch.full(
        (encoder.classifier.outputs,), -1, device=encoder.device
    )  # of each output's class; -1: none
    for row, name in enumerate(known):
        if name in encoder.slots:
            rows[encoder.slots.of([name])[0]] = row

    def terms(step: Step) -> Terms:
        shared = _first_components(step.new.z, width)
        answers = scale * functional.normalize(shared.float()) @ prototypes.T
        own = rows[step.targets]
        return {
            "ce": step.new.cross_entropy(step.targets),
            "influence": lam * cross_entropy(answers, own, own >= 0),
        }

    return Objective(terms)


def _nothing_in_common(upgrade: Upgrade, known: tuple[str, ...]) -> str:
    """The error if no image belongs to a class with stored vectors, ``known``."""
    why = f"no class of the images ({_some(upgrade.images.classes)}) has stored vectors"
    if known:
        return f"{why}; these have: {_some(known)}. Add images of such old classes, with the same class names"
    return (
        f"{why}. An upgrade makes them again, of images of the previous version's classes: "
        f"{_some(upgrade.old_classes)}. Add images of old classes: some of each that must stay "
        "comparable, with the same class names"
    )


def _some(names: Sequence[str]) -> str:
    """The first names, with "..." if there are more."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _method(
    name: str, summary: str, lam: float, new_classes: str, head: str, lifelong: bool = False
) -> Method:
    every = {"lam": lam, "new_classes": new_classes, "head": head}
    given = dict(every)
    if lifelong:
        del given["new_classes"]
    require(
        "bct", every, lam=at_least(0), new_classes=one_of(get_args(NewClasses)), head=one_of(HEADS)
    )
    classifier, options = HEADS[head]
    return Method(
        name,
        summary,
        "BCT, eq. 8" if new_classes == "none" else "BCT, section 2.5",
        begin=lambda upgrade: _influenced(upgrade, lam, new_classes),
        classifier=classifier,
        classifier_options=options,
        scenario="lifelong" if lifelong else "retraining",
        initialisation="previous" if lifelong else "fresh",
        needs=frozenset[Need]({"old classifier", "replay" if lifelong else "all images"})
        | (frozenset[Need]({"old model"}) if new_classes != "none" else frozenset()),
        options=given,
        shared_components=True,
    )


def _influenced(upgrade: Upgrade, lam: float, new_classes: str) -> Objective:
    if upgrade.teacher is None:
        return Objective(plain_terms)
    teacher = upgrade.teacher
    width = upgrade.teacher.feature_dim
    if new_classes == "synthesised":
        judge = _synthesised(upgrade, teacher)
        judged = judge.outputs
    else:
        judge = teacher.classifier
        judged = upgrade.old_outputs

    def terms(step: Step) -> Terms:
        shared = _first_components(step.new.z, width)
        known = step.targets < judged  # slots are assigned in the order of appearance
        answers = judge(shared, step.targets.where(known, 0))
        influence = cross_entropy(answers, step.targets, known)
        if new_classes == "kd" and step.old is not None:
            influence = influence + knowledge_distillation(
                judge(shared), step.old.logits, chosen=~known
            )
        return {"ce": step.new.cross_entropy(step.targets), "influence": lam * influence}

    return Objective(terms)


def _first_components(z: Tensor, width: int) -> Tensor:
    """[B, d] -> [B, width]. A narrower feature counts as zero in the components it lacks, as it does in a search."""
    return functional.pad(z[:, :width], (0, max(0, width - z.shape[1])))


def _synthesised(upgrade: Upgrade, teacher: FrozenEncoder) -> Classifier:
    """The old classifier with a row per new class: the mean of the old model's features, at the old rows' length."""
    slots = upgrade.encoder.slots
    judge = teacher.classifier.grown(len(slots)).requires_grad_(False)
    fresh = upgrade.images.of_classes(upgrade.new_classes)
    features = torch.from_numpy(teacher.encode(fresh.images, form="raw"))
    labels = torch.from_numpy(fresh.labels)
    weight: Tensor = judge.get_parameter("weight")
    with torch.no_grad():
        for label, slot in enumerate(slots.of(upgrade.new_classes)):
            mine = features[labels == label]
            mean = functional.normalize(mine.sum(dim=0), dim=0).to(weight.device)
            weight[slot] = mean * weight[: teacher.classifier.outputs].norm(dim=1).mean()
    return judge
