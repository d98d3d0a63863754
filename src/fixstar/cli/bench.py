"""fixstar bench: the papers' experiments, listed, run, and compared with the papers' figures."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fixstar.cli.app import AsJson, Device, Verbs, app, examples, key_value, verb
from fixstar.cli.output import (
    Cell,
    print_json,
    print_list,
    print_result,
    print_table,
    print_wrapped,
    say,
)
from fixstar.durable import replace_file
from fixstar.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fixstar.research.benchmarks import Benchmark
    from fixstar.research.benchmarks.comparison import Comparison, Line
    from fixstar.research.benchmarks.jobs import Folders, QueuedRun
    from fixstar.research.benchmarks.plan import Run

DataFolder = Annotated[Path, typer.Option(help="The folder with the datasets.")]
BenchmarkName = Annotated[str, typer.Argument(help="See: fixstar bench list")]
RESULTS = Path("benchmarks/results")

bench_app = typer.Typer(
    cls=Verbs,
    help="The papers' experiments: list them, run them, compare ours with theirs.",
    no_args_is_help=True,
    epilog=examples(
        "fixstar bench list", "fixstar bench run cifar100-10/7 --data DATA --method hoc --orders 3"
    ),
)
app.add_typer(bench_app, name="bench")


@verb(
    "fixstar bench list --data DATA",
    "fixstar bench list cifar100-10/7 --json",
    group=bench_app,
    name="list",
)
def list_benchmarks(
    name: Annotated[str | None, typer.Argument(help="Show all details of this one.")] = None,
    data: DataFolder = Path("data"),
    as_json: AsJson = False,
) -> None:
    """List the benchmarks: what they are, where they are published, and whether the data for them is available."""
    from fixstar.research.benchmarks import benchmark, catalogue

    if name is not None:
        shown = _details(benchmark(name), data)
        if as_json:
            print_json(shown)
        else:
            _print_details(shown)
        return
    rows = [_row(entry, data) for entry in catalogue().values()]
    if as_json:
        print_json(rows)
        return
    entries = []
    for row in rows:
        state = "ready" if row["ready"] else "data missing"
        entries.append(((row["name"], f"{row['tasks']:>2} tasks", state), _description(row)))
    print_list(entries)
    ready = sum(row["ready"] for row in rows)
    print(f"{ready} of {len(rows)} are ready with the data in {data} (--data FOLDER)")
    print("All details of one: fixstar bench list NAME")


def _row(entry: Benchmark, data: Path) -> dict[str, Any]:
    missing = {source.title: source.check(data) for source in entry.datasets}
    return {
        "name": entry.name,
        "what": entry.title,
        "sources": list(entry.sources),
        "protocols": list(entry.protocols),
        "tasks": entry.tasks.count,
        "ready": not any(missing.values()),
        "needs": [title for title, lines in missing.items() if lines],
        "missing": [line for lines in missing.values() for line in lines],
    }


def _description(row: dict[str, Any]) -> str:
    text = f"{row['what']}. {'; '.join(row['sources'])}"
    if row["needs"]:
        text += f". Needs {' and '.join(row['needs'])}"
    return text


def _details(entry: Benchmark, data: Path) -> dict[str, Any]:
    return {
        **_row(entry, data),
        "scenario": entry.scenario,
        "classes per task": entry.tasks.sizes
        or entry.tasks.class_shares
        or entry.tasks.sample_shares,
        "backbone": entry.backbone,
        "capacity": entry.capacity,
        "recipe": asdict(entry.recipe),
        "replay per class": entry.replay_per_class,
        "queries": f"{entry.evaluation}, {entry.query_split}",
        "gallery": f"{entry.evaluation}, {entry.gallery_split}",
        "pairs": entry.pairs,
        "methods": {key: choice.options for key, choice in entry.methods.items()},
        "ours": {key: choice.described() for key, choice in entry.ours.items()},
        "class orders": [order or 0 for order in entry.orders],
        "variants": {key: list(values) for key, values in entry.ablations.items()},
        "note": entry.note,
        "datasets": {source.title: source.instructions() for source in entry.datasets},
    }


def _print_details(shown: dict[str, Any]) -> None:
    indent = " " * 18
    for key, value in shown.items():
        if key == "datasets" or value in ([], {}, "", None):
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{name} {_words(inside)}".strip() for name, inside in value.items())
        elif isinstance(value, (list, tuple)):
            separator = f"\n{indent}" if key == "missing" else ", "
            value = separator.join(map(str, value))
        if key == "missing":
            print(f"{key:<18}{value}")
        else:
            print_wrapped(f"{key:<17} {value}", indent=indent)
    for instructions in shown["datasets"].values():
        print(f"\n{instructions}")


def _words(value: object) -> str:
    if isinstance(value, dict):
        if not value:
            return ""
        settings = ", ".join(f"{key}={inside}" for key, inside in value.items())
        return f"({settings})"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)


@verb(
    "fixstar bench run cifar100-10/7 --data DATA --method hoc --method er --orders 3 --jobs 4",
    "fixstar bench run cifar100-10/16 --data DATA --method hoc --option lam=0.25 --capacity 1000 --epochs 40",
    "fixstar bench run cifar100-10/7 --data DATA --method polaris-translated --method vega",
    group=bench_app,
)
def run(
    name: BenchmarkName,
    data: DataFolder = Path("data"),
    method: Annotated[
        list[str] | None,
        typer.Option(help="May be repeated.", show_default="all of the benchmark's"),
    ] = None,
    orders: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Number of shuffled class orders: 3 means orders 1, 2 and 3."
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="N", help="Number of training seeds: 3 means seeds 0, 1 and 2."),
    ] = None,
    order: Annotated[
        list[int] | None,
        typer.Option(min=0, help="One class order; 0 is the dataset's own. May be repeated."),
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(min=0, help="One seed. May be repeated.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Number of runs at the same time.", min=1)] = 1,
    epochs: Annotated[
        int | None, typer.Option(help="Number of epochs; milestones are scaled in proportion.")
    ] = None,
    capacity: Annotated[
        int | None, typer.Option(help="K of methods with a fixed classifier.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the method, such as lam=0.25.")
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            help="weight_decay, learning_rate, replay_per_class or length (of prototypes): length=0.1."
        ),
    ] = None,
    translate: Annotated[
        bool | None,
        typer.Option(
            "--translate/--no-translate",
            help="Also search old vectors through fitted translations.",
            show_default="for methods that need them",
        ),
    ] = None,
    weight: Annotated[
        float | None, typer.Option(help="w of the translations, from 0 to 1.", show_default="0.6")
    ] = None,
    fitters: Annotated[
        int,
        typer.Option(
            min=0,
            help="Processes per run that fit translations while the next version trains; 0 fits them between versions.",
        ),
    ] = 0,
    work: Annotated[Path, typer.Option(help="Folder for unfinished runs.")] = Path("bench-work"),
    results: Annotated[
        Path, typer.Option(help="Folder for results: one JSON file per run.")
    ] = RESULTS,
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="File that records runs on class orders that are set aside.",
            show_default="benchmarks/looks.json",
        ),
    ] = None,
    device: Device = "auto",
    mps: Annotated[
        bool, typer.Option(help="Share a GPU by NVIDIA's multi-process service if available.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be run and what is done.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a benchmark. Finished runs are skipped; the same command resumes after an interruption."""
    from fixstar.research.benchmarks import benchmark
    from fixstar.research.benchmarks.jobs import Folders, complete
    from fixstar.research.benchmarks.ledger import default_path, warnings_of
    from fixstar.research.benchmarks.plan import plan
    from fixstar.translation.translation import USUAL

    entry = benchmark(name)
    runs = plan(
        entry,
        methods=method or [],
        orders=_chosen("order", orders, order, first=1),
        seeds=_chosen("seed", seeds, seed, first=0) or [0],
        epochs=epochs,
        capacity=capacity,
        options=dict(key_value(text, "--option", "lam=0.25") for text in option or []),
        changes=dict(key_value(text, "--setting", "length=0.1") for text in setting or []),
        translate=translate,
        weight=USUAL if weight is None else weight,
    )
    folders = Folders(data=data, work=work, results=results, ledger=ledger or default_path())
    for sentence in warnings_of(
        [one for one in runs if not folders.result(one).exists()], folders.ledger
    ):
        say(sentence)
    if dry_run:
        _print_plan(runs, folders, as_json)
        return
    if not all(folders.result(one).exists() for one in runs):
        for source in entry.datasets:
            source.require(data)
    for one in runs:
        lacking = folders.not_judged(one)
        if lacking:
            again = f"remove {folders.result(one)} to run it again"
            say(
                f"{one.name} is done, but without {', '.join(lacking)}, which was added later: {again}"
            )
    if fitters and not any(one.translated for one in runs):
        say("none of these runs fits translations, so --fitters changes nothing")
        fitters = 0
    unfinished = [one for one in runs if not folders.result(one).exists()]
    sharing = mps and device != "cpu" and bool(unfinished) and (jobs > 1 or fitters > 0)
    # A process that uses the GPU cannot end its sharing, so a single run may be a job as well.
    if len(runs) > 1 or (sharing and fitters > 0):
        finished = _run_jobs(
            runs, folders, jobs=jobs, device=device, sharing=sharing, fitters=fitters
        )
        _report_jobs(finished, folders, as_json=as_json and len(runs) > 1)
    if len(runs) == 1:
        complete(runs[0], folders, device, progress=not as_json, fitters=fitters)
        _report(runs[0], folders, before=not unfinished, as_json=as_json)


def _report(one: Run, folders: Folders, *, before: bool, as_json: bool) -> None:
    from fixstar.research.benchmarks.result import RunResult

    result = RunResult.load(folders.result(one))
    if as_json:
        print_json(asdict(result))
        return
    told = str(folders.result(one))
    if before:
        told += " already exists"
    print(f"{told} ({result.seconds:.0f} s)")
    for protocol in result.protocols:
        line = "  ".join(f"{key} {value:.4f}" for key, value in result.metrics(protocol).items())
        print(f"{protocol}:  {line}")
        over = result.protocols[protocol].get("over_draws")
        if over:
            low, high = over["AC_interval"]
            print(
                f"  over {over['draws']} draws of the pairs:  AC {over['AC']:.4f}, from {low:.4f} to {high:.4f}"
            )


def _run_jobs(
    runs: list[Run],
    folders: Folders,
    *,
    jobs: int,
    device: str,
    sharing: bool,
    fitters: int,
) -> list[QueuedRun]:
    from fixstar.research.benchmarks.jobs import live_board, run_jobs, shared_gpu

    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # as with Ctrl-C, no job is left running
    with contextlib.ExitStack() as stack:
        environment: Mapping[str, str] = {}
        if sharing:
            environment = stack.enter_context(shared_gpu(say))
        shown = stack.enter_context(live_board())
        command = partial(_command, folders=folders, device=device, fitters=fitters)
        return run_jobs(
            runs,
            folders,
            command,
            jobs=jobs,
            processes=1 + fitters,
            shown=shown,
            environment=environment,
        )


def _report_jobs(finished: list[QueuedRun], folders: Folders, *, as_json: bool) -> None:
    failed = [job for job in finished if job.state == "failed"]
    if as_json:
        print_json([_job_json(job, folders) for job in finished])
    elif len(finished) > 1:
        print(f"{len(finished) - len(failed)} of {len(finished)} runs are in {folders.results}")
    for job in failed:
        say(
            f"fixstar: {job.run.name} failed: {job.note.removeprefix('fixstar: ')} (see {folders.log(job.run)})"
        )
    if failed:
        raise typer.Exit(1)


def _command(one: Run, folders: Folders, device: str, fitters: int = 0) -> list[str]:
    words = ["--order", str(one.class_order), "--seed", str(one.seed)]
    if one.epochs is not None:
        words += ["--epochs", str(one.epochs)]
    if one.capacity is not None:
        words += ["--capacity", str(one.capacity)]
    if one.translate is not None:
        words.append("--translate" if one.translate else "--no-translate")
    if one.translated:
        words += ["--weight", str(one.weight)]
    for key, value in one.changes.items():
        words += ["--setting", f"{key}={value}"]
    for key, value in one.options.items():
        words += ["--option", f"{key}={json.dumps(value)}"]
    words += [
        "--data",
        str(folders.data),
        "--work",
        str(folders.work),
        "--results",
        str(folders.results),
    ]
    words += ["--ledger", str(folders.ledger)]
    begin = [
        sys.executable,
        "-m",
        "fixstar",
        "bench",
        "run",
        one.benchmark.name,
        "--method",
        one.method,
    ]
    if fitters and one.translated:
        words += ["--fitters", str(fitters), "--no-mps"]  # the GPU is shared already
    return [*begin, *words, "--jobs", "1", "--device", device]


def _job_json(job: QueuedRun, folders: Folders) -> dict[str, Any]:
    return {
        "run": job.run.name,
        "state": job.state,
        "seconds": round(job.seconds, 1),
        "note": job.note,
        "result": str(folders.result(job.run)) if job.state == "done" else None,
    }


def _print_plan(runs: list[Run], folders: Folders, as_json: bool) -> None:
    rows = []
    for one in runs:
        rows.append({"run": one.name, "state": _state(one, folders)})
    print_result(as_json, rows, *(f"{row['state']:<20} {row['run']}" for row in rows))


def _state(one: Run, folders: Folders) -> str:
    """The progress of a run in words."""
    if folders.result(one).exists():
        return ", ".join(["done", *(f"without {name}" for name in folders.not_judged(one))])
    finished = len(folders.progress(one).versions)
    if finished:
        return f"{finished} of {one.benchmark.tasks.count} versions"
    return "to do"


def _chosen(what: str, count: str | None, named: list[int] | None, first: int) -> list[int] | None:
    """The orders or seeds requested by count and by number; None if none were."""
    if count is None:
        return named or None
    if not (count.isascii() and count.isdecimal()) or int(count) < 1:
        listed = " ".join(f"--{what} {part}" for part in re.findall(r"[0-9]+", count))
        seen = f"--{what}s is a count, a whole number of at least 1, such as 3; got {count!r}"
        if "," in count and listed:
            seen += f"; to choose single ones type {listed}"
        raise InputError(seen)
    return [*range(first, first + int(count)), *(named or [])]


@verb("fixstar bench table cifar100-10/7 --markdown cifar.md --pictures pictures", group=bench_app)
def table(
    name: BenchmarkName,
    results: Annotated[Path, typer.Option(help="Folder with the results of the runs.")] = RESULTS,
    markdown: Annotated[
        Path | None,
        typer.Option(help="Write a complete section to this file; it replaces an earlier one."),
    ] = None,
    pictures: Annotated[
        Path | None, typer.Option(help="Write matrices and curves into this folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the runs of a benchmark with the published figures: mean and deviation over class orders and seeds."""
    from fixstar.research.benchmarks import benchmark
    from fixstar.research.benchmarks.comparison import compare, read_results
    from fixstar.research.benchmarks.tables import draw

    entry = benchmark(name)
    comparison = compare(entry, read_results(entry, results))
    drawn = [] if pictures is None else draw(comparison, pictures)
    if markdown is not None:
        from fixstar.research.benchmarks.tables import markdown as section
        from fixstar.research.benchmarks.tables import put_section

        made = section(
            comparison, _commands(comparison), pictures=drawn, relative_to=markdown.parent
        )
        text = put_section(_text_of(markdown), entry.name, made)
        replace_file(markdown, lambda partial: partial.write_text(text, encoding="utf-8"))
    if as_json:
        print_json(_comparison_json(comparison, drawn))
    else:
        _print_comparison(comparison, drawn)


def _commands(comparison: Comparison) -> list[str]:
    """The fewest commands that repeat every run of a comparison."""
    asked: dict[tuple[str, ...], list[str]] = {}
    for line in comparison.lines:
        if line.runs:
            asked.setdefault(_options(comparison.benchmark, line), []).append(line.method)
    return [
        " ".join(
            [
                "fixstar bench run",
                comparison.benchmark.name,
                "--data DATA",
                *(f"--method {m}" for m in methods),
                *words,
            ]
        )
        for words, methods in asked.items()
    ]


def _options(entry: Benchmark, line: Line) -> tuple[str, ...]:
    from fixstar.research.benchmarks.plan import SETTINGS, usual_epochs

    known = {"translated": "--translate", "untranslated": "--no-translate"}
    translation = [known[word] for word in line.special if word in known]
    translation += [
        f"--weight {word.removeprefix('w=')}" for word in line.special if word.startswith("w=")
    ]
    settings = [word for word in line.special if word.partition("=")[0] in SETTINGS]
    capacity = [word.removeprefix("K=") for word in line.special if word.startswith("K=")]
    others = ("K=", "w=", *known, *settings)
    options = [word for word in line.special if not word.startswith(others)]
    epochs = [] if line.epochs == usual_epochs(entry, line.method) else [f"--epochs {line.epochs}"]
    orders, seeds = ({getattr(one, name) for one in line.runs} for name in ("class_order", "seed"))
    listed = [*_asked("order", orders, first=1), *_asked("seed", seeds, first=0)]
    changed = [f"--capacity {k}" for k in capacity] + [f"--setting {word}" for word in settings]
    return (*listed, *epochs, *changed, *translation, *(f"--option {word}" for word in options))


def _asked(what: str, numbers: set[int], first: int) -> list[str]:
    """Orders or seeds as options: a count if they are the first ones, else one by one."""
    if numbers == set(range(first, first + len(numbers))):
        return [f"--{what}s {len(numbers)}"]
    return [f"--{what} {number}" for number in sorted(numbers)]


def _text_of(path: Path) -> str:
    """The current content of a file; empty if it does not exist."""
    if not path.exists():
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(
            f"{path} is not UTF-8 text, so no section can be put into it; choose another file"
        ) from None


def _comparison_json(comparison: Comparison, drawn: list[Path]) -> dict[str, Any]:
    return {
        "benchmark": comparison.benchmark.name,
        "sources": list(comparison.benchmark.sources),
        "columns": list(comparison.columns),
        "lines": [_line_json(line) for line in comparison.lines],
        "pictures": [str(path) for path in drawn],
    }


def _line_json(line: Line) -> dict[str, Any]:
    printed = line.printed
    return {
        "method": line.method,
        "special": list(line.special),
        "epochs": line.epochs,
        "runs": [
            {"class_order": one.class_order, "seed": one.seed, "seconds": one.seconds}
            for one in line.runs
        ],
        "ours": {
            protocol: {name: asdict(spread) for name, spread in metrics.items()}
            for protocol, metrics in line.ours.items()
        },
        "paper": printed
        and {
            "source": printed.source,
            **{
                name: None if figure.below else figure.fraction
                for name, figure in printed.values.items()
            },
            "uncertain": sorted(printed.uncertain),
        },
    }


def _print_comparison(comparison: Comparison, drawn: list[Path]) -> None:
    from fixstar.research.benchmarks.tables import tables_of, what_differs

    print(f"{comparison.benchmark.name}: {comparison.benchmark.title}")
    for title, head, body in tables_of(comparison):
        if title:
            print(title)
        rows = [[_emphasized(cell) for cell in row] for row in body]
        print_table([name.replace(": ", "\n") for name in head], rows)
    for line in what_differs(comparison):
        print_wrapped(line, "- ")
    if not any(line.runs for line in comparison.lines):
        print(
            f"Nothing was run yet. Next: fixstar bench run {comparison.benchmark.name} --data DATA"
        )
    for path in drawn:
        print(path)


def _emphasized(cell: str) -> Cell:
    """A cell of a Markdown table, with its bold marks as a style."""
    if cell.startswith("**"):
        return cell.strip("*"), "bold"
    return cell
