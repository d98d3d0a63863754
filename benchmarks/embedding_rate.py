"""Images embedded per second: by fixstar, by a bare PyTorch loop, and what the model and the decoders do on their own.

Photos are made here: JPEG, 500 x 375, quality 90. The models are torchvision's, with random weights, in float32. Rows:

    model alone                  on pixels that are on the device already
    decoding, threads            by threads of one process
    decoding, processes          by fixstar's processes, one per core, which threads ask
    decoding, DataLoader         a DataLoader with one process per core
    bare loop                    that DataLoader, pinned memory, and the model
    fixstar, batch by batch      one batch is decoded by threads, then the model works on it
    fixstar                      the next batches are decoded while the model works: ``LocalEmbedder``
    fixstar, into a gallery      ``Workspace.index`` of the folder into SQLite

All rows take turns, and each works on as many photos as the model embeds in --seconds, at most --images.

    python benchmarks/embedding_rate.py --out benchmarks/results/embedding_rate_h200.json
    python benchmarks/embedding_rate.py --images 512 --models resnet18 --device cpu --batch 32
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fixstar.durable import replace_json
from fixstar.images import Preprocessing, decode_ahead
from fixstar.models import Encoder
from fixstar.workspace.items import LocalEmbedder, catalogue, in_processes

WIDTH = 500
HEIGHT = 375
QUALITY = 90
SIDE = 224
BEFORE_CROP = 256
PARTS = 8  # of a batch, in the bare loop
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
IMAGENET = Preprocessing(
    size=(SIDE, SIDE),
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    crop_fraction=SIDE / BEFORE_CROP,
    interpolation="bilinear",
)

Figures = dict[str, Any]


# --- photos


def make_photos(folder: Path, count: int) -> list[Path]:
    """So many different photos, made by all cores."""
    paths = [folder / f"{number:06d}.jpg" for number in range(count)]
    with ProcessPoolExecutor(CORES) as pool:
        list(pool.map(write_photo, paths, range(count), chunksize=16))
    return paths


def write_photo(path: Path, seed: int) -> None:
    """Smooth colours with texture at two scales: about as many bytes as a photo of that size has."""
    rng = np.random.default_rng(seed)
    smooth = _noise(rng, scale=60, deviation=70)
    coarse = _noise(rng, scale=6, deviation=25)
    fine = _noise(rng, scale=1, deviation=6)
    pixels = np.clip(128 + smooth + coarse + fine, 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path, "JPEG", quality=QUALITY)


def _noise(rng: np.random.Generator, scale: int, deviation: float) -> np.ndarray[Any, Any]:
    """Noise [H, W, 3] whose spots are about ``scale`` pixels wide."""
    shape = (HEIGHT // scale + 1, WIDTH // scale + 1)
    planes = []
    for _ in range(3):
        plane = Image.fromarray(deviation * rng.standard_normal(shape, np.float32))
        planes.append(np.asarray(plane.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)))
    return np.stack(planes, axis=-1)


# --- the bare loop


class Photos(Dataset[Tensor]):
    """Photos as uint8 pixels [3, 224, 224], read by Pillow alone."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Tensor:
        """Resized to 256 pixels at the shorter side, then the middle."""
        with Image.open(self._paths[index]) as image:
            photo = image.convert("RGB")
        width, height = photo.size
        scale = BEFORE_CROP / min(width, height)
        photo = photo.resize(
            (round(width * scale), round(height * scale)), Image.Resampling.BILINEAR
        )
        left = (photo.width - SIDE) // 2
        top = (photo.height - SIDE) // 2
        pixels = np.array(photo.crop((left, top, left + SIDE, top + SIDE)))
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def processes(part: int) -> int:
    """One per core, or as many as the shared memory holds with three parts of a batch each."""
    shared = os.statvfs("/dev/shm")
    room = shared.f_bavail * shared.f_frsize // (3 * part * 3 * SIDE * SIDE)
    if room < CORES:
        print(
            f"only {max(1, room)} processes decode for the bare loop: /dev/shm is small", flush=True
        )
    return max(1, min(CORES, room))


class BareLoop:
    """A module fed by a DataLoader whose processes live on from turn to turn.

    A process decodes an eighth of a batch at a time: with whole batches the first would come late.
    """

    def __init__(
        self, model: nn.Module, paths: Sequence[Path], batch: int, device: torch.device
    ) -> None:
        self.device = device
        self._model = model.to(device).eval()
        self._mean = 255 * torch.tensor(IMAGENET.mean, device=device).view(-1, 1, 1)
        self._std = 255 * torch.tensor(IMAGENET.std, device=device).view(-1, 1, 1)
        part = max(1, batch // PARTS)
        self._parts = -(-batch // part)
        self._loader = DataLoader(
            Photos(paths),
            batch_size=part,
            num_workers=processes(part),
            pin_memory=device.type == "cuda",
            persistent_workers=True,
        )

    @torch.inference_mode()
    def features(self, pixels: Tensor) -> Tensor:
        """uint8 pixels [B, 3, H, W] on the device to unit vectors there."""
        return nn.functional.normalize(self._model((pixels - self._mean) / self._std))

    def embed(self) -> Tensor:
        """All photos, as fast as a plain loop can: vectors stay on the device until the end."""
        found = []
        parts = iter(self._loader)
        while batch := [
            pixels.to(self.device, non_blocking=True) for pixels in islice(parts, self._parts)
        ]:
            found.append(self.features(torch.cat(batch)))
        return torch.cat(found).cpu()

    def read(self) -> int:
        """All photos decoded, and no model."""
        return sum(len(pixels) for pixels in self._loader)


def imported(source: str) -> nn.Module:
    """What an import path ``package.module:name`` makes."""
    module, _, name = source.partition(":")
    made = getattr(importlib.import_module(module), name)()
    assert isinstance(made, nn.Module)
    for layer in made.modules():
        if isinstance(layer, nn.Linear) and not layer.weight.any():
            nn.init.normal_(layer.weight, std=0.02)  # a ViT's untrained head answers zero for all
    return made


def import_path(name: str) -> str:
    """A model's import path; a name without a module is one of torchvision's."""
    if ":" in name:
        return name
    return f"torchvision.models:{name}"


# --- rows


def model_alone(bare: BareLoop, batch: int, batches: int) -> None:
    pixels = torch.randint(0, 256, (batch, 3, SIDE, SIDE), dtype=torch.uint8, device=bare.device)
    for _ in range(batches):
        vectors = bare.features(pixels)
    vectors.cpu()


def read_in_threads(paths: Sequence[Path], workers: int | None = None) -> None:
    for pixels in decode_ahead(paths, IMAGENET, workers=workers):
        assert isinstance(pixels, np.ndarray), pixels


def read_in_processes(paths: Sequence[Path]) -> None:
    for pixels in decode_ahead(paths, IMAGENET, decode=in_processes(first=0)):
        assert isinstance(pixels, np.ndarray), pixels


def embed(encoder: Encoder, batches: Sequence[Sequence[Path]]) -> np.ndarray[Any, Any]:
    return np.concatenate([made.vectors for made in LocalEmbedder(encoder)(batches)])


def embed_batch_by_batch(encoder: Encoder, batches: Sequence[Sequence[Path]]) -> None:
    embedder = LocalEmbedder(encoder)
    for batch in batches:
        embedder.one(batch)


@contextmanager
def indexing(
    encoder: Encoder, folder: Path, count: int, device: str
) -> Iterator[Callable[[], None]]:
    """What indexes the first ``count`` photos of a folder, under other ids each time."""
    from fixstar.workspace import Workspace

    with tempfile.TemporaryDirectory() as place:
        space = Workspace.create(Path(place) / "shop", device=device)
        space.add_version(encoder)
        turn = 0

        def index() -> None:
            nonlocal turn
            turn += 1
            done = space.index(islice(catalogue(folder, prefix=f"{turn}/"), count))
            assert done.added == count, done

        yield index


def in_turns(rows: dict[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
    """Seconds of every row in every turn, after one turn that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    for turn in range(turns + 1):
        for name, row in rows.items():
            start = time.perf_counter()
            row()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def per_second(images: int, seconds: Sequence[float]) -> dict[str, float]:
    return {
        "best": round(images / min(seconds), 1),
        "median": round(images / float(np.median(seconds)), 1),
    }


def measured(name: str, paths: list[Path], options: argparse.Namespace) -> Figures:
    """Images per second of all rows with one model."""
    source = import_path(name)
    os.environ["FIXSTAR_TRUST"] = source.partition(":")[0]
    torch.manual_seed(0)
    model = imported(source)
    encoder = Encoder.wrap(model, IMAGENET, source=source).to(options.device)
    batch = options.batch
    bare = BareLoop(model, paths[:batch], batch, torch.device(options.device))
    model_alone(bare, batch, 2)
    start = time.perf_counter()
    model_alone(bare, batch, 4)
    rate = 4 * batch / (time.perf_counter() - start)
    whole = min(len(paths), max(4 * batch, int(options.seconds * rate))) // batch
    shown = paths[: max(1, whole) * batch]
    batches = [shown[first : first + batch] for first in range(0, len(shown), batch)]
    bare = BareLoop(model, shown, batch, bare.device)
    rows: dict[str, Callable[[], object]] = {
        "model alone": partial(model_alone, bare, batch, len(batches)),
        "decoding, threads": partial(read_in_threads, shown),
        "decoding, processes": partial(read_in_processes, shown),
        "decoding, DataLoader": bare.read,
        "bare loop": bare.embed,
        "fixstar, batch by batch": partial(embed_batch_by_batch, encoder, batches),
        "fixstar": partial(embed, encoder, batches),
    }
    different = float(np.abs(bare.embed().numpy() - embed(encoder, batches)).max())
    try:
        with indexing(encoder, paths[0].parent, len(shown), options.device) as index:
            seconds = in_turns({**rows, "fixstar, into a gallery": index}, options.turns)
    except ImportError as error:
        print(f"Workspace.index is left out: {error}", flush=True)
        seconds = in_turns(rows, options.turns)
    found = {row: per_second(len(shown), spent) for row, spent in seconds.items()}
    print(
        f"\n{name}, {len(shown):,} photos in batches of {batch}: images per second, best and median",
        flush=True,
    )
    for row, figures in found.items():
        print(f"  {row:26} {figures['best']:10,.0f} {figures['median']:10,.0f}", flush=True)
    print(
        f"  largest difference of a component, bare loop and fixstar: {different:.2g}", flush=True
    )
    return {
        "model": name,
        "images": len(shown),
        "largest_difference": different,
        "images_per_second": found,
    }


def threads_measured(paths: list[Path], turns: int) -> dict[str, Any]:
    """Images decoded per second by 1, 2, 4, ... threads."""
    counts = sorted({1, *(2**power for power in range(1, 8) if 2**power < CORES), CORES, 2 * CORES})
    found = {}
    for count in counts:
        shown = paths[: min(len(paths), 128 * count)]
        seconds = in_turns({"": partial(read_in_threads, shown, count)}, turns)[""]
        found[str(count)] = per_second(len(shown), seconds)
        print(
            f"decoding in {count:3} threads {found[str(count)]['best']:10,.0f} images per second",
            flush=True,
        )
    return found


def about(options: argparse.Namespace) -> Figures:
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "device": name,
        "cores": CORES,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pillow": PIL.__version__,
        "batch": options.batch,
        "turns": options.turns,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--models", nargs="+", default=["resnet50", "vit_b_16"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument(
        "--threads", action="store_true", help="also decode with 1, 2, 4, ... threads"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    report = about(options)
    print(", ".join(f"{name} {value}" for name, value in report.items()), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        paths = make_photos(Path(folder), options.images)
        size = float(np.mean([path.stat().st_size for path in paths]))
        print(
            f"{len(paths):,} photos of {size / 1000:.0f} kB made in {time.perf_counter() - start:.1f} s",
            flush=True,
        )
        report["kilobytes_per_photo"] = round(size / 1000, 1)
        if options.threads:
            report["threads"] = threads_measured(paths, options.turns)
        report["models"] = [measured(name, paths, options) for name in options.models]
        report["seconds_in_all"] = round(time.perf_counter() - start, 1)
    print(f"\n{report['seconds_in_all']} s in all", flush=True)
    if options.out:
        replace_json(options.out, report)


if __name__ == "__main__":
    main()
