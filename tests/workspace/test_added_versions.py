"""Versions from elsewhere in a workspace: added, indexed, searched, judged, deployed, translated."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typed import typed
from wording import FIGURES, check_wording, refuses

from fixstar.errors import InputError, ModelError
from fixstar.gallery import import_version
from fixstar.images import Preprocessing
from fixstar.models import Encoder
from fixstar.workspace import CatalogueItem, Workspace, search

PREPARED = Preprocessing(size=(16, 16), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def network(width: int = 8, seed: int = 0) -> nn.Module:
    """Made again from an import path by the tests below."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, width),
    )


def encoder(width: int = 8, seed: int = 0) -> Encoder:
    arguments = {"width": width, "seed": seed}
    return Encoder.wrap(f"{__name__}:network", PREPARED, arguments=arguments)


def items(count: int = 12) -> list[CatalogueItem]:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 16, 16, 3), np.uint8)
    return [CatalogueItem(f"i{i}", image, {"label": str(i % 3)}) for i, image in enumerate(pixels)]


def test_an_added_version_indexes_and_searches(tmp_path: Path) -> None:
    with Workspace.create(tmp_path / "w") as space:
        assert space.add_version(encoder()) == "v1"
        space.index(items())
        assert space.search([items()[4].image], k=1).hits[0][0].id == "i4"
        with refuses(InputError, "index") as refused:
            space.add_version(encoder())
        assert [step.action for step in refused.value.next_steps] == ["index"]
        with refuses(InputError, "add", "add"):
            space.settings()
    with Workspace(tmp_path / "w") as again:
        assert again.search([items()[7].image], k=1).hits[0][0].id == "i7"


def test_a_stranger_asks_by_old_queries_and_a_compatible_model_searches_directly(
    tmp_path: Path,
) -> None:
    with Workspace.create(tmp_path / "w") as space:
        space.add_version(encoder())
        space.index(items())
        assert space.add_version(encoder(seed=1)) == "v2"
        way = space.translations.of("v2")["v1"]
        assert (way.models, way.shared, way.forward) == (("v1",), False, None)
        with refuses(InputError, "add"):
            space.add_version(encoder(width=5), compatible_with="v1")
        alike = encoder()
        with torch.no_grad():
            for value in alike.backbone.parameters():
                value.mul_(1.001)
        assert space.add_version(alike, compatible_with="v1") == "v3"
        direct = space.translations.of("v3")["v1"]
        assert (direct.models, direct.shared) == (("v3",), True)
        space.deploy("v3", force="trusted: the same network")
        assert space.search([items()[4].image], k=1).hits[0][0].id == "i4"
        space.rollback()
        assert space.deployed() == "v1"


def test_the_gate_judges_a_compatible_version(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    for name in "abcd":
        colour = rng.integers(0, 256, 3)
        for i in range(12):
            (tmp_path / "held" / name).mkdir(parents=True, exist_ok=True)
            noisy = np.clip(colour + rng.normal(0, 30, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(tmp_path / "held" / name / f"{i}.png")
    from fixstar.data import open_images

    with Workspace.create(tmp_path / "w") as space:
        space.add_version(encoder())
        space.index(items())
        space.add_version(encoder(seed=5), compatible_with="v1")  # a claim that is not true
        check = space.check("v2", open_images(tmp_path / "held"))
        assert check.outcome != "pass"
        assert check.cells[0].version == "v1"


def test_vectors_without_an_encoder_are_searched_and_never_asked(tmp_path: Path) -> None:
    with Workspace.create(tmp_path / "w") as space:
        space.add_version(encoder())
        made = space.serving.embed("v1", [item.image for item in items()])
        ids = np.array([item.id for item in items()])
        np.savez(tmp_path / "moved.npz", vectors=7 * made, ids=ids)  # of any length
        import_version(space.gallery, "moved@v1", tmp_path / "moved.npz")
        hit = space.search([items()[4].image], k=1).hits[0][0]
        assert (hit.id, hit.version, round(hit.score, 3)) == ("i4", "moved@v1", 1)
        for asked in (space.encoder, space.check, space.deploy):
            with refuses(InputError, "check") as refusal:
                asked("moved@v1")
            assert refusal.value.next_steps[0].action == "check"
        with pytest.raises(InputError, match="unknown version 'v9'"):
            space.encoder("v9")


def test_a_model_that_changes_in_memory_is_found_before_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Workspace.create(tmp_path / "w") as space:
        space.add_version(encoder())
        space.index(items())
        with torch.no_grad():
            for value in space.serving.encoder("v1").parameters():
                value.add_(torch.randn_like(value))
        space.search([items()[4].image])  # looked at a moment ago
        monkeypatch.setattr(search, "VERIFY_EVERY", 0.0)
        with refuses(ModelError, "add", varies=FIGURES):
            space.search([items()[4].image])


def test_add_on_the_command_line(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    assert typed("init", shop).code == 0
    make: list[str | Path] = [f"{__name__}:network", "-w", shop]
    assert "--size" in refused("add", *make)
    prepared = ["--size", "16", "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25"]
    assert f"with --trust {__name__}" in refused("add", *make, *prepared, "--argument", "width=8")
    added = typed("add", *make, *prepared, "--argument", "width=8", "--trust", __name__, "--json")
    assert json.loads(added.out)["width"] == 8
    assert (
        "check v2 --data"
        in typed("add", *make, *prepared, "--argument", "width=8", "--argument", "seed=3").out
    )
    np.save(tmp_path / "vectors.npy", np.eye(3, dtype=np.float32))
    assert "gallery import" in refused("add", tmp_path / "vectors.npy", "-w", shop)
    check_wording(typed("add", tmp_path / "vectors.npy", "--as", "old", "-w", shop).out)
    assert "3 vectors of old (imported: no encoder)" in typed("status", "-w", shop).out
    assert "no model that --size" in refused(
        "add", tmp_path / "vectors.npy", "--as", "old", "--size", "16", "-w", shop
    )
    assert "versions are numbered" in refused("add", *make, *prepared, "--as", "old")
    assert "fixstar check v1" in refused("check", "old", "-w", shop)
    assert "224x192" in refused("add", *make, "--size", "big")


def refused(*words: str | Path) -> str:
    result = typed(*words)
    assert result.code != 0
    return result.err
