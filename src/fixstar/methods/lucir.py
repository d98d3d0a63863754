"""LUCIR: a cosine classifier, features held at the old ones, and old prototypes kept apart from new ones."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Literal

from fixstar.errors import InputError, ModelError
from fixstar.losses import feature_distillation, margin_ranking
from fixstar.methods.method import Method, Objective, Step, Terms, Upgrade
from fixstar.models import CosineClassifier

Ratio = Literal["old/new", "new/old"]


def lucir(
    base: float = 5.0,
    ratio: Ratio = "old/new",
    ranking: float = 1.0,
    k: int = 2,
    margin: float = 0.5,
    scale: float = 30.0,
) -> Method:
    """LUCIR (Hou et al. 2019): CE + lam (1 - cos(new, old)) on all images + margin ranking on those of old classes.

    lam = base sqrt(old classes / new classes), as in the published code, which CL2R ran; eq. 7 of the paper prints
    the ratio upside down: ``ratio="new/old"``. The ranking is averaged over the k prototypes, as in that code (eq. 8
    sums). The scale of the cosines is fixed, not learnt; new prototypes are not imprinted; no balanced fine-tuning.
    """
    whole = isinstance(k, Integral) and k >= 1
    if not (base >= 0 and ranking >= 0 and whole and margin >= 0) or ratio not in ("old/new", "new/old"):
        raise InputError(
            "lucir needs base, ranking and margin >= 0, a whole k >= 1 and ratio one of old/new, new/old; "
            f"got base={base}, ranking={ranking}, margin={margin}, k={k}, ratio={ratio!r}"
        )
    return Method(
        "lucir",
        "fine-tune a cosine classifier, features held at the old ones, old prototypes apart from new ones",
        "Hou et al. 2019, eqs. 6 to 9; CL2R, section 7.3 (LUCIR)",
        begin=lambda upgrade: _rebalanced(upgrade, base, ratio, ranking, k, margin),
        classifier="cosine",
        classifier_options={"scale": scale, "margin": 0.0},
        needs=frozenset({"old model", "replay"}),
        options={"base": base, "ratio": ratio, "ranking": ranking, "k": k, "margin": margin, "scale": scale},
    )


def _rebalanced(upgrade: Upgrade, base: float, ratio: str, ranking: float, k: int, margin: float) -> Objective:
    if upgrade.teacher is None or not upgrade.old_outputs:
        return Objective(lambda step: {"ce": step.new.cross_entropy(step.targets)})
    head, old_outputs = upgrade.encoder.classifier, upgrade.old_outputs
    if not isinstance(head, CosineClassifier):
        raise ModelError(
            f"lucir trains a cosine classifier; this model has a {head.kind} one. Begin with lucir from v1"
        )
    scale, lam = head.scale, base * _imbalance(len(upgrade.old_classes), len(upgrade.new_classes), ratio)

    def terms(step: Step) -> Terms:
        assert step.old is not None  # the teacher is there
        order = margin_ranking(step.new.logits / scale, step.targets, old_outputs, k, margin)
        return {
            "ce": step.new.cross_entropy(step.targets),
            "less_forget": lam * feature_distillation(step.new.z, step.old.z),
            "ranking": ranking * order,
        }

    return Objective(terms)


def _imbalance(old: int, new: int, ratio: str) -> float:
    """sqrt of the ratio of class counts; 1 where a version brings no new class."""
    if not old or not new:
        return 1.0
    return math.sqrt(old / new if ratio == "old/new" else new / old)
