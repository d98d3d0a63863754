"""The steps of a stage: one batch, one update. Eager anywhere; others in ``captured`` (a GPU) and ``shared_step``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, optim

from fixstar.data.batches import Batch
from fixstar.methods import Step
from fixstar.models import FrozenEncoder, Outputs
from fixstar.training.distributed import world
from fixstar.training.optimiser import set_rate, take_step
from fixstar.training.run import Part, Training
from fixstar.training.shared_step import shared_update

Shown = Callable[[int, str], object]
"""Called with the number of images trained on since the last call, and a note."""


class Steps(Protocol):
    """Runs whole epochs."""

    def epoch(self, number: int, shown: Shown) -> dict[str, Tensor]:
        """Train for epoch ``number`` of the run; the sum of each term over its steps."""


def update(
    run: Training,
    part: Part,
    optimiser: optim.Optimizer,
    batch: Batch,
    done: Tensor | float,
    teacher_stream: Any = None,
) -> dict[str, Tensor]:
    """One update; returns the detached terms. On ``teacher_stream`` (CUDA) the old model runs beside the new."""
    optimiser.zero_grad(set_to_none=True)
    old, first = _old_outputs(run, batch, teacher_stream)
    new = run.encoder(batch.pixels, batch.targets, maps=run.maps, bfloat16=run.bfloat16)
    if teacher_stream is not None:
        torch.cuda.current_stream().wait_stream(teacher_stream)
    terms = part.stage.terms(Step(new, old, batch.targets, batch.replay, done, batch.pixels, batch.turns, first))
    torch.autograd.backward(torch.stack(list(terms.values())).sum())
    take_step(optimiser, part.recipe.clip)
    return {name: value.detach() for name, value in terms.items()}


def _old_outputs(run: Training, batch: Batch, teacher_stream: Any) -> tuple[Outputs | None, Outputs | None]:
    """The outputs of the previous and the first model for a batch, if the method needs them."""

    def seen_by(model: FrozenEncoder | None) -> Outputs | None:
        return None if model is None else model(batch.pixels, maps=run.maps, bfloat16=run.bfloat16)

    if teacher_stream is None:
        return seen_by(run.teacher), seen_by(run.first)
    teacher_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(teacher_stream):
        return seen_by(run.teacher), seen_by(run.first)


class EagerSteps:
    """Runs operation by operation; several processes share each batch."""

    def __init__(self, run: Training, part: Part, optimiser: optim.Optimizer) -> None:
        self._run, self._part, self._optimiser = run, part, optimiser

    def epoch(self, number: int, shown: Shown) -> dict[str, Tensor]:
        """See ``Steps``. The mean loss so far is reported on a CPU, where reading it costs nothing."""
        part, sums = self._part, dict[str, Tensor]()
        before = (number - part.first) * part.batches.per_epoch
        reads = self._run.encoder.device.type == "cpu"
        once = update if world().size == 1 else shared_update
        for count, (rate, batch) in enumerate(
            zip(part.rates(number), part.batches.epoch(number), strict=True), start=1
        ):
            done = (before + count - 1) / part.steps
            set_rate(self._optimiser, rate)
            for name, value in once(self._run, part, self._optimiser, batch, done).items():
                sums[name] = sums[name] + value if name in sums else value
            loss = f", loss {sum(value.item() for value in sums.values()) / count:.3f}" if reads else ""
            shown(part.batches.batch_size, loss)
        return sums
