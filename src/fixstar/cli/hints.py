"""Commands inside messages, completed with what the user typed: the library knows its objects, not the command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["Given", "completed", "workspace_of"]

Given = Mapping[str, Sequence[object] | None]

_VERBS = (
    "adapt|backfill|check|deploy|grow|index|retire|rollback|search|serve|slots|status|train|upgrade"
    r"|gallery [\w-]+|keys \w+"
)
# Words of a command stand apart by spaces; a comma, a bracket, or a full stop after a word, ends it.
_COMMAND = re.compile(rf'fixstar (?P<verb>{_VERBS})\b(?: (?:"[^"]*"|[^\s,;()|]*[^\s,;()|.:]))*')


def completed(text: str, workspace: Path | None, verb: str = "", given: Given | None = None) -> str:
    """``text`` with the workspace in every command that lacks it, and in those of ``verb`` the options ``given``.

    An option comes with the words that follow it, or None where it was not typed.

    >>> completed("run: fixstar check v2 --tolerance 0.01, or wait", Path("shop"), "check", {"--data": ["new"]})
    'run: fixstar check v2 --tolerance 0.01 --data new -w shop, or wait'
    """

    def complete(found: re.Match[str]) -> str:
        command = found[0]
        words = command.split()
        typed = {name: value for name, value in (given or {}).items() if found["verb"] == verb and value is not None}
        if workspace is not None and workspace != Path() and "--workspace" not in words:
            typed["-w"] = [workspace]
        missing = [shlex.join([name, *map(str, value)]) for name, value in typed.items() if name not in words]
        return command if "--help" in words else " ".join([command, *missing])

    return _COMMAND.sub(complete, text)


def workspace_of(words: Sequence[str]) -> Path | None:
    """The workspace that a command line names.

    >>> workspace_of(["check", "v2", "-w", "shop"])
    PosixPath('shop')
    """
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in ("-w", "--workspace"):
            return Path(following)
        for start in ("--workspace=", "-w"):
            if word.startswith(start):
                return Path(word.removeprefix(start))
    return None
