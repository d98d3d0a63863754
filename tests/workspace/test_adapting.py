"""Vectors of a system that fixstar did not train: reached through an adapter that passed the gate, or not at all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from fixstar.workspace.adapters.fitting import fit_adapter
from fixstar.workspace.adapters.maps import AdapterRegistry
from numpy.typing import NDArray
from PIL import Image
from shops import passed, shop

from fixstar.errors import (
    DataError,
    FixstarError,
    GalleryError,
    GateError,
    InputError,
    ModelError,
    NextStep,
    UnknownNameError,
)
from fixstar.geometry import unit
from fixstar.workspace import AdaptOptions, CatalogueItem, GateRules, Workspace, catalogue

OLD, WIDTH = "old-system", 40
PER_CLASS, CLASSES = 16, 24
TURN = AdaptOptions(kind="procrustes")


def draw(folder: Path) -> Path:
    """One folder a class: a pattern of 4 x 4 colours with noise."""
    rng = np.random.default_rng(0)
    for number in range(CLASSES):
        (folder / f"c{number:02}").mkdir(parents=True)
        pattern = rng.integers(0, 256, (4, 4, 3))
        for i in range(PER_CLASS):
            pixels = np.clip(pattern + rng.normal(0, 25, (4, 4, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).resize((32, 32), Image.Resampling.NEAREST).save(
                folder / f"c{number:02}" / f"{i}.png"
            )
    return folder


def by_old_system(vectors: NDArray[Any], noise: float = 1.4) -> NDArray[np.float32]:
    """What another system makes of the same images: v1's vectors, turned, in more components, and blurred."""
    rng = np.random.default_rng(1)
    turned = vectors @ np.linalg.qr(rng.normal(size=(WIDTH, vectors.shape[1])))[0].T
    spread = np.linalg.norm(vectors - vectors.mean(axis=0), axis=1).mean()
    blurred = turned + noise * spread / WIDTH**0.5 * rng.normal(size=turned.shape)
    return np.asarray(unit(blurred), np.float32)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with "photos", and "shop", which has v1, v2 and the old system's vectors of the photos."""
    folder = tmp_path_factory.mktemp("adapting")
    items = list(catalogue(draw(folder / "photos")))
    with shop(folder / "shop", capacity=25) as space:
        store(space, items, by_old_system(space.serving.embed("v1", [item.image for item in items])))
    return folder


def store(space: Workspace, items: list[CatalogueItem], vectors: NDArray[np.float32], **changed: Any) -> None:
    if OLD not in space.gallery.count():
        space.gallery.create_version(OLD, WIDTH)
    payloads = [{**item.payload, **changed} for item in items]
    space.gallery.upsert(OLD, [item.id for item in items], vectors, payloads)


@pytest.fixture
def space(ready: Path, tmp_path: Path) -> Any:
    with Workspace(shutil.copytree(ready / "shop", tmp_path / "shop"), device="cpu") as space:
        yield space


@pytest.fixture
def photos(ready: Path) -> list[CatalogueItem]:
    return list(catalogue(ready / "photos"))


def vectors_of(space: Workspace, version: str) -> NDArray[np.float32]:
    return np.stack([item.vector for item in space.gallery.iterate(version)])


def test_an_adapter_that_passes_is_used_by_every_search(space: Workspace, photos: list[CatalogueItem]) -> None:
    done = space.adapt(OLD, progress=False)
    assert done.check is not None
    assert (done.in_use, done.check.outcome, done.forced, done.queries_by) == (True, "pass", None, "v1")
    assert len(done.ranked) == 5
    assert done.kind == done.ranked[0][0]
    assert done.pairs == round(0.6 * len(photos))
    assert done.check.queries + done.check.gallery <= round(0.4 * len(photos))
    kept = json.loads((space.path / "checks" / f"adapter-{OLD}.json").read_text())
    assert (kept["outcome"], kept["cells"][0]["version"], kept["version"]) == ("pass", OLD, "v1")

    space.index([CatalogueItem(f"new/{item.id}", item.image, item.payload) for item in photos[::40]])
    queries = space.serving.embed("v1", [item.image for item in photos[:30]])
    answer = space.serving.search_vectors("v1", queries, k=7)
    adapter = space.adapters.find(OLD, "v1")
    assert adapter is not None
    old = adapter(queries) @ vectors_of(space, OLD).T
    new = queries @ vectors_of(space, "v1").T
    ids = [item.id for name in (OLD, "v1") for item in space.gallery.iterate(name)]
    for row, hits in zip(np.concatenate([old, new], axis=1), answer.hits, strict=True):
        best = np.argsort(-row, kind="stable")[:7]
        assert [hit.id for hit in hits] == [ids[place] for place in best]
        assert np.allclose([hit.score for hit in hits], row[best], atol=1e-5)
    assert {hit.version for hits in answer.hits for hit in hits} == {OLD, "v1"}
    assert answer.left_out == ()


def test_queries_of_a_version_without_an_adapter_leave_those_vectors_out_and_say_so(
    space: Workspace, photos: list[CatalogueItem]
) -> None:
    space.adapt(OLD, TURN, progress=False)
    space.index([CatalogueItem("mine", photos[0].image, photos[0].payload)])
    queries = space.serving.embed("v2", [photos[0].image])
    answer = space.serving.search_vectors("v2", queries, k=5)
    assert (answer.left_out, [hit.id for hit in answer.hits[0]]) == ((OLD,), ["mine"])
    like = space.like(photos[0].id, k=3)  # an item in the old system's space: only its own kind can be compared
    assert (like.version, like.left_out) == (OLD, ("v1",))
    assert [hit.version for hit in like.hits[0]] == [OLD] * 3


def test_a_deployment_asks_for_the_adapter_of_its_own_queries(space: Workspace, photos: list[CatalogueItem]) -> None:
    space.adapt(OLD, TURN, progress=False)
    space.index([CatalogueItem("mine", photos[0].image, photos[0].payload)])
    passed(space, "v2", "v1")
    with pytest.raises(GateError, match=rf"{len(photos)} vectors of {OLD}") as refused:
        space.deploy("v2")
    assert refused.value.next_steps[0] == NextStep("adapt", {"version": OLD, "queries_by": "v2"})
    done = space.adapt(OLD, AdaptOptions(queries_by="v2", kind="procrustes"), progress=False)
    assert (done.queries_by, done.in_use) == ("v2", True)
    assert space.status().adapters == {OLD: ["v1", "v2"]}
    assert (space.versions_to_check("v2"), space.versions_to_check("v3")) == (["v1"], ["v1", OLD])
    space.deploy("v2")
    for version in ("v2", "v1"):  # a rollback finds the adapter of its version
        answer = space.search([photos[5].image], k=3)
        assert (answer.version, answer.left_out) == (version, ())
        assert answer.hits[0][0].payload["label"] == photos[5].payload["label"]
        if version == "v2":
            space.rollback()
    space.deploy("v2", force="they are not needed any more")


def test_a_poor_adapter_is_refused_and_changes_nothing(space: Workspace, photos: list[CatalogueItem]) -> None:
    perfect = np.eye(WIDTH, dtype=np.float32)[[int(item.payload["label"][1:]) for item in photos]]
    blurred = unit(perfect + np.random.default_rng(2).normal(0, 0.02, perfect.shape)).astype(np.float32)
    store(space, photos, blurred[:, ::-1].copy())
    few = AdaptOptions(kind="low-rank", sample=120, held_out=0.8)
    done = space.adapt(OLD, few, progress=False)
    assert done.check is not None
    assert (done.in_use, done.check.outcome) == (False, "refuse")
    assert space.adapters.entries() == ()
    with pytest.raises(GateError, match="needs a reason"):
        space.adapt(OLD, AdaptOptions(force=" "))
    forced = space.adapt(OLD, AdaptOptions(kind="low-rank", sample=120, held_out=0.8, force="a trial"), progress=False)
    assert (forced.in_use, forced.forced) == (True, "a trial")
    kept = json.loads((space.path / "checks" / f"adapter-{OLD}.json").read_text())
    assert (kept["outcome"], kept["data"]["forced"]) == ("refuse", "a trial")
    adapter = space.adapters.find(OLD, "v1")
    assert adapter is not None
    assert (adapter.about["check"], adapter.about["forced"]) == ("refuse", "a trial")


def test_without_labels_evidence_is_missing(space: Workspace, photos: list[CatalogueItem]) -> None:
    store(space, photos, vectors_of(space, OLD), label=None)
    done = space.adapt(OLD, TURN, progress=False)
    assert done.check is not None
    assert (done.in_use, done.check.outcome, done.check.cells) == (False, "missing evidence", ())
    assert "no two of one class" in done.check.reasons[0]


def test_where_evidence_is_missing_the_advice_is_what_can_help(
    space: Workspace, photos: list[CatalogueItem], tmp_path: Path
) -> None:
    new = space.serving.embed("v1", [item.image for item in photos])
    labels = [item.payload["label"] for item in photos]

    def advice(noise: float, **options: Any) -> str:
        store(space, photos, by_old_system(new, noise))
        check = space.adapt(OLD, AdaptOptions(kind="procrustes", **options), progress=False).check
        assert check is not None
        assert "queries would decide" in check.reasons[0]
        return check.reasons[0]

    assert f"Take a larger sample: {len(photos)} items can be used" in advice(0.3, sample=100)
    said = advice(0.3)
    assert f"All {len(photos)} items of {OLD} whose image can be found were used" in said
    assert "larger sample" not in said
    np.savez(tmp_path / "labelled.npz", old=by_old_system(new, 0.3), new=new, labels=labels)
    said = advice(0.3, pairs=tmp_path / "labelled.npz")
    assert "Add more labelled images to labelled.npz" in said
    assert "larger sample" not in said
    np.savez(tmp_path / "bare.npz", old=by_old_system(new, 1.0)[:200], new=new[:200])
    assert "Add the array labels to bare.npz" in advice(1.0, pairs=tmp_path / "bare.npz")


def test_the_tolerance_and_the_confidence_are_the_gates(space: Workspace) -> None:
    done = space.adapt(OLD, AdaptOptions(kind="procrustes", rules=GateRules(0.9, 0.05, seed=3)), progress=False)
    assert done.check is not None
    assert (done.check.confidence, done.check.tolerance) == (0.9, 0.05)


def test_pairs_of_a_file_are_never_judged_by(space: Workspace, photos: list[CatalogueItem], tmp_path: Path) -> None:
    new = space.serving.embed("v1", [item.image for item in photos])
    old, some = vectors_of(space, OLD), np.arange(len(photos)) % 2 == 0
    np.savez(tmp_path / "half.npz", old=3 * old[some], new=new[some])
    done = space.adapt(OLD, AdaptOptions(kind="procrustes", pairs=tmp_path / "half.npz"), progress=False)
    assert done.check is not None
    assert (done.pairs, done.in_use) == (some.sum(), True)
    assert done.check.queries + done.check.gallery == (~some).sum()
    labels = [item.payload["label"] for item in photos]
    np.savez(tmp_path / "all.npz", old=old, new=new, labels=labels)
    done = space.adapt(OLD, AdaptOptions(kind="procrustes", pairs=tmp_path / "all.npz"), progress=False)
    assert done.check is not None
    assert done.pairs + done.check.queries + done.check.gallery == len(photos)


def test_files_that_are_no_pairs(space: Workspace, tmp_path: Path) -> None:
    def told(**arrays: Any) -> str:
        np.savez(tmp_path / "pairs.npz", **arrays)
        with pytest.raises(FixstarError) as error:
            space.adapt(OLD, AdaptOptions(pairs=tmp_path / "pairs.npz"), progress=False)
        return str(error.value)

    good, mine = np.ones((50, WIDTH)), np.ones((50, 24))
    assert "lacks new" in told(old=good)
    assert "have 24" in told(old=good, new=good)
    assert "49 of new" in told(old=good, new=mine[1:])
    assert "row 0 of new is zero" in told(old=good, new=0 * mine)
    assert "cannot be read" in told(old=np.array([{}], object), new=mine)
    (tmp_path / "text.npz").write_text("no vectors")
    with pytest.raises(DataError, match=r"text\.npz"):
        space.adapt(OLD, AdaptOptions(pairs=tmp_path / "text.npz"))
    with pytest.raises(InputError, match="there is no file"):
        space.adapt(OLD, AdaptOptions(pairs=tmp_path / "none.npz"))


def test_class_means_where_no_image_is_left(space: Workspace, photos: list[CatalogueItem]) -> None:
    store(space, photos, vectors_of(space, OLD), image="gone.png")
    with pytest.raises(InputError, match="0 items by v1 do"):
        space.adapt(OLD, TURN, progress=False)
    space.index([CatalogueItem(f"new/{item.id}", item.image, item.payload) for item in photos[::2]])
    with (
        patch("fixstar.workspace.adapters.use._LEAST_CLASSES", CLASSES + 1),
        pytest.raises(InputError, match=f"share only {CLASSES} classes") as refused,
    ):
        space.adapt(OLD, TURN, progress=False)
    assert [step.action for step in refused.value.next_steps] == ["adapt"]
    done = space.adapt(OLD, TURN, progress=False)
    assert done.check is not None
    assert (done.pairs, done.in_use, done.check.outcome) == (CLASSES, False, "missing evidence")
    assert "24 classes" in done.fitted_on
    space.adapt(OLD, AdaptOptions(kind="procrustes", force="looked at by eye"), progress=False)
    hits = [space.search([item.image], k=60).hits[0] for item in photos[1::32]]
    old = [next(hit for hit in found if hit.version == OLD) for found in hits]
    right = [hit.payload["label"] == item.payload["label"] for hit, item in zip(old, photos[1::32], strict=True)]
    assert np.mean(right) > 0.6


def test_stored_vectors_move_once_even_if_interrupted(
    space: Workspace, photos: list[CatalogueItem], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fixstar.workspace.adapters.use._BATCH", 100)
    before = {item.id: item.vector for item in space.gallery.iterate(OLD)}
    stored, replace, calls = AdaptOptions(applied="stored", kind="procrustes"), space.gallery.replace_vectors, []

    def dies(*given: Any) -> list[str]:
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return replace(*given)

    with monkeypatch.context() as patch:
        patch.setattr(space.gallery, "replace_vectors", dies)
        with pytest.raises(KeyboardInterrupt):
            space.adapt(OLD, stored, progress=False)
    assert space.gallery.count() == {"v1": 0, OLD: len(photos) - 200, f"{OLD}@v1": 200}
    assert space.search([photos[0].image]).left_out == (OLD,)  # half-way there is no adapter for queries
    adapter = space.adapters.find(OLD, "v1", "stored")
    assert adapter is not None
    done = space.adapt(OLD, stored, progress=False)
    assert (done.moved, done.into, done.in_use) == (len(photos) - 200, f"{OLD}@v1", True)
    moved = {item.id: item for item in space.gallery.iterate(f"{OLD}@v1")}
    assert moved.keys() == before.keys()
    assert all(np.allclose(moved[name].vector, adapter(vector[None])[0], atol=1e-6) for name, vector in before.items())
    assert space.adapters.entries() == ()
    answer = space.search([photos[20].image], k=1)
    assert (answer.left_out, answer.hits[0][0].version) == ((), f"{OLD}@v1")
    assert answer.hits[0][0].payload["label"] == photos[20].payload["label"]


def test_what_cannot_be_adapted(space: Workspace) -> None:
    with pytest.raises(GalleryError, match=f"no vectors of 'other'; it holds those of: {OLD}"):
        space.adapt("other")
    with pytest.raises(InputError, match="search vectors of v1 directly"):
        space.adapt("v1")
    with pytest.raises(UnknownNameError, match="v9"):
        space.adapt(OLD, AdaptOptions(queries_by="v9"))
    with pytest.raises(UnknownNameError, match="did you mean 'ridge'"):
        AdaptOptions(kind="rigde")
    with pytest.raises(UnknownNameError, match="queries, stored"):
        AdaptOptions(applied="items")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="one item or more"):
        AdaptOptions(sample=0)
    with pytest.raises(InputError, match="between 0 and 1"):
        AdaptOptions(held_out=1.0)


def test_the_registry_is_seen_by_others_and_its_damage_told(tmp_path: Path) -> None:
    eye = np.eye(4, dtype=np.float32)[[0, 1, 2, 3] * 3]
    first, second = AdapterRegistry(tmp_path), AdapterRegistry(tmp_path)
    assert first.isolated() == set()
    for turned in (eye, eye[:, ::-1].copy()):
        second.use(fit_adapter("procrustes", eye, turned, source="v1", target="a/b ü"))
        found = first.find("a/b ü", "v1")
        assert found is not None
        assert np.allclose(found(eye), turned, atol=1e-5)
    assert first.isolated() == {"a/b ü"}
    assert first.find("a/b ü", "v2") is None
    assert len(list((tmp_path / "adapters").glob("*.safetensors"))) == 2  # what is out of use is kept
    second.remove("a/b ü", "v1", "queries")
    assert first.entries() == ()
    (tmp_path / "adapters" / "registry.json").write_text("{}")
    with pytest.raises(ModelError, match=r"registry\.json is damaged"):
        first.entries()
