"""Photographs in one folder per class."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from PIL import Image

from robustzoo.data.image_dataset import DataError, decode, existing_root
from robustzoo.data.readers.photographs import Photographs, sides

_SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp")


class ImageFolder(Photographs):
    """Images under folder/<class>/, in order of class folder and file name.

    Memory: the file names (about 40 bytes an image). class_index: class folder -> label in [0, len(classes)).
    Raises DataError where a class folder is unknown or empty, and what Photographs raises.
    """

    def __init__(
        self,
        key: str,
        split: str,
        folder: Path,
        class_index: dict[str, int],
        classes: tuple[str, ...],
        image_size: int | tuple[int, int] = 224,
        resize: int | tuple[int, int] | None = 256,
        channels: int = 3,
    ):
        self._folder = folder
        names, labels = [], []
        for name in class_folders(folder):
            if name not in class_index:
                raise DataError(
                    f"{folder / name} is none of the {len(classes)} classes of {key}; remove the folder"
                )
            images = sorted(e.name for e in os.scandir(folder / name) if e.name.lower().endswith(_SUFFIXES))
            if not images:
                raise DataError(f"{folder / name} holds no image ({', '.join(_SUFFIXES)}); fill or remove it")
            names += [os.fsencode(f"{name}/{image}") for image in images]
            labels += [class_index[name]] * len(images)
        self._names = np.array(names)  # fixed-width bytes: a list of a million paths would take 100 MB
        super().__init__(key, split, np.array(labels, np.int64), classes, image_size, resize, channels)

    def select(self, items: np.ndarray) -> ImageFolder:
        """Keep only these items, in this order. Returns self."""
        self._names, self.labels = self._names[items], self.labels[items]
        return self

    def _photograph(self, i: int) -> tuple[Image.Image, str]:
        path = self._folder / os.fsdecode(self._names[i])
        return decode(path, self.image_shape[0], f"image {i}, {path}"), f"image {i}, {path}"


def class_folders(folder: Path) -> list[str]:
    """Names of the folders in a folder, sorted, hidden ones left out."""
    return sorted(e.name for e in os.scandir(folder) if not e.name.startswith(".") and e.is_dir())


def open_folder(
    root: str | Path,
    image_size: int | tuple[int, int] = 224,
    resize: int | tuple[int, int] | None = None,
    channels: int = 3,
) -> ImageFolder:
    """Anyone's images in one folder per class; labels count the folders in sorted order, from 0.

    image_size: of the centre crop, one number for a square or (height, width).
    resize: what the image is scaled to just cover before (default: image_size * 256 / 224, rounded).
    channels: 3 for RGB, 1 for grey.
    Raises MissingData where there is no such folder, DataError where it has no class folders or an empty one.
    """
    folder = existing_root("a folder of images", root, "one folder of images per class")
    names = class_folders(folder) if folder.is_dir() else []
    if not names:
        raise DataError(f"{folder} has no folders inside; expected one folder of images per class")
    index = {name: i for i, name in enumerate(names)}
    if resize is None:
        height, width = sides(image_size)
        resize = round(height * 256 / 224), round(width * 256 / 224)
    return ImageFolder(
        folder.resolve().name, "test", folder, index, tuple(names), image_size, resize, channels
    )
