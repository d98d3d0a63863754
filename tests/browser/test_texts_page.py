"""The page of a gallery of texts: a text box, and hits that can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_service import serving
from text_models import bert_folder, topic_texts
from waiting import until

from fixstar.workspace import Workspace
from fixstar.workspace.items import text_item

Visit = Callable[..., Any]
LONG = "rain " * 400
HOSTILE = '<img src=x onerror="document.title=1"> bread'


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("texts")
    with Workspace.create(folder / "notes", device="cpu") as space:
        space.add_version(f"hf:{bert_folder(folder / 'bert')}")
        texts = [*topic_texts(5), (LONG, "rain"), (HOSTILE, "bread")]
        space.index(
            text_item(f"note-{row}", text, {"label": label})
            for row, (text, label) in enumerate(texts)
        )
        space.add_version(f"hf:{bert_folder(folder / 'other', seed=1)}")
    with serving(folder / "notes") as address:
        yield address


def test_a_text_is_searched_and_the_hits_can_be_read(notes: str, visit: Visit) -> None:
    page = visit(notes)
    page.wait_for_selector(".hit .passage")
    assert "22 texts" in page.locator("header").first.inner_text()
    assert not page.locator("#choose").is_visible()
    asked = page.locator(".hit .passage").first.inner_text()
    page.fill("#words", asked)
    page.keyboard.press("Enter")
    page.wait_for_selector(".hit .score")
    assert page.locator(".hit .passage").first.inner_text() == asked
    assert page.locator("#query-name").inner_text() == asked
    assert float(page.locator(".hit .score").first.inner_text()) > 0.99
    page.locator(".hit").nth(1).click()
    until(page, "location.hash.startsWith('#like=')")
    page.wait_for_selector(".hit .score")
    page.locator("#clear").click()
    until(page, "document.querySelector('#results-title').textContent === 'From the gallery'")
    assert page.locator("#words").input_value() == ""
    assert page.evaluate("document.activeElement.id") == "words"


def test_the_whole_text_is_in_the_details_and_markup_stays_text(notes: str, visit: Visit) -> None:
    page = visit(notes)
    page.wait_for_selector(".hit .passage")
    page.fill("#words", "bread")
    page.select_option("#count", "48")
    page.keyboard.press("Enter")
    page.locator("#words-go").click()
    page.wait_for_selector(".hit[data-id='note-21']")
    assert "<img src=x" in page.locator(".hit[data-id='note-21'] .passage").inner_text()
    page.locator(".hit[data-id='note-20']").focus()
    page.keyboard.press("i")
    page.wait_for_selector("#item[open]")
    assert len(page.locator("#item .passage").last.inner_text()) > 1500
    assert page.title().startswith("Search")


def test_texts_are_added_by_writing_and_by_file_and_what_cannot_be_read_is_named(
    notes: str, visit: Visit, tmp_path: Path
) -> None:
    page = visit(notes)
    page.wait_for_selector(".hit .passage")
    page.locator("#tab-add").click()
    assert page.locator("#add-title").inner_text() == "Add texts"
    (tmp_path / "sourdough.md").write_text(
        "# Sourdough\nflour, water and patience", encoding="utf-8"
    )
    (tmp_path / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    (tmp_path / "photo.png").write_bytes(b"no text")
    page.fill("#add-words", "a storm is coming over the hills")
    page.fill("#add-label", "sky")
    page.set_input_files(
        "#add-files", [tmp_path / name for name in ("sourdough.md", "latin.txt", "photo.png")]
    )
    assert "3 texts chosen. 1 file left out" in page.locator("#add-chosen").inner_text()
    page.locator("#add-go").click()
    page.wait_for_selector("#add-state li")
    state = page.locator("#add-state").inner_text()
    assert "2 texts added. 1 text could not be used" in state
    assert "latin.txt: it is not UTF-8" in state
    assert page.locator("#add-words").input_value() == ""
    page.goto(f"{notes}#search")
    page.fill("#words", "a storm is coming over the hills")
    page.keyboard.press("Enter")
    page.wait_for_selector(".hit .score")
    assert page.locator(".hit .passage").first.inner_text() == "a storm is coming over the hills"


def test_a_failed_request_keeps_what_was_written(notes: str, visit: Visit) -> None:
    page = visit(notes)
    page.wait_for_selector(".hit .passage")
    page.locator("#tab-add").click()
    page.route("**/v1/items/texts", lambda route: route.abort())
    page.fill("#add-words", "not lost")
    page.locator("#add-go").click()
    page.wait_for_selector("#add-state .problem")
    assert page.locator("#add-words").input_value() == "not lost"
    page.unroute("**/v1/items/texts")
    page.locator("#add-go").click()
    until(page, "document.querySelector('#add-state').textContent.startsWith('1 text added')")


def test_two_versions_answer_one_text(notes: str, visit: Visit) -> None:
    page = visit(notes)
    page.wait_for_selector(".hit .passage")
    page.fill("#words", "rain storm")
    page.keyboard.press("Enter")
    page.wait_for_selector(".hit .score")
    page.select_option("#against", "v2")
    until(page, "document.querySelectorAll('#compared section').length === 2")


def test_an_empty_text_shows_the_gallery(notes: str, visit: Visit) -> None:
    page = visit(notes)
    page.wait_for_selector(".hit .passage")
    page.fill("#words", "   ")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('#results-title').textContent === 'From the gallery'")


def test_a_phone_shows_texts_without_scrolling_sideways(notes: str, visit: Visit) -> None:
    page = visit(notes, viewport={"width": 390, "height": 780}, is_mobile=True, has_touch=True)
    page.wait_for_selector(".hit .passage")
    page.fill("#words", "oven dough")
    page.locator("#words-go").click()
    page.wait_for_selector(".hit .score")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.screenshot(path=Path(__file__).parents[2] / "build" / "screenshots" / "texts-phone.png")
