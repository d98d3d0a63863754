"""Which methods are possible with what is left of the past, and which one to take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, get_args

from fixstar.errors import InputError
from fixstar.methods.method import Method, Need

# What the left one includes.
_IMPLIED: dict[str, set[Need]] = {"old model": {"old classifier"}, "all images": {"replay"}}

# Best first. A method stands here only if it is meant to give compatible versions.
_PREFERENCES: tuple[tuple[str, str], ...] = (
    (
        "polaris",
        "it gains on old vectors in ordinary upgrades and needs only a few images of each old class; the old model "
        "must have a fixed classifier too, otherwise take bct-er",
    ),
    ("hoc", "it has the highest published compatibility (HOC, table 2)"),
    ("fd", "prototypes stay fixed and replayed images hold their features"),
    ("bct", "the old classifier judges the new features; the old model may have had any trainable head"),
    (
        "cores",
        "prototypes stay fixed, so retraining from scratch meets the old vectors, if the old model was trained against "
        "the same fixed classifier; otherwise {keep_vectors}take bct-vectors",
    ),
    ("bct-er", "the old classifier judges the new features, and a few images of each old class are enough"),
    (
        "bct-vectors",
        "the class means of the stored vectors judge the new features; images of some of their classes are needed, "
        "nothing else of the past",
    ),
)


class Advice(NamedTuple):
    """The methods that are possible, the one to take (or none), and why."""

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
        raise InputError(f"{unknown[0]!r} is not one of: {', '.join(sorted(allowed))}. Separate several by commas")
    return frozenset(allowed[word] for word in given)


def advise(have: Iterable[Need], methods: Mapping[str, Method]) -> Advice:
    """Which of ``methods`` can train a successor with what the user still has."""
    has = set(have)
    has |= {implied for need in list(has) for implied in _IMPLIED.get(need, set())}
    if {"old model", "all images"} <= has:
        has.add("old vectors")  # they can be made again
    possible = tuple(name for name, method in methods.items() if method.needs <= has)
    for name, reason in _PREFERENCES:
        if name in possible:
            keep = "" if "bct-vectors" in possible else "keep the old vectors too and "
            return Advice(possible, name, reason.format(keep_vectors=keep))
    missing = "keep the old vectors with their classes, or the old model and some images of every class"
    return Advice(possible, None, f"nothing that keeps old vectors useful is possible with that; {missing}")
