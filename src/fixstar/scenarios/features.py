"""What a version makes of query and gallery images, ready for a cross-test."""

from __future__ import annotations

from fixstar.data.image_set import ImageSet
from fixstar.evaluation import VersionFeatures
from fixstar.models import Encoder

__all__ = ["version_features"]


def version_features(
    name: str, encoder: Encoder, queries: ImageSet, gallery: ImageSet, progress: bool = False
) -> VersionFeatures:
    """Short forms of both sets, made once, with what carries other versions' vectors to them."""
    vectors = [encoder.encode(part.images, form="short", progress=progress) for part in (queries, gallery)]
    adapt = None if encoder.adapter is None else encoder.adapter.adapt
    return VersionFeatures(
        name, vectors[0], vectors[1], encoder.projection_matrix(), adapt, parts=encoder.classifier.parts
    )
