"""The ledger of looks: every run on cases and class orders that were set aside, in ``benchmarks/looks.json``.

A set that was set aside confirms a setting only if it was not looked at while the setting was chosen. So every run is
recorded here before its result is written, and entries are only appended. Each entry has a digest
of its own content and of the entry before it: changing or removing an entry breaks the chain.

    python benchmarks/looks.py                      every look, one per line
    python benchmarks/looks.py --merge OTHER.json   append the looks of a ledger from another machine
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fixstar.durable import exclusive, replace_file
from fixstar.errors import DataError
from fixstar.research.benchmarks.catalogue import SET_ASIDE_ORDERS
from fixstar.research.benchmarks.plan import Run
from fixstar.research.benchmarks.result import METRICS, RunResult

Entry = dict[str, Any]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True)
class Look:
    """One run on a set that was set aside.

    ``set`` names what was set aside, such as "cifar100 class order 4". ``setting`` has the method, all its options, the
    capacity and the epochs; ``result`` the headline figures; ``file`` is the name of the file with the full result.
    ``origin`` is empty for looks that the runner recorded, else it is the source of the entry.
    """

    date: str = field(default_factory=_now)
    set: str
    benchmark: str
    seed: int
    setting: Mapping[str, Any]
    result: Mapping[str, Any]
    file: str
    origin: str = ""


def default_path() -> Path:
    """The ledger of the source tree; without a source tree, that of the working folder."""
    tree = Path(__file__).parents[4]
    if not (tree / "benchmarks" / "results").is_dir():
        tree = Path()
    return tree / "benchmarks" / "looks.json"


def digest(entry: Mapping[str, Any], previous: str) -> str:
    """The digest of an entry that follows one with the digest ``previous``."""
    content = {key: value for key, value in entry.items() if key != "digest"}
    return hashlib.sha256((previous + json.dumps(content, sort_keys=True)).encode()).hexdigest()


def chain(entries: Sequence[Entry], added: Iterable[Mapping[str, Any]]) -> list[Entry]:
    """The entries with the added ones appended.

    >>> first, second = chain([], [{"seed": 1}, {"seed": 2}])
    >>> second["digest"] == digest({"seed": 2}, first["digest"])
    True
    """
    chained = list(entries)
    for one in added:
        entry = json.loads(json.dumps(one))  # as it reads back
        previous = chained[-1]["digest"] if chained else ""
        chained.append({**entry, "digest": digest(entry, previous)})
    return chained


def broken_at(entries: Sequence[Entry]) -> int | None:
    """The first entry that is not what was written, or that does not follow the one before it; None if all are right.

    >>> whole = chain([], [{"seed": 1}, {"seed": 2}, {"seed": 3}])
    >>> broken_at(whole), broken_at([whole[0], whole[2]]), broken_at([whole[0], {**whole[1], "seed": 9}])
    (None, 1, 1)
    """
    previous = ""
    for place, entry in enumerate(entries):
        if entry.get("digest") != digest(entry, previous):
            return place
        previous = entry["digest"]
    return None


def missing_from(entries: Sequence[Entry], others: Sequence[Entry]) -> list[Entry]:
    """The looks of another ledger that this one does not have, without their digests."""
    known = {digest(entry, "") for entry in entries}
    absent = [entry for entry in others if digest(entry, "") not in known]
    return [{key: value for key, value in entry.items() if key != "digest"} for entry in absent]


def read_ledger(path: Path) -> list[Entry]:
    """Every look, oldest first; none if there is no file. ``DataError`` if the chain is broken."""
    if not path.exists():
        return []
    try:
        entries: list[Entry] = json.loads(path.read_text(encoding="utf-8"))
        place = broken_at(entries)
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not a ledger of looks ({error}); restore it from version control"
        ) from error
    if place is not None:
        raise DataError(
            f"{path}: entry {place + 1} of {len(entries)} was changed, or one before it was removed. "
            "Looks are only ever appended; restore the file from version control"
        )
    return entries


def known_looks(path: Path) -> list[Entry]:
    """The looks of a ledger; where it is another file than the source tree's, those of the tree's as well."""
    paths = dict.fromkeys([default_path().resolve(), path.resolve()])
    return [entry for one in paths for entry in read_ledger(one)]


def note(path: Path, looks: Iterable[Look | Mapping[str, Any]]) -> None:
    """Append looks to a ledger. Several processes may do so at once."""
    added = [asdict(look) if isinstance(look, Look) else look for look in looks]
    with exclusive(path.parent, wait=math.inf):
        entries = chain(read_ledger(path), added)
        lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
        replace_file(path, lambda partial: partial.write_text(f"[\n{lines}\n]\n", encoding="utf-8"))


def warning(entries: Sequence[Entry], name: str, setting: Mapping[str, Any]) -> str:
    """What to tell before a run on the set ``name``: that other settings of its method were run there. Else empty."""
    method = setting["method"]
    others = [
        entry
        for entry in entries
        if entry["set"] == name
        and entry["setting"]["method"] == method
        and entry["setting"] != setting
    ]
    if not others:
        return ""
    found = list(
        dict.fromkeys(
            f"{_differences(entry['setting'], setting)} ({entry['date'][:10]})" for entry in others
        )
    )
    return (
        f"{name} is no longer set aside for {method}: it was run with {'; '.join(found)}. "
        "A result on it confirms nothing"
    )


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """What ``one`` setting has that the ``other`` has not, as words."""
    flat = {**one, **one.get("options", {})}
    known = {**other, **other.get("options", {})}
    special = [
        f"{key}={value}"
        for key, value in flat.items()
        if key != "options" and known.get(key) != value
    ]
    return " ".join(special) or "fewer options"


# Runs of the catalogue's benchmarks


def set_aside(run: Run) -> str:
    """The name of a run's class order if it is one of those that are set aside, else empty."""
    training = run.benchmark.training
    is_set_aside = run.class_order in SET_ASIDE_ORDERS.get(training, ())
    if is_set_aside:
        return f"{training} class order {run.class_order}"
    return ""


def setting_of(run: Run) -> dict[str, Any]:
    """The setting of a run, with all options of its method, including defaults."""
    settings = run.settings()
    translation = {"translated": run.weight} if run.translated else {}
    return {
        "method": run.choice.name,
        "options": dict(run.create().options),
        "capacity": settings.capacity,
        "epochs": settings.recipe.epochs,
        **run.changes,
        **translation,
    }


def look_at(run: Run, result: RunResult, file: Path) -> Look:
    """A finished run on a set-aside order."""
    headline = METRICS[:3]
    figures = {
        protocol: {name: round(result.metrics(protocol)[name], 5) for name in headline}
        for protocol in result.protocols
    }
    return Look(
        set=set_aside(run),
        benchmark=run.benchmark.name,
        seed=run.seed,
        setting=setting_of(run),
        result=figures,
        file=file.name,
    )


def warnings_of(runs: Iterable[Run], ledger: Path) -> list[str]:
    """Which set-aside class orders were run before with another setting of the same method; one sentence each."""
    looks = [run for run in runs if set_aside(run)]
    if not looks:
        return []
    entries = known_looks(ledger)
    found = [warning(entries, set_aside(run), setting_of(run)) for run in looks]
    return [sentence for sentence in dict.fromkeys(found) if sentence]
