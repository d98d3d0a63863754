"""The optimiser of a stage: its parameter groups, their learning rates, and a step; the same in a recorded graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn, optim

from fixstar.training.run import Part, Training


def create_optimiser(run: Training, part: Part) -> optim.Optimizer:
    """The recipe's optimiser over what a stage trains; on a GPU fused, with learning rates that a graph can read.

    A group is all parameters of one learning rate and one weight decay.
    """
    recipe = part.recipe
    backbone = {id(p) for p in run.encoder.backbone.parameters()}
    members: dict[tuple[float, float], list[nn.Parameter]] = {}
    for p in run.trained(part.stage).parameters():
        if p.requires_grad and not (run.frozen and id(p) in backbone):
            factor = recipe.backbone_rate if id(p) in backbone else 1.0
            decay = recipe.weight_decay if recipe.decay_norms or p.ndim > 1 else 0.0
            members.setdefault((factor, decay), []).append(p)
    on_gpu = any(p.is_cuda for group in members.values() for p in group)
    groups: list[dict[str, Any]] = []
    for (factor, decay), parameters in members.items():
        rate = recipe.learning_rate * factor
        lr = torch.tensor(rate, device=parameters[0].device) if on_gpu else rate
        groups.append({"params": parameters, "lr": lr, "weight_decay": decay, "factor": factor})
    if recipe.optimizer == "sgd":
        return optim.SGD(groups, momentum=recipe.momentum, fused=on_gpu)
    kind = optim.Adam if recipe.optimizer == "adam" else optim.AdamW
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
        nn.utils.clip_grad_norm_([p for group in optimiser.param_groups for p in group["params"]], clip)
    optimiser.step()


def lay_out_state(optimiser: optim.Optimizer) -> None:
    """Momenta in the memory layout of their weights, which a fused optimiser requires."""
    for p, state in optimiser.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == p.shape and value.stride() != p.stride():
                state[name] = torch.empty_like(p, memory_format=torch.preserve_format).copy_(value)
