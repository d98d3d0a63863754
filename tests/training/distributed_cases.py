"""What the tests of distributed training train, by one process or, started by torchrun, by several."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from fixstar.data import Augmentation, ImageSet, class_stream, from_arrays
from fixstar.errors import CheckpointError, FixstarError
from fixstar.methods import create_method
from fixstar.models import Encoder
from fixstar.training import Recipe, Settings, Validation, Version, distributed, run_scenario
from fixstar.training.checkpoint import save_checkpoint
from fixstar.training.distributed import synchronised
from fixstar.training.steps import gathered

SETTINGS = Settings(
    backbone="tiny",
    backbone_options={"in_channels": 1, "width": 3},
    capacity=8,
    recipe=Recipe(
        epochs=2, learning_rate=0.01, milestones=(1,), batch_size=9
    ),  # two processes: 5 and 4 images
    augmentation=Augmentation(crop_padding=1),
    replay_per_class=4,
    device="cpu",
)

# At 0.01 rounding grows to 1e-5 within six steps, and on ARM puts one input of a ReLU on the other side
# of 0: its gradient is then there or not, and weights differ by 1e-4. In float64 they differ by 2e-14 at any rate.
SLOW = replace(SETTINGS.recipe, learning_rate=0.003)

ADAMW = Recipe(
    epochs=2,
    learning_rate=1e-3,
    optimizer="adamw",
    schedule="cosine",
    warmup=0.5,
    clip=0.1,
    backbone_rate=0.5,
    decay_norms=False,
    batch_size=9,
)


def stripes(seed: int = 0, per_class: int = 9) -> ImageSet:
    """Class k: stripes of period k + 2, with noise."""
    labels, columns = np.repeat(np.arange(4), per_class), np.arange(32)
    patterns = np.stack([((columns // (k + 2)) % 2) * 120 for k in range(4)])
    noise = np.random.default_rng(seed).integers(0, 100, (len(labels), 32, 32))
    return from_arrays((patterns[labels][:, None, :] + noise).astype(np.uint8), labels)


def by_method(name: str, **changes: Any) -> Callable[[Path | None], Iterator[Version]]:
    settings = replace(SETTINGS, **changes)

    def case(directory: Path | None) -> Iterator[Version]:
        return run_scenario(
            class_stream(stripes(), 2, 2), create_method(name), settings, directory, progress=False
        )

    return case


def selected(_: Path | None) -> Iterator[Version]:
    validation = Validation(stripes(1, 3), stripes(2, 3))
    stream = class_stream(stripes(), 2, 2)
    return run_scenario(
        stream, create_method("cores"), SETTINGS, progress=False, validation=validation
    )


def streamed(_: Path | None) -> Iterator[Version]:
    """No pixels in memory: each process reads its share of a batch."""
    with mock.patch("fixstar.training.version._budget", return_value=0):
        yield from run_scenario(
            class_stream(stripes(), 2, 2), create_method("er"), SETTINGS, progress=False
        )


CASES: dict[str, Callable[[Path | None], Iterator[Version]]] = {
    "hoc": by_method("hoc"),  # every image against every other
    "er": by_method("er", selection="herding", recipe=ADAMW),
    "advbct-er": by_method("advbct-er"),  # trains a discriminator along
    "foster": by_method("foster"),  # two stages and a third network
    "podnet": by_method("podnet"),  # feature maps
    "bic": by_method("bic"),  # a fit at the end
    "cores-contrastive": by_method("cores-contrastive", recipe=SLOW),  # two views an image
    "selected": selected,
    "streamed": streamed,
}


def digest(encoder: Encoder) -> str:
    values = encoder.state_dict().values()
    return hashlib.sha256(
        b"".join(value.cpu().contiguous().numpy().tobytes() for value in values)
    ).hexdigest()


def keep(versions: Iterator[Version], out: Path) -> None:
    """Logs and weights of a case; every process must have the same weights, to the bit."""
    for version in versions:
        assert len(set(distributed.all_gather_json(digest(version.encoder)))) == 1, (
            out.name,
            version.name,
        )
        if distributed.world().is_rank_zero:
            version.encoder.save(out / version.name)
            (out / f"{version.name}.json").write_text(
                json.dumps([asdict(entry) for entry in version.log])
            )


def compare_layers() -> None:
    """Batch norm and gathering on shares against the whole batch in one piece: values, gradients, statistics."""
    here, generator = distributed.world(), torch.Generator().manual_seed(0)
    options: list[dict[str, Any]] = [
        {},
        {"momentum": None},
        {"affine": False},
        {"track_running_stats": False},
    ]
    for shape, kind in (((7, 3, 4, 5), nn.BatchNorm2d), ((7, 3), nn.BatchNorm1d)):
        for option in options:
            plain, shared = kind(3, **option), kind(3, **option)
            for _ in range(2):
                x = 100 + torch.randn(
                    shape, generator=generator
                )  # far from zero: squares would cancel
                weight = torch.randn(shape, generator=generator)
                whole = x.clone().requires_grad_()
                expected = plain(whole)
                torch.autograd.backward((expected * weight).sum())
                part = x[here.share(7)].clone().requires_grad_()
                with synchronised(shared):
                    y = gathered(shared(part), 7)
                torch.autograd.backward((y * weight).sum() / here.size)
                torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
                assert whole.grad is not None
                torch.testing.assert_close(
                    part.grad, whole.grad[here.share(7)], rtol=1e-3, atol=1e-4
                )
                for a, b in zip(shared.parameters(), plain.parameters(), strict=True):
                    torch.distributed.all_reduce(a.grad)
                    torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-3)
                    a.grad = b.grad = None
            torch.testing.assert_close(
                dict(shared.state_dict()), dict(plain.state_dict()), rtol=1e-4, atol=1e-4
            )
            with synchronised(
                shared.eval()
            ):  # by its statistics, or for want of them by the whole batch
                y = gathered(shared(x[here.share(7)]), 7)
            torch.testing.assert_close(y, plain.eval()(x), rtol=1e-4, atol=1e-4)


def torchs_own_layer_needs_a_gpu() -> None:
    """Why fixstar has a batch norm of its own; once this fails, torch's could take its place."""
    layer = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm2d(3)))  # type: ignore[no-untyped-call]
    with pytest.raises(ValueError, match="SyncBatchNorm expected input tensor to be on"):
        layer(torch.zeros(2, 3, 4, 4))


def interrupted(directory: Path, stop: Callable[[], Any]) -> None:
    """The case hoc, stopped when the first epoch of its second version is saved."""
    saved = 0

    def save_and_stop(path: Path, *state: Any) -> None:
        nonlocal saved
        save_checkpoint(path, *state)
        saved += 1
        if saved == SETTINGS.recipe.epochs + 1:
            stop()

    with mock.patch("fixstar.training.loop.save_checkpoint", save_and_stop):
        list(CASES["hoc"](directory))


def first_session(out: Path, rank: int, port: int) -> None:
    """All cases, then one that is killed. Started as torchrun would start it."""
    place = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": 2,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ |= {name: str(value) for name, value in place.items()} | {"GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    assert distributed.world().size == 2
    compare_layers()
    torchs_own_layer_needs_a_gpu()
    for name, versions in CASES.items():
        keep(versions(None), out / name)
    interrupted(out / "killed", lambda: os.kill(os.getpid(), signal.SIGKILL))


def refused(train: Callable[[], Any]) -> tuple[str, str]:
    try:
        train()
    except FixstarError as error:
        return type(error).__name__, str(error)
    raise AssertionError("nothing was refused")


def second_session(out: Path) -> None:
    """What was cut off goes on; what cannot work is refused by all; the command line; an error of one process."""
    keep(CASES["hoc"](out / "killed"), out / "resumed")
    keep(CASES["hoc"](out / "begun-by-one"), out / "resumed-by-two")
    rank = distributed.world().rank
    answers = {
        "held": refused(lambda: list(CASES["hoc"](out / "held"))),
        "seeds": refused(lambda: list(by_method("er", seed=rank)(None))),
    }
    (out / f"answers-{rank}.json").write_text(json.dumps(answers))
    command(out, "train", "--epochs", "1", "--json")
    with (
        mock.patch("fixstar.training.loop._require_converging", fail)
        if rank == 1
        else contextlib.nullcontext()
    ):
        command(out, "upgrade", "--epochs", "2")


def fail(*_: Any) -> None:
    raise CheckpointError("the second process cannot go on")


def command(out: Path, verb: str, *options: str) -> None:
    from fixstar.cli import main

    common = ["--workspace", str(out / "shop"), "--device", "cpu"]
    first = ["--backbone", "tiny", "--batch-size", "8"] if verb == "train" else []
    sys.argv = ["fixstar", verb, str(out / f"images-{verb}"), *common, *first, *options]
    try:
        with mock.patch(
            "fixstar.cli.app._leave_process_group"
        ):  # once, at the end of both commands
            main()
    except SystemExit as end:
        if end.code:
            raise


if __name__ == "__main__":
    torch.set_num_threads(1)
    second_session(Path(sys.argv[1]))
    distributed.leave()
