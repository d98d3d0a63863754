"""relu(3x3 convolution + bias) of few channels on a GPU: our kernel against the library's, in microseconds per call.

Batch 128, bfloat16, channels last, the sizes of a CIFAR ResNet. Each call stands twenty times in a recorded graph, so
that starting it costs nothing, as in training.

    python benchmarks/narrow_convolutions.py --out benchmarks/results/narrow_convolutions_h200.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fixstar.durable import replace_json
from fixstar.kernels.conv3x3 import fused_conv3x3

SIZES = ((16, 32), (32, 16))  # channels, pixels a side
CALLS = 20
REPLAYS = 50


def microseconds(call: Callable[[], object]) -> float:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    graph.replay()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / REPLAYS / CALLS * 1e6


def measure(channels: int, side: int) -> dict[str, Any]:
    last = torch.channels_last
    x = torch.randn(128, channels, side, side, device="cuda", dtype=torch.bfloat16).contiguous(
        memory_format=last
    )
    w = torch.randn(channels, channels, 3, 3, device="cuda", dtype=torch.bfloat16).contiguous(
        memory_format=last
    )
    bias, one = torch.randn(channels, device="cuda", dtype=torch.bfloat16), (1, 1)
    return {
        "channels": channels,
        "side": side,
        "ours": microseconds(lambda: fused_conv3x3(x, w, bias)),
        "library": microseconds(lambda: torch.cudnn_convolution_relu(x, w, bias, one, one, one, 1)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    rows = [measure(*size) for size in SIZES]
    for row in rows:
        print(
            "  ".join(
                f"{key} {value:.1f}" if isinstance(value, float) else f"{key} {value}"
                for key, value in row.items()
            )
        )
    if options.out:
        replace_json(
            options.out,
            {"machine": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows},
        )


if __name__ == "__main__":
    main()
