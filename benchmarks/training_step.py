"""One training step on a GPU: ours, and the way published code does it, on the same card in the same call.

The step is d-Simplex-HOC on ResNet-32 with a batch of 128, half of it replayed, teacher included. Images are random: no
data is needed. Rows:

    published           PIL crops and flips in a DataLoader with 8 workers, one operation after the other, float32
    published, no loader  the same step on a batch that is there already
    eager               our loop's step, started kernel by kernel
    captured            recorded and replayed, not compiled
    ours                recorded, by the kernels of a CIFAR ResNet, bfloat16: what `bench run` does

    python benchmarks/training_step.py --out benchmarks/results/training_step_h200.json
    python benchmarks/training_step.py --profile            the kernels of our step, by time

What a large capacity K costs, on a GPU or, where there is none, on a CPU (our step, batch 128, and 64 on a CPU):

    python benchmarks/training_step.py --capacities 100,10000,100000 --out benchmarks/results/capacity_cost_cpu.json

Images per second of larger backbones on a GPU: cross-entropy on the d-Simplex, batch 128, no teacher. Beside our step
stands plain PyTorch: the same model under ``torch.compile``, channels last, bfloat16, one batch that lies on the card,
without crops and flips:

    python benchmarks/training_step.py --backbones --out benchmarks/results/backbone_speed_h200.json
"""

from __future__ import annotations

import argparse
import itertools
import platform
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, optim
from torch.utils.data import DataLoader, Dataset

from fixstar.data import Augmentation, Batches, BatchSource, from_arrays, pixel_source
from fixstar.durable import replace_json
from fixstar.losses import _info_nce_by_torch
from fixstar.methods import Upgrade, create_method
from fixstar.models import Encoder, FrozenEncoder
from fixstar.research.fused_resnets import fused_program
from fixstar.training import Recipe, Training, captured
from fixstar.training.captured import CapturedSteps, use_program
from fixstar.training.run import create_optimiser, parts_of
from fixstar.training.steps import EagerSteps, update

IMAGES = 12_800
BATCH = 128
CLASSES = 40
CAPACITY = 1000
MEAN = (0.5071, 0.4867, 0.4408)
STD = (0.2675, 0.2565, 0.2761)


def pixels() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 256, (IMAGES, 32, 32, 3), dtype=np.uint8)


def encoder(capacity: int = CAPACITY, device: str = "cuda") -> Encoder:
    torch.manual_seed(0)
    names = [str(i) for i in range(CLASSES)]
    return Encoder.create("resnet32", classes=names, capacity=capacity).to(device)


def prepared(
    precision: str, name: str = "hoc", capacity: int = CAPACITY, device: str = "cuda"
) -> Training:
    """Our loop's run: new images and replayed ones, half and half."""
    model = encoder(capacity, device)
    augmentation = Augmentation()
    lanes = []
    for replay, labels in ((False, np.arange(IMAGES) % 20), (True, 20 + np.arange(IMAGES) % 20)):
        images = from_arrays(pixels(), labels)
        source, _ = pixel_source(images, model.preprocessing, augmentation, torch.device(device))
        lanes.append(BatchSource(source, torch.from_numpy(labels).to(device), replay))
    batch = BATCH if device == "cuda" else BATCH // 2
    recipe = Recipe(epochs=100, milestones=(), batch_size=batch, precision=precision)  # type: ignore[arg-type]
    method = create_method(name, **({"rotated": False} if name == "polaris" else {}))
    teacher = FrozenEncoder(encoder(capacity, device))
    names = tuple(str(i) for i in range(CLASSES))
    objective = method.objective(Upgrade(model, teacher, images, names[20:], names[:20]))
    batches = Batches(lanes, batch, augmentation, seed=0)
    return Training(model, objective, batches, recipe, teacher, progress=False)


def our_step(kind: str, *setting: Any) -> tuple[float, Any]:
    """Milliseconds per step over whole epochs, and the steps."""
    return timed_run(prepared("float32" if kind == "eager" else "auto", *setting), kind)


def timed_run(run: Training, kind: str) -> tuple[float, Any]:
    (part,) = parts_of(run)
    part = part._replace(recipe=replace(part.recipe, epochs=20))
    use_program(fused_program)
    captured._WORTH_COMPILING = 0 if kind == "ours" else 1 << 60
    optimiser = create_optimiser(run, part)
    run.modules().train()
    steps: Any = (EagerSteps if kind == "eager" else CapturedSteps)(run, part, optimiser)
    return timed(lambda: steps.epoch(0, lambda *_: None), part.batches.per_epoch), steps


def capacity_costs(capacities: list[int]) -> dict[str, Any]:
    """Milliseconds per step by method and capacity."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        machine = torch.cuda.get_device_name()
    else:
        machine = f"{platform.machine()}, {torch.get_num_threads()} threads"
    figures: dict[str, Any] = {"machine": machine, "torch": torch.__version__, "ms": {}}
    for name in ("polaris", "hoc"):
        rows = figures["ms"][name] = {}
        for capacity in capacities:
            if on_gpu:
                rows[capacity] = our_step("ours", name, capacity)[0]
            else:
                rows[capacity] = steps_on_cpu(prepared("float32", name, capacity, "cpu"))
            ratio = rows[capacity] / rows[capacities[0]]
            print(
                f"{name:<10} K = {capacity:<9,}{rows[capacity]:9.2f} ms   {ratio:5.2f}x", flush=True
            )
    return figures


BACKBONES = (
    ("senet18", 32),
    ("resnet18", 64),
    ("resnet18", 112),
    ("resnet18", 224),
    ("resnet50", 64),
    ("resnet50", 112),
    ("resnet50", 224),
)


def plain_run(backbone: str, size: int) -> Training:
    """Our loop's run of a first version: cross-entropy, all images new."""
    labels = np.arange(20 * BATCH) % CLASSES
    side = (size, size)
    names = [str(i) for i in range(CLASSES)]
    model = Encoder.create(backbone, classes=names, capacity=CAPACITY).to("cuda")
    images = from_arrays(
        np.random.default_rng(0).integers(0, 256, (len(labels), *side, 3), dtype=np.uint8), labels
    )
    source, _ = pixel_source(
        images, replace(model.preprocessing, size=side), Augmentation(), torch.device("cuda")
    )
    batches = Batches(
        [BatchSource(source, torch.from_numpy(labels).cuda(), False)], BATCH, Augmentation(), seed=0
    )
    objective = create_method("er").objective(Upgrade(model, None, images, tuple(names), ()))
    recipe = Recipe(epochs=100, milestones=(), batch_size=BATCH, precision="auto")
    return Training(model, objective, batches, recipe, None, progress=False)


def compiled_step(backbone: str, size: int, steps: int = 20) -> float:
    """Plain PyTorch's milliseconds per step of the same model, compiled."""
    names = [str(i) for i in range(CLASSES)]
    channels_last: Any = {"memory_format": torch.channels_last}
    model = Encoder.create(backbone, classes=names, capacity=CAPACITY).to("cuda", **channels_last)
    optimiser = optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=2e-4, fused=True)
    images = torch.randn(BATCH, 3, size, size, device="cuda").to(memory_format=torch.channels_last)
    targets = torch.arange(BATCH, device="cuda") % CLASSES

    torch.compiler.reset()  # else a second size is compiled for any size, which is slower

    @torch.compile(dynamic=False)
    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(model.heads(model.backbone(x)).logits.float(), y)

    def epoch() -> None:
        for _ in range(steps):
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_of(images, targets)
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()

    return timed(epoch, steps)


def backbone_speeds(out: Path | None) -> None:
    """Images per second, ours beside plain PyTorch; kept after each backbone."""
    figures: dict[str, Any] = {
        "machine": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rows": [],
    }
    for backbone, size in BACKBONES:
        row: dict[str, Any] = {"backbone": backbone, "size": size}
        for way, measure in (
            ("ours", lambda: timed_run(plain_run(backbone, size), "ours")[0]),  # noqa: B023
            ("torch.compile", lambda: compiled_step(backbone, size)),  # noqa: B023
        ):
            torch.manual_seed(0)
            row[way] = round(BATCH / measure() * 1e3)  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
        print(
            f"{backbone:<10}{size:4d}{row['ours']:10,} images/s{row['torch.compile']:10,} torch.compile",
            flush=True,
        )
        figures["rows"].append(row)
        if out:
            replace_json(out, figures)


def steps_on_cpu(run: Training, count: int = 8) -> float:
    """The fastest of some steps, in milliseconds."""
    (part,) = parts_of(run)
    optimiser = create_optimiser(run, part)
    run.modules().train()
    times = []
    for batch in itertools.islice(part.batches.epoch(0), count):
        start = time.perf_counter()
        update(run, part, optimiser, batch, 0.0)
        times.append((time.perf_counter() - start) * 1e3)
    return min(times)


def timed(epoch: Callable[[], object], steps: int, repeat: int = 3) -> float:
    epoch()
    times = []
    for _ in range(repeat):
        torch.cuda.synchronize()
        start = time.perf_counter()
        epoch()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / steps * 1e3)
    return min(times)


class PilImages(Dataset[tuple[Tensor, int]]):
    """Crop, flip, scale and normalise, an image at a time, as the papers' code does with torchvision's transforms."""

    def __init__(self) -> None:
        self.images = pixels()
        self.mean, self.std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = ImageOps.expand(Image.fromarray(self.images[index]), border=4)
        left = random.randrange(9)
        top = random.randrange(9)
        image = image.crop((left, top, left + 32, top + 32))
        if random.random() < 0.5:
            image = ImageOps.mirror(image)
        array = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)
        return (array - self.mean) / self.std, index % CLASSES


def published_step(loader: bool) -> float:
    new, old = encoder().train(), encoder().eval().requires_grad_(False)
    optimiser = optim.SGD(new.parameters(), 0.1, momentum=0.9, weight_decay=2e-4)
    source = DataLoader(
        PilImages(), BATCH, shuffle=True, num_workers=8, drop_last=True, pin_memory=True
    )
    still = next(iter(source))

    def batches() -> Iterator[list[Tensor]]:
        if loader:
            return iter(source)
        return (still for _ in range(len(source)))

    def epoch() -> None:
        for images, targets in batches():
            x = images.cuda(non_blocking=True)
            y = targets.cuda(non_blocking=True)
            outputs = new.heads(new.backbone(x))
            with torch.no_grad():
                seen = old.heads(old.backbone(x))
            ce = torch.nn.functional.cross_entropy(outputs.logits, y)
            loss = 0.1 * ce + 0.9 * _info_nce_by_torch(outputs.z, seen.z, y, 5.0, "published")
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
            loss.item()

    return timed(epoch, len(source))


def print_profile(steps: CapturedSteps, replays: int = 10) -> list[dict[str, Any]]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as report:
        for _ in range(replays):
            steps._graph.replay()
        torch.cuda.synchronize()
    events = sorted(report.key_averages(), key=lambda event: -event.device_time_total)
    rows = [
        {"us": e.device_time_total / replays, "calls": e.count / replays, "kernel": e.key[:120]}
        for e in events
    ]
    print(
        f"{sum(row['calls'] for row in rows):.0f} kernels, {sum(row['us'] for row in rows) / 1e3:.2f} ms of them"
    )
    for row in rows[:30]:
        print(f"{row['us']:9.1f} us {row['calls']:6.1f}x {row['kernel']}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument(
        "--capacities", help="measure these values of K instead, such as 100,10000,100000"
    )
    parser.add_argument("--backbones", action="store_true", help="measure larger backbones instead")
    options = parser.parse_args()
    if options.backbones:
        backbone_speeds(options.out)
        return
    if options.capacities:
        costs = capacity_costs([int(text) for text in options.capacities.split(",")])
        if options.out:
            replace_json(options.out, costs)
        return
    figures: dict[str, Any] = {
        "machine": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "ms": {},
    }
    for kind in ("published", "published, no loader", "eager", "captured", "ours"):
        if kind.startswith("published"):
            figures["ms"][kind] = published_step(loader=kind == "published")
        else:
            figures["ms"][kind], steps = our_step(kind)
        ratio = figures["ms"]["published"] / figures["ms"][kind]
        print(
            f"{kind:<22}{figures['ms'][kind]:8.3f} ms   {ratio:5.1f}x the published way", flush=True
        )
    if options.profile:
        figures["kernels"] = print_profile(steps)
    if options.out:
        replace_json(options.out, figures)


if __name__ == "__main__":
    main()
