"""Who is calling, and whether they may: ``Depends(needs("write"))``.

A key comes as ``Authorization: Bearer KEY`` or ``X-API-Key: KEY``. Where a workspace has no keys, callers on this
machine may do everything, and nobody else anything. What a proxy forwards is not of this machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from fastapi import Request

from fixstar.service.key_file import ROLES, Caller, Key, Keys, Role
from fixstar.service.problems import Problem
from fixstar.service.settings import ServiceSettings

__all__ = ["CALLER", "LOCAL", "ROLES", "Caller", "Key", "Keys", "Role", "identify", "needs", "presented_key", "unknown"]

LOCAL = Caller("local", "admin")
CALLER = "fixstar.caller"  # in the request's scope
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "via")  # what proxies add


def needs(role: Role) -> Callable[[Request], Awaitable[Caller]]:
    """A dependency that lets callers of this role, or a higher one, pass."""

    async def allowed(request: Request) -> Caller:  # async: in the event loop a look at the keys is cheapest
        context = request.app.state.context
        caller = identify(request.scope, request.headers, context.keys, context.settings)
        if caller is None:
            raise unknown(request.headers, context.keys)
        if not caller.may(role):
            raise Problem(
                "not-allowed",
                f"{caller.name!r} has the role {caller.role}; this needs {role}",
                f"ask the operator for a key: fixstar keys add NAME --role {role}",
            )
        return caller

    return allowed


def identify(
    scope: MutableMapping[str, Any], headers: Mapping[str, str], keys: Keys, settings: ServiceSettings
) -> Caller | None:
    """Who is calling; None where nobody knows. Looked up once a request: the pace and the route both ask."""
    if CALLER not in scope:
        if keys.all():
            token = presented_key(headers)
            scope[CALLER] = None if token is None else keys.who(token)
        else:
            passed_on = settings.names or any(name in headers for name in _FORWARDED)
            scope[CALLER] = LOCAL if settings.loopback and not passed_on and _is_here(scope) else None
    found: Caller | None = scope[CALLER]
    return found


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key that a request carries."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key") or None


def _is_here(scope: MutableMapping[str, Any]) -> bool:
    """Whether the caller is on this machine."""
    try:
        return ipaddress.ip_address(scope["client"][0]).is_loopback
    except (KeyError, TypeError, ValueError):
        return False


def unknown(headers: Mapping[str, str], keys: Keys) -> Problem:
    """The answer to who is not known, or is no longer."""
    token = presented_key(headers)
    if token is None:
        seen = "the request carries no key"
    elif (key := keys.find(token)) is not None and key.has_expired:
        seen = f"the key of {key.name!r} expired at {key.expires}"
    else:
        seen = "this key is not known here, or was removed"
    hint = "send the header Authorization: Bearer KEY; the operator makes keys with: fixstar keys add NAME --role read"
    return Problem("no-key", seen, hint, headers={"WWW-Authenticate": 'Bearer realm="fixstar"'})
