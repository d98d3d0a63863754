"""The datasets of the papers: where to get them, the expected layout of the data folder, and what is missing there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fixstar.data import ImageSet
from fixstar.data.formats import (
    IMAGE_EXTENSIONS,
    OMNIGLOT_PARTS,
    check_split,
    cifar10,
    cifar100,
    class_folders,
    idx_images,
    image_folder,
    omniglot_folder,
)
from fixstar.errors import DataError, UnknownNameError

Loader = Callable[[Path, str], ImageSet]

_SHOWN = 5  # names that a message lists


@dataclass(frozen=True)
class Part:
    """A file or folder that must be there, relative to the data folder.

    ``size`` is a file's length in bytes. ``classes``: a folder of class folders, how many or which. ``images``: a
    folder with images somewhere inside. ``instead`` is a path that will also do.
    """

    path: str
    size: int | None = None
    classes: int | tuple[str, ...] | None = None
    images: bool = False
    instead: str = ""

    def missing(self, folder: Path) -> list[str]:
        """What is missing or wrong, in readable lines."""
        place = folder / self.path
        if self.instead and (folder / self.instead).exists():
            return []
        if self.classes is not None or self.images:
            return self._missing_images(place) if place.is_dir() else [f"{self.path}: no such folder"]
        if not place.is_file():
            return [f"{self.path}: no such file"]
        size = place.stat().st_size
        if self.size is not None and size != self.size:
            return [f"{self.path}: {size:,} bytes, expected {self.size:,}; copy the file again"]
        return []

    def _missing_images(self, place: Path) -> list[str]:
        if self.classes is None:
            return [] if _has_image(place) else [f"{self.path}: no images inside"]
        if isinstance(self.classes, int):
            found = sum(_has_image(child) for child in class_folders(place))
            wrong = found != self.classes
            return [f"{self.path}: {found:,} class folders with images, expected {self.classes:,}"] if wrong else []
        lacking = [name for name in self.classes if not _has_image(place / name)]
        more = ", ..." if len(lacking) > _SHOWN else ""
        shown = ", ".join(lacking[:_SHOWN]) + more
        return [f"{self.path}: {len(lacking)} of {len(self.classes)} classes missing: {shown}"] if lacking else []


@dataclass(frozen=True)
class Dataset:
    """A dataset that the user downloads. ``layout`` describes the data folder; ``load`` is None without a loader."""

    name: str
    title: str
    about: str
    page: str
    url: str
    licence: str
    layout: str
    parts: tuple[Part, ...]
    load: Loader | None = None

    def check(self, folder: str | Path) -> list[str]:
        """What is missing in the data folder."""
        return [line for part in self.parts for line in part.missing(Path(folder))]

    def instructions(self) -> str:
        """Where to get it, and its layout in the data folder."""
        return f"{self.title}: {self.page}, {self.url} ({self.licence}). Expected layout:\n  {self.layout}"

    def require(self, folder: str | Path) -> None:
        """Raise if something is missing in the data folder, and say where to get it."""
        if missing := self.check(folder):
            lines = "\n  ".join(missing)
            raise DataError(f"{folder}: {self.title} is not complete:\n  {lines}\n{self.instructions()}")

    def open(self, folder: str | Path, split: str) -> ImageSet:
        """The labelled images of a split, "train" or "test", after a check of the layout."""
        if self.load is None:
            raise DataError(
                f"fixstar has no loader for {self.title}; convert it to class folders or a CSV with the columns "
                "path,label and use fixstar.data.open_images"
            )
        self.require(folder)
        return self.load(Path(folder), split)


def _has_image(folder: Path) -> bool:
    """Whether there is an image anywhere in a folder."""
    return any(path.suffix.lower() in IMAGE_EXTENSIONS and not path.name.startswith(".") for path in folder.rglob("*"))


def split_folders(train: str, test: str) -> Loader:
    """A folder of class folders for each split."""

    def load(folder: Path, split: str) -> ImageSet:
        check_split(split)
        return image_folder(folder / (train if split == "train" else test))

    return load


def train_folder(path: str) -> Loader:
    """One folder of class folders, all for training."""

    def load(folder: Path, split: str) -> ImageSet:
        if split != "train":
            raise DataError(f"{folder / path}: no split {split!r}, all its images are for training")
        return image_folder(folder / path)

    return load


_imagenet = split_folders("imagenet/train", "imagenet/val")


def imagenet_classes(names: Sequence[str]) -> Loader:
    """Some of ImageNet's classes."""
    return lambda folder, split: _imagenet(folder, split).of_classes(names)


def imagenet_list(listed: bool) -> Loader:
    """The classes that imagenet/imagenet100.txt lists, or all the others."""

    def load(folder: Path, split: str) -> ImageSet:
        images = _imagenet(folder, split)
        lines = (folder / "imagenet" / "imagenet100.txt").read_text(encoding="utf-8").split()
        return images.of_classes(lines if listed else [name for name in images.classes if name not in set(lines)])

    return load


def imagenet32(folder: Path, split: str) -> ImageSet:
    """ImageNet at 32x32 in its NumPy batches; classes are "1" to "1000", as its labels are."""
    check_split(split)
    place = folder / "imagenet32"
    files = [f"train_data_batch_{i}.npz" for i in range(1, 11)] if split == "train" else ["val_data.npz"]
    images, labels = [], []
    for name in files:
        with np.load(place / name, allow_pickle=False) as batch:
            planes, numbers = batch["data"], batch["labels"]
        if planes.dtype != np.uint8 or planes.shape[1:] != (3072,) or numbers.min() < 1 or numbers.max() > 1000:
            raise DataError(f"{place / name}: not ImageNet32: expected uint8 data [N, 3072] and labels 1 to 1000")
        images.append(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels.append(numbers.astype(np.int64) - 1)
    classes = tuple(str(i) for i in range(1, 1001))
    return ImageSet(np.concatenate(images), np.concatenate(labels), classes, f"imagenet32 {split}")


def cub(first: int, last: int) -> Loader:
    """CUB's classes ``first`` to ``last``, counted from 1, in its official split into train and test."""

    def load(folder: Path, split: str) -> ImageSet:
        check_split(split)
        root = folder / "CUB_200_2011"
        images = image_folder(root / "images")
        names = dict(line.split() for line in (root / "images.txt").read_text().splitlines())
        training = dict(line.split() for line in (root / "train_test_split.txt").read_text().splitlines())
        wanted = {root / "images" / name for i, name in names.items() if (training[i] == "1") == (split == "train")}
        assert isinstance(images.images, tuple), "image_folder names files"
        chosen = images.take(np.array([path in wanted for path in images.images]))
        return chosen.of_classes(images.classes[first - 1 : last])

    return load


def mnist(folder: Path, split: str) -> ImageSet:
    """MNIST's idx files."""
    return idx_images(folder / "mnist", split)


def omniglot(folder: Path, split: str) -> ImageSet:
    """Omniglot's background characters as "train", those of its evaluation set as "test"."""
    check_split(split)
    return omniglot_folder(folder / "omniglot" / OMNIGLOT_PARTS[split])


TINYIMAGENET20 = (  # HOC, appendix C
    *("n04116512", "n03447721", "n11939491", "n02951585", "n02437616", "n03538406", "n02095889", "n02169497"),
    *("n03127925", "n01532829", "n03394916", "n02727426", "n09835506", "n02105641", "n03598930", "n04228054"),
    *("n03743016", "n01582220", "n04485082", "n03483316"),
)
IMAGENET20 = (  # CL2R, section 7.1
    *("n02276258", "n01728572", "n03814906", "n02817516", "n03769881", "n03220513", "n04442312", "n04252225"),
    *("n13037406", "n04266014", "n03929855", "n02804414", "n01873310", "n03532672", "n01818515", "n03916031"),
    *("n03345487", "n02114855", "n04589890", "n03776460"),
)

_CIFAR = (
    "CIFAR page of Alex Krizhevsky",
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    "none stated; cite the report",
)
_IMAGENET = (
    "ImageNet",
    "https://www.image-net.org/download.php",
    "after registration, for non-commercial research and education",
)
_IMAGENET_FOLDERS = "imagenet/train/n01440764/*.JPEG, imagenet/val/n01440764/*.JPEG: one folder per class in both"
_CUB = ("Caltech Vision Lab", "https://www.vision.caltech.edu/datasets/cub_200_2011/", "non-commercial research")
_CUB_LAYOUT = "CUB_200_2011/images/001.Black_footed_Albatross/*.jpg, CUB_200_2011/images.txt, train_test_split.txt"
_CUB_PARTS = (
    Part("CUB_200_2011/images", classes=200),
    Part("CUB_200_2011/images.txt"),
    Part("CUB_200_2011/train_test_split.txt"),
)
_BATCHES = [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)]

_ALL = [
    Dataset(
        "cifar100",
        "CIFAR-100",
        "100 classes, 500 training images each, 32x32",
        *_CIFAR,
        "cifar-100-binary/train.bin, fine_label_names.txt: the binary version, unpacked",
        (Part("cifar-100-binary/train.bin", 50_000 * 3074), Part("cifar-100-binary/fine_label_names.txt")),
        cifar100,
    ),
    Dataset(
        "cifar10",
        "CIFAR-10",
        "10 classes that CIFAR-100 does not have, 50,000 training and 10,000 test images, 32x32",
        *_CIFAR,
        "cifar-10-batches-bin/data_batch_1.bin to data_batch_5.bin, test_batch.bin, batches.meta.txt: the binary "
        "version, unpacked",
        (
            *(Part(path, 10_000 * 3073, instead="cifar-10-batches-bin/data_batch.bin") for path in _BATCHES),
            Part("cifar-10-batches-bin/test_batch.bin", 10_000 * 3073),
            Part("cifar-10-batches-bin/batches.meta.txt"),
        ),
        cifar10,
    ),
    Dataset(
        "imagenet32",
        "ImageNet32",
        "ImageNet's 1,000 classes downsampled to 32x32",
        *_IMAGENET,
        "imagenet32/train_data_batch_1.npz to train_data_batch_10.npz, val_data.npz: the npz version",
        (*(Part(f"imagenet32/train_data_batch_{i}.npz") for i in range(1, 11)), Part("imagenet32/val_data.npz")),
        imagenet32,
    ),
    Dataset(
        "tinyimagenet200",
        "Tiny-ImageNet-200",
        "200 classes, 500 training images each, 64x64",
        "Stanford CS231n",
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        "as ImageNet",
        "tiny-imagenet-200/train/n01443537/images/*.JPEG: the archive, unpacked",
        (Part("tiny-imagenet-200/train", classes=200),),
        train_folder("tiny-imagenet-200/train"),
    ),
    Dataset(
        "tinyimagenet20",
        "TinyImageNet20",
        "20 ImageNet classes outside Tiny-ImageNet-200 (HOC, appendix C): training images as queries, validation "
        "images as gallery",
        *_IMAGENET,
        _IMAGENET_FOLDERS,
        (Part("imagenet/train", classes=TINYIMAGENET20), Part("imagenet/val", classes=TINYIMAGENET20)),
        imagenet_classes(TINYIMAGENET20),
    ),
    Dataset(
        "imagenet20",
        "ImageNet20",
        "20 ImageNet classes outside Tiny-ImageNet-200 (CL2R, section 7.1)",
        *_IMAGENET,
        _IMAGENET_FOLDERS,
        (Part("imagenet/train", classes=IMAGENET20), Part("imagenet/val", classes=IMAGENET20)),
        imagenet_classes(IMAGENET20),
    ),
    *(
        Dataset(
            name,
            title,
            f"{about} 100 classes of ImageNet's subset for class-incremental learning, which CL2R does not list",
            *_IMAGENET,
            f"{_IMAGENET_FOLDERS}; imagenet/imagenet100.txt: the 100 classes, one per line",
            (
                Part("imagenet/train", classes=1000),
                Part("imagenet/val", classes=1000),
                Part("imagenet/imagenet100.txt"),
            ),
            imagenet_list(listed),
        )
        for name, title, about, listed in (
            ("imagenet100", "ImageNet100", "the", True),
            ("imagenet900", "ImageNet900", "all but the", False),
        )
    ),
    Dataset(
        "cub180",
        "CUB180",
        "the first 180 bird species of CUB-200-2011",
        *_CUB,
        _CUB_LAYOUT,
        _CUB_PARTS,
        cub(1, 180),
    ),
    Dataset(
        "cub20",
        "CUB20",
        "the last 20 bird species of CUB-200-2011",
        *_CUB,
        _CUB_LAYOUT,
        _CUB_PARTS,
        cub(181, 200),
    ),
    Dataset(
        "casia-webface",
        "CASIA-WebFace",
        "494,414 faces of 10,575 people",
        "Center for Biometrics and Security Research",
        "http://www.cbsr.ia.ac.cn/english/CASIA-WebFace-Database.html",
        "research only, on request; its authors no longer hand it out",
        "casia-webface/0000045/*.jpg: one folder per person, aligned to 112x112",
        (Part("casia-webface", classes=10_575),),
        train_folder("casia-webface"),
    ),
    Dataset(
        "imdbface",
        "IMDb-Face",
        "1.7 million faces of 59,000 people",
        "IMDb-Face repository",
        "https://github.com/fwang91/IMDb-Face",
        "links only, for non-commercial research; many no longer answer, so the number of people is not checked",
        "imdb-face/nm0000001/*.jpg: one folder per person, aligned to 112x112",
        (Part("imdb-face", images=True),),
        train_folder("imdb-face"),
    ),
    Dataset(
        "lfw",
        "Labeled Faces in the Wild",
        "13,233 faces of 5,749 people and 6,000 pairs",
        "LFW, University of Massachusetts",
        "http://vis-www.cs.umass.edu/lfw/",
        "for research",
        "lfw/images/Aaron_Eckhart/*.jpg, lfw/pairs.txt: the aligned images and the official pairs",
        (Part("lfw/images", classes=5_749), Part("lfw/pairs.txt")),
    ),
    Dataset(
        "ijbc",
        "IJB-C",
        "about 130,000 images and frames of 3,531 people, in templates",
        "NIST Face Challenges",
        "https://www.nist.gov/programs-projects/face-challenges",
        "on request, under NIST's terms",
        "IJBC/loose_crop/*.jpg, IJBC/meta/ijbc_face_tid_mid.txt, ijbc_template_pair_label.txt, "
        "ijbc_name_5pts_score.txt, ijbc_1N_gallery_G1.csv, ijbc_1N_gallery_G2.csv, ijbc_1N_probe_mixed.csv",
        (
            Part("IJBC/loose_crop", images=True),
            *(
                Part(f"IJBC/meta/ijbc_{name}")
                for name in (
                    *("face_tid_mid.txt", "template_pair_label.txt", "name_5pts_score.txt"),
                    *("1N_gallery_G1.csv", "1N_gallery_G2.csv", "1N_probe_mixed.csv"),
                )
            ),
        ),
    ),
    Dataset(
        "market1501",
        "Market-1501",
        "32,668 images of 1,501 people by six cameras: 751 people to train, 750 to test",
        "Liang Zheng's person re-identification page",
        "https://zheng-lab.cecs.anu.edu.au/Project/project_reid.html",
        "for academic research",
        "Market-1501-v15.09.15/bounding_box_train/*.jpg, bounding_box_test/*.jpg, query/*.jpg",
        tuple(
            Part(f"Market-1501-v15.09.15/{name}", images=True)
            for name in ("bounding_box_train", "bounding_box_test", "query")
        ),
    ),
    Dataset(
        "gldv2",
        "Google Landmarks Dataset v2, clean",
        "1,580,470 images of 81,313 landmarks to train, 761,757 in the index",
        "Common Visual Data Foundation",
        "https://github.com/cvdfoundation/google-landmark",
        "labels CC BY 4.0; each image under its own Creative Commons licence",
        "gldv2/train/0/0/0/*.jpg, gldv2/index/..., gldv2/test/..., gldv2/train_clean.csv, retrieval_solution_v2.1.csv",
        (
            *(Part(f"gldv2/{name}", images=True) for name in ("train", "index", "test")),
            Part("gldv2/train_clean.csv"),
            Part("gldv2/retrieval_solution_v2.1.csv"),
        ),
    ),
    Dataset(
        "met",
        "The Met dataset, mini version",
        "38,307 photographs of 33,501 exhibits, and visitors' photographs as queries",
        "The Met dataset",
        "http://cmp.felk.cvut.cz/met/",
        "exhibits CC0; see the page for the queries",
        "met/MET/<exhibit>/*.jpg, met/test_met/*.jpg, met/ground_truth/mini_MET_database.json, testset.json",
        (
            Part("met/MET", images=True),
            Part("met/test_met", images=True),
            Part("met/ground_truth/mini_MET_database.json"),
            Part("met/ground_truth/testset.json"),
        ),
    ),
    Dataset(
        "celeba",
        "CelebA",
        "202,599 faces of 10,177 people",
        "Multimedia Laboratory, CUHK",
        "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
        "non-commercial research",
        "celeba/img_align_celeba/*.jpg, celeba/identity_CelebA.txt, list_eval_partition.txt",
        (
            Part("celeba/img_align_celeba", images=True),
            Part("celeba/identity_CelebA.txt"),
            Part("celeba/list_eval_partition.txt"),
        ),
    ),
    Dataset(
        "mnist",
        "MNIST",
        "60,000 training and 10,000 test digits, 28x28",
        "MNIST page of Yann LeCun",
        "http://yann.lecun.com/exdb/mnist/",
        "none stated on the page",
        "mnist/train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-..., t10k-labels-...: as they come",
        tuple(
            Part(f"mnist/{stem}-ubyte.gz", instead=f"mnist/{stem}-ubyte")
            for stem in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
        ),
        mnist,
    ),
    Dataset(
        "omniglot",
        "Omniglot",
        "1,623 characters of 50 alphabets, drawn by 20 people each",
        "Omniglot repository",
        "https://github.com/brendenlake/omniglot",
        "MIT",
        "omniglot/images_background/Greek/character01/*.png, omniglot/images_evaluation/...",
        (Part("omniglot/images_background", classes=30), Part("omniglot/images_evaluation", classes=20)),
        omniglot,
    ),
]

DATASETS: dict[str, Dataset] = {entry.name: entry for entry in _ALL}
"""The datasets by name."""


def dataset(name: str) -> Dataset:
    """The dataset of that name.

    >>> dataset("cifar100").url
    'https://www.cs.toronto.edu/~kriz/cifar.html'
    """
    if name not in DATASETS:
        raise UnknownNameError("dataset", name, DATASETS)
    return DATASETS[name]
