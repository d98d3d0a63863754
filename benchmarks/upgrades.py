"""What an ordinary upgrade gives: v1 and v2 trained on real images with the defaults, then searched on new classes.

Each run takes the path of a new user: ``train`` on some classes, ``upgrade`` on more classes or more images, ``check``.
It then searches classes that neither version has seen, by nearest image and by class template:

    v1      v1's queries on v1's vectors: the system before the upgrade
    v2/v1   v2's queries on v1's vectors: what deploying v2 without re-embedding gives
    v2      v2's queries on v2's vectors: everything re-embedded
    auto    what ``deploy --blend auto`` searches v1's vectors with: both queries blended (slerp), by as much as the
            check on the searched images, half of them to choose and half to judge, shows to lose nothing

The seed draws the classes, the images and the initial weights; all methods get the same draws. Cases marked "confirm"
are set aside: tune on the others, and look at these once at the end. Every run on them is noted in
``benchmarks/looks.json``, and a case that was run with another setting of the same method is named before it is run
again. Intervals are bootstraps over the seeds, which are a little too narrow for five of them.

    python benchmarks/upgrades.py --data DATA                                 the tuning cases, 5 seeds
    python benchmarks/upgrades.py --data DATA --cases photos-30+30 --method fd --option on=all --capacity 10000
    python benchmarks/upgrades.py --data DATA --cases confirm --device cuda --picture docs/pictures/upgrades.png

DATA holds any of cifar-100-binary/, omniglot/ (images_background, images_evaluation), celeba-identities/ and
CUB_200_2011/; cases without data are skipped. Every run uses one thread: photos-30+30 takes 70 seconds on one CPU core,
cases with ``resnet20`` several times that. Finished runs are kept in --out and not repeated; give each command that
runs at the same time its own file.
"""

from __future__ import annotations

import argparse
import inspect
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fixstar.benchmarks.ledger import Look, default_path, known_looks, note, warning
from fixstar.cli.versions import train
from fixstar.data import Augmentation, ImageSet, concatenate, from_arrays
from fixstar.data.formats import cifar100, image_folder, omniglot_folder
from fixstar.data.glyphs import SCRIPTS, glyph_pixels
from fixstar.durable import replace_json
from fixstar.errors import DataError, FixstarError, InputError, UnknownNameError
from fixstar.evaluation.search import templates
from fixstar.geometry import slerp
from fixstar.images import Preprocessing
from fixstar.methods import create_method
from fixstar.models.backbones import create_backbone
from fixstar.models.slots import CAPACITY
from fixstar.training import Settings, paper_recipe
from fixstar.workspace import UpgradeOptions, Workspace

Floats = NDArray[np.float32]
Labels = NDArray[np.integer[Any]]
Record = dict[str, Any]

PROTOCOLS = {"image": "nearest image", "template": "class template"}
KINDS = ("v1", "v2/v1", "v2", "auto", "half", "best blend", "v2/v1 - v1", "half - v1", "auto - v1")
ALPHAS = tuple(step / 10 for step in range(11))
HOLD_OUT = 0.1  # the command line's default
OUTCOMES = ("pass", "missing evidence", "refuse")


@dataclass(frozen=True)
class Case:
    """An upgrade: what each version learns, what is searched, and with which model.

    v1 learns ``old`` classes, v2 ``new`` others; with ``more`` v2 also gets further images of v1's classes. ``images``
    are the images per class of v1 and of v2. ``searched`` more classes have ``gallery`` images and ``queries`` each.
    """

    source: str
    old: int
    new: int
    images: tuple[int, int]
    searched: int
    gallery: int
    queries: int
    epochs: int
    more: bool = False
    backbone: str = "tiny"
    backbone_options: Mapping[str, Any] = field(default_factory=dict)
    size: int = 32
    batch_size: int = 64
    flip: bool = True
    confirm: bool = False
    gpu: bool = False  # too slow for a CPU

    def inputs(self) -> Preprocessing:
        """The backbone's own preprocessing, at the size of this case."""
        own = create_backbone(self.backbone, **self.backbone_options).preprocessing
        return replace(own, size=(self.size, self.size))

    def described(self) -> Record:
        """As it reads back from JSON."""
        kind = "new classes" if not self.more else "both" if self.new else "more images"
        content: Record = json.loads(json.dumps({"kind": kind, **asdict(self)}))
        return content


_photos = partial(Case, "photos", searched=40, gallery=50, queries=50)
_drawings = partial(Case, "drawings", searched=200, gallery=10, queries=10, epochs=20, flip=False)
_birds = partial(Case, "birds", 60, 60, (40, 40), searched=80, gallery=15, queries=25, confirm=True)
_resnet18: Record = {"backbone": "resnet18", "backbone_options": {"stem": "cifar"}, "size": 64, "gpu": True}
CASES: dict[str, Case] = {
    "photos-30+30": _photos(30, 30, (80, 80), epochs=20),
    "photos-10+10": _photos(10, 10, (400, 400), epochs=15),
    "photos-more": _photos(30, 0, (40, 160), epochs=20, more=True),
    "photos-both": _photos(20, 20, (100, 100), epochs=20, more=True),
    "photos-resnet20": _photos(20, 20, (100, 100), epochs=15, backbone="resnet20"),
    "photos-resnet32": _photos(30, 30, (500, 500), epochs=40, backbone="resnet32", batch_size=128, gpu=True),
    "drawings-100+100": _drawings(100, 100, (15, 15)),
    "drawings-200+200": _drawings(200, 200, (10, 10)),
    "faces-70+70": Case("faces", 70, 70, (25, 25), searched=60, gallery=10, queries=20, epochs=30),
    "characters-both": Case(
        *("characters", 60, 60, (20, 20), 100, 10, 20), epochs=20, more=True, flip=False, confirm=True
    ),
    "photos-20+40": _photos(20, 40, (50, 50), epochs=30, confirm=True),
    "faces-more": Case("faces", 100, 0, (12, 16), 100, 10, 20, epochs=30, more=True, confirm=True),
    "birds-60+60": _birds(epochs=20, backbone="resnet20"),
    "birds-resnet18": _birds(epochs=60, **_resnet18),
}
FOLDERS: dict[str, tuple[str, Callable[[Path], ImageSet]]] = {
    "photos": ("cifar-100-binary", partial(cifar100, split="train")),
    "drawings": ("omniglot", omniglot_folder),
    "faces": ("celeba-identities", image_folder),
    "birds": ("CUB_200_2011/images", image_folder),
}


class Images(NamedTuple):
    """What each version learns, and what is searched."""

    first: ImageSet
    later: ImageSet
    gallery: ImageSet
    queries: ImageSet


def draw_images(name: str, case: Case, seed: int, data: Path) -> Images:
    """The images of one run, at the model's size."""
    rng = np.random.default_rng([seed, *name.encode()])
    most = max(case.images[0] + case.images[1] * case.more, case.images[1], case.gallery + case.queries)
    wanted = case.old + case.new + case.searched
    if case.source == "characters":
        alphabet = [character for script in SCRIPTS.values() for character in script]
        classes = [alphabet[i] for i in rng.permutation(len(alphabet))[:wanted]]
        pool = from_arrays(*glyph_pixels(classes, most, seed=seed, workers=1), classes)
    else:
        folder, read = FOLDERS[case.source]
        pool = read(data / folder)
        enough = [one for one, count in pool.counts().items() if count >= most]
        if len(enough) < wanted:
            raise DataError(f"{name} needs {wanted} classes of {most} images; {data / folder} has {len(enough)}")
        classes = [enough[i] for i in rng.permutation(len(enough))[:wanted]]
    rows = {one: rng.permutation(np.flatnonzero(pool.labels == label)) for label, one in enumerate(pool.classes)}
    inputs = case.inputs()

    def part(names: Sequence[str], start: int, count: int) -> ImageSet:
        chosen = np.concatenate([rows[one][start : start + count] for one in names])
        return pool.take(chosen).of_classes(names).load(inputs).images

    old, new, searched = classes[: case.old], classes[case.old : -case.searched], classes[-case.searched :]
    later = [part(old, *case.images)] if case.more else []
    later += [part(new, 0, case.images[1])] if new else []
    gallery, queries = part(searched, 0, case.gallery), part(searched, case.gallery, case.queries)
    return Images(part(old, 0, case.images[0]), concatenate(later), gallery, queries)


@dataclass(frozen=True)
class Way:
    """How the versions are trained; ``epochs=None`` leaves the number to the case."""

    method: str
    capacity: int
    options: Mapping[str, Any] = field(default_factory=dict)
    epochs: int | None = None
    longer: float = 1.0  # times as many epochs for v2

    def __str__(self) -> str:
        options = "".join(f" {key}={value}" for key, value in sorted(self.options.items()))
        epochs = f" epochs={self.epochs}" * (self.epochs is not None) + f" longer={self.longer:g}" * (self.longer != 1)
        return f"{self.method}{options} K={self.capacity}{epochs}"


def setting_of(way: Way, case: Case) -> Record:
    """How a case is trained, as the ledger of looks notes it: with all options, also those that were not given."""
    changed = {"longer": way.longer} if way.longer != 1 else {}
    return {
        "method": way.method,
        "options": dict(create_method(way.method, **way.options).options),
        "capacity": way.capacity,
        "epochs": way.epochs or case.epochs,
        **changed,
    }


def default_of(option: str) -> Any:
    """What ``fixstar train`` takes where an option is not given."""
    return inspect.signature(train).parameters[option].default


class Vectors(NamedTuple):
    """One version's full unit features."""

    queries: Floats
    gallery: Floats


def upgrade(case: Case, images: Images, way: Way, seed: int, device: str) -> tuple[list[Vectors], Record]:
    """Train v1, upgrade to v2, check v2: all that this benchmark asks of the library."""
    method = create_method(way.method, **way.options)
    settings = Settings(
        backbone=case.backbone,
        backbone_options=case.backbone_options,
        capacity=way.capacity,
        preprocessing=case.inputs(),
        recipe=replace(paper_recipe(method.scenario).shortened(way.epochs or case.epochs), batch_size=case.batch_size),
        augmentation=Augmentation(flip=case.flip),
        seed=seed,
        device=device,
    )
    later = concatenate([images.first, images.later]) if "all images" in method.needs else images.later
    labelled = concatenate([images.gallery, images.queries])
    with tempfile.TemporaryDirectory() as folder, Workspace.create(Path(folder) / "w", device=device) as space:
        times = [time.perf_counter()]
        space.train(images.first, settings, method, progress=False, hold_out=HOLD_OUT)
        times.append(time.perf_counter())
        recipe = settings.recipe.shortened(round(way.longer * settings.recipe.epochs))
        space.upgrade(later, UpgradeOptions(recipe, device=device, hold_out=HOLD_OUT, progress=False), trials=0)
        times.append(time.perf_counter())
        checks = {
            "held out": space.check("v2", report=False, progress=False),
            "labelled": space.check("v2", labelled, report=False, progress=False),
        }
        encoders = [space.encoder(name, device) for name in ("v1", "v2")]
    vectors = [Vectors(one.encode(images.queries.images), one.encode(images.gallery.images)) for one in encoders]
    facts = {
        "gate": {on: check.outcome for on, check in checks.items()},
        "alpha": {on: check.blends[0].alpha if check.blends else 1.0 for on, check in checks.items()},
        "seconds": np.diff(times).round(1).tolist(),
    }
    return vectors, facts


def measure(old: Vectors, new: Vectors, query_labels: Labels, gallery_labels: Labels, alpha: float) -> Record:
    """Top-1 accuracy of every kind of query, by protocol. ``blends`` has one per alpha of ``ALPHAS``."""
    found: Record = {}
    for protocol in PROTOCOLS:
        before, after, labels = old.gallery, new.gallery, gallery_labels
        if protocol == "template":
            (before, labels), (after, _) = templates(before, labels), templates(after, labels)

        def accuracy(cosines: NDArray[Any], labels: Labels = labels) -> float:
            return round(float(np.mean(labels[cosines.argmax(axis=1)] == query_labels)), 5)

        v1, cross = accuracy(old.queries @ before.T), accuracy(new.queries @ before.T)
        blends = [accuracy(slerp(old.queries, new.queries, alpha) @ before.T) for alpha in ALPHAS]
        auto, half, best = blends[ALPHAS.index(alpha)], blends[ALPHAS.index(0.5)], max(blends)
        figures = (v1, cross, accuracy(new.queries @ after.T), auto, half, best, cross - v1, half - v1, auto - v1)
        found[protocol] = {**dict(zip(KINDS, figures, strict=True)), "blends": blends}
    return found


def run(name: str, case: Case, seed: int, way: Way, data: Path, device: str) -> Record:
    """One upgrade, in any process."""
    warnings.filterwarnings("ignore", "left out classes")  # of which too few images were held out
    images = draw_images(name, case, seed, data)
    (old, new), facts = upgrade(case, images, way, seed, device)
    accuracies = measure(old, new, images.queries.labels, images.gallery.labels, facts["alpha"]["labelled"])
    about = {"case": name, "seed": seed, "way": str(way), "device": device, "queries": len(images.queries)}
    return {**about, **accuracies, **facts, "definition": case.described()}


def set_aside(name: str) -> str:
    """What the ledger calls a case that is set aside."""
    return f"case {name}"


def look_at(result: Record, setting: Record, file: Path) -> Look:
    """A finished run of a set-aside case, as the ledger notes it."""
    headline = ("v1", "v2/v1", "v2")
    figures: Record = {protocol: {kind: result[protocol][kind] for kind in headline} for protocol in PROTOCOLS}
    return Look(
        set=set_aside(result["case"]),
        benchmark="upgrades",
        seed=result["seed"],
        setting=setting,
        result={**figures, "gate": result["gate"]},
        file=file.name,
    )


def warn_of_looks(names: Sequence[str], way: Way, ledger: Path) -> None:
    """Print which of the cases are set aside, but were run before with another setting of this method."""
    entries = known_looks(ledger)
    for name in names:
        if CASES[name].confirm and (sentence := warning(entries, set_aside(name), setting_of(way, CASES[name]))):
            print(sentence, flush=True)


def chosen_cases(words: Sequence[str], data: Path | None, device: str) -> list[str]:
    """The cases that are named and can run here; the others are printed with the reason."""
    groups: dict[str, list[str]] = {
        "all": list(CASES),
        "tune": [name for name, case in CASES.items() if not case.confirm],
        "confirm": [name for name, case in CASES.items() if case.confirm],
    }
    chosen = []
    for name in dict.fromkeys(name for word in words for name in groups.get(word, [word])):
        if name not in CASES:
            raise UnknownNameError("case", name, [*groups, *CASES])
        folder = FOLDERS.get(CASES[name].source, ("",))[0]
        if folder and (data is None or not (data / folder).is_dir()):
            print(f"skipped {name}: no {folder} " + (f"in {data}" if data else "without --data"))
        elif CASES[name].gpu and device == "cpu" and name not in words:
            print(f"skipped {name}: {CASES[name].backbone} is slow on a CPU; name the case, or --device cuda")
        else:
            chosen.append(name)
    return chosen


def spread(cases: Sequence[Sequence[float]]) -> Record:
    """Mean over cases and runs, deviation of single runs, and the 95 % interval of the mean by resampling runs.

    Deviation and interval are None where a case has one run.

    >>> spread([[0.25, 0.75]])["mean"], spread([[0.25]])["interval"]
    (0.5, None)
    """
    rng = np.random.default_rng(0)
    resampled = [np.asarray(runs)[rng.integers(len(runs), size=(10_000, len(runs)))].mean(axis=1) for runs in cases]
    several = all(len(runs) > 1 for runs in cases)
    return {
        "mean": round(float(np.mean([np.mean(runs) for runs in cases])), 5),
        "deviation": round(float(np.mean([np.std(runs, ddof=1) for runs in cases])), 5) if several else None,
        "interval": np.quantile(np.mean(resampled, axis=0), (0.025, 0.975)).round(5).tolist() if several else None,
        "runs": sum(map(len, cases)),
    }


def summarise(runs: Sequence[Record]) -> Record:
    """Each case, and the mean over cases."""
    cases = {name: [run for run in runs if run["case"] == name] for name in dict.fromkeys(run["case"] for run in runs)}

    def spreads(groups: Sequence[Sequence[Record]]) -> Record:
        return {p: {kind: spread([[run[p][kind] for run in g] for g in groups]) for kind in KINDS} for p in PROTOCOLS}

    summary = {name: spreads([mine]) for name, mine in cases.items()}
    for name, mine in cases.items():
        summary[name]["gate"] = {on: Counter(run["gate"][on] for run in mine) for on in mine[0]["gate"]}
        summary[name]["seconds"] = np.mean([run["seconds"] for run in mine], axis=0).round(1).tolist()
    return {"cases": summary, "mean over cases": spreads(list(cases.values()))}


def tables(summary: Record) -> str:
    """Per cent and points, at 80 columns."""
    lines = []
    for protocol, title in PROTOCOLS.items():
        lines.append(f"{title:16s}  n    v1 v2/v1    v2  auto  v2/v1 - v1        auto - v1")
        for name, row in {**summary["cases"], "mean over cases": summary["mean over cases"]}.items():
            found = row[protocol]
            accuracies = "".join(f"{100 * found[kind]['mean']:6.1f}" for kind in KINDS[:4])
            differences = "".join(points(found[kind]) for kind in ("v2/v1 - v1", "auto - v1"))
            lines.append(f"{name:16s}{found['v1']['runs']:3d}{accuracies}{differences}".rstrip())
        lines.append("")
    lines.append("                  deviation of v2/v1 - v1   pass/undecided/refused      seconds")
    lines.append("                       image     template     held out    labelled    v1    v2")
    for name, row in summary["cases"].items():
        found = [row[protocol]["v2/v1 - v1"]["deviation"] for protocol in PROTOCOLS]
        deviations = "".join(f"{'-' if one is None else format(100 * one, '.1f'):>13s}" for one in found)
        gates = "".join(f"{'/'.join(str(gate.get(one, 0)) for one in OUTCOMES):>12s}" for gate in row["gate"].values())
        lines.append(f"{name:16s}{deviations} {gates}" + "".join(f"{one:6.0f}" for one in row["seconds"]))
    return "\n".join(lines)


def points(difference: Record) -> str:
    interval = difference["interval"]
    shown = f"[{100 * interval[0]:+.1f} {100 * interval[1]:+.1f}]" if interval else ""
    return f"{100 * difference['mean']:+6.1f} {shown:11s}"


def draw_picture(summary: Record, title: str, path: Path) -> None:
    """Per case the four accuracies as dots, with the 95 % intervals of their means."""
    from matplotlib.figure import Figure

    cases = summary["cases"]
    colours = {"v1": "#777777", "v2/v1": "#d1495b", "auto": "#edae49", "v2": "#00798c"}
    figure = Figure(figsize=(10, 1.5 + 0.45 * len(cases)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (protocol, label) in zip(panels, PROTOCOLS.items(), strict=True):
        for place, (kind, colour) in enumerate(colours.items()):
            found = [row[protocol][kind] for row in cases.values()]
            means = np.array([one["mean"] for one in found])
            ends = np.array([one["interval"] or [one["mean"]] * 2 for one in found])
            rows = np.arange(len(cases)) + 0.16 * (place - 1.5)
            axes.errorbar(100 * means, rows, xerr=100 * np.abs(ends.T - means), fmt="o", ms=5, color=colour, label=kind)
        axes.set_xlabel(f"top-1 by {label}, per cent")
        axes.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(cases)), list(cases))
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=4)
    figure.suptitle(title, x=0.01, ha="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def parse_options(given: Sequence[str]) -> Record:
    """``key=value`` pairs; a value is JSON where it parses, else a word.

    >>> parse_options(["lam=0.5", "on=all"])
    {'lam': 0.5, 'on': 'all'}
    """
    options: Record = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise InputError(f"--option takes key=value, got {pair!r}")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


def main(words: Sequence[str] | None = None) -> int:
    """Run what is missing, then print and keep the summary; the number of runs that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder with the image sets; characters need none")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/upgrades.json"))
    parser.add_argument("--cases", default="tune", help="tune, confirm, all, or names separated by commas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--method", default=default_of("method"))
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="of the method")
    parser.add_argument("--capacity", type=int, default=CAPACITY)
    parser.add_argument("--epochs", type=int, help="for every case, instead of its own number")
    parser.add_argument("--longer", type=float, default=1.0, help="times as many epochs for v2")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--picture", type=Path, help="draw the accuracies of every case")
    parser.add_argument("--ledger", type=Path, default=default_path(), help="notes runs of set-aside cases")
    given = parser.parse_args(words)
    way = Way(given.method, given.capacity, parse_options(given.option), given.epochs, given.longer)
    create_method(way.method, **way.options)  # an unknown name fails here, not in every run
    content: Record = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    runs = content.setdefault("runs", {})
    names = chosen_cases(given.cases.split(","), given.data, given.device)
    plan = {  # the first seed of every case comes first
        f"{name} seed={seed} {replace(way, epochs=way.epochs or CASES[name].epochs)}": (name, CASES[name], seed)
        for seed in range(1, given.seeds + 1)
        for name in names
    }

    def is_done(key: str) -> bool:
        return key in runs and runs[key]["definition"] == plan[key][1].described()

    warn_of_looks(list(dict.fromkeys(plan[key][0] for key in plan if not is_done(key))), way, given.ledger)
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")  # for the processes that are started here
    failed = 0
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        missing = [key for key in plan if not is_done(key)]
        started = {pool.submit(run, *plan[key], way, given.data or Path(), given.device): key for key in missing}
        for ended in as_completed(started):
            if error := ended.exception():
                failed += 1
                print(f"failed: {started[ended]}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                continue
            result = runs[started[ended]] = ended.result()
            if CASES[result["case"]].confirm:
                setting = setting_of(way, CASES[result["case"]])
                note(given.ledger, [look_at(result, setting, given.out)])
            replace_json(given.out, content)
            found = "  ".join(f"{kind} {100 * result['image'][kind]:.1f}" for kind in KINDS[:4])
            print(f"{result['case']} {result['seed']}: {found}  {result['gate']['labelled']}", flush=True)
    if finished := [runs[key] for key in plan if is_done(key)]:
        summary = summarise(finished)
        content.setdefault("summary", {})[f"{way}, {given.cases}"] = summary
        content["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
        replace_json(given.out, content)
        print(f"\n{way}\n{tables(summary)}")
        if given.picture:
            draw_picture(summary, str(way), given.picture)
    return failed


if __name__ == "__main__":
    try:
        sys.exit(main() > 0)
    except FixstarError as error:
        sys.exit(f"upgrades.py: {error}")
