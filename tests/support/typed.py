"""The command line as a user types it, in this process: what it prints where, and its exit code."""

from __future__ import annotations

import io
import json
import shlex
import signal
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import typer

from fixstar.cli import app, main

COLUMNS = "200"  # of the terminal


class Typed(NamedTuple):
    """What came of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON document and nothing else."""
        return json.loads(self.out)


PROGRAM = typer.main.get_command(app)


def parsed(command: str) -> dict[str, Any]:
    """What the real command line reads from a command, without running it; a usage error is raised."""
    program, *words = shlex.split(command, comments=True)
    assert program == "fixstar"
    parser: Any = PROGRAM
    while hasattr(parser, "commands"):
        parser = parser.commands[words.pop(0)]
    return dict(parser.make_context(parser.name, words).params)


def typed(*words: str | Path) -> Typed:
    """Type ``fixstar WORDS``."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    interrupt, show = signal.getsignal(signal.SIGINT), warnings.showwarning
    argv = patch("sys.argv", ["fixstar", *map(str, words)])
    wide = patch.dict("os.environ", {"COLUMNS": COLUMNS})
    try:
        with argv, wide, redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        signal.signal(signal.SIGINT, interrupt)
        warnings.showwarning = show
    return Typed(code, out.getvalue(), err.getvalue())
