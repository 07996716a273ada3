"""Generated images, as extra training data, and original and generated ones as one data set."""

from __future__ import annotations

import math
import struct
import zipfile
from pathlib import Path

import numpy as np
from torch import Tensor

from robustzoo.data.image_dataset import DataError, ImageDataset, MissingData, reading, to_unit

_ARRAYS = ("image", "label")
_HEADER = 30  # bytes of a member's header in a zip file, before its name
_CHUNK = 1 << 24  # bytes that are compared with a checksum at a time


class GeneratedImages(ImageDataset):
    """Labelled images from an .npz file, such as the million DDPM samples of Gowal et al. 2021.

    The file holds `image`, uint8 (N, H, W, C), and `label`, integer (N,) in [0, num_classes). Memory: where
    the arrays are stored as they are (np.savez), what is read of them, shared between processes; where they
    are compressed, all of them (3 GB for a million images), unpacked once at the start.

    Either way the file is read once from end to end and compared with its checksums, a few seconds for 3 GB;
    a copy of this object in another process trusts that.

    Raises: MissingData where the file is absent; DataError on a file that is no .npz file, breaks off, is
    damaged, lacks an array, or has one of another kind. Arrays of Python objects are refused: they are
    pickles.
    """

    def __init__(self, path: str | Path, image_shape: tuple[int, int, int], num_classes: int):
        self._path = Path(path).expanduser()
        self._expected = (*image_shape[1:], image_shape[0])
        self._pixels, labels = self._arrays(check=True)
        if labels.dtype.kind not in "iu" or labels.shape != self._pixels.shape[:1]:
            raise DataError(
                f"{self._path}: label is {labels.dtype} {labels.shape}, expected integers "
                f"({len(self._pixels)},), one per image; use class ids"
            )
        # Compared before the cast: a number too large for int64 would turn negative.
        for i in np.flatnonzero((labels < 0) | (labels >= num_classes))[:1]:
            raise DataError(
                f"{self._path}: label {labels[i]} of image {i} is not in 0 to {num_classes - 1}; use images "
                "that were generated for this data set"
            )
        classes = tuple(map(str, range(num_classes)))
        super().__init__("generated", "train", labels.astype(np.int64), image_shape, classes)

    def _arrays(self, *, check: bool) -> tuple[np.ndarray, np.ndarray]:
        """Pixels and labels. check: compare pixels that are mapped with their checksum, too."""
        if not self._path.is_file():
            found = "is a folder" if self._path.is_dir() else "is absent"
            raise MissingData(f"{self._path} {found}; expected an .npz file with the arrays image and label")
        with reading(f"{self._path} is no whole .npz file"), zipfile.ZipFile(self._path) as file:
            members = {info.filename.removesuffix(".npy"): info for info in file.infolist()}
            missing = [name for name in _ARRAYS if name not in members]
            if missing:
                raise DataError(
                    f"{self._path} has no array {' and '.join(missing)}: found "
                    f"{', '.join(members) or 'nothing'}; expected image and label"
                )
            self._check_image(*self._header(file, members["image"]))
            if self._header(file, members["label"])[1].hasobject:
                raise DataError(f"{self._path}: label holds Python objects, which are pickles; use class ids")
            stored = members["image"].compress_type == zipfile.ZIP_STORED
            if stored and check:
                _compare(file, members["image"])
            pixels = self._map(members["image"]) if stored else self._load(file, members["image"])
            return pixels, self._load(file, members["label"])

    def _check_image(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        if dtype != np.uint8 or shape[1:] != self._expected or not shape[0]:
            expected = ", ".join(map(str, self._expected))
            raise DataError(
                f"{self._path}: image is {dtype} {shape}, expected uint8 (N, {expected}), N >= 1; use images "
                "that were generated for this data set"
            )

    @staticmethod
    def _header(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and dtype, which fill the member exactly: a damaged header would ask for any memory."""
        with file.open(info) as member:
            shape, _, dtype, length = _npy_header(member)
        if not dtype.hasobject and length + dtype.itemsize * math.prod(shape) != info.file_size:
            raise ValueError(f"{info.filename} does not have the size that its header tells")
        return shape, dtype

    @staticmethod
    def _load(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
        with file.open(info) as member:
            array = np.lib.format.read_array(member, allow_pickle=False)
            member.read()  # the checksum is compared at the end, which the array alone may not reach
            return array

    def _map(self, info: zipfile.ZipInfo) -> np.ndarray:
        """The array of a member that is stored as it is, mapped from the file."""
        with self._path.open("rb") as file:
            file.seek(info.header_offset)
            name, extra = struct.unpack("<HH", file.read(_HEADER)[26:])
            file.seek(info.header_offset + _HEADER + name + extra)
            shape, fortran, dtype, _ = _npy_header(file)
            order = "F" if fortran else "C"
            return np.memmap(self._path, dtype, "r", file.tell(), shape, order)

    def _image(self, i: int) -> Tensor:
        return to_unit(np.array(self._pixels[i].transpose(2, 0, 1), order="C"))

    def __getstate__(self) -> dict:
        return {k: v for k, v in self.__dict__.items() if k != "_pixels"}  # not a copy of a mapped file

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._pixels, _ = self._arrays(check=False)


class MixedImages(ImageDataset):
    """Original images, then generated ones: item i >= len(original) is generated image i - len(original).

    For batches in a fixed proportion see MixedOrder. Key, classes and `shortfall` are those of the original
    images. Raises DataError where image shapes or numbers of classes differ.
    """

    def __init__(self, original: ImageDataset, generated: ImageDataset):
        for what in ("image_shape", "num_classes"):
            one, other = getattr(original, what), getattr(generated, what)
            if one != other:
                raise DataError(
                    f"{original.key} has {what} {one}, the generated images {other}; use images that were "
                    "generated for this data set"
                )
        self.original, self.generated = original, generated
        self.shortfall = original.shortfall
        labels = np.concatenate([original.labels, generated.labels])
        super().__init__(original.key, original.split, labels, original.image_shape, original.classes)

    def training_item(self, i: int, seed: int, epoch: int, augmentation: str) -> tuple[Tensor, int]:
        if i < len(self.original):
            return self.original.training_item(i, seed, epoch, augmentation)
        return super().training_item(i, seed, epoch, augmentation)  # keyed by i, which no original has

    def _image(self, i: int) -> Tensor:
        n = len(self.original)
        return self.original[i][0] if i < n else self.generated[i - n][0]


def _compare(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    """Raise BadZipFile where a member does not have its checksum."""
    with file.open(info) as member:
        while member.read(_CHUNK):
            pass


def _npy_header(file) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Shape, whether in Fortran order, dtype, and length in bytes of the header that `file` stands at."""
    start = file.tell()
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    return shape, fortran, dtype, file.tell() - start
