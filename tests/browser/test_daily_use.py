"""Adding images, several examples, a part of the query, label suggestions and the drift map, as a visitor uses them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from glyph_shop import CHARACTERS, GALLERY, label_of, query_file
from PIL import Image
from real_service import patient, serving
from waiting import until

from fixstar.service.keys import Keys

Visit = Callable[..., Any]
SCORED = ".hit .score"
PHONE = {"viewport": {"width": 390, "height": 780}, "is_mobile": True, "has_touch": True}


@pytest.fixture
def own_site(shop: Path, tmp_path: Path) -> Iterator[str]:
    """A service of its own, for a test that changes what is stored."""
    shutil.copytree(shop, tmp_path / "shop")
    with serving(tmp_path / "shop") as address:
        yield address


def fits(page: Any) -> bool:
    """Nothing sticks out to the right."""
    found: bool = page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    return found


def test_a_folder_is_added_with_its_folders_as_labels(
    own_site: str, visit: Visit, tmp_path: Path
) -> None:
    folder = tmp_path / "catalogue"
    for name, character in (("eta", 6), ("theta", 7)):
        (folder / name).mkdir(parents=True)
        query_file(folder / name / "new.png", character)
    (folder / "eta" / "broken.png").write_bytes(b"not an image")
    (folder / "eta" / "notes.txt").write_text("not an image either")
    page = visit(own_site, "#add", **PHONE)
    page.set_input_files("#add-folder", folder)
    page.wait_for_selector("#add-go:enabled")
    chosen = page.locator("#add-chosen").inner_text()
    assert "3 images chosen. 1 file left out" in chosen
    assert "eta" in chosen
    assert "theta" in chosen
    assert fits(page)
    page.locator("#add-go").click()
    page.wait_for_selector("#add-state >> text=2 images added. 1 image could not be used:")
    assert "eta/broken.png" in page.locator("#add-state").inner_text()
    stored = patient.get(f"{own_site}/v1/item", params={"id": "theta/new.png"}).json()
    assert (stored["label"], stored["version"]) == ("theta", "v1")
    page.set_input_files("#add-files", folder / "eta" / "new.png")
    page.fill("#add-label", "greek")
    page.locator("#add-go").click()
    page.wait_for_selector("#add-state >> text=1 image added.")
    assert (
        patient.get(f"{own_site}/v1/item", params={"id": "greek/new.png"}).json()["label"]
        == "greek"
    )


def test_a_drop_on_the_adding_view_adds_and_does_not_search(site: str, visit: Visit) -> None:
    page = visit(site, "#add")
    page.wait_for_selector("#add-view:not([hidden])")
    page.evaluate(
        """() => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(9)], "a.png", {type: "image/png"}));
          document.body.dispatchEvent(new DragEvent("drop", {bubbles: true, dataTransfer: transfer}));
        }"""
    )
    page.wait_for_selector("#add-chosen >> text=1 image chosen")
    assert page.url.endswith("#add")
    page.locator("#add-clear").click()
    page.wait_for_selector("#add-chosen >> text=Nothing chosen yet")
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.wait_for_selector("#search-view:not([hidden])")


def test_further_examples_change_what_is_found(
    site: str, visit: Visit, query: Path, tmp_path: Path
) -> None:
    page = visit(site)
    page.set_input_files("#file", query)
    page.wait_for_selector(SCORED)
    before = page.locator(".hit").evaluate_all("hits => hits.map(hit => hit.dataset.id)")
    other = query_file(tmp_path / "other.png", 9)
    with page.expect_response("**/v1/search/examples") as answer:
        page.set_input_files("#more-like", other)
    sent = answer.value.request.post_data_json
    assert (len(sent["positive"]["images"]), sent["negative"]) == (2, {"ids": [], "images": []})
    found = answer.value.json()["hits"]
    until(page, "id => document.querySelector('.hit')?.dataset.id === id", found[0]["id"])
    assert [hit["id"] for hit in found] != before
    page.locator(".hit").nth(3).focus()
    rejected = page.locator(".hit").nth(3).get_attribute("data-id")
    page.keyboard.press("i")
    with page.expect_response("**/v1/search/examples") as answer:
        page.locator("#item button", has_text="Not like this").click()
    assert answer.value.request.post_data_json["negative"]["ids"] == [rejected]
    page.wait_for_selector("#examples li.negative")
    assert page.locator("#examples li").count() == 2
    until(
        page,
        "id => ![...document.querySelectorAll('.hit')].some(hit => hit.dataset.id === id)",
        rejected,
    )
    for _ in range(2):
        page.locator("#examples button").first.click()
    until(page, "document.querySelectorAll('#examples li').length === 0")
    until(page, "id => document.querySelector('.hit')?.dataset.id === id", before[0])


def test_a_part_of_the_query_is_searched(
    site: str, visit: Visit, query: Path, tmp_path: Path
) -> None:
    """The character in the lower right corner of a larger picture."""
    large = Image.new("RGB", (256, 256), "white")
    with Image.open(query) as small:
        large.paste(small.resize((128, 128)), (128, 128))
    large.save(tmp_path / "large.png")
    page = visit(site, **PHONE)
    page.set_input_files("#file", tmp_path / "large.png")
    page.wait_for_selector(SCORED)
    page.locator("#unfold").click()
    page.locator("#part").click()
    page.wait_for_selector("#crop[open] .frame")
    assert fits(page)
    for side, value in (("width", "50"), ("height", "50"), ("left", "50"), ("top", "50")):
        page.locator(f"#crop-{side}").fill(value)
    page.locator("#crop button.primary").click()
    until(page, "document.querySelector('#query-name').textContent === 'part of large.png'")
    assert (
        page.locator("#preview img").evaluate(
            "image => image.decode().then(() => image.naturalWidth)"
        )
        == 128
    )
    until(
        page,
        "label => document.querySelector('.hit .label')?.textContent === label",
        label_of(CHARACTERS[5]),
    )


def test_a_rectangle_is_drawn_with_the_pointer(site: str, visit: Visit, query: Path) -> None:
    page = visit(site)
    page.set_input_files("#file", query)
    page.wait_for_selector(SCORED)
    page.locator("#part").click()
    box = page.locator(".crop-area").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.1, box["y"] + box["height"] * 0.2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.9, steps=4)
    page.mouse.up()
    values = {
        side: float(page.locator(f"#crop-{side}").input_value())
        for side in ("left", "top", "width", "height")
    }
    assert values == pytest.approx({"left": 10, "top": 20, "width": 60, "height": 70}, abs=2)
    page.keyboard.press("Escape")
    assert page.locator("#query-name").inner_text() == "phi.png"


def test_labels_are_suggested_with_their_counts(site: str, visit: Visit) -> None:
    page = visit(site)
    page.locator("#label").focus()
    page.wait_for_selector("#labels option", state="attached")
    offered = page.locator("#labels option").evaluate_all(
        "all => all.map(one => [one.value, one.label])"
    )
    assert len(offered) == len(CHARACTERS) + 1  # one image has a label of its own
    assert dict(offered)[label_of(CHARACTERS[5])] == f"{GALLERY} items"


def test_the_drift_map_opens_items_and_lists_a_region(site: str, visit: Visit) -> None:
    page = visit(site, "#versions")
    page.wait_for_selector("#drift-draw")
    assert (page.locator("#drift-old").input_value(), page.locator("#drift-new").input_value()) == (
        "v1",
        "v4",
    )
    page.select_option("#drift-new", "v3")
    page.locator("#drift-draw").click()
    page.wait_for_selector(".point")
    points = patient.get(f"{site}/v1/drift", params={"old": "v1", "new": "v3"}).json()["points"]
    assert page.locator(".point").count() == len(points) == len(CHARACTERS) * GALLERY
    assert page.locator(".drifted li").count() == 12
    page.locator(".point").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(":focus").get_attribute("data-id") == points[1]["id"]
    page.keyboard.press("Enter")
    page.wait_for_selector("#item[open]")
    assert page.locator("#item-id").input_value() == points[1]["id"]
    page.locator("#item button.primary").click()
    page.locator(".point").nth(5).focus()
    page.keyboard.press("Space")
    page.locator(".point").nth(40).focus()
    page.keyboard.press("Space")
    page.wait_for_selector("#drift-list >> text=in the region")
    assert page.locator(".drifted li").count() >= 2
    page.locator(".drift svg").scroll_into_view_if_needed()
    box = page.locator(".drift svg").bounding_box()
    page.mouse.move(
        box["x"] + 8, box["y"] + 8
    )  # within the rounded corner, which newer browsers take for outside
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 8, box["y"] + box["height"] - 8, steps=3)
    page.mouse.up()
    page.wait_for_selector(f"#drift-list >> text={len(points)} images in the region")
    assert not page.locator("#item[open]").count()


def test_the_drift_map_fits_a_phone(site: str, visit: Visit) -> None:
    page = visit(site, "#versions", **PHONE)
    page.locator("summary", has_text="Drift").click()
    page.locator("#drift-draw").click()
    page.wait_for_selector(".point")
    assert fits(page)


def test_a_flip_is_searched_with(site: str, visit: Visit) -> None:
    page = visit(site, "#versions")
    page.select_option("#upgrade-version", "v3")
    page.locator("#flips button", has_text="Search with it").first.click()
    page.wait_for_selector(SCORED)
    assert page.url.endswith("#search")


def test_the_page_of_one_of_several_galleries(
    shop: Path, tmp_path: Path, visit: Visit, query: Path
) -> None:
    for name in ("greek", "other"):
        shutil.copytree(shop, tmp_path / name)
    key = Keys(tmp_path / "other").add("ann", "read")
    with serving(tmp_path / "greek", "-w", f"second={tmp_path / 'other'}") as found:
        address = found.partition("/g/")[0]
        page = visit(address, "")
        listed = page.locator(".galleries li").all_text_contents()
        assert len(listed) == 1  # the other asks for a key, and its name is no one else's concern
        assert f"{len(CHARACTERS) * GALLERY} images, v1 deployed" in listed[0]
        page.locator("a", has_text="greek").click()
        page.wait_for_url(f"{address}/g/greek/#search")  # once the page has started
        page.set_input_files("#file", query)
        page.wait_for_selector(SCORED)
        page.wait_for_selector(".hit img")
        until(page, "document.querySelector('.hit img').naturalWidth > 0")
        assert "/g/greek/v1/item/image" in page.locator(".hit img").first.get_attribute("src")
        page.goto(f"{address}/g/second/#versions")
        page.fill("#key", key)
        page.locator("#sign-in button.primary").click()
        page.wait_for_selector("[aria-label='Version v4']")
        page.goto(f"{address}/g/greek/#versions")  # the key of the other is not sent here
        page.wait_for_selector("[aria-label='Version v4']")
        assert page.locator("#account").is_hidden()


def test_on_a_phone_what_is_secondary_is_folded_and_can_be_opened(site: str, visit: Visit) -> None:
    page = visit(site, "#versions", **PHONE)
    page.wait_for_selector("[aria-label='Version v4']")
    page.wait_for_selector("#verdict .sentence")
    assert page.locator("[aria-label='Version v4'] .buttons").is_visible()  # the newest
    assert page.locator("[aria-label='Version v1'] dl").is_visible()  # the deployed one
    assert page.locator("[aria-label='Version v2'] dl").is_hidden()
    for name in ("matrix", "history", "flips", "drift", "backfill", "jobs", "deployments"):
        assert page.locator(f"#{name}").is_hidden(), name
    assert page.evaluate("document.documentElement.scrollHeight") < 3200
    page.locator("[aria-label='Version v2'] summary").first.click()
    page.wait_for_selector("[aria-label='Version v2'] dl")
    page.locator("summary", has_text="Compatibility").click()
    page.wait_for_selector("#matrix .cell")
    assert fits(page)


def test_on_a_phone_the_gallery_has_its_name_and_cards_stand_apart(site: str, visit: Visit) -> None:
    page = visit(site, "#versions", **PHONE)
    page.wait_for_selector("[aria-label='Version v4']")
    assert page.locator("#gallery-name").is_visible()
    assert page.locator("#gallery-name").inner_text() == "read"
    gaps = page.evaluate(
        """() => {
          const boxes = [...document.querySelectorAll('#versions-view .panel, #versions-view .version, #upgrade')];
          const seen = boxes.filter((box) => box.offsetParent).map((box) => [box, box.getBoundingClientRect()]);
          const gaps = [];
          for (const [one, a] of seen) for (const [other, b] of seen)
            if (one !== other && !one.contains(other) && !other.contains(one) && b.top >= a.top)
              gaps.push(b.top - a.bottom);
          return gaps;
        }"""
    )
    assert gaps
    assert min(gaps) >= 12


def test_an_upgrade_learns_from_a_folder_that_the_operator_allows(
    shop: Path, tmp_path: Path, visit: Visit
) -> None:
    shutil.copytree(shop, tmp_path / "shop")
    for number in range(2):
        (tmp_path / "sets" / "autumn" / "eta").mkdir(parents=True, exist_ok=True)
        query_file(tmp_path / "sets" / "autumn" / "eta" / f"{number}.png", 6)
    (tmp_path / "sets" / "spring").mkdir()
    with serving(tmp_path / "shop", "--training-images", str(tmp_path / "sets")) as address:
        page = visit(address, "#versions")
        page.locator("#upgrade button").click()
        choice = page.locator("#upgrade-images option").all_text_contents()
        assert choice == [
            "the stored items that have a label and an image",
            "the folder autumn",
            "the folder spring",
        ]
        page.select_option("#upgrade-images", "autumn")
        sent: list[Any] = []

        def refused(route: Any) -> None:
            sent.append(route.request.post_data_json)
            route.abort()

        page.route("**/v1/upgrade", refused)
        page.locator("#confirm button.primary").click()
        page.wait_for_selector("#confirm .problem")
        assert sent == [{"data": "autumn"}]


def test_without_such_folders_an_upgrade_offers_no_choice(site: str, visit: Visit) -> None:
    page = visit(site, "#versions")
    page.locator("#upgrade button").click()
    page.wait_for_selector("#confirm[open]")
    assert not page.locator("#upgrade-images").count()
    assert "stored items that have a label" in page.locator("#confirm").inner_text()


def test_a_translated_score_is_not_called_a_cosine(site: str, visit: Visit) -> None:
    page = visit(site)
    page.locator(".hit").first.click()
    page.wait_for_selector(SCORED)
    assert page.locator(".hit .scale").first.inner_text() == "cosine"

    def as_if_translated(route: Any) -> None:
        answer = route.fetch().json()
        route.fulfill(json={**answer, "version": "v2", "models": ["v2"]})

    page.route("**/v1/item/similar?*", as_if_translated)
    page.select_option("#count", "6")
    until(page, "document.querySelectorAll('.hit').length === 6")
    assert page.locator(".hit .scale").first.inner_text() == "score"
    assert "cosine" not in page.locator("#results-note").inner_text()


def test_one_leads_from_a_gallery_to_another(shop: Path, tmp_path: Path, visit: Visit) -> None:
    for name in ("greek", "second"):
        shutil.copytree(shop, tmp_path / name)
    with serving(tmp_path / "greek", "-w", str(tmp_path / "second")) as found:
        address = found.partition("/g/")[0]
        page = visit(address, "g/greek/#versions", **PHONE)
        page.wait_for_selector("#gallery")
        assert page.locator("#gallery option").all_text_contents() == [
            "greek",
            "second",
            "All galleries …",
        ]
        assert page.locator("#gallery").input_value() == "/g/greek/"
        assert fits(page)
        page.select_option("#gallery", label="second")
        page.wait_for_url(f"{address}/g/second/#versions")
        page.wait_for_selector("#gallery-choice:not([hidden])")
        assert page.locator("#gallery").input_value() == "/g/second/"
        page.select_option("#gallery", label="All galleries …")
        page.wait_for_selector(".galleries")
        assert page.locator(".galleries a").all_text_contents() == ["greek", "second"]
