"""The only training loop: stages of epochs; a method's named loss terms are summed, logged, checkpointed, resumed."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, optim

from fixstar.errors import InputError, NextStep
from fixstar.kernels import build_errors
from fixstar.progress import Advance, progress_bar
from fixstar.training.captured import CapturedSteps
from fixstar.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, weights_digest
from fixstar.training.distributed import (
    broadcast_from_rank_zero,
    from_rank_zero,
    require_same_on_all_ranks,
    world,
)
from fixstar.training.run import (
    PlacedStage,
    Training,
    ValidationScores,
    create_optimiser,
    parts_of,
    selected_epoch,
)
from fixstar.training.steps import EagerSteps, Steps

_PAUSE = 5.0  # minimum seconds between checkpoints if epochs are short (a GPU, a frozen backbone)

_DIVERGED = (
    1000.0  # cross-entropy from which no training recovers; guessing among a million classes has 14
)


@dataclass(frozen=True)
class EpochLog:
    """Mean of each loss term over an epoch, its last learning rate, and the ``scores`` of model selection."""

    epoch: int
    learning_rate: float
    terms: dict[str, float]
    stage: str = "training"
    scores: ValidationScores | None = None

    @property
    def loss(self) -> float:
        """The sum of the terms."""
        return sum(self.terms.values())


def train(run: Training) -> list[EpochLog]:
    """Train ``run.encoder`` in place; resumes from ``run.checkpoint`` if it exists, to the same weights.

    Processes started by ``torchrun`` train together: all make the same call and end with the same weights.
    """
    parts = list(parts_of(run))
    resumed = Checkpoint()
    if run.checkpoint is not None:
        resumed = load_checkpoint(
            run.checkpoint,
            model=run.modules(),
            fingerprint=run.fingerprint,
            parts=run.fingerprint_parts,
        )
    log = [_entry(item) for item in resumed.log]
    best = dict(resumed.best)
    of_encoder = [
        part for part in parts if part.stage.trains is None or part.stage.trains is run.encoder
    ]
    selected = of_encoder[-1]  # the stage whose epochs model selection chooses from
    _require_same_start(run, parts, log)
    done, total = (
        sum(part.images(epoch) for part in parts) for epoch in (len(log), parts[-1].after)
    )
    device = run.encoder.device
    shown = run.progress and world().is_rank_zero
    run.warn_of_emulation()
    with (
        torch.cuda.device(device)
        if device.type == "cuda"
        else nullcontext(),  # for streams and kernels
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        progress_bar(run.title, total, "images", show=shown, done=done) as advance,
    ):
        for part in parts:
            if len(log) > part.after:  # the checkpoint belongs to a later stage
                continue
            if len(log) == part.first and part.stage.begin is not None:
                part.stage.begin()
                broadcast_from_rank_zero(run.modules().state_dict().values())
            _run_part(
                run=run,
                part=part,
                log=log,
                best=best,
                resumed=resumed,
                advance=advance,
                select=part is selected,
            )
            if part is selected and best:
                run.encoder.load_state_dict(best)
    if run.objective.finish is not None:
        run.objective.finish()
        broadcast_from_rank_zero(run.modules().state_dict().values())
    run.encoder.eval()
    return log


def _run_part(
    run: Training,
    part: PlacedStage,
    log: list[EpochLog],
    best: dict[str, Tensor],
    resumed: Checkpoint,
    advance: Advance,
    select: bool,
) -> None:
    """The remaining epochs of a stage; a new stage has a new optimiser."""
    optimiser = create_optimiser(run, part)
    if part.first < len(log):
        resumed.restore_optimiser(optimiser)
    steps: Steps | None = None
    saved = time.monotonic()
    for epoch in range(len(log), part.after):
        run.modules().eval()
        run.trained(part.stage).train()
        steps = steps or _steps(run, part, optimiser)
        entry = _epoch(
            run=run,
            part=part,
            steps=steps,
            epoch=epoch,
            advance=advance,
            last=log[-1].loss if log else None,
        )
        _require_converging(entry, run.checkpoint, part.recipe.learning_rate)
        if run.select is not None and select:
            entry = replace(entry, scores=_scores(run))
        log.append(entry)
        if (
            entry.scores is not None
            and selected_epoch([e.scores for e in log if e.scores]) == epoch - part.first
        ):
            best.update({name: value.clone() for name, value in run.encoder.state_dict().items()})
        pause = 0.0
        if run.frozen or run.encoder.device.type == "cuda":
            pause = _PAUSE
        due = epoch + 1 == part.after or time.monotonic() >= saved + pause
        if run.checkpoint is not None and due and world().is_rank_zero:
            saved = time.monotonic()
            entries = [asdict(entry) for entry in log]
            state = (
                run.modules(),
                optimiser,
                run.fingerprint,
                entries,
                best,
                run.fingerprint_parts,
            )
            save_checkpoint(run.checkpoint, *state)


def _require_same_start(run: Training, parts: Sequence[PlacedStage], log: list[EpochLog]) -> None:
    if world().size > 1:
        facts = {"settings": run.fingerprint, "batches": [part.batches.per_epoch for part in parts]}
        require_same_on_all_ranks(
            {**facts, "epochs done before": len(log), "weights": weights_digest(run.modules())}
        )


def _scores(run: Training) -> ValidationScores:
    """Measured on rank zero only: all ranks have the same weights."""
    select = run.select
    assert select is not None
    return ValidationScores(*from_rank_zero(lambda: select(run.encoder)))


def _steps(run: Training, part: PlacedStage, optimiser: optim.Optimizer) -> Steps:
    if run.encoder.device.type == "cuda" and part.batches.resident and world().size == 1:
        not_recorded: tuple[type[Exception], ...] = (RuntimeError, *build_errors())
        try:
            return CapturedSteps(run, part, optimiser)
        except (
            not_recorded
        ) as error:  # a model or loss reads values on the host, or a kernel does not fit
            warnings.warn(
                f"the step could not be recorded ({error}); training continues step by step",
                stacklevel=2,
            )
    return EagerSteps(run, part, optimiser)


def _entry(item: dict[str, Any]) -> EpochLog:
    scores = item["scores"]
    return EpochLog(**{**item, "scores": None if scores is None else ValidationScores(*scores)})


def _epoch(
    run: Training, part: PlacedStage, steps: Steps, epoch: int, advance: Advance, last: float | None
) -> EpochLog:
    # for dropout: the same after resuming, but different for each process's share of a batch
    torch.manual_seed(run.seed * 1_000_003 + epoch + 15_485_863 * world().rank)
    place = f"{part.stage.name}, epoch {epoch - part.first + 1}/{part.recipe.epochs}"
    before = ""  # shown if reading the loss would wait for the GPU
    if last is not None:
        before = f", loss {last:.3f}"
    sums = steps.epoch(epoch, lambda images, loss: advance(images, place + (loss or before)))
    terms = from_rank_zero(
        lambda: {name: value.item() / part.batches.per_epoch for name, value in sums.items()}
    )
    return EpochLog(epoch, part.rates(epoch)[-1], terms, part.stage.name)


def _require_converging(entry: EpochLog, checkpoint: Path | None, learning_rate: float) -> None:
    """Stop a run that has diverged, without its checkpoint: resuming would diverge again."""
    if math.isfinite(entry.loss) and entry.terms.get("ce", 0.0) < _DIVERGED:
        return
    if checkpoint is not None and world().is_rank_zero:
        checkpoint.unlink(missing_ok=True)
    terms = ", ".join(f"{name} {value:.3g}" for name, value in entry.terms.items())
    raise InputError(
        f"the training diverged: the loss of epoch {entry.epoch + 1} is {entry.loss:.3g} ({terms}). No version was "
        f"made. The learning rate, {learning_rate:g}, is probably too high",
        NextStep("repeat", {"learning_rate": round(learning_rate / 10, 12)}, "a tenth of it"),
    )
