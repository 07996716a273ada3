"""Images of which some may be broken: the next readable one stands in, where that was asked for."""

from __future__ import annotations

import threading

from torch import Tensor

from robustzoo.data import DataError, ImageDataset
from robustzoo.training.progress import say

MOST_SKIPPED = 0.01  # of the images; more is no accident of single files, but a wrong folder or a bad disk


class ReadableImages(ImageDataset):
    """A data set in which an image that cannot be read is replaced by the next one that can.

    Each broken image is named once on stderr, with what it lacks and which image stands in. What stands in
    depends on the data alone, so that a resumed run is the uninterrupted one.

    Raises DataError where more than MOST_SKIPPED of the images, and more than one, are broken.
    """

    def __init__(self, images: ImageDataset) -> None:
        super().__init__(images.key, images.split, images.labels, images.image_shape, images.classes)
        self.images = images
        self.shortfall = images.shortfall
        self.skipped: dict[int, str] = {}
        self._lock = threading.Lock()  # images are read by several threads

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self._readable(i, lambda j: self.images[j])

    def training_item(self, i: int, seed: int, epoch: int, augmentation: str) -> tuple[Tensor, int]:
        return self._readable(i, lambda j: self.images.training_item(j, seed, epoch, augmentation))

    def _image(self, i: int) -> Tensor:
        return self[i][0]

    def _readable(self, i: int, read) -> tuple[Tensor, int]:
        for step in range(len(self)):
            j = (i + step) % len(self)
            try:
                return read(j)
            except DataError as error:
                self._skip(j, error)
        raise DataError(f"none of the {len(self):,} images can be read")

    def _skip(self, i: int, error: DataError) -> None:
        with self._lock:
            if i in self.skipped:
                return
            self.skipped[i] = str(error)
            say(f"skipped, the next readable image stands in: {error}")
            if len(self.skipped) > max(1, MOST_SKIPPED * len(self)):
                raise DataError(
                    f"{len(self.skipped)} of {len(self):,} images cannot be read, more than the "
                    f"{MOST_SKIPPED:.0%} that --skip-corrupt passes over; mend or remove them. "
                    f"The last: {error}"
                ) from error
