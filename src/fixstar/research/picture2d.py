"""Two upgrades seen in the plane (CoReS, figures 3 and 10): IFT, BCT and CoReS with two-dimensional features.

Three versions know five, six and seven digits. Fine-tuning rotates the features of digits it already knows. BCT holds
them near the old classifier's prototypes. CoReS learns each digit in its direction of a fixed polygon (figure 4).
The digits are rendered from fonts, light on black like MNIST's, or read from MNIST's own files.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fixstar.data import Augmentation, ImageSet, from_arrays, open_images
from fixstar.data.glyphs import glyph_pixels
from fixstar.data.streams import TaskStream, class_stream
from fixstar.errors import InputError, UnknownNameError, plural
from fixstar.evaluation.pictures import DPI, GREY, INK
from fixstar.methods import Method, create_method
from fixstar.models import Encoder
from fixstar.training import Recipe, Settings, TrainingContext, train_version

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# digits of v1 and of v3; corners of the polygon
FIRST = 5
CLASSES = 7
CAPACITY = 10
TEST = 80  # test images per class
# Sans-serif digits of Unicode's mathematical alphabets: only two fonts have them, so prints vary about as MNIST's do.
DIGITS = {str(digit): chr(0x1D7E2 + digit) for digit in range(1, CLASSES + 1)}

# Options for a feature that can be drawn, and the learning rate that suits the network.
BACKBONES: dict[str, tuple[dict[str, Any], float]] = {
    "lenet++": ({"feature_dim": 2}, 0.01),
    "tiny": ({"feature_dim": 2, "in_channels": 1, "width": 12, "normalised": False}, 0.05),
}

# Paul Tol's "muted" scheme, ordered so that consecutive classes differ most; for any colour vision.
COLOURS = (
    "#332288",
    "#cc6677",
    "#117733",
    "#88ccee",
    "#ddaa33",
    "#882255",
    "#44aa99",
    "#997733",
    "#aa4499",
    "#5a6877",
)
LIGHT = ("#88ccee", "#ddaa33", "#44aa99")  # dark text is readable on these
# radius of the rim of a panel, and where the panel ends
RIM = 1.0
EDGE = 1.24
# radius of the numbers, height of the words below
LABEL = 1.12
CAPTION = -1.42
PANEL = 2.9  # inches
KEY = """Dots: test images.  Spokes: prototypes, dashed where reserved for new classes.
Numbers at the rim: where each class points.  Hollow rings: where it pointed in the version before."""

Say = Callable[[str], object]


@dataclass(frozen=True)
class PictureResult:
    """By method: how far known classes turned at each upgrade (degrees), and each version's accuracy (fractions)."""

    turns: dict[str, list[float]]
    accuracy: dict[str, list[float]]
    picture: str


def run_picture2d(
    out: Path,
    data: Path | None = None,
    backbone: str = "tiny",
    per_class: int = 300,
    epochs: int = 8,
    seed: int = 0,
    device: str = "auto",
    progress: bool = True,
    say: Say = print,
) -> PictureResult:
    """Train three versions by each method and draw their test features into ``out`` (PNG, SVG or PDF)."""
    settings = _settings(backbone, epochs, seed, device)
    say("Reading digits ..." if data else "Drawing digits ...")
    train, test = _images(data, per_class)
    stream = class_stream(train, FIRST, 1)
    planes: dict[str, list[Plane]] = {}
    firsts: dict[str, Encoder] = {}
    for name, method in _methods().items():
        say(f"{name}: {method.summary}")
        planes[name] = [
            _plane(one, test) for one in _versions(stream, method, settings, firsts, progress)
        ]
    sizes = [len(stream.seen(task.number).classes) for task in stream]
    rows = [f"v{number}\n{size} classes" for number, size in enumerate(sizes, start=1)]
    feature_plot(
        planes,
        test.classes,
        rows,
        out,
        "Two upgrades seen in the plane: which method keeps known classes in place?",
    )
    return PictureResult(
        {
            name: [_mean_turn(*pair) for pair in itertools.pairwise(row)]
            for name, row in planes.items()
        },
        {name: [_accuracy(plane) for plane in row] for name, row in planes.items()},
        str(out),
    )


def _methods() -> dict[str, Method]:
    return {
        "IFT: fine-tuned": create_method("ift"),
        "BCT: old classifier as judge": create_method("bct"),
        "CoReS: fixed polygon": create_method("cores", polytope="polygon"),
    }


def _settings(backbone: str, epochs: int, seed: int, device: str) -> Settings:
    if backbone not in BACKBONES:
        raise UnknownNameError("backbone with a feature of two dimensions", backbone, BACKBONES)
    options, rate = BACKBONES[backbone]
    milestones = (round(0.6 * epochs), round(0.85 * epochs))
    return Settings(
        backbone=backbone,
        backbone_options=options,
        capacity=CAPACITY,
        recipe=Recipe(
            epochs=epochs,
            learning_rate=rate,
            milestones=milestones,
            weight_decay=5e-4,
            batch_size=64,
        ),
        augmentation=Augmentation(crop_padding=1, flip=False),
        seed=seed,
        device=device,
    )


def _images(data: Path | None, per_class: int) -> tuple[ImageSet, ImageSet]:
    if per_class < 1:
        raise InputError(f"need at least one image per class, got {per_class}")
    if data is None:
        return _drawn(per_class, seed=1), _drawn(TEST, seed=2)
    train = open_images(data, "train")
    test = open_images(data, "test")
    if len(train.classes) < CLASSES:
        raise InputError(
            f"{data} has {plural(len(train.classes), 'class')}; the picture needs {CLASSES}"
        )
    classes = train.classes[:CLASSES]
    return _first_of_each(train, classes, per_class), _first_of_each(test, classes, TEST)


def _first_of_each(images: ImageSet, classes: tuple[str, ...], count: int) -> ImageSet:
    chosen = images.of_classes(classes)
    return chosen.take(
        np.concatenate([np.flatnonzero(chosen.labels == c)[:count] for c in range(len(classes))])
    )


def _drawn(per_class: int, seed: int) -> ImageSet:
    pixels, labels = glyph_pixels(list(DIGITS.values()), per_class, size=28, seed=seed)
    return from_arrays(_as_mnist(pixels), labels, list(DIGITS), "digits")


def _as_mnist(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Dark ink on uneven paper [N, H, W, 1] as light ink on black; most of the paper's shade and grain is gone."""
    rows = (pixels + np.roll(pixels, 1, axis=1).astype(np.float64)) / 2
    smooth = (rows + np.roll(rows, 1, axis=2)) / 2
    paper, ink = np.percentile(smooth, (75, 3), axis=(1, 2), keepdims=True)
    depth = (paper - smooth) / np.maximum(paper - ink, 1)
    light: NDArray[np.uint8] = (255 * np.clip((depth - 0.3) / 0.5, 0, 1)).astype(np.uint8)
    return light


def _versions(
    stream: TaskStream,
    method: Method,
    settings: Settings,
    firsts: dict[str, Encoder],
    progress: bool,
) -> list[Encoder]:
    """The versions of one method. First versions use plain cross-entropy, so methods of one classifier share it."""
    encoders: list[Encoder] = []
    for task in stream:
        if not encoders and method.classifier in firsts:
            encoders.append(firsts[method.classifier])
            continue
        images = stream.seen(task.number)
        previous = encoders[-1] if encoders else None
        version = train_version(
            task.number, images, TrainingContext(previous), method, settings, progress=progress
        )
        encoders.append(version.encoder)
    firsts.setdefault(method.classifier, encoders[0])
    return encoders


def _plane(encoder: Encoder, test: ImageSet) -> Plane:
    """The test features of the classes that the version knows, with its prototypes; labels are slots."""
    known = test.of_classes(encoder.slots.classes)
    with torch.no_grad():
        logits: torch.Tensor = encoder.classifier(
            torch.eye(2, device=encoder.device)
        )  # of unit vectors: prototypes
    slots = np.array(encoder.slots.of(known.classes))
    return Plane(
        encoder.encode(known.images, form="raw"), slots[known.labels], logits.T.cpu().numpy()
    )


def _mean_turn(before: Plane, after: Plane) -> float:
    return float(np.abs(list(class_turns(before, after).values())).mean())


def _accuracy(plane: Plane) -> float:
    """How often the largest logit is the right one, among classes known so far."""
    logits = plane.features @ plane.prototypes[: int(plane.labels.max()) + 1].T
    return float((logits.argmax(axis=1) == plane.labels).mean())


@dataclass(frozen=True, eq=False)
class Plane:
    """One version: features [N, 2], classes [N], and prototypes [P, 2], those beyond the classes reserved."""

    features: NDArray[np.floating]
    labels: NDArray[np.integer]
    prototypes: NDArray[np.floating]

    def __post_init__(self) -> None:
        shapes = self.features.shape, self.labels.shape, self.prototypes.shape
        if (
            shapes[0] != (len(self.labels), 2)
            or self.prototypes.shape[1:] != (2,)
            or not len(self.labels)
        ):
            raise InputError(
                f"a plane needs features [N, 2], labels [N] and prototypes [P, 2], got {shapes}"
            )
        if not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.prototypes):
            raise InputError(
                f"labels are between 0 and {len(self.prototypes) - 1}, the rows of the prototypes"
            )

    def directions(self) -> dict[int, float]:
        """The angle of each class, in radians: that of the mean of its unit features."""
        lengths = np.linalg.norm(self.features, axis=1, keepdims=True)
        units = self.features / np.maximum(lengths, 1e-12)
        means = {int(c): units[self.labels == c].mean(axis=0) for c in np.unique(self.labels)}
        return {c: math.atan2(mean[1], mean[0]) for c, mean in means.items()}


def class_turns(before: Plane, after: Plane) -> dict[int, float]:
    """How far each class that both know has turned, in degrees from -180 to 180; positive is counterclockwise.

    >>> axes = np.eye(2)
    >>> turned = class_turns(Plane(axes, np.arange(2), axes), Plane(-axes[::-1], np.arange(2), axes))
    >>> {c: round(turn) for c, turn in turned.items()}
    {0: -90, 1: 90}
    """
    old = before.directions()
    new = after.directions()
    turns = {c: math.degrees(new[c] - old[c]) for c in old if c in new}
    return {c: (turn + 180) % 360 - 180 for c, turn in turns.items()}


def feature_plot(
    methods: Mapping[str, Sequence[Plane]],
    names: Sequence[str],
    versions: Sequence[str],
    path: str | Path | None = None,
    title: str = "",
) -> Figure:
    """Draw every version of every method: a row per version, a column per method; ``KEY`` explains the marks."""
    from matplotlib.figure import Figure

    if (
        not methods
        or any(len(planes) != len(versions) for planes in methods.values())
        or not versions
    ):
        raise InputError("feature_plot needs one plane per version of each method")
    figure = Figure(
        (PANEL * len(methods) + 0.9, PANEL * len(versions) + 1.3),
        DPI,
        facecolor="white",
        layout="constrained",
    )
    figure.suptitle(title, size=13, weight="bold", color=INK)
    figure.supxlabel(KEY, size=8.5, color=GREY)
    panels = figure.subplots(len(versions), len(methods), squeeze=False)
    for column, (method, planes) in enumerate(methods.items()):
        panels[0, column].set_title(method, size=12, weight="bold", color=INK)
        for row, plane in enumerate(planes):
            _draw_plane(panels[row, column], plane, planes[row - 1] if row else None, names)
    for row, version in enumerate(versions):
        panels[row, 0].text(
            -1.3 * EDGE, 0, version, size=10, color=INK, ha="right", va="center", linespacing=1.5
        )
    if path is not None:
        figure.savefig(path, dpi=DPI)
    return figure


def _draw_plane(axes: Axes, plane: Plane, before: Plane | None, names: Sequence[str]) -> None:
    from matplotlib.patches import Circle

    axes.set(xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), aspect="equal")
    axes.axis("off")
    axes.add_patch(
        Circle((0, 0), RIM, facecolor="#f7f8fa", edgecolor="#d9dee4", linewidth=0.8, zorder=0)
    )
    where = plane.directions()
    for row, (x, y) in enumerate(
        plane.prototypes / np.linalg.norm(plane.prototypes, axis=1, keepdims=True)
    ):
        (spoke,) = axes.plot([0, RIM * x], [0, RIM * y], color=INK, linewidth=1.0, zorder=3)
        if row not in where:
            spoke.set(color="#aab4be", linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)
    scale = np.quantile(np.linalg.norm(plane.features, axis=1), 0.99) / (0.96 * RIM)
    dots = plane.features / scale
    dots /= np.maximum(
        1, np.linalg.norm(dots, axis=1, keepdims=True) / RIM
    )  # the farthest stop at the rim
    colours = [COLOURS[label % len(COLOURS)] for label in plane.labels]
    axes.scatter(dots[:, 0], dots[:, 1], c=colours, s=7, alpha=0.6, linewidths=0, zorder=2)
    for c, angle in where.items():
        spot = LABEL * math.cos(angle), LABEL * math.sin(angle)
        colour = COLOURS[c % len(COLOURS)]
        axes.scatter(*spot, s=125, color=colour, linewidths=0, zorder=5)
        text = axes.text(
            *spot, names[c], size=9, weight="bold", ha="center", va="center_baseline", zorder=6
        )
        text.set(color=INK if colour in LIGHT else "white", parse_math=False)
    if before is not None:
        _draw_turns(axes, before, plane)


def _draw_turns(axes: Axes, before: Plane, after: Plane) -> None:
    """Where the classes pointed before, the arc from there, and the mean turn."""
    old = before.directions()
    turns = class_turns(before, after)
    for c, turn in turns.items():
        arc = old[c] + np.radians(np.linspace(0, turn, 40))
        colour = COLOURS[c % len(COLOURS)]
        axes.plot(
            LABEL * np.cos(arc), LABEL * np.sin(arc), color=colour, linewidth=2, alpha=0.8, zorder=4
        )
        ring = LABEL * math.cos(old[c]), LABEL * math.sin(old[c])
        axes.scatter(*ring, s=62, facecolor="white", edgecolor=colour, linewidths=1.4, zorder=4)
    mean = np.abs(list(turns.values())).mean()
    axes.text(
        0,
        CAPTION,
        f"known classes turned by {mean:.0f}°",
        size=9,
        color=GREY,
        ha="center",
        va="bottom",
    )
