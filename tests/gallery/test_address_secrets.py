"""Passwords and keys inside addresses are neither shown nor written down."""

from __future__ import annotations

import pytest

from fixstar.errors import GalleryError
from fixstar.gallery import open_gallery
from fixstar.gallery.addresses import has_secret, without_secret
from fixstar.gallery.transfer import open_vectors


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://me:sesame@host:5432/db?gallery=shop", "postgresql://me:***@host:5432/db?gallery=shop"),
        ("postgresql://me:sesame@/db?host=/tmp/x", "postgresql://me:***@/db?host=/tmp/x"),
        ("postgresql://host/db?password=sesame&gallery=shop", "postgresql://host/db?password=***&gallery=shop"),
        ("postgresql://host/db?pass%77ord=sesame", "postgresql://host/db?pass%77ord=***"),
        ("postgresql://host/db?sslpassword=sesame", "postgresql://host/db?sslpassword=***"),
        ("postgresql://me:a@sesame@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:a/sesame@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:a?sesame@host/db?gallery=x", "postgresql://me:***@host/db?gallery=x"),
        ("postgresql://me:sesame@host/db?password=sesame", "postgresql://me:***@host/db?password=***"),
        ("qdrant://host:6333?api_key=sesame", "qdrant://host:6333?api_key=***"),
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
    ],
)
def test_addresses_without_one_stay_as_they_are(address: str) -> None:
    assert not has_secret(address)
    assert without_secret(address) == address


def test_a_wrong_address_of_qdrant_is_told_without_it() -> None:
    for use, told in ((open_vectors, "no option 'password'"), (open_gallery, "cannot be kept in Qdrant")):
        with pytest.raises(GalleryError, match=told) as caught:
            use("qdrant://host:6333?collection=photos&password=sesame")
        assert "sesame" not in str(caught.value)
