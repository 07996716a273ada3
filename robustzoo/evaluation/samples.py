"""Which images are evaluated: a dataset by name, a folder, a Dataset or two tensors; and which of them."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from robustzoo.data import (
    DataError,
    ImageDataset,
    Subset,
    evaluation_subset,
    load_dataset,
    open_data,
    pixel_digest,
)
from robustzoo.data.datasets import LOADERS, WITHOUT_FILES
from robustzoo.data.readers.image_folder import open_folder
from robustzoo.evaluation.guards import input_shape


def open_samples(data: Any, model: nn.Module, data_root: str | Path | None = None) -> ImageDataset:
    """Open `data` as evaluate() takes it; `model` says how a folder is to be read.

    Args:
        data: a dataset name of the catalog (its test split, with files in `data_root`), a folder, a torch
            Dataset of (image, label) pairs, or a pair of tensors (images: (N, C, H, W) in [0, 1], labels:
            (N,) integers). A folder holds the dataset of the model's recipe; for a model without a recipe,
            or with one whose dataset has no files, one sub-folder of image files per class, in the order of
            the class ids. Text that is a name of the catalog never means a folder.

    Raises:
        DataError, MissingData: none of these, or files or samples that are not as they should be.
        GuardError: the model's input_shape is no shape.
    """
    recipe = getattr(model, "recipe", None)
    folder = isinstance(data, Path) or (isinstance(data, str) and data not in LOADERS)
    if recipe is not None and folder and Path(data).is_dir():
        if data_root is not None:
            raise DataError(
                f"data is the folder {str(data)!r}, and data_root is given too; expected one folder"
            )
        if recipe.dataset in WITHOUT_FILES:
            # Whole images: its images are small, and a border cut off would be a good part of them.
            return open_folder(data, recipe.image_size, recipe.image_size, recipe.channels)
        return load_dataset(recipe.dataset, data, split="test")
    shape = input_shape(model)
    if shape is None:
        return open_data(data, data_root)
    return open_data(data, data_root, image_size=shape[1:])


def choose_samples(
    dataset: ImageDataset, n: int | None = None, indices: Sequence[int] | None = None
) -> Subset:
    """All samples, `n` drawn by the subset seed 0, or the positions `indices`, in any order. Reads each
    image once.

    Raises:
        DataError: n or a position is no whole number or out of range, a position occurs twice, or both are
            given.
    """
    if n is not None and indices is not None:
        raise DataError(f"n is {n}, and indices are given too; expected one of them")
    if indices is None:
        return evaluation_subset(dataset, n)
    chosen = sorted(_positions(indices, dataset))
    return Subset(f"chosen{len(chosen)}", chosen, pixel_digest(dataset, chosen), dataset)


def _positions(indices: Any, dataset: ImageDataset) -> list[int]:
    """The positions as ints, after each has been checked."""
    size = len(dataset)
    expected = f"expected whole numbers in 0..{size - 1}, the positions of {dataset.key}, each once"
    if isinstance(indices, Tensor | np.ndarray):
        indices = indices.tolist()
    if isinstance(indices, str | bytes) or not isinstance(indices, Iterable):
        raise DataError(f"indices are {indices!r}; {expected}")
    chosen: dict[int, None] = {}
    for position in indices:
        if isinstance(position, Tensor) and position.numel() == 1:
            position = position.item()
        if not isinstance(position, numbers.Integral) or isinstance(position, bool):
            raise DataError(f"indices hold {position!r} ({type(position).__name__}); {expected}")
        if not 0 <= position < size:
            raise DataError(f"indices hold {position}; {expected}")
        if int(position) in chosen:
            raise DataError(f"indices hold {position} twice; {expected}")
        chosen[int(position)] = None
    if not chosen:
        raise DataError(f"indices are empty; {expected}, and at least one")
    return list(chosen)
