"""The log: who was refused, what jobs did and for whom, and every request where it is wanted."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from documents import rewrite
from service_clients import client, ended, picture
from shops import shop

from fixstar.errors import InputError
from fixstar.service.jobs import JobFiles, Jobs, queue
from fixstar.service.keys import Keys
from fixstar.workspace import Workspace


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return shop(tmp_path / "shop", versions=1)


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def lines(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == logger]


def test_wrong_keys_and_haste_are_noted_once_a_minute(
    space: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    key = Keys(space.path).add("page", "read")
    with client(space, rate=5) as http:
        for _ in range(4):
            http.get("/v1/items", headers={"X-API-Key": "fxs_wrong"})
        http.get("/metrics")
        for _ in range(8):
            http.get("/v1/items", headers={"X-API-Key": key})
    seen = [line for line in lines(caplog, "fixstar.service") if "127.0.0.1" in line]
    assert [line[:3] for line in seen] == ["401", "429"]
    assert "fxs_" not in caplog.text


def test_requests_are_logged_only_where_it_is_wanted(
    space: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    key = Keys(space.path).add("a page", "read")
    with client(space) as http:
        http.get("/v1/items", headers={"X-API-Key": key})
    assert lines(caplog, "fixstar.access") == []
    with client(space, access_log=True) as http:
        http.get("/v1/item?id=secret", headers={"X-API-Key": key})
        http.get("/v1/jobs/x%0Aforged line")
    found, refused = lines(caplog, "fixstar.access")
    assert 'caller="a page" role=read method=GET path=/v1/item status=404 ms=' in found
    assert "caller=- role=- method=GET path=/v1/jobs/x%0Aforged%20line status=401" in refused
    assert "secret" not in found


def test_jobs_say_who_asked_for_them(
    space: Workspace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InputError("the reason")

    headers = {"X-API-Key": Keys(space.path).add("ann", "admin")}
    with client(space) as http:
        job = http.post("/v1/items/async", files={"images": picture()}, headers=headers).json()
        assert job["by"] == "ann"
        assert ended(http, job, headers=headers)["by"] == "ann"
        check = http.post("/v1/versions/v1/check", headers=headers).json()
        assert check["by"] == ended(http, check, headers=headers)["by"] == "ann"
        monkeypatch.setattr(space, "index", refuse)
        taken = http.post("/v1/items/async", files={"images": picture()}, headers=headers).json()
        failed = ended(http, taken, headers=headers)
        assert failed["state"] == "failed"
    assert {kept.by for kept in JobFiles(space.path).load()} == {"ann"}
    seen = lines(caplog, "fixstar.audit")
    mine = [line for line in seen if job["id"] in line]
    assert all("index, asked for by ann" in line for line in mine)
    assert [
        word for line in mine for word in ("accepted", "begins", "is done") if word in line
    ] == [*("accepted", "begins", "is done")]
    assert any(failed["id"] in line and "is failed: the reason" in line for line in seen)


def test_who_cancels_a_job_is_written_down(
    space: Workspace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Keys(space.path)
    ann, bob = ({"X-API-Key": keys.add(name, "write")} for name in ("ann", "bob"))
    monkeypatch.setattr(queue, "LANES", ())  # so that it waits
    with client(space) as http:
        job = http.post("/v1/items/async", files={"images": picture()}, headers=ann).json()
        cancelled = http.post(f"/v1/jobs/{job['id']}/cancel", headers=bob).json()
    assert (cancelled["state"], cancelled["by"]) == ("cancelled", "ann")
    assert any(
        "asked for by ann) is cancelled by bob" in line for line in lines(caplog, "fixstar.audit")
    )


def test_a_job_of_before_has_nobody(space: Workspace) -> None:
    files = JobFiles(space.path)
    work = Jobs(space)
    work.start()
    try:
        path = files.directory / f"{work.submit('index', {'items': []}).id}.json"
    finally:
        work.stop()
    rewrite(path, lambda content: content.pop("by"))
    [job] = files.load()
    assert (job.kind, job.by) == ("index", None)


def test_a_second_service_is_refused_before_it_starts(space: Workspace) -> None:
    from fixstar.service.serve import serve
    from fixstar.service.settings import ServiceSettings

    first = Jobs(space)
    first.lock()
    with pytest.raises(InputError, match="another service"):
        serve(space, ServiceSettings(port=0))
    first.stop()
    second = Jobs(space)
    second.lock()
    second.start()  # what is held is not asked for twice
    second.stop()
