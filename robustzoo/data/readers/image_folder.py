"""Photographs in one folder per class."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from robustzoo.data.class_order import order_of, stated_order
from robustzoo.data.decoder import decode, formats, suffixes
from robustzoo.data.fit import IMAGENET, Fit
from robustzoo.data.image_dataset import AS_STATED, BY_PLACE, DataError, existing_root
from robustzoo.data.readers.image_files import hidden, images_under, left_out_text, printable, suffix_of
from robustzoo.data.readers.photographs import Photographs
from robustzoo.registry.catalog import DATASETS, OWN_DATA_MARK

_USUAL_SIZE = (224, 224)
_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "holdout"}
_FILES = {".parquet": "parquet files", ".zip": "archives", ".tar": "archives", ".gz": "archives"}
# Ending of a file of arrays -> how its owner reads it.
_ARRAYS = {
    ".npz": "numpy.load",
    ".npy": "numpy.load",
    ".pt": "torch.load",
    ".pth": "torch.load",
    ".safetensors": "safetensors.torch.load_file",
    ".h5": "h5py.File",
    ".hdf5": "h5py.File",
    ".mat": "scipy.io.loadmat",
    ".pkl": "pickle.load",
    ".pickle": "pickle.load",
}


class ImageFolder(Photographs):
    """Images under folder/<class>/, at any depth, in order of class folder and file name.

    Memory: the file names (about 40 bytes an image). class_index: class folder -> label in [0, len(classes)).
    Raises DataError where a class folder is unknown or empty, and what Photographs raises.
    """

    def __init__(
        self,
        key: str,
        split: str,
        folder: Path,
        class_index: dict[str, int],
        classes: tuple[str, ...],
        fit: Fit = IMAGENET,
        channels: int = 3,
    ):
        self._folder = folder
        names, labels = [], []
        left_out: Counter[str] = Counter()
        for name in class_folders(folder):
            if name not in class_index:
                raise DataError(
                    f"{folder / name} is none of the {len(classes)} classes of {key}; remove the folder"
                )
            others: Counter[str] = Counter()
            images = images_under(folder / name, others)
            if not images:
                found = f", but {', '.join(f'{n} {kind}' for kind, n in others.items())}" if others else ""
                raise DataError(
                    f"{folder / name} holds no image that is read (.jpg, .png, .tif, ...){found}; fill or "
                    "remove it"
                )
            left_out += others
            names += [os.fsencode(f"{name}/{image}") for image in images]
            labels += [class_index[name]] * len(images)
        self._names = np.array(names)  # fixed-width bytes: a list of a million paths would take 100 MB
        super().__init__(key, split, np.array(labels, np.int64), classes, fit, channels)
        if said := left_out_text(folder, left_out, _images_in(folder)):
            self.warnings = (said,)

    def select(self, items: np.ndarray) -> ImageFolder:
        """Keep only these items, in this order. Returns self."""
        self._names, self.labels = self._names[items], self.labels[items]
        return self

    @property
    def root(self) -> Path:
        """The folder of the class folders."""
        return self._folder

    def file(self, i: int) -> Path:
        """Where item i lies."""
        return self._folder / os.fsdecode(self._names[i])

    def _photograph(self, i: int) -> tuple[Image.Image, str]:
        path = self.file(i)
        return decode(path, self.image_shape[0], f"image {i}, {path}"), f"image {i}, {path}"

    def small_size(self) -> tuple[int, int] | None:
        """(height, width) that all images have in common, where it is smaller than photographs are brought
        to; else None."""
        common = None
        for name in self._names:
            try:
                with Image.open(self._folder / os.fsdecode(name), formats=formats()) as image:
                    size = (image.height, image.width)
            except Exception:  # whatever it is, it is said when the image is read
                return None
            if size != (common or size) or max(size) > max(_USUAL_SIZE):
                return None
            common = size
        return common

    def refit(self, fit: Fit) -> None:
        """Bring the images to another size."""
        self.fit, self.image_shape = fit, (self.image_shape[0], *fit.size)


def class_folders(folder: Path) -> list[str]:
    """Names of the folders in a folder, sorted, hidden ones and those of systems left out."""
    return sorted(e.name for e in os.scandir(folder) if not hidden(e.name) and e.is_dir())


def open_folder(
    root: str | Path,
    fit: Fit | None = None,
    channels: int = 3,
    classes: str | Path | Sequence[str] | None = None,
    num_classes: int | None = None,
) -> ImageFolder:
    """Anyone's images in one folder per class, under the key "folder:NAME".

    fit: how they are brought to one size; default: as they are where all have one size up to 224 x 224, else
    `Fit.usual` for 224 x 224. channels: 3 for RGB, 1 for grey.
    classes: the class names in order, or a file of them (see `stated_order`); default: see `order_of`.
    num_classes: outputs of the model, where it says.
    Raises MissingData where there is no such folder, DataError where it has no class folders or an empty one.
    """
    folder = existing_root("a folder of images", root, "one folder of images per class")
    names = class_folders(folder) if folder.is_dir() else []
    _refuse_other_layouts(folder, names)
    order = order_of(names, num_classes) if classes is None else stated_order(names, classes)
    name = printable(folder.resolve().name)
    dataset = ImageFolder(
        f"folder{OWN_DATA_MARK}{name}",
        "test",
        folder,
        order.index,
        order.names,
        Fit.usual(_USUAL_SIZE) if fit is None else fit,
        channels,
    )
    if fit is None and (size := dataset.small_size()) is not None:
        dataset.refit(Fit(size))
    dataset.transform = dataset.fit.to_json()
    dataset.notes = (f"{len(dataset):,} images of {dataset.key}: {dataset.fit.text()}", order.text())
    dataset.numbered = AS_STATED if order.stated else BY_PLACE
    dataset.warnings += (order.warning,) if order.warning else ()
    return dataset


def _refuse_other_layouts(folder: Path, names: list[str]) -> None:
    """Raise DataError where the folder is no folder of class folders, saying what to type instead."""
    if not names:
        files = [e.name for e in os.scandir(folder)] if folder.is_dir() else [folder.name]
        ends = set(map(suffix_of, files))
        kind = next((text for end, text in _FILES.items() if end in ends), None)
        if kind == "parquet files":
            keys = ", ".join(key for key, spec in DATASETS.items() if spec.needs_files)
            raise DataError(
                f"{folder} holds parquet files; say which dataset they are, as --data NAME:{folder}, where "
                f"NAME is one of {keys}. Of another dataset, unpack the images into one folder per class"
            )
        found = "has no folders inside" if folder.is_dir() else "is a file"
        unpack = f" (it holds {kind}: unpack them)" if kind else ""
        for end in sorted(ends & _ARRAYS.keys()):
            unpack = (
                f". Arrays go in from Python: read them with {_ARRAYS[end]}, and pass the pair of tensors "
                "(images, labels) to robustzoo.evaluate: images (N, C, H, W), floating point in [0, 1], "
                "labels (N,), integers; for a command, save them as PNG files in such folders"
            )
        raise DataError(f"{folder} {found}; expected one folder of images per class{unpack}")
    splits = [name for name in names if name.lower() in _SPLITS]
    if len(splits) == len(names) and any(class_folders(folder / name) for name in names):
        raise DataError(
            f"{folder} holds splits ({', '.join(names)}) and not classes; give one of them, for example "
            f"{folder / names[-1]}"
        )
    if len(names) == 1 and not _images_in(folder / names[0]) and len(class_folders(folder / names[0])) > 1:
        raise DataError(
            f"{folder} holds the one folder {names[0]}, which holds several; give {folder / names[0]}"
        )


def _images_in(folder: Path) -> int:
    """Images in the folder itself."""
    return sum(
        not hidden(e.name) and suffix_of(e.name) in suffixes() and e.is_file() for e in os.scandir(folder)
    )
