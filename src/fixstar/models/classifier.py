"""What every classifier is."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fixstar.errors import InputError

__all__ = ["Classifier"]


class Classifier(nn.Module):
    """Features [B, feature_dim] to logits [B, outputs]. ``options`` are the keywords that rebuild it.

    A ``fixed`` kind chooses its feature's width and its room for classes by its capacity, and never changes. The
    others sit on a feature of any width and have one output a class.

    ``parts`` are the widths of the simplices that the feature is made of, one behind the other; empty for other kinds.
    ``added`` are the capacities of those that came after the first.
    """

    kind: str
    fixed: bool = False
    feature_dim: int
    outputs: int
    options: dict[str, Any]
    parts: tuple[int, ...] = ()
    added: tuple[int, ...] = ()

    def fused_cross_entropy(self, z: Tensor, targets: Tensor) -> Tensor | None:  # noqa: ARG002
        """The mean cross-entropy without logits, where a kind has a faster way on this device; else ``None``."""
        return None

    def grown(self, outputs: int) -> Classifier:
        """A classifier with at least ``outputs`` outputs whose first ones are this one's; itself where it has them."""
        raise InputError(f"a {self.kind} classifier of {self.outputs} outputs cannot grow to {outputs}")

    def extended(self, extra: int) -> Classifier:
        """One with a simplex of capacity ``extra`` more, in new dimensions behind those there are."""
        raise InputError(
            f"a {self.kind} classifier has no capacity that could run out: it gets an output with each new class, so "
            f"there is nothing to grow by {extra}"
        )
