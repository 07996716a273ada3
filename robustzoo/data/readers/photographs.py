"""Photographs of any size, brought to one size as ImageNet models expect them."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from PIL import Image
from torch import Tensor

from robustzoo.data.image_dataset import DataError, ImageDataset, to_bytes, to_unit
from robustzoo.data.transforms import centre_crop, random_crop, resize_to_cover, resized_crop


class Photographs(ImageDataset):
    """Images decoded on access, nothing kept. image_shape: (channels, height, width).

    An item is the photograph scaled to just cover `resize` pixels (of a square: its short side), cropped at
    the centre to `image_size`, each one number for a square or (height, width). For
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
        image_size: int | tuple[int, int] = 224,
        resize: int | tuple[int, int] | None = 256,
        channels: int = 3,
    ):
        height, width = sides(image_size)
        self._resize = None if resize is None else sides(resize)
        if self._resize is not None and not (
            1 <= height <= self._resize[0] and 1 <= width <= self._resize[1]
        ):
            raise ValueError(
                f"cannot crop {image_size} pixels from {resize}; choose resize >= image_size >= 1"
            )
        super().__init__(key, split, labels, (channels, height, width), classes)

    @abstractmethod
    def _photograph(self, i: int) -> tuple[Image.Image, str]:
        """Item i decoded as RGB (grey for one channel), and how an error names it."""

    def training_item(self, i: int, seed: int, epoch: int, augmentation: str) -> tuple[Tensor, int]:
        if self._resize is None or augmentation == "none":
            return super().training_item(i, seed, epoch, augmentation)
        i, (_, height, width) = self._position(i), self.image_shape
        photograph, _ = self._photograph(i)
        if augmentation == "crop":
            photograph = resized_crop(photograph, height, width, seed, epoch, i)
        else:
            photograph = resize_to_cover(photograph, *self._resize)
            photograph = random_crop(photograph, height, width, seed, epoch, i)
        return to_unit(to_bytes(photograph)), int(self.labels[i])

    def _image(self, i: int) -> Tensor:
        photograph, origin = self._photograph(i)
        _, height, width = self.image_shape
        if self._resize is not None:
            photograph = centre_crop(resize_to_cover(photograph, *self._resize), height, width)
        elif photograph.size != (width, height):
            raise DataError(
                f"{origin}: an image of {photograph.width} x {photograph.height} pixels, but {self.key} has "
                f"{width} x {height}; check that the folder holds this data set"
            )
        return to_unit(to_bytes(photograph))


def sides(size: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width) of a size given as that or, for a square, as one number."""
    return size if isinstance(size, tuple) else (size, size)
