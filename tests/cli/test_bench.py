"""``fixstar bench`` as a user types it, on a benchmark that runs in seconds."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import fork, signal_at_checkpoint
from typer.testing import CliRunner, Result
from wording import check_wording

import fixstar
from fixstar.cli import app
from fixstar.research.benchmarks import catalogue
from fixstar.research.benchmarks.comparison import compare, read_results
from fixstar.research.benchmarks.runner import Progress

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import small_benchmark

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SOURCE = Path(fixstar.__file__).parents[1]


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    small_benchmark.register()
    yield
    small_benchmark.unregister()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_benchmark.write_data(tmp_path_factory.mktemp("images"))


def bench(*words: str | Path) -> Result:
    """In this process: quick, and with the benchmarks registered."""
    return CliRunner().invoke(app, ["bench", *map(str, words)])


def places(data: Path, folder: Path) -> list[str | Path]:
    return [
        "--data",
        data,
        "--work",
        folder / "work",
        "--results",
        folder / "results",
        "--device",
        "cpu",
    ]


@pytest.mark.long
def test_jobs_run_apart_and_one_that_fails_stops_no_other(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at a time; the second finds foreign files in its run directory."""
    site = small_benchmark.site(
        tmp_path / "site"
    )  # the jobs are processes that know the small benchmarks too
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(SOURCE)]))
    words = [
        "run",
        "small/3",
        "--method",
        "er",
        "--method",
        "hoc",
        "--orders",
        "1",
        "--epochs",
        "1",
        "--jobs",
        "2",
    ]
    foreign = tmp_path / "work" / "small_3__hoc__order1__seed0__e1" / "run" / "foreign.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("not ours")
    monkeypatch.setattr("signal.signal", lambda *_: None)  # this process keeps its handlers
    first = bench(*words, *places(data, tmp_path), "--json")
    assert first.exit_code == 1, first.output
    assert "small_3__hoc__order1__seed0__e1 failed: " in first.stderr
    assert "holds other files" in first.stderr
    assert "Traceback" not in first.stderr
    states = {row["run"]: row["state"] for row in json.loads(first.stdout)}
    assert states == {
        "small_3__er__order1__seed0__e1": "done",
        "small_3__hoc__order1__seed0__e1": "failed",
    }
    assert (
        "training v1"
        in (tmp_path / "work" / "small_3__er__order1__seed0__e1" / "log.txt").read_text()
    )
    result = tmp_path / "results" / "small_3__er__order1__seed0__e1.json"
    written = result.read_bytes()
    foreign.unlink()
    plan = bench(*words, *places(data, tmp_path), "--dry-run").output
    assert plan.splitlines()[0].startswith("done")
    assert plan.splitlines()[1].startswith("to do")
    alone = [*words[:2], *words[4:], *places(data, tmp_path)]
    second = bench(*alone)
    assert second.exit_code == 0, second.output
    third = bench(*words, *places(data, tmp_path), "--fitters", "2")
    assert third.output.count("done already") == 2
    assert "--fitters changes nothing" in third.stderr
    check_wording(third.output)
    assert result.read_bytes() == written


@pytest.mark.long
def test_one_run_with_fitters_is_a_job_where_a_gpu_may_be_shared(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = small_benchmark.site(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(SOURCE)]))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    words = ["run", "small/3", "--method", "hoc", "--order", "1", "--epochs", "1", "--translate"]
    where = [*places(data, tmp_path)[:-1], "auto"]
    done = bench(*words, *where, "--fitters", "1", "--json")
    assert done.exit_code == 0, done.output
    assert "translating to v3" in done.stderr
    assert "image, translated" in json.loads(done.stdout)["protocols"]
    again = bench(*words, *where, "--fitters", "1")
    assert "already exists" in again.output
    assert "image, translated" in again.output


def killed_bench(*words: str) -> None:
    """Dies when the first epoch of the second version is saved."""
    small_benchmark.register()
    signal_at_checkpoint(signal.SIGKILL, "checkpoint-v2.safetensors")
    bench(*words)


@pytest.mark.long
def test_after_kill_9_the_same_command_ends_with_the_same_figures(
    data: Path, tmp_path: Path
) -> None:
    words = ["run", "small/3", "--method", "hoc", "--order", "2", "--epochs", "2"]
    cut = places(data, tmp_path / "cut")
    folder = tmp_path / "cut" / "work" / "small_3__hoc__order2__seed0__e2"
    process = fork(killed_bench, *words, *map(str, cut))
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (folder / "run" / "checkpoint-v2.safetensors").exists()
    assert not (tmp_path / "cut" / "results").exists()
    assert len(Progress.read(folder / "progress.json").versions) < 3
    half = bench(*words, *cut, "--dry-run").output
    assert "of 3 versions" in half
    resumed = bench(*words, *cut, "--json")
    assert resumed.exit_code == 0, resumed.output
    whole = bench(*words, *places(data, tmp_path / "whole"), "--json")
    assert whole.exit_code == 0, (whole.output, whole.exception)
    a, b = json.loads(resumed.stdout), json.loads(whole.stdout)
    assert a["protocols"] == b["protocols"]
    assert (a["restarts"], b["restarts"]) == (1, 0)


def test_the_table_shows_ours_and_writes_text_and_pictures(data: Path, tmp_path: Path) -> None:
    words = ["--method", "er", "--epochs", "1", "--seed", "5", "--order"]
    for order in ("2", "1"):
        assert bench("run", "small/3", *words, order, *places(data, tmp_path)).exit_code == 0
    where: list[str | Path] = ["--results", tmp_path / "results"]
    written: list[str | Path] = [
        "--markdown",
        tmp_path / "small.md",
        "--pictures",
        tmp_path / "pictures",
    ]
    shown = bench("table", "small/3", *where, *written)
    assert shown.exit_code == 0, shown.output
    assert "class orders (1, 2) and seeds (5)" in " ".join(shown.output.split())
    text = (tmp_path / "small.md").read_text()
    assert bench("table", "small/3", *where, *written).exit_code == 0
    assert (tmp_path / "small.md").read_text() == text  # in the place of the section before
    assert "| er | 2 | 1 | " in text
    assert all((tmp_path / link.split(")")[0]).exists() for link in text.split("](")[1:])
    (line,) = json.loads(bench("table", "small/3", *where, "--json").stdout)["lines"]
    assert line["ours"]["image"]["AA"]["runs"] == 2
    assert line["paper"] is None


def test_a_file_that_holds_no_text_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "picture.md").write_bytes(b"\xff\xfe")
    refused = bench(
        "table", "cifar100-10/7", "--results", tmp_path, "--markdown", tmp_path / "picture.md"
    )
    assert refused.exit_code == 1
    assert "not UTF-8 text" in str(refused.exception)
    assert (tmp_path / "picture.md").read_bytes() == b"\xff\xfe"


def test_published_figures_are_shown_before_anything_is_run(tmp_path: Path) -> None:
    shown = bench("table", "cifar100-10/7", "--results", tmp_path)
    assert "48.21" in shown.output
    assert "Next: fixstar bench run cifar100-10/7" in shown.output
    content = json.loads(bench("table", "cifar100-10/7", "--results", tmp_path, "--json").stdout)
    assert {line["method"]: line["paper"]["AC"] for line in content["lines"]}["hoc"] == 0.86


def test_the_list_says_what_can_be_run_and_what_is_missing(data: Path, tmp_path: Path) -> None:
    rows = {row["name"]: row for row in json.loads(bench("list", "--data", data, "--json").stdout)}
    assert rows["small/3"]["ready"]
    assert not rows["cifar100-10/7"]["ready"]  # the files are there, but not of CIFAR's size
    assert any("bytes, expected" in line for line in rows["cifar100-10/7"]["missing"])
    assert "Market-1501-v15.09.15/query: no such folder" in rows["market1501/1"]["missing"]
    assert rows["cifar100-10/7"]["needs"] == ["CIFAR-100", "CIFAR-10"]
    listed = bench("list", "--data", tmp_path).output
    assert "cifar100-10/31" in listed
    assert (
        max(len(line) for line in listed.splitlines() if str(tmp_path) not in line) <= 80
    )  # a path is not cut
    one = bench("list", "cifar100-10/16", "--data", tmp_path).output
    assert "https://www.cs.toronto.edu/~kriz/cifar.html" in one
    assert "cifar-100-binary/train.bin: no such file" in one
    assert "lam=0.1" in one


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "cifar100-10/8"], "did you mean"),
        (
            ["run", "small/3", "--orders", "one"],
            "--orders is a count, a whole number of at least 1, such as 3; got",
        ),
        (["run", "small/3", "--orders", "²"], "--orders is a count, a whole number of at least 1"),
        (["run", "small/3", "--seeds", "0"], "--seeds is a count, a whole number of at least 1"),
        (["run", "small/3", "--orders", "0,2"], "to choose single ones type --order 0 --order 2"),
        (["run", "small/3", "--method", "hoc", "--option", "lam"], "NAME=VALUE"),
        (["run", "small/3", "--data", "nowhere"], "small100 is not complete"),
        (["table", "small"], "unknown benchmark"),
    ],
)
def test_mistakes_say_what_to_do(words: list[str], message: str) -> None:
    result = bench(*words)
    assert result.exit_code == 1
    assert message in str(result.exception)


def test_a_result_from_before_a_protocol_was_there_is_kept_and_told(
    data: Path, tmp_path: Path
) -> None:
    words = [
        "run",
        "small-pairs/3",
        "--method",
        "itm",
        "--order",
        "1",
        "--epochs",
        "1",
        *places(data, tmp_path),
    ]
    assert bench(*words).exit_code == 0
    assert "not by" not in bench(*words, "--dry-run").output
    (path,) = (tmp_path / "results").glob("*.json")
    result = json.loads(path.read_text())
    del result["protocols"]["verification-published"]
    path.write_text(json.dumps(result))
    assert "done, without verification-published" in bench(*words, "--dry-run").output
    again = bench(*words)
    assert again.exit_code == 0
    assert (
        f"without verification-published, which was added later: remove {path} to run it again"
        in again.output
    )
    assert json.loads(path.read_text()) == result


@pytest.mark.parametrize(
    ("words", "planned"),
    [
        ([], ["order1__seed0", "order2__seed0", "order3__seed0"]),
        (["--orders", "2"], ["order1__seed0", "order2__seed0"]),
        (["--order", "0"], ["order0__seed0"]),
        (["--orders", "1", "--order", "0", "--order", "1"], ["order1__seed0", "order0__seed0"]),
        (["--order", "4", "--seeds", "2"], ["order4__seed0", "order4__seed1"]),
        (["--order", "4", "--seed", "7", "--seed", "2"], ["order4__seed7", "order4__seed2"]),
    ],
)
def test_orders_and_seeds_are_asked_for_by_number_or_one_by_one(
    words: list[str], planned: list[str]
) -> None:
    shown = bench("run", "cifar100-10/7", "--method", "er", *words, "--dry-run")
    assert [
        line.split()[-1].removeprefix("cifar100-10_7__er__") for line in shown.output.splitlines()
    ] == planned


@pytest.mark.parametrize("verb", ["list", "run", "table"])
def test_every_verb_has_help_with_an_example(verb: str) -> None:
    assert f"fixstar bench {verb}" in " ".join(
        bench(verb, "--help").output.split("Example")[-1].split()
    )


@pytest.mark.parametrize("columns", [80, 100, 240])
def test_no_window_is_too_narrow_for_names_and_figures(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    listed, table = (
        bench("list").output,
        bench("table", "cifar100-10/7", "--results", RESULTS).output,
    )
    assert "…" not in listed + table
    assert all(name in listed.split() for name in catalogue())
    benchmark = catalogue()["cifar100-10/7"]
    lines = [
        line for line in compare(benchmark, read_results(benchmark, RESULTS)).lines if line.runs
    ]
    assert len(lines) > 8
    for line in lines:
        assert f"{100 * line.ours['image']['AA'].mean:.2f}" in table
    assert (table.count("advbct-er ") == 2) == (columns == 240)  # more where columns follow below
