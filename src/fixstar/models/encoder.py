"""The encoder: backbone h(x), bias-free projection z = P h, classifier on z. One object from training to serving.

On disk it is a directory: weights in ``model.safetensors``, everything else in ``card.json``. Nothing is unpickled.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from fixstar.durable import (
    DAMAGE,
    disk_errors,
    document,
    flush,
    is_vacant,
    make_directory,
    read_document,
    replace_json,
)
from fixstar.errors import (
    FixstarError,
    InputError,
    ItemError,
    ModelError,
    NextStep,
    TextError,
    UnknownNameError,
    UntrustedCodeError,
    plural,
)
from fixstar.geometry import CAPACITY, short_factors, unit
from fixstar.images import Decode, ImageSource, Preprocessing
from fixstar.images.reading import BatchSlice, decode_batches
from fixstar.models.backbones import BACKBONES, PRETRAINED, Backbone, create_backbone
from fixstar.models.backbones.base import require_images
from fixstar.models.backbones.endpoint import endpoint_backbone
from fixstar.models.backbones.foreign import foreign_backbone, require_fitting
from fixstar.models.backbones.libraries import OPEN_CLIP, SENTENCE_TRANSFORMERS, library_model
from fixstar.models.backbones.texts import (
    OnnxText,
    TextBackbone,
    TokenPooling,
    is_text_model,
    text_backbone,
)
from fixstar.models.classifiers import (
    CLASSIFIERS,
    Classifier,
    TrainableClassifier,
    create_classifier,
)
from fixstar.models.slots import Side, Slots
from fixstar.progress import progress_bar
from fixstar.texts import Prompts, Reads, Role, checked_text
from fixstar.trust import ADDRESSES, import_path, module_of, server_of, trusting

CARD = "card.json"
WEIGHTS = "model.safetensors"
CANARY = "canary"  # name of a tensor among the weights: vectors of a few fixed images

Form = Literal["full", "short", "raw"]
Vectors = np.ndarray[Any, np.dtype[np.float32]]

_FORMAT = "encoder"
_SAME = (
    0.03  # maximum distance of two unit vectors of one image by one model; devices differ far less
)


class EmbeddedBatch(NamedTuple):
    """The vectors of a batch; rows of unreadable items are NaN, and ``bad`` lists the errors."""

    vectors: Vectors
    bad: tuple[ItemError, ...]


class _Prepared(NamedTuple):
    """A batch of ``size`` items: the rows that could be read, and their model inputs."""

    size: int
    rows: list[int]
    inputs: Tensor | list[str]
    bad: tuple[ItemError, ...] = ()


def resolve_device(name: str) -> torch.device:
    """The device of that name; ``auto`` takes a GPU if there is one. An unavailable device raises."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        if torch.cuda.is_available():
            usable = "auto, cpu, cuda or cuda:0"
        else:
            usable = "auto or cpu: there is no CUDA device"
        raise InputError(f"device {name!r} cannot be used here ({reason}). Try {usable}") from None
    return device


@dataclass(frozen=True, eq=False)
class Outputs:
    """Lazy outputs for a batch: backbone features h [B, m], features z = P h [B, d], logits [B, outputs].

    ``projection`` is P [d, m], None where z is h. ``targets`` [B] are for heads with a margin, ``maps`` feature maps.
    """

    h: Tensor
    classifier: Classifier
    projection: Tensor | None = None
    targets: Tensor | None = None
    maps: tuple[Tensor, ...] = ()

    @functools.cached_property
    def z(self) -> Tensor:
        """[B, d]."""
        if self.projection is None:
            return self.h
        return functional.linear(self.h, self.projection)

    def cosines(self, other: Outputs) -> Tensor:
        """cos(z_i, z'_j) of all features with all of another model's, [B, B'].

        If that is cheaper they are computed without z, from the m x m matrix P^T P': P h . P' h' = h^T (P^T P') h'.
        """
        P = self.projection
        Q = other.projection
        rows = len(self.h) + len(other.h)
        if (
            P is None
            or Q is None
            or rows < P.shape[1]
            or P.shape[0] <= P.shape[1]
            or Q.shape[0] <= Q.shape[1]
        ):
            return functional.normalize(self.z.float()) @ functional.normalize(other.z.float()).T
        return self._unit_scaled() @ (P.T @ Q) @ other._unit_scaled().T

    def _unit_scaled(self) -> Tensor:
        """h / |P h| [B, m]."""
        assert self.projection is not None
        squared = ((self.h @ (self.projection.T @ self.projection)) * self.h).sum(
            dim=1, keepdim=True
        )
        return self.h / squared.clamp(min=1e-24).sqrt()

    @functools.cached_property
    def logits(self) -> Tensor:
        """[B, outputs]."""
        logits: Tensor = self.classifier(self.z, self.targets)
        return logits

    def cross_entropy(self, targets: Tensor) -> Tensor:
        """The mean softmax cross-entropy over all outputs, including those without a class (CoReS, eq. 9)."""
        fused = self.classifier.fused_cross_entropy(self.z, targets)
        if fused is None:
            return functional.cross_entropy(self.logits.float(), targets)
        return fused


class Adapter(nn.Module):
    """The feature adaptation network of Iscen et al. 2020: maps a version's vectors [N, d] to the next space."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        if width < 1 or hidden < 1:
            raise InputError(f"an adapter needs width and hidden >= 1, got {width} and {hidden}")
        self.width = width
        self.hidden = hidden
        self.first = nn.Linear(width, hidden)
        self.second = nn.Linear(hidden, width)

    @property
    def options(self) -> dict[str, int]:
        """The keywords that rebuild it."""
        return {"width": self.width, "hidden": self.hidden}

    def forward(self, old: Tensor) -> Tensor:
        """Unit vectors [N, d] of the old space to vectors of the new one, of any length."""
        adapted: Tensor = self.second(torch.relu(self.first(old)))
        return adapted

    def adapt(self, vectors: np.ndarray[Any, Any], batch_size: int = 8192) -> Vectors:
        """Stored unit vectors [N, d] of the previous version as unit vectors of this one."""
        array = np.asarray(vectors, np.float32)
        if array.ndim != 2 or array.shape[1] != self.width:
            raise InputError(
                f"this adapter takes vectors of {self.width} components, got an array {array.shape}"
            )
        device = self.first.weight.device
        with torch.no_grad():
            parts = [
                unit(self(torch.from_numpy(array[start : start + batch_size]).to(device)))
                .cpu()
                .numpy()
                for start in range(0, len(array), batch_size)
            ]
        if parts:
            return np.concatenate(parts)
        return array


class Encoder(nn.Module):
    """Images, or texts, to features and logits. Build one with ``Encoder.create``, restore one with ``Encoder.load``.

    ``reads`` says whether it takes images or texts, ``inputs`` how they are prepared. ``slots`` maps classes to logits.
    ``about`` records the origin of the weights. An ``adapter``, if the method trains one, maps stored vectors of the
    previous version to the space of this one.
    """

    def __init__(
        self,
        backbone: Backbone,
        projection: nn.Linear | None,
        classifier: Classifier,
        slots: Slots,
        inputs: Preprocessing | Prompts | None = None,
        about: dict[str, Any] | None = None,
        adapter: Adapter | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.projection = projection
        self.classifier = classifier
        self.adapter = adapter
        self.slots = slots
        self.inputs = inputs or backbone.inputs
        self.reads: Reads = "texts" if isinstance(self.inputs, Prompts) else "images"
        self.about: dict[str, Any] = dict(about or {})
        self._canary: tuple[Vectors, Path] | None = None
        placed = itertools.chain(backbone.parameters(), backbone.buffers(), [torch.empty(0)])
        device = next(placed).device  # the backbone may lie on a GPU already
        mean, std = (one.to(device) for one in _statistics(self.inputs))
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
        capacity: int = CAPACITY,
        width: int | None = None,
        side: Side = "left",
        backbone_options: dict[str, Any] | None = None,
        classifier_options: dict[str, Any] | None = None,
        preprocessing: Preprocessing | None = None,
    ) -> Encoder:
        """A new encoder with random (or the backbone's pre-trained) weights.

        A fixed classifier (simplex, orthoplex, cube, polygon) comes after a projection to the width that ``capacity``
        classes need, and ``classes`` get their slots from ``side``. A trainable classifier takes the backbone's
        feature, or its projection to ``width`` components, and has one output per class.
        """
        if classifier not in CLASSIFIERS:
            raise UnknownNameError("classifier", classifier, CLASSIFIERS)
        body = backbone
        if isinstance(body, str):
            options = dict(backbone_options or {})
            own = body in BACKBONES or body in PRETRAINED
            if (
                preprocessing is not None and not own
            ):  # the width of an added model is measured with it
                options["preprocessing"] = preprocessing.to_json()
            body = create_backbone(body, **options)
        if preprocessing is not None:
            _require_images(body, preprocessing)
        if isinstance(body.inputs, Prompts):
            raise InputError(
                f"{body.name} reads texts, and only image models are trained here; add it instead"
            )
        if CLASSIFIERS[classifier].fixed:
            if width is not None:
                raise InputError(
                    f"the width of a feature before a {classifier} follows from its capacity; got {width}"
                )
            head = create_classifier(
                classifier, **{"capacity": capacity, **(classifier_options or {})}
            )
            projection: nn.Linear | None = nn.Linear(body.feature_dim, head.feature_dim, bias=False)
            slots = Slots(head.outputs).assign(classes, side)
        else:
            if not classes:
                raise InputError(
                    f"a {classifier} classifier has one output per class: pass classes"
                )
            slots = Slots().assign(classes)
            projection = None
            if width is not None:
                projection = _projection(body, width)
            sizes = {"feature_dim": width or body.feature_dim, "outputs": len(slots)}
            head = create_classifier(classifier, **{**sizes, **(classifier_options or {})})
        return cls(body, projection, head, slots, preprocessing)

    @classmethod
    def wrap(
        cls,
        model: str | Path | nn.Module,
        inputs: Preprocessing | Prompts | None = None,
        *,
        source: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        weights: str | Path | None = None,
        output: str | None = None,
        tokenizer: str | Path | None = None,
        pooling: TokenPooling | None = None,
        key: str | None = None,
        price: float | None = None,
        per_minute: float | None = None,
    ) -> Encoder:
        """Any model as an encoder; its output at unit length is the feature.

        ``inputs`` is the preprocessing of images, or the prompts of texts.

        ``model`` is ``efficientnet-lite0`` (a small pre-trained network, of the extra ``encoder``), an ONNX file,
        ``hf:NAME_OR_FOLDER``, ``open_clip:MODEL/WEIGHTS``, ``st:NAME_OR_FOLDER`` (sentence-transformers), an
        import path ``package.module:name`` (a callable that returns a module for ``arguments``, with ``weights`` from a
        safetensors file), or a torch module. A module is stored as ONNX, or as the import path ``source`` that
        creates it. ``output`` names one of several ONNX outputs. A model whose vectors depend
        on the call or on the rest of the batch is refused.

        Models of texts are ``hf:`` and ``st:`` too, an ONNX file with its ``tokenizer`` (tokenizer.json), or the
        address of a server, ``https://host/v1/embeddings?model=NAME``. ``pooling`` says how token states become one
        vector. For a server ``key`` names the environment variable of its key, ``price`` is per million tokens, and
        ``per_minute`` limits the requests.

        An import path runs code. You name it here, so it is trusted for this call; code named by a file is not (see
        ``fixstar.trust``).
        """
        text_options = {"tokenizer": tokenizer, "pooling": pooling}
        server_options = {"key": key, "price": price, "per_minute": per_minute}
        image_options = {"source": source, "arguments": arguments, "weights": weights}
        require_fitting(model, output=output, **image_options, **text_options, **server_options)
        prompts = inputs if isinstance(inputs, Prompts) else None
        preprocessing = inputs if isinstance(inputs, Preprocessing) else None
        body: Backbone
        if isinstance(model, str) and model.startswith(ADDRESSES):
            _refuse_preprocessing(model, preprocessing)
            with trusting(server_of(model)):
                body = endpoint_backbone(
                    model, prompts, key=key, price=price, per_minute=per_minute
                )
        elif tokenizer is not None:
            _refuse_preprocessing(str(model), preprocessing)
            body = OnnxText.of(
                Path(str(model)), Path(tokenizer), prompts=prompts, pooling=pooling, output=output
            )
        elif (
            isinstance(model, str)
            and model.startswith(("hf:", SENTENCE_TRANSFORMERS))
            and is_text_model(model)
        ):
            _refuse_preprocessing(model, preprocessing)
            body = text_backbone(model, prompts, pooling)
        elif prompts is not None or pooling is not None:
            raise InputError(f"{model} is not a text model: prompts and pooling do not apply")
        else:
            body = _image_body(
                model,
                preprocessing,
                source=source,
                arguments=arguments,
                weights=weights,
                output=output,
            )
        head = create_classifier("none", feature_dim=body.feature_dim)
        encoder = cls(body, None, head, Slots(), preprocessing or body.inputs).eval()
        with _trusting_own(encoder):
            _require_steady(encoder)
        return encoder

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing of images; not defined for a text model."""
        return require_images(self.inputs)

    @property
    def code(self) -> str | None:
        """The import path of the backbone's code; None for fixstar's own backbones and for data such as ONNX."""
        return import_path(self.backbone.name, self.backbone.options)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._gain.device

    @property
    def feature_dim(self) -> int:
        """d, the width of a full feature."""
        if self.projection is not None:
            return self.projection.out_features
        return self.backbone.feature_dim

    def normalise(self, pixels: Tensor) -> Tensor:
        """uint8 pixels [B, C, H, W] to the backbone's input range."""
        return pixels * self._gain + self._offset

    def forward(
        self,
        pixels: Tensor,
        targets: Tensor | None = None,
        maps: bool = False,
        bfloat16: bool = False,
    ) -> Outputs:
        """uint8 pixels [B, C, H, W], or backbone features in the first m columns of floats, to features and logits.

        ``bfloat16`` runs the backbone in that precision; projection and classifier always see float32.
        """
        if pixels.ndim == 2:
            return self.heads(pixels[:, : self.backbone.feature_dim], targets)
        x = self.normalise(pixels)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=bfloat16, cache_enabled=False):
            if bfloat16 or not x.is_cuda:
                x = x.contiguous(
                    memory_format=torch.channels_last
                )  # in float32 on a GPU: channels first
            seen: tuple[Tensor, ...] = ()
            if maps:
                seen = self.backbone.maps(x)
                h = self.backbone.pool(seen[-1])
            else:
                h = self.backbone(x)
        return self.heads(h.float(), targets, seen)

    def heads(
        self, h: Tensor, targets: Tensor | None = None, maps: tuple[Tensor, ...] = ()
    ) -> Outputs:
        """The outputs for backbone features [B, m]."""
        projection = None if self.projection is None else self.projection.weight
        return Outputs(h, self.classifier, projection, targets=targets, maps=maps)

    def features(self, pixels: Tensor, form: Form = "full") -> Tensor:
        """Features of uint8 pixels, or of backbone features [B, m]: unit [B, d], short [B, min(d, m)], or raw z."""
        h = pixels
        if pixels.ndim != 2:
            x = self.normalise(pixels)
            if not x.is_cuda:
                x = x.contiguous(memory_format=torch.channels_last)
            h = self.backbone(x)
        if self.projection is not None:
            matrix = self._short_factor() if form == "short" else self.projection.weight
            h = h @ matrix.T
        if form == "raw":
            return h
        return unit(h)

    def _short_factor(self) -> Tensor:
        """R of P = Q R, cached until the weights change."""
        assert self.projection is not None
        weight = self.projection.weight
        key = (
            weight.data_ptr(),
            weight._version,
            len(weight),
        )  # a grown weight may reuse the memory of the old one
        if getattr(self, "_factor_key", None) != key:
            self._factor = short_factors(weight.detach())[1]
            self._factor_key = key
        return self._factor

    def projection_matrix(self) -> np.ndarray[Any, Any] | None:
        """P [d, m] as float32, which a gallery needs to compare short forms; ``None`` if z = h."""
        if self.projection is None:
            return None
        return self.projection.weight.detach().float().cpu().numpy()

    def add_classes(self, classes: Sequence[str], side: Side = "left") -> None:
        """Give new classes their slots; a trainable classifier gets a row for each."""
        self.slots = self.slots.assign(classes, side)
        if self.slots.capacity is None:
            self.classifier = self.classifier.grown(len(self.slots))

    def leave_classes(self, classes: Sequence[str]) -> None:
        """Reduce a trainable classifier to the outputs of ``classes``, in that order; missing outputs are added."""
        old = self.classifier
        slots = Slots().assign(classes)
        assert isinstance(old, TrainableClassifier), "a fixed classifier keeps its slots"
        kept = [name for name in classes if name in self.slots]
        head = old.with_rows(len(slots), slots.of(kept), self.slots.of(kept))
        self.classifier = head.train(old.training)
        self.slots = slots

    def grow(self, extra: int) -> None:
        """Add capacity for ``extra`` classes: one more simplex, in new dimensions at the end, initially zero."""
        head = self.classifier.extended(extra)
        assert self.projection is not None, "a simplex comes after a projection"
        weight = self.projection.weight
        rows = weight.new_zeros(extra - 1, weight.shape[1])
        self.projection.weight = nn.Parameter(
            torch.cat([weight.detach(), rows]), requires_grad=weight.requires_grad
        )
        self.projection.out_features = head.feature_dim
        self.classifier = head.train(self.classifier.training)
        self.slots = self.slots.grown(extra)

    def project(self) -> None:
        """Add a projection after the backbone, if there is none. It starts as the identity and changes no feature."""
        if self.projection is None:
            self.projection = _projection(self.backbone, self.backbone.feature_dim).to(self.device)

    def join_slots(self, other: Encoder) -> None:
        """Add another model's classes with their slots; its simplices must be the first ones of this model."""
        slots = other.slots
        mine = self.classifier.parts
        theirs = other.classifier.parts
        if mine and theirs and mine != theirs:
            if mine[: len(theirs)] != theirs:
                raise ModelError(
                    f"simplices of {_capacities(mine)} and of {_capacities(theirs)} classes have different prototypes; "
                    "the other model's simplices must be the first of this one's: same capacity, same growth"
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
        on_bad: Callable[[ItemError], None] | None = None,
        progress: bool = False,
        decode: Decode | None = None,
        role: Role = "item",
    ) -> Vectors:
        """Unit vectors [N, d] of paths, PIL images, arrays or tensors, or of backbone features, a float array [N, m].

        A text model takes texts, and ``role`` selects the prompt; images have no prompt.

        ``form="short"`` gives the exact short form, which a gallery stores; ``"raw"`` gives z before normalisation. An
        unreadable image raises ``ImageError`` (``bad="refuse"``), or gives a NaN row and a call of ``on_bad`` with the
        error (``bad="skip"``). ``decode`` reads one image; see ``decode_ahead``.
        """
        _check_encode(images, batch_size, form, bad)
        vectors = np.empty((len(images), self._width(form)), np.float32)
        prepared = self._prepared(images, batch_size, refuse=bad == "refuse", decode=decode)
        done = 0
        with (
            progress_bar("encoding", len(images), self.reads, show=progress) as advance,
            closing(self._embedded(prepared, form, role)) as made,
        ):
            for batch in made:
                vectors[done : done + len(batch.vectors)] = batch.vectors
                done += len(batch.vectors)
                for error in batch.bad:
                    if on_bad is not None:
                        on_bad(error)
                advance(len(batch.vectors) - len(batch.bad))
        return vectors

    def encode_batches(
        self,
        batches: Iterable[Sequence[ImageSource]],
        *,
        form: Form = "full",
        decode: Decode | None = None,
        role: Role = "item",
    ) -> Generator[EmbeddedBatch, None, None]:
        """One result per batch, like ``encode`` with ``bad="skip"``, but decoding overlaps with the model.

        While the model works on a batch, the next one is fetched and decoded. A GPU gets the next batch before the
        vectors of the current one are copied back. Closing the generator early stops the threads.
        """
        prepared = self._read(
            ((batch, range(len(batch))) for batch in batches), refuse=False, decode=decode
        )
        return self._embedded(prepared, form, role)

    def _width(self, form: Form) -> int:
        if form == "short":
            return min(self.feature_dim, self.backbone.feature_dim)
        return self.feature_dim

    def _embedded(
        self, prepared: Generator[_Prepared, None, None], form: Form, role: Role
    ) -> Generator[EmbeddedBatch, None, None]:
        """The vectors of every batch. On a GPU the next batch is started before the vectors are copied back."""
        started: deque[Callable[[], EmbeddedBatch]] = deque()
        ahead = int(self._gain.is_cuda)
        with closing(prepared):
            for batch in prepared:
                started.append(self._started(batch, form, role))
                if len(started) > ahead:
                    yield started.popleft()()
        while started:
            yield started.popleft()()

    def _started(self, batch: _Prepared, form: Form, role: Role) -> Callable[[], EmbeddedBatch]:
        """Start the model on a batch. The returned function waits for the vectors."""
        vectors = np.full((batch.size, self._width(form)), np.nan, np.float32)
        if not batch.rows:
            return lambda: EmbeddedBatch(vectors, batch.bad)
        training = self.training
        self.eval()
        try:
            with torch.no_grad():
                features = self._vectors(batch.inputs, form, role)
        finally:
            self.train(training)
        if not features.is_cuda:
            vectors[batch.rows] = features.float().cpu().numpy()
            return lambda: EmbeddedBatch(vectors, batch.bad)
        copy = torch.empty(features.shape, dtype=torch.float32, pin_memory=True)
        copy.copy_(features, non_blocking=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(torch.cuda.current_stream(features.device))

        def fetched() -> EmbeddedBatch:
            copied.synchronize()  # with this copy only, not with later work
            vectors[batch.rows] = copy.numpy()
            return EmbeddedBatch(vectors, batch.bad)

        return fetched

    def _vectors(self, inputs: Tensor | list[str], form: Form, role: Role) -> Tensor:
        """[B, width] of texts, of pixels [B, H, W, C] or of features [B, m]."""
        if isinstance(self.backbone, TextBackbone):
            prompted = [self.backbone.inputs.before(text, role) for text in inputs]
            h = self.backbone.embed(prompted)
            return h if form == "raw" else unit(h)
        assert isinstance(inputs, Tensor)
        on_device = inputs.to(self._gain.device, non_blocking=True)
        if on_device.ndim == 4:
            on_device = on_device.permute(0, 3, 1, 2).contiguous()
        return self.features(on_device, form)

    def _prepared(
        self, items: Any, batch_size: int, *, refuse: bool, decode: Decode | None
    ) -> Generator[_Prepared, None, None]:
        """Batches of a sequence; arrays of model inputs are passed on without reading single images."""
        starts = range(0, len(items), batch_size)
        parts = [range(start, min(start + batch_size, len(items))) for start in starts]
        if self.reads == "images" and isinstance(items, np.ndarray) and self._takes(items):
            whole = (
                torch.from_numpy(np.ascontiguousarray(items[part.start : part.stop]))
                for part in parts
            )
            return (_Prepared(len(pixels), list(range(len(pixels))), pixels) for pixels in whole)
        return self._read([(items, part) for part in parts], refuse=refuse, decode=decode)

    def _takes(self, array: np.ndarray[Any, Any]) -> bool:
        """Whether the array holds pixels in the model's format, or backbone features."""
        if array.dtype == np.float32 and array.ndim == 2:
            if array.shape[1] != self.backbone.feature_dim:
                raise InputError(
                    f"features have {self.backbone.feature_dim} components here, got {array.shape[1]}"
                )
            return True
        shape = (*self.preprocessing.size, self.preprocessing.channels)
        return bool(array.dtype == np.uint8 and array.shape[1:] == shape)

    def _read(
        self, parts: Iterable[BatchSlice], *, refuse: bool, decode: Decode | None
    ) -> Generator[_Prepared, None, None]:
        """Read every batch. With ``refuse`` the first unreadable item raises its error."""
        read: Generator[Sequence[Any], None, None]
        if isinstance(self.inputs, Prompts):
            read = _checked_texts(parts)
        else:
            read = decode_batches(parts, self.inputs, decode)
        with closing(read):
            for batch in read:
                bad = tuple(item for item in batch if isinstance(item, ItemError))
                if refuse and bad:
                    raise bad[0]
                rows = [row for row, item in enumerate(batch) if not isinstance(item, ItemError)]
                items: list[Any] = [batch[row] for row in rows]
                if items and self.reads == "images":  # pinned for an asynchronous copy to a GPU
                    shape = (len(items), *items[0].shape)
                    pixels = torch.empty(shape, dtype=torch.uint8, pin_memory=self._gain.is_cuda)
                    np.stack(items, out=pixels.numpy())
                    yield _Prepared(len(batch), rows, pixels, bad)
                else:
                    yield _Prepared(len(batch), rows, items, bad)

    def save(self, directory: str | Path) -> Path:
        """Write weights (safetensors) and card (JSON) to a new directory, atomically and verified by reading back."""
        directory = Path(directory)
        if not is_vacant(directory):
            raise ModelError(
                f"{directory} already exists, and a saved model is never overwritten; choose another directory"
            )
        make_directory(directory.parent)
        partial = Path(
            tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".partial", dir=directory.parent)
        )
        try:
            weights = {
                name: tensor.detach().cpu().contiguous()
                for name, tensor in self.state_dict().items()
            }
            with disk_errors(directory / WEIGHTS):
                save_file(
                    {**weights, CANARY: torch.from_numpy(canary_vectors(self))}, partial / WEIGHTS
                )
            replace_json(partial / CARD, document(_FORMAT, _card(self, partial / WEIGHTS)))
            partial.chmod(0o755)
            for written in (partial / WEIGHTS, partial / CARD):
                written.chmod(0o644)
                flush(written)
            with _trusting_own(self):
                _load(partial)
            flush(partial)
            partial.replace(directory)  # also replaces an empty directory
            flush(directory.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return directory

    @classmethod
    def load(cls, directory: str | Path, device: str | torch.device = "cpu") -> Encoder:
        """Restore an encoder. Raises ``ModelError`` if it is damaged or its test vectors have changed."""
        return _load(Path(directory)).to(device)

    def require_unchanged(self) -> None:
        """Raise ``ModelError`` if the loaded model's test vectors differ from the saved ones."""
        if self._canary is None:
            return
        expected, directory = self._canary
        found = canary_vectors(self)
        if found.shape != expected.shape:
            seen = f"{found.shape}, not {expected.shape}"
        else:
            apart = _apart(found, expected)
            if apart <= _SAME:
                return
            seen = f"{apart:.3f} apart"
        cause = "a library or the model's own code has changed"
        remedy = "Restore the earlier library or code"
        if self.backbone.name == "endpoint":
            cause = "its server has another model under the same name"
            remedy = "Request the earlier model there"
        raise ModelError(
            f"{directory} no longer makes the vectors it made when it was saved ({seen}): {cause}, and its stored "
            f"vectors would be searched wrongly. {remedy}, or add the changed model as a new version",
            NextStep("add", {"model": ...}),
        )


def _projection(body: Backbone, width: int) -> nn.Linear:
    """A projection to ``width`` components; starts as the identity if the width does not change."""
    if width < 1:
        raise InputError(f"the width of a feature must be at least 1, got {width}")
    projection = nn.Linear(body.feature_dim, width, bias=False)
    if width == body.feature_dim:
        nn.init.eye_(projection.weight)
    return projection


def _capacities(parts: Sequence[int]) -> str:
    return " + ".join(str(width + 1) for width in parts)


def _check_encode(images: Any, batch_size: int, form: str, bad: str) -> None:
    planes_first = isinstance(
        images, Tensor
    )  # arrays are channels last: [3, H, W] is three grey images
    one = getattr(images, "ndim", 0) == 3 and (
        images.shape[-1] in (1, 3, 4) or (planes_first and images.shape[0] in (1, 3))
    )
    if (
        one
        or isinstance(images, (str, bytes))
        or not (hasattr(images, "__len__") and hasattr(images, "__getitem__"))
    ):
        raise InputError(
            f"encode takes a sequence of images, got {type(images).__name__}; for one image pass [image]"
        )
    for name, value, allowed in (("form", form, get_args(Form)), ("bad", bad, ("refuse", "skip"))):
        if value not in allowed:
            raise InputError(f"{name}={value!r} is not one of {', '.join(allowed)}")
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")


def _checked_texts(parts: Iterable[BatchSlice]) -> Generator[list[str | TextError], None, None]:
    """The texts of every batch, with a ``TextError`` in place of each text that cannot be embedded."""
    for texts, positions in parts:
        found: list[str | TextError] = []
        for position in positions:
            try:
                found.append(checked_text(texts[position], position))
            except TextError as error:
                found.append(error)
        yield found


def _statistics(inputs: Preprocessing | Prompts) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of pixels [C, 1, 1]; empty for texts."""
    if isinstance(inputs, Prompts):
        return torch.zeros(0, 1, 1), torch.ones(0, 1, 1)
    return torch.tensor(inputs.mean).view(-1, 1, 1), torch.tensor(inputs.std).view(-1, 1, 1)


def inputs_of(card: Mapping[str, Any]) -> Preprocessing | Prompts:
    """The preprocessing or the prompts in a model's card."""
    values = card["preprocessing"]
    if isinstance(values, Mapping) and values.get("reads") == "texts":
        return Prompts.from_json(values)
    return Preprocessing.from_json(values)


def _image_body(
    model: str | Path | nn.Module,
    preprocessing: Preprocessing | None,
    *,
    source: str | None,
    arguments: Mapping[str, Any] | None,
    weights: str | Path | None,
    output: str | None,
) -> Backbone:
    """The backbone of an image model, for ``Encoder.wrap``."""
    if isinstance(model, str) and model.startswith("hf:"):
        if preprocessing is None:
            return create_backbone(model)
        return create_backbone(model, preprocessing=preprocessing.to_json())
    if isinstance(model, str) and model in PRETRAINED:
        return create_backbone(model)
    if isinstance(model, str) and model.startswith((OPEN_CLIP, SENTENCE_TRANSFORMERS)):
        loaded = library_model(model)
        return foreign_backbone(loaded.module, preprocessing or loaded.preprocessing)
    named = None
    if not isinstance(model, nn.Module):
        named = import_path(str(model), {})
    with trusting(*(module_of(one) for one in (named, source) if one is not None)):
        return foreign_backbone(
            model=model,
            preprocessing=preprocessing,
            source=source,
            arguments=arguments,
            weights=weights,
            output=output,
        )


def _refuse_preprocessing(model: str, given: Preprocessing | None) -> None:
    if given is not None:
        raise InputError(f"{model} reads texts: a size, mean and std of images do not apply")


def _require_images(backbone: Backbone, wanted: Preprocessing) -> None:
    """Raise if the backbone cannot take images of this shape; a shape other than its own is tried out."""
    own = backbone.preprocessing
    shape = (wanted.channels, *wanted.size)
    usual = (own.channels, *own.size)
    if shape == usual:
        return
    was_training = backbone.training
    backbone.eval()
    try:
        with torch.no_grad():
            backbone(torch.zeros(1, *shape))
    except RuntimeError as error:
        raise InputError(
            f"{backbone.name} cannot take images of {_shape_words(shape)}; it was made for {_shape_words(usual)}"
        ) from error
    finally:
        backbone.train(was_training)


def _shape_words(shape: tuple[int, int, int]) -> str:
    """
    >>> _shape_words((3, 32, 48))
    '32 x 48 pixels and 3 channels'
    """
    channels, height, width = shape
    return f"{height} x {width} pixels and {plural(channels, 'channel')}"


def _card(encoder: Encoder, weights: Path) -> dict[str, Any]:
    from fixstar import __version__

    projection = encoder.projection
    return {
        "fixstar": __version__,
        "backbone": {"name": encoder.backbone.name, "options": encoder.backbone.options},
        "projection": None
        if projection is None
        else {"in": projection.in_features, "out": projection.out_features},
        "classifier": {"kind": encoder.classifier.kind, "options": encoder.classifier.options},
        "adapter": None if encoder.adapter is None else encoder.adapter.options,
        "slots": {"capacity": encoder.slots.capacity, "by_class": dict(encoder.slots.by_class)},
        "preprocessing": encoder.inputs.to_json(),
        "weights": {"bytes": weights.stat().st_size, "sha256": _sha256(weights)},
        "about": encoder.about,
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_card(directory: Path) -> dict[str, Any]:
    """The validated card of a saved encoder."""
    if not directory.is_dir():
        raise ModelError(
            f"{directory} is not a directory; a saved model is a directory with {CARD} and {WEIGHTS}"
        )
    for name in (CARD, WEIGHTS):
        if not (directory / name).is_file():
            seen = ", ".join(sorted(p.name for p in directory.iterdir())[:8]) or "nothing"
            raise ModelError(
                f"{directory} is not a saved fixstar model: {name} is missing (found: {seen})"
            )
    return read_document(directory / CARD, _FORMAT)


def verify_saved(directory: Path) -> None:
    """Raise if the card or any byte of the weights of a saved encoder is damaged. Does not load the model."""
    _check_weights(directory / WEIGHTS, read_card(directory))


def _load(directory: Path) -> Encoder:
    """The saved encoder, in evaluation mode, on the CPU."""
    card = read_card(directory)
    path = directory / WEIGHTS
    _check_weights(path, card)
    try:
        _check_shapes(path, card)
        encoder = _build(card)
        weights = load_file(path)
        canary = weights.pop(CANARY).numpy()
        encoder.load_state_dict(weights)
        if (
            len(encoder.slots)
            and max(encoder.slots.by_class.values()) >= encoder.classifier.outputs
        ):
            raise ModelError("its class slots are outside of its classifier")
    except UntrustedCodeError as error:
        raise UntrustedCodeError(f"{directory} was not loaded: {error}") from None
    except FixstarError as error:
        raise ModelError(f"{directory} cannot be rebuilt: {error}") from error
    except (SafetensorError, RuntimeError, *DAMAGE) as error:
        raise ModelError(
            f"{directory} is damaged: card and weights do not belong together ({error})"
        ) from error
    encoder.eval()._canary = canary, directory
    encoder.require_unchanged()
    return encoder


def _canary_images(p: Preprocessing) -> np.ndarray[Any, Any]:
    """Four fixed images of 8 x 8 blocks: uint8 [4, H, W, C]."""
    i, y, x, c = np.ogrid[:4, : p.size[0], : p.size[1], : p.channels]
    blocks = (x * 8 // p.size[1] * 37 + y * 8 // p.size[0] * 59 + i * 101 + c * 17) * (i + 3) % 256
    return np.asarray(blocks, np.uint8)


_CANARY_TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "How do I return a pair of shoes that do not fit?",
    "An embedding maps a text to a point in space.",
    "1234567890",
)


def canary_vectors(encoder: Encoder) -> Vectors:
    """The vectors of a few fixed images or texts, saved with a model to detect later changes."""
    if isinstance(encoder.inputs, Prompts):
        return encoder.encode(_CANARY_TEXTS, form="short")
    images = torch.from_numpy(_canary_images(encoder.inputs))
    pixels = images.permute(0, 3, 1, 2).to(encoder.device)
    training = encoder.training
    with torch.no_grad():
        vectors: Vectors = encoder.eval().features(pixels, "short").float().cpu().numpy()
    encoder.train(training)
    if not np.isfinite(vectors).all():
        raise ModelError(
            "the model returned non-finite values for a test image; check its weights, and the mean and std of inputs"
        )
    return vectors


def _apart(first: Vectors, second: Vectors) -> float:
    return float(np.linalg.norm(first - second, axis=1).max())


def _trusting_own(encoder: Encoder) -> AbstractContextManager[None]:
    """Trust the code of an encoder, if any: it is already running in this process."""
    if encoder.code is None:
        return nullcontext()
    return trusting(module_of(encoder.code))


def _require_steady(encoder: Encoder) -> None:
    """Refuse a model whose vectors are constant, or change between calls or with the rest of the batch."""
    shown: Any = (
        _CANARY_TEXTS if encoder.reads == "texts" else _canary_images(encoder.preprocessing)
    )
    kind = encoder.reads.removesuffix("s")
    first = canary_vectors(encoder)
    again = canary_vectors(encoder)
    alone = np.concatenate(
        [encoder.encode(shown[i : i + 1], form="short") for i in range(len(shown))]
    )
    if not (np.linalg.norm(first, axis=1) > 0.5).all():
        raise ModelError(f"the model returns zero for {_a(kind)}; which cannot be normalised")
    for other, when in ((again, "in two calls"), (alone, "alone and in a batch")):
        if not (apart := _apart(first, other)) <= _SAME:
            raise ModelError(
                f"the model returns different vectors for the same {kind} {when} ({apart:.3f} apart); "
                "is dropout or batch norm in training mode?"
            )
    if _apart(first[1:], first[:-1]) < 1e-4:
        raise ModelError(f"the model returns the same vector for different {kind}s")


def _a(noun: str) -> str:
    if noun[0] in "aeiou":
        return f"an {noun}"
    return f"a {noun}"


def _check_weights(path: Path, card: dict[str, Any]) -> None:
    expected = card.get("weights")
    if (
        not isinstance(expected, dict)
        or not isinstance(expected.get("bytes"), int)
        or "sha256" not in expected
    ):
        raise ModelError(
            f"{path.parent / CARD} does not describe its weights; restore the model from a copy"
        )
    size = path.stat().st_size
    if size != expected["bytes"]:
        raise ModelError(
            f"{path} is damaged: {size:,} bytes, the card says {expected['bytes']:,}; restore it from a copy"
        )
    if _sha256(path) != expected["sha256"]:
        raise ModelError(
            f"{path} is damaged: its checksum is not the card's; restore it from a copy"
        )


def _check_shapes(path: Path, card: dict[str, Any]) -> None:
    """Compare the card with the weights' header before allocating memory of the sizes in the card."""
    projection = card["projection"]
    adapter = card["adapter"]
    backbone = card["backbone"]
    cut = backbone["options"].get("tokenizer_size")
    for part, weight, shape in (
        ("backbone", "backbone.tokenizer_file", None if cut is None else [cut]),
        (
            "backbone",
            "backbone.file",
            [backbone["options"]["size"]] if "onnx" in backbone["name"] else None,
        ),
        (
            "projection",
            "projection.weight",
            None if projection is None else [projection["out"], projection["in"]],
        ),
        (
            "adapter",
            "adapter.first.weight",
            None if adapter is None else [adapter["hidden"], adapter["width"]],
        ),
    ):
        with safe_open(path, framework="pt") as stored:
            if weight in set(stored.keys()):
                held = stored.get_slice(weight).get_shape()
            else:
                held = None
        if held != shape:
            raise ModelError(f"the card's {part} {card[part]} is not that of the weights, {held}")


def _build(card: dict[str, Any]) -> Encoder:
    with torch.random.fork_rng(
        devices=[]
    ):  # building draws initial weights: do not change the caller's generator
        backbone = create_backbone(card["backbone"]["name"], **card["backbone"]["options"])
        shape = card["projection"]
        if shape is None:
            projection = None
        else:
            projection = nn.Linear(shape["in"], shape["out"], bias=False)
        classifier = create_classifier(card["classifier"]["kind"], **card["classifier"]["options"])
        adapter = None
        if card["adapter"] is not None:
            adapter = Adapter(**card["adapter"])
    slots = Slots(card["slots"]["capacity"], card["slots"]["by_class"])
    return Encoder(
        backbone=backbone,
        projection=projection,
        classifier=classifier,
        slots=slots,
        inputs=inputs_of(card),
        about=card["about"],
        adapter=adapter,
    )
