"""From an old face model to a new one over LFW: enrolled vectors stay, queries are the new model's.

    python benchmarks/faces.py PAIRS --out benchmarks/results/faces.json

PAIRS holds lfw/MODEL.npz (``vectors`` [N, d], ``ids`` such as Aaron_Eckhart/Aaron_Eckhart_0001.jpg, and ``labels``, the
people) and lfw/pairs.txt, LFW's own list. For each seed the people are divided. A quarter is fitted, without names. A
quarter is labelled: they choose maps and weights as in ``fixstar bridge``, and calibrate scores. Half judges.

Verification: LFW's pairs of which both people judge, the first photo by the query's model, the second enrolled. For a
false-accept rate of 0.001 these are too few, and pairs are drawn among the photos that judge.

Identification: of everybody who judges and has two photos, one is enrolled and up to five others are queries. People
with one photo are not enrolled: they must stay unknown. The threshold that accepts 1 % of unknown people is set on the
old model, with labelled people who are not enrolled, and carried over to every other way to search.

A run that FILE has is not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from change_model import T_95, Change, changes_in
from numpy.typing import NDArray

from fixstar.durable import replace_json
from fixstar.errors import DataError, FixstarError
from fixstar.evaluation import (
    VerificationPairs,
    VersionFeatures,
    kfold_accuracy,
    sample_pairs,
    tar_at_far,
)
from fixstar.evaluation.verdicts import GateRules
from fixstar.translation import Pairs, Translation, fit_map
from fixstar.translation.bridge import AGAIN, BACK, OLD, ONE, TWO, Bridged, BridgeOptions, bridge
from fixstar.translation.calibrate import Calibration, fit_calibrations, standardised
from fixstar.translation.score import translated

Record = dict[str, Any]
Vectors = NDArray[np.float32]
Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]
Names = NDArray[np.str_]

SET = "lfw"
CHANGES = (Change(SET, "dlib", "mobilefacenet"), Change(SET, "mobilefacenet", "dlib"))
FORWARD = {"ridge": "ridge map alone", "rotation": "orthogonal map alone (Procrustes)"}
WAYS = (OLD, *FORWARD.values(), BACK, ONE, TWO, AGAIN)
JUDGING = 0.5  # of the people
LABELLED = 0.25
PHOTOS = 5  # of a person that are asked, at most
GENUINE = 2_000  # pairs that are drawn
IMPOSTORS = 100_000
FAR = 0.01  # of unknown people who are accepted by the old model's threshold
ACCURACY = "accuracy"
FEW = "TAR at FAR 0.01"
MANY = "TAR at FAR 0.001"
RANK = "rank 1"
IDENTIFIED = "identified"
MEASURES = (ACCURACY, FEW, MANY, RANK, IDENTIFIED)
KEPT = "same number"
STANDARDISED = "standardised"
CALIBRATED = "calibrated"
AFRESH = "set again"
CARRIED = (KEPT, STANDARDISED, CALIBRATED, AFRESH)
"""How the threshold comes to another way to search."""


class Faces(NamedTuple):
    """Vectors of the same photos by both models, who they show, and LFW's pairs by row."""

    old: Vectors
    new: Vectors
    people: Names
    pairs: VerificationPairs


def read_faces(folder: Path, change: Change) -> Faces:
    """Both files of a change; they must hold the same photos."""
    loaded = []
    for model in (change.old, change.new):
        path = folder / SET / f"{model}.npz"
        if not path.is_file():
            raise DataError(
                f"{path} is missing; PAIRS holds {SET}/MODEL.npz with vectors, ids and labels, and pairs.txt"
            )
        with np.load(path) as file:
            loaded.append({name: file[name] for name in ("vectors", "ids", "labels")})
    one, other = loaded
    if not np.array_equal(one["ids"], other["ids"]):
        raise DataError(f"{change}: both files must hold the same ids in the same order")
    pairs = read_pairs(
        (folder / SET / "pairs.txt").read_text(encoding="utf-8"), one["ids"].tolist()
    )
    return Faces(one["vectors"], other["vectors"], one["labels"], pairs)


def read_pairs(text: str, ids: Sequence[str]) -> VerificationPairs:
    """LFW's pairs.txt: a person and two numbers of photos, or two people with a number each; the first line counts."""
    place = {name: row for row, name in enumerate(ids)}
    first = []
    second = []
    same = []
    for line in text.splitlines()[1:]:
        cells = line.split()
        if not cells:
            continue
        genuine = len(cells) == 3
        other = cells[0] if genuine else cells[2]
        first.append(place[_photo(cells[0], cells[1])])
        second.append(place[_photo(other, cells[-1])])
        same.append(genuine)
    return VerificationPairs(
        np.array(first, np.int64), np.array(second, np.int64), np.array(same, bool)
    )


def _photo(person: str, number: str) -> str:
    return f"{person}/{person}_{int(number):04}.jpg"


# --- who is fitted, and who judges


class Drawn(NamedTuple):
    """Rows of photos: fitted without names, labelled, and judging. Nobody is in two of them."""

    fitted: Indices
    labelled: Indices
    judging: Indices


def draw(people: Names, seed: int) -> Drawn:
    """Divide the people, not the photos."""
    everybody = np.random.default_rng(seed).permutation(np.unique(people))
    judges = round(JUDGING * len(everybody))
    labelled = round(LABELLED * len(everybody))
    parts = np.split(everybody, [judges, judges + labelled])
    judging, known, fitted = (np.flatnonzero(np.isin(people, part)) for part in parts)
    return Drawn(fitted, known, judging)


class Enrolment(NamedTuple):
    """Rows of photos: one of each enrolled person, others of the same people, and people who are not enrolled."""

    enrolled: Indices
    known: Indices
    unknown: Indices


def enrol(people: Names, rows: Indices, seed: int) -> Enrolment:
    """People with two photos among ``rows`` are enrolled with one; at most ``PHOTOS`` others are asked."""
    shuffled = np.random.default_rng(seed).permutation(rows)
    by_person = shuffled[np.argsort(people[shuffled], kind="stable")]
    _, starts, counts = np.unique(people[by_person], return_index=True, return_counts=True)
    place = np.arange(len(by_person)) - np.repeat(starts, counts)
    several = np.repeat(counts > 1, counts)
    enrolled = by_person[several & (place == 0)]
    known = by_person[several & (place > 0) & (place <= PHOTOS)]
    return Enrolment(np.sort(enrolled), np.sort(known), np.sort(by_person[~several]))


def within(pairs: VerificationPairs, rows: Indices) -> VerificationPairs:
    """The pairs of which both photos are among ``rows``."""
    kept = np.isin(pairs.first, rows) & np.isin(pairs.second, rows)
    return VerificationPairs(pairs.first[kept], pairs.second[kept], pairs.same[kept])


# --- ways to search


def bridged(faces: Faces, drawn: Drawn, seed: int) -> Bridged:
    """Maps of the fitted people's photos; the labelled ones choose and judge, as ``fixstar bridge`` does it."""
    rows = np.concatenate([drawn.fitted, drawn.labelled])
    labels = np.concatenate([np.full(len(drawn.fitted), ""), faces.people[drawn.labelled]])
    options = BridgeOptions(sample=len(rows), held_out=1, rules=GateRules(seed=seed))
    return bridge(faces.old[rows], faces.new[rows], labels=labels.tolist(), options=options)


def ways_to_search(found: Bridged, faces: Faces, drawn: Drawn, seed: int) -> dict[str, Translation]:
    """Every way that goes through a map, by name: plain maps alone, and both sides as the bridge chose them."""
    pairs = Pairs.checked(faces.old[drawn.fitted], faces.new[drawn.fitted], seed=seed)
    ways = {}
    for kind, name in FORWARD.items():
        ahead = fit_map(kind, pairs).map
        back = fit_map(kind, pairs.reversed).map
        ways[name] = Translation("old", "new", forward=ahead, backward=back, one=1.0)
    ways[BACK] = replace(ways[FORWARD["ridge"]], one=0.0)
    ways[ONE] = replace(found.translation, one=found.measured[ONE].weight, two=None)
    ways[TWO] = replace(found.translation, one=None, two=found.measured[TWO].weight)
    return ways


def views(
    faces: Faces, ways: Mapping[str, Translation], queries: Indices, stored: Indices
) -> list[VersionFeatures]:
    """Queries and enrolled vectors of every way to search; their dot products are its scores."""
    old = VersionFeatures("old", faces.old[queries], faces.old[stored])
    new = VersionFeatures("new", faces.new[queries], faces.new[stored])
    found = [replace(old, name=OLD)]
    found += [replace(translated(way, old, new), name=name) for name, way in ways.items()]
    return [*found, replace(new, name=AGAIN)]


# --- verification


def scores_of_pairs(view: VersionFeatures) -> NDArray[np.float64]:
    """The score of each pair, [N]: its query and its enrolled vector are in one row."""
    found: NDArray[np.float64] = np.einsum("ij,ij->i", view.queries, view.gallery, dtype=np.float64)
    return found


# --- identification


class Best(NamedTuple):
    """The best score of each query and whether it is of the right person; nobody is right for an unknown person."""

    scores: Floats
    right: NDArray[np.bool_]


def best(view: VersionFeatures, asked: Names, enrolled: Names) -> Best:
    """Search the enrolled vectors; of equal scores the first counts."""
    scores = np.asarray(view.queries) @ np.asarray(view.gallery).T
    first = scores.argmax(axis=1)
    return Best(scores[np.arange(len(scores)), first], enrolled[first] == asked)


def threshold(unknown: Floats, rate: float) -> float:
    """The lowest score that at most ``rate`` of the unknown people's best scores reach.

    >>> threshold(np.array([0.1, 0.4, 0.2, 0.3]), 0.25) > 0.3, threshold(np.array([0.1, 0.4, 0.2, 0.3]), 0.25) < 0.4
    (True, True)
    """
    ordered = np.sort(np.asarray(unknown, np.float64))[::-1]
    allowed = int(np.floor(rate * len(ordered) + 1e-9))
    return float(np.nextafter(ordered[allowed], np.inf))


def carried(score: float, before: Calibration, after: Calibration) -> float:
    """The score that means on one scale what ``score`` means on another.

    >>> carried(0.5, Calibration(slope=10.0, offset=-4.0), Calibration(slope=20.0, offset=-13.0))
    0.7
    """
    return (float(before.logit(score)) - after.offset) / after.slope


class Rates(NamedTuple):
    """Shares: of unknown people who are taken for somebody, and of enrolled ones who are identified as themselves."""

    false_accepts: float
    identified: float


def rates(known: Best, unknown: Best, score: float) -> Rates:
    """What a threshold comes to."""
    return Rates(
        float((unknown.scores >= score).mean()),
        float((known.right & (known.scores >= score)).mean()),
    )


class Scales(NamedTuple):
    """The scales of every way to search, by name: standardised without labels, and calibrated with them."""

    standardised: dict[str, Calibration]
    calibrated: dict[str, Calibration]


def scales(faces: Faces, ways: Mapping[str, Translation], drawn: Drawn, seed: int) -> Scales:
    """By photos of the labelled people, one of each enrolled."""
    people = enrol(faces.people, drawn.labelled, seed)
    seen = views(faces, ways, people.known, people.enrolled)
    numbers = np.unique(faces.people, return_inverse=True)[1]
    fitted = fit_calibrations(seen, numbers[people.known], numbers[people.enrolled], seed)
    if not fitted:
        raise DataError("the labelled people are too few to calibrate scores")
    return Scales({view.name: standardised(view, seed) for view in seen}, fitted)


# --- one run


def measured(faces: Faces, change: Change, seed: int) -> Record:
    """The figures of one run."""
    started = time.perf_counter()
    drawn = draw(faces.people, seed)
    found = bridged(faces, drawn, seed)
    ways = ways_to_search(found, faces, drawn, seed)
    pairs = within(faces.pairs, drawn.judging)
    people = enrol(faces.people, drawn.judging, seed)
    figures: dict[str, Record] = {name: {} for name in WAYS}
    _verify(figures, faces, ways, pairs, people, seed)
    _identify(figures, faces, ways, people, drawn, seed)
    return {
        **change._asdict(),
        "seed": seed,
        "fitted": len(drawn.fitted),
        "labelled": len(drawn.labelled),
        "genuine": int(pairs.same.sum()),
        "impostors": int((~pairs.same).sum()),
        "enrolled": len(people.enrolled),
        "known": len(people.known),
        "unknown": len(people.unknown),
        "maps": dict(found.translation.about["maps"]),
        "weights": {name: ways[name].weight for name in (ONE, TWO)},
        "outcome": found.outcome,
        "verdict": found.sentence,
        "ways": figures,
        "seconds": round(time.perf_counter() - started, 1),
    }


def _verify(
    figures: dict[str, Record],
    faces: Faces,
    ways: Mapping[str, Translation],
    pairs: VerificationPairs,
    people: Enrolment,
    seed: int,
) -> None:
    for view in views(faces, ways, pairs.first, pairs.second):
        scores = scores_of_pairs(view)
        figures[view.name][ACCURACY] = round(kfold_accuracy(scores, pairs.same).mean, 5)
        figures[view.name][FEW] = round(tar_at_far(scores, pairs.same, 0.01), 5)
    rows = np.concatenate(people)
    numbers = np.unique(faces.people[rows], return_inverse=True)[1]
    drawn = sample_pairs(numbers, genuine=GENUINE, impostor=IMPOSTORS, seed=seed)
    for view in views(faces, ways, rows[drawn.first], rows[drawn.second]):
        figures[view.name][MANY] = round(tar_at_far(scores_of_pairs(view), drawn.same, 0.001), 5)


def _identify(
    figures: dict[str, Record],
    faces: Faces,
    ways: Mapping[str, Translation],
    people: Enrolment,
    drawn: Drawn,
    seed: int,
) -> None:
    strangers = enrol(faces.people, drawn.labelled, seed).unknown
    scale = scales(faces, ways, drawn, seed)
    parts = {}
    for name, rows in (
        ("known", people.known),
        ("unknown", people.unknown),
        ("strangers", strangers),
    ):
        for view in views(faces, ways, rows, people.enrolled):
            parts[name, view.name] = best(view, faces.people[rows], faces.people[people.enrolled])
    before = threshold(parts["strangers", OLD].scores, FAR)
    for name, row in figures.items():
        known = parts["known", name]
        unknown = parts["unknown", name]
        there = {
            KEPT: before,
            STANDARDISED: carried(before, scale.standardised[OLD], scale.standardised[name]),
            CALIBRATED: carried(before, scale.calibrated[OLD], scale.calibrated[name]),
            AFRESH: threshold(parts["strangers", name].scores, FAR),
        }
        row[RANK] = round(float(known.right.mean()), 5)
        row[IDENTIFIED] = round(rates(known, unknown, threshold(unknown.scores, FAR)).identified, 5)
        row["thresholds"] = {how: round(score, 5) for how, score in there.items()}
        row["rates"] = {
            how: [round(rate, 5) for rate in rates(known, unknown, score)]
            for how, score in there.items()
        }


def alone(faces: Faces, change: Change) -> Record:
    """Each model on all of LFW's pairs: whether it is used as its makers used it, and how alike it finds strangers."""
    same = faces.pairs.same
    found = {}
    for model, vectors in ((change.old, faces.old), (change.new, faces.new)):
        scores = scores_of_pairs(
            VersionFeatures(model, vectors[faces.pairs.first], vectors[faces.pairs.second])
        )
        found[model] = {
            ACCURACY: round(kfold_accuracy(scores, same).mean, 5),
            "cosine of two people": round(float(scores[~same].mean()), 5),
        }
    return found


# --- tables


def runs_of(runs: Sequence[Record], change: Change) -> list[Record]:
    """The runs of a change, by seed."""
    mine = [run for run in runs if (run["set"], run["old"], run["new"]) == change]
    return sorted(mine, key=lambda run: int(run["seed"]))


def spread(each: Sequence[float]) -> tuple[float, float, float]:
    """The mean over seeds and its 95 % interval (t), of shares in percent.

    >>> [round(end, 2) for end in spread([0.01, 0.03])]
    [2.0, -10.71, 14.71]
    """
    values = 100 * np.array(each)
    mean = float(values.mean())
    if len(values) not in T_95:
        return mean, float("nan"), float("nan")
    half = T_95[len(values)] * float(values.std(ddof=1)) / len(values) ** 0.5
    return mean, mean - half, mean + half


def difference(runs: Sequence[Record], way: str, measure: str) -> tuple[float, float, float]:
    """Points over the old model by a measure, with their interval."""
    return spread([run["ways"][way][measure] - run["ways"][OLD][measure] for run in runs])


def share(runs: Sequence[Record], way: str, measure: str) -> float:
    """The mean over seeds of a measure, in percent."""
    return spread([run["ways"][way][measure] for run in runs])[0]


def rate(runs: Sequence[Record], way: str, how: str, which: int) -> tuple[float, float, float]:
    """False accepts (0) or identified people (1) at a threshold, with their interval."""
    return spread([run["ways"][way]["rates"][how][which] for run in runs])


def table(runs: Sequence[Record], change: Change) -> str:
    """Every measure of every way to search in percent, in brackets points over the old model with their interval."""
    lines = ["| search | " + " | ".join(MEASURES) + " |", "|---|" + "---|" * len(MEASURES)]
    mine = runs_of(runs, change)
    for way in WAYS:
        cells = [_cell(mine, way, measure) for measure in MEASURES]
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(runs: Sequence[Record], way: str, measure: str) -> str:
    value = f"{share(runs, way, measure):.1f}"
    if way == OLD:
        return value
    mean, low, high = difference(runs, way, measure)
    return f"{value} ({mean:+.1f} [{low:+.1f}, {high:+.1f}])"


def thresholds(runs: Sequence[Record], change: Change) -> str:
    """Unknown people who are accepted, with the interval, and enrolled ones who are identified, by threshold."""
    lines = ["| search | " + " | ".join(CARRIED) + " |", "|---|" + "---|" * len(CARRIED)]
    mine = runs_of(runs, change)
    for way in WAYS:
        cells = []
        for how in CARRIED:
            mean, low, high = rate(mine, way, how, 0)
            cells.append(f"{mean:.1f} [{low:.1f}, {high:.1f}], {rate(mine, way, how, 1)[0]:.1f}")
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


TABLES = {"faces": table, "unknown people": thresholds}
"""What stands between marks of docs/appendix/translation.md, of the first change."""


# --- the command


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", type=Path, help="the folder with lfw/MODEL.npz and lfw/pairs.txt")
    parser.add_argument(
        "--seeds", type=int, default=5, help="each divides the people in another way"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="the figures as JSON; runs that it has are kept"
    )
    options = parser.parse_args()
    content: Record = {"runs": []}
    if options.out.is_file():
        content = json.loads(options.out.read_text(encoding="utf-8"))
    content["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, numpy {np.__version__}"
    runs = content["runs"]
    done = {(run["set"], run["old"], run["new"], run["seed"]) for run in runs}
    for change in CHANGES:
        faces = read_faces(options.pairs, change)
        content["photos"] = len(faces.people)
        content["people"] = len(np.unique(faces.people))
        content["alone"] = content.get("alone", {}) | alone(faces, change)
        for seed in range(options.seeds):
            if (*change, seed) in done:
                continue
            run = measured(faces, change, seed)
            runs.append(run)
            replace_json(options.out, content)
            print(change, seed, run["outcome"], run["seconds"], flush=True)
    replace_json(options.out, content)
    print(content["alone"])
    for change in changes_in(runs):
        for mark, write in TABLES.items():
            print(f"\n{mark}, {change}\n{write(runs, change)}")


if __name__ == "__main__":
    try:
        main()
    except FixstarError as error:
        sys.exit(f"faces.py: {error}")
