"""Data sets of 32 x 32 photographs, in whichever of their usual layouts they lie."""

from __future__ import annotations

from pathlib import Path

from robustzoo.data.fit import Fit
from robustzoo.data.image_dataset import DataError, ImageDataset, MissingData, existing_root, take_stock
from robustzoo.data.readers.cifar_binary import ARCHIVES, CifarBinary, pickles
from robustzoo.data.readers.image_folder import ImageFolder, class_folders
from robustzoo.data.readers.parquet_images import ParquetImages
from robustzoo.data.readers.parquet_shards import LAYOUT, has_shards
from robustzoo.data.subsets import training_rows
from robustzoo.registry.catalog import DATASETS
from robustzoo.registry.describe import class_names

HOLDOUT_SIZE = 1000
_JPEG = b"\xff\xd8\xff"
CLASSES = {key: class_names(key) or () for key in ("cifar10", "cifar10jpg", "cifar100")}
# Other spellings that are in use for a class of CIFAR-100.
_ALIASES = {"computer_keyboard": "keyboard", "cra": "crab"}


def open_cifar(key: str, root: str | Path | None, split: str) -> ImageDataset:
    """A split of "cifar10", "cifar100" (fine labels) or "cifar10jpg", from the first layout found in root.

    Looked for in this order: parquet files; for the two originals the binary archive, unpacked or not; a
    folder per split (train/, test/) with a folder per class, named by class or by its number. Order differs
    between layouts, and with it which of the training images are the holdout; a layout's own order is fixed.
    Raises MissingData and DataError, naming what was found and what was expected.
    """
    place, classes, archive = existing_root(key, root, _layout(key)), CLASSES[key], ARCHIVES.get(key)
    if place.suffix == ".parquet" or (place.is_dir() and has_shards(place, ("train", "test"))):
        spec = DATASETS[key]
        shape = (spec.channels, spec.image_size, spec.image_size)
        images = ParquetImages(key, place, split, shape, classes)
        if archive and images.encoded(0).startswith(_JPEG):
            raise DataError(
                f"{place} holds JPEG images, and {key} is published without loss: these are other pixels, "
                "and another data set (cifar10jpg for CIFAR-10)"
            )
        return images
    if archive and place.is_file():
        return CifarBinary(key, place, split, classes)
    if place.is_file():
        raise DataError(f"{place} is no parquet file; expected {_layout(key)}")
    if archive:
        for folder in (place, place / archive.folder):
            if any((folder / file).is_file() for files in archive.files.values() for file in files):
                return CifarBinary(key, folder, split, classes)
        if (place / archive.name).is_file():
            return CifarBinary(key, place / archive.name, split, classes)
    if (place / "train").is_dir() or (place / "test").is_dir():
        return _from_folders(key, place, split)
    if archive and (place.name == archive.pickled or list(place.glob(f"{archive.pickled}*"))):
        raise DataError(pickles(place, archive))
    raise MissingData(f"{place} holds none of what {key} is read from; expected {_layout(key)}")


def _layout(key: str) -> str:
    archive = ARCHIVES.get(key)
    binary = f", or {archive.name} (or its folder {archive.folder})" if archive else ""
    return f"{LAYOUT}{binary}, or a folder with train/CLASS/*.png and test/CLASS/*.png"


def _from_folders(key: str, root: Path, split: str) -> ImageFolder:
    folder = root / ("test" if split == "test" else "train")
    names = class_folders(folder) if folder.is_dir() else []
    if not names:
        raise MissingData(f"{folder} has no class folders; expected for {key}: {_layout(key)}")
    classes = CLASSES[key]
    strange = [name for name in names if name not in _class_index(names, classes)]
    if strange:
        raise DataError(
            f"{folder / strange[0]} is none of the {len(classes)} classes of {key}; name its folders 0 to "
            f"{len(classes) - 1}, or {', '.join(classes[:10])}{', ...' if len(classes) > 10 else ''}"
        )
    index = _class_index(names, classes)
    if len(set(index.values())) < len(index):
        raise DataError(f"{folder} has two folders for one class: {', '.join(index)}; keep one of each")
    size = DATASETS[key].image_size
    dataset = ImageFolder(key, split, folder, index, classes, Fit((size, size)))
    take_stock(dataset, len(dataset), folder)
    if split == "test":
        return dataset
    return dataset.select(training_rows(len(dataset), split, HOLDOUT_SIZE))


def _class_index(folders: list[str], classes: tuple[str, ...]) -> dict[str, int]:
    """Label of each folder that is named by a class or by its number; others are left out."""
    by_name = {name: i for i, name in enumerate(classes)}
    by_name |= {alias: by_name[name] for alias, name in _ALIASES.items() if name in by_name}
    by_number = {name: int(name) for name in folders if name.isdecimal() and int(name) < len(classes)}
    return {name: by_name[name] for name in folders if name in by_name} | by_number
