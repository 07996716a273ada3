"""Images of one's own, as the dataset.json beside them describes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from robustzoo.data.fit import Fit
from robustzoo.data.image_dataset import DataError, ImageDataset, MissingData
from robustzoo.data.items import read_item
from robustzoo.data.order import permutation
from robustzoo.data.readers.image_folder import ImageFolder
from robustzoo.data.readers.parquet_photographs import ParquetPhotographs
from robustzoo.data.readers.parquet_shards import find_shards
from robustzoo.data.subsets import training_rows
from robustzoo.python_files import file_and_function, made_by
from robustzoo.registry.dataset_files import (
    FILE,
    HOLDOUT_SIZE,
    PARQUET,
    DatasetFile,
    file_at,
)

TEST_SEED = 1  # of the draw of test images, where no folder holds them; that of the holdout is 0
_DESCRIBE = "describe the images anew with `robustzoo data describe`"


def open_described(place: str | Path | None, split: str, dataset_id: str | None = None) -> ImageDataset:
    """A split of the images at a place that has a dataset.json.

    Args:
        place: the folder, or FILE.py:FUNCTION where dataset.json names it: the file is run.
        dataset_id: "own:NAME" that they should be.

    Raises: MissingData for no such place; DataError where they are not as described, and on access.
        RobustzooError for a dataset.json that is none.
    """
    file = None if place is None else file_at(place)
    if file is None or place is None:
        raise MissingData(
            f"{dataset_id or 'these images'} need the folder that holds them with its {FILE}: give it with "
            f"--data DIR{'' if place is None else f'; {place} has none, `robustzoo data describe` writes it'}"
        )
    found = DatasetFile.read(file)
    if dataset_id not in (None, found.id):
        raise DataError(f"{file} is about {found.id}, and {dataset_id} is wanted; give the folder of that")
    return described_split(found, file.parent, place, split)


def usual_fit(size: int) -> Fit:
    """How photographs are brought to squares of this size: whole, but for the ends of those that are none."""
    return Fit((size, size), (size, size), "cover")


def open_place(found: DatasetFile, folder: Path, place: str, split: str, fit: Fit | None = None) -> Any:
    """All images of one place of folders or parquet files, under the name of a split."""
    fit = fit or usual_fit(found.image_size)
    if found.reader == PARQUET:
        files = find_shards(found.id, folder, [place])
        return ParquetPhotographs(found.id, split, files, found.classes, fit, found.channels)
    index = {name: label for label, name in enumerate(found.classes)}
    return ImageFolder(found.id, split, folder / place, index, found.classes, fit, found.channels)


class _Called(ImageDataset):
    """Items of a torch Dataset that a function gives, with the labels that they have."""

    def __init__(self, found: DatasetFile, split: str, dataset: Any):
        self._dataset = dataset
        super().__init__(found.id, split, None, found.image_shape, found.classes)
        self.labels = np.array([self._item(i)[1] for i in range(len(dataset))], np.int64)

    def __len__(self) -> int:
        return len(self._dataset)

    def _image(self, i: int) -> torch.Tensor:
        return self._item(i)[0]

    def _item(self, i: int) -> tuple[torch.Tensor, int]:
        x, label = read_item(self._dataset[i], i)
        if tuple(x.shape) != self.image_shape or not 0 <= label < self.num_classes:
            raise DataError(
                f"item {i} has shape {tuple(x.shape)} and label {label}; {FILE} says {self.image_shape} and "
                f"{self.num_classes} classes: mend the function, or {_DESCRIBE}"
            )
        return x, label


def described_split(found: DatasetFile, folder: Path, place: str | Path, split: str) -> ImageDataset:
    """The rows of a split, of all images of its place."""
    where, stated = found.splits[split if split in found.splits else "train"]
    if file_and_function(found.reader) is not None:
        if file_and_function(place) is None:
            raise DataError(
                f"{folder} is read by code in {folder / found.reader}, which has not been run: read it, and "
                f"where you trust it give --data {folder / found.reader}"
            )
        whole: Any = _called(found, folder, place, where)
    elif file_and_function(place) is not None:
        raise DataError(f"{folder / FILE} needs no code to be run; give the folder {folder}")
    else:
        whole = open_place(found, folder, where, split)
        whole.transform = whole.fit.to_json()
    rows = _rows(found, split, where, stated, len(whole))
    if file_and_function(found.reader) is not None:
        return _Called(found, split, whole if rows is None else Subset(whole, rows.tolist()))
    return whole if rows is None else whole.select(rows)


def _rows(found: DatasetFile, split: str, place: str, stated: int, there: int) -> np.ndarray | None:
    """Which images of a place are the split's; None: all. Raises DataError where their number is another."""
    tests = found.splits["test"][1] if found.splits["test"][0] == found.splits["train"][0] else 0
    drawn = tests and place == found.splits["train"][0]
    expected = found.splits["train"][1] + tests if drawn else stated
    if there != expected:
        raise DataError(
            f"{there:,} images of {found.id} are in {place!r}, and {FILE} says {expected:,}; {_DESCRIBE}"
        )
    pool = None
    if drawn:
        order = permutation(there, TEST_SEED)
        pool = np.sort(order[:tests] if split == "test" else order[tests:])
    if split == "test" or (split in found.splits and (split != "train" or "holdout" in found.splits)):
        return pool
    rows = training_rows(there - tests, split, HOLDOUT_SIZE)
    return rows if pool is None else pool[rows]


def _called(found: DatasetFile, folder: Path, place: str | Path, split: str) -> Any:
    """The torch Dataset that the user's function gives for a split, after it has been run."""
    wanted, named = file_and_function(found.reader), file_and_function(place)
    assert wanted is not None and named is not None
    if (named[0].name, named[1]) != (wanted[0].name, wanted[1]):
        raise DataError(f"{folder / FILE} is about {found.reader}, not {place}; give {folder / found.reader}")
    return dataset_of(named, split)


def dataset_of(code: tuple[Path, str], split: str) -> Any:
    """What a function of a file gives for a split. Runs the file. Raises: RobustzooError, DataError."""
    made = made_by(code[0].expanduser(), code[1], split)
    if not hasattr(made, "__len__") or not hasattr(made, "__getitem__") or not len(made):
        raise DataError(
            f"{code[0]}:{code[1]} gave a {type(made).__name__} for {split!r}; expected a torch Dataset of "
            "(image, label) with a length of at least 1"
        )
    return made
