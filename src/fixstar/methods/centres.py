"""LCE, AdvBCT and CVS: new features are held to the class centres and boundaries of the old model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fixstar.errors import ModelError
from fixstar.losses import (
    centre_alignment,
    centre_distance,
    cosine_boundary,
    cross_model_triplet,
    elastic_boundary,
)
from fixstar.methods.bct import HEADS, Head
from fixstar.methods.method import (
    Method,
    Objective,
    Step,
    Terms,
    Upgrade,
    at_least,
    one_of,
    plain_terms,
    require,
    whole,
)


class OldCentres(nn.Module):
    """Each class's mean of the old model's unit features, measured before training, and the least cosine to it."""

    def __init__(self, features: Tensor, targets: Tensor, classes: int) -> None:
        super().__init__()
        unit = functional.normalize(features.float())
        total = torch.zeros(classes, unit.shape[1]).index_add_(0, targets, unit)
        count = torch.bincount(targets, minlength=classes)
        cosines = (unit * functional.normalize(total)[targets]).sum(dim=1)
        self.register_buffer("means", total / count.clamp(min=1)[:, None], persistent=False)
        self.register_buffer("seen", count >= 1, persistent=False)
        self.register_buffer("known", count >= 2, persistent=False)
        self.register_buffer(
            "loosest",
            torch.ones(classes).scatter_reduce_(0, targets, cosines, "amin"),
            persistent=False,
        )
        self.means: (
            Tensor  # [C, d]; length at most 1, shorter for looser classes, zero for unknown ones
        )
        self.seen: Tensor  # [C] bool: at least one image
        self.known: Tensor  # [C] bool: at least two images, so that a boundary is defined
        self.loosest: Tensor  # [C]

    @classmethod
    def at(cls, upgrade: Upgrade, classes: Sequence[str]) -> OldCentres:
        """The centres of ``classes`` by the model before this upgrade."""
        encoder = upgrade.encoder
        teacher = upgrade.teacher
        assert teacher is not None, "the first version has no old centres"
        features = [torch.zeros(0, teacher.feature_dim)]
        targets = [torch.zeros(0, dtype=torch.long)]
        for part in (upgrade.images, upgrade.memory):
            if part is None:
                chosen = None
            else:
                chosen = part.of_classes([name for name in part.classes if name in classes])
            if chosen is not None and len(chosen):
                features.append(torch.from_numpy(teacher.encode(chosen.images)))
                targets.append(
                    torch.tensor(encoder.slots.of(chosen.classes))[torch.from_numpy(chosen.labels)]
                )
        return cls(torch.cat(features), torch.cat(targets), encoder.classifier.outputs).to(
            encoder.device
        )

    @classmethod
    def stored(cls, upgrade: Upgrade) -> OldCentres:
        """The centres of the stored vectors, of any version."""
        encoder = upgrade.encoder
        old = upgrade.old_vectors
        assert old is not None, "there are stored vectors"
        slots = [
            encoder.slots.of([name])[0] if name in encoder.slots else -1 for name in old.classes
        ]
        targets = torch.tensor(slots)[torch.from_numpy(old.labels)]
        features = torch.from_numpy(old.vectors).float()
        return cls(features[targets >= 0], targets[targets >= 0], encoder.classifier.outputs).to(
            encoder.device
        )

    @property
    def radii(self) -> Tensor:
        """[C]: the largest distance of a unit feature u from its mean m, |u - m|^2 = 1 + |m|^2 - 2 |m| cos(u, m)."""
        length: Tensor = torch.linalg.vector_norm(self.means, dim=1)
        return (1 + length.square() - 2 * length * self.loosest).clamp(min=0).sqrt()


def lce_replay(align: float = 100.0, boundary: float = 1.0, head: Head = "norm-softmax") -> Method:
    """LCE-ER (Meng et al. 2021, with replay): CE + align * alignment loss + boundary * boundary loss.

    Alignment: each new prototype at its class's old centre. Boundary: each new feature as near to it as the old model's
    worst image. The weights are the published code's; the transformation is the identity; ``head`` is one of BCT's.
    """
    given = {"align": align, "boundary": boundary, "head": head}
    require("lce-er", given, align=at_least(0), boundary=at_least(0), head=one_of(HEADS))
    classifier, options = HEADS[head]
    return Method(
        "lce-er",
        "fine-tune with prototypes aligned with the old class centres, classes no looser than before",
        "Meng et al. 2021, alignment and boundary loss; HOC, section 5 (LCE-ER)",
        begin=lambda upgrade: _aligned(upgrade, align, boundary),
        classifier=classifier,
        classifier_options=options,
        needs=frozenset({"old model", "replay"}),
        options=given,
    )


def _aligned(upgrade: Upgrade, align: float, boundary: float) -> Objective:
    if upgrade.teacher is None:
        return Objective(plain_terms)
    head = upgrade.encoder.classifier
    if "weight" not in dict(head.named_parameters()):
        raise ModelError(
            f"lce-er aligns trainable prototypes; a {head.kind} classifier has none. Begin with it from v1"
        )
    prototypes = head.get_parameter("weight")
    centres = OldCentres.at(upgrade, upgrade.encoder.slots.classes)

    def terms(step: Step) -> Terms:
        means = centres.means
        known = centres.known
        own = step.targets
        within = cosine_boundary(
            step.new.z, centres=means[own], loosest=centres.loosest[own], chosen=known[own]
        )
        return {
            "ce": step.new.cross_entropy(step.targets),
            "align": align * centre_alignment(prototypes, means, known),
            "boundary": boundary * within,
        }

    return Objective(terms, centres)


def adversarial_replay(
    adversarial: float = 1.0,
    reversal: float = 1.0,
    boundary: float = 1.0,
    threshold: float = 0.5,
    width: int = 100,
    fade: bool = True,
    batch_norm: bool = True,
    head: Head = "softmax",
) -> Method:
    """AdvBCT-ER (Pan et al. 2023, with replay): CE + adversarial loss + elastic boundary loss.

    The discriminator tells new unit features from old ones; their gradient reaches the encoder multiplied by -reversal.
    The reversal grows from 0 as in the published code. The adversarial loss fades to 0 with every step (``fade``; there
    by epoch, to 2 / epochs), and the discriminator's hidden layer has a batch norm. There the discriminator sees
    features after a batch norm instead of unit ones, and the threshold is 1.0 for landmarks. The boundary of a class
    lies between its old radius and ``threshold``, where a learnt weight puts it: half way at first, there at random.
    Outliers count for the radius.
    """
    weights = {
        "adversarial": adversarial,
        "reversal": reversal,
        "boundary": boundary,
        "threshold": threshold,
    }
    given = {**weights, "width": width, "fade": fade, "batch_norm": batch_norm, "head": head}
    not_negative = {name: at_least(0) for name in weights}
    require("advbct-er", given, **not_negative, width=whole(1), head=one_of(HEADS))
    classifier, options = HEADS[head]
    return Method(
        "advbct-er",
        "fine-tune with features that a discriminator cannot tell from old ones, inside elastic class boundaries",
        "Pan et al. 2023, adversarial and elastic boundary loss; HOC, section 5 (AdvBCT-ER)",
        begin=lambda upgrade: _adversarial(
            upgrade=upgrade,
            adversarial=adversarial,
            reversal=reversal,
            boundary=boundary,
            threshold=threshold,
            width=width,
            fade=fade,
            batch_norm=batch_norm,
        ),
        classifier=classifier,
        classifier_options=options,
        needs=frozenset({"old model", "replay"}),
        options=given,
    )


class Adversary(nn.Module):
    """The additional trained parameters: the discriminator, and the stretch of each class's boundary."""

    def __init__(
        self, centres: OldCentres, width: int, *, seed: int = 0, batch_norm: bool = True
    ) -> None:
        super().__init__()
        classes, feature_dim = centres.means.shape
        self.centres = centres
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # the same start whenever a run is repeated or resumed
            layers: list[nn.Module] = [nn.Linear(feature_dim, width)]
            if batch_norm:
                layers.append(_HiddenNorm(width, track_running_stats=False))
            layers += [nn.ReLU(), nn.Linear(width, 1)]
            self.discriminator = nn.Sequential(*layers)
        self.elasticity = nn.Parameter(torch.zeros(classes))

    def told_apart(self, new: Tensor, old: Tensor, reversal: Tensor | float) -> Tensor:
        """The discriminator's loss on new and on old features; the gradient to ``new`` is reversed."""
        answers_new = self.discriminator(_reversed(functional.normalize(new.float()), reversal))
        answers_old = self.discriminator(functional.normalize(old.float()))
        return functional.softplus(answers_new).mean() + functional.softplus(-answers_old).mean()

    def radii(self, threshold: float) -> Tensor:
        """[C]: the old radius, moved part of the way towards the threshold."""
        return torch.lerp(
            self.centres.radii,
            torch.full_like(self.elasticity, threshold),
            self.elasticity.sigmoid(),
        )


class _HiddenNorm(nn.BatchNorm1d):
    """A batch norm that lets a single image pass, which has no statistics."""

    def forward(self, x: Tensor) -> Tensor:
        return x if len(x) == 1 else super().forward(x)


def _ramp(progress: Tensor | float) -> Tensor:
    """0 at the start, near 1 soon after: 2 / (1 + exp(-10 p)) - 1 (Ganin and Lempitsky 2015)."""
    return 2 * torch.sigmoid(torch.as_tensor(10.0 * progress)) - 1


def _reversed(features: Tensor, reversal: Tensor | float) -> Tensor:
    """The features themselves, with their gradient multiplied by -reversal."""
    fixed = features.detach()
    return fixed - reversal * (features - fixed)


def _adversarial(
    upgrade: Upgrade,
    adversarial: float,
    reversal: float,
    boundary: float,
    threshold: float,
    width: int,
    fade: bool,
    batch_norm: bool,
) -> Objective:
    if upgrade.teacher is None:
        return Objective(plain_terms)
    centres = OldCentres.at(upgrade, upgrade.encoder.slots.classes)
    adversary = Adversary(centres, width, seed=upgrade.seed, batch_norm=batch_norm)
    adversary = adversary.to(upgrade.encoder.device)

    def terms(step: Step) -> Terms:
        assert step.old is not None  # the teacher is there
        own = step.targets
        radii = adversary.radii(threshold)
        inside = elastic_boundary(
            step.new.z, centres=centres.means[own], radii=radii[own], chosen=centres.known[own]
        )
        told_apart = adversary.told_apart(step.new.z, step.old.z, reversal * _ramp(step.progress))
        weight = adversarial * (1 - step.progress) if fade else adversarial
        return {
            "ce": step.new.cross_entropy(step.targets),
            "adversarial": weight * told_apart,
            "boundary": boundary * inside,
        }

    return Objective(terms, adversary)


def cvs(
    model: float = 10.0,
    data: float = 1.0,
    margin: float = 0.1,
    scale: float = 20.0,
    head: Literal["cosine", "softmax"] = "cosine",
) -> Method:
    """CVS (Wan et al. 2022): intra-session discrimination (CE) + model * L_M + data * L_D.

    L_M, model coherence: a triplet of new, old and another class's old feature. L_D, data coherence: images of old
    classes at the mean embedding of their class, by the version that learnt it. Weights, margin and temperature 1/20
    are the published code's for CIFAR-100. ``head="softmax"`` trains a linear classifier, without the temperature.
    """
    options = {"model": model, "data": data, "margin": margin, "scale": scale, "head": head}
    require(
        "cvs",
        options,
        model=at_least(0),
        data=at_least(0),
        margin=at_least(0),
        head=one_of(("cosine", "softmax")),
    )
    return Method(
        "cvs",
        "fine-tune coherently with the previous model's features and the class means of the past",
        "Wan et al. 2022, model and data coherence; HOC, section 5 (CVS)",
        begin=lambda upgrade: _coherent(upgrade, model=model, data=data, margin=margin),
        classifier="cosine" if head == "cosine" else "linear",
        classifier_options={"scale": scale, "margin": 0.0} if head == "cosine" else {},
        needs=frozenset({"old model", "replay"}),
        options=options,
        first_vectors=True,
    )


def _coherent(upgrade: Upgrade, model: float, data: float, margin: float) -> Objective:
    if upgrade.teacher is None:
        return Objective(plain_terms)
    past = [name for name in upgrade.encoder.slots.classes if name not in upgrade.new_classes]
    if upgrade.old_vectors is None:
        centres = OldCentres.at(upgrade, past)
    else:
        centres = OldCentres.stored(upgrade)

    def terms(step: Step) -> Terms:
        assert step.old is not None  # the teacher is there
        of_the_past = centre_distance(
            step.new.z, centres.means[step.targets], centres.seen[step.targets]
        )
        return {
            "ce": step.new.cross_entropy(step.targets),
            "model": model
            * cross_model_triplet(step.new.z, old=step.old.z, targets=step.targets, margin=margin),
            "data": data * of_the_past,
        }

    return Objective(terms, centres)
