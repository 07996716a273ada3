"""Original and generated images as one data set."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from robustzoo.data.image_dataset import DataError, ImageDataset


class MixedImages(ImageDataset):
    """Original images, then generated ones: item i >= len(original) is generated image i - len(original).

    For batches in a fixed proportion see MixedOrder. Key, classes and `shortfall` are those of the original
    images. Raises DataError where image shapes or numbers of classes differ.
    """

    def __init__(self, original: ImageDataset, generated: ImageDataset):
        for what in ("image_shape", "num_classes"):
            one, other = getattr(original, what), getattr(generated, what)
            if one != other:
                raise DataError(
                    f"{original.key} has {what} {one}, the generated images {other}; use images that were "
                    "generated for this data set"
                )
        self.original, self.generated = original, generated
        self.shortfall = original.shortfall
        labels = np.concatenate([original.labels, generated.labels])
        super().__init__(original.key, original.split, labels, original.image_shape, original.classes)

    def training_item(self, i: int, seed: int, epoch: int, augmentation: str) -> tuple[Tensor, int]:
        if i < len(self.original):
            return self.original.training_item(i, seed, epoch, augmentation)
        return super().training_item(i, seed, epoch, augmentation)  # keyed by i, which no original has

    def _image(self, i: int) -> Tensor:
        n = len(self.original)
        return self.original[i][0] if i < n else self.generated[i - n][0]
