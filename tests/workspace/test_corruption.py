"""Random damage anywhere in a workspace: it is found, or it changes no answer.

FIXSTAR_TRIALS and FIXSTAR_SEED make a longer trial, or another one; ``-s`` prints what came of it.
"""

from __future__ import annotations

import hashlib
import io
import os
import random
import shutil
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from service_clients import picture
from shops import CLASSES, passed, pictures, set_apart, shop

from fixstar.data.image_set import ImageSet
from fixstar.data.replay import ReplayMemory
from fixstar.errors import FixstarError
from fixstar.service.jobs import Job, JobFiles
from fixstar.service.keys import Keys
from fixstar.workspace import CatalogueItem, Workspace, catalogue
from fixstar.workspace.backfill.run import BackfillPlan, PlanFiles
from fixstar.workspace.held_out import keep_held_out, keep_learnt, unlearnt_images
from fixstar.workspace.verify import verify_workspace

TRIALS, SEED = int(os.environ.get("FIXSTAR_TRIALS", "60")), int(os.environ.get("FIXSTAR_SEED", "0"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a file of every kind."""
    folder = tmp_path_factory.mktemp("corruption")
    rng = np.random.default_rng(0)
    with shop(folder / "shop", versions=3) as space:
        space.index(catalogue(pictures(folder / "photos", 4)))
        passed(space, "v2", "v1")
        space.deploy("v2")
        for number in range(12):
            kept = space.images.keep(picture(number))
            item = CatalogueItem(f"kept/{number}", space.path / str(kept["image"]), {"price": number, **kept})
            space.index([item])
        set_apart(space)
        preprocessing = space.encoder("v1").preprocessing
        pixels = rng.integers(0, 256, (9, *preprocessing.size, preprocessing.channels), dtype=np.uint8)
        labelled = ImageSet(pixels, np.arange(9) % 3, CLASSES)
        keep_held_out(space.path, "v2", labelled, preprocessing)
        keep_learnt(space.path, "v2", rng.random(50))
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
        queries: list[Any] = [np.asarray(Image.open(io.BytesIO(picture(number)))) for number in range(4)]
        found: dict[str, Any] = {
            "search": space.search(queries, k=9),
            "filtered": space.search(queries[:1], k=9, where={"price": {"ge": 4}}),
            "old": space.serving.search_vectors("v1", next(space.gallery.iterate("v1")).vector[None], k=5),
            "items": [(item.id, item.version, item.vector.tobytes(), item.payload) for item in space.gallery.iterate()],
            "status": asdict(space.status()) | {"path": "", "gallery": ""},
            "moves": space.rollout.history(),
            "cards": [space.registry.card(name) for name in ("v1", "v2", "v3")],
            "checks": [space.last_check("v2"), space.check_history("v2")],
            "growth": space.registry.growth(),
            "keys": Keys(path).all(),
            "jobs": JobFiles(path).load(),
            "plan": PlanFiles(path).plan(),
            "adapters": space.adapters.entries(),
        }
        memory = ReplayMemory.load(path / "memory" / "v2.safetensors").images
        held = unlearnt_images(space.registry, "v2", ["v1"], space.encoder("v1").preprocessing).images
        for name, images in (("memory", memory), ("held out", held)):
            assert images is not None
            found[name] = np.asarray(images.images).tobytes(), images.labels.tolist(), images.classes
        kept = (space.images.find(item) for item in space.gallery.iterate("v2"))
        found["images"] = [image and hashlib.sha256(image.read_bytes()).hexdigest() for image in kept]
    return found


def damage(path: Path, rng: random.Random) -> str:
    """Flip one byte, or cut one file short: half of the time anywhere by bytes, else in any file."""
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.stat().st_size)
    weights = [file.stat().st_size for file in files] if rng.random() < 0.5 else None
    (file,) = rng.choices(files, weights)
    content = bytearray(file.read_bytes())
    place, flipped = rng.randrange(len(content)), rng.random() < 0.7
    if flipped:
        content[place] ^= rng.randrange(1, 256)
    file.write_bytes(content if flipped else content[:place])
    return f"{file.relative_to(path)} {'flipped at' if flipped else 'cut at'} {place} of {len(content)}"


def test_damage_is_found_or_changes_nothing(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "fresh")
    assert list(verify_workspace(tmp_path / "fresh")) == []
    expected = answers(tmp_path / "fresh")
    rng, seen, silent = random.Random(SEED), Counter[str](), list[str]()
    for number in range(TRIALS):
        copy = tmp_path / f"trial-{number}"
        shutil.copytree(whole, copy)
        what = damage(copy, rng)
        found = list(verify_workspace(copy))
        outcome = "found by verify" if found else "harmless"
        if not found:
            try:
                if answers(copy) != expected:
                    outcome = "silent"
                    silent.append(what)
            except FixstarError as error:
                outcome = "refused when used, missed by verify"
                silent.append(f"{what}: {error}")
        seen[outcome] += 1
        shutil.rmtree(copy)
    print(f"\n{TRIALS} trials, seed {SEED}: {dict(seen)}")
    assert silent == []
