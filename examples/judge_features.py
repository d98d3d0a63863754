"""Is any system's new model compatible with its old vectors? Judge the features alone, as arrays.

python examples/judge_features.py features.npz     with old_queries, new_queries, old_gallery, new_gallery (one row per
                                                   image, two models) and query_labels, gallery_labels
"""

import sys

import numpy as np

from fixstar import cross_test
from fixstar.evaluation import VersionFeatures, paired_bootstrap

if len(sys.argv) > 1:
    data = dict(np.load(sys.argv[1], allow_pickle=False))
else:  # made-up vectors: 20 classes, the new model is a little better and slightly turned
    rng = np.random.default_rng(0)
    labels, centres = np.arange(400) % 20, rng.normal(size=(20, 32))
    turn = np.eye(32) + 0.02 * rng.normal(size=(32, 32))
    old, new = (centres[labels] + noise * rng.normal(size=(400, 32)) for noise in (1.5, 1.2))
    data = {"old_queries": old[:200], "old_gallery": old[200:], "new_queries": new[:200] @ turn}
    data |= {
        "new_gallery": new[200:] @ turn,
        "query_labels": labels[:200],
        "gallery_labels": labels[200:],
    }

versions = [
    VersionFeatures(name, data[f"{name}_queries"], data[f"{name}_gallery"])
    for name in ("old", "new")
]
tested = cross_test(versions, data["query_labels"], data["gallery_labels"], "image")
print(
    f"old on old {tested.matrix[0, 0]:.1%}   new on old {tested.matrix[1, 0]:.1%}   new {tested.matrix[1, 1]:.1%}"
)
gain = paired_bootstrap(tested.hits[1, 0], tested.hits[0, 0])
print(
    f"upgrading without re-embedding: {100 * gain.mean:+.1f} points [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"
)
