"""Adding images, several examples, a part of the query, label suggestions and the drift map, as a visitor uses them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from glyph_shop import CHARACTERS, GALLERY, label_of, query_file
from PIL import Image
from real_service import serving
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


def test_a_folder_is_added_with_its_folders_as_labels(own_site: str, visit: Visit, tmp_path: Path) -> None:
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
    stored = httpx.get(f"{own_site}/v1/item", params={"id": "theta/new.png"}).json()
    assert (stored["label"], stored["version"]) == ("theta", "v1")
    page.set_input_files("#add-files", folder / "eta" / "new.png")
    page.fill("#add-label", "greek")
    page.locator("#add-go").click()
    page.wait_for_selector("#add-state >> text=1 image added.")
    assert httpx.get(f"{own_site}/v1/item", params={"id": "greek/new.png"}).json()["label"] == "greek"


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


def test_further_examples_change_what_is_found(site: str, visit: Visit, query: Path, tmp_path: Path) -> None:
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
    until(page, "id => ![...document.querySelectorAll('.hit')].some(hit => hit.dataset.id === id)", rejected)
    for _ in range(2):
        page.locator("#examples button").first.click()
    until(page, "document.querySelectorAll('#examples li').length === 0")
    until(page, "id => document.querySelector('.hit')?.dataset.id === id", before[0])


def test_a_part_of_the_query_is_searched(site: str, visit: Visit, query: Path, tmp_path: Path) -> None:
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
    assert page.locator("#preview img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 128
    until(page, "label => document.querySelector('.hit .label')?.textContent === label", label_of(CHARACTERS[5]))


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
    values = {side: float(page.locator(f"#crop-{side}").input_value()) for side in ("left", "top", "width", "height")}
    assert values == pytest.approx({"left": 10, "top": 20, "width": 60, "height": 70}, abs=2)
    page.keyboard.press("Escape")
    assert page.locator("#query-name").inner_text() == "phi.png"


def test_labels_are_suggested_with_their_counts(site: str, visit: Visit) -> None:
    page = visit(site)
    page.locator("#label").focus()
    page.wait_for_selector("#labels option", state="attached")
    offered = page.locator("#labels option").evaluate_all("all => all.map(one => [one.value, one.label])")
    assert len(offered) == len(CHARACTERS) + 1  # one image has a label of its own
    assert dict(offered)[label_of(CHARACTERS[5])] == f"{GALLERY} items"


def test_the_drift_map_opens_items_and_lists_a_region(site: str, visit: Visit) -> None:
    page = visit(site, "#versions")
    page.wait_for_selector("#drift-draw")
    assert (page.locator("#drift-old").input_value(), page.locator("#drift-new").input_value()) == ("v1", "v4")
    page.select_option("#drift-new", "v3")
    page.locator("#drift-draw").click()
    page.wait_for_selector(".point")
    points = httpx.get(f"{site}/v1/drift", params={"old": "v1", "new": "v3"}).json()["points"]
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
    page.mouse.move(box["x"] + 8, box["y"] + 8)  # within the rounded corner, which newer browsers take for outside
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 8, box["y"] + box["height"] - 8, steps=3)
    page.mouse.up()
    page.wait_for_selector(f"#drift-list >> text={len(points)} images in the region")
    assert not page.locator("#item[open]").count()


def test_the_drift_map_fits_a_phone(site: str, visit: Visit) -> None:
    page = visit(site, "#versions", **PHONE)
    page.locator("#drift-draw").click()
    page.wait_for_selector(".point")
    assert fits(page)


def test_a_flip_is_searched_with(site: str, visit: Visit) -> None:
    page = visit(site, "#versions")
    page.select_option("#upgrade-version", "v3")
    page.locator("#flips button", has_text="Search with it").first.click()
    page.wait_for_selector(SCORED)
    assert page.url.endswith("#search")


def test_the_page_of_one_of_several_galleries(shop: Path, tmp_path: Path, visit: Visit, query: Path) -> None:
    for name in ("greek", "other"):
        shutil.copytree(shop, tmp_path / name)
    key = Keys(tmp_path / "other").add("ann", "read")
    with serving(tmp_path / "greek", "-w", f"second={tmp_path / 'other'}") as found:
        address = found.partition("/g/")[0]
        page = visit(address, "")
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
