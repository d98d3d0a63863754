"""Methods that train every version from scratch on all images so far."""

from __future__ import annotations

from fixstar.losses import cross_entropy
from fixstar.methods.method import Method, Step, Terms

__all__ = ["cores", "independent"]


def _cross_entropy(step: Step) -> Terms:
    return {"ce": cross_entropy(step.new.logits, step.targets)}


def cores() -> Method:
    """CoReS: cross-entropy against the fixed simplex with room for future classes; always the same initial weights."""
    return Method(
        "cores",
        "retrain against the fixed simplex",
        "cores.txt, eq. 9",
        _cross_entropy,
        scenario="retraining",
        initialisation="same",
    )


def independent() -> Method:
    """ITM: independently trained models, the control that must fail every cross-test."""
    return Method(
        "itm",
        "retrain with a trainable head, nothing shared",
        "cores.txt, table 1 (ITM)",
        _cross_entropy,
        classifier="linear",
        scenario="retraining",
        initialisation="fresh",
    )
