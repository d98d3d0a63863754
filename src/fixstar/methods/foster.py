"""FOSTER: a second network learns what the old one lacks, then both are compressed into one."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fixstar.errors import InputError, ModelError
from fixstar.losses import balanced_distillation, cross_entropy, knowledge_distillation
from fixstar.methods.method import Method, Objective, Stage, Step, Terms, Upgrade
from fixstar.models import Encoder


def foster(
    boost_beta: float = 0.96, compress_beta: float = 0.97, temperature: float = 2.0, epochs: float = 0.75
) -> Method:
    """FOSTER (Wang et al. 2022): feature boosting, then feature compression by balanced distillation.

    Boosting: the old network is frozen; a new one, and a classifier on both their features, learn CE with logits scaled
    by class frequency, CE of the new network alone, and the old model's answers. Compression: one network, from the old
    weights, follows the pair, rare classes counting more (eq. 14). ``epochs`` is its length, relative to boosting. The
    betas set how much class frequency counts, as in the published code; here it is that of the batches, which are half
    replayed images.
    """
    betas = (boost_beta, compress_beta)
    if not all(0 <= beta < 1 for beta in betas) or not temperature > 0 or not epochs > 0:
        raise InputError(
            f"foster needs betas in [0, 1), temperature and epochs > 0; got {betas}, {temperature}, {epochs}"
        )
    return Method(
        "foster",
        "a second network learns what the old one lacks; both are then compressed into one",
        "Wang et al. 2022, eqs. 8 to 14; CL2R, section 7.3 (FOSTER)",
        begin=lambda upgrade: _boosted(upgrade, boost_beta, compress_beta, temperature, epochs),
        classifier="linear",
        needs=frozenset({"old model", "replay"}),
        options={
            "boost_beta": boost_beta,
            "compress_beta": compress_beta,
            "temperature": temperature,
            "epochs": epochs,
        },
        extra_passes=5 * epochs,
    )


def effective_weights(counts: Tensor, beta: float) -> Tensor:
    """(1 - beta) / (1 - beta^n) of each class of n images, brought to mean 1: larger for rarer classes. [C] to [C]."""
    weights = (1 - beta) / (1 - beta ** counts.clamp(min=1).double())
    return (weights / weights.mean()).float()


class _Pair(nn.Module):
    """The old and the new network under one classifier. ``boosted`` is a frozen copy of the new one, once learnt."""

    def __init__(self, encoder: Encoder, old_weight: Tensor, seed: int) -> None:
        super().__init__()
        outputs, (old_outputs, old_width) = encoder.classifier.outputs, old_weight.shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # the same start whenever a run is repeated or resumed
            self.head = nn.Linear(old_width + encoder.feature_dim, outputs, bias=False)
        with torch.no_grad():
            self.head.weight[:old_outputs, :old_width] = old_weight
        self.boosted = copy.deepcopy(encoder).eval().requires_grad_(False)

    def forward(self, old: Tensor, new: Tensor) -> Tensor:
        """Features [B, d'] and [B, d] to logits [B, C]."""
        logits: Tensor = self.head(torch.cat([old, new], dim=1))
        return logits


def _boosted(upgrade: Upgrade, boost_beta: float, compress_beta: float, temperature: float, epochs: float) -> Objective:
    if upgrade.teacher is None or not upgrade.old_outputs:
        return Objective(lambda step: {"ce": step.new.cross_entropy(step.targets)})
    encoder, old_head = upgrade.encoder, upgrade.teacher.classifier
    if encoder.classifier.kind != "linear" or old_head.kind != "linear":
        raise ModelError(
            f"foster joins linear classifiers; this model has a {old_head.kind} one. Begin with it from v1"
        )
    pair = _Pair(encoder, old_head.get_parameter("weight"), upgrade.seed).to(encoder.device)
    start = {name: value.clone() for name, value in encoder.state_dict().items()}
    counts = _shown(upgrade).to(encoder.device)
    frequency, rarity = effective_weights(counts, boost_beta), effective_weights(counts, compress_beta)

    def boosting(step: Step) -> Terms:
        assert step.old is not None  # the teacher is there
        logits = pair(step.old.z, step.new.z)
        return {
            "ce": cross_entropy(logits / frequency, step.targets),
            "enhance": step.new.cross_entropy(step.targets),
            "kd": knowledge_distillation(logits[:, : old_head.outputs], step.old.logits, temperature),
        }

    def compression(step: Step) -> Terms:
        assert step.old is not None
        assert step.pixels is not None
        with torch.no_grad():
            answers = pair(step.old.z, pair.boosted(step.pixels).z)
        return {"compress": balanced_distillation(step.new.logits, answers, rarity, temperature)}

    def begin() -> None:
        pair.boosted.load_state_dict(encoder.state_dict())
        encoder.load_state_dict(start)

    stage = Stage(compression, "compression", epochs, trains=encoder, begin=begin)
    return Objective(boosting, pair, (stage,))


def _shown(upgrade: Upgrade) -> Tensor:
    """[C]: the images of each class that an epoch shows; new and remembered ones take half of every batch each."""
    parts = [part for part in (upgrade.images, upgrade.memory) if part is not None and len(part)]
    total = sum(len(part) for part in parts)
    counts = torch.zeros(upgrade.encoder.classifier.outputs)
    for part in parts:
        for name, count in part.counts().items():
            counts[upgrade.encoder.slots.of([name])[0]] += count * total / (len(parts) * len(part))
    return counts
