"""Passwords and keys inside addresses: what people are shown, and what is written down, must not hold them."""

from __future__ import annotations

from urllib.parse import unquote

__all__ = ["has_secret", "without_secret"]

_SECRET = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key", "api_key")
_HIDDEN = "***"


def without_secret(address: str) -> str:
    """An address as people may see it; one without a password or key, and a path, stays as it is.

    >>> without_secret("postgresql://me:sesame@host/db?gallery=shop&password=sesame")
    'postgresql://me:***@host/db?gallery=shop&password=***'
    """
    scheme, divider, rest = address.partition("://")
    if not divider:
        return address
    end = _end_of_user(rest)
    user, colon, password = rest[:end].partition(":")
    place, question, query = rest[end:].partition("?")
    parts = "&".join(map(_hidden, query.split("&")))
    return f"{scheme}://{user}{colon}{password and _HIDDEN}{place}{question}{parts}"


def has_secret(address: str) -> bool:
    """Whether an address holds a password or a key."""
    return without_secret(address) != address


def _end_of_user(rest: str) -> int:
    """Where user and password end: at the last @ before the query, or where libpq ends them, at an @ before any /."""
    if (last := rest.partition("?")[0].rfind("@")) >= 0:
        return last
    before, at, _ = rest.partition("@")
    return len(before) if at and "/" not in before else 0


def _hidden(part: str) -> str:
    name, equals, value = part.partition("=")
    return f"{name}={_HIDDEN}" if equals and value and unquote(name).lower() in _SECRET else part
