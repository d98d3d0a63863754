"""One version's training: its stages with their position in the run and optimiser, and model selection."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn, optim

from fixstar.data.batches import Batches
from fixstar.methods import Objective, Stage
from fixstar.models import Encoder, FrozenEncoder
from fixstar.training.settings import Recipe

_BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16")  # instructions, as torch calls them


class ValidationScores(NamedTuple):
    """Validation scores of an epoch: self-test, cross-test against the old gallery, and the old model's self-test."""

    self_test: float
    cross_test: float
    old_self_test: float

    @property
    def compatible(self) -> bool:
        """Whether the cross-test beats the old self-test, strictly (CoReS, eq. 2)."""
        return self.cross_test > self.old_self_test


Select = Callable[[Encoder], ValidationScores]


@dataclass
class Training:
    """Everything that one version's training needs.

    ``fingerprint`` prevents resuming with other settings; ``fingerprint_parts`` show what differs. ``select`` scores
    the model after each epoch, to keep the best compatible one.
    """

    encoder: Encoder
    objective: Objective
    batches: Batches
    recipe: Recipe
    teacher: FrozenEncoder | None = None
    first: FrozenEncoder | None = None
    seed: int = 0
    checkpoint: Path | None = None
    fingerprint: str = ""
    fingerprint_parts: Mapping[str, str] = field(default_factory=dict)
    title: str = "training"
    progress: bool = True
    maps: bool = False
    frozen: bool = False
    select: Select | None = None

    def modules(self) -> nn.ModuleDict:
        """Everything that is trained or saved."""
        modules: dict[str, nn.Module] = {"encoder": self.encoder}
        if self.objective.module is not None:
            modules["objective"] = self.objective.module
        return nn.ModuleDict(modules)

    def trained(self, stage: Stage) -> nn.Module:
        """The module that a stage updates."""
        if stage.trains is None:
            return self.modules()
        return stage.trains

    @property
    def bfloat16(self) -> bool:
        """Whether the backbone runs in that precision."""
        if self.recipe.precision == "auto":
            return self.encoder.device.type == "cuda" and torch.cuda.is_bf16_supported(
                including_emulation=False
            )
        return self.recipe.precision == "bfloat16"

    def warn_of_emulation(self) -> None:
        """Warn before training in bfloat16 on a CPU without support for it, where it is slower than float32."""
        if self.encoder.device.type == "cpu" and self.bfloat16 and not cpu_multiplies_bfloat16():
            warnings.warn(
                "this CPU does not multiply bfloat16 in hardware: the training takes longer than in float32. Stop it "
                "and leave --precision bfloat16 out",
                stacklevel=3,
            )


def cpu_multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for products in bfloat16: AVX512-BF16 or AMX, or those of ARM."""
    if not hasattr(torch.cpu, "get_capabilities"):  # an older torch
        return bool(torch.cpu._is_avx512_bf16_supported())
    known = torch.cpu.get_capabilities()
    return any(known.get(name, False) for name in _BFLOAT16)


class PlacedStage(NamedTuple):
    """A stage with its position among all epochs of the run."""

    stage: Stage
    recipe: Recipe
    batches: Batches
    first: int  # epoch

    @property
    def after(self) -> int:
        """The epoch after its last one."""
        return self.first + self.recipe.epochs

    @property
    def steps(self) -> int:
        """The number of updates."""
        return self.recipe.epochs * self.batches.per_epoch

    def rates(self, epoch: int) -> list[float]:
        """The learning rate of each step of an epoch of the run."""
        count = self.batches.per_epoch
        return [self.recipe.rate(epoch - self.first + step / count) for step in range(count)]

    def images(self, epoch: int) -> int:
        """The number of images trained on before an epoch of the run."""
        epochs = min(max(epoch - self.first, 0), self.recipe.epochs)
        return epochs * self.batches.per_epoch * self.batches.batch_size


def parts_of(run: Training) -> Iterator[PlacedStage]:
    """The stages of a run, one after the other."""
    first = 0
    for stage in run.objective.stages:
        recipe = run.recipe
        if stage.epochs != 1:
            recipe = recipe.shortened(max(1, round(recipe.epochs * stage.epochs)))
        recipe = replace(recipe, learning_rate=recipe.learning_rate * stage.learning_rate)
        yield PlacedStage(stage=stage, recipe=recipe, batches=run.batches, first=first)
        first += recipe.epochs


def create_optimiser(run: Training, part: PlacedStage) -> optim.Optimizer:
    """The recipe's optimiser over what a stage trains; a group has one learning rate and one weight decay."""
    recipe = part.recipe
    backbone = {id(p) for p in run.encoder.backbone.parameters()}
    members: dict[tuple[float, float], list[nn.Parameter]] = {}
    for p in run.trained(part.stage).parameters():
        if p.requires_grad and not (run.frozen and id(p) in backbone):
            factor = 1.0
            if id(p) in backbone:
                factor = recipe.backbone_rate
            decay = 0.0
            if recipe.decay_norms or p.ndim > 1:
                decay = recipe.weight_decay
            members.setdefault((factor, decay), []).append(p)
    on_gpu = any(p.is_cuda for group in members.values() for p in group)
    groups: list[dict[str, Any]] = []
    for (factor, decay), parameters in members.items():
        rate = recipe.learning_rate * factor
        lr: float | Tensor = rate
        if on_gpu:
            lr = torch.tensor(rate, device=parameters[0].device)
        groups.append({"params": parameters, "lr": lr, "weight_decay": decay, "factor": factor})
    if recipe.optimizer == "sgd":
        return optim.SGD(groups, momentum=recipe.momentum, fused=on_gpu)
    if recipe.optimizer == "adam":
        kind: type[optim.Adam] | type[optim.AdamW] = optim.Adam
    else:
        kind = optim.AdamW
    return kind(groups, betas=(recipe.momentum, 0.999), fused=on_gpu, capturable=on_gpu)


def set_rate(optimiser: optim.Optimizer, rate: float | Tensor) -> None:
    """Give every group its share of a learning rate, in place where a recorded graph reads it."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].copy_(torch.as_tensor(rate * group["factor"]))
        else:
            group["lr"] = float(rate) * group["factor"]


def take_step(optimiser: optim.Optimizer, clip: float | None) -> None:
    """Update the weights; gradients whose norm over all weights exceeds ``clip`` are scaled down to it."""
    if clip is not None:
        nn.utils.clip_grad_norm_(
            [p for group in optimiser.param_groups for p in group["params"]], clip
        )
    optimiser.step()


def lay_out_state(optimiser: optim.Optimizer) -> None:
    """Momenta in the memory layout of their weights, which a fused optimiser requires."""
    for p, state in optimiser.state.items():
        for name, value in state.items():
            if (
                isinstance(value, Tensor)
                and value.shape == p.shape
                and value.stride() != p.stride()
            ):
                state[name] = torch.empty_like(p, memory_format=torch.preserve_format).copy_(value)


def selected_epoch(scores: Sequence[ValidationScores]) -> int | None:
    """Model selection (CoReS, eq. 11): the earliest compatible epoch with the highest self-test, or None.

    >>> weak, good = ValidationScores(0.5, 0.3, 0.2), ValidationScores(0.6, 0.3, 0.2)
    >>> drifted = ValidationScores(0.7, 0.1, 0.2)
    >>> selected_epoch([weak, good, drifted]), selected_epoch([drifted])
    (1, None)
    """
    compatible = [epoch for epoch, one in enumerate(scores) if one.compatible]
    return max(compatible, key=lambda epoch: (scores[epoch].self_test, -epoch), default=None)
