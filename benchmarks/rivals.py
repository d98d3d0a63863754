"""Rivals of translation that train networks of their own: FCT and BT2, for ``benchmarks/upgrades.py``.

Both start from a new model that was trained independently of the old one.

FCT (Ramanujan et al. 2022, "Forward compatible training")
    A network carries an old vector, and a side vector that was stored beside it, to the new model's vector of the same
    image. The side vector comes from a network that was trained without labels before the new model was thought of:
    SimCLR on the first version's images. Without side information the network sees the old vector twice, as in the
    authors' code. Sizes, loss and schedule are theirs.

BT2 (Zhou et al. 2023, "Backward-compatible training with basis transformation")
    A further network learns to match the new model, and through two orthogonal changes of basis the old one. It has 32
    components more than the new model; the first ones are compared with old vectors. Weights of the loss are theirs.

Networks are trained on the images that the new version was trained on, in random crops. They take the number of epochs
and the batch size of the settings that they are given; optimisers and rates are those of the papers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import orthogonal

from fixstar.data import ImageSet
from fixstar.losses import cross_entropy, two_view_contrast
from fixstar.models.backbones import Backbone, create_backbone
from fixstar.training import Settings

Floats = NDArray[np.float32]

INNER = 2048  # FCT: width of the mixing layers
FCT_EPOCHS = 80
FCT_RATE = 5e-4
FCT_BATCH = 1024
FCT_DECAY = 2.0**-15

SIDE_WIDTH = 64
SIDE_TEMPERATURE = 0.1
JITTER = 0.4  # of brightness and contrast, so that colours alone do not tell two views of an image

ADDED = 32  # BT2: components beside those of the new model
SCALE = 2.0  # C of the authors' code: the new model's part in the merged vector
MATCH_NEW = 1.0
INFLUENCE = 10.0
MATCH_OLD = 5.0
BT2_RATE = 1e-3
BT2_DECAY = 2.0**-15

WARMUP = 5 / 80  # the share of the steps in which the rate rises


class Pixels:
    """Images on the device, cut at random as training cuts them."""

    def __init__(self, images: ImageSet, settings: Settings) -> None:
        inputs = settings.preprocessing
        assert inputs is not None
        pixels = torch.from_numpy(
            np.ascontiguousarray(np.asarray(images.images).transpose(0, 3, 1, 2))
        )
        pad = settings.augmentation.crop_padding
        padded = functional.pad(pixels, (pad, pad, pad, pad), value=settings.augmentation.fill)
        self.padded = padded.to(settings.device)
        self.size = inputs.size
        self.mean = torch.tensor(inputs.mean, device=settings.device)[:, None, None]
        self.std = torch.tensor(inputs.std, device=settings.device)[:, None, None]
        self.augmentation = settings.augmentation
        self.batch_size = settings.recipe.batch_size
        self.device = settings.device
        self.random = torch.Generator(settings.device).manual_seed(settings.seed)

    def __len__(self) -> int:
        return len(self.padded)

    def batches(self) -> Iterator[Tensor]:
        """Rows of one pass in random order, without a last batch of one."""
        order = torch.randperm(len(self), generator=self.random, device=self.device)
        for rows in torch.split(order, self.batch_size):
            if len(rows) > 1:
                yield rows

    def crops(self, rows: Tensor, jitter: float = 0.0) -> Tensor:
        """A random crop of each row, normalised: float [B, C, H, W]."""
        height, width = self.size
        offsets = 2 * self.augmentation.crop_padding + 1
        device = self.device
        down = torch.randint(offsets, (len(rows), 1), generator=self.random, device=device)
        right = torch.randint(offsets, (len(rows), 1), generator=self.random, device=device)
        y = down + torch.arange(height, device=device)  # [B, H]
        x = right + torch.arange(width, device=device)  # [B, W]
        if self.augmentation.flip:
            flipped = torch.rand(len(rows), generator=self.random, device=device) < 0.5
            x = torch.where(flipped[:, None], x.flip(1), x)
        cut = self.padded[rows[:, None, None], :, y[:, :, None], x[:, None, :]]  # [B, H, W, C]
        values = cut.permute(0, 3, 1, 2).float() / 255
        if jitter:
            values = self._jittered(values, jitter)
        return (values - self.mean) / self.std

    def _jittered(self, values: Tensor, most: float) -> Tensor:
        """Brightness and contrast times a factor of each image, from 1 - most to 1 + most."""
        shape = (2, len(values), 1, 1, 1)
        factors = 1 + most * (
            2 * torch.rand(shape, generator=self.random, device=values.device) - 1
        )
        brighter = values * factors[0]
        middle = brighter.mean(dim=(1, 2, 3), keepdim=True)
        return ((brighter - middle) * factors[1] + middle).clamp(0, 1)

    def whole(self, images: Any) -> Iterator[Tensor]:
        """Images as they are, normalised, batch by batch."""
        for start in range(0, len(images), 1024):
            pixels = torch.from_numpy(
                np.ascontiguousarray(np.asarray(images[start : start + 1024]))
            )
            values = pixels.to(self.device).permute(0, 3, 1, 2).float() / 255
            yield (values - self.mean) / self.std


def trained(
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    batches: Callable[[], Iterator[Any]],
    loss: Callable[[Any], Tensor],
    *,
    epochs: int,
    steps: int,
    frozen_norms: bool = False,
) -> None:
    """Run an optimiser with a warm-up and a cosine; ``frozen_norms`` keeps batch norms fixed in the second half."""
    total = epochs * steps
    rises = max(1, round(WARMUP * total))
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimiser,
        [
            torch.optim.lr_scheduler.LinearLR(optimiser, 1 / rises, total_iters=rises),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, total - rises)),
        ],
        [rises],
    )
    for epoch in range(epochs):
        network.train(not (frozen_norms and epoch >= epochs / 2))
        for batch in batches():
            optimiser.zero_grad()
            torch.autograd.backward(loss(batch))
            optimiser.step()
            schedule.step()
    network.eval()


def steps_of(pixels: Pixels) -> int:
    """The number of batches of a pass."""
    whole, rest = divmod(len(pixels), pixels.batch_size)
    return max(1, whole + (rest > 1))


# --- FCT


def side_vectors(images: ImageSet, settings: Settings) -> SideEncoder:
    """A network that was trained by SimCLR on the images of the first version, without labels."""
    torch.manual_seed(settings.seed)
    body = create_backbone(settings.backbone, **settings.backbone_options)
    network = nn.Sequential(
        body,
        nn.Linear(body.feature_dim, body.feature_dim),
        nn.ReLU(),
        nn.Linear(body.feature_dim, SIDE_WIDTH),
    ).to(settings.device)
    pixels = Pixels(images, settings)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4)

    def loss(rows: Tensor) -> Tensor:
        both = torch.cat([pixels.crops(rows, JITTER), pixels.crops(rows, JITTER)])
        return two_view_contrast(network(both), SIDE_TEMPERATURE)

    trained(
        network,
        optimiser,
        pixels.batches,
        loss,
        epochs=settings.recipe.epochs,
        steps=steps_of(pixels),
    )
    return SideEncoder(network, pixels)


@dataclass(frozen=True)
class SideEncoder:
    """Side vectors of images: what FCT stores beside each vector."""

    network: nn.Module
    pixels: Pixels

    @torch.no_grad()
    def __call__(self, images: Any) -> Floats:
        """Unit vectors [N, SIDE_WIDTH]."""
        parts = [functional.normalize(self.network(batch)) for batch in self.pixels.whole(images)]
        return torch.cat(parts).cpu().numpy()


class Forward(nn.Module):
    """FCT's transformation: the old vector and the side vector, widened, joined and mixed."""

    def __init__(self, old: int, side: int, new: int) -> None:
        super().__init__()
        self.from_old = nn.Sequential(*_block(old, 2 * old), *_block(2 * old, 2 * new))
        self.from_side = nn.Sequential(*_block(side, 2 * side), *_block(2 * side, 2 * new))
        self.mixed = nn.Sequential(
            *_block(4 * new, INNER), *_block(INNER, INNER), nn.Linear(INNER, new)
        )

    def forward(self, old: Tensor, side: Tensor) -> Tensor:
        """[B, old] and [B, side] to [B, new]."""
        mixed: Tensor = self.mixed(torch.cat([self.from_old(old), self.from_side(side)], dim=1))
        return mixed


def _block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.ReLU()


def fct(
    old: Floats, side: Floats, new: Floats, *, device: str, seed: int
) -> Callable[[Floats, Floats], Floats]:
    """FCT's transformation, fitted by the mean squared error on vectors of the same images, [N, d] each."""
    torch.manual_seed(seed)
    network = Forward(old.shape[1], side.shape[1], new.shape[1]).to(device)
    x = torch.tensor(old, device=device)
    s = torch.tensor(side, device=device)
    y = torch.tensor(new, device=device)
    random = torch.Generator(device).manual_seed(seed)
    optimiser = torch.optim.Adam(network.parameters(), lr=FCT_RATE, weight_decay=FCT_DECAY)
    size = min(FCT_BATCH, max(2, len(x) // 8))

    def batches() -> Iterator[Tensor]:
        order = torch.randperm(len(x), generator=random, device=device)
        return (rows for rows in torch.split(order, size) if len(rows) > 1)

    def loss(rows: Tensor) -> Tensor:
        return functional.mse_loss(network(x[rows], s[rows]), y[rows])

    steps = len(x) // size + (len(x) % size > 1)
    trained(network, optimiser, batches, loss, epochs=FCT_EPOCHS, steps=steps, frozen_norms=True)

    @torch.no_grad()
    def mapped(stored: Floats, beside: Floats) -> Floats:
        vectors = network(torch.tensor(stored, device=device), torch.tensor(beside, device=device))
        return functional.normalize(vectors).cpu().numpy()

    return mapped


# --- BT2


class Bt2(nn.Module):
    """A backbone with BT2's two changes of basis.

    The backbone's feature is split: one part matches the new model, the other adds components that the old model needs.
    The merged vector is [Q [added, P(C new)][:m], the rest], whose first m components are compared with old vectors.
    """

    def __init__(self, body: Backbone, old: int, new: int, classes: int) -> None:
        super().__init__()
        self.old = old
        self.new = new
        self.body = body
        self.features = nn.Linear(body.feature_dim, new + old)
        self.from_all = nn.Linear(new + old, old)
        self.classify = nn.Linear(new, classes, bias=False)
        self.P = orthogonal(nn.Linear(new, new, bias=False))
        self.Q = orthogonal(nn.Linear(old, old, bias=False))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The part that matches the new model, the one that matches the old model, and the merged vector."""
        feature = self.features(self.body(images))
        matching = functional.normalize(feature[:, : self.new])
        added = functional.normalize(self.from_all(functional.relu(feature)))[:, :ADDED]
        joined = torch.cat([functional.normalize(added), self.P(SCALE * matching)], dim=1)
        compatible = self.Q(joined[:, : self.old])
        return matching, compatible, torch.cat([compatible, joined[:, self.old :]], dim=1)


@dataclass(frozen=True)
class Merged:
    """BT2's vectors of images: the merged ones, whose first ``old`` components old vectors are compared with."""

    network: Bt2
    pixels: Pixels

    @torch.no_grad()
    def __call__(self, images: Any) -> Floats:
        """[N, new + ADDED], not normalised."""
        parts = [self.network(batch)[2] for batch in self.pixels.whole(images)]
        return torch.cat(parts).cpu().numpy()


def bt2(images: ImageSet, old: Floats, new: Floats, settings: Settings) -> Merged:
    """Train BT2's network; ``old`` and ``new`` are the unit vectors of the images by both models, [N, d] each."""
    torch.manual_seed(settings.seed)
    body = create_backbone(settings.backbone, **settings.backbone_options)
    network = Bt2(body, old.shape[1], new.shape[1], len(images.classes)).to(settings.device)
    pixels = Pixels(images, settings)
    phi_old = torch.tensor(old, device=settings.device)
    phi_new = torch.tensor(new, device=settings.device)
    labels = torch.tensor(images.labels, device=settings.device)
    means = torch.zeros(len(images.classes), old.shape[1], device=settings.device).index_add_(
        0, labels, phi_old
    )
    means = means / torch.bincount(labels, minlength=len(means))[:, None].clamp(min=1)
    optimiser = torch.optim.Adam(network.parameters(), lr=BT2_RATE, weight_decay=BT2_DECAY)

    def loss(rows: Tensor) -> Tensor:
        matching, compatible, _ = network(pixels.crops(rows))
        ours = functional.normalize(compatible)
        off_old = 1 - (ours * phi_old[rows]).sum(dim=1).mean()
        off_new = 1 - (matching * phi_new[rows]).sum(dim=1).mean()
        classified = cross_entropy(network.classify(matching), labels[rows])
        influenced = cross_entropy(ours @ means.T, labels[rows])
        total: Tensor = (
            classified + INFLUENCE * influenced + MATCH_OLD * off_old + MATCH_NEW * off_new
        )
        return total

    trained(
        network,
        optimiser,
        pixels.batches,
        loss,
        epochs=settings.recipe.epochs,
        steps=steps_of(pixels),
    )
    return Merged(network, pixels)
