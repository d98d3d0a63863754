"""Maps by other tools for scifact.py: each is fitted on the same pairs with its own defaults, and maps the gallery.

    pip install numpy scipy scikit-learn rich typer && pip install --no-deps isotrieve==0.4.0 vectormigrate==1.0.1
    python benchmarks/rival_maps.py TOOLS

TOOLS is the folder that ``scifact.py --write`` made. A tool that is not installed, or that refuses, is named and left
out. vectormigrate, and isotrieve's Procrustes, map only between spaces of one width, so the narrower vectors get zeros
at their end, which changes no cosine. Needs nothing of fixstar.

Left out: isotrieve's low-rank affine mapping (by default the same vectors as ridge), its contrastive one (asks for
hundreds of GiB at these widths) and its residual MLP (needs torch); vectormigrate's residual MLP, which corrects the
identity and is meant for spaces that are nearly equal.

Not here, because they map no vectors: embedflow (the old index finds candidates, which are embedded again and
re-ranked), vecshift (everything is embedded again). embedding-adapters has trained maps for a few pairs of hosted
models, none of them these.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[Any]


def of_isotrieve(
    name: str, one_width: bool = False
) -> Callable[[Vectors, Vectors, Vectors], Vectors]:
    """A mapping of isotrieve with its defaults."""

    def mapped(old: Vectors, new: Vectors, stored: Vectors) -> Vectors:
        mapping = getattr(importlib.import_module("isotrieve.mapping.linear"), name)()
        width = max(old.shape[1], new.shape[1]) if one_width else 0
        mapping.fit(padded(old, width), padded(new, width))
        return np.asarray(mapping.transform(padded(stored, width)))

    return mapped


def of_vectormigrate(name: str) -> Callable[[Vectors, Vectors, Vectors], Vectors]:
    """An adapter of vectormigrate with its defaults."""

    def mapped(old: Vectors, new: Vectors, stored: Vectors) -> Vectors:
        adapter = getattr(importlib.import_module("vectormigrate.compat"), name)()
        width = max(old.shape[1], new.shape[1])
        adapter.fit(padded(old, width), padded(new, width))
        return np.asarray(adapter.transform(padded(stored, width)))

    return mapped


def padded(vectors: Vectors, width: int) -> Vectors:
    """With zeros at the end, up to a width."""
    return np.pad(vectors, ((0, 0), (0, max(0, width - vectors.shape[1]))))


TOOLS = {
    "isotrieve: ridge (its default)": of_isotrieve("RidgeMapping"),
    "isotrieve: Procrustes": of_isotrieve("OrthogonalProcrustesMapping", one_width=True),
    "vectormigrate: Procrustes": of_vectormigrate("OrthogonalProcrustesAdapter"),
    "vectormigrate: low-rank affine": of_vectormigrate("LowRankAffineAdapter"),
}


def main() -> None:
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("rival_maps.py: give the folder that scifact.py --write made")
    for folder in sorted(path.parent for path in Path(sys.argv[1]).glob("*/stored.npy")):
        old, new, stored = (np.load(folder / f"{name}.npy") for name in ("old", "new", "stored"))
        for number, (name, mapped) in enumerate(TOOLS.items()):
            try:
                vectors = mapped(old, new, stored).astype(np.float32)
            except Exception as error:  # whatever another tool raises
                print(f"{folder.name}, {name}: {type(error).__name__}: {error}", flush=True)
                continue
            np.savez(folder / f"{number}.npz", name=name, vectors=vectors)
            print(folder.name, name, vectors.shape, flush=True)


if __name__ == "__main__":
    main()
