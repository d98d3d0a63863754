"""The gate of an adapter: its cross-test on items that it was not fitted on, with the verdicts of any upgrade."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.evaluation import Difference, VersionFeatures, gallery_query_split
from fixstar.evaluation.trial import Trial
from fixstar.lifecycle.adapter_maps import VectorAdapter
from fixstar.lifecycle.adapter_use import Applied, adapter_cross_test
from fixstar.lifecycle.checks import Check, CheckedCell, Outcome
from fixstar.lifecycle.evidence_needed import needed_queries, way_out
from fixstar.lifecycle.gate import GateRules, tried_cell
from fixstar.lifecycle.gate_words import cell_sentence, tolerance_sentence

__all__ = ["BothSpaces", "check_adapter", "without_evidence"]

_OUTCOMES: dict[str, Outcome] = {"compatible": "pass", "incompatible": "refuse", "not decided": "missing evidence"}


@dataclass(frozen=True, eq=False)
class BothSpaces:
    """Vectors that both models made of the same images, ``old`` [N, b] and ``new`` [N, a], with labels [N].

    None is the label of an image whose class is not known.
    """

    old: NDArray[np.float32]
    new: NDArray[np.float32]
    labels: Sequence[str | None]

    def take(self, rows: NDArray[Any]) -> BothSpaces:
        """Some of them."""
        return BothSpaces(self.old[rows], self.new[rows], [self.labels[row] for row in rows.tolist()])

    def __len__(self) -> int:
        return len(self.old)

    def coded(self) -> tuple[list[str], NDArray[np.int64]]:
        """The classes, and for every image the number of its own, -1 where it has none."""
        classes = sorted({label for label in self.labels if label is not None})
        number: dict[str | None, int] = {name: i for i, name in enumerate(classes)}
        return classes, np.array([number.get(label, -1) for label in self.labels], np.int64)

    def searchable(self) -> BothSpaces:
        """Those with a class of which there are two at least."""
        _, codes = self.coded()
        counts = np.bincount(codes + 1)
        return self.take(np.flatnonzero((codes >= 0) & (counts[codes + 1] > 1)))


def check_adapter(
    adapter: VectorAdapter,
    held_out: BothSpaces,
    version: str,
    queries_by: str,
    applied: Applied,
    rules: GateRules,
    more: str = "Judge it by more items with a label",
) -> Check:
    """The verdict on queries of ``queries_by`` over vectors of ``version``, with the adapter between.

    Passes, refuses or says what evidence is missing, as ``fixstar.lifecycle.gate`` does: by paired bootstrap against
    what the old system's own queries find among its own vectors. ``more`` says how to come by more evidence.
    """
    known = held_out.searchable()
    if not len(known):
        return without_evidence(version, queries_by, f"{len(held_out):,} were held out, no two of one class", rules)
    classes, labels = known.coded()
    split = gallery_query_split(labels, seed=rules.seed)
    old = VersionFeatures(version, known.old[split.queries], known.old[split.gallery])
    new = VersionFeatures(queries_by, known.new[split.queries], known.new[split.gallery])
    query_labels, gallery_labels = labels[split.queries], labels[split.gallery]
    tested = adapter_cross_test(adapter, old, new, query_labels, gallery_labels, applied)
    trial = Trial(
        _one_space(adapter, old, new, applied), query_labels, gallery_labels, dict(enumerate(classes)), facts={}
    )
    cell, judged = tried_cell(trial, tested, 0, rules)
    reason = cell_sentence(queries_by, cell, rules.confidence, 1, rules.tolerance)
    if judged.verdict == "not decided":
        reason = f"{reason}. {_to_decide(judged, cell, version, len(query_labels), rules, more)}"
    return Check(
        queries_by,
        _OUTCOMES[judged.verdict],
        (reason,),
        (cell,),
        float(tested.matrix[1, 1]),
        len(query_labels),
        len(gallery_labels),
        rules.confidence,
        rules.tolerance,
    )


def without_evidence(version: str, queries_by: str, seen: str, rules: GateRules) -> Check:
    """The verdict where nothing can be measured; ``seen`` says why."""
    reason = (
        f"nothing shows what {queries_by}'s queries find among vectors of {version} with this adapter between: that "
        "takes items with a label, and an image or vectors by both models, which it was not fitted on. " + seen
    )
    return Check(queries_by, "missing evidence", (reason,), (), None, 0, 0, rules.confidence, rules.tolerance)


def _one_space(
    adapter: VectorAdapter, old: VersionFeatures, new: VersionFeatures, applied: Applied
) -> list[VersionFeatures]:
    """Both versions in the space where they are compared, to name the answers that are lost."""
    if applied == "queries":
        return [old, replace(new, queries=adapter(new.queries), gallery=adapter(new.gallery))]
    return [replace(old, queries=adapter(old.queries), gallery=adapter(old.gallery)), new]


def _to_decide(judged: Difference, cell: CheckedCell, version: str, queries: int, rules: GateRules, more: str) -> str:
    """How much evidence would decide, and what to type."""
    needed = needed_queries(judged, queries, rules.confidence, rules.tolerance)
    way = way_out(judged, queries, rules.confidence, rules.tolerance)
    lose = tolerance_sentence(f"fixstar adapt {version}", cell, queries, way)
    if needed is None:
        seen = "balance exactly" if cell.differing else "do not occur"
        told = [f"Among {queries:,} queries gains and losses {seen}: more of the same would not show a gain"]
    else:
        told = [f"If it stays so, about {needed:,} queries would decide; there were {queries:,}", more]
    return ". ".join(filter(None, [*told, lose]))
