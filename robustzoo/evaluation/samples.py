"""Which images are evaluated: a dataset by name, a folder, a Dataset or two tensors; and which of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from robustzoo.data import (
    DataError,
    ImageDataset,
    Subset,
    evaluation_subset,
    load_dataset,
    open_data,
    pixel_digest,
)


def open_samples(data: Any, model: nn.Module, data_root: str | Path | None = None) -> ImageDataset:
    """Open `data` as evaluate() takes it; `model` says how a folder is to be read.

    Args:
        data: a dataset name of the catalog (its test split, with files in `data_root`), a folder, a torch
            Dataset of (image, label) pairs, or a pair of tensors (images: (N, C, H, W) in [0, 1], labels:
            (N,) integers). A folder holds what the model's recipe was made for; for a model without a
            recipe, one sub-folder of image files per class.

    Raises:
        DataError, MissingData: none of these, or files or samples that are not as they should be.
    """
    recipe = getattr(model, "recipe", None)
    if recipe is not None and isinstance(data, str | Path) and Path(data).is_dir():
        return load_dataset(recipe.dataset, data, split="test")
    shape = getattr(model, "input_shape", None)
    return open_data(data, data_root, **({} if shape is None else {"image_size": shape[1]}))


def choose_samples(
    dataset: ImageDataset, n: int | None = None, indices: Sequence[int] | None = None
) -> Subset:
    """All samples, `n` drawn by the subset seed 0, or the positions `indices`, in any order. Reads each
    image once.

    Raises:
        DataError: n or a position is out of range, a position occurs twice, or both are given.
    """
    size = len(dataset)
    if indices is None:
        if n is not None and not 1 <= n <= size:
            raise DataError(f"n is {n}; expected 1..{size}, the images of {dataset.key}")
        return evaluation_subset(dataset, n)
    chosen = sorted(int(index) for index in indices)
    if (
        n is not None
        or not chosen
        or len(set(chosen)) < len(chosen)
        or not 0 <= chosen[0] <= chosen[-1] < size
    ):
        raise DataError(
            f"indices name {len(chosen)} positions{'' if n is None else f', and n is {n}'}; expected at "
            f"least one, each once, within 0..{size - 1}, and no n beside them"
        )
    return Subset(f"chosen{len(chosen)}", chosen, pixel_digest(dataset, chosen), dataset)
