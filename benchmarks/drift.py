"""How far vectors move in an upgrade: the cosine of an image's vectors by v1 and v2, in both workspaces of the demo.

fixstar demo && python benchmarks/drift.py fixstar-demo --picture docs/pictures/drift.svg      seconds on a CPU
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from fixstar.demo import QUERIES, TITLES, UNSEEN, characters
from fixstar.models import Encoder

COLOURS = {"compatible": "#3f6fd8", "independent": "#d9622b"}

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("demo", type=Path, help="the directory of a finished demo")
parser.add_argument("--picture", type=Path, help="where to draw the histogram")
options = parser.parse_args()

images = characters(UNSEEN, QUERIES, seed=2).images
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
for kind, title in TITLES.items():
    old, new = (Encoder.load(options.demo / kind / "versions" / name).encode(images) for name in ("v1", "v2"))
    cosines = (old * new).sum(1)
    low, middle, high = np.quantile(cosines, (0.05, 0.5, 0.95))
    print(f"{title}: median {middle:.3f}, 5 % {low:.3f}, 95 % {high:.3f}, {len(cosines):,} images")
    axes.hist(cosines, np.linspace(-0.5, 1, 61).tolist(), label=title, color=COLOURS[kind], alpha=0.8)
axes.set(xlabel="cosine of an image's vector by v1 and by v2 (1: it did not move)", ylabel="images")
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False, loc="upper center")
if options.picture:
    figure.savefig(options.picture)
