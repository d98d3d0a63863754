"""Training one version with several processes, started by ``torchrun``.

Every process runs the same program with the same seed and sees the same files. Only rank zero writes files and prints.
Messages between processes are JSON: nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

from fixstar import errors
from fixstar.errors import FixstarError, InputError, NextStep

_TIMEOUT = timedelta(
    minutes=30
)  # rank zero may write or validate that long; if a process dies, all end immediately
_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # set by torchrun


class World(NamedTuple):
    """The rank of this process and the number of processes; by default a single one."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # rank on this machine
    local_size: int = 1

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def share(self, total: int, rank: int | None = None) -> slice:
        """The rows out of ``total`` for a rank (default: this one); shares differ by at most one row.

        >>> [World(rank, 3).share(8) for rank in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
        """
        rank = self.rank if rank is None else rank
        each, left = divmod(total, self.size)
        start = rank * each + min(rank, left)
        return slice(start, start + each + (rank < left))


def world() -> World:
    """The ``World`` of this process. The first call joins the process group; all processes must make it."""
    if not dist.is_available():
        return World()
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) == 1 or not all(
            name in os.environ for name in _LAUNCHED
        ):
            return World()
        if torch.cuda.is_available() and dist.is_nccl_available():
            backend = "cpu:gloo,cuda:nccl"
        else:
            backend = "gloo"
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if (
            local_rank < torch.cuda.device_count()
        ):  # before anything allocates memory on the first GPU
            torch.cuda.set_device(local_rank)
        with collective():
            dist.init_process_group(backend, timeout=_TIMEOUT)
    size = dist.get_world_size()
    rank = dist.get_rank()
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    return World(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=int(os.environ.get("LOCAL_WORLD_SIZE", size)),
    )


def leave() -> None:
    """Leave the process group, if any, at the end of a program."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def local_device(device: torch.device) -> torch.device:
    """The device itself; with several processes, each one's own GPU."""
    here = world()
    if here.size == 1 or device.type != "cuda":
        return device
    if device.index is not None:
        raise InputError(
            f"{here.size} processes cannot all train on {device}; device='cuda' gives each its own GPU"
        )
    if here.local_rank >= torch.cuda.device_count():
        raise InputError(
            f"{here.local_size} processes on a machine with {torch.cuda.device_count()} GPUs; "
            f"start {torch.cuda.device_count()} processes per machine, or train with device='cpu'"
        )
    torch.cuda.set_device(here.local_rank)
    return torch.device("cuda", here.local_rank)


@contextlib.contextmanager
def collective() -> Iterator[None]:
    """Wraps communication with other processes, for a clear error if they are gone."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        rank = os.environ.get("RANK", "?")
        size = os.environ.get("WORLD_SIZE", "?")
        if str(error).strip():
            reason = str(error).strip().splitlines()[0]
        else:
            reason = type(error).__name__
        raise FixstarError(
            f"process {rank} of {size} has lost the others ({reason}). If one of them has stopped, its message says "
            "why; then run the same training again to resume from the last checkpoint"
        ) from error


def all_gather_json(value: Any) -> list[Any]:
    """The values of all ranks, in rank order, on all ranks. Values must be plain JSON."""
    here = world()
    if here.size == 1:
        return [value]
    message = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.long) for _ in range(here.size)]
    with collective():
        dist.all_gather(lengths, torch.tensor([len(message)]))
        longest = int(max(lengths).item())
        texts = [torch.zeros(longest, dtype=torch.uint8) for _ in lengths]
        dist.all_gather(texts, nn.functional.pad(message, (0, longest - len(message))))
    return [
        json.loads(bytes(text[: int(n)].numpy())) for text, n in zip(texts, lengths, strict=True)
    ]


def from_rank_zero(make: Callable[[], Any]) -> Any:
    """What ``make`` returns on rank zero, as plain JSON, on all ranks. Its error is raised on all ranks."""
    here = world()
    if here.size == 1:
        return make()
    result: dict[str, Any] = {}
    if here.is_rank_zero:
        try:
            result = {"value": make()}
        except Exception as error:
            steps = [step.to_json() for step in getattr(error, "next_steps", ())]
            all_gather_json(
                {"error": type(error).__name__, "message": str(error), "next_steps": steps}
            )
            raise
    result = all_gather_json(result)[0]
    if "error" in result:
        raise _same_error(
            result["error"],
            result["message"],
            [NextStep.from_json(s) for s in result["next_steps"]],
        )
    return result["value"]


def on_rank_zero(act: Callable[[], object]) -> None:
    """Do something on rank zero only, such as writing a file; the others wait for it."""

    def without_result() -> None:
        act()

    from_rank_zero(without_result)


def _same_error(name: str, message: str, next_steps: Iterable[NextStep]) -> FixstarError:
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, FixstarError):
        error = kind.__new__(kind, message)  # some exceptions take more than a message
        FixstarError.__init__(error, message, *next_steps)
        return error
    return FixstarError(f"rank zero failed: {name}: {message}")


def require_same_on_all_ranks(facts: Mapping[str, Any]) -> None:
    """Raise unless these facts are the same on all ranks."""
    if world().size == 1:
        return
    gathered = all_gather_json(dict(facts))
    for name in facts:
        for rank, other in enumerate(gathered):
            if other[name] != gathered[0][name]:
                raise FixstarError(
                    f"the processes of this run differ: {name} is {gathered[0][name]} on rank 0 and {other[name]} on "
                    f"rank {rank}. All need the same command, software, images and workspace (on several machines: a "
                    "shared directory)"
                )


@torch.no_grad()
def broadcast_from_rank_zero(values: Iterable[Tensor]) -> None:
    """Copy the values of tensors from rank zero to all ranks; rounding may have differed."""
    if world().size > 1:
        for value in values:
            dense = value.contiguous()
            with collective():
                dist.broadcast(dense, src=0)
            value.copy_(dense)


# Batch norm over the whole batch where each process holds a share of it. torch.nn.SyncBatchNorm does the same, but it
# raises for tensors on a CPU, where this is tested with two processes, and it would have to replace the layers: then
# the names and types of what is saved would depend on the number of processes. So the layers stay, and only their
# ``forward`` is exchanged meanwhile. A test fails once torch's takes tensors on a CPU.


@contextlib.contextmanager
def synchronised(model: nn.Module) -> Iterator[None]:
    """Inside, batch norms in training use the statistics of all processes. Saved models do not change."""
    layers: list[Any] = [part for part in model.modules() if isinstance(part, _BatchNorm)]
    for layer in layers:
        layer.forward = lambda x, layer=layer: _forward(layer, x)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _forward(layer: _BatchNorm, x: Tensor) -> Tensor:
    mean = layer.running_mean
    var = layer.running_var
    momentum = layer.momentum
    if not layer.training and mean is not None:
        return type(layer).forward(layer, x)
    y, batch_mean, batch_var, count = _Normalised.apply(x, layer.weight, layer.bias, layer.eps)  # type: ignore[no-untyped-call]
    if layer.training and mean is not None and var is not None:
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked.add_(1)
        if momentum is None:  # the mean over all batches so far
            assert layer.num_batches_tracked is not None
            momentum = 1 / float(layer.num_batches_tracked)
        mean.lerp_(batch_mean.to(mean.dtype), momentum)
        var.lerp_(
            (batch_var * (count / (count - 1))).to(var.dtype), momentum
        )  # unbiased, as in torch
    normalised: Tensor = y
    return normalised


class _Normalised(torch.autograd.Function):
    """y = gain (x - mean) / sqrt(var + eps) + bias, mean and variance over all processes.

    The gradients of gain and bias are those of this process's share; the step sums them like all others.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        dims = [dim for dim in range(x.ndim) if dim != 1]
        wide = x.float()
        own_mean = wide.mean(dims)  # [C]
        own_squares = (
            (wide - _along(own_mean, x)).square().sum(dims)
        )  # [C], around the own mean: no cancellation
        mean, squares, count = _merged(own_mean, own_squares, x.numel() // x.shape[1])
        var = squares / count
        scale = torch.rsqrt(var + eps)
        unit = (wide - _along(mean, x)) * _along(scale, x)
        y = unit
        if gain is not None:
            y = y * _along(gain.float(), x)
        if bias is not None:
            y = y + _along(bias.float(), x)
        ctx.save_for_backward(x, mean, scale, gain)
        ctx.count = count
        ctx.has_bias = bias is not None
        ctx.mark_non_differentiable(mean, var, count)
        return y.to(x.dtype), mean, var, count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        x, mean, scale, gain = ctx.saved_tensors
        dims = [dim for dim in range(x.ndim) if dim != 1]
        dy = gradients[0].float()
        unit = (x.float() - _along(mean, x)) * _along(scale, x)
        # [C], of this share
        by_bias = dy.sum(dims)
        by_gain = (dy * unit).sum(dims)
        sums = torch.stack([by_bias, by_gain])
        with collective():
            dist.all_reduce(sums)
        sums = sums / ctx.count
        centred = dy - _along(sums[0], x) - unit * _along(sums[1], x)
        if gain is None:
            factor = scale
        else:
            factor = scale * gain.float()
        dx = (centred * _along(factor, x)).to(x.dtype)
        return dx, None if gain is None else by_gain, by_bias if ctx.has_bias else None, None


def _along(channel: Tensor, x: Tensor) -> Tensor:
    """[C] to [1, C, 1, ...]."""
    return channel.view(1, -1, *(1 for _ in range(x.ndim - 2)))


def _merged(mean: Tensor, squares: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Means, sums of squared deviations and counts of all processes combined (Chan et al. 1979)."""
    own = torch.cat([mean, squares, mean.new_tensor([float(count)])])  # [2 C + 1]
    each = [torch.empty_like(own) for _ in range(world().size)]
    with collective():
        dist.all_gather(each, own)
    all_ranks = torch.stack(each)  # [processes, 2 C + 1]
    means = all_ranks[:, : len(mean)]
    sums = all_ranks[:, len(mean) : -1]
    counts = all_ranks[:, -1:]
    total = counts.sum()
    whole = (means * counts).sum(dim=0) / total
    return whole, (sums + counts * (means - whole).square()).sum(dim=0), total
