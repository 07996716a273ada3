"""Data: images as pixels in [0, 1], digested subsets, and the order and augmentation of training."""

from robustzoo.data.batches import TrainingBatch, training_batches
from robustzoo.data.datasets import load_dataset
from robustzoo.data.image_dataset import DataError, ImageDataset, MissingData
from robustzoo.data.order import MixedOrder, TrainingOrder
from robustzoo.data.readers.generated_images import GeneratedImages, MixedImages
from robustzoo.data.sources import DatasetSource, TensorSource, open_data
from robustzoo.data.subsets import Subset, evaluation_subset, pixel_digest
from robustzoo.data.transforms import augment, cutmix

__all__ = [
    "DataError",
    "DatasetSource",
    "GeneratedImages",
    "ImageDataset",
    "MissingData",
    "MixedImages",
    "MixedOrder",
    "Subset",
    "TensorSource",
    "TrainingBatch",
    "TrainingOrder",
    "augment",
    "cutmix",
    "evaluation_subset",
    "load_dataset",
    "open_data",
    "pixel_digest",
    "training_batches",
]
