"""Connections to a PostgreSQL server: a few of them shared by all threads, and what the server's errors mean."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from fixstar.errors import GalleryError, GalleryUnavailableError, MissingExtraError
from fixstar.gallery.postgres.address import Address

if TYPE_CHECKING:
    from psycopg import Connection

    Database = Connection[tuple[Any, ...]]

__all__ = [
    "EF_SEARCH",
    "READ",
    "WRITE",
    "Pool",
    "check_place",
    "configure",
    "connect",
    "meaning",
    "require_driver",
    "translated",
    "without_password",
]

READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"  # one snapshot: an item that moves is seen exactly once
WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"  # what is read after waiting for another writer is new
_STARTING = ("starting up", "recovery mode", "not yet accepting connections", "shutting down")
_PAUSE = 0.1
EF_SEARCH = 100  # vectors that a search of an index looks at in one go


def require_driver() -> None:
    """Say what to install where psycopg is missing."""
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("psycopg", "postgres", "a gallery on a PostgreSQL server") from error


def connect(address: Address, wait: float) -> Database:
    """A connection in autocommit. A server that is starting is waited for, one that cannot be reached is not."""
    from psycopg import Connection, Error

    until = time.monotonic() + wait
    while True:
        try:
            return Connection.connect(address.conninfo, autocommit=True)
        except Error as error:
            told = str(error)
            if any(sign in told for sign in _STARTING) and time.monotonic() < until:
                time.sleep(_PAUSE)
                continue
            raise GalleryUnavailableError(
                f"cannot connect to {address.shown} ({without_password(told, address)}); check that the server runs "
                "and accepts this user, and the address"
            ) from None


def configure(db: Database, schema: str, wait: float, read_only: bool) -> None:
    """Look for tables in the gallery's schema, for vectors where pgvector is; one round trip.

    A search of an index goes on until there are enough that pass the filter; their order is settled here. A write that
    returned must be on the disk: where the server does not wait for that, it is told to.
    """
    db.execute(
        "SELECT set_config('search_path', concat_ws(', ', quote_ident(%s), (SELECT quote_ident(nspname) "
        "FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace WHERE extname = 'vector')), false), "
        "set_config('lock_timeout', %s, false), set_config('default_transaction_read_only', %s, false), "
        "set_config('jit', 'off', false), set_config('hnsw.iterative_scan', 'relaxed_order', false), "
        "set_config('hnsw.ef_search', %s, false), CASE WHEN current_setting('synchronous_commit') = 'off' "
        "THEN set_config('synchronous_commit', 'on', false) END",
        (schema, f"{int(wait * 1000)}ms", "on" if read_only else "off", str(EF_SEARCH)),
    )


def check_place(db: Database, address: Address) -> None:
    """Refuse to go on where the gallery's schema is not the one that tables are looked for in."""
    if (here := db.execute("SELECT current_schema()").fetchone()) != (address.schema,):
        raise GalleryError(
            f"{address.shown} is gone, or this user may not look into it (tables would be looked for in "
            f"{here and here[0]!r}); ask its owner for: GRANT USAGE ON SCHEMA ..."
        )


class Pool:
    """At most ``size`` connections, made when they are needed; a thread that finds none free waits for one."""

    def __init__(self, address: Address, wait: float, read_only: bool, size: int) -> None:
        self._address, self._wait, self._read_only, self._size = address, wait, read_only, size
        self._closed = False
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._idle: list[Database] = []
        self._room = threading.Semaphore(self._size)

    @contextmanager
    def transaction(self, begin: str) -> Iterator[Database]:
        """All or nothing: committed at the end, rolled back if anything is raised."""
        if self._process != os.getpid():  # connections do not survive a fork; the parent goes on using them
            self._start()
        with self._room, translated(self._address):
            db = self._begun(begin)
            try:
                yield db
            except BaseException:
                with suppress(Exception):  # the server rolls back a lost connection by itself
                    db.execute("ROLLBACK")
                self._give_back(db)
                raise
            self._commit(db, begin)
            self._give_back(db)

    def fresh(self) -> Database:
        """A connection of one's own, to be closed by who asked for it."""
        if self._closed:
            raise GalleryUnavailableError(f"the {self._address.shown} is closed; open it again")
        db = connect(self._address, self._wait)
        try:
            configure(db, self._address.schema, self._wait, self._read_only)
            check_place(db, self._address)
        except BaseException:
            db.close()
            raise
        return db

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it comes back."""
        self._closed = True
        if self._process == os.getpid():
            while self._idle:
                self._idle.pop().close()

    def _begun(self, begin: str) -> Database:
        """A connection in a new transaction. One that was lost while idle is replaced: nothing was asked of it yet."""
        from psycopg import OperationalError

        while not self._closed:
            try:
                db = self._idle.pop()
            except IndexError:
                break
            try:
                db.execute(begin)
            except OperationalError:
                db.close()
            else:
                return db
        db = self.fresh()
        db.execute(begin)
        return db

    def _commit(self, db: Database, begin: str) -> None:
        from psycopg import Error

        try:
            db.execute("COMMIT")
        except Error:
            lost = db.closed
            self._give_back(db)
            if lost and begin == WRITE:
                raise GalleryUnavailableError(
                    f"the connection to {self._address.shown} was lost at the last moment: this write was kept as a "
                    "whole, or not at all. Write it again: that is safe either way"
                ) from None
            raise

    def _give_back(self, db: Database) -> None:
        from psycopg.pq import TransactionStatus

        if self._closed or db.closed or db.info.transaction_status != TransactionStatus.IDLE:
            db.close()
        else:
            self._idle.append(db)


_MEANINGS = {
    "53100": "the server of {shown} has no room left; nothing of this write was kept. Make room and write again",
    "53300": "the server of {shown} has no connection left for us; close others, or raise its max_connections",
    "42501": "this user may not do that in {shown} ({error}); nothing was changed. Ask the owner for rights: GRANT ...",
    "25006": "{shown} cannot be written (opened for reading only, or a standby server); nothing was changed",
    "55P03": "somebody else is writing to {shown} and did not finish in time; nothing was changed. Try again",
    "57014": "the server cancelled it ({error}); nothing was changed in {shown}",
    "42P01": "{shown} is gone, or not whole ({error}); restore it from a copy",
    "3F000": "{shown} is gone ({error}); restore it from a copy",
    "XX001": "{shown} is damaged ({error}); restore it from a copy",
    "XX002": "an index of {shown} is damaged ({error}); let the owner run REINDEX",
}
_LOST = ("08", "57P")


def meaning(error: Exception, address: Address) -> str:
    """What an error of the server means for the gallery."""
    code = str(getattr(error, "sqlstate", None) or "")
    diagnosis = getattr(error, "diag", None)
    told = without_password((diagnosis and diagnosis.message_primary) or str(error), address)
    if (not code and _is_operational(error)) or code.startswith(_LOST):
        return f"the connection to {address.shown} was lost ({told}); nothing of this call was kept. Try again"
    return _MEANINGS.get(code, "{shown}: {error}").format(shown=address.shown, error=told)


def _is_operational(error: Exception) -> bool:
    from psycopg import OperationalError

    return isinstance(error, OperationalError)


@contextmanager
def translated(address: Address) -> Iterator[None]:
    """Say what the server's errors mean for the gallery."""
    from psycopg import DataError, Error, IntegrityError

    try:
        yield
    except Error as error:
        kind = GalleryError if isinstance(error, (DataError, IntegrityError)) else GalleryUnavailableError
        raise kind(meaning(error, address)) from error


def without_password(text: str, address: Address) -> str:
    """What the driver said, in one line."""
    line = " ".join(text.split()).rstrip(".")
    return line.replace(address.password, "***") if address.password else line
