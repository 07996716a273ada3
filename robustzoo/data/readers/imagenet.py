"""ImageNet, from class folders or from the Hub's parquet shards, whole or in part."""

from __future__ import annotations

import re
from pathlib import Path

from robustzoo.data.class_order import imagenet_synsets
from robustzoo.data.image_dataset import DataError, ImageDataset, MissingData, existing_root, take_stock
from robustzoo.data.readers.image_folder import ImageFolder, class_folders
from robustzoo.data.readers.parquet_photographs import ParquetPhotographs
from robustzoo.data.readers.parquet_shards import find_shards, has_shards
from robustzoo.data.subsets import training_rows

LAYOUT = (
    "a folder with val/ and train/, each holding one folder of images per class (n01440764/, ...), or with "
    "validation-*.parquet and train-*.parquet (an image column {bytes, path}, a label column)"
)
HOLDOUT_SIZE = 10_000
_WNID = re.compile(r"n\d{8}")
_VALIDATION = ("validation", "val")  # names of the parquet split, the Hub's first


def open_imagenet(root: str | Path | None, split: str) -> ImageDataset:
    """ImageNet (1,000 classes, ILSVRC2012): root/val and root/train, a folder of <wnid>/ folders, or parquet.

    Evaluation and training images are 224 x 224 from 256 on the short side. split "test" is the validation
    set; "holdout" a fixed random 10,000 of the training images (a tenth where there are fewer than 100,000),
    "train" the others. A part of the classes is enough: labels are ImageNet's 0 to 999 in any case.

    A root with validation images only serves them as training images too, for trying things out; the data set
    is then not `complete`, as with any other part, and its `shortfall` says so.
    Raises MissingData and DataError, naming the folder and what was expected.
    """
    place = existing_root("imagenet", root, LAYOUT)
    if place.suffix == ".parquet" or (place.is_dir() and _holds_parquet(place)):
        dataset, borrowed = _from_parquet(place, split)
    else:
        dataset, borrowed = _from_folders(place, split)
    take_stock(dataset, len(dataset), place)
    if borrowed:
        dataset.shortfall = f"{place} has no training images; its {len(dataset):,} validation images serve"
    if split == "test":
        return dataset
    return dataset.select(training_rows(len(dataset), split, HOLDOUT_SIZE))


def _holds_parquet(root: Path) -> bool:
    # Class folders are not searched: those of the training set hold more than a million files.
    classes_inside = any(map(_WNID.fullmatch, class_folders(root)))
    return not classes_inside and has_shards(root, ("train", *_VALIDATION))


def _from_parquet(root: Path, split: str) -> tuple[ParquetPhotographs, bool]:
    borrowed = split != "test" and root.is_dir() and not has_shards(root, ("train",))
    names = _VALIDATION if split == "test" or borrowed else ("train",)
    return ParquetPhotographs("imagenet", split, find_shards("imagenet", root, names, LAYOUT), 1000), borrowed


def _from_folders(root: Path, split: str) -> tuple[ImageFolder, bool]:
    borrowed = split != "test" and not (root / "train").is_dir() and (root / "val").is_dir()
    folder = _split_folder(root, "test" if borrowed else split)
    index = _imagenet_index(folder)
    names = {label: wnid for wnid, label in index.items()}
    classes = tuple(names.get(label, f"class {label}") for label in range(1000))
    return ImageFolder("imagenet", split, folder, index, classes), borrowed


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
    if (synsets := imagenet_synsets()) is not None:
        return {wnid: i for i, wnid in enumerate(synsets)}
    raise MissingData(
        f"{folder} has {len(names)} of the 1000 class folders, and the installed timm has no class list; "
        "put a class_index.tsv (wnid, tab, class index, tab, name per line) beside the images"
    )


def _read_index(file: Path) -> dict[str, int]:
    try:
        text = file.read_text("utf-8-sig")  # with or without the mark that some editors begin with
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is no text in UTF-8 ({error}); save it again in this encoding") from error
    index: dict[str, int] = {}
    wnids: dict[int, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        wnid, _, rest = line.partition("\t")
        label = rest.partition("\t")[0].strip()
        if not (label.isascii() and label.isdecimal()) or len(label) > 4 or int(label) > 999 or wnid in index:
            raise DataError(
                f"{file}, line {number}: {line!r}; expected wnid, tab, class index 0 to 999, tab, name"
            )
        if int(label) in wnids:
            raise DataError(
                f"{file}, line {number}: class {int(label)} is given to {wnid} and to {wnids[int(label)]}; "
                "give each class index to one wnid"
            )
        index[wnid] = int(label)
        wnids[int(label)] = wnid
    return index
