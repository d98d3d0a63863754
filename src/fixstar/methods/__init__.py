"""Methods by name. A method consists of named loss terms and its needs from the past; the training loop does the rest.

Papers, as cited everywhere:

    BCT     Shen et al., Towards Backward-Compatible Representation Learning
    CoReS   Biondi et al., CoReS: Compatible Representations via Stationarity
    CL2R    Biondi et al., CL2R: Compatible Lifelong Learning Representations
    HOC     Biondi et al., A Stationary (and Therefore Compatible) Representation is All You Need
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

from fixstar.errors import InputError, UnknownNameError
from fixstar.methods.bct import bct, bct_replay, bct_vectors
from fixstar.methods.centres import adversarial_replay, cvs, lce_replay
from fixstar.methods.incremental import (
    bias_corrected,
    experience_replay,
    feature_adaptation,
    foster,
    lucir,
    podnet,
)
from fixstar.methods.method import (
    Initialisation,
    Method,
    Need,
    Objective,
    OldVectors,
    Scenario,
    Stage,
    Step,
    Terms,
    Upgrade,
)
from fixstar.methods.retrained import (
    cores,
    cores_contrastive,
    fine_tuned,
    independent,
    l2_regularised,
    learning_without_forgetting,
)
from fixstar.methods.simplex import polaris, simplex_fd, simplex_hoc, simplex_upper_bound, vega

__all__ = [
    "METHODS",
    "Initialisation",
    "Method",
    "Need",
    "Objective",
    "OldVectors",
    "Scenario",
    "Stage",
    "Step",
    "Terms",
    "Upgrade",
    "create_method",
]

METHODS: dict[str, Callable[..., Method]] = {
    "advbct-er": adversarial_replay,
    "bct": bct,
    "bct-er": bct_replay,
    "bct-vectors": bct_vectors,
    "bic": bias_corrected,
    "cl2r-ub": simplex_upper_bound,
    "cores": cores,
    "cores-contrastive": cores_contrastive,
    "cvs": cvs,
    "er": experience_replay,
    "fan": feature_adaptation,
    "fd": simplex_fd,
    "foster": foster,
    "hoc": simplex_hoc,
    "ift": fine_tuned,
    "itm": independent,
    "l2": l2_regularised,
    "lce-er": lce_replay,
    "lucir": lucir,
    "lwf": learning_without_forgetting,
    "podnet": podnet,
    "polaris": polaris,
    "vega": vega,
}


def create_method(name: str, **options: Any) -> Method:
    """The method of that name, with its options.

    >>> create_method("hoc", lam=0.1).options["lam"]
    0.1
    """
    if name not in METHODS:
        raise UnknownNameError("method", name, METHODS)
    parameters = inspect.signature(METHODS[name]).parameters
    allowed = list(parameters)
    if unknown := sorted(set(options) - set(allowed)):
        raise InputError(
            f"method {name!r} has no option {', '.join(unknown)}; it has: {', '.join(allowed) or 'none'}"
        )
    for option, value in options.items():
        _require_kind(f"option {option} of method {name!r}", value, parameters[option].default)
    return METHODS[name](**options)


def _require_kind(what: str, value: object, default: object) -> None:
    """Refuse an option of a different type from its default: a number, a boolean, or a word."""
    if isinstance(default, bool):
        fits = isinstance(value, bool)
        kind = "true or false"
    elif isinstance(default, (int, float)):
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        kind = "a number"
    else:
        fits = default is None or isinstance(value, type(default))
        kind = "a word"
    if not fits:
        raise InputError(f"{what} is {kind}, such as {json.dumps(default)}; got {value!r}")
