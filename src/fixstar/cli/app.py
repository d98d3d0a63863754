"""The program: the order of its verbs, options that several verbs share, errors, exit codes, and torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

import typer
from typer.core import TyperGroup

from fixstar.cli.next_steps import next_lines, typed_workspace
from fixstar.errors import FixstarError, InputError

WorkspacePath = Annotated[Path, typer.Option("--workspace", "-w", help="The workspace directory.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
BadImages = Annotated[str, typer.Option("--bad-images", help="Images that cannot be read: refuse or skip.")]
Confidence = Annotated[float, typer.Option(help="Confidence of the verdict, between 0 and 1.")]
Tolerance = Annotated[float, typer.Option(help="How much accuracy may be lost: 0.01 is one point, 0 requires a gain.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]

ORDER = (
    *(
        "demo",
        "init",
        "train",
        "add",
        "index",
        "search",
        "upgrade",
        "check",
        "deploy",
        "backfill",
        "rollback",
        "status",
        "doctor",
    ),
    *(
        "serve",
        "adapt",
        "bridge",
        "drop",
        "grow",
        "slots",
        "retire",
        "evaluate",
        "methods",
        "backbones",
        "theorem",
        "picture2d",
    ),
    *("gallery", "bench", "keys"),
)
EX_USAGE = 64  # of sysexits.h: a mistake in the command line. Not 2, which means that a check refused
_UsageError = cast(type[Exception], typer.BadParameter.__base__)  # click's, or the copy that newer typers bring
_REPORTING = 3.0  # seconds in which the first process reports an error that all have


class Verbs(TyperGroup):
    """All verbs, listed in the order in which they are used. A usage error of any of them exits with ``EX_USAGE``."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the verbs."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the words before the verb."""
        with _as_usage():
            return super().make_context(*args, **kwargs)

    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the words of the verb, and run it."""
        with _as_usage():
            return super().invoke(*args, **kwargs)


@contextlib.contextmanager
def _as_usage() -> Iterator[None]:
    try:
        yield
    except _UsageError as error:
        error.exit_code = EX_USAGE  # type: ignore[attr-defined]
        raise


app = typer.Typer(
    name="fixstar",
    cls=Verbs,
    help="Upgrade your image-embedding model, keep your gallery.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from fixstar import __version__

        print(f"fixstar {__version__}")
        raise typer.Exit


def key_value(text: str, option: str, example: str) -> tuple[str, Any]:
    """What a repeatable option says: a name, and a value read as JSON if it is JSON.

    >>> key_value("rotated=false", "--option", "hold=40")
    ('rotated', False)
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InputError(f"{option} is written NAME=VALUE, such as {example}; got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def main() -> None:
    """Run the command line. Expected errors are one message and the commands to type next, without a traceback."""
    signal.signal(signal.SIGINT, _interrupted)
    warnings.showwarning = _show_warning
    try:
        with rank_zero_output():
            app()
    except FixstarError as error:
        _print_error(str(error))
        for line in next_lines(error.next_steps, typed_workspace(sys.argv[1:])):
            print(line, file=sys.stderr)
        raise SystemExit(1) from None
    except OSError as error:
        _print_error(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "))
        raise SystemExit(1) from None


def _print_error(message: str) -> None:
    rank = process_rank()
    print(f"fixstar: process {rank}: {message}" if rank else f"fixstar: {message}", file=sys.stderr)


def _interrupted(*_: object) -> NoReturn:
    if process_rank() == 0:
        print("\nfixstar: interrupted. The same command resumes a training that was running", file=sys.stderr)
    raise SystemExit(130)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"fixstar: warning: {message}", file=sys.stderr)


def process_rank() -> int:
    """The rank of this process among those that torchrun started; 0 without torchrun."""
    return int(os.environ.get("RANK", "0")) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else 0


@contextlib.contextmanager
def rank_zero_output() -> Iterator[None]:
    """Silence all processes but the first.

    Another process that fails waits a moment: if all fail for the same reason, torchrun ends it as soon as the first
    has reported. If it is still there, the error is its own, and the caller reports it.
    """
    try:
        with contextlib.nullcontext() if process_rank() == 0 else _silence():
            yield
    except SystemExit as stop:
        if not stop.code:
            _leave_process_group()
        elif process_rank():
            time.sleep(_REPORTING)
        raise
    except BaseException:
        if process_rank():
            time.sleep(_REPORTING)
        raise


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


def _leave_process_group() -> None:
    """Leave it in good order if this command trained in one; does not import torch for that."""
    training = sys.modules.get("fixstar.training.distributed")
    if training is not None:
        training.leave()
