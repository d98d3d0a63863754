"""The board of a gallery of texts whose models are behind servers: check, deploy, and backfill for money."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_service import serving
from text_models import embeddings_server, own_settings, topic_texts, write_jsonl
from waiting import until

from fixstar.workspace import Workspace
from fixstar.workspace.items import text_catalogue

__all__ = ["own_settings"]  # a fixture
pytestmark = pytest.mark.usefixtures("own_settings")

Visit = Callable[..., Any]
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"


@pytest.fixture
def board(tmp_path: Path, own_settings: None) -> Iterator[str]:  # noqa: ARG001
    """80 texts of a noisy model; v2 is better, and costs 1000 per million tokens. Labelled texts have a name."""
    with (
        embeddings_server(width=24, noise=2.5) as old,
        embeddings_server(width=32, salt="two", noise=0.2) as new,
    ):
        with Workspace.create(tmp_path / "notes", device="cpu") as space:
            space.add_version(old.url())
            space.index(text_catalogue(write_jsonl(tmp_path / "notes.jsonl", topic_texts(20))))
            space.add_version(new.url("better"), price=1000.0)
            space.pin_images(
                "tickets", write_jsonl(tmp_path / "tickets.jsonl", topic_texts(120, seed=7))
            )
        with serving(tmp_path / "notes") as address:
            yield address


def test_texts_are_checked_deployed_and_backfilled_for_money_on_the_page(
    board: str, visit: Visit
) -> None:
    page = visit(board, "#versions")
    card = page.locator("article[aria-label='Version v2']")
    card.locator("button", has_text="Check").click()
    until(
        page,
        "document.querySelector(\"article[aria-label='Version v2'] header\")?.textContent.includes('passed')",
    )
    assert "image" not in card.inner_text()
    card.locator("text=Deploy …").click()
    page.locator("#confirm button", has_text="Deploy v2").click()
    page.wait_for_selector("#budget")
    assert page.locator("#budget-words").inner_text() == "10%, 5000, $2.50 or all"
    for wrong, said in (
        ("$0.001", "less than one item costs"),
        ("$5%", "neither money nor a share"),
    ):
        page.fill("#budget", wrong)
        page.locator("button", has_text="Start backfill").click()
        assert said in page.wait_for_selector(".backfill-form .problem").inner_text()
    mean = sum(len(text) for text, _ in topic_texts(20)) / 80
    one = mean / 3.5 * 1000 / 1e6
    page.fill("#budget", f"${10.5 * one:.4f}")
    page.screenshot(path=SCREENSHOTS / "texts-backfill.png", full_page=True)
    page.locator("button", has_text="Start backfill").click()
    says = page.wait_for_selector("#confirm[open]").inner_text()
    assert "Re-embed 10 vectors with v2?" in says
    assert f"The server charges about ${10 * one:.2g} for it" in says
    assert "10 texts are read and embedded" in says
    page.locator("#confirm button", has_text="Replace 10 vectors").click()
    page.wait_for_selector("#jobs .chip.done")
    until(page, "document.querySelector('#overview').textContent.includes('10 (13 %)')")


def test_money_is_refused_where_nothing_has_a_price(tmp_path: Path, visit: Visit) -> None:
    with embeddings_server(width=24) as old, embeddings_server(width=32, salt="two") as new:
        with Workspace.create(tmp_path / "notes", device="cpu") as space:
            space.add_version(old.url())
            space.index(text_catalogue(write_jsonl(tmp_path / "notes.jsonl", topic_texts(5))))
            space.add_version(new.url("better"))
            space.deploy("v2", force="a try")
        with serving(tmp_path / "notes") as address:
            page = visit(address, "#versions")
            page.wait_for_selector("#budget")
            assert page.locator("#budget-words").inner_text() == "10%, 5000 or all"
            page.fill("#budget", "$2")
            page.locator("button", has_text="Start backfill").click()
            problem = page.wait_for_selector(".backfill-form .problem").inner_text()
            assert "money, and v2 has no price per token" in problem
