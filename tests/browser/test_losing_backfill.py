"""The board where a backfill is predicted to lose: it stops, says so, and does it only on words that say so too."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from glyph_shop import characters
from real_service import patient, serving
from waiting import until

from fixstar.workspace import Workspace
from fixstar.workspace.held_out import keep_held_out

Visit = Callable[..., Any]


@pytest.fixture
def drawn(shop: Path, tmp_path: Path) -> Iterator[str]:
    """A service with v5 deployed: new vectors draw its queries so strongly that a tenth of them spoils the search.

    v5 is v1 with one direction added to every feature that no feature of v1 has. Old vectors do not see it.
    """
    copy = tmp_path / "shop"
    shutil.copytree(shop, copy)
    with Workspace(copy, "cpu") as space:
        encoder, held = space.serving.encoder("v1"), characters(24, seed=5)
        features = torch.as_tensor(encoder.encode(held.load(encoder.preprocessing).images.images))
        unused = torch.linalg.svd(features)[2][-1]
        bias = dict(encoder.named_parameters())["backbone.norm.bias"]
        with torch.no_grad():
            bias.add_(30 * torch.linalg.pinv(encoder.state_dict()["projection.weight"]) @ unused)
        encoder.about = {"version": "v5", "parent": "v1", "method": {"name": "hoc", "options": {}}}
        encoder.save(copy / "versions" / "v5")
        keep_held_out(copy, "v1", held, encoder.preprocessing)
    with serving(copy) as address:
        patient.post(
            f"{address}/v1/deploy", json={"version": "v5", "force": "test"}
        ).raise_for_status()
        yield address


def start(page: Any, order: str = "random", budget: str = "10%") -> str:
    """Press the button, and read what the dialog says."""
    page.fill("#budget", budget)
    page.select_option("#order", order)
    page.locator("button", has_text="Start backfill").click()
    words: str = page.wait_for_selector("#confirm[open]").inner_text()
    return words


def test_a_predicted_loss_stops_and_is_done_only_all_the_same(drawn: str, visit: Visit) -> None:
    page = visit(drawn, "#versions")
    says = start(page)
    assert "Where held-out images predict a loss, nothing is replaced." in says
    assert "anyway" not in says
    page.locator("#confirm button", has_text="Replace 10 vectors").click()
    problem = page.wait_for_selector("#backfill .problem").inner_text()
    assert "Predicted to lower the accuracy" in problem
    assert "of 128 queries, and the old vectors" in problem
    until(
        page,
        "document.querySelector('#announce').textContent.includes('The backfill job ended: failed.')",
    )
    assert "Started with the same settings it says so" in page.locator("#backfill").inner_text()
    assert page.locator("#backfill figure").is_visible()  # the curve that was predicted
    assert patient.get(f"{drawn}/v1/status").json()["vectors"]["v5"] == 0

    page.locator("#share").fill("50")  # the slider walks along the curve
    assert page.locator("#budget").input_value() == "50%"
    predicted = patient.get(f"{drawn}/v1/backfill").json()["predicted"]
    half = np.interp(0.5, predicted["shares"], predicted["planned"])
    told = page.locator("#share-words").inner_text()
    assert told.startswith(
        f"48 vectors, predicted: {100 * half:.1f} % of queries find their class, "
    )
    assert page.locator("#backfill .marker").count() == 1
    page.fill("#budget", "24")
    assert page.locator("#share").input_value() == "25"

    page.locator(
        "#backfill .problem button", has_text="Backfill (anyway true)"
    ).click()  # a next step of the problem
    says = page.wait_for_selector("#confirm[open]").inner_text()
    assert "Searches are predicted to become worse by it" in says
    assert page.locator("#confirm .steps").count() == 0  # a dialog is about one thing
    page.keyboard.press("Escape")

    assert "anyway" not in start(page, budget="all")  # another plan, which nobody has predicted yet
    page.keyboard.press("Escape")
    says = start(page)
    assert "Searches are predicted to become worse by it" in says
    problem = page.locator("#confirm .problem").inner_text()
    assert "Predicted to lower the accuracy" in problem
    assert '"anyway"' not in problem  # that is for programs
    assert page.evaluate("document.activeElement.textContent") == "Cancel"
    page.screenshot(path=Path(__file__).parents[2] / "build" / "screenshots" / "backfill-loses.png")
    with page.expect_request("**/v1/backfill") as sent:
        page.locator("#confirm button", has_text="Replace 10 vectors anyway").click()
    assert sent.value.post_data_json == {
        "budget": "10%",
        "order": "random",
        "rate": None,
        "deployed": "v5",
        "anyway": True,
    }
    until(
        page,
        "document.querySelector('#announce').textContent.includes('The backfill job ended: done.')",
    )
    assert patient.get(f"{drawn}/v1/status").json()["vectors"]["v5"] == 10
    assert "anyway" not in start(page)  # what comes next is another plan
