"""The documentation as files: links between pages and to the repository hold, and every page is in the site's menu."""

from __future__ import annotations

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from fixstar import errors

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
GENERATED = (
    "reference/cli.md",
    "reference/http.md",
    "reference/python/",
    "examples.md",
)  # docs/site.py makes them
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
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'<img src="([^"]+)"', text):
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
    assert {page for page in menu - written if not page.startswith(GENERATED)} == set(
        CHANGED_BY_BUILD
    )


def test_no_page_names_a_machine() -> None:
    for page in PAGES:
        assert not re.search(r"/(?:root|home|work)/\w", page.read_text()), page


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """docs/site.py, which mkdocs runs."""
    pytest.importorskip("mkdocs", reason="the docs extra is not installed")
    spec = spec_from_file_location("pages", DOCS / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "pages", module)
    spec.loader.exec_module(module)
    return module


def test_a_public_name_without_a_docstring_fails_the_build(
    pages: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "::: fixstar.errors.InputError" in pages.python_page("fixstar.errors")
    monkeypatch.setattr(errors.InputError, "__doc__", None)
    monkeypatch.setattr(
        pages.inspect, "getdoc", lambda value: value.__doc__
    )  # it would find a base class's
    with pytest.raises(Exception, match="InputError is public and has no docstring"):
        pages.python_page("fixstar.errors")


def test_a_page_that_loads_something_from_elsewhere_fails_the_build(
    pages: ModuleType, tmp_path: Path
) -> None:
    page = tmp_path / "index.html"
    page.write_text(
        '<link rel="canonical" href="https://x.example"><a href="https://x.example">x</a><img src="star.svg">'
    )
    config = SimpleNamespace(site_dir=str(tmp_path))
    pages.on_post_build(config)
    for loaded in (
        '<script src="https://x.example/a.js">',
        '<link rel="stylesheet" href="//fonts.example/css">',
    ):
        page.write_text(loaded)
        with pytest.raises(Exception, match="loads something from elsewhere"):
            pages.on_post_build(config)


def test_every_command_is_in_the_reference(pages: ModuleType) -> None:
    written = pages.commands()
    for command in ("fixstar demo", "fixstar doctor", "fixstar gallery verify", "fixstar keys add"):
        assert re.search(rf"(?m)^##+ {command}$", written)
    assert "| `--seed` | Seed of the weights. | 0 |" in written
