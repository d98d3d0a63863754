"""Lifelong methods against the fixed simplex."""

from __future__ import annotations

import math
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fixstar.errors import InputError, NextStep, plural
from fixstar.losses import SameClass, feature_distillation, info_nce, info_nce_of, search_contrast
from fixstar.methods.method import (
    Method,
    Objective,
    Rule,
    Step,
    Terms,
    Upgrade,
    above,
    at_least,
    one_of,
    require,
)
from fixstar.models import Encoder, Outputs

WIDE = 8192  # features wider than this are compared through the m x m product of the projections


def simplex_hoc(
    lam: float = 0.25,
    rho: float = 5.0,
    same_class: SameClass = "masked",
    with_rotated: bool = False,
    with_first: bool = False,
) -> Method:
    """d-Simplex-HOC (HOC, eq. 2): lam CE + (1 - lam) iNCE with the previous model, over the whole batch.

    The paper sets lam = 0.1 on CIFAR; more weight on the cross-entropy suits prototypes of unit length. The
    first version has no predecessor and is trained with cross-entropy alone.

    ``with_rotated`` and ``with_first`` are not in the paper. They add parts of Polaris: rotated images as additional
    classes, and the first model as a second teacher.
    """
    options = {
        "lam": lam,
        "rho": rho,
        "same_class": same_class,
        "with_rotated": with_rotated,
        "with_first": with_first,
    }
    require("hoc", options, lam=Rule("in [0, 1]", lambda share: 0 <= share <= 1), rho=above(0))
    if same_class not in get_args(SameClass):
        raise InputError(
            f"hoc needs same_class one of {', '.join(get_args(SameClass))}, got {same_class!r}"
        )

    def contrasted(new: Outputs, past: Outputs, targets: Tensor) -> Tensor:
        if new.projection is not None and len(new.projection) > WIDE:  # no [B, d] of the old model
            return info_nce_of(past.cosines(new), targets=targets, rho=rho, same_class=same_class)
        return info_nce(new.z, old=past.z, targets=targets, rho=rho, same_class=same_class)

    def terms(step: Step, slots: Tensor | None = None) -> Terms:
        targets = _turned_targets(step, slots)
        ce = step.new.cross_entropy(targets)
        if step.old is None:
            return {"ce": ce}
        losses = [contrasted(step.new, past, targets) for past in _teachers(step)]
        return {"ce": lam * ce, "hoc": (1 - lam) * torch.stack(losses).mean()}

    def begin(upgrade: Upgrade) -> Objective:
        return Objective(partial(terms, slots=rotated_slots(upgrade.encoder)))

    return Method(
        "hoc",
        "fine-tune against the fixed simplex, contrasted with the previous model",
        "HOC, eq. 2",
        terms=None if with_rotated else terms,
        begin=begin if with_rotated else None,
        needs=frozenset({"old model", "replay"}),
        options=options,
        views=2 if with_rotated else 1,
        rotated=with_rotated,
        first=with_first,
    )


def simplex_fd(
    base: float = 5.0,
    on: Literal["replay", "all"] = "replay",
    head: Literal["simplex", "softmax"] = "simplex",
    with_rotated: bool = False,
    with_first: bool = False,
) -> Method:
    """d-Simplex-FD (CL2R, eq. 9): CE + lam FD, features distilled on the replayed images only (eq. 8).

    lam = base sqrt(k_n / k_0): k_n classes of this task, k_0 old ones in the memory (section 7.2). ``on="all"`` distils
    on the whole batch, ``head="softmax"`` trains a linear classifier, both as in the paper's ablation (table 9).
    ``with_rotated`` and ``with_first`` are not in the paper; see ``simplex_hoc``.
    """
    options = {
        "base": base,
        "on": on,
        "head": head,
        "with_rotated": with_rotated,
        "with_first": with_first,
    }
    require(
        "fd",
        options,
        base=at_least(0),
        on=one_of(("replay", "all")),
        head=one_of(("simplex", "softmax")),
    )
    if with_rotated and head != "simplex":
        raise InputError(
            "fd has rotated classes only in the slots of a simplex; leave head or with_rotated out"
        )

    def begin(upgrade: Upgrade) -> Objective:
        old = upgrade.remembered
        new = len(upgrade.new_classes)
        lam = 0.0
        if old:
            lam = base * math.sqrt(max(new, 1) / old)  # an upgrade may have old classes only
        if with_rotated:
            slots = rotated_slots(upgrade.encoder)
        else:
            slots = None

        def terms(step: Step) -> Terms:
            ce = step.new.cross_entropy(_turned_targets(step, slots))
            if step.old is None:
                return {"ce": ce}
            chosen = step.replay if on == "replay" else None
            losses = [feature_distillation(step.new.z, past.z, chosen) for past in _teachers(step)]
            return {"ce": ce, "fd": lam * torch.stack(losses).mean()}

        return Objective(terms)

    return Method(
        "fd",
        "fine-tune against the fixed simplex, replayed images held at their old features",
        "CL2R, eq. 9",
        begin=begin,
        classifier="simplex" if head == "simplex" else "linear",
        needs=frozenset({"old model", "replay"}),
        options=options,
        views=2 if with_rotated else 1,
        rotated=with_rotated,
        first=with_first,
    )


def _teachers(step: Step) -> list[Outputs]:
    """The previous model and, if the method needs it, the first model (from the third version on)."""
    return [past for past in (step.old, step.first) if past is not None]


def simplex_upper_bound(base: float = 5.0) -> Method:
    """The upper bound of CL2R: d-Simplex-FD retrained from scratch with a memory of infinite size (section 7.3).

    Every version sees all images so far, so nothing can be forgotten; features of old classes are distilled.
    """
    require("cl2r-ub", {"base": base}, base=at_least(0))

    def begin(upgrade: Upgrade) -> Objective:
        old = len(upgrade.old_classes)
        new = len(upgrade.new_classes)
        lam = 0.0
        if old:
            lam = base * math.sqrt(max(new, 1) / old)
        remembered = torch.zeros(
            upgrade.encoder.classifier.outputs, dtype=torch.bool, device=upgrade.encoder.device
        )
        remembered[upgrade.encoder.slots.of(upgrade.old_classes)] = True

        def terms(step: Step) -> Terms:
            ce = step.new.cross_entropy(step.targets)
            if step.old is None:
                return {"ce": ce}
            return {
                "ce": ce,
                "fd": lam * feature_distillation(step.new.z, step.old.z, remembered[step.targets]),
            }

        return Objective(terms)

    return Method(
        "cl2r-ub",
        "retrain against the fixed simplex on all images, old classes held at their old features",
        "CL2R, section 7.3 (UB)",
        begin=begin,
        scenario="retraining",
        initialisation="same",
        needs=frozenset({"old model", "all images"}),
        options={"base": base},
    )


def polaris(
    hold: float = 40.0,
    contrast: float = 2.0,
    rho: float = 5.0,
    rotated: bool = True,
    rate: float = 0.3,
    fade: float = 0.5,
) -> Method:
    """Polaris, our own: features of images stay close to their old ones; new classes take free slots of the simplex.

    CE + ``hold`` (1 - cos to the past) + ``contrast`` search contrast, all over the whole batch:

    - The past is the previous model and, from the third version on, also the first one. With the previous one alone,
      small drifts would add up for the oldest gallery.
    - The contrast runs in the direction of a search (``losses.search_contrast``): a new query must find its old vector.
    - Each image is used twice, the second time ``rotated`` by 90, 180 or 270 degrees. Rotated images are additional
      classes, in free slots. The model learns more from the same images; these classes are not used after training.
    - Upgrades take small steps: ``rate`` times the learning rate. With fewer new classes (n) than old ones (o) the rate
      is also multiplied by (n / o)^``fade``. Large steps lose more than the images can teach.

    It needs a large capacity (10,000): see docs/appendix/methods.md for why, and for what each part adds.
    """
    options = {
        "hold": hold,
        "contrast": contrast,
        "rho": rho,
        "rotated": rotated,
        "rate": rate,
        "fade": fade,
    }
    require(
        "polaris",
        options,
        hold=at_least(0),
        contrast=at_least(0),
        rho=above(0),
        rate=above(0),
        fade=at_least(0),
    )

    def begin(upgrade: Upgrade) -> Objective:
        if rotated:
            slots = rotated_slots(upgrade.encoder)
        else:
            slots = None

        def terms(step: Step) -> Terms:
            targets = _turned_targets(step, slots)
            found = {"ce": step.new.cross_entropy(targets)}
            if step.old is None:
                return found
            across = step.new.cosines(step.old)
            past = across.diagonal()
            if step.first is not None:
                past = (past + step.new.cosines(step.first).diagonal()) / 2
            found["hold"] = hold * (1 - past).mean()
            if contrast:
                found["contrast"] = contrast * search_contrast(
                    across, within=step.new.cosines(step.new), targets=targets, rho=rho
                )
            return found

        if upgrade.teacher is None:
            return Objective(terms)
        taught = len(upgrade.images.classes) / max(len(upgrade.old_classes), 1)
        return Objective(terms, learning_rate=rate * float(min(taught, 1.0) ** fade))

    return Method(
        "polaris",
        "fine-tune against the fixed simplex, every image held where the past put it",
        "ours; after HOC and CL2R",
        begin=begin,
        needs=frozenset({"old model", "replay"}),
        options=options,
        views=2 if rotated else 1,
        rotated=rotated,
        first=True,
    )


def vega(
    head: float = 0.5,
    contrast: float = 0.3,
    rho: float = 5.0,
    rotated: bool = True,
    longer: float = 2.0,
) -> Method:
    """Vega, our own: the new model is trained freely. Vectors of older models are translated.

    CE + ``head`` (1 - cos(W h, old feature)) + ``contrast`` search contrast of the same two, over the whole batch:

    - Nothing holds the new feature at the old one, so it can become as good as the images allow.
    - W is a linear head beside the classifier. It predicts the old feature, and so keeps information in the network
      that old vectors can answer. It is dropped after training: a translation is fitted to the finished model.
    - From the third version on, a second head does the same for the first version.
    - Images are used twice, the second time ``rotated``, as in Polaris.
    - An upgrade trains ``longer``: this multiple of the recipe's epochs. A free model gains more from them.

    With ``head`` and ``contrast`` 0 there are no heads, and training does not need the old model.
    """
    options = {"head": head, "contrast": contrast, "rho": rho, "rotated": rotated, "longer": longer}
    require("vega", options, head=at_least(0), contrast=at_least(0), rho=above(0), longer=above(0))
    has_heads = head > 0 or contrast > 0

    def begin(upgrade: Upgrade) -> Objective:
        if rotated:
            slots = rotated_slots(upgrade.encoder)
        else:
            slots = None
        if has_heads:
            heads = _heads(upgrade)
        else:
            heads = nn.ModuleDict()
        shapes: dict[str, Tensor | None] = {}

        def terms(step: Step) -> Terms:
            targets = _turned_targets(step, slots)
            found = {"ce": step.new.cross_entropy(targets)}
            for name, past in (("old", step.old), ("first", step.first)):
                if past is None or name not in heads:
                    continue
                if name not in shapes:
                    shapes[name] = _shape(past.projection)
                asked = Outputs(heads[name](step.new.h), past.classifier, shapes[name])
                across = asked.cosines(Outputs(past.h, past.classifier, shapes[name]))
                found[f"head to {name}"] = head * (1 - across.diagonal()).mean()
                if contrast:
                    among = asked.cosines(asked)
                    found[f"contrast to {name}"] = contrast * search_contrast(
                        across, within=among, targets=targets, rho=rho
                    )
            return found

        module = heads if len(heads) else None
        return Objective(terms, module, epochs=longer if upgrade.old_classes else 1.0)

    return Method(
        "vega",
        "train freely against the fixed simplex; what older models stored is translated",
        "ours; the prototypes are those of CoReS",
        begin=begin,
        needs=frozenset({"old model", "replay"} if has_heads else {"replay"}),
        options=options,
        views=2 if rotated else 1,
        rotated=rotated,
        first=has_heads,
        own_space=True,
    )


def _heads(upgrade: Upgrade) -> nn.ModuleDict:
    """A linear head for each past model, from the new backbone feature to the past one's.

    If both have the same width it starts as the identity, else from the upgrade's seed, so that a repeated or resumed
    run has the same heads.
    """
    inputs = upgrade.encoder.backbone.feature_dim
    pasts = {"old": upgrade.teacher, "first": upgrade.first}
    heads = nn.ModuleDict()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(upgrade.seed)
        for name, past in pasts.items():
            if past is None:
                continue
            head = nn.Linear(inputs, past.backbone_dim, bias=False)
            if inputs == past.backbone_dim:
                nn.init.eye_(head.weight)
            heads[name] = head
    return heads.to(upgrade.encoder.device)


def _shape(projection: Tensor | None) -> Tensor | None:
    """R [m, m] with R^T R = P^T P: cosines of P h are those of R h, and a past model's P never changes."""
    if projection is None:
        return None
    triangle: Tensor = torch.linalg.qr(projection.detach().cpu().double(), mode="r").R
    return triangle.to(projection)


def _turned_targets(step: Step, slots: Tensor | None) -> Tensor:
    """The slots [B] of a batch; rotated images have their own classes."""
    if slots is None or step.turns is None:
        return step.targets
    return slots[step.targets, step.turns]


def rotated_slots(encoder: Encoder) -> Tensor:
    """The slot of each class turned by 0, 90, 180 and 270 degrees, [outputs, 4].

    In a simplex of K slots the classes own the first or the last eighth of them. A class at slot s owns s + K/8,
    s + 2K/8, s + 3K/8 as well for its rotated images (from the last eighth: s - K/8, ...).
    """
    head = encoder.classifier
    capacity = head.outputs - sum(head.added)
    eighth = capacity // 8
    table = torch.arange(head.outputs)[:, None].repeat(1, 4)
    for slot in encoder.slots.of(encoder.slots.classes):
        if not (slot < eighth or capacity - eighth <= slot < capacity):
            raise InputError(
                f"rotated classes need 8 slots per class: of K={capacity} slots {eighth} are for classes on each side, "
                f"and the model has {plural(len(encoder.slots), 'class')}. Choose a larger capacity for the first "
                "version, or continue without rotated classes",
                NextStep(
                    "train", {"data": ..., "capacity": 8 * len(encoder.slots)}, "the first version"
                ),
                NextStep(
                    "upgrade", {"data": ..., "option": "rotated=false"}, "without rotated classes"
                ),
            )
        table[slot] += (eighth if slot < eighth else -eighth) * torch.arange(4)
    return table.to(encoder.device)
