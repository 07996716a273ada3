"""Photographs in one folder per class: ImageNet's layout, and anyone's own images."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image
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
from robustzoo.data.transforms import centre_crop, random_crop, resize_short_side

LAYOUT = "a folder with val/ and train/, each holding one folder of images per class (n01440764/, ...)"
HOLDOUT_SIZE = 10_000
_SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp")
_WNID = re.compile(r"n\d{8}")


class ImageFolder(ImageDataset):
    """Images under folder/<class>/, read on access. Memory: the file names (about 40 bytes an image).

    An image is resized to `resize` pixels on the short side, then cropped to image_size: at the centre on
    access, at a random place (keyed by seed, epoch and item) in `training_item`. Items are in order of class
    folder and file name. image_shape: (3, image_size, image_size).

    class_index: class folder -> label in [0, len(classes)).
    Raises: DataError where a class folder is unknown or empty, or (on access) where an image is broken;
    ValueError where the crop does not fit.
    """

    def __init__(
        self,
        key: str,
        split: str,
        folder: Path,
        class_index: dict[str, int],
        classes: tuple[str, ...],
        image_size: int = 224,
        resize: int = 256,
    ):
        if not 1 <= image_size <= resize:
            raise ValueError(
                f"cannot crop {image_size} pixels from {resize}; choose resize >= image_size >= 1"
            )
        self._folder = folder
        self._resize = resize
        names, labels = [], []
        for name in class_folders(folder):
            if name not in class_index:
                raise DataError(
                    f"{folder / name} is none of the {len(classes)} classes of {key}; remove the folder"
                )
            images = sorted(e.name for e in os.scandir(folder / name) if e.name.lower().endswith(_SUFFIXES))
            if not images:
                raise DataError(f"{folder / name} holds no image ({', '.join(_SUFFIXES)}); fill or remove it")
            names += [os.fsencode(f"{name}/{image}") for image in images]
            labels += [class_index[name]] * len(images)
        self._names = np.array(names)  # fixed-width bytes: a list of a million paths would take 100 MB
        super().__init__(key, split, np.array(labels, np.int64), (3, image_size, image_size), classes)

    def select(self, items: np.ndarray) -> ImageFolder:
        """Keep only these items, in this order. Returns self."""
        self._names, self.labels = self._names[items], self.labels[items]
        return self

    def training_item(self, i: int, seed: int, epoch: int) -> tuple[Tensor, int]:
        i = self._position(i)
        image = random_crop(self._resized(i), self.image_shape[1], seed, epoch, i)
        return to_unit(to_bytes(image)), int(self.labels[i])

    def _image(self, i: int) -> Tensor:
        return to_unit(to_bytes(centre_crop(self._resized(i), self.image_shape[1])))

    def _resized(self, i: int) -> Image.Image:
        path = self._folder / os.fsdecode(self._names[i])
        return resize_short_side(decode(path, 3, str(path)), self._resize)


def class_folders(folder: Path) -> list[str]:
    """Names of the folders in a folder, sorted, hidden ones left out."""
    return sorted(e.name for e in os.scandir(folder) if e.is_dir() and not e.name.startswith("."))


def open_folder(root: str | Path, image_size: int = 224, resize: int | None = None) -> ImageFolder:
    """Anyone's images in one folder per class; labels count the folders in sorted order, from 0.

    resize: short side before the centre crop (default: image_size * 256 / 224, rounded).
    Raises MissingData where there is no such folder, DataError where it has no class folders or an empty one.
    """
    folder = existing_root("a folder of images", root, "one folder of images per class")
    names = class_folders(folder) if folder.is_dir() else []
    if not names:
        raise DataError(f"{folder} has no folders inside; expected one folder of images per class")
    index = {name: i for i, name in enumerate(names)}
    resize = round(image_size * 256 / 224) if resize is None else resize
    return ImageFolder(folder.resolve().name, "test", folder, index, tuple(names), image_size, resize)


def open_imagenet(root: str | Path | None, split: str) -> ImageFolder:
    """ImageNet (1,000 classes, ILSVRC2012) from root/val and root/train, or from a folder of <wnid>/ folders.

    Evaluation and training images are 224 x 224 from 256 on the short side. split "test" is the validation
    set; "holdout" a fixed random 10,000 of the training images (a tenth where there are fewer than 100,000),
    "train" the others. A part of the classes is enough: labels are ImageNet's 0 to 999 in any case.
    Raises MissingData and DataError, naming the folder and what was expected.
    """
    folder = _split_folder(existing_root("imagenet", root, LAYOUT), split)
    index = _imagenet_index(folder)
    names = {label: wnid for wnid, label in index.items()}
    classes = tuple(names.get(label, f"class {label}") for label in range(1000))
    dataset = ImageFolder("imagenet", split, folder, index, classes)
    if split == "test":
        return dataset
    return dataset.select(training_rows(len(dataset), split, HOLDOUT_SIZE))


def _split_folder(root: Path, split: str) -> Path:
    wanted, other = ("val", "train") if split == "test" else ("train", "val")
    if root.is_file():
        raise DataError(f"{root} is a file; expected {LAYOUT}")
    if (root / wanted).is_dir():
        folder = root / wanted
    elif any(map(_WNID.fullmatch, class_folders(root))):
        folder = root
        if root.name == other:
            raise DataError(
                f"{root} looks like the {other} images, but split {split!r} reads {wanted}/; give the folder "
                f"with {wanted}/ inside (or, to use these images anyway, link them as {wanted}/ elsewhere)"
            )
    else:
        raise MissingData(
            f"{root} has neither {wanted}/ nor class folders named like n01440764; expected {LAYOUT}"
        )
    if not any(map(_WNID.fullmatch, class_folders(folder))):
        raise DataError(
            f"{folder} has no class folders named like n01440764; move the images into folders by class"
        )
    return folder


def _imagenet_index(folder: Path) -> dict[str, int]:
    """wnid -> 0..999: from class_index.tsv beside the images, else 1,000 folders sorted, else timm's list."""
    for place in (folder, folder.parent):
        if (place / "class_index.tsv").is_file():
            return _read_index(place / "class_index.tsv")
    names = class_folders(folder)
    if len(names) == 1000 and all(map(_WNID.fullmatch, names)):
        return {name: i for i, name in enumerate(names)}
    # A data file of the installed timm, found without importing it: timm's code belongs to robustzoo.models.
    spec = find_spec("timm")
    for place in (spec.submodule_search_locations or []) if spec else []:
        synsets = Path(place, "data", "_info", "imagenet_synsets.txt")
        if synsets.is_file():
            return {wnid: i for i, wnid in enumerate(synsets.read_text("utf-8").split())}
    raise MissingData(
        f"{folder} has {len(names)} of the 1000 class folders, and the installed timm has no class list; "
        "put a class_index.tsv (wnid, tab, class index, tab, name per line) beside the images"
    )


def _read_index(file: Path) -> dict[str, int]:
    index = {}
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        wnid, _, rest = line.partition("\t")
        label = rest.partition("\t")[0].strip()
        if not label.isdecimal() or int(label) > 999 or wnid in index:
            raise DataError(
                f"{file}, line {number}: {line!r}; expected wnid, tab, class index 0 to 999, tab, name"
            )
        index[wnid] = int(label)
    return index
