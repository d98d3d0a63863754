"""The command line: one file a verb. A verb imports what it needs when it runs, so that ``--help`` is quick."""

from __future__ import annotations

import signal
import sys
import warnings
from typing import Annotated, NoReturn

import typer

from fixstar.cli import backbones, bench, demo, evaluate, init, methods, picture2d, theorem, train, upgrade
from fixstar.errors import FixstarError

__all__ = ["app", "main"]

app = typer.Typer(
    name="fixstar",
    help="Upgrade your image-embedding model, keep your gallery.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

for verb in (demo, init, train, upgrade, evaluate, methods, backbones, theorem, picture2d):
    app.command(verb.NAME, epilog=getattr(verb, "EXAMPLES", None))(verb.command)
app.add_typer(bench.app, name=bench.NAME)


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
        app()
    except FixstarError as error:
        print(f"fixstar: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except OSError as error:
        print(f"fixstar: {error.strerror or error}: {error.filename or ''}".rstrip(": "), file=sys.stderr)
        raise SystemExit(1) from None


def _stopped(*_: object) -> NoReturn:
    print("\nfixstar: stopped. Training that was under way goes on with the same command", file=sys.stderr)
    raise SystemExit(130)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"fixstar: {message}", file=sys.stderr)
