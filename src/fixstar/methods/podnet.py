"""PODNet: feature maps, pooled along their sides, held at the old model's."""

from __future__ import annotations

import math
from numbers import Integral

from fixstar.errors import InputError
from fixstar.losses import feature_distillation, neighbourhood_components, pooled_outputs
from fixstar.methods.method import Method, Objective, Step, Terms, Upgrade


def podnet(spatial: float = 3.0, flat: float = 1.0, proxies: int = 10, margin: float = 0.6) -> Method:
    """PODNet (Douillard et al. 2020): NCA loss + spatial * POD of the maps + flat * (1 - cos) of the features.

    Both weights are multiplied by sqrt(all classes / new classes), as published for CIFAR-100. The maps are those after
    each stage, ReLU included. The classifier's balanced fine-tuning is left out: features do not depend on it.
    """
    if not (spatial >= 0 and flat >= 0 and isinstance(proxies, Integral) and proxies >= 1):
        raise InputError(
            "podnet needs spatial and flat >= 0 and a whole number of proxies >= 1, "
            f"got spatial={spatial}, flat={flat}, proxies={proxies}"
        )
    return Method(
        "podnet",
        "fine-tune with several proxies per class, pooled feature maps held at the old ones",
        "Douillard et al. 2020, eqs. 4 to 9; CL2R, section 7.3 (PODNet)",
        begin=lambda upgrade: _pooled(upgrade, spatial, flat),
        classifier="proxy",
        classifier_options={"proxies": proxies, "margin": margin},
        needs=frozenset({"old model", "replay"}),
        options={"spatial": spatial, "flat": flat, "proxies": proxies, "margin": margin},
        maps=True,
    )


def _pooled(upgrade: Upgrade, spatial: float, flat: float) -> Objective:
    total = len(upgrade.old_classes) + len(upgrade.new_classes)
    factor = math.sqrt(total / max(1, len(upgrade.new_classes)))

    def terms(step: Step) -> Terms:
        nca = neighbourhood_components(step.new.logits, step.targets)
        if step.old is None:
            return {"nca": nca}
        return {
            "nca": nca,
            "pod": spatial * factor * pooled_outputs(step.new.maps, step.old.maps),
            "flat": flat * factor * feature_distillation(step.new.h, step.old.h),
        }

    return Objective(terms)
