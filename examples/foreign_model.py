"""Serve a model that was trained elsewhere: add it, index images, search. The gate and the service take it from there.

Any torch module, ONNX file or transformers model will do; this one is a small untrained network.
"""

import tempfile

import numpy as np
from torch import nn

from fixstar import Preprocessing, Workspace
from fixstar.workspace import CatalogueItem

model = nn.Sequential(
    nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(144, 32)
)
prepared = Preprocessing(size=(64, 64), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
images = np.random.default_rng(0).integers(0, 256, (20, 64, 64, 3), np.uint8)

with tempfile.TemporaryDirectory() as folder, Workspace.create(folder) as space:
    name = space.add_version(
        model, prepared
    )  # kept as ONNX; source="my.code:build" keeps the import path instead
    space.index([CatalogueItem(str(i), image, {}) for i, image in enumerate(images)])
    hits = space.search([images[7]], k=3).hits[0]
    print(f"{name}: the nearest items of image 7 are", ", ".join(hit.id for hit in hits))
