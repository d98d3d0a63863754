"""Commands in the documentation can be pasted: the verbs and options exist, and what explains them is a comment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_blocks import ROOT, lines
from typed import parsed

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"^(?:# )?(?:\w+=\S+ )*(?:[^#|]*\| )?(fixstar \S.*)$")


def commands(page: Path) -> list[str]:
    """The commands of fixstar in a page's blocks, those of which a comment says that they are an alternative too."""
    found = [COMMAND.match(line) for line in lines(page)]
    return [command.group(1) for command in found if command]


def test_pages_have_commands() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 90


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_is_read_by_the_real_command_line(page: Path) -> None:
    wrong = []
    for command in commands(page):
        try:
            parsed(command)
        except Exception as error:
            wrong.append(f"{command}: {getattr(error, 'message', error)}")
    assert not wrong, "\n".join(wrong)
