"""Searching on the page, as a visitor does."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from glyph_shop import CHARACTERS, NASTY_ID, NASTY_LABEL, label_of
from real_service import patient, serving
from waiting import until

Visit = Callable[..., Any]
SCORED = ".hit .score"

# hands a file to the page the way a drag or a paste does
_GIVE = """([event, target, content]) => {
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], "given.png", {type: "image/png"}));
  const options = {bubbles: true, cancelable: true};
  const made = event === "paste"
    ? new ClipboardEvent(event, {...options, clipboardData: transfer})
    : new DragEvent(event, {...options, dataTransfer: transfer});
  document.querySelector(target).dispatchEvent(made);
}"""


def labels(page: Any) -> list[str]:
    found: list[str] = page.locator(".hit .label").all_text_contents()
    return found


def give(page: Any, event: str, target: str, query: Path) -> None:
    page.evaluate(_GIVE, [event, target, base64.b64encode(query.read_bytes()).decode()])


def test_a_chosen_file_is_searched_and_shown_with_score_label_and_version(
    site: str, visit: Visit, query: Path
) -> None:
    page = visit(site)
    page.set_input_files("#file", query)
    page.wait_for_selector(SCORED)
    assert page.locator(".hit").count() == 12
    scores = [float(text) for text in page.locator(SCORED).all_text_contents()]
    assert scores == sorted(scores, reverse=True)
    assert labels(page)[0] == label_of(CHARACTERS[5])
    assert set(page.locator(".hit .badge").all_text_contents()) == {"v1"}
    assert page.locator("#query-name").inner_text() == "phi.png"
    assert page.locator("#preview img").evaluate("image => image.naturalWidth") == 64
    note = page.locator("#results-note").inner_text()
    assert note.startswith("12 results in ")
    assert note.endswith("v1")


def test_a_score_says_what_it_is(site: str, visit: Visit) -> None:
    page = visit(site)
    page.locator(".hit").first.click()
    page.wait_for_selector(SCORED)
    hit = page.locator(".hit").first
    assert hit.locator(".scale").inner_text() == "cosine"
    assert "cosine between the vectors" in hit.locator(".measure").get_attribute("title")
    assert ", cosine 0." in hit.get_attribute("aria-label")
    assert "scores are cosines" in page.locator("#results-note").inner_text()

    def as_if_calibrated(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=json.dumps({**answer.json(), "calibrated": True}))

    page.route("**/v1/item/similar?*", as_if_calibrated)
    page.select_option("#count", "6")
    until(page, "document.querySelectorAll('.hit').length === 6")
    assert hit.locator(".scale").inner_text() == "relative"
    assert "of one class" in hit.locator(".measure").get_attribute("title")
    assert ", relative score 0." in hit.get_attribute("aria-label")
    assert "scores are relative" in page.locator("#results-note").inner_text()


def test_what_is_probably_not_in_the_catalogue_stands_apart(site: str, visit: Visit) -> None:
    page = visit(site)
    page.locator(".hit").first.click()
    page.wait_for_selector(SCORED)
    assert "run a check" in page.locator("#results-note").inner_text()
    unlikely = {4, 5}

    def as_if_measured(route: Any) -> None:
        answer = route.fetch().json()
        for row, hit in enumerate(answer["hits"]):
            hit["unlikely"] = row in unlikely
        route.fulfill(json={**answer, "thresholds": {"v1": 0.5}})

    page.route("**/v1/item/similar?*", as_if_measured)
    page.select_option("#count", "6")
    until(page, "document.querySelectorAll('.hit').length === 6")
    assert "run a check" not in page.locator("#results-note").inner_text()
    assert not page.locator(
        ".group"
    ).count()  # the best hit reaches the threshold: the others may be right as well
    unlikely.update(range(12))
    page.select_option("#count", "12")
    page.wait_for_selector(".group")
    assert page.locator(".group ~ li .hit").count() == 12
    assert page.locator(".group h3").inner_text() == "Probably not in the catalogue"
    page.locator(".hit").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".hit").nth(1).evaluate("hit => hit === document.activeElement")


def test_versions_that_are_not_searched_are_named(site: str, visit: Visit) -> None:
    page = visit(site)

    def as_if_one_was_left_out(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=json.dumps({**answer.json(), "left_out": ["foreign"]}))

    page.route(
        "**/v1/item/similar?*", as_if_one_was_left_out
    )  # a file that is sent cannot be sent on from here
    page.locator(".hit").first.click()
    page.wait_for_selector(SCORED)
    note = page.locator("#results-note").inner_text()
    assert "not searched" in note
    assert note.rstrip().endswith("foreign")


def test_pictures_of_results_load(site: str, visit: Visit, query: Path) -> None:
    page = visit(site)
    page.set_input_files("#file", query)
    page.wait_for_selector(SCORED)
    until(
        page,
        "[...document.querySelectorAll('.hit img')].filter(i => i.naturalWidth > 0).length >= 12",
    )


def test_dropping_anywhere_searches_and_shows_where(site: str, visit: Visit, query: Path) -> None:
    page = visit(site, "#versions")
    page.wait_for_selector(".cell")
    give(page, "dragenter", "#matrix", query)
    assert page.locator("#veil").evaluate("veil => veil.classList.contains('shown')")
    give(page, "drop", "#matrix", query)
    page.wait_for_selector(SCORED)
    assert page.locator("#query-name").inner_text() == "given.png"
    assert not page.locator("#veil").evaluate("veil => veil.classList.contains('shown')")


def test_pasting_an_image_searches_and_pasting_text_does_not(
    site: str, visit: Visit, query: Path
) -> None:
    page = visit(site)
    page.wait_for_selector(".hit")
    left_alone = page.evaluate(
        """() => {
          const transfer = new DataTransfer();
          transfer.setData("text/plain", "only words");
          const options = {bubbles: true, cancelable: true, clipboardData: transfer};
          return document.querySelector("#label").dispatchEvent(new ClipboardEvent("paste", options));
        }"""
    )
    assert left_alone
    assert page.locator(SCORED).count() == 0
    give(page, "paste", "body", query)
    page.wait_for_selector(SCORED)
    assert labels(page)[0] == label_of(CHARACTERS[5])


def test_more_like_this_by_keyboard_and_back(site: str, visit: Visit, query: Path) -> None:
    page = visit(site)
    page.set_input_files("#file", query)
    page.wait_for_selector(SCORED)
    page.locator(".hit").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    chosen = page.evaluate("document.activeElement.dataset.id")
    assert chosen == page.locator(".hit").nth(1).get_attribute("data-id")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('#query-note').textContent.includes('More like')")
    page.wait_for_selector(SCORED)
    assert unquote(page.url.partition("#like=")[2]) == chosen
    assert chosen not in [hit.get_attribute("data-id") for hit in page.locator(".hit").all()]
    page.go_back()
    until(page, "document.querySelector('#query-name').textContent === 'phi.png'")


def test_arrows_move_by_rows_and_only_one_result_is_in_the_tab_order(
    site: str, visit: Visit
) -> None:
    page = visit(site)
    page.locator(".hit").first.focus()
    columns = page.evaluate(
        "getComputedStyle(document.querySelector('#results')).gridTemplateColumns.split(' ').length"
    )
    page.keyboard.press("ArrowDown")
    ids = [hit.get_attribute("data-id") for hit in page.locator(".hit").all()]
    assert page.evaluate("document.activeElement.dataset.id") == ids[columns]
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.dataset.id") == ids[-1]
    assert page.locator(".hit[tabindex='0']").count() == 1


def test_keys_lead_to_search_help_and_versions(site: str, visit: Visit) -> None:
    page = visit(site, "#versions")
    page.wait_for_selector(".cell")
    page.keyboard.press("/")
    until(page, "document.activeElement.id === 'file'")
    assert page.locator("#search-view").is_visible()
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#keys").is_visible()
    page.keyboard.press("g")
    page.keyboard.press("v")
    page.wait_for_selector(".cell")


def test_the_skip_link_comes_first_and_leads_to_the_content(site: str, visit: Visit) -> None:
    page = visit(site)
    page.wait_for_selector(".hit")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_results_and_label_narrow_the_search(site: str, visit: Visit, query: Path) -> None:
    page = visit(site)
    page.set_input_files("#file", query)
    page.wait_for_selector(SCORED)
    page.select_option("#count", "6")
    until(page, "document.querySelectorAll('.hit').length === 6")
    wanted = label_of(CHARACTERS[3])
    page.fill("#label", wanted)
    page.keyboard.press("Enter")
    shown = "[...document.querySelectorAll('.hit .label')].map(label => label.textContent)"
    until(page, f"label => {shown}.filter(one => one === label).length === 6", wanted)
    page.fill("#label", "no such label")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Nothing found with this label")


def test_results_and_label_narrow_the_gallery(site: str, visit: Visit) -> None:
    page = visit(site)
    until(page, "document.querySelectorAll('.hit').length === 12")
    page.select_option("#count", "6")
    until(page, "document.querySelectorAll('.hit').length === 6")
    page.locator("#more").click()
    until(page, "document.querySelectorAll('.hit').length === 12")
    wanted = label_of(CHARACTERS[3])
    page.select_option("#count", "48")
    page.fill("#label", wanted)
    page.keyboard.press("Enter")
    shown = "[...document.querySelectorAll('.hit .label')].map(label => label.textContent)"
    until(page, f"label => {shown}.length === 6 && {shown}.every(one => one === label)", wanted)
    assert not page.locator("#more").is_visible()
    page.fill("#label", "no such label")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Nothing found with this label")


def test_a_label_is_looked_for_over_pages_that_hold_none_of_it(site: str, visit: Visit) -> None:
    page = visit(site)
    page.wait_for_selector(".hit")
    asked: list[str] = []

    def as_if_a_page_were_short(route: Any) -> None:
        asked.append(route.request.url)
        answer = route.fetch()
        items = answer.json()["items"] if len(asked) in (2, 14) else []
        body = {"items": items[:1], "next": f"greek/{len(asked)}", "looked_at": 5000}
        route.fulfill(response=answer, body=json.dumps(body))

    page.route("**/v1/items?*", as_if_a_page_were_short)
    page.fill("#label", label_of(CHARACTERS[3]))
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('.hit').length === 1")
    assert len(asked) == 10  # then the visitor is asked
    assert "after=greek%2F1&" in asked[1]
    page.locator("#more").click()
    until(page, "document.querySelectorAll('.hit').length === 2")
    assert len(asked) == 20
    page.locator("#more").click()
    page.wait_for_selector("text=None among the next 50,000 items")
    assert page.locator(".hit").count() == 2


def test_ids_and_labels_with_markup_are_text(site: str, visit: Visit) -> None:
    page = visit(site)
    page.wait_for_selector(".hit")
    while page.locator(".hit", has_text=NASTY_LABEL).count() == 0:
        page.locator("#more").click()
        page.wait_for_timeout(200)
    hit = page.locator(".hit", has_text=NASTY_LABEL)
    assert hit.locator(".label").inner_text() == NASTY_LABEL
    assert hit.get_attribute("data-id") == NASTY_ID
    shown, whole = (hit.locator(part).first.bounding_box() for part in (".id", ".id bdi"))
    assert whole["width"] > shown["width"]
    assert (
        abs(whole["x"] + whole["width"] - shown["x"] - shown["width"]) < 2
    )  # the end of a long id is seen
    hit.click()
    until(
        page, "id => document.querySelector('#query-note').textContent.includes(id)", arg=NASTY_ID
    )
    page.wait_for_selector(SCORED)
    assert page.locator("#query-name").inner_text() == NASTY_LABEL
    assert page.locator("main b, main script").count() == 0


def test_a_broken_image_says_what_to_do(site: str, visit: Visit, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    page = visit(site)
    page.set_input_files("#file", broken)
    problem = page.wait_for_selector("#problem .problem")
    assert len(problem.inner_text()) > 20
    assert page.locator("#results .empty").is_visible()


def test_a_format_that_cannot_be_searched_gets_one_message(
    site: str, visit: Visit, tmp_path: Path
) -> None:
    drawing = tmp_path / "logo.svg"
    drawing.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    page = visit(site)
    page.wait_for_selector(".hit")
    page.set_input_files("#file", drawing)
    problem = page.wait_for_selector("#problem .problem").inner_text()
    assert problem.startswith("logo.svg cannot be used for a search")
    assert "JPEG, PNG, WebP" in problem
    assert "first bytes" not in problem
    drawing.with_name("empty.jpg").touch()
    page.set_input_files("#file", drawing.with_name("empty.jpg"))
    page.wait_for_selector("#problem .problem:has-text('empty.jpg is empty')")
    page.wait_for_selector(".hit")  # the gallery is there as before
    assert page.locator("#results .empty").count() == 0
    assert "failed" not in page.locator("#search-view").inner_text()


def test_the_first_items_are_of_many_labels_and_badges_are_whole(site: str, visit: Visit) -> None:
    page = visit(site)
    page.wait_for_selector(".hit")
    assert len(set(labels(page))) == 12
    clipped = "[...document.querySelectorAll('.hit .badge')].filter(one => one.scrollWidth > one.clientWidth).length"
    assert page.evaluate(clipped) == 0


def test_an_item_is_shown_large_beside_the_query_and_can_be_deleted(
    shop: Path, tmp_path: Path, visit: Visit, query: Path
) -> None:
    copy = tmp_path / "shop"
    shutil.copytree(shop, copy)
    with serving(copy) as address:
        page = visit(address)
        page.set_input_files("#file", query)
        page.wait_for_selector(SCORED)
        first = page.locator(".hit").first
        name, label = first.get_attribute("data-id"), first.locator(".label").inner_text()
        first.focus()
        page.keyboard.press("i")
        item = page.locator("#item")
        assert item.locator("h2").inner_text() == label
        until(page, "document.querySelectorAll('#item img').length === 2")
        until(
            page, "[...document.querySelectorAll('#item img')].every(one => one.naturalWidth > 0)"
        )
        assert item.locator("#item-id").input_value() == name
        frame, inner = (item.locator(part).bounding_box() for part in (".picture", ".picture img"))
        assert frame == inner  # nothing of the picture is cut
        assert "cosine" in item.inner_text()
        item.locator("#copy-id").click()
        until(page, "document.querySelector('#item [role=status]').textContent !== ''")
        page.keyboard.press("Escape")
        page.locator("li:has(.hit) .details").first.click(force=True)  # the same by mouse
        page.set_viewport_size({"width": 390, "height": 844})  # the buttons stack
        buttons = item.locator(".buttons button").all()
        heights = [button.bounding_box()["y"] for button in buttons]
        assert heights == sorted(set(heights))
        assert [button.inner_text() for button in buttons][-2:] == ["Close", "Delete …"]
        item.locator("button", has_text="Delete").click()
        page.locator("#confirm button", has_text="Delete").click()
        until(
            page,
            "id => !document.querySelector(`.hit[data-id='${id}']`) && document.querySelector('.hit')",
            name,
        )
        assert f"{name} was deleted." in page.locator("#announce").inner_text()
        assert patient.get(f"{address}/v1/item", params={"id": name}).status_code == 404


def test_two_versions_answer_one_query_side_by_side(site: str, visit: Visit, query: Path) -> None:
    page = visit(site)
    page.set_input_files("#file", query)
    page.wait_for_selector(SCORED)
    alone = [hit.get_attribute("data-id") for hit in page.locator(".hit").all()]
    page.select_option("#against", "v3")
    until(page, "document.querySelectorAll('#compared section').length === 2")
    deployed, other = (
        [hit.get_attribute("data-id") for hit in column.locator(".hit").all()]
        for column in page.locator("#compared section").all()
    )
    assert deployed == alone
    with query.open("rb") as file:
        answer = patient.post(
            f"{site}/v1/search", params={"version": "v3", "k": 12}, files={"image": file}
        ).json()
    assert (answer["version"], [hit["id"] for hit in answer["hits"]]) == ("v3", other)
    assert (
        page.locator("#compared section").last.locator(".only").count()
        == len(set(other) - set(deployed))
        > 0
    )
    page.select_option("#against", "")
    until(
        page,
        "!document.querySelector('#compared section') && document.querySelectorAll('.hit').length === 12",
    )


def test_an_item_that_is_gone_is_a_sentence_not_a_blank_page(site: str, visit: Visit) -> None:
    page = visit(site, "#like=no/such/item")
    assert "no/such/item" in page.wait_for_selector("#problem .problem").inner_text()


def test_colours_follow_the_system_and_the_choice_is_kept(site: str, visit: Visit) -> None:
    def ground(page: Any) -> str:
        found: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return found

    page = visit(site, color_scheme="dark")
    page.wait_for_selector(".hit")
    dark = ground(page)
    page.locator("#theme").click()  # light
    light = ground(page)
    assert light != dark
    page.reload()
    page.wait_for_selector(".hit")
    assert ground(page) == light
    page.locator("#theme").click()  # dark
    assert ground(page) == dark


def test_a_phone_shows_two_columns_large_targets_and_nothing_sticks_out(
    site: str, visit: Visit, query: Path
) -> None:
    page = visit(site, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    assert page.locator("label:has(#camera)").is_visible()
    page.set_input_files("#camera", query)
    page.wait_for_selector(SCORED)
    assert not page.locator(
        "label:has(#camera)"
    ).is_visible()  # the query folds, results come first
    assert page.locator(".hit").first.bounding_box()["y"] < 844 / 2
    page.locator("#unfold").click()
    assert page.locator("#unfold").get_attribute("aria-expanded") == "true"
    assert page.locator("label:has(#camera)").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    small = page.evaluate(
        "[...document.querySelectorAll('button, .button, select, nav a')]"
        ".filter(e => e.offsetParent && e.getBoundingClientRect().height < 44).map(e => e.id || e.textContent)"
    )
    assert small == []
    page.goto(f"{site}/#versions")
    page.wait_for_selector(".cell", state="attached")
    page.locator("summary", has_text="Compatibility").click()  # folded at first
    page.wait_for_selector("#matrix .cell")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
