"""Parquet files as Hub image sets have them: which belong to a split, and what their columns mean."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robustzoo.data.image_dataset import DataError, MissingData, existing_root, reading

LAYOUT = "a folder with train-*.parquet and test-*.parquet (an image column {bytes, path}, a label column)"
_LABEL_COLUMNS = ("label", "fine_label", "labels")
_SPLITS = ("train", "test", "validation", "val")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.parquet$")


def has_shards(root: Path, splits: Sequence[str]) -> bool:
    """Whether a folder, or a folder in it, holds parquet files of one of the splits."""
    return any(_found(root, split) for split in splits)


def _found(root: Path, split: str) -> list[list[Path]]:
    folders = [root, *sorted(path for path in root.iterdir() if path.is_dir())]
    return [shards for folder in folders if (shards := sorted(folder.glob(f"{split}-*.parquet")))]


def find_shards(key: str, root: str | Path | None, splits: Sequence[str], layout: str = LAYOUT) -> list[Path]:
    """The parquet files of a split, in order. Raises MissingData, DataError.

    root: one file, a folder of shards, or a folder with one such folder inside (the Hub's data/).
    splits: names that the split's files may begin with; the first with files is taken.
    """
    root = existing_root(key, root, layout)
    if root.is_file():
        for other in set(_SPLITS) - set(splits):
            if root.name.startswith(f"{other}-"):
                raise DataError(
                    f"{root} looks like the {other} split, but the {splits[0]} split is wanted; give its file"
                )
        return [root]
    found = next((shards for split in splits if (shards := _found(root, split))), [])
    if not found:
        raise MissingData(
            f"{root} has no {splits[0]}-*.parquet, nor has a folder in it; {key} needs {layout}"
        )
    if len(found) > 1 and found[0][0].parent != root:
        several = ", ".join(shards[0].parent.name for shards in found)
        raise DataError(
            f"{root} holds several sets with a {splits[0]} split ({several}); give the folder of one"
        )
    _check_all_there(found[0])
    return found[0]


def _check_all_there(shards: list[Path]) -> None:
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


class Shard:
    """One parquet file, opened: its image and label columns and, where it has them, the class names.

    Raises DataError on a file that is no parquet file or lacks a column; so do the methods on damaged pages.
    """

    def __init__(self, file: Path):
        self.file = file
        with self._readable():
            schema = pq.read_schema(file)
        self._image, self._label = _image_column(file, schema), _label_column(file, schema)
        self.class_names = _class_names(schema, self._label)

    def row_counts(self) -> list[int]:
        """Rows of each row group."""
        with self._readable():
            metadata = pq.read_metadata(self.file)
        return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]

    def images(self, row_group: int | None = None) -> list[pa.BinaryArray]:
        """Encoded images of a row group, or of all, in chunks in file order; null where a row has none."""
        with self._readable(), pq.ParquetFile(self.file) as opened:
            if row_group is None:
                table, stated = opened.read([self._image]), opened.metadata.num_rows
            else:
                table = opened.read_row_group(row_group, columns=[self._image], use_threads=False)
                stated = opened.metadata.row_group(row_group).num_rows
            chunks = [chunk.field("bytes") for chunk in table.column(self._image).chunks]
        self._check_rows(sum(map(len, chunks)), stated)
        return chunks

    def labels(self, num_classes: int) -> np.ndarray:
        """int64 (N,), all in [0, num_classes); DataError names the first row that is not."""
        with self._readable(), pq.ParquetFile(self.file) as opened:
            column, stated = opened.read([self._label]).column(self._label), opened.metadata.num_rows
            # Unsafe cast: a number too large for int64 turns negative, and negative labels are refused below.
            labels = column.cast(pa.int64(), safe=False).fill_null(-1).to_numpy()
        self._check_rows(len(labels), stated)
        wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
        if len(wrong):
            found = column[int(wrong[0])].as_py()
            raise DataError(
                f"{self.file}, row {wrong[0]}: label {found}, expected 0 to {num_classes - 1} "
                f"({len(wrong)} rows like this); check that the file belongs to this data set"
            )
        return labels

    def _readable(self) -> AbstractContextManager[None]:
        return reading(f"{self.file} is no readable parquet file")

    def _check_rows(self, found: int, stated: int) -> None:
        """A damaged page can lose rows of one column without a word; labels would then be of other images."""
        if found != stated:
            raise DataError(
                f"{self.file} is no readable parquet file (a column has {found} rows where its row groups "
                f"state {stated}); fetch it again"
            )


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
