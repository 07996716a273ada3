"""Photographs of any size, brought to one size as ImageNet models expect them."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from PIL import Image
from torch import Tensor

from robustzoo.data.fit import IMAGENET, Fit
from robustzoo.data.image_dataset import ImageDataset, to_bytes, to_unit
from robustzoo.data.transforms import random_crop, resized_crop


class Photographs(ImageDataset):
    """Images decoded on access, nothing kept. image_shape: (channels, height, width).

    An item is the photograph brought to size as `fit` says. For training, augmentation "fb" crops the resized
    photograph at a random place (ours), "crop" resizes a random part of the whole photograph, "none" takes
    the item; all keyed by seed, epoch and item. Raises DataError, on access, where an image is broken.
    """

    def __init__(
        self,
        key: str,
        split: str,
        labels: np.ndarray,
        classes: tuple[str, ...],
        fit: Fit = IMAGENET,
        channels: int = 3,
    ):
        self.fit = fit
        super().__init__(key, split, labels, (channels, *fit.size), classes)

    @abstractmethod
    def _photograph(self, i: int) -> tuple[Image.Image, str]:
        """Item i decoded as RGB (grey for one channel), and how an error names it."""

    def training_item(self, i: int, seed: int, epoch: int, augmentation: str) -> tuple[Tensor, int]:
        if self.fit.resize is None or augmentation == "none":
            return super().training_item(i, seed, epoch, augmentation)
        i, (_, height, width) = self._position(i), self.image_shape
        photograph, origin = self._photograph(i)
        if augmentation == "crop":
            photograph = resized_crop(photograph, height, width, seed, epoch, i)
        else:
            photograph = self.fit.resized(photograph, origin)
            photograph = random_crop(photograph, height, width, seed, epoch, i)
        return to_unit(to_bytes(photograph)), int(self.labels[i])

    def _image(self, i: int) -> Tensor:
        photograph, origin = self._photograph(i)
        return to_unit(to_bytes(self.fit.apply(photograph, origin)))
