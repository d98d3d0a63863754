"""API keys of a workspace: who may do what, in state/keys.json, hashed.

A key is 256 random bits, shown once. What is kept is a salted SHA-256 of it: nobody can guess 256 bits, so a slow hash
would only slow the service down. The file is read again whenever it changes, so keys work and end at once.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, get_args

from fixstar.durable import WatchedFile, exclusive, replace_file
from fixstar.errors import InputError, ModelError, UnknownNameError

__all__ = ["ROLES", "Caller", "Key", "Keys", "Role"]

Role = Literal["read", "write", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)  # each may do what those before it may

_PREFIX = "fxs_"  # so that a key is recognised where it should not be, in a log or a repository
_LONGEST = 36_500  # days
_WAIT = 10.0  # seconds for another process that changes the keys


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
    """What is kept of a key. ``expires`` is when it ends by itself; None where it does not."""

    name: str
    role: Role
    salt: str
    hash: str
    created: str
    expires: str | None = None

    @property
    def has_expired(self) -> bool:
        """Whether it has ended by itself."""
        return self.expires is not None and datetime.fromisoformat(self.expires) <= datetime.now(UTC)


class Keys:
    """The keys of one workspace. Threads and processes may share them."""

    def __init__(self, workspace: Path) -> None:
        self._directory = workspace / "state"
        self._file = self._directory / "keys.json"
        self._keys: WatchedFile[tuple[Key, ...]] = WatchedFile(self._file, _parsed, ())

    def all(self) -> tuple[Key, ...]:
        """All keys, oldest first. One look at the file's stamp, unless it changed."""
        return self._keys.content()

    def add(self, name: str, role: Role, days: float | None = None) -> str:
        """A new key for ``name``, valid for so many days or until it is removed; it is shown here and never again."""
        if not 0 < len(name) <= 64 or not name.isprintable() or name != name.strip():
            raise InputError(f"a key's name is 1 to 64 printable characters without spaces around them, got {name!r}")
        if role not in ROLES:
            raise UnknownNameError("role", role, ROLES)
        if days is not None and not 0 < days <= _LONGEST:
            raise InputError(f"a key is valid for more than 0 and up to {_LONGEST:,} days, got {days:g}")
        now = datetime.now(UTC)
        expires = None if days is None else (now + timedelta(days=days)).isoformat(timespec="seconds")
        token = _PREFIX + secrets.token_urlsafe(32)
        salt = secrets.token_hex(16)
        made = Key(name, role, salt, _hash(salt, token), now.isoformat(timespec="seconds"), expires)
        with self._alone():
            keys = self.all()
            if any(key.name == name for key in keys):
                raise InputError(f"there is a key named {name!r} already; remove it first, or choose another name")
            self._write((*keys, made))
        return token

    def remove(self, name: str) -> None:
        """Let a key end."""
        with self._alone():
            keys = self.all()
            if all(key.name != name for key in keys):
                raise UnknownNameError("key", name, [key.name for key in keys])
            self._write(tuple(key for key in keys if key.name != name))

    def who(self, token: str) -> Caller | None:
        """Whose key this is, if it is valid now."""
        key = self.find(token)
        return None if key is None or key.has_expired else Caller(key.name, key.role)

    def find(self, token: str) -> Key | None:
        """The key, also where it has expired. Compares with every key, in constant time each."""
        given = token.encode("utf-8", "replace")
        found = None
        for key in self.all():
            if hmac.compare_digest(_hash(key.salt, given), key.hash):
                found = key
        return found

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            with exclusive(self._directory, wait=_WAIT):
                yield
        except BlockingIOError:
            raise InputError(f"another process has been changing {self._directory} for {_WAIT:.0f} s") from None

    def _write(self, keys: tuple[Key, ...]) -> None:
        text = json.dumps({"format": "fixstar-keys", "keys": list(map(_kept, keys))}, indent=2) + "\n"

        def write(partial: Path) -> None:
            partial.touch(mode=0o600)
            partial.write_text(text, encoding="utf-8")

        replace_file(self._file, write, mode=0o600)


def _kept(key: Key) -> dict[str, str]:
    return {name: value for name, value in asdict(key).items() if value is not None}


def _parsed(file: Path) -> tuple[Key, ...]:
    try:
        keys = tuple(Key(**key) for key in json.loads(file.read_text(encoding="utf-8"))["keys"])
        for key in keys:
            _ = key.has_expired  # a time that cannot be read is a damage too
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file} is damaged ({error}); restore it from a copy") from error
    if wrong := [key.role for key in keys if key.role not in ROLES]:
        raise ModelError(f"{file} is damaged: no role {wrong[0]!r}; restore it from a copy")
    return keys


def _hash(salt: str, token: str | bytes) -> str:
    content = token.encode() if isinstance(token, str) else token
    return hashlib.sha256(bytes.fromhex(salt) + content).hexdigest()
