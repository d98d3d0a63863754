"""fixstar: upgrade your image-embedding model, keep your gallery.

Names are imported on first use, so that ``import fixstar`` costs nothing and gallery code never loads torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from fixstar import losses
    from fixstar.evaluation.cross_test import cross_test
    from fixstar.gallery import open_gallery
    from fixstar.images import Preprocessing
    from fixstar.models import Encoder, SimplexClassifier
    from fixstar.training import train_versions as train
    from fixstar.translation import load_translation
    from fixstar.translation.bridge import bridge
    from fixstar.translation.judge import judge
    from fixstar.workspace import Workspace

_HOMES = {  # module of each name, and its name there
    "Encoder": ("models", "Encoder"),
    "Preprocessing": ("images", "Preprocessing"),
    "SimplexClassifier": ("models", "SimplexClassifier"),
    "Workspace": ("workspace", "Workspace"),
    "bridge": ("translation.bridge", "bridge"),
    "cross_test": ("evaluation", "cross_test"),
    "judge": ("translation.judge", "judge"),
    "load_translation": ("translation", "load_translation"),
    "open_gallery": ("gallery", "open_gallery"),
    "train": ("training", "train_versions"),
}

__all__ = [
    "Encoder",
    "Preprocessing",
    "SimplexClassifier",
    "Workspace",
    "__version__",
    "bridge",
    "cross_test",
    "judge",
    "load_translation",
    "losses",
    "open_gallery",
    "train",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        home, known_as = _HOMES[name]
        return getattr(import_module(f"fixstar.{home}"), known_as)
    if name == "losses":
        return import_module("fixstar.losses")
    raise AttributeError(f"module 'fixstar' has no attribute {name!r}")
