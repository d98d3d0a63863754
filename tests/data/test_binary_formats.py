from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from wording import REASON, refuses

from fixstar.data.formats import (
    cifar10,
    cifar100,
    idx_images,
    open_images,
)
from fixstar.errors import DataError, UnknownNameError

RANDOM = np.random.default_rng(0)

# CIFAR

TEN = [f"thing{i}" for i in range(10)]


def cifar_rows(labels: list[list[int]]) -> tuple[bytes, npt.NDArray[np.uint8]]:
    """Records in the official layout, and the same images as [N, 32, 32, 3]."""
    images = RANDOM.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8)
    rows = [
        bytes(label) + b"".join(image[:, :, c].tobytes() for c in range(3))
        for label, image in zip(labels, images, strict=True)
    ]
    return b"".join(rows), images


def write_cifar10(parent: Path, files: dict[str, list[int]]) -> dict[str, npt.NDArray[np.uint8]]:
    folder = parent / "cifar-10-batches-bin"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "batches.meta.txt").write_text("\n".join(TEN) + "\n\n")
    images = {}
    for name, labels in files.items():
        data, images[name] = cifar_rows([[label] for label in labels])
        (folder / name).write_bytes(data)
    return images


def write_cifar100(parent: Path, labels: list[list[int]]) -> npt.NDArray[np.uint8]:
    folder = parent / "cifar-100-binary"
    folder.mkdir(parents=True)
    data, images = cifar_rows(labels)
    (folder / "train.bin").write_bytes(data)
    (folder / "fine_label_names.txt").write_text("".join(f"fine{i}\n" for i in range(100)))
    (folder / "coarse_label_names.txt").write_text("".join(f"coarse{i}\n" for i in range(20)))
    return images


@pytest.mark.parametrize(
    "names", [[f"data_batch_{i}.bin" for i in range(1, 6)], ["data_batch.bin"]]
)
def test_cifar10(tmp_path: Path, names: list[str]) -> None:
    written = write_cifar10(
        tmp_path, {**{name: [i, 9] for i, name in enumerate(names)}, "test_batch.bin": [3]}
    )
    for path in (tmp_path, tmp_path / "cifar-10-batches-bin"):
        train = cifar10(path, "train")
        assert (np.asarray(train.images) == np.concatenate([written[name] for name in names])).all()
        assert train.labels.tolist() == [label for i in range(len(names)) for label in (i, 9)]
        assert train.classes == tuple(TEN)
        test = open_images(path, "test")
        assert (np.asarray(test.images) == written["test_batch.bin"]).all()
        assert (test.labels.tolist(), test.name) == ([3], "cifar10 test")


def test_cifar100(tmp_path: Path) -> None:
    written = write_cifar100(tmp_path, [[19, 99], [0, 4]])
    fine = cifar100(tmp_path, "train")
    assert (np.asarray(fine.images) == written).all()
    assert [fine.classes[label] for label in fine.labels] == ["fine99", "fine4"]
    coarse = cifar100(tmp_path / "cifar-100-binary", "train", labels="coarse")
    assert [coarse.classes[label] for label in coarse.labels] == ["coarse19", "coarse0"]
    assert open_images(tmp_path).fingerprint() == fine.fingerprint()
    with pytest.raises(DataError, match=r"test\.bin missing"):
        cifar100(tmp_path, "test")
    with pytest.raises(UnknownNameError, match="coarse, fine"):
        cifar100(tmp_path, "train", labels="all")  # type: ignore[arg-type]


def test_damaged_cifar_is_refused(tmp_path: Path) -> None:
    write_cifar10(tmp_path, {"data_batch.bin": [1, 2], "test_batch.bin": [4, 10]})
    folder = tmp_path / "cifar-10-batches-bin"
    with refuses(DataError):
        cifar10(tmp_path, "test")
    (folder / "data_batch.bin").write_bytes((folder / "data_batch.bin").read_bytes()[:-1])
    with refuses(DataError):
        cifar10(tmp_path, "train")
    (folder / "data_batch.bin").rename(folder / "data_batch_2.bin")
    with pytest.raises(DataError, match=r"data_batch_1\.bin, data_batch_3\.bin, .* missing"):
        cifar10(tmp_path, "train")
    (folder / "batches.meta.txt").write_text("one\ntwo\n")
    with refuses(DataError):
        cifar10(tmp_path, "train")
    (folder / "batches.meta.txt").unlink()
    with pytest.raises(DataError, match="No such file"):
        cifar10(tmp_path, "train")
    with pytest.raises(UnknownNameError, match="test, train"):
        cifar10(tmp_path, "validation")


def test_cifar_elsewhere(tmp_path: Path) -> None:
    with refuses(DataError):
        cifar10(tmp_path, "train")
    (tmp_path / "cifar-100-python").mkdir()
    with pytest.raises(DataError, match="never unpickled"):
        cifar100(tmp_path, "train")


# idx


def idx(array: npt.NDArray[np.uint8]) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


IMAGES = RANDOM.integers(0, 256, (4, 5, 3), dtype=np.uint8)
LABELS = np.array([3, 0, 9, 3], np.uint8)


def write_idx(
    folder: Path, images: bytes, labels: bytes, name: str = "train-{}-idx{}-ubyte"
) -> Path:
    for data, kind, dimensions in ((images, "images", 3), (labels, "labels", 1)):
        path = folder / name.format(kind, dimensions)
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return folder


@pytest.mark.parametrize(
    "name", ["{}-{{}}-idx{{}}-ubyte", "{}-{{}}.idx{{}}-ubyte", "{}-{{}}-idx{{}}-ubyte.gz"]
)
def test_idx(tmp_path: Path, name: str) -> None:
    write_idx(tmp_path, idx(IMAGES), idx(LABELS), name.format("train"))
    write_idx(tmp_path, idx(IMAGES[:1]), idx(LABELS[:1]), name.format("t10k"))
    train = idx_images(tmp_path, "train")
    assert (np.asarray(train.images)[..., 0] == IMAGES).all()
    assert (train.labels.tolist(), train.classes) == ([3, 0, 9, 3], tuple("0123456789"))
    assert len(open_images(tmp_path, "test")) == 1


def test_emnist_is_turned_upright_and_has_more_classes(tmp_path: Path) -> None:
    labels = np.array([1, 26, 2, 2], np.uint8)
    write_idx(tmp_path, idx(IMAGES), idx(labels), "emnist-letters-test-{}-idx{}-ubyte.gz")
    test = idx_images(tmp_path, "test")
    assert (np.asarray(test.images)[2, :, :, 0] == IMAGES[2].T).all()
    assert (len(test.classes), test.name) == (27, "emnist-letters test")


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("images", "labels", "said"),
    [
        (idx(IMAGES)[:-1], idx(LABELS), "promises 60 bytes for [4, 5, 3], but there are only 59"),
        (idx(IMAGES) + b"x", idx(LABELS), "promises 60 bytes for [4, 5, 3], but there are more"),
        (idx(IMAGES), idx(LABELS[:3]), "4 images but 3 labels"),
        (idx(LABELS), idx(LABELS), "begins with 00 00 08 01 instead of 00 00 08 03"),
        (b"", idx(LABELS), "begins with nothing"),
        (idx(IMAGES)[:9], idx(LABELS), "not an idx file"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, idx(LABELS), "there are only 0"),
        (idx(IMAGES[:0]), idx(LABELS[:0]), "empty, its header says [0, 5, 3]"),
    ],
)
def test_damaged_idx_is_refused(
    tmp_path: Path, images: bytes, labels: bytes, said: str, ending: str
) -> None:
    write_idx(tmp_path, images, labels, "train-{}-idx{}-ubyte" + ending)
    with pytest.raises(DataError) as caught:
        idx_images(tmp_path, "train")
    assert said in str(caught.value)


def test_idx_files_that_are_missing_cut_or_mixed(tmp_path: Path) -> None:
    write_idx(tmp_path, idx(IMAGES), idx(LABELS), "train-{}-idx{}-ubyte.gz")
    whole = (tmp_path / "train-images-idx3-ubyte.gz").read_bytes()
    for broken in (whole[:-12], whole[:14] + b"\xff" * 20 + whole[34:], b"no gzip at all"):
        (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(broken)
        with refuses(DataError, varies=REASON):
            idx_images(tmp_path, "train")
    with refuses(DataError):
        idx_images(tmp_path, "test")
    (tmp_path / "train-labels-idx1-ubyte.gz").unlink()
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(whole)
    with pytest.raises(DataError, match="labels missing"):
        idx_images(tmp_path, "train")
    write_idx(tmp_path, idx(IMAGES), idx(LABELS), "emnist-mnist-train-{}-idx{}-ubyte")
    with refuses(DataError):
        idx_images(tmp_path, "train")


def test_open_images_does_not_guess_between_datasets(tmp_path: Path) -> None:
    write_cifar10(tmp_path, {"data_batch.bin": [1]})
    write_cifar100(tmp_path, [[0, 0]])
    with refuses(DataError):
        open_images(tmp_path)
