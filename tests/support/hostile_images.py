"""Images that were made to do harm."""

from __future__ import annotations

import io

from PIL import Image


def many_scans(count: int, side: int = 2000) -> bytes:
    """A progressive JPEG whose last scan comes ``count`` times: a few bytes each, and a pass over the whole image."""
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), "navy").save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    start = data.rindex(b"\xff\xda")
    return data[:start] + data[start:-2] * count + data[-2:]
