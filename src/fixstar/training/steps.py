"""The steps of a stage: one batch, one update. These are eager; ``captured`` has the recorded steps for a GPU.

Several processes make the same update as a single one. Each runs its share of the batch through the networks. Features
are gathered before the loss, so that every term sees the whole batch, and each process computes the same loss L. The
mean of these losses is differentiated, with collectives that send gradients back to the owners of the features. Summed
over processes, the gradient is that of L.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, optim
from torch import distributed as dist

from fixstar.data.batches import Batch
from fixstar.data.pixels import Crops, PixelSource
from fixstar.errors import InputError
from fixstar.methods import Step
from fixstar.models import FrozenEncoder, Outputs
from fixstar.training.distributed import collective, synchronised, world
from fixstar.training.run import PlacedStage, Training, set_rate, take_step

Shown = Callable[[int, str], object]
"""Called with the number of images trained on since the last call, and a note."""


class Steps(Protocol):
    """Runs whole epochs."""

    def epoch(self, number: int, shown: Shown) -> dict[str, Tensor]:
        """Train epoch ``number`` of the run; returns the sum of each term over its steps."""


_Outputs = tuple[
    Outputs, Outputs | None, Outputs | None
]  # of the new, the previous and the first model, if needed


def update(
    run: Training,
    part: PlacedStage,
    optimiser: optim.Optimizer,
    batch: Batch,
    done: Tensor | float,
    teacher_stream: Any = None,
) -> dict[str, Tensor]:
    """One update; returns the detached terms. On ``teacher_stream`` (CUDA) the old model runs in parallel.

    With several processes, projection, classifier and loss see the whole batch in each process.
    """
    size = world().size
    optimiser.zero_grad(set_to_none=True)
    if size == 1:
        new, old, first = _outputs(run, batch, teacher_stream)
    else:
        new, old, first = _shared_outputs(run, batch)
    terms = part.stage.terms(
        Step(
            new=new,
            old=old,
            targets=batch.targets,
            replay=batch.replay,
            progress=done,
            pixels=batch.pixels,
            turns=batch.turns,
            first=first,
        )
    )
    loss = torch.stack(list(terms.values())).sum()
    torch.autograd.backward(loss if size == 1 else loss / size)
    if size > 1:
        _sum_gradients(optimiser)
    take_step(optimiser, part.recipe.clip)
    return {name: value.detach() for name, value in terms.items()}


def _outputs(run: Training, batch: Batch, teacher_stream: Any) -> _Outputs:
    def seen_by(model: FrozenEncoder | None) -> Outputs | None:
        if model is None:
            return None
        return model(batch.pixels, maps=run.maps, bfloat16=run.bfloat16)

    if teacher_stream is None:
        old = seen_by(run.teacher)
        first = seen_by(run.first)
    else:
        teacher_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(teacher_stream):
            old = seen_by(run.teacher)
            first = seen_by(run.first)
    new = run.encoder(batch.pixels, batch.targets, maps=run.maps, bfloat16=run.bfloat16)
    if teacher_stream is not None:
        torch.cuda.current_stream().wait_stream(teacher_stream)
    return new, old, first


class EagerSteps:
    """Eager steps; several processes share each batch."""

    def __init__(self, run: Training, part: PlacedStage, optimiser: optim.Optimizer) -> None:
        self._run = run
        self._part = part
        self._optimiser = optimiser

    def epoch(self, number: int, shown: Shown) -> dict[str, Tensor]:
        """See ``Steps``. The mean loss so far is reported on a CPU, where reading it costs nothing."""
        part = self._part
        sums = dict[str, Tensor]()
        before = (number - part.first) * part.batches.per_epoch
        reads = self._run.encoder.device.type == "cpu"
        for count, (rate, batch) in enumerate(
            zip(part.rates(number), part.batches.epoch(number), strict=True), start=1
        ):
            done = (before + count - 1) / part.steps
            set_rate(self._optimiser, rate)
            for name, value in update(
                self._run, part=part, optimiser=self._optimiser, batch=batch, done=done
            ).items():
                if name in sums:
                    sums[name] = sums[name] + value
                else:
                    sums[name] = value
            if reads:
                loss = f", loss {sum(value.item() for value in sums.values()) / count:.3f}"
            else:
                loss = ""
            shown(part.batches.batch_size, loss)
        return sums


# Shared by several processes.


def _shared_outputs(run: Training, batch: Batch) -> _Outputs:
    """The outputs for the whole batch, of which each process takes a share through the networks."""
    here = world()
    total = len(batch.targets)
    if total < here.size:
        raise InputError(
            f"a batch of {total} images cannot be shared by {here.size} processes; start fewer processes"
        )
    pixels = batch.pixels[here.share(total)]
    old, first = (
        _seen_by_all(model, run=run, pixels=pixels, total=total)
        for model in (run.teacher, run.first)
    )
    with synchronised(run.encoder.backbone):
        own: Outputs = run.encoder(pixels, maps=run.maps, bfloat16=run.bfloat16)
    return (
        run.encoder.heads(gathered(own.h, total), batch.targets, _all_gathered(own, total)),
        old,
        first,
    )


def _seen_by_all(
    model: FrozenEncoder | None, run: Training, pixels: Tensor, total: int
) -> Outputs | None:
    """A past model's outputs for the whole batch, of which each process computes a share."""
    if model is None:
        return None
    seen = model(pixels, maps=run.maps, bfloat16=run.bfloat16)
    return model.heads(gathered(seen.h, total), _all_gathered(seen, total))


def _all_gathered(outputs: Outputs, total: int) -> tuple[Tensor, ...]:
    return tuple(gathered(each, total) for each in outputs.maps)


def _sum_gradients(optimiser: optim.Optimizer) -> None:
    """Sum gradients over all processes, in one message."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    with collective():
        dist.all_reduce(flat)
    sizes = [gradient.numel() for gradient in gradients]
    for gradient, part in zip(gradients, torch.split(flat, sizes), strict=True):
        gradient.copy_(part.view(gradient.shape))


def gathered(own: Tensor, total: int) -> Tensor:
    """The rows of all processes, [total, ...], from this one's share; gradients flow back."""
    whole: Tensor = _Gathered.apply(own, total)  # type: ignore[no-untyped-call]
    return whole


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, total: int) -> Tensor:
        ctx.total = total
        return _rows_of_all(own, total)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        whole = gradients[0].float().contiguous().clone()
        with collective():
            dist.all_reduce(whole)
        return whole[world().share(ctx.total)].to(gradients[0].dtype), None


def _rows_of_all(own: Tensor, total: int) -> Tensor:
    here = world()
    rows = [len(range(total)[here.share(total, rank)]) for rank in range(here.size)]
    padded = own.new_zeros(
        (rows[0], *own.shape[1:])
    )  # collectives need equal shapes; the first share is the longest
    padded[: len(own)] = own
    parts = [torch.empty_like(padded) for _ in rows]
    with collective():
        dist.all_gather(parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, rows, strict=True)])


class SharedPixels:
    """A source that is slow to read, such as files: each process reads its share of a batch and sends it to all."""

    def __init__(self, source: PixelSource) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def cut(self, crops: Crops) -> Iterator[Tensor]:
        """See ``PixelSource``."""
        total = crops.image.shape[1]
        if total < world().size:  # nothing to share
            yield from self._source.cut(crops)
            return
        mine = world().share(total)
        for pixels in self._source.cut(Crops(*(each[:, mine] for each in crops))):
            yield _rows_of_all(pixels, total)
