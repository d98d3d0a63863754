"""A tiny balancer: every connection goes to the next service in turn, or to the one after it if that is gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle, islice

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextmanager
def balancer(ports: Sequence[int]) -> Iterator[str]:
    """Its address. A client that closes the connection after each request spreads its requests."""
    loop, turn = asyncio.new_event_loop(), cycle(ports)

    async def connected() -> Stream:
        for port in islice(turn, len(ports)):
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", port)
        raise ConnectionError("no service is left")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while content := await reader.read(1 << 16):
                writer.write(content)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            service = await connected()
        except ConnectionError:
            writer.close()
            return
        await asyncio.gather(pump(reader, service[1]), pump(service[0], writer))

    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
