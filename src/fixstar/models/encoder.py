"""The encoder: backbone h(x), bias-free projection z = P h, classifier on z. One object from training to serving."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fixstar.errors import ImageError, InputError, ModelError, UnknownNameError
from fixstar.geometry import short_factors, unit
from fixstar.images import ImageSource, Preprocessing
from fixstar.models.adapter import Adapter
from fixstar.models.backbones import Backbone, create_backbone
from fixstar.models.classifiers import CLASSIFIERS, Classifier, create_classifier
from fixstar.models.slots import Side, Slots

__all__ = ["Encoder", "Form", "Outputs"]

Form = Literal["full", "short", "raw"]


@dataclass(frozen=True, eq=False)
class Outputs:
    """What an encoder makes of a batch: backbone features h [B, m], features z [B, d], logits [B, outputs].

    Logits are made when first asked for: with very many classes they are larger than everything else. ``targets`` [B]
    are for heads with a margin. ``maps`` are the backbone's feature maps after each stage, where they were asked for.
    """

    h: Tensor
    z: Tensor
    classifier: Classifier
    targets: Tensor | None = None
    maps: tuple[Tensor, ...] = ()

    @functools.cached_property
    def logits(self) -> Tensor:
        """[B, outputs]."""
        logits: Tensor = self.classifier(self.z, self.targets)
        return logits

    def cross_entropy(self, targets: Tensor) -> Tensor:
        """The mean softmax cross-entropy over all outputs, the unassigned ones included (CoReS, eq. 9)."""
        fused = self.classifier.fused_cross_entropy(self.z, targets)
        return functional.cross_entropy(self.logits.float(), targets) if fused is None else fused


class Encoder(nn.Module):
    """Images to features and logits. Build one with ``Encoder.create``, restore one with ``Encoder.load``.

    ``slots`` says which class owns which logit. ``about`` is a JSON-like record of where the weights come from (method,
    parent, data fingerprint, ...), saved on the model's card. An ``adapter``, where a method makes one, carries vectors
    that the previous version stored into this one's space.
    """

    def __init__(
        self,
        backbone: Backbone,
        projection: nn.Linear | None,
        classifier: Classifier,
        slots: Slots,
        preprocessing: Preprocessing | None = None,
        about: dict[str, Any] | None = None,
        adapter: Adapter | None = None,
    ) -> None:
        super().__init__()
        self.backbone, self.projection, self.classifier = backbone, projection, classifier
        self.adapter = adapter
        self.slots = slots
        self.preprocessing = preprocessing or backbone.preprocessing
        self.about: dict[str, Any] = dict(about or {})
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (self.preprocessing.mean, self.preprocessing.std))
        self.register_buffer("_gain", 1 / (255 * std), persistent=False)
        self.register_buffer("_offset", -mean / std, persistent=False)
        self._gain: Tensor
        self._offset: Tensor

    @classmethod
    def create(
        cls,
        backbone: str | Backbone,
        classifier: str = "simplex",
        *,
        classes: Sequence[str] = (),
        capacity: int = 1000,
        side: Side = "left",
        backbone_options: dict[str, Any] | None = None,
        classifier_options: dict[str, Any] | None = None,
        preprocessing: Preprocessing | None = None,
    ) -> Encoder:
        """A new encoder with random (or the backbone's pre-trained) weights.

        Before a fixed classifier (simplex, orthoplex, cube, polygon) stands a projection to the width that ``capacity``
        classes need there, and ``classes`` get their slots from ``side``. Trainable classifiers sit on the backbone's
        own feature and have one output a class.
        """
        if classifier not in CLASSIFIERS:
            raise UnknownNameError("classifier", classifier, CLASSIFIERS)
        body = create_backbone(backbone, **(backbone_options or {})) if isinstance(backbone, str) else backbone
        if CLASSIFIERS[classifier].fixed:
            head = create_classifier(classifier, **{"capacity": capacity, **(classifier_options or {})})
            projection: nn.Linear | None = nn.Linear(body.feature_dim, head.feature_dim, bias=False)
            slots = Slots(head.outputs).assign(classes, side)
        else:
            if not classes:
                raise InputError(f"a {classifier} classifier has one output a class: name the classes")
            slots, projection = Slots().assign(classes), None
            sizes = {"feature_dim": body.feature_dim, "outputs": len(slots)}
            head = create_classifier(classifier, **{**sizes, **(classifier_options or {})})
        return cls(body, projection, head, slots, preprocessing)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._gain.device

    @property
    def feature_dim(self) -> int:
        """d, the width of a full feature."""
        return self.projection.out_features if self.projection is not None else self.backbone.feature_dim

    def normalise(self, pixels: Tensor) -> Tensor:
        """uint8 pixels [B, C, H, W] to the backbone's input range."""
        return pixels * self._gain + self._offset

    def forward(
        self, pixels: Tensor, targets: Tensor | None = None, maps: bool = False, bfloat16: bool = False
    ) -> Outputs:
        """uint8 pixels [B, C, H, W] (and the targets, for heads with a margin) to features and logits.

        ``bfloat16`` runs the backbone in that precision; projection and classifier always see float32.
        """
        x = self.normalise(pixels)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=bfloat16, cache_enabled=False):
            if bfloat16 or not x.is_cuda:
                x = x.contiguous(memory_format=torch.channels_last)  # in float32 a GPU gets planes
            seen: tuple[Tensor, ...] = self.backbone.maps(x) if maps else ()
            h = self.backbone.pool(seen[-1]) if maps else self.backbone(x)
        return self.heads(h.float(), targets, seen)

    def heads(self, h: Tensor, targets: Tensor | None = None, maps: tuple[Tensor, ...] = ()) -> Outputs:
        """What projection and classifier make of backbone features [B, m]."""
        z = self.projection(h) if self.projection is not None else h
        return Outputs(h, z, self.classifier, targets, maps)

    def features(self, pixels: Tensor, form: Form = "full") -> Tensor:
        """Features of uint8 pixels: z / |z| [B, d], the exact short form [B, min(d, m)], or z itself ("raw")."""
        x = self.normalise(pixels)
        h: Tensor = self.backbone(x if x.is_cuda else x.contiguous(memory_format=torch.channels_last))
        if self.projection is not None:
            h = h @ (self._short_factor() if form == "short" else self.projection.weight).T
        return h if form == "raw" else unit(h)

    def _short_factor(self) -> Tensor:
        """R of P = Q R, cached until the weights change."""
        assert self.projection is not None
        weight = self.projection.weight
        key = (weight.data_ptr(), weight._version, len(weight))  # one that has grown may lie where the old one was
        if getattr(self, "_factor_key", None) != key:
            self._factor, self._factor_key = short_factors(weight.detach())[1], key
        return self._factor

    def projection_matrix(self) -> np.ndarray[Any, Any] | None:
        """P [d, m] as float32, which a gallery needs to bridge short forms; ``None`` where the feature is h itself."""
        return None if self.projection is None else self.projection.weight.detach().float().cpu().numpy()

    def add_classes(self, classes: Sequence[str], side: Side = "left") -> None:
        """Give new classes their slots; a trainable classifier grows by their rows."""
        self.slots = self.slots.assign(classes, side)
        if self.slots.capacity is None:
            self.classifier = self.classifier.grown(len(self.slots))

    def grow(self, extra: int) -> None:
        """Make room for ``extra`` more classes: one more simplex, in ``extra`` - 1 new dimensions behind the others.

        The projection's new rows are zero, so features stay what they were, with zeros behind; training moves the rows.
        Vectors of earlier versions count as zero there, and cosines with them are exact.
        """
        head = self.classifier.extended(extra)
        assert self.projection is not None, "before a simplex there is a projection"
        weight = self.projection.weight
        rows = weight.new_zeros(extra - 1, weight.shape[1])
        self.projection.weight = nn.Parameter(torch.cat([weight.detach(), rows]), requires_grad=weight.requires_grad)
        self.projection.out_features = head.feature_dim
        self.classifier, self.slots = head.train(self.classifier.training), self.slots.grown(extra)

    def join_slots(self, other: Encoder) -> None:
        """Take over the classes of another model at the slots they own there; a trainable classifier grows.

        A model that has grown takes over the classes of one that has not grown as far.
        """
        slots, mine, theirs = other.slots, self.classifier.parts, other.classifier.parts
        if mine and theirs and mine != theirs:
            if mine[: len(theirs)] != theirs:
                raise ModelError(
                    f"simplices of {_capacities(mine)} and of {_capacities(theirs)} classes have different prototypes; "
                    "one model must begin with the simplices of the other: same capacity, grown alike"
                )
            slots = slots.grown(self.classifier.outputs - other.classifier.outputs)
        self.slots = self.slots.joined(slots)
        if self.slots.capacity is None:
            self.classifier = self.classifier.grown(len(self.slots))

    def targets(self, classes: Sequence[str]) -> Tensor:
        """The slot of each class as a tensor, to turn a dataset's labels into targets: ``targets(classes)[labels]``."""
        return torch.tensor(self.slots.of(classes), dtype=torch.long, device=self.device)

    def encode(
        self,
        images: Sequence[ImageSource] | np.ndarray[Any, Any] | Tensor,
        batch_size: int = 256,
        *,
        form: Form = "full",
        bad: Literal["refuse", "skip"] = "refuse",
        on_bad: Callable[[ImageError], None] | None = None,
        progress: bool = False,
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Unit vectors [N, d] of paths, PIL images, arrays or tensors; decoding overlaps with the model.

        ``form="short"`` gives the exact short form, which is what a gallery stores, ``"raw"`` z before it is divided by
        its length. An image that cannot be read
        raises ``ImageError`` (``bad="refuse"``), or leaves a row of NaN and is told to ``on_bad`` (``bad="skip"``).
        """
        from fixstar.models.encoding import encode_images

        return encode_images(self, images, batch_size, form=form, bad=bad, on_bad=on_bad, progress=progress)

    def save(self, directory: str | Path) -> Path:
        """Write weights (safetensors) and card (JSON) into a new directory, all or nothing."""
        from fixstar.models.storage import save_encoder

        return save_encoder(self, Path(directory))

    @classmethod
    def load(cls, directory: str | Path, device: str | torch.device = "cpu") -> Encoder:
        """Restore an encoder in evaluation mode. A damaged or foreign directory raises ``ModelError``."""
        from fixstar.models.storage import load_encoder

        return load_encoder(Path(directory)).to(device)


def _capacities(parts: Sequence[int]) -> str:
    return " + ".join(str(width + 1) for width in parts)
