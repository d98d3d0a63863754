"""Decoding in other processes: the same pixels, and nothing that an image does reaches the one that asks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from example_images import encoded, noise, rgb
from hostile_images import many_scans
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from wording import refuses

from fixstar.errors import ImageError
from fixstar.images import DecodeProcesses, isolated, read_pixels, reading
from fixstar.images.reading import MAX_SCANS, TooManyPixelsError, _scans, upright_size


def test_the_pixels_are_those_of_read_pixels(tmp_path: Path) -> None:
    processes = DecodeProcesses(2, 60)
    data = encoded(noise(50, 70), "JPEG")
    (tmp_path / "a.jpg").write_bytes(data)
    expected = read_pixels(data, rgb(16, 16))
    for source in (data, tmp_path / "a.jpg", str(tmp_path / "a.jpg")):
        assert np.array_equal(processes.pixels(source, rgb(16, 16)), expected)
    assert processes.size(data) == asyncio.run(processes.size_async(data, "JPEG")) == (70, 50)
    decoded = asyncio.run(processes.pixels_async(data, "JPEG", rgb(16, 16)))
    assert np.array_equal(decoded.pixels, expected)
    assert 0 <= decoded.seconds < 10
    for asked in (
        processes.size_async(data, "PNG"),
        processes.pixels_async(data, "PNG", rgb(16, 16)),
    ):
        with refuses(ImageError):
            asyncio.run(asked)
    with pytest.raises(ImageError, match="no such file"):
        processes.pixels(tmp_path / "b.jpg", rgb(16, 16))


def test_every_image_costs_something_however_small() -> None:
    async def costs() -> list[float]:
        processes = DecodeProcesses(1, seconds=10)
        data = encoded(noise(30, 40), "PNG")
        wanted = rgb(8, 8)
        return [(await processes.pixels_async(data, "PNG", wanted)).seconds for _ in range(20)]

    assert min(asyncio.run(costs())) > 1e-5


def test_an_image_of_too_many_pixels_is_told_apart_and_not_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, processes = encoded(noise(10, 11), "PNG"), DecodeProcesses(1, 60, max_pixels=109)
    for ask in (lambda: processes.size(data), lambda: processes.pixels(data, rgb(8, 8))):
        with refuses(TooManyPixelsError):
            ask()
    monkeypatch.setattr(PngImageFile, "load", lambda _: pytest.fail("it was decoded"))
    with pytest.raises(TooManyPixelsError):
        upright_size(data, max_pixels=109)


def test_a_process_that_takes_too_long_is_ended_and_replaced() -> None:
    large = encoded(noise(3000, 3000), "PNG", compress_level=0)
    with refuses(ImageError):
        DecodeProcesses(1, 0.001).pixels(large, rgb(8, 8))
    assert DecodeProcesses(1, 60).pixels(large, rgb(8, 8)).shape == (8, 8, 3)


def test_a_process_cannot_take_more_memory_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(Image.new("RGBA", (5000, 5000)), "PNG")
    program = (
        "import sys; from fixstar.images import isolated; isolated._BYTES_BESIDE = 0; "
        "isolated._BYTES_PER_PIXEL = 12; isolated._serve()"
    )
    monkeypatch.setattr(isolated, "_START", program)
    monkeypatch.setattr(isolated, "_idle", [])
    processes = DecodeProcesses(1, 60, max_pixels=25_000_000)
    with pytest.raises(ImageError, match=r"memory|crash"):
        processes.pixels(data, rgb(8, 8))
    isolated._end_idle()


def stop_one() -> None:
    """Let the process that decodes next never answer, and no clock of its own end it."""
    while len(isolated._idle) > 1:
        isolated._idle.pop().end()
    isolated._idle[0]._process.send_signal(signal.SIGSTOP)


def test_a_process_that_never_answers_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(noise(8, 8), "PNG")
    DecodeProcesses(1, 60).size(data)
    stop_one()
    monkeypatch.setattr(isolated, "_SLACK", 0.0)
    with refuses(ImageError):
        DecodeProcesses(1, 0.1).size(data)
    assert DecodeProcesses(1, 60).size(data) == (8, 8)


def test_who_leaves_while_waiting_takes_no_process_away() -> None:
    processes, data = DecodeProcesses(1, 60), encoded(noise(10, 11), "PNG")

    async def leave() -> None:
        assert processes._free.acquire(blocking=False)  # the only process is busy
        waiting = asyncio.ensure_future(processes.size_async(data, "PNG"))
        await asyncio.sleep(0)  # it asks, and waits
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        processes._free.release()
        assert await processes.size_async(data, "PNG") == (11, 10)

    asyncio.run(leave())
    assert processes._free.acquire(
        timeout=60
    )  # given back by the thread that waited for the one who left


def test_closing_ends_what_hangs() -> None:
    processes = DecodeProcesses(1, 600)
    data = encoded(noise(8, 8), "PNG")
    processes.pixels(data, rgb(8, 8))
    stop_one()
    seen: list[ImageError] = []

    def ask() -> None:
        try:
            processes.pixels(data, rgb(8, 8))
        except ImageError as error:
            seen.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    while not processes._busy:
        threading.Event().wait(0.01)
    processes.close()
    asking.join(60)
    assert "about to end" in seen[0].reason
    with pytest.raises(ImageError, match="about to end"):
        processes.pixels(data, rgb(8, 8))


def test_processes_end_with_the_one_that_asks(tmp_path: Path) -> None:
    program = (
        "import os, sys, signal, numpy; from fixstar.images import *; from fixstar.images import isolated\n"
        "DecodeProcesses(1, 60).size(open(sys.argv[1], 'rb').read())\n"
        "print(isolated._idle[0]._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    (tmp_path / "a.png").write_bytes(encoded(noise(8, 8), "PNG"))
    found = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "a.png"], stdout=subprocess.PIPE, check=False
    )
    assert found.returncode == -signal.SIGKILL
    for _ in range(3000):
        try:
            os.kill(int(found.stdout), 0)
        except ProcessLookupError:
            return
        threading.Event().wait(0.01)
        if (
            Path(f"/proc/{int(found.stdout)}/stat").read_text().split()[2] == "Z"
        ):  # nobody collects it in a container
            return
    raise AssertionError("the process lives on")


@pytest.mark.parametrize("count", [1, 3, 40])
def test_scans_are_counted_up_to_the_end_of_the_image(count: int) -> None:
    data = many_scans(count, 64)
    assert _scans(data + b"\xff\xda" * 999) == _scans(many_scans(1, 64)) + count - 1
    assert read_pixels(data + b"\xff\xda" * 999, rgb(8, 8)).shape == (
        8,
        8,
        3,
    )  # the file is read from where it was


def test_scans_are_not_counted_one_by_one_where_there_cannot_be_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That takes a quarter of the time to decode a photo, and no other thread decodes meanwhile."""
    monkeypatch.setattr(reading, "_scans", lambda _: pytest.fail("they were counted"))
    for progressive in (False, True):
        data = encoded(noise(64, 64), "JPEG", progressive=progressive)
        assert read_pixels(data, rgb(8, 8)).shape == (8, 8, 3)


def test_a_jpeg_of_too_many_scans_is_not_decoded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(JpegImageFile, "load", lambda _: pytest.fail("it was decoded"))
    (tmp_path / "a.jpg").write_bytes(many_scans(MAX_SCANS, 64))
    for source in (many_scans(100_000, 64), tmp_path / "a.jpg"):
        with refuses(ImageError):
            read_pixels(source, rgb(8, 8))


@pytest.mark.parametrize("progressive", [False, True])
def test_ordinary_jpegs_pass(progressive: bool) -> None:
    data = encoded(
        noise(64, 64), "JPEG", progressive=progressive, exif=b"Exif\0\0" + b"\xff\xda" * 999
    )
    assert read_pixels(data, rgb(8, 8)).shape == (8, 8, 3)
