"""The score of a translation over many queries and stored vectors, for evaluation; a gallery has its own way.

    w cos(q, F(z)) + (1 - w) cos(b, z) = [w q, (1 - w) b] . [F(z), z]

So a translated search is a plain one over longer vectors. F(z) and z have unit length, so all long stored vectors are
equally long, and their cosines rank as their dot products do. Stored vectors are divided by sqrt(2), so that they have
unit length too, and queries multiplied by it, so that dot products are the scores.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.evaluation import VersionFeatures
from fixstar.geometry import unit
from fixstar.translation.translation import Translation

Floats = NDArray[np.floating[Any]]
Vectors = NDArray[np.float32]


def translated_pair(
    way: Translation, old: VersionFeatures, new: VersionFeatures
) -> tuple[VersionFeatures, VersionFeatures]:
    """Both versions in one search: ``old`` with long vectors, and ``new`` with the queries that it asks them.

    ``old``'s own queries find among the long vectors what they found before: they are zero where F(z) is. Where the old
    side is whitened, the vectors are appended as they are, and the new queries are zero there.
    """
    view = translated(way, old, new)
    own = unit_rows(old.queries)
    thirds = way.whitened and way.weight > 0
    if thirds:
        view = _with_third_part(view, unit_rows(old.gallery))
    added = view.gallery.shape[1] - old.gallery.shape[1]
    if added:
        parts = 3 if thirds else 2
        own = np.hstack(
            [np.zeros((len(own), added), np.float32), own * np.sqrt(parts, dtype=np.float32)]
        )
    return replace(view, queries=own), replace(new, asked={**new.asked, old.name: view.queries})


def _with_third_part(view: VersionFeatures, stored: Vectors) -> VersionFeatures:
    """Long vectors with the stored ones appended, at unit length; the queries are zero there, so scores stay."""
    longer = np.sqrt(3 / 2, dtype=np.float32)
    third = stored / np.sqrt(3, dtype=np.float32)
    zeros = np.zeros((len(view.queries), stored.shape[1]), np.float32)
    return replace(
        view,
        queries=np.hstack([view.queries * longer, zeros]),
        gallery=np.hstack([view.gallery / longer, third]),
    )


def translated(way: Translation, old: VersionFeatures, new: VersionFeatures) -> VersionFeatures:
    """``old``'s gallery as queries of ``new`` see it: long vectors whose dot products are the scores.

    >>> one = VersionFeatures("v1", np.eye(2), np.eye(2))
    >>> two = VersionFeatures("v2", np.eye(2)[::-1], np.eye(2)[::-1])
    >>> seen = translated(Translation.by_old_queries("v1", "v2"), one, two)
    >>> (seen.queries @ seen.gallery.T).round(3).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    new_queries = unit_rows(new.queries)
    if way.shared:
        carried = new.queries_in(old).astype(np.float32)
    else:
        carried = None
    asked = way.asks(new_queries, carried, unit_rows(old.queries))
    stored = unit_rows(old.gallery)
    weight = way.weight
    if not weight:
        return VersionFeatures(old.name, asked, stored)
    assert way.forward is not None
    back = way.compared(asked)
    queries = np.hstack([weight * new_queries, (1 - weight) * back]) * np.sqrt(2, dtype=np.float32)
    gallery = np.hstack([way.forward(stored), way.compared(stored)]) / np.sqrt(2, dtype=np.float32)
    return VersionFeatures(old.name, queries.astype(np.float32), gallery.astype(np.float32))


def unit_rows(vectors: Floats) -> Vectors:
    """Vectors of unit length, as float32."""
    rows: Vectors = unit(np.asarray(vectors, np.float32))
    return rows
