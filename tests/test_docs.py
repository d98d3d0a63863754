"""The documentation as files: links between pages and to the repository hold, and every page is in the site's menu."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
GENERATED = ("reference/cli.md", "reference/http.md", "reference/python/", "examples.md")  # docs/site.py makes them
CHANGED_BY_BUILD = ("changelog.md", "contributing.md", "security.md")


def slug(heading: str) -> str:
    words = re.sub(r"[^\w\s-]", "", heading.strip().lower())
    return re.sub(r"[\s-]+", "-", words).strip("-")


def anchors(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return {slug(heading) for heading in re.findall(r"(?m)^#+ (.*)$", text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_hold(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        inside = there.relative_to(DOCS).as_posix() if there.is_relative_to(DOCS) else ""
        if inside.startswith(GENERATED):
            continue
        assert there.exists(), f"{target} is not there"
        assert not anchor or anchor in anchors(there), f"{target}: no such heading"


def test_every_page_is_in_the_menu() -> None:
    menu = set(re.findall(r"(?m)^ .*: ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text()))
    written = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert written <= menu
    assert {page for page in menu - written if not page.startswith(GENERATED)} == set(CHANGED_BY_BUILD)


def test_no_page_names_a_machine() -> None:
    for page in PAGES:
        assert not re.search(r"/(?:root|home|work)/\w", page.read_text()), page
