"""FAN: fine-tune freely, then learn a network that carries the stored vectors into the new space."""

from __future__ import annotations

from numbers import Integral

import torch
from torch.nn import functional

from fixstar.errors import InputError, ModelError
from fixstar.losses import cross_entropy, feature_distillation
from fixstar.methods.method import Method, Objective, Stage, Step, Terms, Upgrade
from fixstar.models import Adapter


def feature_adaptation(
    lam: float = 1.0, classify: float = 1.0, hidden: int = 16, epochs: float = 1.0, learning_rate: float = 1.0
) -> Method:
    """FAN (Iscen et al. 2020, as CL2R adapts it): CE + lam FD; then an adapter from old to new features.

    The adapter learns (1 - cos(adapted old, new)) + classify CE(classifier(adapted old)) with the network held. It has
    ``hidden`` times the feature's width in its middle. It is saved with the version, and galleries of older versions
    pass through the adapters of all versions since: each stored vector changes at every upgrade.
    """
    whole = isinstance(hidden, Integral) and hidden >= 1
    if not (lam >= 0 and classify >= 0 and whole and epochs > 0 and learning_rate > 0):
        raise InputError(
            "fan needs lam, classify >= 0, a whole hidden >= 1, epochs and learning_rate > 0; "
            f"got lam={lam}, classify={classify}, hidden={hidden}, epochs={epochs}, learning_rate={learning_rate}"
        )
    return Method(
        "fan",
        "fine-tune, then learn a network that carries stored vectors into the new space",
        "Iscen et al. 2020, feature adaptation; CL2R, section 7.3 (FAN)",
        begin=lambda upgrade: _adapted(upgrade, lam, classify, hidden, epochs, learning_rate),
        classifier="linear",
        needs=frozenset({"old model", "replay"}),
        options={"lam": lam, "classify": classify, "hidden": hidden, "epochs": epochs, "learning_rate": learning_rate},
        extra_passes=2 * epochs,
    )


def _adapted(
    upgrade: Upgrade, lam: float, classify: float, hidden: int, epochs: float, learning_rate: float
) -> Objective:
    encoder = upgrade.encoder
    if upgrade.teacher is None:
        return Objective(lambda step: {"ce": step.new.cross_entropy(step.targets)})
    if encoder.classifier.fixed or encoder.feature_dim != upgrade.teacher.feature_dim:
        raise ModelError(
            "fan adapts features before a trainable classifier, of one width in both versions; this model has a fixed "
            "one or another width. Begin with fan from v1"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(upgrade.seed)  # the same start whenever a run is repeated or resumed
        adapter = Adapter(encoder.feature_dim, hidden * encoder.feature_dim).to(encoder.device)

    def terms(step: Step) -> Terms:
        assert step.old is not None  # the teacher is there
        held = feature_distillation(step.new.z, step.old.z)
        return {"ce": step.new.cross_entropy(step.targets), "fd": lam * held}

    def adaptation(step: Step) -> Terms:
        assert step.old is not None
        adapted = adapter(functional.normalize(step.old.z))
        answers = encoder.classifier(adapted)
        return {
            "adapt": feature_distillation(adapted, step.new.z.detach()),
            "classify": classify * cross_entropy(answers, step.targets),
        }

    stage = Stage(adaptation, "adaptation", epochs, learning_rate, trains=adapter)

    def finish() -> None:
        encoder.adapter = adapter

    return Objective(terms, adapter, (stage,), finish)
