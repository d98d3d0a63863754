"""Commands in the documentation can be pasted: the verbs and options exist, and what explains them is a comment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typed import parsed

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?ms)^ *```(\w*)\n(.*?)^ *```$")
COMMAND = re.compile(r"^\s*(?:# )?(?:\w+=\S+ )*(?:[^#|]*\| )?(fixstar \S.*)$", re.MULTILINE)


def commands(page: Path) -> list[str]:
    """The commands of fixstar in a page's blocks, those of which a comment says that they are an alternative too."""
    blocks = [text for language, text in BLOCK.findall(page.read_text()) if language in ("", "bash")]
    return [command for block in blocks for command in COMMAND.findall(block.replace("\\\n", " "))]


def test_pages_have_commands() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 70


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_is_read_by_the_real_command_line(page: Path) -> None:
    wrong = []
    for command in commands(page):
        try:
            parsed(command)
        except Exception as error:
            wrong.append(f"{command}: {getattr(error, 'message', error)}")
    assert not wrong, "\n".join(wrong)
