"""Photographs of any size, brought to one size as ImageNet models expect them."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from PIL import Image
from torch import Tensor

from robustzoo.data.image_dataset import DataError, ImageDataset, to_bytes, to_unit
from robustzoo.data.transforms import centre_crop, random_crop, resize_short_side, resized_crop


class Photographs(ImageDataset):
    """Images decoded on access, nothing kept. image_shape: (channels, image_size, image_size).

    An item is the photograph with its short side resized to `resize` pixels, cropped at the centre. For
    training, augmentation "fb" crops the resized photograph at a random place (ours), "crop" resizes a random
    part of the whole photograph, "none" takes the item; all keyed by seed, epoch and item.
    resize: None where the images must have image_size already; others are then refused, when read.

    Raises: ValueError where the crop does not fit; DataError, on access, where an image is broken.
    """

    def __init__(
        self,
        key: str,
        split: str,
        labels: np.ndarray,
        classes: tuple[str, ...],
        image_size: int = 224,
        resize: int | None = 256,
        channels: int = 3,
    ):
        if resize is not None and not 1 <= image_size <= resize:
            raise ValueError(
                f"cannot crop {image_size} pixels from {resize}; choose resize >= image_size >= 1"
            )
        self._resize = resize
        super().__init__(key, split, labels, (channels, image_size, image_size), classes)

    @abstractmethod
    def _photograph(self, i: int) -> tuple[Image.Image, str]:
        """Item i decoded as RGB (grey for one channel), and how an error names it."""

    def training_item(self, i: int, seed: int, epoch: int, augmentation: str) -> tuple[Tensor, int]:
        if self._resize is None or augmentation == "none":
            return super().training_item(i, seed, epoch, augmentation)
        i, size = self._position(i), self.image_shape[1]
        photograph, _ = self._photograph(i)
        if augmentation == "crop":
            photograph = resized_crop(photograph, size, seed, epoch, i)
        else:
            photograph = random_crop(resize_short_side(photograph, self._resize), size, seed, epoch, i)
        return to_unit(to_bytes(photograph)), int(self.labels[i])

    def _image(self, i: int) -> Tensor:
        photograph, origin = self._photograph(i)
        size = self.image_shape[1]
        if self._resize is not None:
            photograph = centre_crop(resize_short_side(photograph, self._resize), size)
        elif photograph.size != (size, size):
            raise DataError(
                f"{origin}: an image of {photograph.width} x {photograph.height} pixels, but {self.key} has "
                f"{size} x {size}; check that the folder holds this data set"
            )
        return to_unit(to_bytes(photograph))
