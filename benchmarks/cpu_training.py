"""Training and encoding on a CPU: how pixels lie in memory, and the precision of the backbone.

Each backbone makes training steps (forward, backward, update) and features of one batch of random images, in turn for
every row; the best of some rounds is told. Rows:

    planes, float32          a channel after the other, as PyTorch has it unless told otherwise
    channels last, float32   what fixstar does
    channels last, bfloat16  what fixstar trains with --precision bfloat16 (features are made in float32 all the same)

    python benchmarks/cpu_training.py --out benchmarks/results/cpu_training.json
"""

from __future__ import annotations

import argparse
import copy
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn, optim

from fixstar.durable import replace_json
from fixstar.models import Backbone, create_backbone

SHAPES = {
    "resnet32": (128, 32),
    "resnet18": (16, 224),
    "resnet50": (16, 224),
    "senet18": (64, 32),
}  # images, pixels
ROWS = {
    "planes, float32": (False, False),
    "channels last, float32": (True, False),
    "channels last, bfloat16": (True, True),
}
CLASSES = 100


def work(
    backbone: Backbone, images: Tensor, last: bool, bfloat16: bool
) -> dict[str, Callable[[], None]]:
    """A training step and a forward pass, to be called again and again."""
    model = copy.deepcopy(backbone)
    head = nn.Linear(model.feature_dim, CLASSES)
    optimiser = optim.SGD(
        [*model.parameters(), *head.parameters()], lr=0.01, momentum=0.9, weight_decay=2e-4
    )
    labels = torch.arange(len(images)) % CLASSES

    def features() -> Tensor:
        x = images.contiguous(memory_format=torch.channels_last) if last else images
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16, cache_enabled=False):
            h: Tensor = model(x)
        return h.float()

    def step() -> None:
        model.train()
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(F.cross_entropy(head(features()), labels))
        optimiser.step()

    def encode() -> None:
        model.eval()
        with torch.no_grad():
            features()

    return {"step": step, "encode": encode}


def measured(name: str, rounds: int) -> list[dict[str, object]]:
    """The least milliseconds of each row, with all rows tried in turn."""
    count, size = SHAPES[name]
    torch.manual_seed(0)
    backbone = create_backbone(name)
    images = torch.rand(count, 3, size, size)
    rows = {row: work(backbone, images, *how) for row, how in ROWS.items()}
    best: dict[tuple[str, str], float] = {}
    for number in range(rounds + 1):
        for row, calls in rows.items():
            for what, call in calls.items():
                start = time.perf_counter()
                call()
                if number:  # the first round lets libraries choose
                    best[row, what] = min(
                        best.get((row, what), float("inf")), time.perf_counter() - start
                    )
    lines: list[dict[str, object]] = []
    for row in rows:
        line = {what: round(1e3 * best[row, what], 1) for what in ("step", "encode")}
        print(
            f"{name:9} {count:>4} x {size:<4} {row:24} step {line['step']:8} ms  encode {line['encode']:8} ms",
            flush=True,
        )
        lines.append(
            {"backbone": name, "images": count, "pixels": size, "row": row, "milliseconds": line}
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbones", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lines = [line for name in options.backbones for line in measured(name, options.rounds)]
    if options.out:
        about = {
            "threads": options.threads,
            "torch": torch.__version__,
            "machine": platform.machine(),
        }
        about["capability"] = torch.backends.cpu.get_cpu_capability()
        replace_json(options.out, {**about, "rounds": options.rounds, "rows": lines})


if __name__ == "__main__":
    main()
