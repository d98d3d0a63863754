"""Screenshots of a workspace's page, for the documentation: python tests/browser/screenshots.py WORKSPACE OUT_DIR

The workspace is copied first, and the copy served: for the picture of a backfill under way a part of it is re-embedded.
The query is a gallery image, turned a little, unless --query names a file. With --text the gallery holds texts, and one
picture of a search is made.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from real_service import chromium, patient, serving

WIDE = {"width": 1200, "height": 820}
PHONE = {"width": 390, "height": 780}
COLOURS = 256  # of a palette: enough for the page, and the files stay small


def main() -> None:
    """Copy, serve, look."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--query", type=Path, help="an image file to search with")
    parser.add_argument("--text", help="a text to search with, where the models read texts")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / chosen.workspace.resolve().name
        shutil.copytree(chosen.workspace, copy)
        with serving(copy) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            if chosen.text:
                search_text(browser, address, chosen.text, chosen.out)
            else:
                query = chosen.query or turned_image(address, Path(temporary) / "photo.png")
                take_all(browser, address, query, chosen.out)
            browser.close()


def search_text(browser: Browser, address: str, text: str, out: Path) -> None:
    """A search by a text."""
    page = opened(browser, address, WIDE, "light")
    page.fill("#words", text)
    page.keyboard.press("Enter")
    page.wait_for_selector(".hit .score")
    keep(page, out / "texts.png")


def take_all(browser: Browser, address: str, query: Path, out: Path) -> None:
    """Search and board, light and dark, wide and on a phone; the backfill comes last, as it changes the gallery."""
    page = opened(browser, address, WIDE, "light")
    search(page, query)
    keep(page, out / "search.png")
    page = opened(browser, f"{address}/#versions", WIDE, "light")
    read_matrix(page)
    keep(page, out / "versions.png", whole=True)
    page = opened(browser, f"{address}/#versions", WIDE, "dark")
    read_matrix(page)
    keep(page, out / "versions-dark.png")
    page = opened(
        browser, address, PHONE, "light", is_mobile=True, has_touch=True, device_scale_factor=1.5
    )
    search(page, query)
    keep(page, out / "phone.png")
    page = opened(browser, f"{address}/#versions", WIDE, "light")
    if start_backfill(page):
        keep(page.locator(".panel", has=page.locator("#backfill")), out / "backfill.png")


def turned_image(address: str, path: Path) -> Path:
    """A gallery image, turned by some degrees, as a query."""
    items = (
        patient.get(f"{address}/v1/items", params={"limit": 500}).raise_for_status().json()["items"]
    )
    item = [one for one in items if one["thumbnail"]][len(items) // 3]
    content = (
        patient.get(f"{address}/v1/item/image", params={"id": item["id"], "size": 256})
        .raise_for_status()
        .content
    )
    with Image.open(io.BytesIO(content)) as image:
        image.convert("RGB").rotate(
            7, Image.Resampling.BICUBIC, fillcolor=image.convert("RGB").getpixel((2, 2))
        ).save(path)
    return path


def opened(browser: Browser, address: str, size: Any, scheme: Any, **options: Any) -> Page:
    """A new visitor."""
    page = browser.new_context(viewport=size, color_scheme=scheme, **options).new_page()
    page.goto(address)
    return page


def search(page: Page, query: Path) -> None:
    """With all pictures loaded."""
    page.set_input_files("#file", query)
    page.wait_for_selector(".hit .score")
    page.wait_for_timeout(800)


def read_matrix(page: Page) -> None:
    """The board with a cell chosen, and all pictures loaded: they come when they are near."""
    page.wait_for_selector(".cell, #matrix .note")
    if page.locator("#drift-draw").count():
        page.click("#drift-draw")
        page.wait_for_timeout(4000)
    for place in range(0, 5000, 500):
        page.evaluate(f"window.scrollTo(0, {place})")
        page.wait_for_timeout(300)
    page.evaluate("window.scrollTo(0, 0)")
    cells = page.locator(".cell:not(.self-test)")
    if cells.count():
        cells.first.click()
    page.wait_for_timeout(300)


def start_backfill(page: Page) -> bool:
    """A third, slowly; whether there was anything to do."""
    page.wait_for_selector("#backfill .state")
    if not page.locator("#budget").count():
        return False
    page.fill("#budget", "30%")
    page.fill("#rate", "100")
    page.locator("button", has_text="Start backfill").click()
    page.locator("#confirm button", has_text="Replace").click()
    page.wait_for_selector("#backfill progress", timeout=120_000)
    page.wait_for_timeout(4000)
    return True


def keep(shown: Any, path: Path, whole: bool = False) -> None:
    """Write a screenshot with few colours."""
    content = shown.screenshot(full_page=True) if whole else shown.screenshot()
    with Image.open(io.BytesIO(content)) as image:
        image.convert("RGB").quantize(
            COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        ).save(path, optimize=True)
    print(f"{path} {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
