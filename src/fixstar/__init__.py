"""fixstar: upgrade your image-embedding model, keep your gallery.

Names are imported on first use, so that ``import fixstar`` costs nothing and gallery code never loads torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fixstar.models import Encoder

_HOMES = {"Encoder": "fixstar.models"}

__all__ = ["Encoder", "__version__"]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fixstar' has no attribute {name!r}")
