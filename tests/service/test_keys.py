"""Keys and roles."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from service_clients import ADDRESS, client, picture
from shops import shop
from typed import typed

from fixstar.durable import document, replace_json
from fixstar.errors import InputError, ModelError, UnknownNameError
from fixstar.service.app import create_app
from fixstar.service.keys import Caller, Keys
from fixstar.service.settings import ServiceSettings


def test_a_key_is_shown_once_and_kept_hashed(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    token = keys.add("page", "read")
    file = tmp_path / "state" / "keys.json"
    assert len(token) >= 43
    assert token not in file.read_text()
    assert token.removeprefix("fxs_") not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert keys.who(token) == Caller("page", "read")
    assert keys.who(token[:-1]) is None
    assert keys.who("") is None


def test_a_key_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = shop(tmp_path / "shop", versions=1)
    keys = Keys(space.path)
    short, long = keys.add("ci", "read", days=30), keys.add("page", "read")
    later = datetime.now(UTC) + timedelta(days=30, seconds=5)

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return later.astimezone(tz)

    with client(space) as http:
        for token in (short, long):
            assert http.get("/v1/items", headers={"X-API-Key": token}).status_code == 200
        monkeypatch.setattr("fixstar.service.keys.datetime", Later)
        for path in ("/v1/items", "/metrics"):
            answer = http.get(path, headers={"X-API-Key": short})
            assert answer.status_code == 401
            assert "'ci' expired at 20" in answer.json()["detail"]
        assert http.get("/v1/items", headers={"X-API-Key": long}).status_code == 200
        keys.remove(
            "page"
        )  # the one that is left has expired, and still nobody is let in without a key
        assert http.get("/v1/items").status_code == 401


def test_a_file_of_before_keys_could_expire_is_read(tmp_path: Path) -> None:
    token = Keys(tmp_path).add("a", "read")
    [kept] = json.loads((tmp_path / "state" / "keys.json").read_text())["keys"]
    assert kept.keys() == {"name", "role", "salt", "hash", "created"}  # what it was before
    assert Keys(tmp_path).who(token) == Caller("a", "read")


@pytest.mark.parametrize("days", [0, -1, float("nan"), 1e9])
def test_a_key_is_valid_for_some_days(tmp_path: Path, days: float) -> None:
    with pytest.raises(InputError, match="days"):
        Keys(tmp_path).add("a", "read", days)


def test_another_process_adds_and_removes(tmp_path: Path) -> None:
    ours, theirs = Keys(tmp_path), Keys(tmp_path)
    assert ours.all() == ()
    token = theirs.add("a", "admin")
    assert ours.who(token) == Caller("a", "admin")
    theirs.remove("a")
    assert ours.who(token) is None


def test_wrong_keys_are_refused(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    keys.add("a", "read")
    with pytest.raises(InputError, match="already"):
        keys.add("a", "write")
    with pytest.raises(UnknownNameError, match="admin, read, write"):
        keys.add("b", "root")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError):
        keys.remove("b")
    for name in ("", " a", "a\nb", "x" * 65):
        with pytest.raises(InputError, match="printable"):
            keys.add(name, "read")


@pytest.mark.parametrize(
    "text",
    [
        *("no json", "{}", '{"keys": [{"name": "a"}]}'),
        *(
            '{"keys": [{"name": "a", "role": "read", "salt": "", "hash": "", "created": "", "expires": "soon"}]}',
        ),
    ],
)
def test_a_damaged_file_lets_nobody_in(tmp_path: Path, text: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "keys.json").write_text(text)
    with pytest.raises(ModelError, match="damaged"):
        Keys(tmp_path).all()
    if text.startswith("{"):
        replace_json(tmp_path / "state" / "keys.json", document("keys", json.loads(text)))
        with pytest.raises(ModelError, match="damaged"):
            Keys(tmp_path).all()


def test_roles_include_those_below(tmp_path: Path) -> None:
    space = shop(tmp_path / "shop")
    keys = Keys(space.path)
    tokens = {role: keys.add(role, role) for role in ("read", "write", "admin")}
    with client(space) as http:
        for role, may_write in (("read", False), ("write", True), ("admin", True)):
            header = {"Authorization": f"Bearer {tokens[role]}"}
            assert http.get("/v1/items", headers=header).status_code == 200
            answer = http.put("/v1/item?id=a", files={"image": picture()}, headers=header)
            assert answer.status_code == (200 if may_write else 403)
        assert (
            http.get("/v1/status", headers={"X-API-Key": tokens["read"]}).json()["caller"]["role"]
            == "read"
        )


def test_without_a_key_or_with_a_wrong_one_nothing_is_answered(tmp_path: Path) -> None:
    space = shop(tmp_path / "shop")
    token = Keys(space.path).add("a", "admin")
    with client(space) as http:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": f"Basic {token}"},
            {"X-API-Key": "é"},
        ):
            for path in ("/v1/items", "/v1/status", "/metrics", "/v1/item/image?id=a"):
                answer = http.get(path, headers={k: v.encode() for k, v in headers.items()})  # type: ignore[arg-type]
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"].startswith("Bearer")
                assert token not in answer.text
        assert http.get("/healthz").status_code == http.get("/readyz").status_code == 200
        Keys(space.path).remove("a")
        assert http.get("/v1/items").status_code == 200  # no key any more: this machine may


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.1", "192.0.2.1"), ("0.0.0.0", "127.0.0.1")]
)
def test_without_keys_only_this_machine_is_let_in(tmp_path: Path, host: str, address: str) -> None:
    service = create_app(shop(tmp_path / "shop"), ServiceSettings(host=host))
    with TestClient(service, ADDRESS, client=(address, 5)) as http:
        assert http.get("/v1/items").status_code == 401


@pytest.mark.parametrize(
    "header",
    [
        *("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Via"),
        *("X-Real-IP", "CF-Connecting-IP", "True-Client-IP"),
    ],
)
def test_without_keys_what_a_proxy_forwards_is_not_of_this_machine(
    tmp_path: Path, header: str
) -> None:
    with client(shop(tmp_path / "shop")) as http:
        assert http.get("/v1/items").status_code == 200
        assert http.get("/v1/items", headers={header: "127.0.0.1"}).status_code == 401


def test_without_keys_nobody_is_let_in_where_a_proxy_has_a_name_for_the_service(
    tmp_path: Path,
) -> None:
    space = shop(tmp_path / "shop")
    with client(space, names=("shop.example",)) as http:
        assert http.get("/v1/items").status_code == 401
        token = Keys(space.path).add("a", "read")
        assert (
            http.get("/v1/items", headers={"X-API-Key": token, "Via": "1.1 proxy"}).status_code
            == 200
        )


def test_every_operation_asks_for_a_key(tmp_path: Path) -> None:
    """Also those that are added later."""
    space = shop(tmp_path / "shop")
    Keys(space.path).add("a", "admin")
    with client(space) as http:
        paths = http.get("/v1/openapi.json").json()["paths"]
        for path, operations in paths.items():
            for method in operations:
                if path not in ("/healthz", "/readyz"):
                    assert (
                        http.request(method, path.replace("{", "").replace("}", "")).status_code
                        == 401
                    ), path


def test_the_command_line_adds_lists_and_removes(tmp_path: Path) -> None:
    space = shop(tmp_path / "shop", versions=1)
    added = typed("keys", "add", "page", "--role", "read", "--days", "30", "-w", space.path)
    assert Keys(space.path).who(added.out.strip()) == Caller("page", "read")
    listed = typed("keys", "list", "-w", space.path, "--json")
    assert [key["name"] for key in listed.json] == ["page"]
    assert "hash" not in listed.out
    expires = str((datetime.now(UTC) + timedelta(days=30)).date())
    assert listed.json[0]["expires"].startswith(expires)
    Keys(space.path).add("ci", "write")
    page, ci = typed("keys", "list", "-w", space.path).out.splitlines()
    assert f"expires at {expires}" in page
    assert ci.endswith("does not expire")
    Keys(space.path).remove("ci")
    assert typed("keys", "remove", "page", "-w", space.path).code == 0
    assert Keys(space.path).all() == ()
    refused = typed("keys", "add", "x", "--role", "boss", "-w", space.path)
    assert refused.code == 1
    assert "admin, read, write" in refused.err
