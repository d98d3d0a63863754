"""The program: groups of verbs, shared options, errors, exit codes, and torchrun."""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn, TypeVar, cast

import typer
from typer.core import TyperGroup

import fixstar
from fixstar.cli.next_steps import next_lines, typed_workspace
from fixstar.cli.output import visible, wrapped
from fixstar.errors import FixstarError, InputError
from fixstar.evaluation.verdicts import GateRules
from fixstar.options import description

Verb = TypeVar("Verb", bound=Callable[..., None])


def option_of(kind: Any, name: str, *flags: str, also: str = "", **shown: Any) -> Any:
    """The option for a field of a dataclass, which says what it does; its default is ``kind.name`` in the signature.

    ``also`` is what only the command line can add, such as another flag.
    """
    return typer.Option(*flags, help=f"{description(kind, name)} {also}".strip(), **shown)


WorkspacePath = Annotated[Path, typer.Option("--workspace", "-w", help="The workspace directory.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
BadImages = Annotated[
    str, typer.Option("--bad-images", help="Images that cannot be read: refuse or skip.")
]
TextOption = Annotated[
    str | None,
    typer.Option(
        "--text", help="For a file of texts: the field that holds the text.", show_default="text"
    ),
]
LabelOption = Annotated[
    str | None,
    typer.Option(
        "--label",
        help="In nested folders, which folder is the label: top (the first), parent (the one that holds the image), or "
        "path (all of them).",
        show_default="top; asks if it is not clear",
    ),
]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        help="A module whose code this workspace may run, such as shop.models. It is remembered. Repeatable.",
    ),
]
Confidence = Annotated[float, option_of(GateRules, "confidence")]
Tolerance = Annotated[float, option_of(GateRules, "tolerance")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON on standard output.")
]

GROUPS = {
    "First steps": ("demo", "init", "train", "add", "index", "search", "status", "doctor"),
    "Upgrades": ("upgrade", "check", "deploy", "backfill", "rollback"),
    "Stored vectors and other models": ("gallery", "bridge", "migrate", "judge"),
    "Service and copies": ("serve", "keys", "snapshot", "restore"),
    "Versions and their classes": ("retire", "drop", "grow", "slots"),
    "Research": ("evaluate", "methods", "backbones", "bench", "theorem", "picture2d"),
}
_RESUMES = {  # what is kept after Ctrl-C; other verbs change nothing
    "train": "The same command resumes after the last whole epoch",
    "upgrade": "The same command resumes after the last whole epoch",
    "index": "What was embedded is stored. The same command resumes",
    "backfill": "What was embedded is stored. The same command resumes",
    "bench": "Finished runs are kept. The same command resumes",
    "snapshot": "The older snapshot is unchanged",
    "migrate": "The old vectors are unchanged, and what was written is kept. The same command resumes",
    "gallery": "Run the same command again to finish it",
}
EX_USAGE = (
    64  # of sysexits.h: a mistake in the command line. Not 2, which means that a check refused
)
_UsageError = cast(
    type[Exception], typer.BadParameter.__base__
)  # click's class, or newer typers' own copy
_REPORTING = 3.0  # seconds for the first process to report an error that all processes have


class Verbs(TyperGroup):
    """Verbs with their summaries, wrapped and never truncated. ``groups`` maps titles to verbs."""

    groups: ClassVar[Mapping[str, Sequence[str]]] = {}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs, group by group."""
        width = max(map(len, self.commands))
        for title, names in (self.groups or {"Commands": self.list_commands(ctx)}).items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (f"{name:<{width}}", self.commands[name].get_short_help_str(1000))
                        for name in names
                    ]
                )


class Program(Verbs):
    """All verbs. A usage error of any of them exits with ``EX_USAGE``."""

    groups = GROUPS

    def list_commands(self, _ctx: Any) -> list[str]:
        """The names of the verbs, in the order in which they are used."""
        return [name for names in self.groups.values() for name in names]

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the arguments before the verb."""
        with _as_usage():
            return super().make_context(*args, **kwargs)

    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the arguments of the verb, and run it."""
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
    cls=Program,
    help="Upgrade your embedding model, keep what you stored.",
    no_args_is_help=True,
    rich_markup_mode=None,  # boxes and type columns leave too little width for text at 80 columns
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(f"fixstar {fixstar.__version__}")
        raise typer.Exit


def examples(*commands: str) -> str:
    """The end of a verb's help: commands to copy, one per line.

    >>> examples("fixstar init shop").split("\\n")[1:]
    ['Example:', '  fixstar init shop']
    """
    head = "Example:" if len(commands) == 1 else "Examples:"
    return "\n".join(
        ("\b", head, *(f"  {command}" for command in commands))
    )  # \b: these lines are not wrapped


def verb(
    *commands: str, group: typer.Typer = app, name: str | None = None
) -> Callable[[Verb], Verb]:
    """Make a function a verb, with examples to copy at the end of its help.

    A parameter whose type is a dataclass stands for several options: the fields of the dataclass. Typer reads options
    from the signature alone, so a function is registered with the fields in place of the dataclass. Otherwise train,
    upgrade and add would each repeat its 6 to 7 parameters with their help. These dataclasses belong to the command
    line, where an option may be a word for several fields, or None for "as before"; see ``option_of`` for the others.
    """

    def register(function: Verb) -> Verb:
        given = inspect.signature(function, eval_str=True)
        kinds: dict[str, Any] = {}  # dataclasses by parameter
        parameters: list[inspect.Parameter] = []
        for one in given.parameters.values():
            members = [one]
            if is_dataclass(one.annotation):
                kinds[one.name] = one.annotation
                members = list(
                    inspect.signature(kinds[one.name], eval_str=True).parameters.values()
                )
            parameters += [
                member.replace(kind=inspect.Parameter.KEYWORD_ONLY) for member in members
            ]

        @functools.wraps(function)
        def run(**values: Any) -> None:
            for place, kind in kinds.items():
                values[place] = kind(
                    **{field.name: values.pop(field.name) for field in fields(kind)}
                )
            function(**values)

        run.__signature__ = given.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        group.command(name, epilog=examples(*commands))(run)
        return function

    return register


def key_value(text: str, option: str, example: str) -> tuple[str, Any]:
    """Parse NAME=VALUE of a repeatable option; the value is read as JSON if possible.

    Python's ``True`` and ``False`` are understood too: results and tables write options like that.

    >>> key_value("rotated=false", "--option", "hold=40")
    ('rotated', False)
    >>> key_value("with_first=True", "--option", "hold=40")
    ('with_first', True)
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InputError(f"{option} must be NAME=VALUE, such as {example}; got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, {"true": True, "false": False}.get(value.lower(), value)


def main() -> None:
    """Run the command line. Expected errors print a message and the commands to type next, without a traceback."""
    signal.signal(signal.SIGINT, _interrupted)
    warnings.showwarning = _show_warning
    try:
        with rank_zero_output():
            app(prog_name="fixstar")
    except FixstarError as error:
        _print_error(str(error))
        for line in next_lines(error.next_steps, typed_workspace(sys.argv[1:])):
            print(line, file=sys.stderr)
        raise SystemExit(1) from None
    except OSError as error:
        _print_error(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "))
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            print(
                f"Free some space. {_RESUMES.get(_typed_verb(), 'Then run the same command again')}",
                file=sys.stderr,
            )
        raise SystemExit(1) from None


def _print_error(message: str) -> None:
    rank = process_rank()
    if rank:
        message = f"process {rank}: {message}"
    _print_to_terminal(f"fixstar: {message}")


def _print_to_terminal(message: str) -> None:
    """Print on standard error: wrapped in a terminal, unchanged in a log."""
    is_terminal = sys.stderr.isatty()
    for line in map(visible, message.split("\n")):
        if is_terminal:
            line = wrapped(line, indent="    ")
        print(line, file=sys.stderr)


def _typed_verb() -> str:
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")


def _interrupted(*_: object) -> NoReturn:
    if process_rank() == 0:
        typed = _typed_verb()
        kept = _RESUMES.get(typed, "Nothing was changed")
        print(f"\nfixstar: {typed} was interrupted. {kept}", file=sys.stderr)
    raise SystemExit(130)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    _print_to_terminal(f"fixstar: warning: {message}")


def process_rank() -> int:
    """The rank of this process among those that torchrun started; 0 without torchrun."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return int(os.environ.get("RANK", "0"))
    return 0


@contextlib.contextmanager
def rank_zero_output() -> Iterator[None]:
    """Silence all processes but the first.

    Another process that fails waits a moment. If all fail for the same reason, torchrun ends it after the first one
    has reported the error. If it is still running then, the error is its own, and the caller reports it.
    """
    with contextlib.ExitStack() as silence:
        if process_rank():
            nowhere = silence.enter_context(Path(os.devnull).open("w"))
            silence.enter_context(contextlib.redirect_stdout(nowhere))
            silence.enter_context(contextlib.redirect_stderr(nowhere))
        try:
            yield
        except BaseException as end:
            if isinstance(end, SystemExit) and not end.code:
                _leave_process_group()
            elif process_rank():
                time.sleep(_REPORTING)
            raise


def _leave_process_group() -> None:
    """Leave the process group if this command trained in one; does not import torch for that."""
    training = sys.modules.get("fixstar.training.distributed")
    if training is not None:
        training.leave()
