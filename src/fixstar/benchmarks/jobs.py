"""Several runs at once, each a process of its own with its own log. One that fails does not stop the others."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from fixstar.benchmarks.plan import Run
from fixstar.benchmarks.result import RunResult
from fixstar.benchmarks.runner import Progress, run_benchmark

__all__ = ["Board", "Folders", "Job", "complete", "run_jobs"]

_POLL = 0.2  # seconds


@dataclass(frozen=True)
class Folders:
    """Where the images are, where unfinished runs live, where results go."""

    data: Path
    work: Path
    results: Path

    def result(self, run: Run) -> Path:
        """The file of a finished run."""
        return self.results / f"{run.name}.json"

    def not_judged(self, run: Run) -> list[str]:
        """The benchmark's protocols that a finished run lacks: they are newer than its result."""
        path = self.result(run)
        known = RunResult.load(path).protocols if path.exists() else run.benchmark.protocols
        return [protocol for protocol in run.benchmark.protocols if protocol not in known]

    def log(self, run: Run) -> Path:
        """What a run printed."""
        return self.work / run.name / "log.txt"

    def progress(self, run: Run) -> Progress:
        """Where a run stands."""
        return Progress.read(self.work / run.name / "progress.json")


@dataclass
class Job:
    """A run on its way: ``state`` is waiting, running, done or failed."""

    run: Run
    state: str = "waiting"
    stage: str = ""
    share: float = 0.0
    started: float = 0.0
    first_share: float = 0.0  # what an earlier process had done already
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


class Board:
    """Told of every change; this one keeps silent."""

    def show(self, jobs: Sequence[Job]) -> None:
        """Called several times a second."""

    def changed(self, job: Job) -> None:
        """Called when a run starts, comes to another stage, or ends."""


def complete(run: Run, folders: Folders, device: str = "auto", progress: bool = True) -> RunResult:
    """The result of a run, from its file if it is done already; else it is run, or gone on with, and written."""
    path = folders.result(run)
    if not path.exists():
        run_benchmark(run, folders.data, folders.work, device, progress).save(path)
    return RunResult.load(path)


def run_jobs(
    runs: Sequence[Run],
    folders: Folders,
    jobs: int = 1,
    device: str = "auto",
    board: Board | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[Job]:
    """Run all of them, ``jobs`` at a time, and say how each ended. What is done already is left alone."""
    board = board or Board()
    all_jobs = [Job(run) for run in runs]
    for job in all_jobs:
        if folders.result(job.run).exists():
            job.state, job.share, job.note = "done", 1.0, "already"
            board.changed(job)
    waiting = [job for job in all_jobs if job.state == "waiting"]
    running: list[Job] = []
    threads = str(max(1, (os.cpu_count() or 1) // max(1, min(jobs, len(waiting)))))
    inherited = {"OMP_NUM_THREADS": threads, **os.environ, **(environment or {})}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_start(waiting.pop(0), folders, device, inherited))
                board.changed(running[-1])
            time.sleep(_POLL)
            for job in list(running):
                if _look(job, folders):
                    board.changed(job)
                if job.state != "running":
                    running.remove(job)
            board.show(all_jobs)
    finally:
        for job in running:  # stopped by hand: what is half done goes on with the same command
            _stop(job)
    return all_jobs


def _start(job: Job, folders: Folders, device: str, environment: Mapping[str, str]) -> Job:
    words = [*job.run.words(), "--jobs", "1", "--device", device]
    words += ["--data", str(folders.data), "--work", str(folders.work), "--results", str(folders.results)]
    log = folders.log(job.run)
    log.parent.mkdir(parents=True, exist_ok=True)
    job.first_share = job.share = folders.progress(job.run).share
    with log.open("ab") as file:
        job.process = _spawn([sys.executable, "-m", "fixstar", "bench", "run", *words], file, environment)
    job.state, job.stage, job.started = "running", "starting", time.monotonic()
    return job


def _spawn(command: list[str], log: IO[bytes], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(environment))


def _look(job: Job, folders: Folders) -> bool:
    """Bring a running job up to date; whether anything has changed."""
    assert job.process is not None, "only started jobs are looked at"
    code = job.process.poll()
    job.seconds = time.monotonic() - job.started
    before = (job.state, job.stage)
    state = folders.progress(job.run)
    if state.path.exists() and state.path.stat().st_mtime >= time.time() - job.seconds - 1:
        if state.share > job.share:
            job.share, job.seconds_at_share = state.share, job.seconds
        job.stage = state.stage
    if code is not None:
        done = code == 0 and folders.result(job.run).exists()
        job.state, job.stage, job.share = ("done", "", 1.0) if done else ("failed", "", job.share)
        job.note = "" if done else _last_line(folders.log(job.run)) or f"exit code {code}"
    return (job.state, job.stage) != before


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _stop(job: Job) -> None:
    assert job.process is not None, "only started jobs are stopped"
    job.process.terminate()
    try:
        job.process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        job.process.kill()
        job.process.wait()
