"""The images that a user names, opened as the model wants them, and which of them are meant."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from robustzoo.data.class_names import by_name, names_of
from robustzoo.data.datasets import WITHOUT_FILES
from robustzoo.data.fit import Fit
from robustzoo.data.image_dataset import DataError, ImageDataset
from robustzoo.data.sources import FOLDER, data_place, open_data
from robustzoo.data.subsets import Subset, evaluation_subset, pixel_digest
from robustzoo.errors import RobustzooError
from robustzoo.registry.catalog import is_catalog_key
from robustzoo.registry.dataset_files import described, is_own


def input_shape(model: nn.Module) -> tuple[int, int, int] | None:
    """(channels, height, width) that a model states for its images in its attribute, None where it does not.

    Raises:
        RobustzooError: the attribute is anything but three positive integers.
    """
    stated = getattr(model, "input_shape", None)
    if stated is None:
        return None
    sides = list(stated) if isinstance(stated, Sequence) and not isinstance(stated, str | bytes) else []
    if len(sides) != 3 or not all(
        isinstance(side, numbers.Integral) and not isinstance(side, bool) and int(side) > 0 for side in sides
    ):
        raise RobustzooError(
            f"the model's input_shape is {stated!r}; expected (channels, height, width), three positive "
            "integers: correct the attribute, or leave it away for images of 224 x 224"
        )
    channels, height, width = map(int, sides)
    return channels, height, width


@dataclass(frozen=True)
class FolderOptions:
    """How a folder of images is to be read, where that is not left to the model; as of the command line.

    resize: "N" (the short side), "HxW" (both sides, whatever their ratio) or "none". crop: "N" or "HxW", of
    the centre; default: the model's size. interpolation: see INTERPOLATIONS. classes: a file of class names.
    """

    resize: str | None = None
    crop: str | None = None
    interpolation: str | None = None
    classes: str | Path | None = None

    def fit(self, usual: Fit | None) -> Fit | None:
        """The transform, where `usual` is the model's, None where it states no size.

        Raises DataError where the options do not go together, or are no sizes.
        """
        if self.resize is None and self.crop is None and self.interpolation is None:
            return usual
        size = _size("crop", self.crop) if self.crop else (224, 224) if usual is None else usual.size
        fit = Fit.usual(size) if usual is None or usual.size != size else usual
        try:
            if self.resize is not None:
                if self.resize == "none":
                    fit = Fit(size, None, "crop")
                else:
                    way = "squash" if "x" in self.resize.lower() else "cover"
                    resize = _size("resize", self.resize)
                    fit = Fit(size, resize, way, fit.interpolation, keeps_exact=False)
            if self.interpolation is not None:
                fit = replace(fit, interpolation=self.interpolation)
        except ValueError as error:
            raise DataError(f"--resize {self.resize or 'as usual'}, --crop {_by(size)}: {error}") from error
        return fit


def open_samples(
    data: Any,
    model: nn.Module,
    data_root: str | Path | None = None,
    options: FolderOptions = FolderOptions(),
    split: str = "test",
) -> ImageDataset:
    """Open `data` as evaluate() takes it; `model` says how a folder is to be read.

    Args:
        data: a dataset name of the catalog (its `split`, with files in `data_root`) or "NAME:DIR", a
            folder, a torch Dataset of (image, label) pairs, or a pair of tensors (images: (N, C, H, W) in
            [0, 1], labels: (N,) integers). A folder holds the dataset of the model's recipe; for a model
            without a recipe, or with one whose dataset has no files, and as "folder:DIR", one sub-folder of
            image files per class: see `order_of`. Where the data and the model name their classes, the labels
            follow the names: see `by_name`. Text that is a name of the catalog never means a folder.
        options: of folders with a sub-folder per class; of the others refused.

    Raises:
        DataError, MissingData: none of these, or files or samples that are not as they should be.
        RobustzooError: the model's input_shape is no shape.
    """
    recipe = getattr(model, "recipe", None)
    if isinstance(data, Path) and described(data) is not None:
        data = str(data)
    name, folder = data_place(data) if isinstance(data, str) else (None, data)
    if name is None and recipe is not None and recipe.dataset not in WITHOUT_FILES and _is_folder(folder):
        if data_root is not None:
            raise DataError(
                f"data is the folder {str(data)!r}, and data_root is given too; expected one folder"
            )
        data, data_root, name = recipe.dataset, folder, recipe.dataset
    if not isinstance(data, str | Path) or name not in (None, FOLDER):
        if options != FolderOptions():
            given = data if isinstance(data, str) else type(data).__name__
            raise DataError(
                "--resize, --crop, --interpolation and --classes say how a folder of images is read, and the "
                f"data are {given}: leave them away, or give the folder with a sub-folder per class as "
                f"{FOLDER}:DIR"
            )
        dataset = open_data(data, data_root, split=split)
        _refuse_other_size(dataset, model)
        return by_name(dataset, names_of(model, _classes_of(model)))
    shape, classes = _shape_of(model), _classes_of(model)
    fit = options.fit(
        None if shape is None else Fit.of_model(getattr(model, "preprocessing", None), shape[1:])
    )
    channels = 3 if shape is None else shape[0]
    if channels not in (1, 3):
        raise DataError(
            f"the model takes {channels} channels, and image files give 1 or 3; pass the images as a pair of "
            "tensors or a torch Dataset"
        )
    dataset = open_data(
        data, data_root, fit=fit, channels=channels, classes=options.classes, num_classes=classes
    )
    return by_name(dataset, names_of(model, classes))


def _is_folder(place: Any) -> bool:
    return isinstance(place, Path) and place.expanduser().is_dir()


def _shape_of(model: nn.Module) -> tuple[int, int, int] | None:
    recipe = getattr(model, "recipe", None)
    if recipe is not None:
        return recipe.channels, recipe.image_size, recipe.image_size
    return input_shape(model)


def _classes_of(model: nn.Module) -> int | None:
    """Outputs of the model, where it says."""
    for holder in (getattr(model, "recipe", None), model, getattr(model, "network", None)):
        found = getattr(holder, "num_classes", None)
        if isinstance(found, int) and found > 0:
            return found
    return None


def _refuse_other_size(dataset: ImageDataset, model: nn.Module) -> None:
    """Raise DataError where the catalog's photographs have another size than the model takes."""
    shape = _shape_of(model)
    stated = is_catalog_key(dataset.key) or is_own(dataset.key)
    if shape is None or not stated or tuple(dataset.image_shape) == shape:
        return
    wanted, found = (" x ".join(map(str, sides)) for sides in (shape, dataset.image_shape))
    raise DataError(
        f"the model takes images of {wanted} (channels, height, width), and {dataset.key} are "
        f"{found}; to bring image files to the model's size, give the folder with a sub-folder per class as "
        f"{FOLDER}:DIR"
    )


def _size(option: str, text: str) -> tuple[int, int]:
    """(height, width) of "N" or "HxW". Raises DataError."""
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(s.isascii() and s.isdecimal() and 0 < len(s) < 6 and int(s) for s in sides):
        also = ', HxW or "none"' if option == "resize" else " or HxW"
        raise DataError(f"--{option} {text}: expected a size in pixels, N{also}, for example 256 or 256x320")
    return int(sides[0]), int(sides[-1])


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def choose_samples(
    dataset: ImageDataset, n: int | None = None, indices: Sequence[int] | None = None
) -> Subset:
    """All samples, `n` drawn by the subset seed 0, or the positions `indices`, in any order. Reads each
    image once.

    Raises:
        DataError: n or a position is no whole number or out of range, a position occurs twice, or both
            are given.
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
