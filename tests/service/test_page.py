"""The page's files: served with the right types, cached rightly, and nothing in them that the policy would forbid."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from service_clients import client
from shops import shop

PAGE = Path(str(files("fixstar.service") / "page"))
SCRIPTS = sorted(PAGE.glob("*.js"))


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with client(shop(tmp_path_factory.mktemp("page") / "shop")) as http:
        yield http


def test_the_page_and_all_it_asks_for_are_served_with_their_types(http: TestClient) -> None:
    page = http.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    wanted = set(re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text))
    wanted |= {
        f"/static/{name}"
        for path in SCRIPTS
        for name in re.findall(r'from "\./([^"]+)"', path.read_text())
    }
    types = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert len(wanted) > 10
    for address in wanted:
        answer = http.get(address)
        assert answer.status_code == 200, address
        assert answer.headers["content-type"].startswith(types[address.rpartition(".")[2]])


def test_every_module_is_asked_for_at_once(http: TestClient) -> None:
    named = set(re.findall(r'/static/([\w-]+\.js)"', http.get("/").text))
    assert named == {path.name for path in SCRIPTS}


def test_what_a_browser_has_is_not_sent_again(http: TestClient) -> None:
    first = http.get("/static/app.js")
    assert first.headers["cache-control"] == "no-cache"
    again = http.get("/static/app.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert http.get("/static/app.js", headers={"If-None-Match": '"other"'}).status_code == 200
    head = http.head("/")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    "name", ["nothing.js", "../page.py", "..%2Fpage.py", "%2e%2e/settings.py", ""]
)
def test_only_files_of_the_page_can_be_asked_for(http: TestClient, name: str) -> None:
    assert http.get(f"/static/{name}").status_code == 404


def test_the_page_keeps_to_its_policy() -> None:
    page = (PAGE / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)|javascript:", page)
    for path in [*PAGE.glob("*.css"), *SCRIPTS, PAGE / "index.html"]:
        found = [
            url
            for url in re.findall(r"https?://[^\s\"')]+", path.read_text())
            if "www.w3.org" not in url
        ]
        assert found == [], path.name


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_never_make_markup_of_text(path: Path) -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc|setHTML"
    assert not re.search(forbidden, path.read_text())
