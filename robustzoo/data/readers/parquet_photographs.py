"""Photographs from parquet shards that are too many to keep in memory."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

from robustzoo.data.decoder import decode
from robustzoo.data.fit import IMAGENET, Fit
from robustzoo.data.image_dataset import DataError
from robustzoo.data.readers.parquet_shards import Shard
from robustzoo.data.readers.photographs import Photographs

_KEPT_GROUPS = 4


class ParquetPhotographs(Photographs):
    """Photographs in file order, read by row group (the least that parquet can read) when first needed.

    Memory: the labels, and the encoded images of the last 4 row groups (of 100 images in the Hub's files,
    about 11 MB each). In file order, as in an evaluation, each group is read once. In the random order of
    training nearly every image costs the reading of its whole group: unpack into class folders for long ones.

    Raises: DataError on a file that is no parquet file, lacks a column or has a label out of range, and, on
    access, on a broken image, naming file and row.
    """

    def __init__(
        self,
        key: str,
        split: str,
        files: list[Path],
        classes: int | tuple[str, ...],
        fit: Fit = IMAGENET,
        channels: int = 3,
    ):
        """classes: their names, or how many, where the files may name them."""
        num_classes = classes if isinstance(classes, int) else len(classes)
        self._shards = [Shard(file) for file in files]
        labels = [shard.labels(num_classes) for shard in self._shards]
        counts = [shard.row_counts() for shard in self._shards]
        # Row group g of all: its shard, its number and first row there; its first row of all is starts[g].
        self._groups = [
            (shard, group, sum(rows[:group]))
            for shard, rows in enumerate(counts)
            for group in range(len(rows))
        ]
        self._starts = np.cumsum([0, *(n for rows in counts for n in rows)])
        if not self._starts[-1]:
            raise DataError(f"{files[0]} holds no rows; fetch the file again")
        self._rows = np.arange(self._starts[-1])
        if isinstance(classes, int):
            names = self._shards[0].class_names
            classes = names if names and len(names) == num_classes else tuple(map(str, range(num_classes)))
        super().__init__(key, split, np.concatenate(labels), classes, fit, channels)
        self._forget()

    def select(self, items: np.ndarray) -> ParquetPhotographs:
        """Keep only these items, in this order. Returns self."""
        self._rows, self.labels = self._rows[items], self.labels[items]
        return self

    def _photograph(self, i: int) -> tuple[Image.Image, str]:
        row = int(self._rows[i])
        group = int(np.searchsorted(self._starts, row, side="right")) - 1
        within = row - int(self._starts[group])
        shard, _, first = self._groups[group]
        origin = f"image {i}, {self._shards[shard].file}, row {first + within}"
        encoded = self._encoded(group)[within].as_py()
        if encoded is None:
            raise DataError(f"{origin}: the row has no image bytes; use a file with the images embedded")
        return decode(io.BytesIO(encoded), self.image_shape[0], origin), origin

    def _encoded(self, group: int) -> pa.ChunkedArray:
        with self._lock:  # threads decode side by side, but read one group after the other
            if group not in self._kept:
                shard, number, _ = self._groups[group]
                self._kept[group] = pa.chunked_array(self._shards[shard].images(number))
                if len(self._kept) > _KEPT_GROUPS:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(group)
            return self._kept[group]

    def _forget(self) -> None:
        self._kept: OrderedDict[int, pa.ChunkedArray] = OrderedDict()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict:
        return {k: v for k, v in self.__dict__.items() if k not in ("_kept", "_lock")}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._forget()
