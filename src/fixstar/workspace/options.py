"""What an upgrade, a check and a backfill can be told. Imports no torch, so that every front end reads it quickly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from fixstar.errors import InputError
from fixstar.evaluation.verdicts import GateRules
from fixstar.options import described

if TYPE_CHECKING:
    from fixstar.data import ImageSet
    from fixstar.images import Preprocessing
    from fixstar.methods import Method
    from fixstar.training import Recipe

FIRST_BACKBONE = "resnet18"  # of the first version, unless another is asked for
FIRST_METHOD = "vega"
SAMPLE = 8000  # maximum number of items embedded by both models
AUTO: Literal["auto"] = "auto"  # the backfill order that is best on labelled images
Order = Literal["gain", "classes", "certain", "uncertain", "queried", "oldest", "random"]
BUDGETS = (
    'a budget is a share such as "10%" (above 0%, up to 100%), a number of items such as "5000" (1 or more), "$2.50" '
    'where the deployed version has a price, or "all"'
)
HELD_OUT = 0.1  # share of the images, where images may be kept


def held_out_share(wanted: float | None, keeps_images: bool) -> float:
    """The share of images for the gate that was asked for; by default a tenth, or none if no images may be kept.

    >>> held_out_share(None, keeps_images=True), held_out_share(0.2, keeps_images=True)
    (0.1, 0.2)
    """
    if wanted is not None:
        return wanted
    if keeps_images:
        return HELD_OUT
    return 0.0


@dataclass(frozen=True)
class UpgradeOptions:
    """Changes from the last version; None means no change. Trials do not vary options that are set.

    ``start`` is the version to continue from, by default the newest. ``from_scratch`` starts from random weights.
    ``replace`` starts from another model: a backbone, with its ``preprocessing``, or the directory of an encoder.
    ``keep_images=False`` neither replays nor keeps images. ``hold_out`` is the share kept for the gate; with ``select``
    it also chooses the epoch (CoReS, eq. 11). ``earlier_images`` also trains on the images of earlier trainings that
    still exist; the default depends on the method (on for vega).
    """

    recipe: Recipe | None = None
    method: Method | None = described(None, "The method, if not that of the last version.")
    learning_rate: float | None = None
    start: str | None = described(None, "The version to continue from.")
    seed: int | None = described(None, "Another seed.")
    device: str = "auto"
    bad_images: Literal["refuse", "skip"] = "refuse"
    from_scratch: bool = described(False, "Start from random weights, not from the last version's.")
    replace: str | None = described(
        None, "Start from another model: a backbone, or the directory of a saved one."
    )
    preprocessing: Preprocessing | None = None
    frozen: bool | None = described(None, "Keep the backbone's weights, or train them.")
    keep_images: bool = described(
        True,
        "yes: replay kept images and keep some of the new ones. no: neither, now and later.",
    )
    hold_out: float = described(0.0, "Share of images kept for the gate, not trained on.")
    select: bool = described(
        False, "Keep the best compatible epoch, judged by the held-out images."
    )
    progress: bool = True
    earlier_images: bool | None = None


@dataclass(frozen=True)
class FitOptions:
    """Additional data for fitting translations, besides what a workspace finds by itself.

    ``images`` are embedded by both models and need no labels. ``pairs`` is FILE.npz with vectors by both models. If it
    has labels and the old model is gone, some pairs judge and are not fitted. ``refit`` replaces existing fits.
    """

    images: ImageSet | None = described(
        None,
        "Images or texts without labels for both models to embed: translations are fitted on them too.",
    )
    pairs: Path | None = described(
        None, "FILE.npz with arrays old and new: vectors by both models to fit on."
    )
    sample: int = described(SAMPLE, "Maximum number of items that a translation is fitted on.")
    seed: int = GateRules.seed
    refit: bool = described(False, "Fit translations again.")

    def __post_init__(self) -> None:
        if self.sample < 20:
            raise InputError(f"a sample is 20 items or more, got {self.sample}")

    @property
    def asks(self) -> bool:
        """Whether the caller gave data for fitting."""
        return self.refit or self.images is not None or self.pairs is not None


@dataclass(frozen=True)
class BackfillOptions:
    """What to re-embed, in which order, how fast and where.

    ``data`` are labelled images, by default those held out. ``cluster`` is the address of a Ray cluster, or "local".
    ``stop`` is asked between batches. ``target`` fails with DeploymentMovedError unless this version is deployed.
    """

    budget: str = described(
        "10%", "A share of the older items, a number, money ($2) for a server, or all."
    )
    order: str = described(
        AUTO, f"What comes first: {AUTO} (best on labelled images), {', '.join(get_args(Order))}."
    )
    rate: float | None = described(None, "Maximum number of items per second.")
    data: ImageSet | None = described(
        None, "Labelled images or texts that were not trained on, to predict the gain."
    )
    cluster: str | None = described(None, "Embed on a Ray cluster: its address, auto, or local.")
    workers: int | None = None
    seed: int = 0
    stop: Callable[[], bool] = field(default=lambda: False, compare=False)
    target: str | None = None
    anyway: bool = described(False, "Run even if a lower accuracy is predicted.")
