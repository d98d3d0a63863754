"""Several processes that train one version together, as ``torchrun`` starts them: who is who, and what all agree on.

Every process runs the same program with the same seed and sees the same files. The first one alone writes and talks.
Messages between processes are JSON: nothing is ever unpickled.
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

from fixstar import errors
from fixstar.errors import FixstarError, InputError

__all__ = [
    "World",
    "collective",
    "from_first",
    "leave",
    "local_device",
    "on_first",
    "require_alike",
    "same_as_first",
    "told_by_all",
    "world",
]

_TIMEOUT = timedelta(minutes=30)  # the first may write or validate so long; a process that dies ends all at once
_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells each process


class World(NamedTuple):
    """This process among those that train together; alone by default."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among those of this machine
    local_size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and talks."""
        return self.rank == 0

    def share(self, total: int, rank: int | None = None) -> slice:
        """The rows of ``total`` that a process takes, this one by default; shares differ by one row at most.

        >>> [World(rank, 3).share(8) for rank in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
        """
        rank = self.rank if rank is None else rank
        each, left = divmod(total, self.size)
        start = rank * each + min(rank, left)
        return slice(start, start + each + (rank < left))


def world() -> World:
    """This process among the others. The first call joins them: all must make it."""
    if not dist.is_available():
        return World()
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) == 1 or not all(name in os.environ for name in _LAUNCHED):
            return World()
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if local_rank < torch.cuda.device_count():  # before anything takes memory on the first GPU
            torch.cuda.set_device(local_rank)
        with collective():
            dist.init_process_group(backend, timeout=_TIMEOUT)
    size, rank = dist.get_world_size(), dist.get_rank()
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    return World(rank, size, local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", size)))


def leave() -> None:
    """Part from the other processes, at the end of a program; nothing to do where there are none."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def local_device(device: torch.device) -> torch.device:
    """The device itself; with several processes each takes a GPU of its own."""
    here = world()
    if here.size == 1 or device.type != "cuda":
        return device
    if device.index is not None:
        raise InputError(f"{here.size} processes cannot all train on {device}; give cuda, and each takes its own GPU")
    if here.local_rank >= torch.cuda.device_count():
        raise InputError(
            f"{here.local_size} processes on a machine with {torch.cuda.device_count()} GPUs; "
            f"start torchrun with --nproc-per-node {torch.cuda.device_count()}, or train with --device cpu"
        )
    torch.cuda.set_device(here.local_rank)
    return torch.device("cuda", here.local_rank)


@contextlib.contextmanager
def collective() -> Iterator[None]:
    """Around whatever waits for the other processes: says so where they are gone."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        rank, size = os.environ.get("RANK", "?"), os.environ.get("WORLD_SIZE", "?")
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FixstarError(
            f"process {rank} of {size} has lost the others ({reason}). Where one of them has stopped, its own message "
            "says why; then the same command goes on from the last checkpoint"
        ) from error


def told_by_all(value: Any) -> list[Any]:
    """What each process says here, in their order, to all of them. Plain JSON."""
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
    return [json.loads(bytes(text[: int(n)].numpy())) for text, n in zip(texts, lengths, strict=True)]


def from_first(make: Callable[[], Any]) -> Any:
    """What ``make`` gives in the first process, as plain JSON, in all of them. Its error is raised in all of them."""
    here = world()
    if here.size == 1:
        return make()
    said: dict[str, Any] = {}
    if here.first:
        try:
            said = {"value": make()}
        except Exception as error:
            told_by_all({"error": type(error).__name__, "message": str(error)})
            raise
    said = told_by_all(said)[0]
    if "error" in said:
        raise _same_error(said["error"], said["message"])
    return said["value"]


def on_first(act: Callable[[], object]) -> None:
    """Do something in the first process alone, such as writing a file; the others wait for it."""

    def acted() -> None:
        act()

    from_first(acted)


def _same_error(name: str, message: str) -> FixstarError:
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, FixstarError):
        return kind.__new__(kind, message)  # some are made from more than their message
    return FixstarError(f"the first process failed: {name}: {message}")


def require_alike(facts: Mapping[str, Any]) -> None:
    """Stop where processes that should do the same have begun to do different things."""
    if world().size == 1:
        return
    told = told_by_all(dict(facts))
    for name in facts:
        for rank, other in enumerate(told):
            if other[name] != told[0][name]:
                raise FixstarError(
                    f"the processes of this run do not do the same: {name} is {told[0][name]} in process 0 and "
                    f"{other[name]} in process {rank}. All need the same command, software, images and workspace "
                    "(on several machines: a shared directory)"
                )


@torch.no_grad()
def same_as_first(values: Iterable[Tensor]) -> None:
    """Give tensors the values that they have in the first process, where rounding may differ from one to the next."""
    if world().size > 1:
        for value in values:
            dense = value.contiguous()
            with collective():
                dist.broadcast(dense, src=0)
            value.copy_(dense)
