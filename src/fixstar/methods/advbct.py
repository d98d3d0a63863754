"""AdvBCT: a discriminator that cannot tell new features from old ones, and an elastic boundary around old centres."""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor, nn
from torch.nn import functional

from fixstar.errors import InputError
from fixstar.losses import elastic_boundary
from fixstar.methods.bct import HEADS, Head
from fixstar.methods.method import Method, Objective, Step, Terms, Upgrade
from fixstar.methods.old_centres import OldCentres


def adversarial_replay(
    adversarial: float = 1.0,
    reversal: float = 1.0,
    boundary: float = 1.0,
    threshold: float = 0.5,
    width: int = 100,
    head: Head = "softmax",
) -> Method:
    """AdvBCT-ER (Pan et al. 2023, with replay): CE + adversarial loss + elastic boundary loss.

    The discriminator tells new unit features from old ones; their gradient reaches the encoder multiplied by -reversal,
    which grows from 0 as in the published code (its loss also fades over the epochs; here it stays). The boundary of a
    class lies between its old radius and ``threshold``, where a learnt weight puts it. Outliers count for the radius.
    """
    weights = {"adversarial": adversarial, "reversal": reversal, "boundary": boundary, "threshold": threshold}
    whole = isinstance(width, Integral) and width >= 1
    if not all(value >= 0 for value in weights.values()) or not whole or head not in HEADS:
        raise InputError(
            f"advbct-er needs {', '.join(weights)} >= 0, a whole width >= 1 and head one of {', '.join(HEADS)}; "
            f"got {weights}, width={width}, head={head!r}"
        )
    classifier, options = HEADS[head]
    return Method(
        "advbct-er",
        "fine-tune with features that a discriminator cannot tell from old ones, inside elastic class boundaries",
        "Pan et al. 2023, adversarial and elastic boundary loss; HOC, section 5 (AdvBCT-ER)",
        begin=lambda upgrade: _adversarial(upgrade, adversarial, reversal, boundary, threshold, width),
        classifier=classifier,
        classifier_options=options,
        needs=frozenset({"old model", "replay"}),
        options={**weights, "width": width, "head": head},
    )


class Adversary(nn.Module):
    """What is trained along: the discriminator, and how far each class's boundary stretches."""

    def __init__(self, centres: OldCentres, width: int, seed: int = 0) -> None:
        super().__init__()
        classes, feature_dim = centres.means.shape
        self.centres = centres
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # the same start whenever a run is repeated or resumed
            self.discriminator = nn.Sequential(nn.Linear(feature_dim, width), nn.ReLU(), nn.Linear(width, 1))
        self.elasticity = nn.Parameter(torch.zeros(classes))

    def told_apart(self, new: Tensor, old: Tensor, reversal: Tensor | float) -> Tensor:
        """The discriminator's two errors, on new and on old features; what it learns, ``new`` unlearns."""
        answers_new = self.discriminator(_reversed(functional.normalize(new.float()), reversal))
        answers_old = self.discriminator(functional.normalize(old.float()))
        return functional.softplus(answers_new).mean() + functional.softplus(-answers_old).mean()

    def radii(self, threshold: float) -> Tensor:
        """[C]: the old radius, stretched or shrunk some way towards the threshold."""
        return torch.lerp(self.centres.radii, torch.full_like(self.elasticity, threshold), self.elasticity.sigmoid())


def _ramp(progress: Tensor | float) -> Tensor:
    """0 at the start, near 1 soon after: 2 / (1 + exp(-10 p)) - 1 (Ganin and Lempitsky 2015)."""
    return 2 * torch.sigmoid(torch.as_tensor(10.0 * progress)) - 1


def _reversed(features: Tensor, reversal: Tensor | float) -> Tensor:
    """The features themselves, with their gradient multiplied by -reversal."""
    fixed = features.detach()
    return fixed - reversal * (features - fixed)


def _adversarial(
    upgrade: Upgrade, adversarial: float, reversal: float, boundary: float, threshold: float, width: int
) -> Objective:
    if upgrade.teacher is None:
        return Objective(lambda step: {"ce": step.new.cross_entropy(step.targets)})
    centres = OldCentres.at(upgrade, upgrade.encoder.slots.classes)
    adversary = Adversary(centres, width, upgrade.seed).to(upgrade.encoder.device)

    def terms(step: Step) -> Terms:
        assert step.old is not None  # the teacher is there
        own, radii = step.targets, adversary.radii(threshold)
        inside = elastic_boundary(step.new.z, centres.means[own], radii[own], centres.known[own])
        return {
            "ce": step.new.cross_entropy(step.targets),
            "adversarial": adversarial * adversary.told_apart(step.new.z, step.old.z, reversal * _ramp(step.progress)),
            "boundary": boundary * inside,
        }

    return Objective(terms, adversary)
