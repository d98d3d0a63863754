"""A training job in a process of its own, which gives way to searches.

In a thread of the service, a training shares its interpreter with searches, which then take about twice as long. Here
the job's thread only passes on what the process tells. The process has a lower priority (``NICE``), so that on a busy
machine it takes what searches leave. It ends with the service, however that ends: what is saved after each epoch is on
disk, and the job resumes from there.

It tells one JSON document per line:

    {"progress": [title, done, total, note]}, {"message": text}      what the job shows
    {"trained": true}, {"already": why}                              there is a version now
    {"problem": [kind, detail, hint], "next_steps": [...]}           it failed
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from fixstar.progress import reported_to
from fixstar.service.problems import Problem, to_step
from fixstar.workspace import Workspace

NICE = 10  # of 19: about a tenth of the time of a processor that others want too
_LOOK = 0.2  # seconds between two looks whether the job is to end
_START = "from fixstar.service.training_process import _main; _main()"

Report = Callable[[str, int, int, str], object]
Say = Callable[[str], object]


def train_apart(
    space: Workspace,
    *,
    kind: str,
    parameters: Mapping[str, Any],
    images: Path,
    report: Report,
    say: Say,
    look: Callable[[], None],
) -> None:
    """Train in another process. ``report`` and ``say`` get what it tells.

    ``look`` is called a few times per second; what it raises ends the process.
    """
    wanted = {
        "workspace": str(space.path.absolute()),
        "device": space.device,
        "kind": kind,
        "parameters": dict(parameters),
        "images": str(images.absolute()),
    }
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
        assert process.stdin is not None
        process.stdin.write(json.dumps(wanted) + "\n")
        process.stdin.flush()
        _follow(process, report, say, look)
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def _follow(process: subprocess.Popen[str], report: Report, say: Say, look: Callable[[], None]) -> None:
    """Pass on what a process tells until it ends."""
    from fixstar.workspace.training import AlreadyTrainedError

    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    reader = threading.Thread(target=_read_lines, args=(process.stdout, lines), daemon=True)
    reader.start()
    while True:
        look()
        try:
            line = lines.get(timeout=_LOOK)
        except queue.Empty:
            continue
        if not line:
            raise Problem("training-ended", f"its process ended with exit code {process.wait()}")
        told = json.loads(line)
        if "progress" in told:
            report(*told["progress"])
        elif "message" in told:
            say(told["message"])
        elif "problem" in told:
            problem = Problem(*told["problem"])
            problem.more["next_steps"] = told["next_steps"]
            raise problem
        elif "already" in told:
            raise AlreadyTrainedError(told["already"])
        else:
            return


def _read_lines(source: IO[str], lines: queue.SimpleQueue[str]) -> None:
    for line in source:
        lines.put(line)
    lines.put("")


# --- the process itself


def _main() -> None:
    """Train what the first line of standard input asks for. When that closes, the service is gone: end at once."""
    from fixstar.workspace.training import AlreadyTrainedError

    if hasattr(os, "nice"):
        os.nice(NICE)
    wanted = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_service, daemon=True).start()
    told = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is for the log

    def tell(**words: Any) -> None:
        print(json.dumps(words), file=told, flush=True)

    try:
        _train(wanted, tell)
        tell(trained=True)
    except AlreadyTrainedError as error:
        tell(already=str(error))
    except Exception as error:
        problem = Problem.of(error, "a training")
        steps = [to_step(step) for step in problem.next_steps]
        tell(problem=[problem.kind, problem.detail, problem.hint], next_steps=steps)


def _end_with_the_service() -> None:
    sys.stdin.read()
    os._exit(1)


def _train(wanted: dict[str, Any], tell: Callable[..., None]) -> None:
    from fixstar.service.jobs.training import opened_images, planned_training

    def report(title: str, done: int, total: int, note: str) -> None:
        tell(progress=[title, done, total, note])

    with Workspace(wanted["workspace"], wanted["device"]) as space, reported_to(report):
        train = planned_training(space, wanted["kind"], wanted["parameters"])
        train(opened_images(Path(wanted["images"])), lambda text: tell(message=text))
