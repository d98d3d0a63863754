"""A workspace with a file of every kind, and everything that it says."""

from __future__ import annotations

import hashlib
import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from service_clients import picture
from shops import CLASSES, fitted, passed, pictures, shop

from fixstar.data.formats import open_images
from fixstar.data.image_set import ImageSet
from fixstar.data.replay import ReplayMemory
from fixstar.service.jobs import Job, JobFiles
from fixstar.service.keys import Keys
from fixstar.workspace import CatalogueItem, Workspace, catalogue
from fixstar.workspace.backfill.run import BackfillPlan, PlanFiles
from fixstar.workspace.held_out import keep_held_out, keep_learnt, split_off, unlearnt_images


def whole_workspace(folder: Path) -> Path:
    """The workspace, at folder/shop."""
    rng = np.random.default_rng(0)
    with shop(folder / "shop", versions=3) as space:
        space.index(catalogue(pictures(folder / "photos", 4)))
        passed(space, "v2", "v1")
        space.deploy("v2")
        for number in range(12):
            kept = space.images.keep(picture(number))
            item = CatalogueItem(
                f"kept/{number}", space.path / str(kept["image"]), {"price": number, **kept}
            )
            space.index([item])
        fitted(space)
        preprocessing = space.encoder("v1").preprocessing
        pixels = rng.integers(
            0, 256, (9, *preprocessing.size, preprocessing.channels), dtype=np.uint8
        )
        labelled = ImageSet(pixels, np.arange(9) % 3, CLASSES)
        keep_held_out(space.path, "v2", labelled, preprocessing)
        keep_learnt(space.path, "v2", split_off(open_images(folder / "photos"), 0.0))
        ReplayMemory(3, labelled).save(space.path / "memory" / "v2.safetensors")
        space.grow(4)
        Keys(space.path).add("page", "read")
        JobFiles(space.path).save(Job.new("check", {"version": "v2"}))
        PlanFiles(space.path).save(BackfillPlan.made("v2", "random", "all", 3, ["a", "b", "c"]))
        space.drop("v3")
    return folder / "shop"


def answers(path: Path) -> dict[str, Any]:
    """Everything that a workspace says, in a form that compares."""
    with Workspace(path, device="cpu") as space:
        queries: list[Any] = [
            np.asarray(Image.open(io.BytesIO(picture(number)))) for number in range(4)
        ]
        found: dict[str, Any] = {
            "search": space.search(queries, k=9),
            "filtered": space.search(queries[:1], k=9, where={"price": {"ge": 4}}),
            "old": space.serving.search_vectors(
                "v1", next(space.gallery.iterate("v1")).vector[None], k=5
            ),
            "items": [
                (item.id, item.version, item.vector.tobytes(), item.payload)
                for item in space.gallery.iterate()
            ],
            "status": asdict(space.status()) | {"path": "", "gallery": ""},
            "moves": space.rollout.history(),
            "cards": [space.registry.card(name) for name in ("v1", "v2", "v3")],
            "checks": [space.last_check("v2"), space.check_history("v2")],
            "growth": space.registry.growth(),
            "keys": Keys(path).all(),
            "jobs": JobFiles(path).load(),
            "plan": PlanFiles(path).plan(),
            "translations": {name: way.key for name, way in space.translations.of("v2").items()},
        }
        memory = ReplayMemory.load(path / "memory" / "v2.safetensors").images
        held = unlearnt_images(
            space.registry, "v2", ["v1"], space.encoder("v1").preprocessing
        ).images
        for name, images in (("memory", memory), ("held out", held)):
            assert images is not None
            found[name] = (
                np.asarray(images.images).tobytes(),
                images.labels.tolist(),
                images.classes,
            )
        kept = (space.images.find(item) for item in space.gallery.iterate("v2"))
        found["images"] = [
            image and hashlib.sha256(image.read_bytes()).hexdigest() for image in kept
        ]
    return found
