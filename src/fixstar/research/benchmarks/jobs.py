"""Several runs at once, each in a process with its own log. One that fails does not stop the others."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fixstar.research.benchmarks.ledger import default_path, look_at, note, set_aside
from fixstar.research.benchmarks.plan import Run
from fixstar.research.benchmarks.result import RunResult
from fixstar.research.benchmarks.runner import Progress, run_benchmark

if TYPE_CHECKING:
    from rich.table import Table

_POLL = 0.2  # seconds


@dataclass(frozen=True)
class Folders:
    """The folders of images, unfinished runs and results, and the ledger of looks at set-aside orders."""

    data: Path
    work: Path
    results: Path
    ledger: Path = field(default_factory=default_path)

    def result(self, run: Run) -> Path:
        """The file of a finished run."""
        return self.results / f"{run.name}.json"

    def not_judged(self, run: Run) -> list[str]:
        """The benchmark's protocols that a finished run was not measured by."""
        path = self.result(run)
        if not path.exists():
            return []
        known = RunResult.load(path).protocols
        return [protocol for protocol in run.benchmark.protocols if protocol not in known]

    def log(self, run: Run) -> Path:
        """The output of a run."""
        return self.work / run.name / "log.txt"

    def progress(self, run: Run) -> Progress:
        """The progress of a run."""
        return Progress.read(self.work / run.name / "progress.json")


@dataclass
class QueuedRun:
    """A run and its ``state``: waiting, running, done or failed."""

    run: Run
    state: str = "waiting"
    stage: str = ""
    share: float = 0.0
    started: float = 0.0
    first_share: float = 0.0  # done by an earlier process
    seconds: float = 0.0
    seconds_at_share: float = 0.0
    note: str = ""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def seconds_left(self) -> float | None:
        """An estimate from the versions finished since the start; None before the first."""
        gained = self.share - self.first_share
        if self.state != "running" or gained <= 0:
            return None
        return max(0.0, self.seconds_at_share * (1 - self.first_share) / gained - self.seconds)


Shown = Callable[[Sequence[QueuedRun], QueuedRun | None], object]
"""Called several times per second with all jobs, and with a job that has just changed its stage or state."""


def complete(
    run: Run, folders: Folders, device: str = "auto", progress: bool = True, *, fitters: int = 0
) -> RunResult:
    """The result of a run, from its file if it is done; else it is run, or resumed, and written."""
    path = folders.result(run)
    if not path.exists():
        result = run_benchmark(run, folders.data, folders.work, device, progress, fitters=fitters)
        if set_aside(run):
            note(folders.ledger, [look_at(run, result, path)])
        result.save(path)
    return RunResult.load(path)


def run_jobs(
    runs: Sequence[Run],
    folders: Folders,
    command: Callable[[Run], list[str]],
    jobs: int = 1,
    processes: int = 1,
    shown: Shown = lambda *_: None,
    environment: Mapping[str, str] | None = None,
) -> list[QueuedRun]:
    """Run unfinished runs, ``jobs`` at a time, each by its ``command``; report how each ended.

    The cores are divided among the ``processes`` of each run.
    """
    all_jobs = [QueuedRun(run) for run in runs]
    for job in all_jobs:
        if folders.result(job.run).exists():
            job.state = "done"
            job.share = 1.0
            job.note = "already"
            shown(all_jobs, job)
    waiting = [job for job in all_jobs if job.state == "waiting"]
    running: list[QueuedRun] = []
    at_once = max(1, min(jobs, len(waiting))) * processes
    threads = max(1, (os.cpu_count() or 1) // at_once)
    inherited = {"OMP_NUM_THREADS": str(threads), **os.environ, **(environment or {})}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_start(waiting.pop(0), folders, command, inherited))
                shown(all_jobs, running[-1])
            time.sleep(_POLL)
            for job in list(running):
                if _look(job, folders):
                    shown(all_jobs, job)
                if job.state != "running":
                    running.remove(job)
            shown(all_jobs, None)
    finally:
        for job in running:  # if interrupted by the user: the same command resumes them
            _stop(job)
    return all_jobs


def _start(
    job: QueuedRun,
    folders: Folders,
    command: Callable[[Run], list[str]],
    environment: Mapping[str, str],
) -> QueuedRun:
    log = folders.log(job.run)
    log.parent.mkdir(parents=True, exist_ok=True)
    job.first_share = job.share = folders.progress(job.run).share
    with log.open("ab") as file:
        job.process = subprocess.Popen(
            command(job.run),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=dict(environment),
        )
    job.state = "running"
    job.stage = "starting"
    job.started = time.monotonic()
    return job


def _look(job: QueuedRun, folders: Folders) -> bool:
    """Bring a running job up to date; whether anything has changed."""
    assert job.process is not None, "only started jobs are looked at"
    code = job.process.poll()
    job.seconds = time.monotonic() - job.started
    before = (job.state, job.stage)
    state = folders.progress(job.run)
    if state.path.exists() and state.path.stat().st_mtime >= time.time() - job.seconds - 1:
        if state.share > job.share:
            job.share = state.share
            job.seconds_at_share = job.seconds
        job.stage = state.stage
    if code is not None:
        job.stage = ""
        if code == 0 and folders.result(job.run).exists():
            job.state = "done"
            job.share = 1.0
            job.note = ""
        else:
            job.state = "failed"
            job.note = _last_line(folders.log(job.run)) or f"exit code {code}"
    return (job.state, job.stage) != before


def _last_line(log: Path) -> str:
    lines = [
        line.strip()
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    if lines:
        return lines[-1][:300]
    return ""


def _stop(job: QueuedRun) -> None:
    assert job.process is not None, "only started jobs are stopped"
    job.process.terminate()
    try:
        job.process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        job.process.kill()
        job.process.wait()


_CONTROL = "nvidia-cuda-mps-control"
_TRY = "import torch; torch.zeros(1, device='cuda')"


@contextlib.contextmanager
def shared_gpu(say: Callable[[str], object]) -> Iterator[dict[str, str]]:
    """Share the GPU by NVIDIA's multi-process service, if both are there; yields the environment that runs need."""
    if not _has_gpu() or shutil.which(_CONTROL) is None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="fixstar-mps-") as folder:
        client = {"CUDA_MPS_PIPE_DIRECTORY": folder}
        environment = {**os.environ, **client, "CUDA_MPS_LOG_DIRECTORY": str(Path(folder) / "log")}
        (Path(folder) / "log").mkdir()
        started = subprocess.run([_CONTROL, "-d"], env=environment, capture_output=True, text=True)
        try:
            tried = subprocess.run(
                [sys.executable, "-c", _TRY], env={**os.environ, **client}, capture_output=True
            )
            if started.returncode or tried.returncode:
                say("the GPU is shared without MPS, which does not answer here")
                _stop_mps(environment)
                yield {}
                return
            say("the GPU is shared by MPS")
            yield client
        finally:
            _stop_mps(environment)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.device_count() > 0  # queries the driver without using the GPU


def _stop_mps(environment: dict[str, str]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [_CONTROL], input="quit\n", env=environment, capture_output=True, text=True, timeout=60
        )


@contextlib.contextmanager
def live_board() -> Iterator[Shown]:
    """Shows jobs on standard error: a table that stays up to date on a terminal, else a line per change."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _print_change
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda jobs, _: live.update(table_of(jobs), refresh=True)


def _print_change(_: Sequence[QueuedRun], job: QueuedRun | None) -> None:
    if job is not None:
        if job.state == "running":
            words = job.stage
        else:
            words = " ".join([job.state, job.note]).strip()
        left = job.seconds_left()
        if left is not None:
            words += f", about {clock(left)} left"
        print(f"{clock(job.seconds):>8}  {job.run.name}: {words}", file=sys.stderr, flush=True)


def table_of(jobs: Sequence[QueuedRun]) -> Table:
    """All runs: the stage of each, its progress, and the time left."""
    from rich.table import Table

    table = Table("run", "state", "", "time", "left", box=None, pad_edge=False)
    for job in jobs:
        left = job.seconds_left()
        table.add_row(
            job.run.name,
            job.stage if job.state == "running" else job.state,
            f"{job.share:.0%}",
            clock(job.seconds) if job.seconds else job.note,
            "" if left is None else clock(left),
        )
    counts = {
        state: sum(job.state == state for job in jobs)
        for state in ("done", "running", "waiting", "failed")
    }
    table.caption = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    table.caption_justify = "left"
    return table


def clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> clock(59.7), clock(3671)
    ('1:00', '1:01:11')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}"
