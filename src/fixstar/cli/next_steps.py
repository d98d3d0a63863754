"""Next steps of errors and checks, as commands with the workspace that the user typed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fixstar.durable import DAMAGE
from fixstar.errors import FixstarError, NextStep


class Command(NamedTuple):
    """The command of an action: its verb, its positional arguments, and options with other names than the argument."""

    verb: str
    positional: tuple[str, ...] = ()
    options: Mapping[str, str] = {}
    takes_workspace: bool = True


# Other arguments become options of the same name: plan_only is --plan-only.
COMMANDS: dict[str, Command] = {
    "add": Command("add", ("model",)),
    "backfill": Command("backfill"),
    "check": Command("check", ("version",)),
    "delete-items": Command("gallery delete", ("id",)),
    "deploy": Command("deploy", ("version",), {}),
    "drop": Command("drop", ("version",)),
    "evaluate": Command("evaluate", ("data",)),
    "grow": Command("grow", ("count",)),
    "import-vectors": Command("gallery import", ("file",), {"name": "--as"}),
    "index": Command("index", ("items",)),
    "init": Command("init", ("path",), takes_workspace=False),
    "install": Command("pip install", ("extra",), takes_workspace=False),
    "repeat": Command("the same command with", takes_workspace=False),
    "rollback": Command("rollback"),
    "status": Command("status"),
    "train": Command("train", ("data",)),
    "upgrade": Command("upgrade", ("data",)),
    "use-gallery": Command("gallery use", ("address",)),
    "verify-gallery": Command("gallery verify"),
}
PLACEHOLDERS = {
    "force": '"REASON"',
    "images": "IMAGES",
    "pairs": "FILE.npz",
    "data": "LABELLED_IMAGES",
    "items": "IMAGES",
    "model": "MODEL",
    "old_vectors": "FILE.npz",
    "path": "WORKSPACE",
    "queries_new": "FILE.npz",
    "queries_old": "FILE.npz",
    "relevant": "QRELS.tsv",
}


TEXT_PLACEHOLDERS = {"data": "LABELLED_TEXTS", "images": "TEXTS", "items": "TEXTS"}
"""Placeholders for workspaces of text models."""


def _reads_texts(workspace: Path) -> bool:
    """Whether the models of a workspace read texts; False if the folder is not a workspace."""
    from fixstar.workspace.registry import Registry

    try:
        return Registry(workspace).reads() == "texts"
    except (FixstarError, OSError, *DAMAGE):
        return False


def command_of(
    step: NextStep, workspace: Path | None = None, typed: Mapping[str, object] | None = None
) -> str:
    """The command of a step. ``typed`` are arguments of the user that a repeated command keeps.

    >>> command_of(NextStep("check", {"version": "v2", "data": ...}), Path("my shop"))
    "fixstar check v2 --data LABELLED_IMAGES -w 'my shop'"
    >>> command_of(NextStep("install", {"extra": "service"}))
    'pip install "fixstar[service]"'
    """
    command = COMMANDS[step.action]
    places = dict(PLACEHOLDERS)
    if workspace is not None and _reads_texts(workspace):
        places |= TEXT_PLACEHOLDERS
    if step.action == "install":
        return f'{command.verb} "fixstar[{step.arguments["extra"]}]"'
    kept = {
        key: value
        for key, value in (typed or {}).items()
        if value is not None and key not in step.arguments
    }
    arguments = {**step.arguments, **kept}
    words = [command.verb]
    if step.action != "repeat":
        words.insert(0, "fixstar")
    words += [
        _word(name, arguments.pop(name), places) for name in command.positional if name in arguments
    ]
    for name, value in arguments.items():
        option = command.options.get(name, f"--{name.replace('_', '-')}")
        if value is True:
            words.append(option)
        elif value is not False:
            words += [option, _word(name, value, places)]
    if command.takes_workspace and workspace is not None and workspace != Path():
        words += ["-w", shlex.quote(str(workspace))]
    return " ".join(words)


def next_lines(
    steps: Iterable[NextStep],
    workspace: Path | None,
    verb: str = "",
    typed: Mapping[str, object] | None = None,
) -> list[str]:
    """One line per command, with the notes of all its steps. Commands of ``verb`` keep the arguments ``typed`` with it.

    >>> who, when = (NextStep("status", {}, note) for note in ("who deployed it", "when"))
    >>> print(*next_lines([NextStep("rollback"), who, when], Path("shop")), sep="\\n")
    Next: fixstar rollback -w shop
          fixstar status -w shop   # who deployed it; when
    """
    notes: dict[str, list[str]] = {}
    for step in steps:
        kept = typed if COMMANDS[step.action].verb == verb else None
        said = notes.setdefault(command_of(step, workspace, kept), [])
        if step.note:
            said.append(step.note)
    lines: list[str] = []
    for command, said in notes.items():
        head = "      " if lines else "Next: "
        remark = f"   # {'; '.join(said)}" if said else ""
        lines.append(f"{head}{command}{remark}")
    return lines


def typed_workspace(words: Sequence[str]) -> Path | None:
    """The workspace that a command line names.

    >>> typed_workspace(["check", "v2", "-w", "shop"])
    PosixPath('shop')
    """
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in ("-w", "--workspace"):
            return Path(following)
        for start in ("--workspace=", "-w"):
            if word.startswith(start):
                return Path(word.removeprefix(start))
    return None


def _word(name: str, value: object, places: Mapping[str, str]) -> str:
    if value is ...:
        return places.get(name, name.upper())
    return shlex.quote(str(value))
