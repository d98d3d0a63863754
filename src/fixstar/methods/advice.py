"""Which methods are possible with what is left of the past, and which one is recommended by measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, get_args

from fixstar.errors import InputError
from fixstar.methods.method import Method, Need

# The key includes the values.
_IMPLIED: dict[str, set[Need]] = {"old model": {"old classifier"}, "all images": {"replay"}}

# Best first, each with its measurements (docs/appendix/methods.md and docs/appendix/benchmarks.md).
_PREFERENCES: tuple[tuple[str, str], ...] = (
    (
        "polaris",
        "in 68 ordinary upgrades its queries found 1.1 points more among old vectors than the old model's own by "
        "nearest image, 0.4 by class template, with a few images of each old class. The old model must have a fixed "
        "classifier too. With a trainable one there is less evidence: {trainable}",
    ),
    (
        "bct",
        "the old classifier judges the new features. Check before you deploy: "
        "it was compatible in .14 to .60 of the pairs of CIFAR-100 (means over draws). "
        "All images are there, so to embed them again is the sure way",
    ),
    (
        "bct-er",
        "the old classifier judges the new features, and a few images of each old class are enough. Expect little: "
        "it was compatible in .00 of the pairs of CIFAR-100 in 7 tasks and in .33 of Omniglot's. "
        "Keep the old model next time, and take polaris",
    ),
    (
        "bct-vectors",
        "the class means of the stored vectors judge the new features; images of some of their classes are needed, "
        "nothing else of the past. Expect a loss: "
        "on Omniglot it found 10.0 points less by class template and 19.2 by nearest image than the old model",
    ),
)
_TRAINABLE = {
    "lwf": "on Omniglot lwf was compatible in 1.00 of the pairs",
    "fd": "on Omniglot fd with head=softmax and on=all was compatible in 1.00 of the pairs of versions; in ten tasks "
    "of CIFAR-100, verified on CIFAR-10, in .70 (.59 in folds as published)",
}
_EMBED_AGAIN = (
    "all images are there, so embed them again with the new model. Without the old model no way to keep old vectors "
    "useful was shown: retraining against the same prototypes (cores) "
    "was compatible in 0 to .33 of the pairs of CIFAR-100 and in .00 of Omniglot's"
)


class Advice(NamedTuple):
    """The possible methods, the recommended one (or none), and why."""

    possible: tuple[str, ...]
    recommended: str | None
    reason: str


def parse_needs(words: str) -> frozenset[Need]:
    """What the user has, written as ``old-model,replay``.

    >>> sorted(parse_needs("old-model, replay"))
    ['old model', 'replay']
    """
    allowed = {need.replace(" ", "-"): need for need in get_args(Need)}
    given = [word.strip() for word in words.split(",") if word.strip()]
    if unknown := [word for word in given if word not in allowed]:
        raise InputError(
            f"{unknown[0]!r} is not one of: {', '.join(sorted(allowed))}. Separate several by commas"
        )
    return frozenset(allowed[word] for word in given)


def advise(have: Iterable[Need], methods: Mapping[str, Method]) -> Advice:
    """Which of ``methods`` can train a successor with what the user still has."""
    has = set(have)
    has |= {implied for need in list(has) for implied in _IMPLIED.get(need, set())}
    if {"old model", "all images"} <= has:
        has.add("old vectors")  # they can be computed again
    possible = tuple(name for name, method in methods.items() if method.needs <= has)
    if "all images" in has and not has & {"old model", "old classifier"}:
        return Advice(possible, None, _EMBED_AGAIN)
    for name, reason in _PREFERENCES:
        if name in possible:
            found = [sentence for other, sentence in _TRAINABLE.items() if other in possible]
            trainable = "check before you deploy"
            if found:
                trainable = found[0]
            return Advice(possible, name, reason.format(trainable=trainable))
    missing = (
        "keep the old vectors with their classes, or the old model and some images of every class"
    )
    return Advice(
        possible, None, f"nothing that keeps old vectors useful is possible with that; {missing}"
    )
