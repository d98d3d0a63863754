"""Decoding images in processes: untrusted ones, and many at a time.

A small file can keep a decoder busy for minutes or make it use gigabytes, and a thread cannot be stopped. So a few
processes decode. The kernel ends a process that takes too long, and limits its memory. The next image then gets a new
process. Idle processes are reused. They end with the process that started them.

Many images are faster in processes too: threads hold Python's lock for a part of every image, so that on 16 cores they
decode half as many photos per second (``benchmarks/embedding_rate.py``).
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fixstar.errors import ImageError
from fixstar.images.preprocessing import Preprocessing
from fixstar.images.reading import (
    MAX_PIXELS,
    ImageSource,
    Pixels,
    TooManyPixelsError,
    read_pixels,
    upright_size,
)

_WAIT = 60.0  # maximum seconds to wait for a free process
_SLACK = 50.0  # extra seconds of wall time, for starting and for a busy machine
_BYTES_PER_PIXEL = (
    24  # for the image, its conversion, the composite on white, and a second conversion
)
_BYTES_BESIDE = 1 << 30  # for libraries and the file itself
_SIZES = struct.Struct(">QQ")  # lengths of the JSON and of the bytes that follow
_PART = 1 << 16  # maximum number of bytes per read
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_START = "from fixstar.images.isolated import _serve; _serve()"

_idle: list[_Process] = []
_changing = threading.Lock()
os.register_at_fork(after_in_child=_idle.clear)  # their pipes belong to the parent


@atexit.register
def _end_idle() -> None:
    for process in _idle:
        process.end()


class DecodedPixels(NamedTuple):
    """The pixels of an image, and the CPU seconds that decoding took."""

    pixels: Pixels
    seconds: float


class DecodeProcesses:
    """Decodes up to ``count`` images at a time, each in up to ``seconds`` of CPU time. Threads may share it.

    An event loop uses ``pixels_async`` and ``size_async``, which avoid waking a thread for each image.
    """

    def __init__(self, count: int, seconds: float, max_pixels: int = MAX_PIXELS) -> None:
        self._free = threading.BoundedSemaphore(count)
        self._waiting = ThreadPoolExecutor(count, "fixstar-decode")  # for an event loop
        self._limits = {"seconds": seconds, "max_pixels": max_pixels}
        self._busy: set[_Process] = set()
        self._closed = False

    def pixels(self, source: ImageSource, preprocessing: Preprocessing) -> Pixels:
        """As ``read_pixels``. Arrays of pixels are only resized."""
        if not isinstance(source, (str, Path, bytes)):
            return read_pixels(source, preprocessing, int(self._limits["max_pixels"]))
        return _to_array(self._ask(self._request(source, None, preprocessing)))

    def size(self, source: str | Path | bytes) -> tuple[int, int]:
        """See ``upright_size``."""
        width, height = self._ask(self._request(source, None)).head["size"]
        return width, height

    async def pixels_async(
        self, data: bytes, kind: str, preprocessing: Preprocessing
    ) -> DecodedPixels:
        """As ``read_pixels``, for one format, with the CPU time."""
        answer = await self._ask_async(self._request(data, kind, preprocessing))
        return DecodedPixels(_to_array(answer), answer.head["spent"])

    async def size_async(self, data: bytes, kind: str) -> tuple[int, int]:
        """See ``upright_size``, for one format."""
        width, height = (await self._ask_async(self._request(data, kind))).head["size"]
        return width, height

    def close(self) -> None:
        """Kill the decoding processes. Waiting and later callers get an ``ImageError``."""
        with _changing:
            self._closed = True
            for process in self._busy:
                process.kill()

    def _request(
        self,
        source: str | Path | bytes,
        kind: str | None,
        preprocessing: Preprocessing | None = None,
    ) -> _Message:
        if isinstance(source, bytes):
            path = None
        else:
            path = str(Path(source).absolute())
        wanted = {
            "path": path,
            "formats": kind and [kind],
            "preprocessing": preprocessing and _written(preprocessing),
        }
        return _Message({**self._limits, **wanted}, source if isinstance(source, bytes) else b"")

    def _ask(self, request: _Message) -> _Message:
        if not self._free.acquire(timeout=_WAIT):
            raise _not_its_turn(request)
        with self._process(request) as process:
            answer = process.ask(request, self._patience)
        return _checked(request, answer)

    async def _ask_async(self, request: _Message) -> _Message:
        if not self._free.acquire(blocking=False):
            turn = self._waiting.submit(self._free.acquire, timeout=_WAIT)
            try:
                if not await asyncio.wrap_future(turn):
                    raise _not_its_turn(request)
            except asyncio.CancelledError:  # return the process that the thread gets or has got
                turn.add_done_callback(self._give_back)
                raise
        with self._process(request) as process:
            answer = await process.ask_async(request, self._patience)
        return _checked(request, answer)

    def _give_back(self, turn: Future[bool]) -> None:
        if not turn.cancelled() and turn.result():
            self._free.release()

    @property
    def _patience(self) -> float:
        return self._limits["seconds"] + _SLACK  # it may hang without working

    @contextlib.contextmanager
    def _process(self, request: _Message) -> Iterator[_Process]:
        """A process for one request. It is idle again afterwards, or ended if it failed."""
        try:
            process = self._take(request.name)
            try:
                yield process
            except BaseException as error:
                with _changing:
                    self._busy.discard(process)
                ended = process.end()
                if isinstance(error, (OSError, EOFError)):
                    raise ImageError(request.name, self._why(ended)) from error
                raise
            with _changing:
                self._busy.discard(process)
                _idle.append(process)
        finally:
            self._free.release()

    def _take(self, name: str) -> _Process:
        with _changing:
            if self._closed:
                raise ImageError(name, "it was not decoded: this process is about to end")
            while _idle:
                process = _idle.pop()
                if process.is_alive():
                    break
                process.end()
            else:
                process = _Process()
            self._busy.add(process)
        return process

    def _why(self, ended: int) -> str:
        if self._closed:
            return "it was not decoded: this process is about to end"
        if ended in (-signal.SIGPROF, -signal.SIGKILL):
            return f"decoding it took more than {self._limits['seconds']:g} s"
        return "it made the decoder crash"


class _Message(NamedTuple):
    """A request to a process, or its answer: JSON and bytes."""

    head: dict[str, Any]
    content: bytes | bytearray | memoryview

    @property
    def name(self) -> str:
        """The name of the image in a request."""
        return self.head["path"] or "image"

    def packed(self) -> bytes:
        """As bytes for a single write, so that the other side wakes once."""
        text = json.dumps(self.head).encode()
        return b"".join((_SIZES.pack(len(text), len(self.content)), text, self.content))

    @classmethod
    def unpacked(cls, data: bytearray) -> _Message | None:
        """The inverse of ``packed``; None while bytes are missing."""
        if len(data) < _SIZES.size:
            return None
        text, content = _SIZES.unpack_from(data)
        start = _SIZES.size + text
        if len(data) < start + content:
            return None
        return cls(json.loads(data[_SIZES.size : start]), data[start:])


@lru_cache(maxsize=16)
def _written(preprocessing: Preprocessing) -> str:
    return json.dumps(preprocessing.to_json())


@lru_cache(maxsize=16)
def _read(preprocessing: str) -> Preprocessing:
    return Preprocessing.from_json(json.loads(preprocessing))


def _checked(request: _Message, answer: _Message) -> _Message:
    if "reason" in answer.head:
        if answer.head["too_many_pixels"]:
            raise TooManyPixelsError(request.name, answer.head["reason"])
        raise ImageError(request.name, answer.head["reason"])
    return answer


def _to_array(answer: _Message) -> Pixels:
    return np.frombuffer(answer.content, np.uint8).reshape(answer.head["shape"])


def _not_its_turn(request: _Message) -> ImageError:
    return ImageError(
        request.name,
        f"{_WAIT:.0f} s passed, and it was not its turn to be decoded; try again later",
    )


class _Process:
    """One process, on the side of its parent."""

    def __init__(self) -> None:
        paths = os.pathsep.join(dict.fromkeys(path or "." for path in sys.path))
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": paths},
                start_new_session=True,  # Ctrl-C is for the parent only
            )

    def ask(self, request: _Message, patience: float) -> _Message:
        """The answer; an ``EOFError`` or an ``OSError`` if the process ends first, or takes longer than allowed."""
        self._socket.settimeout(patience)
        self._socket.sendall(request.packed())
        return _receive(self._socket)

    async def ask_async(self, request: _Message, patience: float) -> _Message:
        """The same for an event loop."""
        loop = asyncio.get_running_loop()
        seen = bytearray()
        self._socket.settimeout(0)
        late = loop.call_later(patience, self.kill)
        try:
            await loop.sock_sendall(self._socket, request.packed())
            while (answer := _Message.unpacked(seen)) is None:
                seen += await loop.sock_recv(self._socket, _PART) or _ended()
        finally:
            late.cancel()
        return answer

    def is_alive(self) -> bool:
        """Whether it is still running."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill it; a waiting caller sees the pipe close."""
        self._process.kill()

    def end(self) -> int:
        """End it; returns its exit code, or the negative number of the signal that ended it before."""
        self.kill()
        self._socket.close()
        return self._process.wait()


def _receive(connection: socket.socket) -> _Message:
    seen = bytearray()
    while (message := _Message.unpacked(seen)) is None:
        seen += connection.recv(_PART) or _ended()
    return message


def _ended() -> bytes:
    raise EOFError


# --- the process itself


def _serve() -> None:
    """Answer requests until the parent closes the connection."""
    connection = socket.socket(fileno=sys.stdin.fileno())
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            request = _receive(connection)
            limits = request.head
            signal.setitimer(
                signal.ITIMER_PROF, limits["seconds"]
            )  # SIGPROF ends a process that does not handle it
            _limit_memory(_BYTES_BESIDE + _BYTES_PER_PIXEL * limits["max_pixels"])
            before = _processor_seconds()
            answer = _answer(request)
            answer.head["spent"] = _processor_seconds() - before
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.sendall(answer.packed())


def _processor_seconds() -> float:
    """The CPU time of this process. ``time.process_time`` only changes at ticks while a timer runs."""
    import resource

    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


def _answer(request: _Message) -> _Message:
    wanted = request.head
    source = bytes(request.content) if wanted["path"] is None else wanted["path"]
    try:
        if wanted["preprocessing"] is None:
            return _Message(
                {"size": upright_size(source, wanted["formats"], wanted["max_pixels"])}, b""
            )
        pixels = read_pixels(
            source, _read(wanted["preprocessing"]), wanted["max_pixels"], formats=wanted["formats"]
        )
        return _Message({"shape": pixels.shape}, np.ascontiguousarray(pixels).data.cast("B"))
    except ImageError as error:
        return _Message(
            {"reason": error.reason, "too_many_pixels": isinstance(error, TooManyPixelsError)}, b""
        )


def _limit_memory(most: int) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system has such a limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
