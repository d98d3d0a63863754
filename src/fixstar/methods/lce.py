"""LCE: prototypes aligned with the old class centres, classes no looser than they were."""

from __future__ import annotations

from fixstar.errors import InputError, ModelError
from fixstar.losses import centre_alignment, cosine_boundary
from fixstar.methods.bct import HEADS, Head
from fixstar.methods.method import Method, Objective, Step, Terms, Upgrade
from fixstar.methods.old_centres import OldCentres


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
        return Objective(lambda step: {"ce": step.new.cross_entropy(step.targets)})
    head = upgrade.encoder.classifier
    if "weight" not in dict(head.named_parameters()):
        raise ModelError(
            f"lce-er aligns trainable prototypes; a {head.kind} classifier has none. Begin with it from v1"
        )
    prototypes = head.get_parameter("weight")
    centres = OldCentres.at(upgrade, upgrade.encoder.slots.classes)

    def terms(step: Step) -> Terms:
        means, known, own = centres.means, centres.known, step.targets
        within = cosine_boundary(step.new.z, means[own], centres.loosest[own], known[own])
        return {
            "ce": step.new.cross_entropy(step.targets),
            "align": align * centre_alignment(prototypes, means, known),
            "boundary": boundary * within,
        }

    return Objective(terms, centres)
