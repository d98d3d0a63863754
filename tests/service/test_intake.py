"""Images that were made to do harm, and those that only look like it."""

from __future__ import annotations

import asyncio
import io
import signal
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hostile_images import many_scans
from PIL import Image
from service_clients import client, picture
from shops import shop

from fixstar.images import DecodeProcesses, Preprocessing, isolated
from fixstar.service.intake import Intake, image_kind
from fixstar.service.problems import Problem
from fixstar.service.settings import ServiceSettings

SMALL = Preprocessing(size=(8, 8), mean=(0, 0, 0), std=(1, 1, 1))


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with client(shop(tmp_path_factory.mktemp("shop") / "shop", versions=1)) as asking:
        yield asking


def status(http: TestClient, data: bytes) -> int:
    answer = http.post("/v1/search", files={"image": ("a.png", data)})
    assert answer.status_code < 500
    if answer.status_code != 200:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["hint"]
    return answer.status_code


def png(width: int, height: int, *chunks: tuple[bytes, bytes], pixels: bytes = b"") -> bytes:
    """A PNG of any claims."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    middle = b"".join(chunk(kind, data) for kind, data in chunks)
    return b"\x89PNG\r\n\x1a\n" + header + middle + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def tiff(width: int, height: int, strip: int = 4) -> bytes:
    """A TIFF that claims a size and a strip of bytes that is not there."""
    entries = [
        (256, 4, width),
        (257, 4, height),
        (258, 3, 8),
        (259, 3, 1),
        (262, 3, 1),
        (273, 4, 8),
        (277, 3, 1),
    ]
    entries += [(278, 4, height), (279, 4, strip)]
    body = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in entries)
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(entries)) + body + bytes(4)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_every_allowed_format_is_known_by_its_content(http: TestClient, kind: str) -> None:
    data = picture(1, kind=kind)
    assert image_kind(data) == kind
    assert status(http, data) == 200


def test_a_query_is_sent_to_be_decoded_once(
    http: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, request = list[Any](), DecodeProcesses._request

    def counted(processes: DecodeProcesses, source: Any, kind: Any, *rest: Any) -> Any:
        asked.append(kind)
        return request(processes, source, kind, *rest)

    monkeypatch.setattr(DecodeProcesses, "_request", counted)
    for _ in range(2):  # the preprocessing is not known before the first
        assert status(http, picture(1, kind="PNG")) == 200
    assert asked == ["PNG", "PNG"]


@pytest.mark.parametrize("kind", ["PPM", "ICO", "PDF", "EPS", "JPEG2000"])
def test_other_formats_are_not_opened(http: TestClient, kind: str) -> None:
    assert status(http, picture(1, kind=kind)) == 415


@pytest.mark.parametrize(
    "data", [b"", b"x", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"PK\3\4", bytes(1000)]
)
def test_what_is_no_image_is_refused(http: TestClient, data: bytes) -> None:
    assert status(http, data) == 415


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_cut_short(http: TestClient, kind: str, share: float) -> None:
    data = picture(1, (120, 90), kind)
    assert status(http, data[: int(len(data) * share)]) in (415, 422)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_damaged_bytes_never_make_a_fault(http: TestClient, kind: str) -> None:
    data = bytearray(picture(1, (50, 40), kind))
    for place in range(0, min(len(data), 400), 29):
        broken = bytes(data[:place]) + bytes([data[place] ^ 0xFF]) + bytes(data[place + 1 :])
        assert status(http, broken) in (200, 415, 422)


def test_claims_of_many_pixels_are_not_decoded(http: TestClient) -> None:
    row = zlib.compress(bytes(30_000_000))
    for data in (
        png(50_000, 50_000, pixels=row),
        png(2**31 - 1, 2**31 - 1, pixels=row),
        png(10_000, 10_000, pixels=row),  # below Pillow's own limit, above ours
        tiff(100_000, 100_000),
        tiff(2**31, 2**31, 2**32 - 1),
        b"GIF89a" + struct.pack("<HH", 65535, 65535) + bytes(20),
        b"BM"
        + struct.pack(
            "<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 100_000, 100_000, 1, 24, 0, 0, 0, 0, 0, 0
        ),
        b"RIFF"
        + struct.pack("<I", 30)
        + b"WEBPVP8X"
        + struct.pack("<I", 10)
        + bytes(4)
        + b"\xff\x3f\0" * 2,
    ):
        answer = http.post("/v1/search", files={"image": ("a.png", data)})
        assert answer.status_code == 422
        assert "took more than" not in answer.json()["detail"]  # it was not the clock that ended it


def test_bombs_in_text_and_colour_profile(http: TestClient) -> None:
    bomb = zlib.compress(bytes(50_000_000), 9)
    whole = zlib.compress((b"\0" + bytes(24)) * 8)
    assert status(http, png(8, 8, pixels=whole)) == 200
    for kind, start in ((b"zTXt", b"a\0\0"), (b"iCCP", b"a\0\0"), (b"iTXt", b"a\0\1\0\0\0")):
        assert status(http, png(8, 8, (kind, start + bomb), pixels=whole)) in (200, 422)


def test_a_picture_with_too_many_bytes_of_pixels_or_too_few(http: TestClient) -> None:
    assert status(http, png(8, 8, pixels=zlib.compress(bytes(200)))) == 200
    assert status(http, png(8, 8, pixels=zlib.compress(bytes(20_000_000)))) in (200, 422)
    assert status(http, png(8, 8, pixels=zlib.compress(bytes(20)))) == 422
    assert status(http, tiff(100, 100, 4)) == 422


def test_of_an_animation_the_first_picture_counts(http: TestClient) -> None:
    frames = [Image.new("RGB", (30, 30), colour) for colour in ("red", "green", "blue")]
    buffer, alone = io.BytesIO(), io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    frames[0].save(alone, "GIF")
    http.put("/v1/item?id=moving", files={"image": buffer.getvalue()})
    hit = http.post("/v1/search?k=1", files={"image": alone.getvalue()}).json()["hits"][0]
    assert (hit["id"], hit["score"]) == ("moving", pytest.approx(1, abs=1e-5))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF"])
def test_a_picture_that_is_also_a_script_is_only_ever_shown_as_a_picture(
    http: TestClient, kind: str
) -> None:
    both = picture(1, kind=kind) + b"PK\3\4<script>alert(1)</script>"
    assert (
        http.put("/v1/item?id=both", files={"image": ("x.html", both, "text/html")}).status_code
        == 200
    )
    shown = http.get("/v1/item/image?id=both")
    assert shown.headers["content-type"] == "image/jpeg"
    assert b"script" not in shown.content


def test_a_file_keeps_neither_its_name_nor_its_suffix(tmp_path: Path) -> None:
    space = shop(tmp_path / "shop", versions=1)
    with client(space) as http:
        http.put("/v1/item?id=../../x", files={"image": ("../../../evil.php", picture(1))})
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and "images" in path.parts]
    assert [path.suffix for path in kept] == [".png"]
    assert not list(tmp_path.rglob("*evil*"))


def test_decoding_has_a_time_limit_and_gives_its_place_back() -> None:
    large = io.BytesIO()
    Image.effect_noise((2000, 2000), 50).save(large, "PNG", compress_level=1)

    async def work() -> None:
        intake = Intake(ServiceSettings(decode_seconds=0.005))
        with pytest.raises(Problem, match=r"more than 0\.005 s"):
            await asyncio.gather(*(intake.read(large.getvalue(), SMALL) for _ in range(6)))
        intake.close()
        intake = Intake(ServiceSettings())
        many = await asyncio.gather(*(intake.read(picture(i), SMALL) for i in range(20)))
        assert all(read.pixels.shape == (8, 8, 3) for read in many)
        intake.close()

    asyncio.run(work())


def test_a_jpeg_with_very_many_scans_is_refused(http: TestClient) -> None:
    answer = http.post("/v1/search", files={"image": many_scans(5000)})
    assert answer.status_code == 422
    assert "scans" in answer.json()["detail"]


def test_a_decoder_that_hangs_is_killed_when_the_service_stops() -> None:
    async def work() -> None:
        intake = Intake(ServiceSettings())
        await intake.read(picture(), SMALL)
        while len(isolated._idle) > 1:
            isolated._idle.pop().end()
        isolated._idle[0]._process.send_signal(
            signal.SIGSTOP
        )  # it will never answer, and no clock of its own ends it
        waiting = asyncio.create_task(intake.read(picture(), SMALL))
        while not intake.processes._busy:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(intake.close)
        with pytest.raises(Problem, match="about to end"):
            await waiting

    asyncio.run(work())
