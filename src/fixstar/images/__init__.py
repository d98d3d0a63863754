"""Reading one image or very many.

Anything a user passes (a path, encoded bytes, a PIL image, an array, a tensor) becomes uint8 [H, W, C] of one size:
upright, transparency on white, any colour mode. An unreadable image always raises ``ImageError`` with
its name and a plain reason. A partial image is never returned. A header with absurd dimensions is refused before
decoding. ``DecodeProcesses`` is for untrusted images. torch is never imported here; a tensor is recognised if the
caller has imported torch.
"""

from fixstar.images.isolated import DecodeProcesses
from fixstar.images.preprocessing import Preprocessing
from fixstar.images.reading import (
    MAX_PIXELS,
    Decode,
    ImageSource,
    Pixels,
    decode_ahead,
    read_pixels,
)

__all__ = [
    "MAX_PIXELS",
    "Decode",
    "DecodeProcesses",
    "ImageSource",
    "Pixels",
    "Preprocessing",
    "decode_ahead",
    "read_pixels",
]
