"""The data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from robustzoo.data.image_dataset import SPLITS, DataError, ImageDataset, listing, refuse_root
from robustzoo.data.readers.cifar import open_cifar
from robustzoo.data.readers.described_images import open_described
from robustzoo.data.readers.digits import Digits
from robustzoo.data.readers.imagenet import open_imagenet
from robustzoo.registry.dataset_files import is_own
from robustzoo.registry.names import did_you_mean


def _digits(root: str | Path | None, split: str) -> ImageDataset:
    refuse_root("digits", root, "come with scikit-learn and ")
    return Digits(split)


LOADERS: dict[str, Callable[..., ImageDataset]] = {
    "digits": _digits,
    "cifar10jpg": partial(open_cifar, "cifar10jpg"),
    "cifar10": partial(open_cifar, "cifar10"),
    "cifar100": partial(open_cifar, "cifar100"),
    "imagenet": open_imagenet,
}
# Data sets that come with an installed package: no folder holds them.
WITHOUT_FILES = {"digits"}


def load_dataset(key: str, root: str | Path | None = None, split: str = "test") -> ImageDataset:
    """A data set of the catalog. Images are float32 (C, H, W) in [0, 1], labels ints; the same on every read.

    key: "digits", "cifar10jpg", "cifar10", "cifar100" or "imagenet"; or "own:NAME" of images that a
    dataset.json in root describes. root: where its files are (digits comes
    with scikit-learn and needs none, so any root is refused). split: "train",
    "holdout" (kept out of train, for choosing) or "test".
    A part of a data set is read like the whole; `complete` and `shortfall` of the result tell them apart.
    Raises: DataError on an unknown key or split and on wrong data, MissingData where data are absent.
    """
    if not isinstance(key, str):
        raise DataError(
            f"the name of a data set is text, not {key!r} ({type(key).__name__}). There are: "
            f"{', '.join(LOADERS)}"
        )
    own = is_own(key)
    if key not in LOADERS and not own:
        raise DataError(
            f"unknown data set {key!r}.{did_you_mean(key, LOADERS)} There are: {', '.join(LOADERS)}"
        )
    if split not in SPLITS:
        raise DataError(f"unknown split {split!r}; there are: {', '.join(SPLITS)}")
    with listing(key):
        return open_described(root, split, key) if own else LOADERS[key](root, split)
