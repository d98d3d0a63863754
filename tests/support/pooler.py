"""A tiny pooler in transaction mode, as PgBouncer's: each transaction of a client runs in the next server session.

It speaks just enough of PostgreSQL's protocol: a session is lent to a client from its first message until the server
is ready for another one outside a transaction.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

_ENCRYPTION = (80877103, 80877104)  # requests for TLS and GSS
_END, _ERROR, _READY, _OUTSIDE = b"X", b"E", b"Z", b"I"


class _Session(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    greeting: bytes


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The type of the next message, and the message."""
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)


async def _startup(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The first message of a client; encryption is declined."""
    while True:
        head = await reader.readexactly(8)
        size, code = struct.unpack("!ii", head)
        body = await reader.readexactly(size - 8)
        if code not in _ENCRYPTION:
            return head + body
        writer.write(b"N")


async def _opened(socket: str, startup: bytes) -> _Session:
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(startup)
    kind, greeting = b"", b""
    while kind != _READY:
        kind, message = await _message(reader)
        assert kind != _ERROR, message
        greeting += message
    return _Session(reader, writer, greeting)


async def _until_outside(session: _Session, client: asyncio.StreamWriter) -> None:
    """Pass the server's messages on until a transaction is over."""
    while True:
        kind, message = await _message(session.reader)
        client.write(message)
        if kind == _READY and message[5:] == _OUTSIDE:
            return


@contextmanager
def pooler(socket: str, sessions: int = 3) -> Iterator[tuple[int, list[int]]]:
    """Its port on this machine, and the sessions used so far, one entry per transaction.

    ``socket`` is the server's, which must trust everybody. All clients are taken for the same user.
    """
    loop, idle, made, used = (
        asyncio.new_event_loop(),
        asyncio.Queue[int](),
        list[_Session](),
        list[int](),
    )
    opening = asyncio.Lock()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            startup = await _startup(reader, writer)
            async with opening:
                while len(made) < sessions:
                    made.append(await _opened(socket, startup))
                    idle.put_nowait(len(made) - 1)
            writer.write(made[0].greeting)
            asked = asyncio.create_task(_message(reader))
            while (await asked)[0] != _END:
                number = await idle.get()
                used.append(number)
                over = asyncio.create_task(_until_outside(made[number], writer))
                while not over.done():
                    if asked.done():
                        made[number].writer.write(asked.result()[1])
                        asked = asyncio.create_task(_message(reader))
                    await asyncio.wait({asked, over}, return_when=asyncio.FIRST_COMPLETED)
                idle.put_nowait(number)
                over.result()  # raises if the server ended the session
        writer.close()

    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1], used
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
