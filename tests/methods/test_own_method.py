"""The method of one's own in docs/tutorials/own-method.md: its code runs, and does what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

DOCS = Path(__file__).parents[2] / "docs" / "tutorials" / "own-method.md"


def example() -> str:
    (code,) = (part.split("```")[0] for part in DOCS.read_text().split("```python\n")[1:])
    return code


def test_the_example_runs_and_its_anchor_holds_versions_together() -> None:
    its: dict[str, Any] = {"__name__": "own_method"}
    exec(compile(example(), str(DOCS), "exec"), its)
    found, about = its["found"], its["version"].encoder.about
    assert tuple(found.names) == ("v1", "v2", "v3")
    assert set(about["loss"]) == {"ce", "anchor"}
    assert (about["method"]["name"], about["method"]["options"]) == ("anchored", {"weight": 1.0})

    queries, gallery = its["queries"], its["gallery"]
    loose = its["run_scenario"](
        its["stream"], its["anchored"](0.0), its["settings"], progress=False
    )
    features = [its["version_features"](v.name, v.encoder, queries, gallery) for v in loose]
    free = its["cross_test"](features, queries.labels, gallery.labels, "image").matrix
    below = np.tril_indices(3, -1)
    assert found.matrix[below].mean() > free[below].mean() + 0.1
