"""The upgrade board: what it shows, and what it lets an operator do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_service import patient, serving
from waiting import until

Visit = Callable[..., Any]


@pytest.fixture
def own(shop: Path, tmp_path: Path) -> Iterator[str]:
    """A service of its own, for tests that change something."""
    copy = tmp_path / "shop"
    shutil.copytree(shop, copy)
    with serving(copy) as address:
        yield address


def card(page: Any, name: str) -> Any:
    return page.locator(f"article[aria-label='Version {name}']")


def cell(page: Any, query: str, gallery: str) -> Any:
    return page.locator(f".cell[aria-label^='queries of {query} on vectors of {gallery}']")


def test_the_lineage_shows_versions_with_their_checks(site: str, visit: Visit) -> None:
    page = visit(site, "#versions")
    page.wait_for_selector(".version")
    names = page.locator(".version header .badge").all_text_contents()
    assert names == ["v4", "v3", "v2", "v1"]
    assert "deployed" in card(page, "v1").inner_text()
    assert "check passed" in card(page, "v2").inner_text()
    assert "check refused it" in card(page, "v3").inner_text()
    assert "evidence is missing" in card(page, "v4").inner_text()
    card(page, "v3").locator("summary").click()
    page.wait_for_selector("text=this is not above it")


def test_every_verdict_of_the_matrix_has_its_shape_and_its_words(site: str, visit: Visit) -> None:
    page = visit(site, "#versions")
    page.wait_for_selector(".cell")
    for query, verdict in (("v2", "compatible"), ("v3", "incompatible"), ("v4", "not decided")):
        box = cell(page, query, "v1")
        assert box.get_attribute("aria-label").endswith(f", {verdict}")
        assert box.locator(f"svg.mark.{verdict.replace(' ', '-')}").is_visible()
    shapes = {
        cell(page, query, "v1").locator("path").get_attribute("d") for query in ("v2", "v3", "v4")
    }
    assert len(shapes) == 3
    assert page.locator(".matrix td.none").count() == 9


def test_a_cell_says_what_it_means_and_arrows_lead_to_the_next(site: str, visit: Visit) -> None:
    page = visit(site, "#versions")
    page.wait_for_selector(".cell")
    cell(page, "v2", "v1").focus()
    words = page.locator("#cell-words")
    assert "60.0 %" in words.inner_text()
    assert "+10.0 points (between +5.0 and +15.0)" in words.inner_text()
    page.keyboard.press("ArrowRight")
    assert "on its own vectors: 70.0 %" in words.inner_text()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")  # over a cell that was not measured
    assert page.evaluate("document.activeElement.dataset.cell") == "v3\nv3"
    assert page.locator(".cell[tabindex='0']").count() == 1


def test_negative_flips_are_shown_as_pictures(site: str, visit: Visit) -> None:
    page = visit(site, "#versions")
    page.wait_for_selector("#upgrade-version")
    page.select_option("#upgrade-version", "v3")
    page.wait_for_selector(".flips figure.wrong")
    page.locator(".flips").first.scroll_into_view_if_needed()
    until(page, "document.querySelector('.flips li').querySelectorAll('img').length === 3")
    first = page.locator(".flips li").first
    assert (
        first.locator(".asked strong").inner_text() == first.locator(".right strong").inner_text()
    )
    assert (
        first.locator(".asked strong").inner_text() != first.locator(".wrong strong").inner_text()
    )
    told = page.locator("#flips").inner_text()
    cell = patient.get(f"{site}/v1/versions/v3/check").json()["cells"][0]
    assert f"Get worse: {cell['negative_flips']} of 64 searches on vectors of v1" in told
    assert f"Get better: {cell['positive_flips']} of 64 searches on vectors of v1" in told
    worst = cell["classes"][0]
    assert worst["lost"] > worst["won"]
    hardest = page.locator(".hardest li").first.inner_text()
    assert worst["label"] in hardest
    assert f"loses {worst['lost']} of {worst['queries']}" in hardest
    better = page.locator(".flips").last.locator("li").first
    assert cell["positive_flips"] > 0
    assert (
        better.locator(".asked strong").inner_text() == better.locator(".right strong").inner_text()
    )
    assert "v3" in better.locator(".right figcaption").inner_text()


def test_a_check_that_passes_by_its_tolerance_does_not_claim_a_gain(
    site: str, visit: Visit
) -> None:
    def tolerant(route: Any) -> None:
        answer = route.fetch()
        check = answer.json()
        check |= {
            "tolerance": 0.05,
            "cells": [{**check["cells"][0], "difference": 0.02, "low": -0.04, "high": 0.08}],
        }
        route.fulfill(response=answer, json=check)

    page = visit(site, "#versions")
    page.wait_for_selector("#upgrade-version")
    page.select_option("#upgrade-version", "v3")
    page.route("**/v1/versions/v2/check", tolerant)
    page.select_option("#upgrade-version", "v2")
    page.wait_for_selector("#verdict .sentence:has-text('v2 may win 2 of 100 searches')")
    assert "accepts a loss of less than 5 points" in page.locator("#verdict").inner_text()


def test_a_sentence_says_first_what_the_upgrade_does(site: str, visit: Visit) -> None:
    page = visit(site, "#versions")
    page.wait_for_selector("#upgrade-version")
    page.select_option("#upgrade-version", "v2")
    said = "document.querySelector('#verdict .sentence')?.textContent"
    wins = "v2 wins 10 of 100 searches on stored vectors; re-embedding everything gains 20 points."
    until(
        page, f"words => {said} === words", wins
    )  # 50 % by itself, 60 % crossed, 70 % re-embedded
    assert (
        "between +5.0 and +15.0 points against v1's own queries"
        in page.locator("#verdict").inner_text()
    )
    page.select_option("#upgrade-version", "v3")
    until(page, f"{said}?.startsWith('v3 loses ')")
    cross, old = (cell(page, name, "v1").locator("span").inner_text() for name in ("v3", "v1"))
    lost = float(old) - float(cross)
    shown = float(
        page.locator("#verdict .sentence").inner_text().split(" loses ")[1].split(" of 100")[0]
    )
    assert abs(shown - lost) < 0.11  # the matrix says the same, rounded
    assert "check refused it" in page.locator("#verdict").inner_text()


def test_understanding_comes_before_operating_and_a_link_leads_over(
    site: str, visit: Visit
) -> None:
    page = visit(site, "#versions")
    page.wait_for_selector(".cell")
    understand, operate = (
        page.locator(f"section[aria-labelledby={name}-title]") for name in ("understand", "operate")
    )
    assert understand.locator("h3").all_inner_texts()[0] == "What the upgrade does"
    assert understand.locator("button", has_text="Deploy").count() == 0
    assert operate.locator("button", has_text="Deploy").count() > 0
    page.locator("a", has_text="Operate").click()
    assert page.evaluate("document.activeElement.id") == "operate-title"
    assert page.url.endswith("#versions")


def test_the_share_of_vectors_is_drawn_with_words(site: str, visit: Visit) -> None:
    page = visit(site, "#versions")
    drawing = page.wait_for_selector("#history svg[role=img]")
    assert "v1: 100 % at first" in drawing.get_attribute("aria-label")


def test_deploy_asks_says_what_happens_and_can_be_rolled_back(own: str, visit: Visit) -> None:
    page = visit(own, "#versions")
    card(page, "v2").locator("text=Deploy …").click()
    dialog = page.locator("#confirm")
    assert "Queries are embedded by v2 from now on, instead of v1." in dialog.inner_text()
    assert "96 of v1" in dialog.inner_text()
    assert dialog.locator("textarea").count() == 0
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert "deployed" not in card(page, "v2").locator("header").inner_text()
    card(page, "v2").locator("text=Deploy …").click()
    dialog.locator("button", has_text="Deploy v2").click()
    page.wait_for_selector("article[aria-label='Version v2'].deployed")
    until(page, "document.activeElement.id === 'overview'")  # the focus does not fall off the page
    assert page.locator("#where").inner_text().endswith("v2 deployed")
    assert "deployed\nv2" in page.locator("#deployments").inner_text()
    page.locator("#roll-back").click()
    page.wait_for_selector("#confirm[open]")
    assert "Queries are embedded by v1 from now on, instead of v2." in dialog.inner_text()
    assert "unchecked" not in dialog.inner_text()  # v2 has made no vector
    dialog.locator("button", has_text="Roll back to v1").click()
    page.wait_for_selector("article[aria-label='Version v1'].deployed")
    assert page.locator("#deployments li").count() == 2
    assert "rolled back to" in page.locator("#deployments li").first.inner_text()


def test_what_the_check_refused_needs_a_reason(own: str, visit: Visit) -> None:
    page = visit(own, "#versions")
    card(page, "v3").locator("text=Deploy …").click()
    dialog = page.locator("#confirm")
    assert "Its check refused it" in dialog.inner_text()
    dialog.locator("button", has_text="Deploy anyway").click()
    assert dialog.is_visible()  # no reason, no deployment
    reason = "<i>the old index burnt down</i>"
    dialog.locator("#reason").fill(reason)
    dialog.locator("button", has_text="Deploy anyway").click()
    page.wait_for_selector("article[aria-label='Version v3'].deployed")
    assert reason in page.locator("#deployments").inner_text()


def test_where_the_gate_refuses_meanwhile_the_dialog_says_so_and_asks_for_a_reason(
    own: str, visit: Visit
) -> None:
    page = visit(own)

    def as_if_passed(route: Any) -> None:
        answer = route.fetch()
        versions = [
            {**one, "check": "pass"} if one["name"] == "v4" else one for one in answer.json()
        ]
        route.fulfill(response=answer, body=json.dumps(versions))

    page.route("**/v1/versions", as_if_passed)
    page.goto(f"{own}/#versions")
    card(page, "v4").locator("text=Deploy …").click()
    dialog = page.locator("#confirm")
    dialog.locator("button", has_text="Deploy v4").click()
    page.wait_for_selector("#confirm #reason")
    assert "did not pass" in dialog.inner_text()
    dialog.locator("button", has_text="Cancel").click()
    assert "v1 deployed" in page.locator("#where").inner_text()


class SlowJob:
    """Answers "running" for a job that may have ended long ago, until it is let go: the page is looked at in peace."""

    def __init__(self) -> None:
        self.may_end = False

    def __call__(self, route: Any) -> None:
        answer = route.fetch()
        jobs = answer.json()
        if not self.may_end:
            jobs = [
                {**job, "state": "running", "ended": None, "message": "", "error": None}
                for job in jobs
            ]
        route.fulfill(response=answer, body=json.dumps(jobs))


def test_a_check_runs_as_a_job_and_its_outcome_appears(own: str, visit: Visit) -> None:
    page = visit(own, "#versions")
    slow = SlowJob()
    page.route("**/v1/jobs", slow)
    pressed = card(page, "v2").locator("[data-job]")
    pressed.click()
    until(page, "document.querySelector('.busy')?.textContent.startsWith('Checking …')")
    button = "article[aria-label='Version v2'] [data-job]"
    until(page, f'document.querySelector("{button}").getAttribute("aria-disabled") === "true"')
    page.wait_for_selector("#jobbar progress")
    assert page.locator("#jobbar strong").inner_text() == "check v2"
    page.goto(f"{own}/#search")
    bottom = page.locator("#jobbar").evaluate(
        "bar => window.innerHeight - bar.getBoundingClientRect().bottom"
    )
    assert bottom == 0  # it stays in view
    page.goto(f"{own}/#versions")
    slow.may_end = True
    page.wait_for_selector("#jobs .chip.done")
    until(
        page,
        "document.querySelector('#announce').textContent.includes('The check job ended: done.')",
    )
    assert page.locator(".notice", has_text="The check job ended").is_visible()
    while page.locator(".notice").count():
        page.locator(".notice button").last.click()
    assert (
        "The check job ended" in page.locator("#announce").inner_text()
    )  # still there for a screen reader
    until(page, "document.querySelector('#jobbar').hidden && !document.querySelector('.busy')")
    until(
        page,
        "!document.querySelector(\"article[aria-label='Version v2'] header\").textContent.includes('passed')",
    )


def test_a_backfill_shows_its_progress_and_its_end(own: str, visit: Visit) -> None:
    page = visit(own, "#versions")
    card(page, "v2").locator("text=Deploy …").click()
    page.locator("#confirm button", has_text="Deploy v2").click()
    page.wait_for_selector("#budget")
    page.fill("#budget", "all")
    page.select_option("#order", "oldest")
    page.fill("#rate", "24")
    page.locator("button", has_text="Start backfill").click()
    page.locator("#confirm button", has_text="Replace").click()
    page.wait_for_selector("#backfill progress")
    assert page.locator("#budget").count() == 0  # one at a time
    until(
        page,
        "/^[1-9][0-9]* of 96$/.test(document.querySelector('#backfill .progress span')?.textContent)",
        seconds=60,
    )
    page.screenshot(
        path=Path(__file__).parents[2] / "build" / "screenshots" / "backfill-under-way.png",
        full_page=True,
    )
    page.wait_for_selector("#jobs .chip.done")
    until(page, "document.querySelector('#overview').textContent.includes('96 (100 %)')")
    assert page.locator("#overview .legend .badge").all_text_contents() == ["v2"]
    until(page, "document.querySelector('#backfill').textContent.includes('nothing to re-embed')")
    assert page.locator("#history .area").count() == 2
    page.goto(f"{own}/#search")
    page.wait_for_selector(".hit")
    assert set(page.locator(".hit .badge").all_text_contents()) == {"v2"}


def test_a_backfill_can_be_cancelled(own: str, visit: Visit) -> None:
    page = visit(own, "#versions")
    card(page, "v2").locator("text=Deploy …").click()
    page.locator("#confirm button", has_text="Deploy v2").click()
    page.wait_for_selector("#budget")
    page.fill("#budget", "all")
    page.fill("#rate", "2")
    page.locator("button", has_text="Start backfill").click()
    page.locator("#confirm button", has_text="Replace").click()
    page.wait_for_selector("#backfill progress")
    page.locator("#backfill button", has_text="Cancel").click()
    page.wait_for_selector("#jobs .chip.cancelled")


def test_a_service_with_keys_asks_for_one_and_shows_what_the_role_may(
    shop: Path, tmp_path: Path, visit: Visit
) -> None:
    copy = tmp_path / "shop"
    shutil.copytree(shop, copy)
    keys = {role: _key(copy, role) for role in ("read", "admin")}
    with serving(copy) as address:
        page = visit(address)
        page.wait_for_selector("#sign-in[open]")
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("#sign-in >> text=not known here")
        page.fill("#key", keys["read"])
        page.keyboard.press("Enter")
        page.wait_for_selector(".hit")
        until(
            page, "[...document.querySelectorAll('.hit img')].some(i => i.naturalWidth > 0)"
        )  # as blobs
        assert page.evaluate("document.querySelector('.hit img').src").startswith("blob:")
        page.goto(f"{address}/#versions")
        page.wait_for_selector(".version")
        assert page.locator("text=Deploy …").count() == 0
        assert page.locator("#budget").count() == 0
        page.locator("#account").click()
        page.wait_for_selector("#sign-in[open]")
        assert page.evaluate("sessionStorage.length") == 0
        page.fill("#key", keys["admin"])
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Deploy …")
        assert page.evaluate("localStorage.length") == 0


def _key(workspace: Path, role: str) -> str:
    command = [
        sys.executable,
        "-m",
        "fixstar",
        "keys",
        "add",
        f"a-{role}",
        "--role",
        role,
        "-w",
        str(workspace),
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_service_that_went_away_is_told(
    shop: Path, tmp_path: Path, visit: Visit, query: Path
) -> None:
    copy = tmp_path / "shop"
    shutil.copytree(shop, copy)
    with serving(copy) as address:
        page = visit(address)
        page.wait_for_selector(".hit")
    page.set_input_files("#file", query)
    assert "does not answer" in page.wait_for_selector("#problem .problem").inner_text()
