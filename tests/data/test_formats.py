from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from wording import refuses

from fixstar.data.formats import (
    IMAGE_EXTENSIONS,
    find_images,
    image_folder,
    image_list,
    omniglot_folder,
    open_images,
)
from fixstar.data.image_set import ImageSet
from fixstar.errors import DataError, InputError
from fixstar.images import Preprocessing


def picture(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (2, 2), 7).save(path, "PNG")
    return path


def pairs(images: ImageSet, root: Path) -> list[tuple[str, str]]:
    """Each image's path below ``root`` with its class."""
    assert not isinstance(images.images, np.ndarray)
    names = [path.relative_to(root).as_posix() for path in images.images]
    return list(zip(names, (images.classes[label] for label in images.labels), strict=True))


# Class folders


def test_image_folder_is_sorted_nested_and_ignores_the_rest(tmp_path: Path) -> None:
    for name in ("shoes/b.JPG", "shoes/a.png", "bags/2024/05/x.webp", "bags/z.jpeg"):
        picture(tmp_path / name)
    for name in (
        ".git/x.png",
        "bags/.hidden.png",
        "bags/.thumbs/t.png",
        "bags/notes.txt",
        "readme.md",
    ):
        picture(tmp_path / name)
    images = image_folder(tmp_path)
    assert images.classes == ("bags", "shoes")
    assert pairs(images, tmp_path) == [
        ("bags/2024/05/x.webp", "bags"),
        ("bags/z.jpeg", "bags"),
        ("shoes/a.png", "shoes"),
        ("shoes/b.JPG", "shoes"),
    ]
    assert images.name == tmp_path.name
    assert find_images(tmp_path / "shoes") == [tmp_path / "shoes/a.png", tmp_path / "shoes/b.JPG"]


def test_image_folder_follows_a_class_that_is_a_link(tmp_path: Path) -> None:
    picture(tmp_path / "stock/1.png")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/shoes").symlink_to(tmp_path / "stock")
    assert pairs(image_folder(tmp_path / "photos"), tmp_path / "photos") == [
        ("shoes/1.png", "shoes")
    ]
    assert len(open_images(tmp_path / "photos")) == 1


def test_classes_without_images_are_left_out_loudly(tmp_path: Path) -> None:
    picture(tmp_path / "shoes/1.png")
    (tmp_path / "bags").mkdir()
    with pytest.warns(UserWarning, match="no image:\n  bags"):
        images = image_folder(tmp_path)
    assert images.classes == ("shoes",)


def test_image_folder_explains_itself(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        image_folder(tmp_path / "missing")
    with refuses(DataError):
        image_folder(picture(tmp_path / "loose.png"))
    picture(tmp_path / "shoes/1.png")
    with refuses(DataError):
        image_folder(tmp_path)
    (tmp_path / "empty/bags").mkdir(parents=True)
    with refuses(DataError):
        image_folder(tmp_path / "empty")
    with refuses(DataError):
        image_folder(tmp_path / "empty/bags")


def nested(root: Path) -> Path:
    for name in ("2024/shoes/1.png", "2024/bags/1.png", "2025/shoes/2.png", "held-out/hats/3.png"):
        picture(root / name)
    return root


def test_nested_folders_are_asked_about(tmp_path: Path) -> None:
    nested(tmp_path)
    with refuses(DataError, "repeat", "repeat", "repeat") as e:
        open_images(tmp_path)
    assert [step.arguments for step in e.value.next_steps] == [
        {"label": kind} for kind in ("parent", "top", "path")
    ]
    assert open_images(tmp_path, label="top").classes == ("2024", "2025", "held-out")
    assert open_images(tmp_path, label="parent").counts() == {"bags": 1, "hats": 1, "shoes": 2}
    assert open_images(tmp_path, label="path").classes == (
        "2024/bags",
        "2024/shoes",
        "2025/shoes",
        "held-out/hats",
    )
    with pytest.raises(InputError, match="unknown label 'last'"):
        open_images(tmp_path, label="last")
    with refuses(DataError):
        open_images(listing(tmp_path / "list", "path,label\na.png,shoes\n"), label="top")


@pytest.mark.parametrize(
    "names",
    [("a/images/1.png", "b/images/2.png"), ("a/1.png", "a/more/2.png", "b/3.png", "b/other/4.png")],
)
def test_folders_that_leave_no_doubt_are_not_asked_about(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    for name in names:
        picture(tmp_path / name)
    assert open_images(tmp_path).classes == ("a", "b")


def test_links_are_followed_but_never_up(tmp_path: Path) -> None:
    picture(tmp_path / "stock/more/1.png")
    picture(tmp_path / "photos/bags/2.png")
    links = {
        "shoes": "../stock",
        "self": ".",
        "up": "..",
        "bags/again": "..",
        "bags/there": "../../stock",
    }
    for name, target in links.items():
        (tmp_path / "photos" / name).symlink_to(target)
    (tmp_path / "stock/back").symlink_to(tmp_path / "photos/bags")  # and round in a circle
    (tmp_path / "photos/loop").symlink_to("loop")
    (tmp_path / "photos/hats").symlink_to("../not-mounted")
    with pytest.warns(
        UserWarning, match="2 files left out:\n  hats: a link .* not there\n  loop: a link"
    ):
        found = pairs(image_folder(tmp_path / "photos"), tmp_path / "photos")
    assert found == [
        ("bags/2.png", "bags"),
        ("bags/there/more/1.png", "bags"),
        ("shoes/back/2.png", "shoes"),
        ("shoes/more/1.png", "shoes"),
    ]


def test_images_that_are_not_read_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fixstar.data.formats.IMAGE_EXTENSIONS", IMAGE_EXTENSIONS - {".heic", ".heif"}
    )
    picture(tmp_path / "shoes/1.png")
    for name in ("shoes/IMG_7", "shoes/8.heic", "shoes/9.svg", "shoes/notes.txt"):
        picture(tmp_path / name)
    (tmp_path / "shoes/README").write_text("no image")
    with pytest.warns(UserWarning, match="3 files left out") as told:
        image_folder(tmp_path)
    lines = str(told[0].message).splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == [
        "shoes/8.heic",
        "shoes/9.svg",
        "shoes/IMG_7",
    ]
    assert "the extra heic" in lines[0]


def test_a_link_to_nowhere_is_an_image_that_cannot_be_read(tmp_path: Path) -> None:
    picture(tmp_path / "shoes/1.png")
    (tmp_path / "shoes/2.png").symlink_to("gone.png")
    images = image_folder(tmp_path)
    images.fingerprint()
    loaded = images.load(Preprocessing(size=(2, 2), channels=1, mean=(0.5,), std=(0.5,)), "skip")
    assert (len(loaded.images), [bad.reason for bad in loaded.bad]) == (1, ["no such file"])


# Lists


def listing(tmp_path: Path, text: str | bytes) -> Path:
    for name in ("a.png", "b.png", "sub, 1/c.png"):
        picture(tmp_path / name)
    path = tmp_path / "photos.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_image_list(tmp_path: Path) -> None:
    path = listing(
        tmp_path,
        '\ufeffPath,label,extra\r\nb.png, shoes ,1\r\n\r\n"sub, 1/c.png",bäg,2\r\na.png,shoes,3\r\n',
    )
    images = image_list(path)
    assert pairs(images, tmp_path) == [
        ("sub, 1/c.png", "bäg"),
        ("b.png", "shoes"),
        ("a.png", "shoes"),
    ]
    assert (images.classes, images.name) == (("bäg", "shoes"), "photos")


def test_image_list_with_another_root_and_absolute_paths(tmp_path: Path) -> None:
    path = listing(tmp_path, f"label,path\nx,c.png\ny,{tmp_path}/a.png\n")
    assert pairs(image_list(path, tmp_path / "sub, 1"), tmp_path) == [
        ("sub, 1/c.png", "x"),
        ("a.png", "y"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "path,label; got ''"),
        ("a.png,shoes\n", "line 1: the header must have the columns path,label; got 'a.png,shoes'"),
        ("path;label\na.png;shoes\n", "got 'path;label'"),
        ("path,label,path\n", "got 'path,label,path'"),
        ("path,label\n", "no images are listed"),
        (
            "path,label\na.png,x\nb.png\n",
            "1 lines are wrong:\n  line 3: 1 columns, but the header has 2",
        ),
        (
            "path,label\na.png,\n\n,x\n",
            "2 lines are wrong:\n  line 2: the label is empty\n  line 4: the path is empty",
        ),
        ('path,label\na.png,x\n"b.png,x\n', "line 3: unexpected end of data"),
        (b"path,label\n\xff.png,x\n", "not UTF-8"),
        ("path,label\na.png,x\nmissing.png,x\n", "1 of 2 files are missing:\n  line 3: "),
        ("path,label\n" + "no.png,x\n" * 25, "... and 15 more"),
    ],
)
def test_image_list_says_which_line_is_wrong(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(DataError) as caught:
        image_list(listing(tmp_path, text))
    assert said in str(caught.value)


def test_image_list_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        image_list(tmp_path / "none.csv")


# Omniglot


def test_omniglot(tmp_path: Path) -> None:
    for name in (
        "images_background/Greek/character01/b.png",
        "images_background/Greek/character01/a.png",
    ):
        picture(tmp_path / name)
    picture(tmp_path / "images_evaluation/Atlantean/character02/c.png")
    images = omniglot_folder(tmp_path)
    assert images.classes == ("Atlantean/character02", "Greek/character01")
    assert [name for _, name in pairs(images, tmp_path)] == ["Atlantean/character02"] + [
        "Greek/character01"
    ] * 2
    assert open_images(tmp_path).classes == ("Greek/character01",)
    assert open_images(tmp_path, "test").classes == ("Atlantean/character02",)
    assert open_images(tmp_path / "images_background").classes == ("Greek/character01",)
    with refuses(DataError):
        omniglot_folder(tmp_path / "images_background/Greek")


# Recognising


def test_open_images_finds_folders_splits_and_lists(tmp_path: Path) -> None:
    for name in (
        "folders/a/1.png",
        "folders/train/1.png",
        "parts/train/a/1.png",
        "parts/val/a/2.png",
        "parts/docs/x.png",
    ):
        picture(tmp_path / name)
    picture(tmp_path / "lists/photos/1.png")
    (tmp_path / "lists/train.csv").write_text("path,label\nphotos/1.png,a\n")
    assert open_images(tmp_path / "folders").classes == ("a", "train")  # trains are a class here
    assert pairs(open_images(tmp_path / "parts", "val"), tmp_path) == [("parts/val/a/2.png", "a")]
    assert open_images(str(tmp_path / "lists")).classes == ("a",)
    assert open_images(tmp_path / "lists/train.csv").classes == ("a",)
    for place, has in (
        ("parts", "it has train, val"),
        ("lists", "it has train"),
        ("folders", "not divided"),
        ("lists/train.csv", "not divided"),
    ):
        with pytest.raises(DataError, match=f"no split 'test'.* {has}"):
            open_images(tmp_path / place, "test")


def test_open_images_says_what_it_knows_and_saw(tmp_path: Path) -> None:
    (tmp_path / "stuff").mkdir()
    (tmp_path / "stuff/a.parquet").touch()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError) as caught:
        open_images(tmp_path)
    message = str(caught.value)
    for said in (
        "CIFAR-10:",
        "CIFAR-100:",
        "MNIST",
        "Omniglot",
        "train.csv",
        "shoes/0001.jpg",
        "notes.txt",
        "stuff/",
    ):
        assert said in message
    with refuses(DataError):
        open_images(tmp_path / "notes.txt")
    with refuses(DataError):
        open_images(tmp_path / "missing")
