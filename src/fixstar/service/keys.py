"""API keys of a workspace: who is calling, and what they may do.

A key is 256 random bits, shown once. state/keys.json has its salted SHA-256: nobody can guess 256 bits, so a slow hash
would only slow the service down. Without keys, local callers may do everything, and nobody else anything. Needs no web
framework: the command line manages keys without one.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from fixstar.durable import WatchedFile, document, exclusive, parse_document, replace_json
from fixstar.errors import InputError, UnknownNameError
from fixstar.service.problems import Problem
from fixstar.service.settings import ServiceSettings

Role = Literal["read", "write", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)  # each may do what those before it may
_CALLER = "fixstar.caller"  # in the state of a request, which all parts of the service share

_calling: ContextVar[str] = ContextVar("calling", default="")
_PREFIX = "fxs_"  # so that a leaked key is recognised in a log or a repository
_MAX_DAYS = 36_500
_WAIT = 10.0  # seconds for another process that changes the keys
_FORWARDED = (  # what proxies add
    *("cf-connecting-ip", "forwarded", "true-client-ip", "via"),
    *("x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"),
)


@dataclass(frozen=True)
class Caller:
    """Who makes a request, and what they may do."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        """Whether the caller's role includes another."""
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True)
class Key:
    """What is stored of a key. ``expires`` is None for a key that does not expire."""

    name: str
    role: Role
    salt: str
    hash: str
    created: str
    expires: str | None = None

    @property
    def has_expired(self) -> bool:
        """Whether its time is over."""
        return self.expires is not None and datetime.fromisoformat(self.expires) <= datetime.now(
            UTC
        )


class Keys:
    """The keys of one workspace. Threads and processes may share them."""

    def __init__(self, workspace: Path) -> None:
        self._directory = workspace / "state"
        self._file = self._directory / "keys.json"
        self._keys: WatchedFile[tuple[Key, ...]] = WatchedFile(self._file, _parsed, ())
        self.others: Mapping[str, Keys] = {}  # of other galleries behind the same address, by name

    def all(self) -> tuple[Key, ...]:
        """All keys, oldest first. Costs one stat of the file, unless it changed."""
        return self._keys.content()

    def add(
        self, name: str, role: Role, days: float | None = None, token: str | None = None
    ) -> str:
        """A new key for ``name``, valid for so many days or until it is removed; it is shown here and never again.

        ``token`` is one made for another workspace, which then opens this one too.
        """
        if not 0 < len(name) <= 64 or not name.isprintable() or name != name.strip():
            raise InputError(
                f"a key's name is 1 to 64 printable characters without spaces around them, got {name!r}"
            )
        if role not in ROLES:
            raise UnknownNameError("role", role, ROLES)
        if days is not None and not 0 < days <= _MAX_DAYS:
            raise InputError(
                f"a key is valid for more than 0 and up to {_MAX_DAYS:,} days, got {days:g}"
            )
        now = datetime.now(UTC)
        expires = None
        if days is not None:
            expires = (now + timedelta(days=days)).isoformat(timespec="seconds")
        token = token or _PREFIX + secrets.token_urlsafe(32)
        salt = secrets.token_hex(16)
        key = Key(
            name=name,
            role=role,
            salt=salt,
            hash=_hash(salt, token),
            created=now.isoformat(timespec="seconds"),
            expires=expires,
        )
        with self._locked():
            keys = self.all()
            if any(other.name == name for other in keys):
                raise InputError(
                    f"there is already a key named {name!r}; remove it first, or choose another name"
                )
            self._write((*keys, key))
        return token

    def remove(self, name: str) -> None:
        """Revoke a key."""
        with self._locked():
            keys = self.all()
            if all(key.name != name for key in keys):
                raise UnknownNameError("key", name, [key.name for key in keys])
            self._write(tuple(key for key in keys if key.name != name))

    def find(self, token: str) -> Key | None:
        """The key, even if it has expired. Compares with every key, in constant time each."""
        given = token.encode("utf-8", "replace")
        found = None
        for key in self.all():
            if hmac.compare_digest(_hash(key.salt, given), key.hash):
                found = key
        return found

    def who(self, token: str) -> Caller | None:
        """Whose key this is, if it is valid now."""
        key = self.find(token)
        if key is None or key.has_expired:
            return None
        return Caller(key.name, key.role)

    def _locked(self) -> AbstractContextManager[None]:
        busy = InputError(f"another process has been changing {self._directory} for {_WAIT:.0f} s")
        return exclusive(self._directory, _WAIT, busy)

    def _write(self, keys: tuple[Key, ...]) -> None:
        stored = [
            {name: value for name, value in asdict(key).items() if value is not None}
            for key in keys
        ]
        replace_json(self._file, document("keys", {"keys": stored}), mode=0o600)


def _parsed(file: Path) -> tuple[Key, ...]:
    return parse_document(file, "keys", _keys)


def _keys(content: Mapping[str, Any]) -> tuple[Key, ...]:
    keys = tuple(Key(**key) for key in content["keys"])
    for key in keys:
        _ = key.has_expired  # an unreadable time is damage too
        if key.role not in ROLES:
            raise ValueError(f"no role {key.role!r}")
    return keys


def _hash(salt: str, token: str | bytes) -> str:
    if isinstance(token, str):
        token = token.encode()
    return hashlib.sha256(bytes.fromhex(salt) + token).hexdigest()


def identify(
    scope: MutableMapping[str, Any],
    headers: Mapping[str, str],
    keys: Keys,
    settings: ServiceSettings,
) -> Caller | None:
    """The caller, or None if unknown. Looked up once per request, for the rate limit and for the route."""
    state = scope.setdefault("state", {})
    if _CALLER not in state:
        state[_CALLER] = _caller(scope, headers, keys=keys, settings=settings)
    return identified(scope)


def _caller(
    scope: MutableMapping[str, Any],
    headers: Mapping[str, str],
    *,
    keys: Keys,
    settings: ServiceSettings,
) -> Caller | None:
    """The owner of a valid key; without any keys, any user of this machine."""
    if keys.all():
        token = _presented_key(headers)
        if token is None:
            return None
        return keys.who(token)
    forwarded = settings.names or any(name in headers for name in _FORWARDED)
    if settings.loopback and not forwarded and _is_local(scope):
        return Caller("local", "admin")
    return None


def calling() -> str:
    """The name of the current caller, to share resources by: of a key, or of an address."""
    return _calling.get()


def set_calling(name: str) -> None:
    """Set the caller for the rest of the request."""
    _calling.set(name)


def identified(scope: Mapping[str, Any]) -> Caller | None:
    """The caller, if ``identify`` was called for this request."""
    found: Caller | None = scope.get("state", {}).get(_CALLER)
    return found


def missing_key(headers: Mapping[str, str], keys: Keys) -> Problem:
    """The answer to a caller without a valid key."""
    token = _presented_key(headers)
    if token is None:
        return _no_key("the request carries no key")
    key = keys.find(token)
    if key is not None and key.has_expired:
        return _no_key(f"the key of {key.name!r} expired at {key.expires}")
    elsewhere = [name for name, other in keys.others.items() if other.who(token) is not None]
    if elsewhere:
        seen = f"this key is for {', '.join(elsewhere)}, not for this gallery"
        return Problem("not-allowed", seen, "ask the operator for a key of this gallery")
    return _no_key("this key is not known here, or was removed")


def _no_key(seen: str) -> Problem:
    return Problem("no-key", seen, headers={"WWW-Authenticate": 'Bearer realm="fixstar"'})


def _presented_key(headers: Mapping[str, str]) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key") or None


def _is_local(scope: MutableMapping[str, Any]) -> bool:
    """Whether the caller is on this machine."""
    try:
        return ipaddress.ip_address(scope["client"][0]).is_loopback
    except (KeyError, TypeError, ValueError):
        return False
