"""Images in parquet files as Hub image sets have them: encoded bytes in one column, the label in another."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from robustzoo.data.image_dataset import (
    DataError,
    ImageDataset,
    MissingData,
    decode,
    existing_root,
    to_bytes,
    to_unit,
)
from robustzoo.data.subsets import training_rows

LAYOUT = "a folder with train-*.parquet and test-*.parquet (an image column {bytes, path}, a label column)"
HOLDOUT_SIZE = 1000
_LABEL_COLUMNS = ("label", "fine_label", "labels")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.parquet$")


class ParquetImages(ImageDataset):
    """Images of one fixed size from parquet shards.

    Memory: the encoded bytes (46 MB for the 50,000 images of cifar10jpg) and, filled as images are first
    read, their pixels as uint8 (up to 154 MB for the same set), so that an image is decoded once.

    key, image_shape: as in ImageDataset. num_classes: labels must lie in [0, num_classes).
    root: one parquet file, or the folder with the shards, or a folder with one such folder inside (`data/`).
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
        num_classes: int,
        classes: tuple[str, ...] | None = None,
    ):
        self._files = find_shards(key, root, "test" if split == "test" else "train")
        self._columns: list[pa.BinaryArray] = []  # encoded bytes, one array per stored chunk
        self._sources: list[tuple[Path, int]] = []  # file and first row of each chunk
        labels, names = [], None
        for file in self._files:
            table, names = _read_shard(file)
            labels.append(_checked_labels(file, table.column(1), num_classes))
            row = 0
            for chunk in table.column(0).chunks:
                self._columns.append(chunk.field("bytes"))
                self._sources.append((file, row))
                row += len(chunk)
        self._starts = np.cumsum([0, *map(len, self._columns)])
        total = int(self._starts[-1])
        if total == 0:
            raise DataError(f"{self._files[0]} holds no rows; fetch the file again")
        self._rows = np.arange(total) if split == "test" else training_rows(total, split, HOLDOUT_SIZE)
        if not classes:
            classes = names if names and len(names) == num_classes else tuple(map(str, range(num_classes)))
        super().__init__(key, split, np.concatenate(labels)[self._rows], image_shape, classes)
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

    def _decode(self, i: int) -> np.ndarray:
        row = int(self._rows[i])
        chunk = int(np.searchsorted(self._starts, row, side="right")) - 1
        offset = row - int(self._starts[chunk])
        file, first = self._sources[chunk]
        origin = f"{file}, row {first + offset}"
        encoded = self._columns[chunk][offset].as_py()
        if encoded is None:
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


def find_shards(key: str, root: str | Path | None, split: str) -> list[Path]:
    """The parquet files of a split ("train" or "test"), in order. Raises MissingData, DataError."""
    root = existing_root(key, root, LAYOUT)
    if root.is_file():
        other = "train" if split == "test" else "test"
        if root.name.startswith(other):
            raise DataError(
                f"{root} looks like the {other} split, but the {split} split is wanted; give its file"
            )
        return [root]
    folders = [root, *sorted(path for path in root.iterdir() if path.is_dir())]
    found = [shards for folder in folders if (shards := sorted(folder.glob(f"{split}-*.parquet")))]
    if not found:
        raise MissingData(f"{root} has no {split}-*.parquet, nor has a folder in it; {key} needs {LAYOUT}")
    if len(found) > 1 and found[0][0].parent != root:
        several = ", ".join(shards[0].parent.name for shards in found)
        raise DataError(f"{root} holds several sets with a {split} split ({several}); give the folder of one")
    _check_complete(found[0])
    return found[0]


def _check_complete(shards: list[Path]) -> None:
    numbers = [match.groups() for file in shards if (match := _SHARD.search(file.name))]
    totals = {int(total) for _, total in numbers}
    if not numbers:
        return
    if len(totals) > 1 or len(numbers) < len(shards):
        raise DataError(
            f"{shards[0].parent} mixes shards of different sets ({', '.join(file.name for file in shards)}); "
            "keep one set per folder"
        )
    missing = sorted(set(range(max(totals))) - {int(number) for number, _ in numbers})
    if missing:
        name = _SHARD.sub(f"-{missing[0]:05d}-of-{max(totals):05d}.parquet", shards[0].name)
        raise MissingData(
            f"{shards[0].parent} lacks {len(missing)} of {max(totals)} shards, first {name}; fetch them"
        )


def _read_shard(file: Path) -> tuple[pa.Table, tuple[str, ...] | None]:
    """Encoded images and labels of one file as a two-column table, and the class names where it has them."""
    try:
        schema = pq.read_schema(file)
        image, label = _image_column(file, schema), _label_column(file, schema)
        table = pq.read_table(file, columns=[image, label])
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file} is no readable parquet file ({error}); fetch it again") from error
    return table.select([image, label]), _class_names(schema, label)


def _image_column(file: Path, schema: pa.Schema) -> str:
    for field in schema:
        position = field.type.get_field_index("bytes") if pa.types.is_struct(field.type) else -1
        if position >= 0 and _is_binary(field.type.field(position).type):
            return field.name
    raise DataError(
        f"{file} has no image column: expected a struct {{bytes, path}}, found {_columns_text(schema)}"
        "; re-export the images with their bytes embedded"
    )


def _is_binary(type_: pa.DataType) -> bool:
    return pa.types.is_binary(type_) or pa.types.is_large_binary(type_)


def _label_column(file: Path, schema: pa.Schema) -> str:
    integers = [field.name for field in schema if pa.types.is_integer(field.type)]
    for name in _LABEL_COLUMNS:
        if name in integers:
            return name
    if len(integers) == 1:
        return integers[0]
    raise DataError(
        f"{file} has no integer column named {', '.join(_LABEL_COLUMNS)}: found {_columns_text(schema)}"
        "; rename the column with the class ids"
    )


def _columns_text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema) or "no columns"


def _class_names(schema: pa.Schema, label: str) -> tuple[str, ...] | None:
    """Names from the metadata the `datasets` library writes, if any."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(map(str, features[label]["names"]))
    except (KeyError, TypeError, ValueError):
        return None


def _checked_labels(file: Path, column: pa.ChunkedArray, num_classes: int) -> np.ndarray:
    # Unsafe cast: a number too large for int64 turns negative, and negative labels are refused below.
    labels = column.cast(pa.int64(), safe=False).fill_null(-1).to_numpy()
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(wrong):
        raise DataError(
            f"{file}, row {wrong[0]}: label {column[int(wrong[0])].as_py()}, expected 0 to {num_classes - 1} "
            f"({len(wrong)} rows like this); check that the file belongs to this data set"
        )
    return labels
