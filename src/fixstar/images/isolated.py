"""Decoding in processes that can be killed, for images of strangers.

A small file can keep a decoder busy for minutes or make it take gigabytes, and a thread cannot be stopped. Here a few
processes decode. The kernel ends one that takes too long; one that takes too much memory cannot get it. The next image
then gets a new process. A process that is not busy takes the next image, and ends with the process that started it.
"""

from __future__ import annotations

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
from pathlib import Path
from typing import IO, Any

import numpy as np

from fixstar.errors import ImageError
from fixstar.images.preprocessing import Preprocessing
from fixstar.images.reading import MAX_PIXELS, ImageSource, Pixels, TooManyPixelsError, read_pixels, upright_size

_WAIT = 60.0  # seconds until a process is free
_SLACK = 50.0  # seconds beside those of its processor, to start and on a busy machine
_BYTES_PER_PIXEL = 24  # the image, converted, on white, and converted again
_BYTES_BESIDE = 1 << 30  # libraries, the file itself
_SIZES = struct.Struct(">QQ")  # of the JSON and of the bytes that follow
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_START = "from fixstar.images.isolated import _serve; _serve()"

_idle: list[_Process] = []
_changing = threading.Lock()
os.register_at_fork(after_in_child=_idle.clear)  # their pipes belong to the parent


@atexit.register
def _end_idle() -> None:
    for process in _idle:
        process.end()


class DecodeProcesses:
    """Decodes up to ``count`` images at a time, each in up to ``seconds`` of a processor. Threads may share it."""

    def __init__(self, count: int, seconds: float, max_pixels: int = MAX_PIXELS) -> None:
        self._free = threading.BoundedSemaphore(count)
        self._limits = {"seconds": seconds, "max_pixels": max_pixels}
        self._busy: set[_Process] = set()
        self._closed = False

    def pixels(self, source: ImageSource, preprocessing: Preprocessing, kind: str | None = None) -> Pixels:
        """As ``read_pixels``. Pixels that are decoded already are only resized. ``kind`` as in ``size``."""
        if not isinstance(source, (str, Path, bytes)):
            return read_pixels(source, preprocessing, int(self._limits["max_pixels"]))
        answer, content = self._ask(source, formats=kind and [kind], preprocessing=preprocessing.to_json())
        return np.frombuffer(bytearray(content), np.uint8).reshape(answer["shape"])

    def size(self, source: str | Path | bytes, kind: str | None = None) -> tuple[int, int]:
        """See ``upright_size``; ``kind`` is the only format that is tried, if given."""
        width, height = self._ask(source, formats=kind and [kind])[0]["size"]
        return width, height

    def close(self) -> None:
        """Kill the processes that are decoding: those who wait get an ``ImageError``, and so does any later call."""
        with _changing:
            self._closed = True
            for process in self._busy:
                process.kill()

    def _ask(self, source: str | Path | bytes, **wanted: Any) -> tuple[dict[str, Any], bytes]:
        path = None if isinstance(source, bytes) else str(Path(source).absolute())
        name = path or "image"
        if not self._free.acquire(timeout=_WAIT):
            raise ImageError(name, f"{_WAIT:.0f} s passed, and it was not its turn to be decoded; try again later")
        try:
            process = self._take(name)
            try:
                request = {**self._limits, **wanted, "path": path}
                patience = self._limits["seconds"] + _SLACK  # it may hang without working
                answer, content = process.ask(request, source if isinstance(source, bytes) else b"", patience)
            except BaseException as error:
                with _changing:
                    self._busy.discard(process)
                ended = process.end()
                if isinstance(error, (OSError, EOFError)):
                    raise ImageError(name, self._why(ended)) from error
                raise
            with _changing:
                self._busy.discard(process)
                _idle.append(process)
        finally:
            self._free.release()
        if "reason" in answer:
            raise (TooManyPixelsError if answer["too_many_pixels"] else ImageError)(name, answer["reason"])
        return answer, content

    def _take(self, name: str) -> _Process:
        with _changing:
            if self._closed:
                raise ImageError(name, "it was not decoded: this process is about to end")
            while _idle:
                if (process := _idle.pop()).is_alive():
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


class _Process:
    """One process, seen by the one that asks it."""

    def __init__(self) -> None:
        paths = os.pathsep.join(dict.fromkeys(path or "." for path in sys.path))
        self._socket, theirs = socket.socketpair()
        self._answers = self._socket.makefile("rb")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": paths},
                start_new_session=True,  # Ctrl-C is for the one that asks
            )

    def ask(self, request: dict[str, Any], content: bytes, patience: float) -> tuple[dict[str, Any], bytes]:
        """The answer; an ``EOFError`` or an ``OSError`` if the process ends first, or takes longer than allowed."""
        self._socket.settimeout(patience)
        _send(self._socket, request, content)
        return _receive(self._answers)

    def is_alive(self) -> bool:
        """Whether it has not ended by itself."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it, whatever it does; the one that asked sees the pipe close."""
        self._process.kill()

    def end(self) -> int:
        """End it, and forget it: its exit code, or the negative number of the signal that ended it first."""
        self.kill()
        self._answers.close()
        self._socket.close()
        return self._process.wait()


def _send(connection: socket.socket, head: dict[str, Any], content: bytes | memoryview) -> None:
    text = json.dumps(head).encode()
    connection.sendall(b"".join((_SIZES.pack(len(text), len(content)), text, content)))  # at once: the other wakes once


def _receive(stream: IO[bytes]) -> tuple[dict[str, Any], bytes]:
    sizes = stream.read(_SIZES.size)
    if len(sizes) < _SIZES.size:
        raise EOFError
    text, content = _SIZES.unpack(sizes)
    head, body = stream.read(text), stream.read(content)
    if len(body) < content:
        raise EOFError
    return json.loads(head), body


# --- the process itself


def _serve() -> None:
    """Answer requests until the one that asks closes the connection."""
    connection = socket.socket(fileno=sys.stdin.fileno())
    asked = connection.makefile("rb")
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            request, content = _receive(asked)
            signal.setitimer(signal.ITIMER_PROF, request["seconds"])  # SIGPROF ends a process that does not handle it
            _limit_memory(_BYTES_BESIDE + _BYTES_PER_PIXEL * request["max_pixels"])
            head, pixels = _answer(request, content)
            signal.setitimer(signal.ITIMER_PROF, 0)
            _send(connection, head, pixels)


def _answer(request: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes | memoryview]:
    source = content if request["path"] is None else request["path"]
    try:
        if "preprocessing" not in request:
            return {"size": upright_size(source, request["formats"], request["max_pixels"])}, b""
        preprocessing = Preprocessing.from_json(request["preprocessing"])
        pixels = np.ascontiguousarray(
            read_pixels(source, preprocessing, request["max_pixels"], formats=request["formats"])
        )
        return {"shape": pixels.shape}, pixels.data.cast("B")
    except ImageError as error:
        return {"reason": error.reason, "too_many_pixels": isinstance(error, TooManyPixelsError)}, b""


def _limit_memory(most: int) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system has such a limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
