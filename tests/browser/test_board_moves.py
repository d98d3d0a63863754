"""Moves of the board: what a dialog says is what happens, and what it costs is said before."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_service import patient, serving
from shops import foreign, passed_with_two_models, pictures
from waiting import until

from fixstar.data import open_images
from fixstar.errors import NextStep
from fixstar.methods import create_method
from fixstar.training import Recipe, Settings
from fixstar.translation import Map, Translation
from fixstar.workspace import Workspace, catalogue
from fixstar.workspace.checks import last_check, save_check

Visit = Callable[..., Any]
DIALOG = "#confirm[open]"


@pytest.fixture
def upgraded(shop: Path, tmp_path: Path) -> Iterator[str]:
    """A service of its own: v2 is deployed, and 14 of the 96 vectors are v2's."""
    copy = tmp_path / "shop"
    shutil.copytree(shop, copy)
    with serving(copy) as address:
        asked(address, "deploy", version="v2")
        asked(address, "backfill", budget="14", order="oldest")
        wait_for_jobs(address)
        yield address


def asked(address: str, what: str, **content: Any) -> Any:
    return patient.post(f"{address}/v1/{what}", json=content).raise_for_status().json()


def told(address: str, what: str) -> Any:
    return patient.get(f"{address}/v1/{what}").raise_for_status().json()


def wait_for_jobs(address: str) -> None:
    end = time.monotonic() + 60
    while any(job["state"] in ("queued", "running") for job in told(address, "jobs")):
        assert time.monotonic() < end
        time.sleep(0.05)


def words(page: Any) -> str:
    text: str = page.wait_for_selector(DIALOG).inner_text()
    return text


def press(page: Any, verb: str) -> None:
    page.locator("#confirm button", has_text=verb).click()


def test_a_rollback_lands_where_its_dialog_said_or_nowhere(upgraded: str, visit: Visit) -> None:
    asked(upgraded, "deploy", version="v3", force="test")
    pages = [visit(upgraded, "#versions"), visit(upgraded, "#versions")]
    for page in pages:
        page.locator("#roll-back").click()
        assert "Roll back to v2?" in words(page)
    first, second = pages
    press(first, "Roll back to v2")
    until(first, "document.querySelector('#announce').textContent.startsWith('Rolled back to v2.')")
    press(second, "Roll back to v2")
    problem = second.wait_for_selector("#confirm .problem").inner_text()
    assert "The deployment has moved" in problem
    assert "v2 is deployed now, not v3" in problem
    assert told(upgraded, "status")["deployed"] == "v2"
    until(
        second, "document.querySelector('#roll-back').textContent.includes('v1')"
    )  # the board shows what is so now
    second.keyboard.press("Escape")
    assert second.locator("#announce").inner_text() == ""
    until(
        second,
        "document.activeElement.id === 'overview' || document.activeElement.id === 'roll-back'",
    )


def test_a_deployment_that_another_page_overtook_is_not_made(upgraded: str, visit: Visit) -> None:
    page = visit(upgraded, "#versions")
    page.locator("article[aria-label='Version v4'] >> text=Deploy …").click()
    assert "instead of v2" in words(page)
    asked(upgraded, "deploy", version="v3", force="test")
    page.fill("#reason", "why not")
    press(page, "Deploy anyway")
    assert "v3 is deployed now, not v2" in page.wait_for_selector("#confirm .problem").inner_text()
    assert told(upgraded, "status")["deployed"] == "v3"


def test_after_a_rollback_no_backfill_is_offered_that_would_do_nothing(
    upgraded: str, visit: Visit
) -> None:
    page = visit(upgraded, "#versions")
    page.wait_for_selector("#budget")
    assert (
        "82 vectors of older versions could be re-embedded with v2"
        in page.locator("#backfill").inner_text()
    )
    page.locator("#roll-back").click()
    assert "14 vectors made by v2 are then searched unchecked" in words(page)
    press(page, "Roll back to v1")
    until(
        page,
        "document.querySelector('#announce').textContent.includes('14 vectors of v2 are searched unchecked')",
    )
    until(
        page,
        "document.querySelector('#backfill').textContent.includes('There is nothing to re-embed with v1')",
    )
    seen = page.locator("#backfill").inner_text()
    assert "14 vectors of v2 are newer and stay as they are" in seen
    assert "Last plan: to v2" in seen
    assert "It is over: v1 is deployed now." in seen
    assert "resumes there" not in seen
    assert page.locator("#budget").count() == 0


def test_what_a_move_puts_out_of_reach_is_said_before_and_after(
    upgraded: str, tmp_path: Path, visit: Visit
) -> None:
    with Workspace(tmp_path / "shop", "cpu") as space:
        foreign(space)
        back = Map.linear(np.eye(space.gallery.space("v2").width, 5))
        space.translations.keep(
            Translation("other", "v2", backward=back, one=0.0, about={"fit": "test"})
        )
    page = visit(upgraded, "#versions")
    page.locator("#roll-back").click()
    says = words(page)
    assert "the vectors (82 of v1, 14 of v2) stay as they are and are searched" in says
    assert "2 vectors made by other are not searched: nothing connects them with v1." in says
    assert "made by other are then searched unchecked" not in says
    page.keyboard.press("Escape")
    page.locator("article[aria-label='Version v3'] >> text=Deploy …").click()
    says = words(page)
    assert "the vectors (82 of v1, 14 of v2) stay as they are and are searched" in says
    assert "2 vectors made by other are not searched: nothing connects them with v3." in says
    page.fill("#reason", "test")
    press(page, "Deploy anyway")
    until(
        page,
        "document.querySelector('#announce').textContent.includes('2 vectors made by other are not searched')",
    )


def test_no_rollback_is_offered_to_a_version_that_was_retired(
    upgraded: str, tmp_path: Path, visit: Visit
) -> None:
    asked(upgraded, "deploy", version="v3", force="test")
    asked(upgraded, "backfill", budget="all", order="oldest", anyway=True)
    wait_for_jobs(upgraded)
    with Workspace(tmp_path / "shop", "cpu") as space:
        space.retire("v1")
    page = visit(upgraded, "#versions")
    page.locator("#roll-back").click()
    words(page)
    press(page, "Roll back to v2")
    until(page, "document.querySelector('#announce').textContent.startsWith('Rolled back to v2.')")
    page.wait_for_selector("article[aria-label='Version v2'].deployed")
    assert page.locator("#roll-back").count() == 0


def test_imported_vectors_without_images_are_told_and_not_promised(
    shop: Path, tmp_path: Path, visit: Visit
) -> None:
    copy = tmp_path / "shop"
    shutil.copytree(shop, copy)
    with Workspace(copy, "cpu") as space:
        width = next(one.width for one in space.gallery.versions() if one.name == "v1")
        space.gallery.create_version("old", width)
        space.gallery.upsert("old", list("abcde"), np.eye(5, width, dtype=np.float32))
    with serving(copy) as address:
        page = visit(address, "#versions")
        page.wait_for_selector("#backfill .note")
        seen = page.locator("#backfill").inner_text()
        assert "There is nothing to re-embed with v1" in seen
        assert "5 older vectors have no image here" in seen
        assert page.locator("#budget").count() == 0


def test_a_backfill_says_what_it_replaces_and_costs_and_asks(upgraded: str, visit: Visit) -> None:
    page = visit(upgraded, "#versions")
    page.fill("#budget", "50%")
    page.locator("button", has_text="Start backfill").click()
    says = words(page)
    assert "Re-embed 41 vectors with v2?" in says
    assert "41 of 82 older vectors are replaced by ones that v2 makes" in says
    assert "The old vectors are not kept" in says
    assert "41 images are read and embedded: about" in says  # the last backfill was measured
    assert (
        page.evaluate("document.activeElement.textContent") == "Cancel"
    )  # Enter, pressed twice, replaces nothing
    page.keyboard.press("Escape")
    page.fill("#rate", "2")
    page.locator("button", has_text="Start backfill").click()
    assert "2 per second at most: 21 s or longer" in words(page)
    page.screenshot(path=Path(__file__).parents[2] / "build" / "screenshots" / "backfill-asks.png")
    assert told(upgraded, "status")["vectors"]["v2"] == 14  # nothing happened so far
    press(page, "Replace 41 vectors")
    page.wait_for_selector("#backfill progress")
    assert (
        page.evaluate("document.activeElement.id") == "backfill"
    )  # the focus does not fall off the page
    page.locator("#roll-back").click()
    assert "The backfill that is under way ends" in words(page)
    press(page, "Roll back to v1")
    until(page, "document.querySelector('#announce').textContent.includes('The backfill ends.')")
    page.wait_for_selector("#jobs .chip.cancelled")
    until(
        page,
        "document.querySelector('#announce').textContent.includes('The backfill job ended: cancelled.')",
    )
    said = page.locator(
        "#announce p"
    ).all_text_contents()  # neither is cut off by the other, whichever came first
    assert any(
        one.startswith("Rolled back to v1.") and one.endswith("The backfill ends.") for one in said
    )


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ("250%", "“250%” is more than everything"),
        ("0%", "“0%” is nothing"),
        ("0", "“0” is nothing"),
        ("1.5", "no whole number"),
        ("some", "“some” is neither"),
        ("", "Nothing is written there"),
    ],
)
def test_a_wrong_budget_is_told_where_it_was_written(
    site: str, visit: Visit, budget: str, says: str
) -> None:
    page = visit(site)
    page.route("**/v1/backfill", as_if_there_were_older_ones)
    page.goto(f"{site}/#versions")
    page.fill("#budget", budget)
    page.keyboard.press("Enter")
    problem = page.wait_for_selector(".backfill-form .problem").inner_text()
    assert says in problem
    assert "above 0% and up to 100%" in problem
    assert page.evaluate("document.activeElement.id") == "budget"
    assert page.locator("#budget").get_attribute("aria-invalid") == "true"
    assert not page.locator("#confirm").is_visible()


def as_if_there_were_older_ones(route: Any) -> None:
    answer = route.fetch()
    outlook = {
        "version": "v1",
        "could": 9,
        "older": 9,
        "newer": {},
        "looked_at": 9,
        "without_image": 0,
    }
    route.fulfill(response=answer, json={**answer.json(), "outlook": outlook})


def test_an_emptied_gallery_is_drawn_as_empty(shop: Path, tmp_path: Path, visit: Visit) -> None:
    copy = tmp_path / "shop"
    shutil.copytree(shop, copy)
    with serving(copy) as address:
        told(address, "history")
        ids = [item["id"] for item in told(address, "items?limit=500")["items"]]
        asked(address, "items/delete", ids=ids)
        page = visit(address, "#versions")
        label = page.wait_for_selector("#history svg[role=img]").get_attribute("aria-label")
        assert "v1: 100 % at first. The gallery is empty now" in label
        assert "The gallery is empty now." in page.locator("#history").inner_text()
        assert "%\xa0now" not in page.locator("#history").inner_text().replace(" ", "\xa0")
        assert (
            "The gallery is empty: there is nothing to re-embed."
            in page.locator("#backfill").inner_text()
        )
        assert "NaN" not in page.locator("#history").inner_html()


def test_a_version_is_deployed_with_queries_by_two_models(
    shop: Path, tmp_path: Path, visit: Visit, query: Path
) -> None:
    copy = tmp_path / "shop"
    shutil.copytree(shop, copy)
    with Workspace(copy, "cpu") as space:
        passed_with_two_models(space, "v3")
    with serving(copy) as address:
        page = visit(address, "#versions")
        card = page.locator("article[aria-label='Version v3']")
        card.locator(".gain").wait_for()
        scale = [" ".join(one.split()) for one in card.locator(".gain li").all_inner_texts()]
        assert scale == ["now 50.0 %", "at once 55.0 %", "all re-embedded 60.0 %"]
        assert "50 % of the whole gain is reached at once." in card.inner_text()
        card.locator("summary", has_text="What the check found").click()
        told_alone = card.locator(".evidence li", has_text="with one model per query").inner_text()
        assert "on vectors of v1 with one model per query: 40.0" in told_alone
        card.locator("button", has_text="Deploy …").click()
        assert "Its check passed." in words(page)
        press(page, "Deploy v3")
        until(page, "document.querySelector('#announce').textContent.startsWith('v3 is deployed.')")
        assert told(address, "status")["searched_by"] == {"v1": ["v3", "v1"]}
        told_cost = "Vectors of v1 are asked by v3 and v1: one more forward pass per query."
        until(page, f"document.querySelector('#overview').textContent.includes('{told_cost}')")
        search = visit(address)
        search.set_input_files("#file", query)
        hit = search.locator("#results .hit").first
        hit.wait_for()
        note = search.locator("#results-note").inner_text()
        assert "scores are cosines, or sums of two where vectors are translated" in note
        assert "query vector by v3 and v1" in " ".join(note.split())
        assert hit.locator(".scale").inner_text() == "score"
        page.locator("#roll-back").click()
        press(page, "Roll back to v1")
        until(
            page,
            "!document.querySelector('#overview').textContent.includes('one more forward pass')",
        )
        assert told(address, "status")["searched_by"] == {"v1": ["v1"]}


def test_a_refused_version_is_deployed_with_old_queries_for_old_vectors(
    shop: Path, tmp_path: Path, visit: Visit
) -> None:
    copy = tmp_path / "shop"
    shutil.copytree(shop, copy)
    with serving(copy) as address:
        page = visit(address, "#versions")
        card = page.locator("article[aria-label='Version v3']")
        card.locator("button", has_text="Deploy, old queries …").click()
        says = words(page)
        assert "Deploy v3, and keep old queries for old vectors?" in says
        assert (
            "they find what they find now. Once items have new vectors, that costs one more forward pass"
            in says
        )
        press(page, "Deploy v3")
        until(page, "document.querySelector('#announce').textContent.startsWith('v3 is deployed.')")
        seen = told(address, "status")
        assert (seen["deployed"], seen["searched_by"]) == ("v3", {"v1": ["v1"]})
        assert told(address, "deployments")[0]["reason"] is None  # nothing was forced


def test_next_steps_of_a_check_are_buttons_where_the_page_can_do_them(
    upgraded: str, visit: Visit, tmp_path: Path
) -> None:
    found = last_check(tmp_path / "shop", "v4")
    assert found is not None
    steps = (
        NextStep("check", {"version": "v4", "tolerance": 0.2}),
        NextStep("check", {"version": "v4", "data": ...}),
    )
    save_check(tmp_path / "shop", replace(found, next_steps=steps))
    page = visit(upgraded, "#versions")
    card = page.locator("article[aria-label='Version v4']")
    card.locator("summary", has_text="What the check found").click()
    until(page, "document.querySelector('.steps button') !== null")
    assert card.locator(".steps li").count() == 2
    assert card.locator(".steps button").all_inner_texts() == [
        "Check v4 (tolerance 0.2)"
    ]  # the other needs files
    assert "the operator can do this" in card.locator(".steps li").last.inner_text()
    with page.expect_request(lambda request: request.method == "POST") as sent:
        card.locator(".steps button").click()
    assert sent.value.url == f"{upgraded}/v1/versions/v4/check"
    assert sent.value.post_data_json == {"tolerance": 0.2}
    until(
        page,
        "document.querySelector('#announce').textContent.includes('The check of v4 was started.')",
    )
    wait_for_jobs(upgraded)


def test_an_upgrade_is_trained_from_the_board(tmp_path: Path, visit: Visit) -> None:
    settings = Settings(
        "tiny", capacity=64, recipe=Recipe(epochs=1, milestones=(), batch_size=8), device="cpu"
    )
    with Workspace.create(tmp_path / "shop", device="cpu") as space:
        space.train(
            open_images(pictures(tmp_path / "photos")),
            settings,
            create_method("polaris"),
            progress=False,
        )
        space.index(catalogue(tmp_path / "photos"))
    with serving(tmp_path / "shop") as address:
        page = visit(address, "#versions")
        page.locator("#upgrade button").click()
        assert "trained from v1" in words(page)
        press(page, "Train")
        until(
            page,
            "document.querySelector('#announce').textContent.includes('The upgrade job ended: done.')",
        )
        page.wait_for_selector("[aria-label='Version v2']")
        assert told(address, "status")["deployed"] == "v1"
