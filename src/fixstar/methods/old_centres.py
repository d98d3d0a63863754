"""What the old model knows of each class: a centre and a boundary, which LCE, AdvBCT and CVS hold new features to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fixstar.methods.method import Upgrade


class OldCentres(nn.Module):
    """The mean of the old model's unit features of each class, and the least cosine to it that an image has.

    Measured once, before training, on the new and the remembered images. A class without images is not known.
    """

    def __init__(self, features: Tensor, targets: Tensor, classes: int) -> None:
        super().__init__()
        unit = functional.normalize(features.float())
        total = torch.zeros(classes, unit.shape[1]).index_add_(0, targets, unit)
        count = torch.bincount(targets, minlength=classes)
        cosines = (unit * functional.normalize(total)[targets]).sum(dim=1)
        self.register_buffer("means", total / count.clamp(min=1)[:, None], persistent=False)
        self.register_buffer("seen", count >= 1, persistent=False)
        self.register_buffer("known", count >= 2, persistent=False)
        self.register_buffer(
            "loosest", torch.ones(classes).scatter_reduce_(0, targets, cosines, "amin"), persistent=False
        )
        self.means: Tensor  # [C, d]; at most of unit length, shorter the looser the class, zero for one not known
        self.seen: Tensor  # [C] bool: one image or more
        self.known: Tensor  # [C] bool: two images or more, so that there is a boundary to speak of
        self.loosest: Tensor  # [C]

    @classmethod
    def at(cls, upgrade: Upgrade, classes: Sequence[str]) -> OldCentres:
        """Those of the model before this upgrade, of ``classes``."""
        encoder, teacher = upgrade.encoder, upgrade.teacher
        assert teacher is not None, "the first version has no old centres"
        features, targets = [torch.zeros(0, teacher.feature_dim)], [torch.zeros(0, dtype=torch.long)]
        for part in (upgrade.images, upgrade.memory):
            chosen = None if part is None else part.of_classes([name for name in part.classes if name in classes])
            if chosen is not None and len(chosen):
                features.append(torch.from_numpy(teacher.encode(chosen.images)))
                targets.append(torch.tensor(encoder.slots.of(chosen.classes))[torch.from_numpy(chosen.labels)])
        return cls(torch.cat(features), torch.cat(targets), encoder.classifier.outputs).to(encoder.device)

    @classmethod
    def stored(cls, upgrade: Upgrade) -> OldCentres:
        """Those of the stored vectors, whichever versions made them."""
        encoder, old = upgrade.encoder, upgrade.old_vectors
        assert old is not None, "there are stored vectors"
        slots = [encoder.slots.of([name])[0] if name in encoder.slots else -1 for name in old.classes]
        targets = torch.tensor(slots)[torch.from_numpy(old.labels)]
        features = torch.from_numpy(old.vectors).float()
        return cls(features[targets >= 0], targets[targets >= 0], encoder.classifier.outputs).to(encoder.device)

    @property
    def radii(self) -> Tensor:
        """[C]: the largest distance of a unit feature u from its mean m, |u - m|^2 = 1 + |m|^2 - 2 |m| cos(u, m)."""
        length: Tensor = torch.linalg.vector_norm(self.means, dim=1)
        return (1 + length.square() - 2 * length * self.loosest).clamp(min=0).sqrt()
