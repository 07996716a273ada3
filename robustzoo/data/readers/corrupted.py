"""Images under common corruptions, at the positions of the clean ones: published files, or made here."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from torch import Tensor

from robustzoo.data.fit import Fit
from robustzoo.data.image_dataset import DataError, ImageDataset, MissingData, reading, to_unit
from robustzoo.data.readers.image_folder import ImageFolder

SEVERITIES = 5
_PACKAGE, _MODULE = "imagecorruptions-imaug", "imagecorruptions"
_SEEDED = ("impulse_noise", "glass_blur")  # take a seed of their own
_SMALLEST = 32  # pixels; the package refuses smaller images


class Corrupted(ABC):
    """source: where they come from, in words, for Evidence."""

    source: str

    @abstractmethod
    def image(self, position: int, corruption: str, severity: int) -> Tensor:
        """float32 (C, H, W) in [0, 1]: the clean image of this position, corrupted. severity: 1 to 5."""


class PublishedArrays(Corrupted):
    """CIFAR-10-C and -100-C: a .npy for each corruption, uint8 (5 N, H, W, 3), one severity after the other,
    and labels.npy.

    Raises: MissingData for an absent file, DataError for other shapes, or labels that are not the clean ones.
    """

    def __init__(self, folder: Path, dataset: ImageDataset) -> None:
        self.source = f"published arrays ({folder.resolve().name})"
        self._folder, self._n = folder, len(dataset)
        self._shape = (SEVERITIES * self._n, *dataset.image_shape[1:], dataset.image_shape[0])
        self._arrays: dict[str, np.ndarray] = {}
        labels = self._open("labels")
        expected = np.tile(dataset.labels, SEVERITIES) if dataset.labels is not None else labels
        if len(labels) not in (self._n, len(expected)) or (labels != expected[: len(labels)]).any():
            raise DataError(
                f"{folder / 'labels.npy'} has other labels than the {self._n:,} images of {dataset.key}; "
                "give their original test set, in its order (that of the binary archive)"
            )

    def image(self, position: int, corruption: str, severity: int) -> Tensor:
        if corruption not in self._arrays:
            array = self._open(corruption)
            if array.shape != self._shape or array.dtype != np.uint8:
                raise DataError(
                    f"{self._folder / corruption}.npy holds {array.dtype} {array.shape}; expected uint8 "
                    f"{self._shape}: fetch it again"
                )
            self._arrays = {corruption: array}
        pixels = self._arrays[corruption][(severity - 1) * self._n + position]
        return to_unit(pixels.transpose(2, 0, 1).copy())

    def _open(self, name: str) -> np.ndarray:
        file = self._folder / f"{name}.npy"
        if not file.is_file():
            raise MissingData(f"{file} is missing; expected the arrays of CIFAR-10-C or CIFAR-100-C")
        with reading(f"{file} is no readable array"):
            return np.load(file, mmap_mode="r", allow_pickle=False)


class CorruptedFolders(Corrupted):
    """ImageNet-C: CORRUPTION/SEVERITY/CLASS/IMAGE, the same files as the clean images', of the model's size.

    Raises: MissingData for an absent folder, DataError for other files than the clean ones.
    """

    def __init__(self, folder: Path, dataset: ImageDataset) -> None:
        if not isinstance(dataset, ImageFolder):
            raise DataError(
                f"{folder} holds folders of corrupted images: the clean ones must be class folders as well"
            )
        self.source = f"published folders ({folder.resolve().name})"
        self._folder, self._clean = folder, dataset
        places = [dataset.file(i).relative_to(dataset.root) for i in range(len(dataset))]
        self._index = {p.parts[0]: int(y) for p, y in zip(places, dataset.labels, strict=True)}
        self._stems = [p.with_suffix("") for p in places]
        self._opened: tuple[tuple[str, int], ImageFolder] | None = None

    def image(self, position: int, corruption: str, severity: int) -> Tensor:
        if self._opened is None or self._opened[0] != (corruption, severity):
            self._opened = (corruption, severity), self._open(corruption, severity)
        return self._opened[1][position][0]

    def _open(self, corruption: str, severity: int) -> ImageFolder:
        place, clean = self._folder / corruption / str(severity), self._clean
        if not place.is_dir():
            raise MissingData(f"{place} is missing; expected ImageNet-C's CORRUPTION/SEVERITY/CLASS/IMAGE")
        channels, *size = clean.image_shape
        fit = Fit((size[0], size[1]))  # as they are: they have been brought to size before
        found = ImageFolder(clean.key, clean.split, place, self._index, clean.classes, fit, channels)
        stems = [found.file(i).relative_to(place).with_suffix("") for i in range(len(found))]
        if stems != self._stems:
            raise DataError(
                f"{place} has {len(stems):,} images, and the clean set {len(self._stems):,} of other names; "
                "give both whole, or the same part of both"
            )
        return found


class Made(Corrupted):
    """Made from the clean images by the package imagecorruptions-imaug, each draw keyed by seed, position and
    corruption.

    Raises: RobustzooError where it is not installed, DataError for images that it refuses.
    """

    def __init__(self, dataset: ImageDataset, seed: int) -> None:
        if find_spec(_MODULE) is None:
            raise MissingData(
                f"corrupted images are published files (--corrupted DIR), or made by {_PACKAGE}: "
                "pip install 'robustzoo[corruptions]'"
            )
        if dataset.image_shape[0] != 3 or min(dataset.image_shape[1:]) < _SMALLEST:
            raise DataError(
                f"{dataset.key} has images of {dataset.image_shape} (channels, height, width); "
                f"{_PACKAGE} corrupts colour images of at least {_SMALLEST} pixels"
            )
        self.source = f"made by {_PACKAGE} {version(_PACKAGE)}, seed {seed}"
        self._dataset, self._seed = dataset, seed

    def image(self, position: int, corruption: str, severity: int) -> Tensor:
        from imagecorruptions import corrupt  # slow: it brings OpenCV and Numba

        clean = (255 * self._dataset[position][0]).round().byte().permute(1, 2, 0).numpy()
        key = hashlib.sha256(f"{self._seed} {position} {corruption} {severity}".encode()).digest()
        drawn = int.from_bytes(key[:4], "big")
        own = {"seed": drawn} if corruption in _SEEDED else {}
        before = np.random.get_state()  # the others draw from the global generator
        np.random.seed(drawn)
        try:
            made = corrupt(clean, severity=severity, corruption_name=corruption, **own)
        finally:
            np.random.set_state(before)
        return to_unit(np.ascontiguousarray(made.astype(np.uint8).transpose(2, 0, 1)))


def open_corrupted(dataset: ImageDataset, folder: str | Path | None, seed: int = 0) -> Corrupted:
    """The corrupted images of a dataset, in a folder of published files, or made here where none is named.

    Raises: MissingData, DataError.
    """
    if folder is None:
        return Made(dataset, seed)
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise MissingData(f"no folder {place}; expected published corrupted images")
    arrays = (place / "labels.npy").exists() or any(place.glob("*.npy"))
    return PublishedArrays(place, dataset) if arrays else CorruptedFolders(place, dataset)
