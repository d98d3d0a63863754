"""Lifelong methods against the fixed simplex."""

from __future__ import annotations

from fixstar.errors import InputError
from fixstar.losses import SameClass, cross_entropy, info_nce
from fixstar.methods.method import Method, Step, Terms

__all__ = ["simplex_hoc"]


def simplex_hoc(lam: float = 0.25, rho: float = 5.0, same_class: SameClass = "masked") -> Method:
    """d-Simplex-HOC (stationary.txt, eq. 2): lam CE + (1 - lam) iNCE with the previous model, over the whole batch.

    The paper sets lam = 0.1 on CIFAR; with unit-length prototypes 0.25 is as compatible and more accurate. The
    first version has no predecessor and is trained with cross-entropy alone.
    """
    if not 0 <= lam <= 1 or not rho > 0:
        raise InputError(f"hoc needs 0 <= lam <= 1 and rho > 0, got lam={lam}, rho={rho}")

    def terms(step: Step) -> Terms:
        ce = cross_entropy(step.new.logits, step.targets)
        if step.old is None:
            return {"ce": ce}
        return {"ce": lam * ce, "hoc": (1 - lam) * info_nce(step.new.z, step.old.z, step.targets, rho, same_class)}

    return Method(
        "hoc",
        "fine-tune against the fixed simplex, contrasted with the previous model",
        "stationary.txt, eq. 2",
        terms,
        needs=frozenset({"old model", "replay"}),
        options={"lam": lam, "rho": rho, "same_class": same_class},
    )
