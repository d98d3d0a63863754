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
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from fixstar.durable import WatchedFile, exclusive, replace_file
from fixstar.errors import InputError, ModelError, UnknownNameError

__all__ = ["ROLES", "Caller", "Key", "Keys", "Role"]

Role = Literal["read", "write", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)  # each may do what those before it may

_PREFIX = "fxs_"  # so that a key is recognised where it should not be, in a log or a repository
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
    """What is kept of a key."""

    name: str
    role: Role
    salt: str
    hash: str
    created: str


class Keys:
    """The keys of one workspace. Threads and processes may share them."""

    def __init__(self, workspace: Path) -> None:
        self._directory = workspace / "state"
        self._file = self._directory / "keys.json"
        self._keys: WatchedFile[tuple[Key, ...]] = WatchedFile(self._file, _parsed, ())

    def all(self) -> tuple[Key, ...]:
        """All keys, oldest first. One look at the file's stamp, unless it changed."""
        return self._keys.content()

    def add(self, name: str, role: Role) -> str:
        """A new key for ``name``; it is shown here and never again."""
        if not 0 < len(name) <= 64 or not name.isprintable() or name != name.strip():
            raise InputError(f"a key's name is 1 to 64 printable characters without spaces around them, got {name!r}")
        if role not in ROLES:
            raise UnknownNameError("role", role, ROLES)
        token = _PREFIX + secrets.token_urlsafe(32)
        salt = secrets.token_hex(16)
        made = Key(name, role, salt, _hash(salt, token), datetime.now(UTC).isoformat(timespec="seconds"))
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
        """Whose key this is. Compares with every key, in constant time each."""
        given = token.encode("utf-8", "replace")
        found = None
        for key in self.all():
            if hmac.compare_digest(_hash(key.salt, given), key.hash):
                found = Caller(key.name, key.role)
        return found

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            with exclusive(self._directory, wait=_WAIT):
                yield
        except BlockingIOError:
            raise InputError(f"another process has been changing {self._directory} for {_WAIT:.0f} s") from None

    def _write(self, keys: tuple[Key, ...]) -> None:
        text = json.dumps({"format": "fixstar-keys", "keys": [asdict(key) for key in keys]}, indent=2) + "\n"

        def write(partial: Path) -> None:
            partial.touch(mode=0o600)
            partial.write_text(text, encoding="utf-8")

        replace_file(self._file, write, mode=0o600)


def _parsed(file: Path) -> tuple[Key, ...]:
    try:
        keys = tuple(Key(**key) for key in json.loads(file.read_text(encoding="utf-8"))["keys"])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file} is damaged ({error}); restore it from a copy") from error
    if wrong := [key.role for key in keys if key.role not in ROLES]:
        raise ModelError(f"{file} is damaged: no role {wrong[0]!r}; restore it from a copy")
    return keys


def _hash(salt: str, token: str | bytes) -> str:
    content = token.encode() if isinstance(token, str) else token
    return hashlib.sha256(bytes.fromhex(salt) + content).hexdigest()
