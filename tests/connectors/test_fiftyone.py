"""FiftyOne's own similarity classes over a workspace. A dataset needs MongoDB; a list of samples stands in for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import backend, upgrade, vector

from fixstar.errors import InputError

pytest.importorskip("fiftyone.brain.similarity", reason="fiftyone is not installed")

import fiftyone.brain as fob
from bson import ObjectId
from fiftyone.core.collections import SampleCollection
from fixstar_similarity import FixstarSimilarityConfig, FixstarSimilarityIndex


class Samples(SampleCollection):  # type: ignore[misc]
    """Ids and paths, in an order: what the index asks of a dataset or view."""

    def __init__(self, rows: dict[str, str]) -> None:
        self.rows, self.distances = rows, dict[str, float]()

    _is_patches = _is_frames = False

    @property
    def media_type(self) -> str:
        return "image"

    @property
    def _root_dataset(self) -> Samples:
        return self

    def values(self, fields: Any) -> Any:
        return list(self.rows) if fields == "id" else [list(self.rows), list(self.rows.values())]

    def add_stage(self, stage: Any) -> Samples:
        return Samples({name: self.rows[name] for name in stage.sample_ids})

    def set_values(self, field: str, values: dict[str, float], key_field: str) -> None:
        assert (field, key_field) == ("distance", "id")
        self.distances = values


def samples(folder: Path) -> Samples:
    return Samples({str(ObjectId()): str(path) for path in sorted(folder.rglob("*.png"))})


def index_of(given: Samples, workspace: Path) -> FixstarSimilarityIndex:
    made = fob.compute_similarity(
        given, embeddings=False, backend=FixstarSimilarityConfig, workspace=workspace
    )
    assert isinstance(made, FixstarSimilarityIndex)
    return made


def test_samples_are_sorted_by_similarity(tmp_path: Path) -> None:
    with backend("workspace", tmp_path) as (_, space):
        given = samples(tmp_path / "photos")
        ids, index = list(given.rows), index_of(given, space.path)
        index.add_samples(given)
        assert index.total_index_size == len(ids) == 9
        by_id = index.sort_by_similarity(ids[4], k=5, dist_field="distance")
        assert next(iter(by_id.rows)) == ids[4]
        assert len(by_id.rows) == 5
        assert list(given.distances.values()) == sorted(given.distances.values())
        photo = Path(given.rows[ids[4]])
        for query in (str(photo), np.array(vector(space, photo))):
            assert list(index.sort_by_similarity(query, k=5).rows) == list(by_id.rows)
        assert sorted(index.sort_by_similarity(ids[:2]).rows) == sorted(ids)
        found, labels = index._kneighbors(ids[:2], k=1)
        assert (found, labels) == ([[ids[0]], [ids[1]]], None)
        view = Samples({name: given.rows[name] for name in ids[6:]})
        with index.use_view(view):
            assert sorted(index.sort_by_similarity(ids[4], k=3).rows) == ids[6:]
        vectors, known, _ = index.get_embeddings(ids[:2])
        assert known.tolist() == ids[:2]
        assert vectors[0].tolist() == space.gallery.get(ids[:1])[ids[0]].vector.tolist()
        index.remove_from_index(ids[:2])
        with pytest.raises(InputError, match="2 of 3 samples are not in the workspace"):
            index.remove_from_index(ids[:3], allow_missing=False)
        index.cleanup()
        assert index.total_index_size == 0
        index.workspace.close()


def test_an_upgrade_needs_no_new_index(tmp_path: Path) -> None:
    with backend("workspace", tmp_path) as (_, space):
        given = samples(tmp_path / "photos")
        ids, index = list(given.rows), index_of(given, space.path)
        index.add_samples(Samples({name: given.rows[name] for name in ids[:8]}))
        upgrade(space)
        index.add_samples(given)
        assert space.gallery.count() == {"v1": 8, "v2": 1}
        assert sorted(index.sort_by_similarity(given.rows[ids[0]]).rows) == sorted(ids)
        assert sorted(index.sort_by_similarity([ids[0], ids[8]]).rows) == sorted(ids)
        with pytest.raises(InputError, match="v1, v2, which are not one space"):
            index.get_embeddings()
        index.workspace.close()


def test_wrong_input_is_named(tmp_path: Path) -> None:
    with backend("workspace", tmp_path) as (_, space):
        given = samples(tmp_path / "photos")
        index = index_of(given, space.path)
        with pytest.raises(InputError, match="give workspace="):
            fob.compute_similarity(given, embeddings=False, backend=FixstarSimilarityConfig)
        with pytest.raises(InputError, match="whole images"):
            FixstarSimilarityConfig(workspace=space.path, patches_field="ground_truth")
        with pytest.raises(InputError, match="own model embeds"):
            index.add_to_index(np.zeros((1, 7)), ["x"])
        with pytest.raises(InputError, match="not in the workspace"):
            index.sort_by_similarity(next(iter(given.rows)))
        with pytest.raises(InputError, match="nearest samples"):
            index.sort_by_similarity(next(iter(given.rows)), reverse=True)
        index.workspace.close()
