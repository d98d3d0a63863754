"""Datasets, task streams, replay memory, and batches made on the device."""

from fixstar.data.batches import Batch, Batches, BatchSource
from fixstar.data.formats import open_images
from fixstar.data.image_set import ImageSet, concatenate, from_arrays
from fixstar.data.pixels import Augmentation, augmented_views, pixel_source
from fixstar.data.replay import ReplayMemory
from fixstar.data.streams import (
    Task,
    TaskStream,
    class_and_sample_stream,
    class_order,
    class_stream,
    sample_stream,
)

__all__ = [
    "Augmentation",
    "Batch",
    "BatchSource",
    "Batches",
    "ImageSet",
    "ReplayMemory",
    "Task",
    "TaskStream",
    "augmented_views",
    "class_and_sample_stream",
    "class_order",
    "class_stream",
    "concatenate",
    "from_arrays",
    "open_images",
    "pixel_source",
    "sample_stream",
]
