"""Reading one image, or very many, without surprises.

Whatever a user hands over (a path, encoded bytes, a PIL image, an array, a tensor) becomes uint8 [H, W, C] of one size:
upright, transparency on white, any colour mode. What cannot be read raises ``ImageError`` with the image's name and a
plain reason, and nothing else. Half an image is never returned, and a header that claims absurd dimensions is refused
before anything is decoded. torch is never imported here; a tensor is recognised when somebody else has imported it.
"""

from fixstar.images.ahead import BadImage, decode_ahead
from fixstar.images.preprocessing import Preprocessing
from fixstar.images.reading import MAX_PIXELS, ImageSource, read_pixels

__all__ = ["MAX_PIXELS", "BadImage", "ImageSource", "Preprocessing", "decode_ahead", "read_pixels"]
