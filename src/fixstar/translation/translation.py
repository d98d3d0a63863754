"""A translation: how queries of one version search the vectors that another one stored.

With z a stored vector of the source version and x a query:

    score(x, z) = w cos(q(x), F(z)) + (1 - w) cos(b(x), z)

F carries z forward into the target's space, where the target's own query q asks. b asks in the source's own space. It
is the source's own query while its model is kept (two models per query), or the target's query mapped back (one model
per query). Nothing stored changes: F(z) is derived, and the source's index finds the candidates by b.

Vectors of some models mostly point the same way, which hides in what they differ. There the old side may compare half
whitened vectors, cos(V b, V z), where V is an affine map of the source's space (``fit.fit_whitening``). Evidence
decides.

Versions that share one space need no maps: the target's query is carried there as it is (``geometry.carry``), with w 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import InputError, ModelError
from fixstar.translation.maps import Map

Floats = NDArray[np.floating[Any]]
Vectors = NDArray[np.float32]
Models = Literal["one", "two"]
"""How many models embed a query: the target alone, or the source too."""
USUAL = 0.6
"""w where nothing was measured: 0.5 to 0.8 all do (docs/appendix/translation.md)."""


@dataclass(frozen=True, eq=False)
class Translation:
    """From the stored vectors of ``source`` to queries of ``target``.

    ``one`` is w with one model per query, ``two`` with the source's own query; None where that way is not possible or
    was not chosen. ``shared`` says that both versions share a space. ``about`` is JSON on the fit. ``whitening`` is V;
    it is used if ``whitened``, and w is above 0: where the old side asks alone, an index answers.
    """

    source: str
    target: str
    forward: Map | None = None
    backward: Map | None = None
    one: float | None = None
    two: float | None = None
    shared: bool = False
    uncertainty: Uncertainty | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    whitening: Map | None = None
    whitened: bool = False

    def __post_init__(self) -> None:
        for name, weight in (("one", self.one), ("two", self.two)):
            if weight is None:
                continue
            if not 0 <= weight <= 1:
                raise ModelError(
                    f"the weight of a translation lies between 0 and 1; {name} is {weight!r}"
                )
            if weight > 0 and self.forward is None:
                raise ModelError(
                    f"a translation without a forward map has weight 0; {name} is {weight!r}"
                )
        if self.one is not None and not self.shared and self.backward is None:
            raise ModelError(
                "one model per query needs a map back, or a space that both versions share"
            )
        if self.one is None and self.two is None:
            raise ModelError(
                "a translation asks with one model per query or with two; this one with neither"
            )
        there = self.forward
        back = self.backward
        if there is not None and back is not None and there.widths != back.widths[::-1]:
            raise ModelError(
                f"the maps of a translation lead there and back; these have the widths {there.widths} and {back.widths}"
            )
        if self.whitened and (there is None or self.whitening is None):
            raise ModelError(
                "a whitened translation has a whitening and a forward map; this one lacks one of them"
            )
        if self.whitening is not None and there is not None:
            width = there.widths[0]
            if self.whitening.widths != (width, width):
                raise ModelError(
                    f"a whitening maps the space of stored vectors, {width} components, to itself; this one has the "
                    f"widths {self.whitening.widths}"
                )

    @classmethod
    def between_shared(cls, source: str, target: str) -> Translation:
        """Of two versions that share a space: the query asks there as it is."""
        return cls(source, target, one=0.0, shared=True)

    @classmethod
    def by_old_queries(cls, source: str, target: str) -> Translation:
        """The source's own queries search its vectors: what it finds now, and nothing else."""
        return cls(source, target, two=0.0)

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The versions that must embed a query: the target is not needed where the source's own queries ask alone."""
        if self.two is None:
            return (self.target,)
        if not self.two:
            return (self.source,)
        return (self.target, self.source)

    @cached_property
    def weight(self) -> float:
        """w as it is deployed: with two models if both ask, else with one."""
        weight = self.one if self.two is None else self.two
        assert weight is not None  # one of them is there
        return weight

    def with_one_model(self) -> Translation:
        """The same, asked with one model per query."""
        if self.one is None:
            raise InputError(
                f"queries of {self.target} cannot search vectors of {self.source} with one model per query"
            )
        return replace(self, two=None)

    @property
    def reversed(self) -> Translation:
        """How queries of the source search what the target stored: the same two maps, each used the other way.

        w weighs the comparison in the target's space, which is then the one where the vectors lie.
        """
        if self.forward is None or self.backward is None:
            if self.shared:
                make = Translation.between_shared
            else:
                make = Translation.by_old_queries
            return make(self.target, self.source)
        return replace(
            self,
            source=self.target,
            target=self.source,
            forward=self.backward,
            backward=self.forward,
            one=None if self.one is None else 1 - self.one,
            two=None if self.two is None else 1 - self.two,
            uncertainty=None,
            whitening=None,
            whitened=False,
        )

    def then(self, after: Translation) -> Translation:
        """From this one's source to the other's target, through the version between them, with one model per query."""
        if self.target != after.source:
            raise InputError(
                f"a translation to {self.target} is not followed by one from {after.source}"
            )
        about = {"through": self.target}
        shared = self.shared and after.shared
        forward = _after(self.forward, after.forward)
        backward = _after(after.backward, self.backward)
        if shared and forward is None:
            return Translation.between_shared(self.source, after.target)
        if forward is None or not (shared or backward is not None):
            raise InputError(
                f"vectors of {self.source} cannot be carried to {after.target} through {self.target}: a map is missing"
            )
        weights = [weight for weight in (self.one, after.one) if weight is not None]
        if weights:
            one = float(np.mean(weights))
        else:
            one = USUAL
        return Translation(
            self.source,
            after.target,
            forward=forward,
            backward=backward,
            one=one,
            shared=shared,
            about=about,
            whitening=self.whitening,
            whitened=self.whitened,
        )

    @cached_property
    def key(self) -> str:
        """A digest of what stored vectors are mapped by: what was derived by an equal map can be used again."""
        forward = _digest(self.forward)
        if not self.whitened:
            return forward
        return f"{forward[:12]}-{_digest(self.whitening)[:12]}-{self.weight:g}"

    def scores_like(self, other: Translation) -> bool:
        """Whether two translations give every query and stored vector the same score."""
        mine = (self.source, self.target, self.one, self.two, self.shared, self.key)
        theirs = (other.source, other.target, other.one, other.two, other.shared, other.key)
        return mine == theirs and _digest(self.backward) == _digest(other.backward)

    def asks(self, new: Vectors, carried: Vectors | None, old: Vectors | None) -> Vectors:
        """b(x) [N, source width]: the source's own queries, or the target's, carried or mapped there."""
        if self.two is not None:
            if old is None:
                raise InputError(f"this translation needs queries by {self.source} too")
            return old
        if self.shared:
            if carried is None:
                raise InputError(
                    f"queries of {self.target} must be carried to {self.source}'s space first"
                )
            return carried
        assert self.backward is not None
        return self.backward(new)

    def compared(self, vectors: Vectors) -> Vectors:
        """Vectors of the source's space, b or z, as the old side compares them."""
        if self.whitened and self.whitening is not None:
            return self.whitening(vectors)
        return vectors

    def joined(self, ahead: Vectors, back: Vectors) -> Vectors:
        """Both sides in one unit vector, [sqrt(w) ahead, sqrt(1 - w) back]: products of two are the score.

        With ahead = q and back = V b of a query, and ahead = F(z) and back = V z of a stored vector.
        """
        scales = np.sqrt([self.weight, 1 - self.weight], dtype=np.float32)
        return np.hstack([scales[0] * ahead, scales[1] * back])

    def joined_stored(self, stored: Vectors) -> Vectors:
        """What a gallery derives from stored vectors where both sides are mapped."""
        assert self.forward is not None
        return self.joined(self.forward(stored), self.compared(stored))


def _digest(part: Map | None) -> str:
    digest = hashlib.sha256()
    if part is not None:
        for name, array in part.named_arrays():
            digest.update(f"{name} {array.shape}".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()[:32]


def _after(first: Map | None, second: Map | None) -> Map | None:
    """Two maps in a row; None if one is missing."""
    if first is None or second is None:
        return None
    return first.then(second)


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """How far F(z) is expected to be from the vector that the target would make, 1 - cos, linear in z.

    It was regressed on pairs that F was not fitted on. Vectors that F gets wrong gain most from being embedded again.
    """

    slope: Vectors
    offset: float

    def __call__(self, vectors: Floats) -> NDArray[np.float64]:
        """[N] of stored vectors [N, width], at least 0."""
        expected = np.asarray(vectors, np.float64) @ self.slope.astype(np.float64) + self.offset
        return np.maximum(expected, 0.0)
