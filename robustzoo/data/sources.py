"""Data that a caller brings along, made to look like a data set of the zoo."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustzoo.data.datasets import LOADERS, load_dataset
from robustzoo.data.image_dataset import DataError, ImageDataset, listing, refuse_root
from robustzoo.data.items import FLOAT_LABELS, check_dense, check_pixels, read_item
from robustzoo.data.readers.image_folder import open_folder
from robustzoo.python_files import file_and_function
from robustzoo.registry.catalog import OWN_DATA_MARK
from robustzoo.registry.dataset_files import described, file_at, is_own
from robustzoo.registry.names import did_you_mean


class TensorSource(ImageDataset):
    """A pair of tensors as a data set.

    x: floating point (N, C, H, W) in [0, 1], N >= 1; y: integer (N,). num_classes: default max(y) + 1.
    Raises DataError on anything else, naming what was found.
    """

    def __init__(self, x: Tensor, y: Tensor, num_classes: int | None = None):
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            raise DataError(
                f"expected two tensors (images, labels), got {type(x).__name__} and {type(y).__name__}; "
                "convert arrays with torch.from_numpy, lists with torch.tensor"
            )
        if x.ndim != 4 or 0 in x.shape:
            raise DataError(f"images must have shape (N, C, H, W) with no empty side, got {tuple(x.shape)}")
        check_pixels(x, "images")
        if y.dtype.is_floating_point or y.dtype.is_complex or y.dtype == torch.bool:
            raise DataError(f"labels have dtype {y.dtype}; {FLOAT_LABELS}")
        check_dense(y, "labels")
        if y.shape != (len(x),):
            one_hot = "; of one-hot rows take .argmax(1)" if y.ndim == 2 and len(y) == len(x) else ""
            raise DataError(
                f"labels must have shape ({len(x)},), one per image, got {tuple(y.shape)}{one_hot}"
            )
        labels = y.detach().cpu().to(torch.int64).numpy().copy()
        num_classes = max(int(labels.max()) + 1, 1) if num_classes is None else num_classes
        for i in np.flatnonzero((labels < 0) | (labels >= num_classes))[:1]:
            raise DataError(_wrong_label(int(labels[i]), f"image {i}", num_classes))
        self._x = x.detach()
        super().__init__(
            f"data{OWN_DATA_MARK}tensors",
            "test",
            labels,
            tuple(x.shape[1:]),
            tuple(map(str, range(num_classes))),
        )

    def _image(self, i: int) -> Tensor:
        return self._x[i].to("cpu", torch.float32, copy=True)


class DatasetSource(ImageDataset):
    """A torch map-style Dataset of (image, label) as a data set, or of dictionaries {"image", "label"}.

    Images: floating point (C, H, W) in [0, 1] or images of Pillow, all of one shape; labels: ints, NumPy
    integers or integer tensors with one element. num_classes: default the length of dataset.classes, else
    the largest label + 1, which reads every item. Items are checked when read. Raises DataError, naming the
    item.
    """

    def __init__(self, dataset: Any, num_classes: int | None = None):
        if (
            isinstance(dataset, Mapping)
            or not hasattr(dataset, "__len__")
            or not hasattr(dataset, "__getitem__")
            or len(dataset) == 0
        ):
            raise DataError(_no_dataset(dataset))
        self._dataset = dataset
        self._places: np.ndarray | None = None
        names = _class_names(dataset)
        if num_classes is None:
            num_classes = len(names) or 1 + max(self._read(i)[1] for i in range(len(dataset)))
        if len(names) != num_classes:
            names = tuple(map(str, range(num_classes)))
        shape = tuple(self._read(0)[0].shape)
        key = f"dataset{OWN_DATA_MARK}{type(dataset).__name__}"  # a class called cifar10 is not CIFAR-10
        super().__init__(key, "test", None, shape, names)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        i = self._position(i)
        x, label = self._read(i)
        if x.shape != self.image_shape:
            raise DataError(
                f"item {i} has shape {tuple(x.shape)}, item 0 has {self.image_shape}; bring all to one shape"
            )
        known = self.num_classes if self._places is None else len(self._places)
        if not 0 <= label < known:
            raise DataError(_wrong_label(label, f"item {i}", known))
        return x, label if self._places is None else int(self._places[label])

    def _relabel(self, places: np.ndarray) -> None:
        self._places = places

    def _image(self, i: int) -> Tensor:
        return self[i][0]

    def _read(self, i: int) -> tuple[Tensor, int]:
        try:
            item = self._dataset[i]
        except LookupError as error:
            raise DataError(
                f"item {i} of {len(self._dataset)} cannot be read ({type(error).__name__}: {error}); "
                "expected items at the positions from 0"
            ) from error
        return read_item(item, i)


FOLDER = "folder"  # the NAME that says of a DIR that it is nobody's but the caller's


def data_place(text: str) -> tuple[str | None, Path | None]:
    """(name of the catalog, "own:NAME", FOLDER or None; folder or None) that text means: NAME, NAME:DIR, DIR,
    or FILE.py:FUNCTION, which is run when it is opened.

    A name of the catalog never means a folder; a folder with a dataset.json has the name that this says.
    Raises DataError where text is none of these, RobustzooError where dataset.json is none.
    """
    if text in LOADERS or is_own(text):
        return text, None
    if file_and_function(text) is not None or (not text.partition(":")[1] and file_at(text) is not None):
        return _own_id(text), Path(text)
    if not text.strip() or (text.endswith(":") and text[:-1] in (*LOADERS, FOLDER)):
        raise DataError(  # a shell variable that was not set; Path("") would be the working directory
            f"data is {text!r}, which names no folder; expected NAME, NAME:DIR or DIR"
        )
    name, colon, folder = text.partition(":")
    if colon and folder and (name in LOADERS or name == FOLDER) and not os.path.isdir(text):
        return name, Path(folder)
    if colon and folder and not os.path.exists(text) and (found := described(folder)) is not None:
        if found.name != name:
            raise DataError(
                f"{text!r}: the dataset.json there is about {found.name!r}; give {found.name}:{folder}"
            )
        return found.id, Path(folder)
    is_path = os.sep in name or "/" in name or text.startswith("~") or os.path.exists(Path(text).expanduser())
    if colon and len(name) > 1 and not is_path:  # C:\DIR is a folder
        raise DataError(
            f"{text!r} names no data: {name!r} is no dataset.{did_you_mean(name, [*LOADERS, FOLDER])} "
            f"Expected NAME, NAME:DIR or DIR, where NAME is one of {', '.join(LOADERS)}, or {FOLDER} for "
            "images of your own, or the name in their dataset.json (`robustzoo data describe DIR` writes it)"
        )
    return (None, Path(text)) if colon or is_path else (text, None)


def _own_id(place: str) -> str:
    found = described(place)
    if found is None:
        raise DataError(
            f"{place} has no dataset.json beside it, which says what its images are: write one with "
            f"`robustzoo data describe {place}`"
        )
    return found.id


def open_data(
    data: Any,
    root: str | Path | None = None,
    *,
    num_classes: int | None = None,
    split: str = "test",
    **reading: Any,
) -> ImageDataset:
    """Whatever holds images and labels, as an ImageDataset.

    data: a name of the catalog (files in root), "NAME:DIR", a folder with one folder per class, a pair of
    tensors (x, y), a torch Dataset, or an ImageDataset, which is returned as it is.
    root is refused wherever nothing would be read from it, so that a folder never goes unnoticed.
    num_classes: of the model, for data that do not say.
    reading: how a folder is read (fit, channels, classes): see `open_folder`; of other data ignored.
    Raises DataError and MissingData.
    """
    if not isinstance(data, str | Path):
        refuse_root("these images", root)
    if isinstance(data, ImageDataset):
        return data
    if isinstance(data, str | Path):
        name, folder = data_place(str(data)) if isinstance(data, str) or described(data) else (None, data)
        if folder is not None and root is not None:
            raise DataError(
                f"data is the folder {str(folder)!r}, and data_root is given too; expected one folder"
            )
        if name not in (None, FOLDER):
            return load_dataset(name, root if folder is None else folder, split)
        assert folder is not None
        with listing("the data folder"):
            return open_folder(folder, num_classes=num_classes, **reading)
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


def _class_names(dataset: Any) -> tuple[str, ...]:
    """What torchvision's datasets and those of the library `datasets` call their classes; empty without."""
    names = getattr(dataset, "classes", None)
    if names is None:
        features = getattr(dataset, "features", None)
        label = features.get("label") if isinstance(features, Mapping) else None
        names = getattr(label, "names", None)
    if not isinstance(names, Sequence):
        return ()
    return tuple(", ".join(map(str, name)) if isinstance(name, tuple) else str(name) for name in names)


def _no_dataset(data: Any) -> str:
    """What to say of something that is no map-style Dataset with items."""
    if isinstance(data, Mapping) and data:
        return (
            f"data is a {type(data).__name__} with {', '.join(map(repr, list(data)[:5]))}; expected one set "
            f"of images: pass data[{next(iter(data))!r}] or another of them, or the pair (images, labels)"
        )
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
