"""Where a Qdrant server is: qdrant://host:6333?prefix=shop, or qdrant+https://... for an encrypted connection.

prefix        of the gallery's collections, "fixstar" if it is left out
api_key_env   the environment variable that holds the key, QDRANT_API_KEY if it is left out; a key never stands in
              an address, which ends up in logs and shell histories
grpc_port     to speak gRPC, which is faster for large batches
shards, replicas   of collections that are made
timeout       seconds to wait for an answer, 60 if it is left out
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from fixstar.errors import GalleryError
from fixstar.gallery.address_secrets import without_secret

__all__ = ["QDRANT_SCHEMES", "QdrantAddress", "parse_qdrant_address"]

QDRANT_SCHEMES = {"qdrant": "http", "qdrant+https": "https"}
_NUMBERS = ("grpc_port", "shards", "replicas", "timeout")
_KEY = "QDRANT_API_KEY"


class QdrantAddress(NamedTuple):
    """http(s)://host:port, and the options that were given."""

    server: str
    options: dict[str, Any]


def parse_qdrant_address(url: str) -> QdrantAddress:
    """An address by its URL, with the key from the environment; the server is not asked.

    >>> parse_qdrant_address("qdrant://localhost?prefix=shop&replicas=2").server
    'http://localhost:6333'
    """
    parts, shown = urlsplit(url), without_secret(url)
    form = f"write {parts.scheme}://host:6333?prefix=shop&api_key_env={_KEY}"
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if "@" in parts.netloc or "api_key" in given:
        raise GalleryError(f"a key does not belong into an address: put it into the variable {_KEY}, and {form}")
    try:
        host, port = parts.hostname, parts.port or 6333
    except ValueError as error:
        raise GalleryError(f"{shown}: {error}; {form}") from error
    if not host or parts.path.strip("/"):
        raise GalleryError(f"{shown} names no Qdrant server; {form}")
    known = ("prefix", "api_key_env", *_NUMBERS)
    if unknown := given.keys() - set(known):
        raise GalleryError(f"{shown}: no option {sorted(unknown)[0]!r}; take {', '.join(known)}")
    options: dict[str, Any] = {name: _number(shown, name, given[name]) for name in _NUMBERS if name in given}
    options["api_key"] = _key(given.get("api_key_env"))
    if "prefix" in given:
        options["prefix"] = given["prefix"]
    place = f"[{host}]" if ":" in host else host
    return QdrantAddress(f"{QDRANT_SCHEMES[parts.scheme]}://{place}:{port}", options)


def _number(shown: str, name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise GalleryError(f"{shown}: {name} is a number, at least 1; got {text!r}")
    return int(text)


def _key(variable: str | None) -> str | None:
    key = os.environ.get(variable or _KEY)
    if variable is not None and not key:
        raise GalleryError(f"the environment variable {variable} holds no API key; set it, or leave api_key_env out")
    return key or None
