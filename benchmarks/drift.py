"""How far vectors move in an upgrade: the cosine of an image's vectors by v1 and v2 of one workspace or several.

python benchmarks/drift.py compatible=WORKSPACE independent=WORKSPACE --picture drift.svg      seconds on a CPU

Each workspace has two versions of equal width that learnt characters, as the demo's do: see src/fixstar/demo.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from fixstar.demo import QUERIES, UNSEEN, characters
from fixstar.models import Encoder

COLOURS = ("#3f6fd8", "#d9622b", "#2f8f5b")

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("workspaces", nargs="+", metavar="TITLE=WORKSPACE", help="at most three")
parser.add_argument("--picture", type=Path, help="where to draw the histogram")
options = parser.parse_args()

images = characters(UNSEEN, QUERIES, seed=2).images
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
for given, colour in zip(options.workspaces, COLOURS, strict=False):
    title, _, folder = given.rpartition("=")
    old = Encoder.load(Path(folder) / "versions" / "v1").encode(images)
    new = Encoder.load(Path(folder) / "versions" / "v2").encode(images)
    cosines = (old * new).sum(1)
    low, middle, high = np.quantile(cosines, (0.05, 0.5, 0.95))
    print(f"{title}: median {middle:.3f}, 5 % {low:.3f}, 95 % {high:.3f}, {len(cosines):,} images")
    axes.hist(cosines, np.linspace(-0.5, 1, 61).tolist(), label=title, color=colour, alpha=0.8)
axes.set(xlabel="cosine of an image's vector by v1 and by v2 (1: it did not move)", ylabel="images")
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False, loc="upper center")
if options.picture:
    figure.savefig(options.picture)
