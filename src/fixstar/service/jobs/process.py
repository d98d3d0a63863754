"""A long job in a process of its own, which gives way to searches.

In a thread of the service, a training, a check or a backfill shares its interpreter with searches and slows them down.
So the job's thread only starts a process and listens to it. The process has a lower priority (``NICE``): on a busy
machine it gets what searches leave. The service keeps the job, its file and its lease.

They talk in lines of JSON. The process says:

    {"note": {...}, "save": true}                          what changes about the job, to be saved if asked
    {"log": [logger, level, text]}                         for the log of the service
    {"result": {...}}, {"stopped": [why, result]}          it is done, or ended early
    {"problem": {...}}                                     it failed

The service sends the job, "saved" after each change that was to be saved, and "stop" when the job is to end after its
batch. If it does not within ``PATIENCE``, it is killed. The process ends with the service, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from fixstar.errors import DataError, DeploymentMovedError
from fixstar.service.jobs.records import Job, JobFiles, Result
from fixstar.service.jobs.running import RunningJob, StoppedError
from fixstar.service.jobs.work import LONG_WORK
from fixstar.service.problems import Problem, to_step
from fixstar.workspace import Workspace

NICE = 10  # of 19: about a tenth of the time of a processor that others want too
PATIENCE = (
    15.0  # seconds until a process that was told to stop is killed; a service that stops waits 20
)
_LOOK = 0.2  # seconds between two looks whether the job is to end
# the priority comes first: threads that libraries start when they are imported inherit it
_START = f"import os; os.nice({NICE}); from fixstar.service.jobs.process import main; main()"

Tell = Callable[..., None]


class ProcessEndedError(Exception):
    """The process of a job ended, by a kill or a crash, before it said how the job ended."""


# --- in the service


def run_in_process(space: Workspace, running: RunningJob) -> Result:
    """Run a job in a process of its own, and return its result; raises as its work would here."""
    if space.usage is not None:
        with contextlib.suppress(DataError, OSError):  # it will be found by who reads the counts
            space.usage.flush()
    start = {
        "workspace": str(space.path.absolute()),
        "device": space.device,
        "job": asdict(running.job()),
        "log_level": logging.getLogger().getEffectiveLevel(),
    }
    with _process() as process:
        _send(process, json.dumps(start))
        return _follow(process, running)


@contextmanager
def _process() -> Iterator[subprocess.Popen[str]]:
    """A process that waits for its job. It is killed on exit, with all that it started."""
    paths = os.pathsep.join(dict.fromkeys(path or "." for path in sys.path))
    process = subprocess.Popen(
        [sys.executable, "-c", _START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,  # Ctrl-C is for the service
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _send(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended, which its output shows
        process.stdin.write(line + "\n")
        process.stdin.flush()


def _follow(process: subprocess.Popen[str], running: RunningJob) -> Result:
    """Pass on what a process says until it ends."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(process.stdout, lines), daemon=True).start()
    kill_at = None
    while True:
        if kill_at is None and running.stopped():
            _send(process, "stop")
            kill_at = time.monotonic() + PATIENCE
        if kill_at is not None and time.monotonic() > kill_at:
            raise StoppedError("it did not end in time and was killed; what it had stored stays")
        try:
            line = lines.get(timeout=_LOOK)
        except queue.Empty:
            continue
        if not line:
            raise ProcessEndedError(f"its process ended with exit code {_exit_code(process)}")
        said = json.loads(line)
        if "note" in said:
            running.note(said["save"], **said["note"])
            if said["save"]:
                _send(process, "saved")
        elif "log" in said:
            name, level, text = said["log"]
            logging.getLogger(name).log(level, "%s", text)
        else:
            return _outcome(said)


def _outcome(said: dict[str, Any]) -> Result:
    """The result, or the error that ended the job."""
    if "stopped" in said:
        raise StoppedError(*said["stopped"])
    if "problem" in said:
        known = said["problem"]
        problem = Problem(known["kind"], known["detail"], known["hint"], status=known["status"])
        problem.more = known["more"]
        raise problem
    result: Result = said["result"]
    return result


def _exit_code(process: subprocess.Popen[str]) -> int:
    """Of a process that has closed its output."""
    try:
        return process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _read_lines(source: IO[str], lines: queue.SimpleQueue[str]) -> None:
    with source:
        for line in source:
            lines.put(line)
    lines.put("")


# --- in the process


class RemoteJob:
    """A job as its own work sees it in another process than the service's."""

    def __init__(self, job: Job, images: Path, tell: Tell) -> None:
        self.images = images
        self._job = job
        self._tell = tell
        self._stop = threading.Event()
        self._saved = threading.Semaphore(0)
        threading.Thread(target=self._listen, daemon=True).start()

    def job(self) -> Job:
        """As it is now. Whether the service still has it is known there: if not, it kills this process."""
        return self._job

    def note(self, save: bool = False, **changes: Any) -> None:
        """Change what is reported about it; with ``save`` it is on disk when this returns."""
        self._job = replace(self._job, **changes)
        self._tell(note=changes, save=save)
        if save:
            self._saved.acquire()

    def stopped(self) -> bool:
        """Whether it is to end after the current batch."""
        return self._stop.is_set()

    def _listen(self) -> None:
        for line in sys.stdin:
            if line.strip() == "stop":
                self._stop.set()
            else:
                self._saved.release()
        os._exit(1)  # the service is gone


class _LogLines(logging.Handler):
    """Passes log records on to the service."""

    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(log=[record.name, record.levelno, self.format(record)])


def main() -> None:
    """Do the work of the job in the first line of standard input, and say how it ended."""
    signal.signal(
        signal.SIGTERM, lambda *_: None
    )  # a service that is told to stop tells this process itself
    start = json.loads(sys.stdin.readline())
    tell = _teller()
    logging.basicConfig(level=start["log_level"], handlers=[_LogLines(tell)])
    tell(**_worked(start, tell))


def _teller() -> Tell:
    """Writes lines to standard output, from where everything else that is printed goes to standard error now."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    one_at_a_time = threading.Lock()

    def tell(**words: Any) -> None:
        line = json.dumps(words)
        with one_at_a_time:
            print(line, file=output, flush=True)

    return tell


def _worked(start: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Do the work; what it came to, as the service reads it."""
    job = Job(**start["job"])
    try:
        with Workspace(start["workspace"], start["device"]) as space:
            running = RemoteJob(job, JobFiles(space.path).images(job.id), tell)
            return {"result": LONG_WORK[job.kind](space, running)}
    except StoppedError as error:
        return {"stopped": [str(error), error.result]}
    except DeploymentMovedError as error:
        return {"stopped": [str(error), None]}
    except Exception as error:
        return {"problem": _problem_lines(Problem.of(error, f"job {job.id}"))}


def _problem_lines(problem: Problem) -> dict[str, Any]:
    steps = [to_step(step) for step in problem.next_steps]
    return {
        "kind": problem.kind,
        "detail": problem.detail,
        "hint": problem.hint,
        "status": problem.status,
        "more": {"next_steps": steps, **problem.more},
    }
