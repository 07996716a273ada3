"""The data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from robustzoo.data.digits import Digits
from robustzoo.data.image_dataset import SPLITS, DataError, ImageDataset, require_root
from robustzoo.data.image_folder import open_imagenet
from robustzoo.data.parquet_images import ParquetImages
from robustzoo.registry.catalog import DATASETS
from robustzoo.registry.names import did_you_mean

_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _parquet(key: str, classes: tuple[str, ...] | None = None) -> Callable[..., ImageDataset]:
    def load(root: str | Path | None, split: str) -> ImageDataset:
        spec = DATASETS[key]
        shape = (spec.channels, spec.image_size, spec.image_size)
        return ParquetImages(key, root, split, shape, spec.num_classes, classes)

    return load


def _digits(root: str | Path | None, split: str) -> ImageDataset:
    require_root("digits", root)
    return Digits(split)


LOADERS: dict[str, Callable[..., ImageDataset]] = {
    "digits": _digits,
    "cifar10jpg": _parquet("cifar10jpg", _CIFAR10),
    "cifar10": _parquet("cifar10", _CIFAR10),
    "cifar100": _parquet("cifar100"),
    "imagenet": open_imagenet,
}


def load_dataset(key: str, root: str | Path | None = None, split: str = "test") -> ImageDataset:
    """A data set of the catalog. Images are float32 (C, H, W) in [0, 1], labels ints; the same on every read.

    key: "digits", "cifar10jpg", "cifar10", "cifar100" or "imagenet". root: where its files are (digits comes
    with scikit-learn and needs none; a root that does not exist is refused all the same). split: "train",
    "holdout" (kept out of train, for choosing) or "test".
    Raises: DataError on an unknown key or split and on wrong data, MissingData where data are absent.
    """
    if key not in LOADERS:
        raise DataError(
            f"unknown data set {key!r}.{did_you_mean(key, LOADERS)} There are: {', '.join(LOADERS)}"
        )
    if split not in SPLITS:
        raise DataError(f"unknown split {split!r}; there are: {', '.join(SPLITS)}")
    return LOADERS[key](root, split)
