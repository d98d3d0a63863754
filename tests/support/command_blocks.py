"""The commands that a page of the documentation shows, in their order."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?ms)^ *```(\w*)\n(.*?)^ *```$|((?:^ {4}(?:\w+=\S+ )*fixstar [^\n]*\n)+)")


def lines(page: Path) -> list[str]:
    """What stands in a page's blocks of commands, line by line, what was continued on the next line as one."""
    found: list[str] = []
    for language, fenced, indented in BLOCK.findall(page.read_text()):
        if language in ("", "bash"):
            found += (fenced or indented).replace("\\\n", " ").splitlines()
    return [line.strip() for line in found if line.strip()]
