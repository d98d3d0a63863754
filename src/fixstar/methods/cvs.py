"""CVS: continual learning for visual search, coherent with the previous model and with the embeddings of the past."""

from __future__ import annotations

from typing import Literal

from fixstar.errors import InputError
from fixstar.losses import centre_distance, cross_model_triplet
from fixstar.methods.method import Method, Objective, Step, Terms, Upgrade
from fixstar.methods.old_centres import OldCentres


def cvs(
    model: float = 10.0,
    data: float = 1.0,
    margin: float = 0.1,
    scale: float = 20.0,
    head: Literal["cosine", "softmax"] = "cosine",
) -> Method:
    """CVS (Wan et al. 2022): intra-session discrimination (CE) + model * L_M + data * L_D.

    L_M, neighbour-session model coherence: a triplet of new, old and another class's old feature. L_D, inter-session
    data coherence: images of old classes at the mean embedding of their class, as the version embedded it that learnt
    the class; in an upgrade that has not kept these, the previous version. Weights, margin and temperature 1/20 are the
    published code's for CIFAR-100. ``head="softmax"`` trains a linear classifier, without the temperature.
    """
    if not (model >= 0 and data >= 0 and margin >= 0) or head not in ("cosine", "softmax"):
        raise InputError(
            "cvs needs model, data and margin >= 0 and head one of cosine, softmax; "
            f"got model={model}, data={data}, margin={margin}, head={head!r}"
        )
    return Method(
        "cvs",
        "fine-tune coherently with the previous model's features and the class means of the past",
        "Wan et al. 2022, model and data coherence; HOC, section 5 (CVS)",
        begin=lambda upgrade: _coherent(upgrade, model, data, margin),
        classifier="cosine" if head == "cosine" else "linear",
        classifier_options={"scale": scale, "margin": 0.0} if head == "cosine" else {},
        needs=frozenset({"old model", "replay"}),
        options={"model": model, "data": data, "margin": margin, "scale": scale, "head": head},
        first_vectors=True,
    )


def _coherent(upgrade: Upgrade, model: float, data: float, margin: float) -> Objective:
    if upgrade.teacher is None:
        return Objective(lambda step: {"ce": step.new.cross_entropy(step.targets)})
    past = [name for name in upgrade.encoder.slots.classes if name not in upgrade.new_classes]
    centres = OldCentres.at(upgrade, past) if upgrade.old_vectors is None else OldCentres.stored(upgrade)

    def terms(step: Step) -> Terms:
        assert step.old is not None  # the teacher is there
        of_the_past = centre_distance(step.new.z, centres.means[step.targets], centres.seen[step.targets])
        return {
            "ce": step.new.cross_entropy(step.targets),
            "model": model * cross_model_triplet(step.new.z, step.old.z, step.targets, margin),
            "data": data * of_the_past,
        }

    return Objective(terms, centres)
