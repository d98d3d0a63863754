"""Figures for operators."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from service_clients import client, picture
from shops import shop

from fixstar.service.keys import Keys
from fixstar.workspace import Workspace


def figures(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every figure by its name and the values of its labels."""
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_embeddings_and_items_are_counted(tmp_path: Path) -> None:
    with client(shop(tmp_path / "shop")) as http:
        for seed in range(3):
            http.put(f"/v1/item?id={seed}", files={"image": picture(seed)})
        http.post("/v1/search", files={"image": picture(1)})
        http.post("/v1/search", files={"image": b"nothing"})
        for path in ("/v1/item?id=1", "/v1/item?id=99", "/v1/secret-path"):
            http.get(path)
        answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    seen = figures(answer.text)
    assert seen["fixstar_requests_total", ("PUT", "/v1/item", "200")] == 3
    assert seen["fixstar_requests_total", ("GET", "/v1/item", "200")] == 1
    assert seen["fixstar_requests_total", ("GET", "/v1/item", "404")] == 1
    assert seen["fixstar_requests_total", ("POST", "/v1/search", "415")] == 1
    assert seen["fixstar_request_seconds_count", ("POST", "/v1/search")] == 2
    assert seen["fixstar_embedded_images_total", ("item", "v1")] == 3
    assert seen["fixstar_embedded_images_total", ("query", "v1")] == 1
    assert seen["fixstar_query_batch_size_sum", ()] == 1
    assert seen["fixstar_gallery_items", ("v1",)] == 3
    assert seen["fixstar_deployed", ("v1",)] == 1
    assert seen["fixstar_queries_waiting", ()] == 0
    assert seen["fixstar_requests_under_way", ()] == 1  # this one
    assert "secret-path" not in answer.text  # addresses that people mistype must not become series


def test_two_services_do_not_share_figures(tmp_path: Path) -> None:
    def asked(space: Workspace) -> float:
        with client(space) as http:
            http.get("/healthz")
            return figures(http.get("/metrics").text)[
                "fixstar_requests_total", ("GET", "/healthz", "200")
            ]

    assert [asked(shop(tmp_path / name, versions=1)) for name in "ab"] == [1, 1]


def test_a_fault_is_counted_as_one(tmp_path: Path) -> None:
    space = shop(tmp_path / "shop", versions=1)
    with client(space) as http:
        space.status = lambda: 1 / 0  # type: ignore[method-assign,return-value,assignment]
        assert http.get("/v1/status").status_code == 500
        assert (
            figures(http.get("/metrics").text)[
                "fixstar_requests_total", ("GET", "/v1/status", "500")
            ]
            == 1
        )


def test_what_is_refused_early_is_counted_by_what_it_was_for(tmp_path: Path) -> None:
    space = shop(tmp_path / "shop", versions=1)
    keys = {"X-API-Key": Keys(space.path).add("a", "admin")}
    with client(space, rate=4) as http:
        http.get("/v1/jobs/some-job", headers={"host": "elsewhere.example"})
        http.post(
            "/v1/search", content=bytes(3 << 20), headers={**keys, "content-length": str(1 << 40)}
        )
        http.get("/v1/secret-path")
        for _ in range(6):
            http.get("/v1/items")
        answer = http.get("/metrics", headers=keys)
    seen = figures(answer.text)
    assert seen["fixstar_requests_total", ("GET", "/v1/jobs/{id}", "421")] == 1
    assert seen["fixstar_requests_total", ("POST", "/v1/search", "413")] == 1
    assert seen["fixstar_requests_total", ("GET", "/v1/items", "401")] == 3
    assert seen["fixstar_requests_total", ("GET", "/v1/items", "429")] == 3
    assert seen["fixstar_requests_total", ("GET", "other", "401")] == 1
    assert "some-job" not in answer.text
    assert "secret-path" not in answer.text
