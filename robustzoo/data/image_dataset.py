"""What a data set of the zoo is: pixels in [0, 1] and integer labels by position, the same on every read."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from robustzoo.data.transforms import random_resized_crop
from robustzoo.errors import RobustzooError
from robustzoo.registry.catalog import DATASETS

BY_PLACE, BY_NAME, AS_STATED = "by place", "by name", "as stated"
SPLITS = ("train", "holdout", "test")


class DataError(RobustzooError):
    """Data that are there but not what was expected."""


class MissingData(RobustzooError, FileNotFoundError):
    """Data that are not there."""


@contextmanager
def reading(expected: str, advice: str = "fetch it again") -> Iterator[None]:
    """While bytes of another format are read: raises DataError in place of what its reader raises on damage.

    expected: what the file is not, in words ("FILE is no readable parquet file"). advice: the next step.
    """
    try:
        yield
    except (DataError, MissingData, MemoryError):
        raise
    except Exception as error:
        # All kinds: a flipped bit takes the readers of zip, parquet and image files anywhere, and zlib.error,
        # IndexError, NotImplementedError, struct.error and tokenize.TokenError have all been seen.
        raise DataError(f"{expected} ({_why(error)}); {advice}") from error


class ImageDataset(Dataset, ABC):
    """Images and labels. `dataset[i]` is (x, label): x float32 (C, H, W) in [0, 1], label int in [0, K).

    key: the name results carry. split: "train", "holdout" (training images kept out for choosing) or "test".
    labels: int64 (N,), or None where only reading the items tells. image_shape: (C, H, W). classes: K names.
    shortfall: what is missing of the catalog's images, in words for a report, or "" where nothing is.
    transform: how images of other sizes were brought to image_shape, JSON-able, as Evidence states it; None
    where the data themselves have that shape, or where the catalog says how. numbered: BY_PLACE where labels
    are places among the data's own classes, AS_STATED where somebody said which outputs they are, BY_NAME
    where they were found among a model's classes. notes, warnings: what a caller should be told of how the
    images were read.
    """

    shortfall: str = ""
    transform: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    numbered: str = BY_PLACE

    def __init__(
        self,
        key: str,
        split: str,
        labels: np.ndarray | None,
        image_shape: tuple[int, int, int],
        classes: tuple[str, ...],
    ):
        self.key = key
        self.split = split
        self.labels = labels
        self.image_shape = image_shape
        self.classes = classes

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def complete(self) -> bool:
        """Whether these are all the images of the catalog's data set (for "train": with its holdout)."""
        return not self.shortfall

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        i = self._position(i)
        return self._image(i), int(self.labels[i])

    def training_item(self, i: int, seed: int, epoch: int, augmentation: str) -> tuple[Tensor, int]:
        """Item i as training epoch `epoch` sees it before `augment`, which does not crop.

        augmentation: of the recipe. With "crop" a random part of the image, keyed by (seed, epoch, i), is
        resized to image_shape; otherwise this is the item itself. Larger photographs have their own rule.
        """
        x, label = self[i]
        return (random_resized_crop(x, seed, epoch, i) if augmentation == "crop" else x), label

    @property
    def found_by_name(self) -> bool:
        return self.numbered == BY_NAME

    def relabelled(self, places: Sequence[int], classes: Sequence[str], numbered: str) -> ImageDataset:
        """The same images with label k as `places[k]`, of other classes."""
        made = copy(self)
        made._relabel(np.asarray(places, np.int64))
        made.classes, made.numbered = tuple(classes), numbered
        return made

    def _relabel(self, places: np.ndarray) -> None:
        if self.labels is None:
            raise DataError(
                f"the labels of {self.key} are not known before its items are read: number them as the "
                "model's outputs, and leave the names of its classes away"
            )
        self.labels = places[self.labels]

    def _position(self, i: int) -> int:
        if not 0 <= i < len(self):
            raise IndexError(f"{self.key} {self.split} has items 0 to {len(self) - 1}, not {i}")
        return int(i)

    @abstractmethod
    def _image(self, i: int) -> Tensor:
        """Pixels of item i, float32 (C, H, W) in [0, 1]; i is a valid position."""

    def __repr__(self) -> str:
        return f"<{self.key} {self.split}: {len(self)} images {self.image_shape}, {self.num_classes} classes>"


@contextmanager
def listing(what: str) -> Iterator[None]:
    """While folders are looked through: raises DataError, naming the place, where the system refuses one.

    what: the data set, in words.
    """
    try:
        yield
    except MissingData:
        raise
    except OSError as error:  # no permission, a link that leads to itself, a disk that fails
        raise DataError(
            f"{error.filename or what} cannot be read ({error.strerror or error}), which {what} needs; give "
            "read permission there, or mend or remove the link"
        ) from error


def _why(error: Exception) -> str:
    """The error without the address of a buffer, which says nothing and differs every time."""
    return re.sub(r" <_io\.\w+ object at 0x[0-9a-f]+>", "", str(error)) or type(error).__name__


def to_bytes(image: Image.Image) -> np.ndarray:
    """uint8 (C, H, W) of a decoded image."""
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None].copy() if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def to_unit(pixels: np.ndarray) -> Tensor:
    """uint8 (C, H, W) -> float32 in [0, 1], divided by 255."""
    return torch.from_numpy(pixels).to(torch.float32).div_(255)


def existing_root(key: str, root: str | Path | None, layout: str) -> Path:
    """The path a loader reads from. Raises MissingData where none is given or it does not exist."""
    if key in DATASETS:
        layout += f"; source: {DATASETS[key].source}"
    if root is None:
        raise MissingData(
            f"{key} needs the folder of its images (data_root=DIR; on the command line --data-root DIR, in "
            f"training --data DIR): {layout}"
        )
    path = Path(root).expanduser()
    if not path.exists():
        raise MissingData(f"no data at {path}; expected for {key}: {layout}")
    return path


def refuse_root(key: str, root: str | Path | None, source: str = "") -> None:
    """For data that need no folder: raises MissingData or DataError where one is named, since nothing would
    be read from it.

    source: where the data come from instead, in words.
    """
    if root is None:
        return
    if not Path(root).expanduser().exists():
        raise MissingData(f"no data at {root}; {key} {source}need no data folder, so leave it away")
    raise DataError(
        f"the data folder {str(root)!r} would not be read: {key} {source}need no data folder, so leave it "
        "away. To evaluate the images of a folder, give the folder itself as data (--data DIR)"
    )


def take_stock(dataset: ImageDataset, found: int, where: Path) -> None:
    """Compare the images found (for "train" and "holdout": both together) with the catalog; set `shortfall`.

    Raises DataError where there are more than the catalog's data set has, since results would carry its name.
    """
    spec = DATASETS[dataset.key]
    what, expected = ("test", spec.test_size) if dataset.split == "test" else ("training", spec.train_size)
    if found > expected:
        raise DataError(
            f"{where} has {found:,} {what} images, but {dataset.key} has {expected:,}; give the folder of "
            "this data set alone"
        )
    if found < expected:
        dataset.shortfall = (
            f"{found:,} of the {expected:,} {what} images of {dataset.key} are at hand ({where})"
        )
