"""LCE: prototypes aligned with the old class centres, classes no looser than they were.

Also here: ``OldCentres``, what the old model knows of each class, which AdvBCT and CVS use too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fixstar.errors import InputError, ModelError
from fixstar.losses import centre_alignment, cosine_boundary, cross_entropy
from fixstar.methods.bct import HEADS, Head
from fixstar.methods.method import Method, Objective, Step, Terms, Upgrade

__all__ = ["OldCentres", "lce_replay"]


class OldCentres(nn.Module):
    """The mean of the old model's unit features of each class, and the least cosine to it that an image has.

    Classes whose images are at hand when the upgrade begins are measured then, once. The images of the others come from
    memory, a batch at a time: their class is measured on what has been seen so far. All state is in buffers, so that it
    is saved with a checkpoint.
    """

    def __init__(self, classes: int, feature_dim: int) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(classes, feature_dim))
        self.register_buffer("count", torch.zeros(classes))
        self.register_buffer("loosest", torch.ones(classes))
        self.register_buffer("settled", torch.zeros(classes, dtype=torch.bool))
        self.total: Tensor
        self.count: Tensor
        self.loosest: Tensor
        self.settled: Tensor

    @classmethod
    def at(cls, upgrade: Upgrade, classes: Sequence[str]) -> OldCentres:
        """Those of the model before this upgrade, ``classes`` measured on the images at hand."""
        encoder, teacher = upgrade.encoder, upgrade.teacher
        assert teacher is not None, "the first version has no old centres"
        centres = cls(encoder.classifier.outputs, teacher.feature_dim)
        at_hand = upgrade.images.of_classes([name for name in classes if name in upgrade.images.classes])
        if len(at_hand):
            slots = torch.tensor(encoder.slots.of(at_hand.classes))
            centres.observe(torch.from_numpy(teacher.encode(at_hand.images)), slots[torch.from_numpy(at_hand.labels)])
            centres.settled.copy_(centres.count > 0)
        return centres.to(encoder.device)

    @torch.no_grad()
    def observe(self, old: Tensor, targets: Tensor) -> None:
        """Take in the old features [B, d] of images of classes ``targets`` [B]; settled classes stay as they are."""
        unit, unsettled = functional.normalize(old.float()), ~self.settled[targets]
        weights = unsettled.to(unit.dtype)
        self.total.index_add_(0, targets, unit * weights[:, None])
        self.count.index_add_(0, targets, weights)
        cosines = (unit * functional.normalize(self.total)[targets]).sum(dim=1)
        self.loosest.scatter_reduce_(0, targets, cosines.where(unsettled, 1.0), "amin")

    @property
    def means(self) -> Tensor:
        """[C, d]; at most of unit length, shorter the looser the class, zero for a class not seen yet."""
        return self.total / self.count.clamp(min=1)[:, None]

    @property
    def known(self) -> Tensor:
        """[C] bool: two images or more, so that there is a boundary to speak of."""
        return self.count >= 2

    @property
    def radii(self) -> Tensor:
        """[C]: the largest distance of a unit feature u from its mean m, |u - m|^2 = 1 + |m|^2 - 2 |m| cos(u, m)."""
        length: Tensor = torch.linalg.vector_norm(self.means, dim=1)
        return (1 + length.square() - 2 * length * self.loosest).clamp(min=0).sqrt()


def lce_replay(align: float = 100.0, boundary: float = 1.0, head: Head = "norm-softmax") -> Method:
    """LCE-ER (Meng et al. 2021, with replay): CE + align * alignment loss + boundary * boundary loss.

    Alignment: each new prototype at its class's old centre. Boundary: each new feature as near to the old centre of its
    class as the old model's worst image. The weights are the published code's. The features are compared as they are
    (the transformation is the identity); the centres of new classes are the old model's too. ArcFace is not here:
    ``head`` chooses among BCT's.
    """
    if not (align >= 0 and boundary >= 0) or head not in HEADS:
        raise InputError(
            f"lce-er needs align >= 0, boundary >= 0 and head one of {', '.join(HEADS)}; "
            f"got align={align}, boundary={boundary}, head={head!r}"
        )
    classifier, options = HEADS[head]
    return Method(
        "lce-er",
        "fine-tune with prototypes aligned with the old class centres, classes no looser than before",
        "Meng et al. 2021, alignment and boundary loss; HOC, section 5 (LCE-ER)",
        begin=lambda upgrade: _aligned(upgrade, align, boundary),
        classifier=classifier,
        classifier_options=options,
        needs=frozenset({"old model", "replay"}),
        options={"align": align, "boundary": boundary, "head": head},
    )


def _aligned(upgrade: Upgrade, align: float, boundary: float) -> Objective:
    if upgrade.teacher is None:
        return Objective(lambda step: {"ce": cross_entropy(step.new.logits, step.targets)})
    head = upgrade.encoder.classifier
    if "weight" not in dict(head.named_parameters()):
        raise ModelError(
            f"lce-er aligns trainable prototypes; a {head.kind} classifier has none. Begin with it from v1"
        )
    prototypes = head.get_parameter("weight")
    centres = OldCentres.at(upgrade, upgrade.images.classes)

    def terms(step: Step) -> Terms:
        assert step.old is not None  # the teacher is there
        centres.observe(step.old.z, step.targets)
        means, known, own = centres.means, centres.known, step.targets
        within = cosine_boundary(step.new.z, means[own], centres.loosest[own], known[own])
        return {
            "ce": cross_entropy(step.new.logits, step.targets),
            "align": align * centre_alignment(prototypes, means, known),
            "boundary": boundary * within,
        }

    return Objective(terms, centres)
