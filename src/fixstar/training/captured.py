"""Steps on a GPU as one CUDA graph: batch, both models, loss, gradients and update are recorded once and replayed.

A step of a small network has hundreds of kernels of a few microseconds each, and launching them takes longer than
running them. Nothing is read back within an epoch: the recorded step has its own counter and takes its batch from the
epoch's plan on the device.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn, optim

from fixstar.models import Backbone
from fixstar.training.run import PlacedStage, Training, lay_out_state, set_rate
from fixstar.training.steps import Shown, update

_WARM_UP = 3  # steps before recording, in which libraries choose kernels and memory is allocated
_WORTH_COMPILING = (
    2000  # steps; compiling takes about 20 s per process and saves about 1 ms per step
)
_CHUNK = 20  # steps between two updates of the progress bar

_PROGRAMS: dict[str, Callable[[dict[str, Tensor], Tensor], Tensor]] = {}  # compiled backbones

Program = Callable[[Tensor], Tensor]
ProgramMaker = Callable[[nn.Module, tuple[int, int]], Program | None]
_MAKERS: list[ProgramMaker] = []


class CapturedSteps:
    """``Steps`` as a recorded graph. All pixels and the optimiser's learning rates must be on the device."""

    def __init__(self, run: Training, part: PlacedStage, optimiser: optim.Optimizer) -> None:
        self._run = run
        self._part = part
        self._optimiser = optimiser
        device = run.encoder.device
        self._plan = part.batches.plan_on_device(part.first)
        self._at = torch.zeros(1, dtype=torch.long, device=device)  # the step within the epoch
        self._done = torch.zeros((), device=device)  # the finished share of the stage
        self._rates = torch.zeros(
            part.batches.per_epoch, dtype=torch.double, device=device
        )  # of each step
        self._sums: dict[str, Tensor] = {}
        if run.teacher is not None:
            self._teacher_stream = _stream()
        else:
            self._teacher_stream = None
        if run.bfloat16:
            channels_last: Any = {"memory_format": torch.channels_last}
            run.encoder.backbone.to(**channels_last)
            lay_out_state(optimiser)
        self._graph = self._record()

    def epoch(self, number: int, shown: Shown) -> dict[str, Tensor]:
        """Replay the step over the plan of epoch ``number``."""
        part = self._part
        for static, fresh in zip(self._plan, part.batches.plan_on_device(number), strict=True):
            static.copy_(fresh)
        self._restart(number)
        for start in range(0, part.batches.per_epoch, _CHUNK):
            count = min(_CHUNK, part.batches.per_epoch - start)
            for _ in range(count):
                self._graph.replay()
            shown(count * part.batches.batch_size, "")
        torch.autograd.graph.increment_version(
            list(self._run.modules().parameters())
        )  # a replay does not do this
        return {name: value.clone() for name, value in self._sums.items()}

    def _restart(self, number: int) -> None:
        rates = self._part.rates(number)
        self._rates.copy_(torch.tensor(rates, dtype=torch.double))
        set_rate(self._optimiser, rates[0])
        self._at.zero_()
        self._done.fill_((number - self._part.first) / self._part.recipe.epochs)
        for value in self._sums.values():
            value.zero_()

    def _step(self) -> None:
        if self._part.recipe.changes_every_step:
            set_rate(self._optimiser, self._rates.index_select(0, self._at)[0])
        batch = self._part.batches.cut_at(self._plan, self._at)
        terms = update(
            run=self._run,
            part=self._part,
            optimiser=self._optimiser,
            batch=batch,
            done=self._done,
            teacher_stream=self._teacher_stream,
        )
        for name, value in terms.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros_like(value)
            self._sums[name].add_(value)
        self._at.add_(1).remainder_(self._part.batches.per_epoch)
        self._done.add_(1 / self._part.steps)

    def _record(self) -> torch.cuda.CUDAGraph:
        """Warm up and record, then restore weights, statistics and momenta."""
        run = self._run
        modules = self._run.modules()
        trained = run.encoder.backbone.training and not (run.maps or run.frozen)
        worthwhile = self._part.steps >= _WORTH_COMPILING and trained
        with (
            _restored(modules, self._optimiser),
            _without_batch_counts(modules),
            torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True),
            _tensor_cores(run.bfloat16),
            _faster(run) if worthwhile else contextlib.nullcontext(),
        ):
            aside = _stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(_WARM_UP):
                    self._step()
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(
                graph, capture_error_mode="thread_local"
            ):  # a service searches in other threads
                self._step()
        return graph


def use_program(maker: ProgramMaker) -> None:
    """From now on, train the backbones for which ``maker`` has a program by that program, in bfloat16 on a GPU.

    It gets the backbone and the sides of its images, and gives None for backbones that it does not know.
    """
    if maker not in _MAKERS:
        _MAKERS.append(maker)


def _faster(run: Training) -> contextlib.AbstractContextManager[None]:
    """Run the backbone by a program of its own, if there is one, else compiled."""
    backbone = run.encoder.backbone
    if run.bfloat16:
        for maker in _MAKERS:
            program = maker(backbone, run.encoder.preprocessing.size)
            if program is not None:
                return called_by(backbone, program)
    return compiled(backbone)


@contextlib.contextmanager
def called_by(module: nn.Module, program: Program) -> Iterator[None]:
    """Inside, calling ``module`` calls ``program``. Copies of the module made inside call the module itself."""
    module._compiled_call_impl = program
    try:
        yield
    finally:
        module._compiled_call_impl = None


def _stream() -> Any:
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _restored(modules: nn.Module, optimiser: optim.Optimizer) -> Iterator[None]:
    """Restore weights, statistics and momenta at the end, in the same memory."""
    weights = {name: value.clone() for name, value in modules.state_dict().items()}
    momenta = {id(value): value.clone() for value in _momenta(optimiser)}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, value in modules.state_dict().items():
                value.copy_(weights[name])
            for momentum in _momenta(optimiser):
                momentum.copy_(momenta.get(id(momentum), torch.zeros_like(momentum)))


@contextlib.contextmanager
def _tensor_cores(allowed: bool) -> Iterator[None]:
    """Allow float32 products on tensor cores: the backbone runs in bfloat16 anyway."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = before or allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _momenta(optimiser: optim.Optimizer) -> list[Tensor]:
    """All state of an optimiser, which is zero before the first step."""
    return [
        value
        for state in optimiser.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    ]


@contextlib.contextmanager
def _without_batch_counts(modules: nn.Module) -> Iterator[None]:
    """Batch norms without their batch count, which is never read and costs a kernel each."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d)
    norms = [
        m for m in modules.modules() if isinstance(m, kinds) and m.num_batches_tracked is not None
    ]
    counts = [norm.num_batches_tracked for norm in norms]
    for norm in norms:
        norm.num_batches_tracked = None
    try:
        yield
    finally:
        for norm, count in zip(norms, counts, strict=True):
            norm.num_batches_tracked = count


def compiled(backbone: Backbone) -> contextlib.AbstractContextManager[None]:
    """While it is active, ``backbone`` runs compiled. Compiled once per process: the weights are inputs."""
    key = json.dumps([backbone.name, backbone.options, backbone.training], sort_keys=True)
    if key not in _PROGRAMS:
        _PROGRAMS[key] = _program(copy.deepcopy(backbone))
    program = _PROGRAMS[key]
    state = {**dict(backbone.named_parameters()), **dict(backbone.named_buffers())}
    return called_by(backbone, lambda images: program(state, images))


def _program(template: Backbone) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    def run(state: dict[str, Tensor], images: Tensor) -> Tensor:
        features: Tensor = torch.func.functional_call(template, state, (images,))
        return features

    program: Callable[[dict[str, Tensor], Tensor], Tensor] = torch.compile(run, dynamic=False)
    return program
