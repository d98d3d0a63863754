"""The command line: one file a verb. A verb imports what it needs when it runs, so that ``--help`` is quick."""

from __future__ import annotations

import signal
import sys
import warnings
from typing import Annotated, NoReturn

import typer

from fixstar.cli import (
    adapt,
    backbones,
    backfill,
    bench,
    check,
    demo,
    deploy,
    evaluate,
    gallery,
    grow,
    index,
    init,
    keys,
    methods,
    picture2d,
    retire,
    rollback,
    search,
    serve,
    slots,
    status,
    theorem,
    train,
    upgrade,
)
from fixstar.cli.next_steps import next_lines, typed_workspace
from fixstar.cli.one_voice import one_voice, process_rank
from fixstar.cli.usage import Verbs
from fixstar.errors import FixstarError

__all__ = ["app", "main"]

app = typer.Typer(
    name="fixstar",
    cls=Verbs,
    help="Upgrade your image-embedding model, keep your gallery.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

STORY = (
    demo,
    init,
    train,
    index,
    search,
    upgrade,
    check,
    deploy,
    backfill,
    rollback,
    status,
    serve,
    adapt,
    grow,
    slots,
    retire,
)
RESEARCH = (evaluate, methods, backbones, theorem, picture2d)

for verb in (*STORY, *RESEARCH):
    app.command(verb.NAME, epilog=getattr(verb, "EXAMPLES", None))(verb.command)
for group in (gallery, bench, keys):
    app.add_typer(group.app, name=group.NAME)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        from fixstar import __version__

        print(f"fixstar {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; expected errors are told in one message, without a traceback."""
    signal.signal(signal.SIGINT, _stopped)
    warnings.showwarning = _show_warning
    try:
        with one_voice():
            app()
    except FixstarError as error:
        workspace = typed_workspace(sys.argv[1:])
        _tell(str(error))
        for line in next_lines(error.next_steps, workspace):
            print(line, file=sys.stderr)
        raise SystemExit(1) from None
    except OSError as error:
        _tell(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "))
        raise SystemExit(1) from None


def _tell(message: str) -> None:
    rank = process_rank()
    print(f"fixstar: process {rank}: {message}" if rank else f"fixstar: {message}", file=sys.stderr)


def _stopped(*_: object) -> NoReturn:
    if process_rank() == 0:
        print("\nfixstar: stopped. Training that was under way goes on with the same command", file=sys.stderr)
    raise SystemExit(130)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"fixstar: warning: {message}", file=sys.stderr)
