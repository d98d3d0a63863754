"""Addresses on servers, and the passwords in them.

postgresql://user:password@host:port/database?gallery=shop
    ``gallery`` names a schema of the database, "fixstar" by default; everything else is libpq's
qdrant://host:6333, or qdrant+https://... for an encrypted connection
    a server whose collections can be read
    api_key_env        the environment variable that holds the key, QDRANT_API_KEY by default; a key is never part of
                       an address, which ends up in logs and shell histories
    grpc_port          use gRPC, which is faster for large batches
    timeout            seconds to wait for an answer, 60 by default
milvus://host:19530/database?items=ADDRESS, or milvus+https://... for an encrypted connection
    items              the SQLite file or PostgreSQL gallery that holds the items, with & and ? written as %26 and %3F
    gallery            the prefix of its collection names, "fixstar" by default
    index              FLAT (the default, exact) or HNSW
    token_env          the environment variable that holds the token, MILVUS_TOKEN by default
    timeout            seconds to wait for an answer, 60 by default
chroma://host:8000, chroma+https://... for an encrypted connection, or chroma:///folder without a server
    api_key_env        the environment variable that holds the token, CHROMA_API_KEY by default
    tenant, database   Chroma's tenant and database, if not the default ones
lancedb:///folder, or lancedb://folder below the current one

Displayed addresses never contain a password, nor anything that may be part of one.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from fixstar.errors import GalleryError

_DEFAULT_SCHEMA = "fixstar"
_LONGEST = 63  # bytes of a name in PostgreSQL
_RESERVED = ("pg_", "$user")  # reserved prefixes of schema names
_SECRET = (
    "password",
    "sslpassword",
    "oauth_client_secret",
    "scram_client_key",
    "scram_server_key",
    "api_key",
    "token",
)
_HIDDEN = "***"
MILVUS_SCHEMES = {"milvus": "http", "milvus+https": "https"}
QDRANT_SCHEMES = {"qdrant": "http", "qdrant+https": "https"}
_NUMBERS = ("grpc_port", "timeout")
_KEY = "QDRANT_API_KEY"
_CHROMA_KEY = "CHROMA_API_KEY"
_MILVUS_TOKEN = "MILVUS_TOKEN"
_MILVUS_OPTIONS = ("gallery", "index", "items", "timeout", "token_env")
_MILVUS_INDEXES = ("FLAT", "HNSW")
_MILVUS_NAME = 200  # characters; a collection's name may have 255
_NOT_UNDERSTOOD = (
    "the address of the PostgreSQL gallery cannot be parsed; write "
    "postgresql://user:password@host:5432/database?gallery=name, and percent-encode special characters of the "
    "password (@ is %40, / is %2F)"
)


def without_secret(address: str) -> str:
    """An address for display, without password and key; paths and other addresses are unchanged.

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
    """The end of user and password: the last @ before the query, or as in libpq the @ before any /."""
    last = rest.partition("?")[0].rfind("@")
    if last >= 0:
        return last
    before, at, _ = rest.partition("@")
    if at and "/" not in before:
        return len(before)
    return 0


def _hidden(part: str) -> str:
    name, equals, value = part.partition("=")
    plain = unquote(name).lower()
    if plain == "items":  # an address within an address
        within = unquote(value)
        if has_secret(within):
            return f"{name}={without_secret(within)}"
    if equals and value and plain in _SECRET:
        return f"{name}={_HIDDEN}"
    return part


@dataclass(frozen=True)
class PostgresAddress:
    """The secret ``conninfo`` for libpq, the schema, and ``shown`` for display."""

    conninfo: str = field(repr=False)
    schema: str
    shown: str
    password: str = field(repr=False)


def parse_postgres_address(url: str) -> PostgresAddress:
    """Parse a URL; the server is not contacted."""
    head, _, query = url.partition("?")
    parts = [part for part in query.split("&") if part]
    names = [
        unquote(part.removeprefix("gallery=")) for part in parts if part.startswith("gallery=")
    ]
    rest = [part for part in parts if not part.startswith("gallery=")]
    schema = _checked_schema(names[-1] if names else _DEFAULT_SCHEMA)
    if "@" not in query:  # otherwise it may be part of the password
        _check_names([unquote(part.partition("=")[0]) for part in rest])
    settings = _settings(head + ("?" + "&".join(rest) if rest else ""))
    host, port, database = (settings.get(name, "") for name in ("host", "port", "dbname"))
    place = (
        f"{host or 'the default host'}{port and ':' + port}/{database or 'the default database'}"
    )
    return PostgresAddress(
        conninfo=_conninfo(settings),
        schema=schema,
        shown=f"gallery {schema!r} at {place}",
        password=settings.get("password", ""),
    )


def _check_names(names: Sequence[str]) -> None:
    """Refuse parameters that are unknown to both galleries and libpq."""
    from psycopg.pq import Conninfo

    known = ["gallery", *sorted(option.keyword.decode() for option in Conninfo.get_defaults())]
    for name in names:
        if (
            name not in known and name != "ssl"
        ):  # ssl=true is JDBC's sslmode=require, which libpq accepts too
            close = difflib.get_close_matches(name, known, n=1)
            guess = f"; did you mean {close[0]!r}?" if close else "."
            raise GalleryError(
                f"the address of the PostgreSQL gallery has an unknown parameter {name!r}{guess} Known: "
                f"{', '.join(known)}"
            )


def _settings(url: str) -> dict[str, str]:
    """Parse a URL with libpq. Its errors may contain a password, so they are not passed on."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        settings = {
            name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None
        }
    except (ProgrammingError, ValueError):
        raise GalleryError(_NOT_UNDERSTOOD) from None
    port = settings.get("port", "")
    places = settings.get("host", "") + settings.get("dbname", "")
    if "@" in places or (
        port and not port.replace(",", "").isdigit()
    ):  # a password with @ or / was split
        raise GalleryError(_NOT_UNDERSTOOD)
    return settings


def _conninfo(settings: dict[str, str]) -> str:
    from psycopg.conninfo import make_conninfo

    return make_conninfo(**{"connect_timeout": "10", "application_name": "fixstar", **settings})


def _checked_schema(name: str) -> str:
    size = len(name.encode(errors="replace"))
    if not 0 < size <= _LONGEST or "\0" in name or "\ufffd" in name or name.startswith(_RESERVED):
        raise GalleryError(
            f"gallery={name!r} cannot name a gallery in PostgreSQL: 1 to {_LONGEST} bytes of valid characters, not "
            "beginning with pg_ or $user"
        )
    return name


@dataclass(frozen=True)
class QdrantAddress:
    """http(s)://host:port, the key from the environment, and the other options of an address."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    grpc_port: int | None = None
    timeout: int = 60


def parse_qdrant_address(url: str) -> QdrantAddress:
    """Parse a URL; the server is not contacted.

    >>> parse_qdrant_address("qdrant://localhost?timeout=5")
    QdrantAddress(url='http://localhost:6333', grpc_port=None, timeout=5)
    """
    parts = urlsplit(url)
    shown = without_secret(url)
    form = f"write {parts.scheme}://host:6333?api_key_env={_KEY}"
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if "@" in parts.netloc or "api_key" in given:
        raise GalleryError(
            f"a key must not be part of an address: put it into the environment variable {_KEY}, and {form}"
        )
    try:
        host = parts.hostname
        port = parts.port or 6333
    except ValueError as error:
        raise GalleryError(f"{shown}: {error}; {form}") from error
    if not host or parts.path.strip("/"):
        raise GalleryError(f"{shown} does not name a Qdrant server; {form}")
    known = ("api_key_env", *_NUMBERS)
    if unknown := given.keys() - set(known):
        raise GalleryError(f"{shown}: no option {sorted(unknown)[0]!r}; known: {', '.join(known)}")
    numbers = {name: _number(shown, name, given[name]) for name in _NUMBERS if name in given}
    place = f"[{host}]" if ":" in host else host
    return QdrantAddress(
        f"{QDRANT_SCHEMES[parts.scheme]}://{place}:{port}",
        _key(given.get("api_key_env")),
        **numbers,
    )


@dataclass(frozen=True)
class MilvusServerAddress:
    """http(s)://host:port and the database of a Milvus server, and ``shown`` for display."""

    url: str
    database: str
    shown: str
    timeout: int = 60
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class MilvusAddress:
    """http(s)://host:port and the database, the gallery with the items, and ``shown`` for display."""

    url: str
    database: str
    items: str
    gallery: str
    index: str
    shown: str
    timeout: int = 60
    token: str = field(default="", repr=False)


def parse_milvus_address(url: str) -> MilvusAddress:
    """Parse a URL; nothing is contacted.

    >>> parse_milvus_address("milvus://localhost/shop?items=shop.db").url
    'http://localhost:19530'
    """
    form = "write {}://host:19530/database?items=ADDRESS, of an SQLite file or a PostgreSQL gallery"
    server, given = _milvus_server(url, _MILVUS_OPTIONS, form)
    place = server.shown
    name = given.get("gallery", _DEFAULT_SCHEMA)
    return MilvusAddress(
        url=server.url,
        database=server.database,
        items=_items_address(place, given.get("items", ""), form.format(urlsplit(url).scheme)),
        gallery=_collection_name(place, name),
        index=_index_name(place, given.get("index", "FLAT")),
        shown=f"gallery {name!r} at {place}",
        timeout=server.timeout,
        token=server.token,
    )


def parse_milvus_server(url: str) -> MilvusServerAddress:
    """Parse the URL of a server whose collections are read; nothing is contacted.

    >>> parse_milvus_server("milvus+https://search.example:443/shop").url
    'https://search.example:443'
    """
    return _milvus_server(
        url, ("timeout", "token_env"), "write {}://host:19530/database?collection=NAME"
    )[0]


def _milvus_server(
    url: str, options: Sequence[str], form: str
) -> tuple[MilvusServerAddress, dict[str, str]]:
    """The server, and the other options."""
    parts = urlsplit(url)
    place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    form = form.format(parts.scheme)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if "@" in parts.netloc or "token" in given:
        raise GalleryError(
            f"a token must not be part of an address: put it into the environment variable {_MILVUS_TOKEN}, and {form}"
        )
    if unknown := given.keys() - set(options):
        raise GalleryError(
            f"{place}: no option {sorted(unknown)[0]!r}; known: {', '.join(options)}"
        )
    try:
        host = parts.hostname
        port = parts.port or 19530
    except ValueError as error:
        raise GalleryError(f"{place}: {error}; {form}") from error
    if not host:
        raise GalleryError(f"{place} does not name a Milvus server; {form}")
    server = f"[{host}]" if ":" in host else host
    address = MilvusServerAddress(
        url=f"{MILVUS_SCHEMES[parts.scheme]}://{server}:{port}",
        database=unquote(parts.path.strip("/")),
        shown=place,
        timeout=_number(place, "timeout", given.get("timeout", "60")),
        token=_key(given.get("token_env"), _MILVUS_TOKEN) or "",
    )
    return address, given


def _items_address(place: str, items: str, form: str) -> str:
    if not items:
        raise GalleryError(
            f"{place} does not say where the items are: Milvus has no transactions; {form}"
        )
    if has_secret(items):
        raise GalleryError(
            f"{place}: the address of the items holds a password; put it into PGPASSWORD or a password file of libpq"
        )
    scheme, divider, _ = items.partition("://")
    if items == ":memory:" or (divider and scheme not in ("postgresql", "postgres")):
        raise GalleryError(f"{place}: items cannot be kept at {items}; {form}")
    return items


def _collection_name(place: str, name: str) -> str:
    plain = name.isascii() and name.isidentifier()
    if not plain or len(name) > _MILVUS_NAME:
        raise GalleryError(
            f"{place}: gallery={name!r} cannot begin the name of a collection: up to {_MILVUS_NAME} letters, digits "
            "and _, no digit first"
        )
    return name


def _index_name(place: str, name: str) -> str:
    if name.upper() not in _MILVUS_INDEXES:
        raise GalleryError(f"{place}: no index {name!r}; known: {', '.join(_MILVUS_INDEXES)}")
    return name.upper()


@dataclass(frozen=True)
class ChromaAddress:
    """A server, or the folder of a database; ``shown`` is for display."""

    shown: str
    folder: Path | None = None
    host: str = ""
    port: int = 8000
    encrypted: bool = False
    token: str | None = field(default=None, repr=False)
    tenant: str = "default_tenant"
    database: str = "default_database"


def parse_chroma_address(url: str) -> ChromaAddress:
    """Parse a URL; nothing is contacted.

    >>> parse_chroma_address("chroma://localhost?tenant=shop")
    ChromaAddress(shown='chroma://localhost', folder=None, host='localhost', port=8000, encrypted=False, \
tenant='shop', database='default_database')
    >>> parse_chroma_address("chroma:///data/chroma").folder
    PosixPath('/data/chroma')
    """
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    form = "write chroma://host:8000?collection=NAME, or chroma:///folder?collection=NAME"
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if "@" in parts.netloc or "api_key" in given:
        raise GalleryError(
            f"a token must not be part of an address: put it into the environment variable {_CHROMA_KEY}, and {form}"
        )
    if unknown := given.keys() - {"api_key_env", "tenant", "database"}:
        raise GalleryError(
            f"{shown}: no option {sorted(unknown)[0]!r}; known: api_key_env, database, tenant"
        )
    try:
        host = parts.hostname
        port = parts.port or (443 if parts.scheme == "chroma+https" else 8000)
    except ValueError as error:
        raise GalleryError(f"{shown}: {error}; {form}") from error
    if not host:
        if not parts.path.strip("/") or parts.scheme != "chroma":
            raise GalleryError(f"{shown} names no server and no folder; {form}")
        return ChromaAddress(shown, Path(unquote(parts.path)))
    if parts.path.strip("/"):
        raise GalleryError(f"{shown} names a server and a folder; {form}")
    token = _key(given.get("api_key_env"), _CHROMA_KEY)
    return ChromaAddress(
        shown,
        host=host,
        port=port,
        encrypted=parts.scheme == "chroma+https",
        token=token,
        tenant=given.get("tenant", "default_tenant"),
        database=given.get("database", "default_database"),
    )


def parse_lance_address(url: str) -> Path:
    """The folder of a LanceDB database.

    >>> parse_lance_address("lancedb:///data/shop.lancedb")
    PosixPath('/data/shop.lancedb')
    """
    rest = url.removeprefix("lancedb://")
    if not rest.strip("/") or "?" in rest:
        raise GalleryError(f"{url} names no folder of LanceDB; write lancedb:///folder?table=NAME")
    return Path(unquote(rest))


def _number(shown: str, name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise GalleryError(f"{shown}: {name} must be a number of at least 1; got {text!r}")
    return int(text)


def _key(variable: str | None, usual: str = _KEY) -> str | None:
    key = os.environ.get(variable or usual)
    if variable is not None and not key:
        raise GalleryError(
            f"the environment variable {variable} holds no API key; set it, or leave api_key_env out"
        )
    return key or None
