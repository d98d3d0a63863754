"""A network that draws random numbers of its own while it is trained: an interruption changes none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_stages import cut_off
from test_training_loop import same, training, weights
from torch import Tensor, nn

from fixstar.models.backbones.small import Tiny
from fixstar.training import Recipe, Training, train
from fixstar.training.distributed import World

RECIPE = Recipe(epochs=4, learning_rate=0.05, milestones=(3,), batch_size=8)


class NotedDropout(nn.Dropout):
    """Dropout that keeps what it let through, batch by batch."""

    def __init__(self) -> None:
        super().__init__(0.5)
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        dropped: Tensor = super().forward(x)
        if self.training:
            self.kept.append(dropped != 0)
        return dropped


def stochastic(**changes: Any) -> tuple[Training, NotedDropout]:
    """A run of the smallest network, with half of its features dropped in every step."""
    run, dropout = training(RECIPE, **changes), NotedDropout()
    assert isinstance(run.encoder.backbone, Tiny)
    run.encoder.backbone.add_module("norm", nn.Sequential(run.encoder.backbone.norm, dropout))
    return run, dropout


@pytest.mark.parametrize("after", [1, 3])
def test_a_run_with_dropout_that_was_cut_off_ends_with_the_same_weights(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, drawn = stochastic()
    log = train(whole)
    cut_off(stochastic(checkpoint=tmp_path / "c.safetensors")[0], after, monkeypatch)
    resumed, drawn_later = stochastic(checkpoint=tmp_path / "c.safetensors")
    torch.rand(after)  # a process that starts again has drawn other numbers before
    assert train(resumed) == log
    assert same(weights(whole.encoder), weights(resumed.encoder))
    steps = whole.batches.per_epoch
    expected = drawn.kept[after * steps :]
    assert len(drawn_later.kept) == (4 - after) * steps
    assert all(
        torch.equal(mine, theirs) for mine, theirs in zip(drawn_later.kept, expected, strict=True)
    )


def test_every_epoch_draws_again_and_seed_and_process_decide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, drawn = stochastic()
    train(first)
    epochs = torch.stack(drawn.kept).reshape(4, -1)
    assert not any(torch.equal(epochs[a], epochs[b]) for a in range(4) for b in range(a))
    again, drawn_again = stochastic()
    train(again)
    assert torch.equal(torch.stack(drawn.kept), torch.stack(drawn_again.kept))
    other, drawn_otherwise = stochastic(seed=1)
    train(other)
    assert not torch.equal(torch.stack(drawn.kept), torch.stack(drawn_otherwise.kept))
    monkeypatch.setattr("fixstar.training.loop.world", lambda: World(rank=1))
    second, drawn_by_the_second = stochastic()
    train(second)
    assert not torch.equal(torch.stack(drawn.kept), torch.stack(drawn_by_the_second.kept))
