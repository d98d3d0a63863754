"""Features and labels of another system: both layouts, and every way in which they are wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from wording import refuses

from fixstar.errors import FixstarError
from fixstar.evaluation.features import read_features, read_labels

Q, G = np.arange(6.0).reshape(3, 2) + 1, np.arange(8.0).reshape(4, 2) + 1


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.savez("v1.npz", queries=Q, gallery=G)
    np.save("q.npy", Q)
    np.save("g.npy", G)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_one_npz_or_two_npy_files() -> None:
    for files in ("v1.npz", "q.npy,g.npy"):
        version = read_features("v1", files)
        assert version.name == "v1"
        assert np.array_equal(version.queries, Q)
        assert np.array_equal(version.gallery, G)
        assert version.projection is None
    np.savez("short.npz", queries=Q, gallery=G, projection=np.ones((5, 2)))
    assert read_features("v2", "short.npz").width == 5


@pytest.mark.usefixtures("folder")
def test_labels_are_numbers_or_names() -> None:
    np.savez(
        "labels.npz",
        query_labels=np.array([7, 8, 7]),
        gallery_labels=np.array([8, 7, 7, 9], dtype=np.uint8),
    )
    numbers = read_labels("labels.npz")
    assert (numbers.queries.tolist(), numbers.gallery.tolist(), numbers.classes) == (
        [7, 8, 7],
        [8, 7, 7, 9],
        {},
    )
    np.save("ql.npy", np.array(["shoe", "hat", "shoe"]))
    np.save("gl.npy", np.array(["hat", "coat", "coat", "shoe"]))
    names = read_labels("ql.npy,gl.npy")
    assert [names.classes[label] for label in names.queries.tolist()] == ["shoe", "hat", "shoe"]
    assert [names.classes[label] for label in names.gallery.tolist()] == [
        "hat",
        "coat",
        "coat",
        "shoe",
    ]
    np.savez("all.npz", queries=Q, gallery=G, query_labels=[1, 2, 3], gallery_labels=[1, 2, 3, 3])
    assert read_labels("all.npz").gallery.tolist() == [1, 2, 3, 3]
    assert len(read_features("v1", "all.npz").gallery) == 4


def wrong(folder: Path) -> None:
    """Files that must be refused."""
    np.save(folder / "flat.npy", np.ones(3))
    np.save(folder / "text.npy", np.full((3, 2), "a"))
    np.save(folder / "objects.npy", np.array([[1, None]], dtype=object), allow_pickle=True)
    np.savez(folder / "objects.npz", queries=np.array([[1, None]], dtype=object), gallery=G)
    hole = Q.copy()
    hole[1, 0] = np.nan
    np.save(folder / "hole.npy", hole)
    np.savez(folder / "other.npz", features=Q)
    np.savez(folder / "narrow.npz", queries=Q[:, :1], gallery=G)
    np.save(folder / "floats.npy", np.ones(3))
    (folder / "cut.npz").write_bytes((folder / "v1.npz").read_bytes()[:200])
    (folder / "named.npz").write_bytes((folder / "q.npy").read_bytes())
    (folder / "hidden.npy").write_bytes((folder / "v1.npz").read_bytes())
    (folder / "words.npy").write_text("not an array")


@pytest.mark.parametrize(
    "files",
    [
        "absent.npz",
        "q.npy",
        "q.csv,g.csv",
        "q.npy,g.npy,g.npy",
        "flat.npy,g.npy",
        "q.npy,text.npy",
        "objects.npy,g.npy",
        "objects.npz",
        "words.npy,g.npy",
        "hole.npy,g.npy",
        "other.npz",
        "narrow.npz",
        "cut.npz",
        "named.npz",
        "q.npy,hidden.npy",
    ],
)
def test_wrong_features_are_named(folder: Path, files: str) -> None:
    wrong(folder)
    with refuses(FixstarError):
        read_features("v1", files)


@pytest.mark.parametrize(
    "files",
    [
        "v1.npz",
        "floats.npy,floats.npy",
        "q.npy,g.npy",
        "labels.txt",
    ],
)
def test_wrong_labels_are_named(folder: Path, files: str) -> None:
    wrong(folder)
    with refuses(FixstarError):
        read_labels(files)
