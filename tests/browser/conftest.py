"""A real browser (Debian's chromium) before a real ``fixstar serve``. Screenshots stay under build/screenshots."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from glyph_shop import glyph_shop, query_file
from real_service import chromium, serving

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = chromium()
    if path is None:
        pytest.skip("no chromium: apt-get install chromium, or set FIXSTAR_CHROMIUM to its path")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace to copy; nobody writes into it."""
    path = tmp_path_factory.mktemp("browser") / "shop"
    glyph_shop(path).close()
    return path


@pytest.fixture(scope="session")
def query(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return query_file(tmp_path_factory.mktemp("query") / "phi.png")


@pytest.fixture(scope="session")
def site(shop: Path) -> Iterator[str]:
    """One service for all tests that change nothing."""
    copy = shop.with_name("read")
    shutil.copytree(shop, copy)
    with serving(copy) as address:
        yield address


class Watched:
    """A page that notes what must not happen: errors in the console, requests to elsewhere."""

    def __init__(self, page: Any, origin: str) -> None:
        self.page, self.origin = page, origin
        self.errors: list[str] = []
        self.elsewhere: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._request)
        page.on("dialog", self._dialog)

    def _console(self, message: Any) -> None:
        expected = (
            "Failed to load resource" in message.text
        )  # answers such as 401 and 409, which the page explains
        if message.type in ("error", "warning") and not expected:
            self.errors.append(message.text)

    def _dialog(self, dialog: Any) -> None:
        self.errors.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Any) -> None:
        if not request.url.startswith((f"{self.origin}/", "data:", f"blob:{self.origin}")):
            self.elsewhere.append(request.url)


@pytest.fixture
def visit(browser: Any, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Open a page at an address; afterwards a screenshot is kept, and nothing untoward may have happened."""
    opened: list[Watched] = []
    contexts = []

    def visit(address: str, hash_: str = "", **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(120_000)  # a busy machine takes its time
        contexts.append(context)
        page = context.new_page()
        opened.append(Watched(page, address))
        page.goto(f"{address}/{hash_}")
        return page

    yield visit
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for number, watched in enumerate(opened):
        name = re.sub(r"\W+", "-", request.node.name).strip("-")
        watched.page.evaluate("window.scrollTo(0, 0)")
        watched.page.screenshot(path=SCREENSHOTS / f"{name}-{number}.png", full_page=True)
    for context in contexts:
        context.close()
    assert [watched.errors for watched in opened] == [[] for _ in opened]
    assert [watched.elsewhere for watched in opened] == [[] for _ in opened]
