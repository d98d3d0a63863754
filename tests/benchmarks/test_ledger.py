"""The ledger of looks: what the runners note, that nothing leaves it, and the one that is in this repository."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from typer.testing import CliRunner
from wording import refuses

from fixstar.cli import app
from fixstar.cli.bench import _command
from fixstar.errors import DataError
from fixstar.research.benchmarks import RunResult, benchmark, jobs
from fixstar.research.benchmarks.catalogue import SET_ASIDE_ORDERS
from fixstar.research.benchmarks.jobs import Folders, complete
from fixstar.research.benchmarks.ledger import (
    Entry,
    Look,
    broken_at,
    default_path,
    missing_from,
    note,
    read_ledger,
)
from fixstar.research.benchmarks.plan import Run

ROOT = Path(__file__).parents[2]
LEDGER = ROOT / "benchmarks" / "looks.json"
RESULTS = ROOT / "benchmarks" / "results"
POLARIS = RESULTS / "cifar100-10_7__polaris__K=10000__order4__seed0__e40.json"
BACKFILLED = 47
LAST_BACKFILLED = "f5e701f7b0995b28815ce81201c089617557b7f500a3659592af0acbd0f23683"


def look(seed: int, **changes: Any) -> Look:
    setting = {"method": "hoc", "options": {"lam": 0.1}, "capacity": 100, "epochs": 2}
    usual = {
        "set": "case one",
        "benchmark": "upgrades",
        "setting": setting,
        "result": {},
        "file": "one.json",
    }
    return Look(seed=seed, **{**usual, **changes})


def script(name: str) -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))  # for the scripts beside it that it imports
    spec = importlib.util.spec_from_file_location(
        f"{name}_script", ROOT / "benchmarks" / f"{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


# What is appended stays


@pytest.mark.parametrize(
    "change",
    [
        lambda entries: entries.pop(1),
        lambda entries: entries.pop(0),
        lambda entries: entries.reverse(),
        lambda entries: entries[1].update(seed=7),
        lambda entries: entries[1]["setting"]["options"].update(lam=0.2),
    ],
    ids=["middle removed", "first removed", "reordered", "changed", "changed inside"],
)
def test_a_removed_or_changed_entry_is_noticed(
    change: Callable[[list[Entry]], object], tmp_path: Path
) -> None:
    path = tmp_path / "new" / "looks.json"
    note(path, [look(1), look(2)])
    note(path, [look(3)])
    entries = read_ledger(path)
    assert [entry["seed"] for entry in entries] == [1, 2, 3]
    change(entries)
    path.write_text(json.dumps(entries))
    with refuses(DataError):
        note(path, [look(4)])
    assert json.loads(path.read_text()) == entries  # nothing was written over it


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "looks.json"
    for content in ("{", '["words"]', "7"):
        path.write_text(content)
        with refuses(DataError):
            read_ledger(path)


def test_looks_that_are_noted_at_the_same_time_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "looks.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: note(path, [look(seed)]), range(24)))
    assert sorted(entry["seed"] for entry in read_ledger(path)) == list(range(24))


def test_the_looks_of_another_machine_are_appended_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = tmp_path / "ours.json", tmp_path / "theirs.json"
    note(ours, [look(1)])
    theirs.write_bytes(ours.read_bytes())
    note(theirs, [look(2)])
    note(ours, [look(3)])
    for expected in ("1 looks of", "0 looks of"):
        script("looks").main(["--ledger", str(ours), "--merge", str(theirs)])
        assert expected in capsys.readouterr().out
    assert [entry["seed"] for entry in read_ledger(ours)] == [1, 3, 2]


# What the runners note


@pytest.fixture
def polaris(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Polaris on CIFAR-100 in 7 tasks; its "training" gives the result of class order 4 at once."""
    known = RunResult.load(POLARIS)
    monkeypatch.setattr(
        jobs, "run_benchmark", lambda run, *_, **__: replace(known, class_order=run.class_order)
    )
    return lambda order, **words: Run(
        benchmark("cifar100-10/7"), "polaris", order, 0, 40, 10_000, **words
    )


def test_a_run_on_a_set_aside_order_is_noted_and_no_other(
    polaris: Callable[..., Run], tmp_path: Path
) -> None:
    folders = Folders(tmp_path, tmp_path, tmp_path / "results", tmp_path / "looks.json")
    complete(polaris(3), folders)
    assert not folders.ledger.exists()
    for _ in range(2):  # the second finds the result, and looks at nothing new
        complete(polaris(10, options={"hold": 20.0}), folders)
    (entry,) = read_ledger(folders.ledger)
    assert entry["set"] == "cifar100 class order 10"
    assert entry["benchmark"] == "cifar100-10/7"
    assert entry["setting"]["method"] == "polaris"
    assert entry["setting"]["options"]["hold"] == 20.0
    assert entry["setting"]["options"]["fade"] == 0.5  # also what was not given
    assert (entry["setting"]["capacity"], entry["setting"]["epochs"]) == (10_000, 40)
    assert entry["result"]["template"] == {"AC": 1.0, "AA": 0.51649, "ACA": 0.51437}
    assert (folders.results / entry["file"]).exists()
    assert entry["date"][:2] == "20"
    assert entry["origin"] == ""


def test_a_look_is_noted_before_its_result_can_be_read(
    polaris: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = Folders(tmp_path, tmp_path, tmp_path / "results", tmp_path / "looks.json")
    monkeypatch.setattr(RunResult, "save", lambda *_: pytest.fail("killed here"))
    with pytest.raises(pytest.fail.Exception, match="killed here"):
        complete(polaris(10), folders)
    assert len(read_ledger(folders.ledger)) == 1


def test_a_set_that_was_looked_at_with_another_setting_is_named_before_the_run(
    tmp_path: Path,
) -> None:
    def told(*words: str) -> str:
        places = [
            "--data",
            tmp_path,
            "--results",
            tmp_path / "results",
            "--ledger",
            tmp_path / "looks.json",
        ]
        usual = [
            "bench",
            "run",
            "cifar100-10/7",
            "--epochs",
            "40",
            "--capacity",
            "10000",
            "--dry-run",
        ]
        return CliRunner().invoke(app, [*usual, *map(str, places), *words]).stderr

    again = told("--method", "polaris", "--order", "4")
    assert (
        "cifar100 class order 4 is no longer set aside for polaris: it was run with hold=20.0 fade=0.0"
        in again
    )
    assert "A result on it confirms nothing" in again
    assert told("--method", "er", "--order", "4") == ""  # a method that never saw it
    assert told("--method", "polaris", "--order", "1") == ""  # never set aside
    assert told("--method", "polaris", "--order", "13") == ""  # fresh
    note(
        tmp_path / "looks.json",
        [look(0, set="cifar100 class order 13", setting={"method": "polaris"})],
    )
    assert "cifar100 class order 13 is no longer set aside" in told(
        "--method", "polaris", "--order", "13"
    )


def test_jobs_write_the_same_ledger(polaris: Callable[..., Run], tmp_path: Path) -> None:
    folders = Folders(tmp_path, tmp_path, tmp_path, tmp_path / "looks.json")
    words = _command(polaris(4), folders, "cpu")
    assert words[words.index("--ledger") + 1] == str(folders.ledger)


def _measured_now(figures: dict[str, float]) -> dict[str, float]:
    """Figures of a stored run as runs have them now: v2 on v1's vectors is one model per query, and areas are kept."""
    renamed = {kind.replace("v2/v1", "one"): figure for kind, figure in figures.items()}
    return {**renamed, "area": figures["v2"]}


@pytest.fixture
def upgrades(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script; its runs take no time and its processes are threads."""
    module = script("upgrades")
    content = json.loads((RESULTS / "upgrades_polaris_confirm.json").read_text())["runs"]
    known = {(run["case"], run["seed"]): run for run in content.values()}
    any_run = next(iter(known.values()))

    def run(name: str, _: object, seed: int, *__: object) -> dict[str, Any]:
        found = known.get((name, seed), any_run)
        measured = {protocol: _measured_now(found[protocol]) for protocol in module.PROTOCOLS}
        return {**found, **measured, "case": name, "seed": seed}

    monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(
        module, "known_looks", read_ledger
    )  # not what the source tree's ledger says too
    monkeypatch.setattr(module, "ProcessPoolExecutor", ThreadPoolExecutor)
    threads = torch.get_num_threads()
    yield module
    torch.set_num_threads(threads)


def test_runs_of_set_aside_cases_are_noted_and_announced(
    upgrades: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cifar-100-binary").mkdir()
    ledger = tmp_path / "looks.json"
    words = [
        "--data",
        tmp_path,
        "--seeds",
        1,
        "--ledger",
        ledger,
        "--cases",
        "photos-20+40,photos-30+30",
    ]

    def told(*more: object) -> str:
        assert upgrades.main([str(word) for word in [*words, *more]]) == 0
        return str(capsys.readouterr().out)

    first = told(
        "--out", tmp_path / "hoc.json", "--method", "hoc", "--option", "lam=0.5", "--capacity", 50
    )
    assert "no longer set aside" not in first
    (entry,) = read_ledger(ledger)  # the tuning case is not in it
    assert (entry["set"], entry["seed"], entry["file"]) == ("case photos-20+40", 1, "hoc.json")
    assert entry["setting"] == {
        "method": "hoc",
        "options": {
            "lam": 0.5,
            "rho": 5.0,
            "same_class": "masked",
            "with_rotated": False,
            "with_first": False,
        },
        "capacity": 50,
        "epochs": 30,
    }
    assert entry["result"]["image"] == {
        "v1": 0.2155,
        "one": 0.2325,
        "v2": entry["result"]["image"]["v2"],
    }
    assert entry["result"]["gate"] == {"held out": "missing evidence", "labelled": "pass"}
    second = told("--out", tmp_path / "other.json", "--method", "hoc", "--capacity", 50)
    assert "case photos-20+40 is no longer set aside for hoc: it was run with lam=0.5" in second
    assert "photos-30+30 is no" not in second
    assert len(read_ledger(ledger)) == 2
    told("--out", tmp_path / "other.json", "--method", "hoc", "--capacity", 50)
    assert len(read_ledger(ledger)) == 2  # finished runs are not repeated


# The ledger of this repository


def test_nothing_has_left_the_ledger() -> None:
    assert default_path() == LEDGER
    entries = read_ledger(LEDGER)
    assert broken_at(entries) is None
    assert (
        entries[BACKFILLED - 1]["digest"] == LAST_BACKFILLED
    )  # what was known when the ledger began
    assert all(entry["origin"] for entry in entries[:BACKFILLED])


def test_no_commit_had_a_look_that_is_missing_now() -> None:
    """A chain does not show that its end was cut off; the history does."""
    now = read_ledger(LEDGER)
    listed = subprocess.run(
        ["git", "log", "--format=%H", "--", "benchmarks/looks.json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode or not listed.stdout:
        pytest.skip("there is no history here")
    for commit in listed.stdout.split():
        shown = subprocess.run(
            ["git", "show", f"{commit}:benchmarks/looks.json"], cwd=ROOT, capture_output=True
        )
        then = json.loads(shown.stdout) if shown.returncode == 0 else []
        assert missing_from(now, then) == [], commit


def test_every_kept_result_on_a_set_aside_order_is_in_the_ledger() -> None:
    noted = {entry["file"]: entry for entry in read_ledger(LEDGER)}
    found = 0
    for path in sorted(RESULTS.glob("cifar100*__order*.json")):
        result = RunResult.load(path)
        training = benchmark(result.benchmark).training
        if result.class_order not in SET_ASIDE_ORDERS[training]:
            continue
        found += 1
        entry = noted[path.name]
        assert entry["set"] == f"{training} class order {result.class_order}"
        assert entry["setting"]["options"] == result.settings["method"]["options"]
        for protocol, figures in entry["result"].items():
            assert figures == {
                key: pytest.approx(result.metrics(protocol)[key], abs=1e-5) for key in figures
            }
    assert found >= 9


def test_every_kept_result_of_a_set_aside_case_is_in_the_ledger() -> None:
    cases = {name for name, case in script("upgrades").CASES.items() if case.confirm}
    noted = read_ledger(LEDGER)
    found = 0
    for path in sorted(RESULTS.glob("upgrades*.json")):
        for run in json.loads(path.read_text())["runs"].values():
            if run["case"] not in cases:
                continue
            found += 1
            place = (path.name, f"case {run['case']}", run["seed"])
            looks = [
                entry["result"]
                for entry in noted
                if (entry["file"], entry["set"], entry["seed"]) == place
            ]
            assert any(_is_of(look, run) for look in looks), (place, run.get("way"))
    assert found >= 100


def _is_of(look: dict[str, Any], run: dict[str, Any]) -> bool:
    """Whether a look has the figures of a run: three at least by each protocol."""
    if look.get("gate") != run["gate"]:
        return False
    for protocol in ("image", "template"):
        figures = look[protocol]
        if len(figures) < 3 or any(
            run[protocol].get(kind) != figure for kind, figure in figures.items()
        ):
            return False
    return True
