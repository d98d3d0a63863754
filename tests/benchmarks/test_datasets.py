"""Datasets: what a check says about complete, damaged and missing layouts, and how complete ones open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from wording import check_wording, refuses

from fixstar.errors import DataError, UnknownNameError
from fixstar.research.benchmarks import DATASETS, catalogue, dataset
from fixstar.research.benchmarks.datasets import IMAGENET20, TINYIMAGENET20, DatasetFile


def picture(path: Path, colour: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (colour, 0, 0)).save(path)


def empty(path: Path, size: int = 0) -> None:
    """A file of that length without its content on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


def complete(folder: Path, part: DatasetFile) -> None:
    """The least that satisfies a part."""
    place = folder / part.path
    if part.classes is None and not part.images:
        empty(place, part.size or 0)
    elif part.images:
        picture(place / "a.jpg")
    else:
        names = (
            part.classes
            if isinstance(part.classes, tuple)
            else [f"c{i:05}" for i in range(part.classes or 0)]
        )
        for name in names:
            (place / name).mkdir(parents=True)
            (place / name / "a.jpg").touch()


@pytest.mark.parametrize("name", DATASETS)
def test_nothing_there_is_said_part_by_part(name: str, tmp_path: Path) -> None:
    entry = dataset(name)
    missing = entry.check(tmp_path)
    assert [line.partition(":")[0] for line in missing] == [part.path for part in entry.parts]
    assert all("no such" in line for line in missing)
    assert dataset(name).check(tmp_path / "nowhere") == missing


@pytest.mark.parametrize(
    "name", sorted(set(DATASETS) - {"casia-webface"})
)  # 10,575 folders: once is enough, below
def test_a_complete_layout_lacks_nothing_and_each_part_counts(name: str, tmp_path: Path) -> None:
    entry = dataset(name)
    for i, part in enumerate(entry.parts):
        assert len(entry.check(tmp_path)) == len(entry.parts) - i
        complete(tmp_path, part)
    assert entry.check(tmp_path) == []


@pytest.mark.parametrize("name", DATASETS)
def test_every_dataset_says_where_from_and_how(name: str) -> None:
    entry = dataset(name)
    assert entry.url.startswith(("http://", "https://"))
    text = entry.instructions()
    assert entry.page in text
    assert entry.licence in text
    for part in entry.parts:  # the layout names every top folder that is checked
        assert part.path.split("/")[0] in entry.layout


def test_every_dataset_of_the_catalogue_is_known_and_the_unused_ones_are_few() -> None:
    bases = catalogue().values()
    variants = [
        one.variant({key: value})
        for one in bases
        for key, of in one.ablations.items()
        for value in of
    ]
    used = {source.name for entry in (*bases, *variants) for source in entry.datasets}
    assert used <= DATASETS.keys()
    assert DATASETS.keys() - used == {"omniglot"}
    with pytest.raises(UnknownNameError, match="did you mean 'cifar100'"):
        dataset("cifar-100")


def test_a_file_of_the_wrong_length_is_noticed(tmp_path: Path) -> None:
    for part in dataset("cifar100").parts:
        complete(tmp_path, part)
    empty(tmp_path / "cifar-100-binary" / "train.bin", 1000)
    (line,) = dataset("cifar100").check(tmp_path)
    assert (
        line == "cifar-100-binary/train.bin: 1,000 bytes, expected 153,700,000; copy the file again"
    )


def test_class_folders_are_counted_with_images_only(tmp_path: Path) -> None:
    part = DatasetFile("birds", classes=3)
    for name in ("a", "b", "c"):
        (tmp_path / "birds" / name / "deep").mkdir(parents=True)
    (tmp_path / "birds" / "a" / "deep" / "1.JPEG").touch()
    (tmp_path / "birds" / "b" / "notes.txt").touch()
    (tmp_path / "birds" / "c" / ".hidden.jpg").touch()
    assert part.missing(tmp_path) == ["birds: 1 class folders with images, expected 3"]
    assert DatasetFile("birds", images=True).missing(tmp_path) == []
    assert DatasetFile("birds/b", images=True).missing(tmp_path) == ["birds/b: no images inside"]


def test_missing_classes_are_named_but_not_all_of_them(tmp_path: Path) -> None:
    part = DatasetFile("imagenet/train", classes=IMAGENET20)
    picture(tmp_path / "imagenet" / "train" / IMAGENET20[0] / "a.jpg")
    (line,) = part.missing(tmp_path)
    assert line.startswith(f"imagenet/train: 19 of 20 classes missing: {IMAGENET20[1]}, ")
    assert line.endswith(", ...")


def test_one_whole_batch_serves_instead_of_five(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    for name, size in (
        ("data_batch.bin", 153_650_000),
        ("test_batch.bin", 30_730_000),
        ("batches.meta.txt", 9),
    ):
        empty(folder / name, size)
    assert dataset("cifar10").check(tmp_path) == []


def test_the_evaluation_classes_are_twenty_different_ones() -> None:
    assert len(set(TINYIMAGENET20)) == len(set(IMAGENET20)) == 20
    assert not set(TINYIMAGENET20) & set(IMAGENET20)
    assert all(
        len(name) == 9 and name[0] == "n" and name[1:].isdigit()
        for name in (*TINYIMAGENET20, *IMAGENET20)
    )


# Opening


def test_opening_what_is_not_complete_says_what_to_do(tmp_path: Path) -> None:
    with refuses(DataError) as error:
        dataset("cifar100").open(tmp_path, "train")
    check_wording(str(error.value))


def test_cub_opens_in_its_official_split(tmp_path: Path) -> None:
    root = tmp_path / "CUB_200_2011"
    lines = {"images.txt": [], "train_test_split.txt": []}  # type: dict[str, list[str]]
    for number in range(1, 201):
        for copy in (0, 1):
            name = f"{number:03}.Bird/{copy}.jpg"
            (root / "images" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "images" / name).touch()
            identity = 2 * number + copy
            lines["images.txt"].append(f"{identity} {name}")
            lines["train_test_split.txt"].append(f"{identity} {1 - copy}")
    for file, content in lines.items():
        (root / file).write_text("\n".join(content) + "\n")
    queries, gallery = (
        dataset("cub20").open(tmp_path, "train"),
        dataset("cub20").open(tmp_path, "test"),
    )
    assert queries.classes == gallery.classes == tuple(f"{i}.Bird" for i in range(181, 201))
    assert [path.name for path in queries.images] == ["0.jpg"] * 20
    assert [path.name for path in gallery.images] == ["1.jpg"] * 20
    training = dataset("cub180").open(tmp_path, "train")
    assert len(training) == len(training.classes) == 180
    assert training.classes[0] == "001.Bird"


def test_every_tenth_class_of_tiny_imagenet_is_held_out(tmp_path: Path) -> None:
    for number in range(200):
        images = tmp_path / "tiny-imagenet-200" / "train" / f"n{number:08}" / "images"
        images.mkdir(parents=True)
        (images / "0.JPEG").touch()
    learnt, held_out = (
        dataset(name).open(tmp_path, "train") for name in ("tinyimagenet180", "tinyimagenet-tenth")
    )
    assert held_out.classes == tuple(f"n{number:08}" for number in range(9, 200, 10))
    assert (len(learnt), len(learnt.classes)) == (180, 180)
    assert not set(learnt.classes) & set(held_out.classes)
    with refuses(DataError):
        dataset("tinyimagenet-tenth").open(tmp_path, "test")


def test_imagenet32_opens_from_its_batches(tmp_path: Path) -> None:
    folder = tmp_path / "imagenet32"
    folder.mkdir()
    for i in range(1, 11):
        data = np.full((2, 3072), i, np.uint8)
        data[:, 0] = 200  # red, row 0, column 0
        np.savez(folder / f"train_data_batch_{i}.npz", data=data, labels=np.array([i, 1000]))
    np.savez(folder / "val_data.npz", data=np.zeros((1, 3072), np.uint8), labels=np.array([1]))
    images = dataset("imagenet32").open(tmp_path, "train")
    pixels = np.asarray(images.images)
    assert pixels.shape == (20, 32, 32, 3)
    assert pixels[2, 0, 0].tolist() == [200, 2, 2]
    assert [images.classes[label] for label in images.labels[:4]] == ["1", "1000", "2", "1000"]
    assert len(dataset("imagenet32").open(tmp_path, "test")) == 1
    np.savez(folder / "val_data.npz", data=np.zeros((1, 3072), np.uint8), labels=np.array([0]))
    with pytest.raises(DataError, match="labels 1 to 1000"):
        dataset("imagenet32").open(tmp_path, "test")


def test_subsets_of_imagenet_take_their_classes_from_both_splits(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in (*TINYIMAGENET20, "n00000001"):
            (tmp_path / "imagenet" / split / name).mkdir(parents=True)
            (tmp_path / "imagenet" / split / name / f"{split}.JPEG").touch()
    for split, file in (("train", "train.JPEG"), ("test", "val.JPEG")):
        images = dataset("tinyimagenet20").open(tmp_path, split)
        assert images.classes == TINYIMAGENET20
        assert {Path(str(path)).name for path in images.images} == {file}


def test_imagenet900_is_what_the_list_leaves(tmp_path: Path) -> None:
    names = [f"n{i:08}" for i in range(1000)]
    for split in ("train", "val"):
        for name in names:
            (tmp_path / "imagenet" / split / name).mkdir(parents=True)
            (tmp_path / "imagenet" / split / name / "a.JPEG").touch()
    (tmp_path / "imagenet" / "imagenet100.txt").write_text("\n".join(names[::10]))
    assert dataset("imagenet100").open(tmp_path, "test").classes == tuple(names[::10])
    rest = dataset("imagenet900").open(tmp_path, "train").classes
    assert len(rest) == 900
    assert not set(rest) & set(names[::10])


def test_training_folders_have_no_test_split(tmp_path: Path) -> None:
    for i in range(200):
        (tmp_path / "tiny-imagenet-200" / "train" / f"n{i:08}" / "images").mkdir(parents=True)
        (tmp_path / "tiny-imagenet-200" / "train" / f"n{i:08}" / "images" / "a.JPEG").touch()
    assert len(dataset("tinyimagenet200").open(tmp_path, "train").classes) == 200
    with refuses(DataError):
        dataset("tinyimagenet200").open(tmp_path, "test")


def test_omniglot_opens_by_its_two_parts(tmp_path: Path) -> None:
    for part, alphabets in (("images_background", 30), ("images_evaluation", 20)):
        for i in range(alphabets):
            picture(tmp_path / "omniglot" / part / f"{part}{i:02}" / "character01" / "a.png")
    assert len(dataset("omniglot").open(tmp_path, "train").classes) == 30
    assert len(dataset("omniglot").open(tmp_path, "test").classes) == 20
