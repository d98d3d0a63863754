"""Two compatible versions from two image folders: v2's queries search v1's vectors.

python examples/two_versions.py photos/2024 photos/2025 held-out --backbone tiny --epochs 5
"""

import argparse

from fixstar import cross_test, train
from fixstar.data import open_images
from fixstar.training import version_features

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folders", nargs=3, help="images for v1, images for v2, images to search (one folder per class)")
parser.add_argument("--backbone", default="resnet18")
parser.add_argument("--epochs", type=int)
arguments = parser.parse_args()

v1, v2 = train(*arguments.folders[:2], backbone=arguments.backbone, epochs=arguments.epochs)
held = open_images(arguments.folders[2])
queries, gallery = held.take(range(0, len(held), 2)), held.take(range(1, len(held), 2))
versions = [version_features(version.name, version.encoder, queries, gallery) for version in (v1, v2)]
found = cross_test(versions, queries.labels, gallery.labels, "image").matrix
print(f"v1 finds {found[0, 0]:.1%}, v2 on v1's vectors {found[1, 0]:.1%}, v2 on its own {found[1, 1]:.1%}")
