"""Data that a caller brings along, made to look like a data set of the zoo."""

from __future__ import annotations

import numbers
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustzoo.data.datasets import LOADERS, load_dataset
from robustzoo.data.image_dataset import DataError, ImageDataset, listing, refuse_root
from robustzoo.data.readers.image_folder import open_folder

_FLOAT_LABELS = "labels must be integer class ids; convert them with .long()"


class TensorSource(ImageDataset):
    """A pair of tensors as a data set.

    x: floating point (N, C, H, W) in [0, 1], N >= 1; y: integer (N,). num_classes: default max(y) + 1.
    Raises DataError on anything else, naming what was found.
    """

    def __init__(self, x: Tensor, y: Tensor, num_classes: int | None = None, key: str = "tensors"):
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            raise DataError(
                f"expected two tensors (images, labels), got {type(x).__name__} and {type(y).__name__}; "
                "convert arrays with torch.from_numpy, lists with torch.tensor"
            )
        if x.ndim != 4 or 0 in x.shape:
            raise DataError(f"images must have shape (N, C, H, W) with no empty side, got {tuple(x.shape)}")
        _check_pixels(x, "images")
        if y.dtype.is_floating_point or y.dtype.is_complex or y.dtype == torch.bool:
            raise DataError(f"labels have dtype {y.dtype}; {_FLOAT_LABELS}")
        _check_dense(y, "labels")
        if y.shape != (len(x),):
            raise DataError(f"labels must have shape ({len(x)},), one per image, got {tuple(y.shape)}")
        labels = y.detach().cpu().to(torch.int64).numpy().copy()
        num_classes = max(int(labels.max()) + 1, 1) if num_classes is None else num_classes
        for i in np.flatnonzero((labels < 0) | (labels >= num_classes))[:1]:
            raise DataError(_wrong_label(int(labels[i]), f"image {i}", num_classes))
        self._x = x.detach()
        super().__init__(key, "test", labels, tuple(x.shape[1:]), tuple(map(str, range(num_classes))))

    def _image(self, i: int) -> Tensor:
        return self._x[i].to("cpu", torch.float32, copy=True)


class DatasetSource(ImageDataset):
    """A torch map-style Dataset of (image, label) as a data set.

    Images: floating point (C, H, W) in [0, 1], all of one shape; labels: ints, NumPy integers or integer
    tensors with one element. num_classes: default the length of dataset.classes, else the largest label + 1,
    which reads every item. Items are checked when read. Raises DataError, naming the item.
    """

    def __init__(self, dataset: Any, num_classes: int | None = None, key: str | None = None):
        if (
            isinstance(dataset, Mapping)
            or not hasattr(dataset, "__len__")
            or not hasattr(dataset, "__getitem__")
            or len(dataset) == 0
        ):
            raise DataError(_no_dataset(dataset))
        self._dataset = dataset
        names = tuple(map(str, getattr(dataset, "classes", ())))
        if num_classes is None:
            num_classes = len(names) or 1 + max(self._read(i)[1] for i in range(len(dataset)))
        if len(names) != num_classes:
            names = tuple(map(str, range(num_classes)))
        shape = tuple(self._read(0)[0].shape)
        super().__init__(key or type(dataset).__name__, "test", None, shape, names)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        i = self._position(i)
        x, label = self._read(i)
        if x.shape != self.image_shape:
            raise DataError(
                f"item {i} has shape {tuple(x.shape)}, item 0 has {self.image_shape}; bring all to one shape"
            )
        if not 0 <= label < self.num_classes:
            raise DataError(_wrong_label(label, f"item {i}", self.num_classes))
        return x, label

    def _image(self, i: int) -> Tensor:
        return self[i][0]

    def _read(self, i: int) -> tuple[Tensor, int]:
        try:
            x, label = self._dataset[i]
        except LookupError as error:
            raise DataError(
                f"item {i} of {len(self._dataset)} cannot be read ({type(error).__name__}: {error}); "
                "expected items at the positions from 0"
            ) from error
        except (TypeError, ValueError) as error:
            raise DataError(f"item {i} is no pair (image, label): {error}") from error
        if not isinstance(x, Tensor) or x.ndim != 3:
            found = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise DataError(
                f"the image of item {i} must be a tensor (C, H, W), got {found}; add a ToTensor transform"
            )
        _check_pixels(x, f"the image of item {i}")
        if isinstance(label, Tensor) and label.numel() == 1:
            label = label.item()
        if not isinstance(label, numbers.Integral) or isinstance(label, bool):
            raise DataError(f"item {i} has label {label!r} ({type(label).__name__}); {_FLOAT_LABELS}")
        return x.detach().to("cpu", torch.float32), int(label)


def open_data(
    data: Any,
    root: str | Path | None = None,
    *,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] = 224,
    split: str = "test",
) -> ImageDataset:
    """Whatever holds images and labels, as an ImageDataset.

    data: a name of the catalog (files in root), a folder with one folder per class (cropped to image_size,
    one number for a square or (height, width)), a pair of tensors (x, y), a torch Dataset, or an
    ImageDataset, which is returned as it is.
    root is refused wherever nothing would be read from it, so that a folder never goes unnoticed.
    num_classes: of the model, for data that do not say. Raises DataError and MissingData.
    """
    if not isinstance(data, str | Path):
        refuse_root("these images", root)
    if isinstance(data, ImageDataset):
        return data
    if isinstance(data, str) and (data in LOADERS or not (os.sep in data or Path(data).is_dir())):
        return load_dataset(data, root, split)
    if isinstance(data, str | Path):
        if root is not None:
            raise DataError(
                f"data is the folder {str(data)!r}, and data_root is given too; expected one folder"
            )
        with listing("the data folder"):
            return open_folder(data, image_size)
    if isinstance(data, Tensor | np.ndarray):
        raise DataError(
            f"data is one {type(data).__name__} of shape {tuple(data.shape)}; expected a pair of tensors "
            f"(images, labels){'' if isinstance(data, Tensor) else ', made with torch.from_numpy'}"
        )
    if isinstance(data, tuple | list) and any(isinstance(part, Tensor | np.ndarray) for part in data):
        if len(data) != 2:
            raise DataError(f"data has {len(data)} parts; expected a pair of tensors (images, labels)")
        return TensorSource(*data, num_classes=num_classes)
    return DatasetSource(data, num_classes)


def _no_dataset(data: Any) -> str:
    """What to say of something that is no map-style Dataset with items."""
    if not isinstance(data, Mapping) and hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return f"the data ({type(data).__name__}) have length 0; expected at least one image"
    hint = "; pass its .dataset" if hasattr(data, "dataset") else ""
    return (
        f"data is {'None' if data is None else f'a {type(data).__name__}'}; expected the name of a dataset, "
        "a folder, a pair of tensors (images, labels), or a torch Dataset with a length and items "
        f"(image, label){hint}"
    )


def _wrong_label(label: int, what: str, num_classes: int) -> str:
    if label < 0:
        return f"label {label} of {what} is negative; expected class ids from 0"
    return f"label {label} of {what} is not in 0 to {num_classes - 1}; use class ids"


def _check_dense(x: Tensor, what: str) -> None:
    if x.layout != torch.strided:
        raise DataError(f"{what}: a tensor of layout {x.layout}; expected a dense one: use .to_dense()")
    if x.device.type == "meta":
        raise DataError(f"{what}: a tensor on the meta device, without values; expected one on cpu or cuda")


def _check_pixels(x: Tensor, what: str) -> None:
    if not x.dtype.is_floating_point:
        raise DataError(
            f"{what}: dtype {x.dtype}, expected floating point in [0, 1]; for bytes, divide by 255"
        )
    _check_dense(x, what)
    if x.numel() == 0:
        raise DataError(f"{what}: shape {tuple(x.shape)} has no pixels")
    low, high = x.min().item(), x.max().item()
    if low >= 0 and high <= 1:  # also false for NaN
        return
    if x.isnan().any():
        first = f", first in image {int(x.flatten(1).isnan().any(1).nonzero()[0])}" if x.ndim == 4 else ""
        raise DataError(f"{what}: NaN among the pixels{first}; expected numbers in [0, 1]")
    shown = str if x.dtype == torch.float64 else np.float32  # all digits: 1.0000001 must not read 1
    raise DataError(
        f"{what}: values from {shown(low)!s} to {shown(high)!s}, expected [0, 1]; pass pixels before "
        "normalisation (PixelModel normalises inside), with .clamp(0, 1) where rounding left the range"
    )
