"""Where a gallery on a PostgreSQL server is: postgresql://user:password@host:port/database?gallery=shop

``gallery`` names a schema of the database, "fixstar" if it is left out; all else is libpq's. What is shown to people
never holds the password, nor anything that may be a part of one.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from fixstar.errors import GalleryError

__all__ = ["DEFAULT", "Address", "parse_address"]

DEFAULT = "fixstar"
_LONGEST = 63  # bytes of a name in PostgreSQL
_TAKEN = ("pg_", "$user")  # stand for other schemas
_NOT_UNDERSTOOD = (
    "the address of the PostgreSQL gallery is not understood; write "
    "postgresql://user:password@host:5432/database?gallery=name, and percent-encode special characters of the "
    "password (@ is %40, / is %2F)"
)


@dataclass(frozen=True)
class Address:
    """What libpq needs (``conninfo``, not for people), the schema, and what people may see (``shown``)."""

    conninfo: str = field(repr=False)
    schema: str
    shown: str
    password: str = field(repr=False)


def parse_address(url: str) -> Address:
    """An address by its URL; the server is not asked."""
    head, _, query = url.partition("?")
    parts = [part for part in query.split("&") if part]
    names = [unquote(part.removeprefix("gallery=")) for part in parts if part.startswith("gallery=")]
    rest = [part for part in parts if not part.startswith("gallery=")]
    schema = _checked_schema(names[-1] if names else DEFAULT)
    if "@" not in query:  # else it may be a part of the password, which is not shown
        _check_names([unquote(part.partition("=")[0]) for part in rest])
    settings = _settings(head + ("?" + "&".join(rest) if rest else ""))
    host, port, database = (settings.get(name, "") for name in ("host", "port", "dbname"))
    place = f"{host or 'the default host'}{port and ':' + port}/{database or 'the default database'}"
    return Address(_conninfo(settings), schema, f"gallery {schema!r} at {place}", settings.get("password", ""))


def _check_names(names: Sequence[str]) -> None:
    """Refuse parameters that neither a gallery nor libpq knows."""
    from psycopg.pq import Conninfo

    known = ["gallery", *sorted(option.keyword.decode() for option in Conninfo.get_defaults())]
    for name in names:
        if name not in known and name != "ssl":  # ssl=true is JDBC's word for sslmode=require, which libpq takes too
            close = difflib.get_close_matches(name, known, n=1)
            guess = f"; did you mean {close[0]!r}?" if close else "."
            raise GalleryError(
                f"the address of the PostgreSQL gallery has a parameter {name!r} that is not known{guess} Known: "
                f"{', '.join(known)}"
            )


def _settings(url: str) -> dict[str, str]:
    """What libpq reads in a URL. Its complaints may quote a password, so they are not passed on."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        settings = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    except (ProgrammingError, ValueError):
        raise GalleryError(_NOT_UNDERSTOOD) from None
    port, places = settings.get("port", ""), settings.get("host", "") + settings.get("dbname", "")
    if "@" in places or (port and not port.replace(",", "").isdigit()):  # a password with @ or / was cut in two
        raise GalleryError(_NOT_UNDERSTOOD)
    return settings


def _conninfo(settings: dict[str, str]) -> str:
    from psycopg.conninfo import make_conninfo

    return make_conninfo(**{"connect_timeout": "10", "application_name": "fixstar", **settings})


def _checked_schema(name: str) -> str:
    size = len(name.encode(errors="replace"))
    if not 0 < size <= _LONGEST or "\0" in name or "\ufffd" in name or name.startswith(_TAKEN):
        raise GalleryError(
            f"gallery={name!r} cannot name a gallery in PostgreSQL: 1 to {_LONGEST} bytes of valid characters, not "
            "beginning with pg_ or $user"
        )
    return name
