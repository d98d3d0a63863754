"""The only training loop: sums a method's named terms, steps, logs, checkpoints, resumes."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn, optim

from fixstar.data.batches import Batch, Batches
from fixstar.errors import FixstarError
from fixstar.methods import Objective, Step
from fixstar.models import Encoder, FrozenEncoder
from fixstar.progress import Advance, progress_bar
from fixstar.training.checkpoint import load_checkpoint, save_checkpoint
from fixstar.training.recipe import Recipe

__all__ = ["EpochLog", "Training", "train"]


@dataclass(frozen=True)
class EpochLog:
    """Mean of each loss term over an epoch, and the learning rate it ran at."""

    epoch: int
    learning_rate: float
    terms: dict[str, float]

    @property
    def loss(self) -> float:
        """The sum of the terms."""
        return sum(self.terms.values())


@dataclass
class Training:
    """What one version's training works on. ``fingerprint`` guards against resuming with other settings."""

    encoder: Encoder
    objective: Objective
    batches: Batches
    recipe: Recipe
    teacher: FrozenEncoder | None = None
    seed: int = 0
    checkpoint: Path | None = None
    fingerprint: str = ""
    title: str = "training"
    progress: bool = True

    def modules(self) -> nn.ModuleDict:
        """Everything that is trained."""
        extra = self.objective.module
        return nn.ModuleDict({"encoder": self.encoder} | ({} if extra is None else {"objective": extra}))


def train(run: Training) -> list[EpochLog]:
    """Train ``run.encoder`` in place; goes on from ``run.checkpoint`` where there is one, to the same weights."""
    optimiser = _optimiser(run)
    log = _resume(run, optimiser)
    total = run.recipe.epochs * run.batches.per_epoch
    device = run.encoder.device
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        progress_bar(run.title, total * run.batches.batch_size, "images", show=run.progress) as advance,
    ):
        advance(len(log) * run.batches.per_epoch * run.batches.batch_size)
        for epoch in range(len(log), run.recipe.epochs):
            log.append(_epoch(run, optimiser, epoch, advance, log[-1].loss if log else None))
            _require_finite(log[-1], run.checkpoint)
            if run.checkpoint is not None:
                entries = [asdict(entry) for entry in log]
                save_checkpoint(run.checkpoint, run.modules(), optimiser, run.fingerprint, entries)
    run.encoder.eval()
    return log


def _optimiser(run: Training) -> optim.SGD:
    recipe = run.recipe
    parameters = [p for p in run.modules().parameters() if p.requires_grad]
    return optim.SGD(parameters, recipe.learning_rate, recipe.momentum, weight_decay=recipe.weight_decay)


def _resume(run: Training, optimiser: optim.SGD) -> list[EpochLog]:
    if run.checkpoint is None:
        return []
    return [EpochLog(**entry) for entry in load_checkpoint(run.checkpoint, run.modules(), optimiser, run.fingerprint)]


def _epoch(run: Training, optimiser: optim.SGD, epoch: int, advance: Advance, last: float | None) -> EpochLog:
    rate = run.recipe.rate(epoch)
    for group in optimiser.param_groups:
        group["lr"] = rate
    torch.manual_seed(run.seed * 1_000_003 + epoch)  # dropout and the like, the same after a resume
    run.modules().train()
    sums: dict[str, Tensor] = {}
    for count, batch in enumerate(run.batches.epoch(epoch), start=1):
        for name, value in _step(run, optimiser, batch).items():
            sums[name] = sums[name] + value if name in sums else value
        note = f"epoch {epoch + 1}/{run.recipe.epochs}"
        if run.encoder.device.type == "cpu":
            note += f", loss {sum(value.item() for value in sums.values()) / count:.3f}"
        elif last is not None:  # reading a loss waits for the GPU: show the last epoch's
            note += f", loss {last:.3f}"
        advance(len(batch.targets), note)
    terms = {name: value.item() / run.batches.per_epoch for name, value in sums.items()}
    return EpochLog(epoch, rate, terms)


def _step(run: Training, optimiser: optim.SGD, batch: Batch) -> dict[str, Tensor]:
    """One update; returns the detached terms."""
    new = run.encoder(batch.pixels, batch.targets)
    old = run.teacher(batch.pixels) if run.teacher is not None else None
    terms = run.objective.terms(Step(new, old, batch.targets, batch.replay))
    optimiser.zero_grad(set_to_none=True)
    torch.autograd.backward(torch.stack(list(terms.values())).sum())
    optimiser.step()
    return {name: value.detach() for name, value in terms.items()}


def _require_finite(entry: EpochLog, checkpoint: Path | None) -> None:
    """Stop a run that has failed for good; its checkpoint would only lead to the same end."""
    if not math.isfinite(entry.loss):
        if checkpoint is not None:
            checkpoint.unlink(missing_ok=True)
        raise FixstarError(
            f"the loss became {entry.loss} in epoch {entry.epoch + 1} ({entry.terms}); "
            f"lower the learning rate, now {entry.learning_rate:g}, and run again"
        )
