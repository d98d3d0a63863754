"""Methods that train every version on all images so far."""

from __future__ import annotations

from typing import Literal, get_args

from fixstar.errors import ModelError
from fixstar.losses import (
    cross_entropy,
    feature_distance,
    knowledge_distillation,
    two_view_contrast,
)
from fixstar.methods.bct import Head, trainable_head
from fixstar.methods.method import (
    Initialisation,
    Method,
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

Polytope = Literal["simplex", "orthoplex", "cube", "polygon"]


def cores(polytope: Polytope = "simplex", initialisation: Initialisation = "same") -> Method:
    """CoReS: cross-entropy against fixed prototypes, with free ones for future classes.

    The paper uses the simplex and the same initial weights at every upgrade. ``polytope`` chooses another of its
    section 4.1, or figure 4's polygon in the plane; ``initialisation`` other random weights ("fresh") or the last
    model's ("previous"), as in its section 6.4.
    """
    options = {"polytope": polytope, "initialisation": initialisation}
    require(
        "cores",
        options,
        polytope=one_of(get_args(Polytope)),
        initialisation=one_of(get_args(Initialisation)),
    )
    return Method(
        "cores",
        f"retrain against the fixed {polytope}",
        "CoReS, eq. 9",
        plain_terms,
        classifier=polytope,
        scenario="retraining",
        initialisation=initialisation,
        needs=frozenset({"all images"}),
        options=options,
    )


def cores_contrastive(temperature: float = 0.1, initialisation: Initialisation = "same") -> Method:
    """CoReS without classes (section 5.5): the simplex logits of two views of an image are contrasted.

    The simplex is a fixed projector, so the capacity is a free choice (the paper takes d = 2048). Labels are not used.
    It keeps all cosines, so the loss does not see a rotation of the features: versions meet because they start from the
    same weights. As in the paper, give ``retraining`` a ``pretrained`` model.
    """
    options = {"temperature": temperature, "initialisation": initialisation}
    require(
        "cores-contrastive",
        options,
        temperature=above(0),
        initialisation=one_of(get_args(Initialisation)),
    )
    return Method(
        "cores-contrastive",
        "retrain on two views of each image, contrasted behind the fixed simplex; no labels",
        "CoReS, section 5.5",
        lambda step: {"contrast": two_view_contrast(step.new.logits, temperature)},
        scenario="retraining",
        initialisation=initialisation,
        needs=frozenset({"all images"}),
        options=options,
        views=2,
    )


def independent(head: Head = "softmax") -> Method:
    """ITM: independently trained models, the control, which must fail every cross-test."""
    classifier, options = trainable_head("itm", head)
    return Method(
        "itm",
        "retrain with a trainable head, nothing shared",
        "CoReS, table 1 (ITM)",
        plain_terms,
        classifier=classifier,
        classifier_options=options,
        scenario="retraining",
        initialisation="fresh",
        needs=frozenset({"all images"}),
        options={"head": head},
    )


def fine_tuned() -> Method:
    """IFT: incremental fine-tuning from the last weights, with nothing else from the past."""
    return Method(
        "ift",
        "continue from the last weights with all images",
        "CoReS, table 1 (IFT)",
        plain_terms,
        classifier="linear",
        scenario="retraining",
        needs=frozenset({"all images"}),
    )


def l2_regularised(lam: float = 1.0, head: Head = "softmax") -> Method:
    """l2: retrained with new and old features of old classes held together (BCT, eq. 3; a mean, as in CoReS, 5.1)."""
    require("l2", {"lam": lam}, lam=at_least(0))
    classifier, options = trainable_head("l2", head)

    def begin(upgrade: Upgrade) -> Objective:
        if (
            upgrade.teacher is not None
            and upgrade.teacher.feature_dim != upgrade.encoder.feature_dim
        ):
            raise ModelError(
                f"l2 compares features of one width; the old ones have {upgrade.teacher.feature_dim} components, the "
                f"new ones {upgrade.encoder.feature_dim}"
            )
        shared = upgrade.old_outputs

        def terms(step: Step) -> Terms:
            ce = step.new.cross_entropy(step.targets)
            if step.old is None:
                return {"ce": ce}
            return {
                "ce": ce,
                "l2": lam * feature_distance(step.new.z, step.old.z, step.targets < shared),
            }

        return Objective(terms)

    return Method(
        "l2",
        "retrain with features of old classes held near the old ones",
        "BCT, eq. 3 (l2)",
        begin=begin,
        classifier=classifier,
        classifier_options=options,
        scenario="retraining",
        initialisation="fresh",
        needs=frozenset({"old model", "all images"}),
        options={"lam": lam, "head": head},
    )


def learning_without_forgetting(
    lam: float = 1.0,
    temperature: float = 2.0,
    on: Literal["all", "new"] = "all",
    head: Head = "softmax",
) -> Method:
    """LwF (Li and Hoiem 2017): fine-tuned while the outputs of the old classes follow the old model's answers.

    ``on="new"`` trains upgrades on images of new classes alone, as BCT does (table 1a: 50 % of the data).
    """
    given = {"lam": lam, "temperature": temperature, "on": on, "head": head}
    require("lwf", given, lam=at_least(0), temperature=above(0), on=one_of(("all", "new")))
    classifier, options = trainable_head("lwf", head)

    def begin(upgrade: Upgrade) -> Objective:
        shared = upgrade.old_outputs

        def terms(step: Step) -> Terms:
            if step.old is None or not shared:
                return {"ce": step.new.cross_entropy(step.targets)}
            if on == "new":
                chosen = step.targets >= shared
            else:
                chosen = None
            answers = step.new.logits[:, :shared]
            taught = step.old.logits[:, :shared]
            return {
                "ce": cross_entropy(step.new.logits, step.targets, chosen),
                "lwf": lam
                * knowledge_distillation(
                    answers, old=taught, temperature=temperature, chosen=chosen
                ),
            }

        return Objective(terms)

    return Method(
        "lwf",
        "continue from the last weights, old outputs following the old model",
        "BCT, table 1 (LwF)",
        begin=begin,
        classifier=classifier,
        classifier_options=options,
        scenario="retraining",
        needs=frozenset({"old model", "all images"}),
        options=given,
    )
