"""Two compatible versions from two image folders: v2's queries search v1's vectors.

python examples/two_versions.py photos/2024 photos/2025 photos/held-out
"""

import sys

from fixstar import cross_test, train
from fixstar.data import open_images
from fixstar.training import version_features

v1, v2 = train(*sys.argv[1:3], backbone="tiny", epochs=5)
held = open_images(sys.argv[3])
queries, gallery = held.take(range(0, len(held), 2)), held.take(range(1, len(held), 2))
versions = [
    version_features(version.name, version.encoder, queries, gallery) for version in (v1, v2)
]
found = cross_test(versions, queries.labels, gallery.labels, "image").matrix
print(
    f"v1 finds {found[0, 0]:.1%}, v2 on v1's vectors {found[1, 0]:.1%}, v2 on its own {found[1, 1]:.1%}"
)
