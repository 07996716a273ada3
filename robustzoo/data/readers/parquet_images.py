"""Images of one small size from parquet shards, kept in memory."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
from torch import Tensor

from robustzoo.data.decoder import decode
from robustzoo.data.image_dataset import DataError, ImageDataset, take_stock, to_bytes, to_unit
from robustzoo.data.readers.parquet_shards import Shard, find_shards
from robustzoo.data.subsets import training_rows

HOLDOUT_SIZE = 1000


class ParquetImages(ImageDataset):
    """A split of a data set of the catalog from the parquet shards of its root (see `find_shards`).

    Memory: the encoded bytes (46 MB for the 50,000 images of cifar10jpg) and, filled as images are first
    read, their pixels as uint8 (up to 154 MB for the same set), so that an image is decoded once.

    image_shape: as in ImageDataset. classes: K names; labels must lie in [0, K).
    split: "holdout" is a fixed random 1,000 of the training images (a tenth where there are fewer than
    10,000), "train" is the others, both in file order.

    Raises: MissingData where the folder, the split or a shard is absent; DataError on a file that is no
    parquet file, lacks the two columns, has a label out of range, or (on access) an image that is broken or
    has the wrong size, naming file and row.
    """

    def __init__(
        self,
        key: str,
        root: str | Path | None,
        split: str,
        image_shape: tuple[int, int, int],
        classes: tuple[str, ...],
    ):
        self._columns: list[pa.BinaryArray] = []  # encoded bytes, one array per stored chunk
        self._sources: list[tuple[Path, int]] = []  # file and first row of each chunk
        labels = []
        for file in find_shards(key, root, ["test" if split == "test" else "train"]):
            shard = Shard(file)
            labels.append(shard.labels(len(classes)))
            row = 0
            for chunk in shard.images():
                self._columns.append(chunk)
                self._sources.append((file, row))
                row += len(chunk)
        self._starts = np.cumsum([0, *map(len, self._columns)])
        total = int(self._starts[-1])
        if total == 0:
            raise DataError(f"{file} holds no rows; fetch the file again")
        self._rows = np.arange(total) if split == "test" else training_rows(total, split, HOLDOUT_SIZE)
        super().__init__(key, split, np.concatenate(labels)[self._rows], image_shape, classes)
        take_stock(self, total, file.parent)
        self._forget()

    def _forget(self) -> None:
        # np.zeros only reserves addresses: a page costs memory once an image is written to it.
        self._pixels = np.zeros((len(self), *self.image_shape), np.uint8)
        self._decoded = np.zeros(len(self), bool)

    def _image(self, i: int) -> Tensor:
        if not self._decoded[i]:
            self._pixels[i] = self._decode(i)
            self._decoded[i] = True  # after the pixels, so that another thread never reads half an image
        return to_unit(self._pixels[i])

    def encoded(self, i: int) -> bytes:
        """Image `i` as it is stored; empty where it is not embedded."""
        chunk, offset = self._place(i)
        return self._columns[chunk][offset].as_py() or b""

    def _place(self, i: int) -> tuple[int, int]:
        """Chunk and place in it."""
        row = int(self._rows[i])
        chunk = int(np.searchsorted(self._starts, row, side="right")) - 1
        return chunk, row - int(self._starts[chunk])

    def _decode(self, i: int) -> np.ndarray:
        chunk, offset = self._place(i)
        file, first = self._sources[chunk]
        origin = f"{file}, row {first + offset}"
        encoded = self.encoded(i)
        if not encoded:
            raise DataError(f"{origin}: the row has no image bytes; use a file with the images embedded")
        pixels = to_bytes(decode(io.BytesIO(encoded), self.image_shape[0], origin))
        if pixels.shape != self.image_shape:
            raise DataError(
                f"{origin}: an image of shape {pixels.shape}, but {self.key} has {self.image_shape} "
                "(channels, height, width); check that the folder holds this data set"
            )
        return pixels

    def __getstate__(self) -> dict:
        return {k: v for k, v in self.__dict__.items() if k not in ("_pixels", "_decoded")}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._forget()
