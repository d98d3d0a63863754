"""Small workspaces with versions that were not trained: what happens after training does not care."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fixstar.models import Encoder
from fixstar.translation import Translation
from fixstar.translation.fit import Pairs, fit_map
from fixstar.workspace import Check, Workspace, catalogue
from fixstar.workspace.checks import CheckedCell, OneModel, save_check
from fixstar.workspace.translations import OWN_SPACE, translation_files

CLASSES = ("bag", "hat", "shoe")


def shop(path: Path, versions: int = 2, capacity: int = 8, free: bool = False) -> Workspace:
    """A workspace whose versions are one encoder, turned a little from version to version.

    With ``free``, each says that it was trained freely: it shares its space with no other.
    """
    space = Workspace.create(path, device="cpu")
    shutil.copytree(_versions(versions, capacity, free), path / "versions")
    torch.manual_seed(1)  # another encoder that a test makes is another model
    return space


@cache
def _versions(count: int, capacity: int, free: bool) -> Path:
    """The versions, made once: copies of a directory cost next to nothing."""
    folder = Path(tempfile.mkdtemp(prefix="fixstar-shop-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    torch.manual_seed(0)
    encoder = Encoder.create("tiny", classes=list(CLASSES), capacity=capacity)
    for number in range(1, count + 1):
        parent = f"v{number - 1}" if number > 1 else None
        encoder.about = {
            "version": f"v{number}",
            "parent": parent,
            "method": {"name": "hoc", "options": {}},
        }
        if free:
            encoder.about[OWN_SPACE] = True
        encoder.save(folder / f"v{number}")
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
    return folder


def pictures(folder: Path, per_class: int = 3) -> Path:
    """One folder per class: patches of one colour with noise."""
    drawn = _drawn_pictures(per_class)
    for name in CLASSES:
        shutil.copytree(drawn / name, folder / name, copy_function=shutil.copyfile)
    return folder


@cache
def _drawn_pictures(per_class: int) -> Path:
    """The pictures, drawn once."""
    folder = Path(tempfile.mkdtemp(prefix="fixstar-pictures-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    rng = np.random.default_rng(0)
    for name in CLASSES:
        (folder / name).mkdir()
        colour = rng.integers(0, 200, 3)
        for i in range(per_class):
            pixels = (colour + rng.integers(0, 55, (32, 32, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def passed(
    space: Workspace,
    version: str,
    *against: str,
    queries: int = 100,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Let a version have passed its check, by so many queries, on the images that ``data`` describes."""
    cells = tuple(
        CheckedCell(name, 0.5, 0.6, 0.05, 0.15, "compatible", 40, 2, 12) for name in against
    )
    check = Check(version, "pass", (), cells, 0.7, queries, 100, 0.95, 0.0, data=dict(data or {}))
    save_check(space.path, check)


def fitted(space: Workspace, source: str = "v1", target: str = "v2") -> Translation:
    """What fitting leaves behind: a translation of the stored vectors, with maps that turn nothing."""
    vectors = np.stack([item.vector for item in space.gallery.iterate(source)])
    pairs = Pairs.checked(vectors, vectors)
    turn = fit_map("rotation", pairs).map
    way = Translation(
        source, target, forward=turn, backward=turn, one=0.6, two=0.6, about={"fit": "test"}
    )
    space.translations.keep(way)
    return way


def passed_with_two_models(space: Workspace, version: str = "v2", *also: str) -> str:
    """Let a version have passed on v1's vectors with v1's queries too, and have lost alone; the translation's file.

    ``also`` are versions that it was checked against and shares a space with.
    """
    way = fitted(space, "v1", version)
    (file,) = (path.name for path in translation_files(space.path))
    cell = CheckedCell(
        version="v1",
        self_test=0.5,
        cross_test=0.55,
        low=0.01,
        high=0.09,
        verdict="compatible",
        differing=40,
        negative_flips=2,
        positive_flips=12,
        translation=file,
        weight=way.weight,
        models=way.models,
        reembedded=0.6,
        one_model=OneModel(
            cross_test=0.4, low=-0.2, high=-0.1, verdict="incompatible", weight=way.weight
        ),
    )
    others = [
        replace(cell, version=name, translation=None, weight=0.0, models=(version,), one_model=None)
        for name in also
    ]
    save_check(
        space.path, Check(version, "pass", (), (cell, *others), 0.7, 10_000, 1000, 0.95, 0.0)
    )
    return file


def foreign(space: Workspace, name: str = "other", count: int = 2) -> None:
    """Vectors of a model that is not here: nothing says how queries search them."""
    space.gallery.create_version(name, 5)
    vectors = np.eye(count, 5, dtype=np.float32)
    space.gallery.upsert(name, [f"{name}/{number}" for number in range(count)], vectors)


def indexed_shop(folder: Path, photos: int = 3, versions: int = 2, free: bool = False) -> Path:
    """A workspace at folder/shop with the pictures of folder/photos indexed by v1."""
    with shop(folder / "shop", versions, free=free) as space:
        space.index(catalogue(pictures(folder / "photos", photos)))
    return folder / "shop"
