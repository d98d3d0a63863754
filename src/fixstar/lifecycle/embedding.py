"""Images to the vectors that a gallery stores, batch after batch: here, or wherever an embedder runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import GalleryError, ImageError
from fixstar.gallery import Gallery
from fixstar.gallery.transfer import made_or_same
from fixstar.images import ImageSource
from fixstar.models import Encoder

__all__ = ["Embedded", "Embedder", "LocalEmbedder", "ensure_version"]


class Embedded(NamedTuple):
    """A batch's short forms [n, width]; rows of images that could not be read are NaN, and ``bad`` says why."""

    vectors: NDArray[np.float32]
    bad: tuple[ImageError, ...]


class Embedder(Protocol):
    """Makes vectors of one version. Batches may be worked on side by side; answers come in their order."""

    def __call__(self, batches: Iterable[Sequence[ImageSource]]) -> Iterator[Embedded]:
        """One answer for each batch."""


class LocalEmbedder:
    """An encoder in this process."""

    def __init__(self, encoder: Encoder, batch_size: int = 256) -> None:
        self._encoder, self._batch_size = encoder, batch_size

    def __call__(self, batches: Iterable[Sequence[ImageSource]]) -> Iterator[Embedded]:
        """One answer for each batch, made when it is asked for."""
        for batch in batches:
            yield self.one(batch)

    def one(self, images: Sequence[ImageSource]) -> Embedded:
        """The vectors of one batch."""
        bad: list[ImageError] = []
        vectors = self._encoder.encode(images, self._batch_size, form="short", bad="skip", on_bad=bad.append)
        return Embedded(vectors, tuple(bad))


def ensure_version(gallery: Gallery, name: str, encoder: Encoder) -> None:
    """Make room for a version's vectors, if there is none yet. Its cost does not depend on the gallery's size.

    A version of that name with another space is another model's: nothing may be stored or searched under it.
    """
    projection, width = encoder.projection_matrix(), min(encoder.feature_dim, encoder.backbone.feature_dim)
    if not made_or_same(gallery, name, width, projection):
        raise GalleryError(
            f"the gallery holds vectors of another model under the name {name!r}; each workspace needs a gallery "
            "of its own (fixstar init PATH --gallery ADDRESS), and imported vectors a name of their own"
        )
