"""Several galleries behind one address: each as it would be alone, and none in the way of another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from service_clients import ADDRESS, ended, picture
from shops import shop
from typer.testing import CliRunner
from wording import check_wording, refuses

from fixstar.cli import app
from fixstar.errors import InputError
from fixstar.service.app import create_app
from fixstar.service.galleries import Galleries
from fixstar.service.keys import Keys
from fixstar.service.serve import serve
from fixstar.service.settings import ServiceSettings
from fixstar.workspace import Workspace


@pytest.fixture
def spaces(tmp_path: Path) -> dict[str, Workspace]:
    return {name: shop(tmp_path / name, versions=1) for name in ("shop", "museum")}


@contextmanager
def galleries(
    spaces: Mapping[str, Workspace], broken: tuple[str, ...] = (), **settings: Any
) -> Iterator[TestClient]:
    limits = ServiceSettings(**settings)
    keys = {name: Keys(space.path) for name, space in spaces.items()}
    apps = {
        name: None
        if name in broken
        else create_app(space, replace(limits, gallery=name), keys[name])
        for name, space in spaces.items()
    }
    both = Galleries(apps, keys, limits)
    with TestClient(
        both, ADDRESS, raise_server_exceptions=False, client=("127.0.0.1", 50000)
    ) as http:
        yield http


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_each_gallery_has_its_items_jobs_and_metrics(spaces: dict[str, Workspace]) -> None:
    with galleries(spaces) as http:
        put = http.put("/g/shop/v1/item?id=a", files={"image": picture()})
        assert put.status_code == 200, put.text
        found = [http.get(f"/g/{name}/v1/status").json() for name in spaces]
        assert [(one["name"], one["items"]) for one in found] == [("shop", 1), ("museum", 0)]
        thumbnail = http.get("/g/shop/v1/item?id=a").json()["thumbnail"]
        assert http.get(f"/g/shop{thumbnail}").headers["content-type"] == "image/jpeg"
        job = http.post("/g/museum/v1/items/async", files={"images": picture(1)}).json()
        assert http.get(f"/g/shop/v1/jobs/{job['id']}").status_code == 404
        http.base_url = f"{ADDRESS}/g/museum"
        assert ended(http, job)["state"] == "done"
        http.base_url = ADDRESS
        assert 'fixstar_gallery_items{version="v1"} 1.0' in http.get("/g/shop/metrics").text
        unknown = http.get("/g/shop/v1/versions/v9").json()
        assert (
            http.get(unknown["type"]).status_code == 200
        )  # what a problem means is the same everywhere
        assert http.get(f"/g/shop{unknown['type']}").status_code == 200


def test_a_gallery_has_its_name_in_the_audit_log_and_the_status(
    spaces: dict[str, Workspace], caplog: pytest.LogCaptureFixture
) -> None:
    named = {"shoes": spaces["shop"], "museum": spaces["museum"]}
    with galleries(named) as http, caplog.at_level("INFO", "fixstar.audit"):
        assert http.get("/g/shoes/v1/status").json()["name"] == "shoes"  # not its folder's
        http.base_url = f"{ADDRESS}/g/shoes"
        ended(http, http.post("/v1/items/async", files={"images": picture()}).json())
    lines = [record.getMessage() for record in caplog.records if record.name == "fixstar.audit"]
    assert lines
    assert all(line.startswith("gallery shoes: job ") for line in lines)


def test_what_is_outside_of_galleries(spaces: dict[str, Workspace]) -> None:
    with galleries(spaces) as http:
        assert http.get("/healthz").json() == {"status": "ok"}
        assert http.get("/readyz").json() == {"ready": 2, "galleries": 2}
        assert http.get("/g/shop/readyz").json()["version"] == "v1"
        assert "/g/museum/" in http.get("/").text
        moved = http.get("/g/shop", follow_redirects=False)
        assert (moved.status_code, moved.headers["location"]) == (307, "/g/shop/")
        assert "<title>" in http.get("/g/shop/").text
        assert (
            http.get("/g/shop/v1/status/").json()["name"] == "shop"
        )  # a slash too many leads to the right place
        for path in ("/static/app.js", "/static/page.css", "/v1/docs", "/v1/openapi.json"):
            assert http.get(path).status_code == 200
        for path in ("/v1/status", "/metrics", "/g/none/v1/status", "/g/"):
            lost = http.get(path)
            assert (lost.status_code, lost.json()["type"]) == (404, "/problems/not-found"), path
        assert "/g/NAME/" in http.get("/v1/status").json()["hint"]
        assert http.get("/nothing").headers["content-security-policy"]
        assert http.post("/healthz").status_code == 405
        for path in ("/", "/g/shop/v1/status"):
            assert http.get(path, headers={"Host": "evil.example"}).status_code == 421


def test_a_key_opens_the_galleries_it_was_made_for(spaces: dict[str, Workspace]) -> None:
    books = {name: Keys(space.path) for name, space in spaces.items()}
    one, other = books["shop"].add("ann", "read"), books["museum"].add("bob", "admin")
    both = books["shop"].add("both", "read")
    books["museum"].add("both", "admin", token=both)
    with galleries(spaces) as http:
        assert http.get("/g/shop/v1/status", headers=bearer(one)).json()["caller"]["name"] == "ann"
        for path in ("/g/museum/v1/status", "/g/museum/metrics"):
            refused = http.get(path, headers=bearer(one))
            assert (refused.status_code, refused.json()["type"]) == (403, "/problems/not-allowed")
            check_wording(refused.json()["detail"])
        assert http.get("/g/shop/v1/status", headers=bearer(other)).status_code == 403
        assert http.get("/g/shop/v1/status", headers=bearer("fxs_none")).status_code == 401
        assert http.get("/g/shop/v1/status").status_code == 401
        roles = [
            http.get(f"/g/{name}/v1/status", headers=bearer(both)).json()["caller"]["role"]
            for name in spaces
        ]
        assert roles == ["read", "admin"]
        assert "shop" not in http.get("/").text  # names are for those who have a key
        books["shop"].remove("ann")
        assert http.get("/g/museum/v1/status", headers=bearer(one)).status_code == 401


def test_rates_are_counted_by_gallery(spaces: dict[str, Workspace]) -> None:
    with galleries(spaces, rate=2) as http:
        assert [http.get("/g/shop/v1/status").status_code for _ in range(3)] == [200, 200, 429]
        assert http.get("/g/museum/v1/status").status_code == 200


def test_a_broken_gallery_leaves_the_others_alone(
    spaces: dict[str, Workspace], tmp_path: Path
) -> None:
    with galleries(spaces, broken=("museum",)) as http:
        assert http.get("/g/shop/v1/status").status_code == 200
        for path in ("/g/museum/v1/status", "/g/museum/", "/g/museum"):
            broken = http.get(path)
            assert (broken.status_code, broken.json()["type"]) == (503, "/problems/not-ready")
        assert http.get("/readyz").json() == {"ready": 1, "galleries": 2}
    empty = {"new": Workspace.create(tmp_path / "new", device="cpu")}
    with galleries(empty) as http:
        assert http.get("/readyz").status_code == 503


def test_what_cannot_be_served_together_is_refused(
    spaces: dict[str, Workspace], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="NAME=DIRECTORY"):
        serve({"a b": spaces["shop"]}, ServiceSettings(port=0))
    with refuses(InputError):
        serve(spaces, ServiceSettings(port=0, snapshots=tmp_path / "all.tar"))
    Keys(spaces["shop"].path).add("ann", "admin")
    with pytest.raises(InputError, match=r"no keys.*museum"):
        serve(spaces, ServiceSettings(port=0, host="0.0.0.0"))
    same = CliRunner().invoke(
        app, ["serve", "-w", str(tmp_path / "shop"), "-w", f"shop={tmp_path / 'museum'}"]
    )
    assert (same.exit_code, "have the name 'shop'" in str(same.exception)) == (1, True)


def test_one_command_makes_a_key_for_several(spaces: dict[str, Workspace]) -> None:
    words = [word for space in spaces.values() for word in ("-w", str(space.path))]
    made = json.loads(
        CliRunner().invoke(app, ["keys", "add", "ann", "--role", "read", *words, "--json"]).stdout
    )
    assert [Keys(space.path).who(made["key"]) is not None for space in spaces.values()] == [
        True,
        True,
    ]
    Keys(spaces["museum"].path).add("bob", "read")
    again = CliRunner().invoke(app, ["keys", "add", "bob", "--role", "read", *words])
    assert again.exit_code == 1
    assert [key.name for key in Keys(spaces["shop"].path).all()] == [
        "ann"
    ]  # for all of them, or for none


def test_a_gallery_names_those_beside_it_that_are_open(
    spaces: dict[str, Workspace], tmp_path: Path
) -> None:
    spaces["closed"] = shop(tmp_path / "closed", versions=1)
    Keys(spaces["closed"].path).add("ann", "read")
    with galleries(spaces) as http:
        assert http.get("/g/shop/v1/status").json()["galleries"] == ["museum", "shop"]
        listed = http.get("/").text
        assert "<span>0 images, v1 deployed</span>" in listed
        assert "closed" not in listed


def test_a_gallery_that_did_not_open_is_listed_as_such(spaces: dict[str, Workspace]) -> None:
    with galleries(spaces, broken=("museum",)) as http:
        assert "<b>museum</b> <span>could not be opened</span>" in http.get("/").text
