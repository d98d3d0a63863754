"""Passwords and keys inside addresses are neither shown nor written down."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from wording import refuses

from fixstar.errors import GalleryError
from fixstar.gallery import open_gallery
from fixstar.gallery.addresses import has_secret, parse_milvus_address, without_secret
from fixstar.gallery.transfer import open_vectors


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (
            "postgresql://me:sesame@host:5432/db?gallery=shop",
            "postgresql://me:***@host:5432/db?gallery=shop",
        ),
        ("postgresql://me:sesame@/db?host=/tmp/x", "postgresql://me:***@/db?host=/tmp/x"),
        (
            "postgresql://host/db?password=sesame&gallery=shop",
            "postgresql://host/db?password=***&gallery=shop",
        ),
        ("postgresql://host/db?pass%77ord=sesame", "postgresql://host/db?pass%77ord=***"),
        ("postgresql://host/db?sslpassword=sesame", "postgresql://host/db?sslpassword=***"),
        ("postgresql://me:a@sesame@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:a/sesame@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:a?sesame@host/db?gallery=x", "postgresql://me:***@host/db?gallery=x"),
        (
            "postgresql://me:sesame@host/db?password=sesame",
            "postgresql://me:***@host/db?password=***",
        ),
        ("qdrant://host:6333?api_key=sesame", "qdrant://host:6333?api_key=***"),
        ("milvus://host/db?items=a.db&token=sesame", "milvus://host/db?items=a.db&token=***"),
        ("milvus://root:sesame@host/db?items=a.db", "milvus://root:***@host/db?items=a.db"),
        (
            "milvus://host?items=postgresql%3A%2F%2Fme%3Asesame%40db%2Fx",
            "milvus://host?items=postgresql://me:***@db/x",
        ),
        (
            "milvus://host?items=postgresql://me:sesame@db/x",
            "milvus://host?items=postgresql://me:***@db/x",
        ),
    ],
)
def test_a_secret_is_hidden_wherever_it_stands(address: str, shown: str) -> None:
    assert has_secret(address)
    assert without_secret(address) == shown


@pytest.mark.parametrize(
    "address",
    [
        "shop/gallery.db",
        "odd:name@home.db",
        ":memory:",
        "postgresql://me@host:5432/db?gallery=shop",
        "postgresql://host:5432/db?application_name=a@b",
        "postgresql://[::1]:5432/db",
        "postgresql:///db?host=/tmp/x&gallery=password",
        "postgresql://host/db?passfile=/home/me/.pgpass",
        "qdrant://host:6333?collection=shop&api_key_env=KEY",
        "milvus://host:19530/db?token_env=KEY&items=postgresql%3A%2F%2Fme%40db%2Fx%3Fgallery%3Dshop",
    ],
)
def test_addresses_without_one_stay_as_they_are(address: str) -> None:
    assert not has_secret(address)
    assert without_secret(address) == address


def test_a_wrong_address_of_qdrant_is_told_without_it() -> None:
    for use in (open_vectors, open_gallery):
        with refuses(GalleryError) as caught:
            use("qdrant://host:6333?collection=photos&password=sesame")
        assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "milvus://host",
        "milvus://host?items=",
        "milvus://host?items=:memory:",
        "milvus://host?items=milvus%3A%2F%2Fhost",
        "milvus://host?items=postgresql%3A%2F%2Fme%3Asesame%40db%2Fx",
        "milvus://me:sesame@host?items=a.db",
        "milvus://host?items=a.db&token=sesame",
        "milvus://host?items=a.db&indx=FLAT",
        "milvus://host?items=a.db&index=IVF",
        "milvus://host?items=a.db&gallery=9lives",
        "milvus://host?items=a.db&timeout=soon",
        "milvus://host:99999?items=a.db",
        "milvus:///db?items=a.db",
        "milvus://host?items=a.db&token_env=FIXSTAR_NOT_SET",
    ],
)
def test_a_wrong_address_of_milvus_is_told_without_secrets(address: str) -> None:
    with refuses(GalleryError) as caught:
        open_gallery(address)
    assert "sesame" not in str(caught.value)


def test_an_address_of_milvus_names_server_items_and_collections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MILVUS_TOKEN", "sesame")
    items = "postgresql://db.example/shop?gallery=shop"
    parsed = parse_milvus_address(
        f"milvus+https://m.example/catalogue?gallery=shop&index=hnsw&items={quote(items, safe='')}"
    )
    assert (parsed.url, parsed.database, parsed.items) == (
        "https://m.example:19530",
        "catalogue",
        items,
    )
    assert (parsed.gallery, parsed.index, parsed.token, parsed.timeout) == (
        "shop",
        "HNSW",
        "sesame",
        60,
    )
    assert "sesame" not in repr(parsed)
