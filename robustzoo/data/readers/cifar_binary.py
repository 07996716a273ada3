"""CIFAR-10 and -100 from the binary version of the original archive, unpacked or as it was downloaded."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np
from torch import Tensor

from robustzoo.data.image_dataset import DataError, ImageDataset, MissingData, reading, to_unit
from robustzoo.data.subsets import training_rows

HOLDOUT_SIZE = 1000
_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Archive:
    """The layout of an archive. A record is its labels, a byte each, then 3 x 32 x 32 bytes of pixels.

    files: names by split, in order. records: in each training and each test file. labels: the number of
    classes of each label byte; the last one is the label that is used.
    """

    name: str
    folder: str
    files: dict[str, tuple[str, ...]]
    records: dict[str, int]
    labels: tuple[int, ...]
    pickled: str


# Layouts as described at www.cs.toronto.edu/~kriz/cifar.html.
ARCHIVES = {
    "cifar10": Archive(
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-bin",
        {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
        {"train": 10_000, "test": 10_000},
        (10,),
        "cifar-10-batches-py",
    ),
    "cifar100": Archive(
        "cifar-100-binary.tar.gz",
        "cifar-100-binary",
        {"train": ("train.bin",), "test": ("test.bin",)},
        {"train": 50_000, "test": 10_000},
        (20, 100),  # coarse, fine
        "cifar-100-python",
    ),
}


class CifarBinary(ImageDataset):
    """One split, in the archive's order. Memory: 3 kB an image (150 MB for "train"), as uint8.

    place: the archive (.tar.gz or .tar, read without unpacking it) or the folder with its .bin files.
    split: "holdout" is a fixed random 1,000 of the 50,000 training images, "train" is the others.

    The archive is taken whole or not at all, since one that breaks off between two records looks like a
    smaller one. Raises: MissingData where a file of the split is absent; DataError on a file of another size,
    a label out of range, a damaged archive, or the archive of Python pickles, which are never opened.
    """

    def __init__(self, key: str, place: Path, split: str, classes: tuple[str, ...]):
        self._archive = ARCHIVES[key]
        part = "test" if split == "test" else "train"
        records = self._read(place, part)
        for file, rows in records.items():
            self._check_labels(place / file, rows)
        joined = np.concatenate([records[file] for file in self._archive.files[part]])
        records.clear()
        if split != "test":
            joined = joined[training_rows(len(joined), split, HOLDOUT_SIZE)]
        at = len(self._archive.labels)
        self._pixels = joined[:, at:].reshape(-1, *_SHAPE)
        super().__init__(key, split, joined[:, at - 1].astype(np.int64), _SHAPE, classes)

    def _image(self, i: int) -> Tensor:
        return to_unit(self._pixels[i].copy())

    def _read(self, place: Path, part: str) -> dict[str, np.ndarray]:
        """Records by file name, uint8 (records, bytes of a record)."""
        wanted = self._archive.files[part]
        if place.is_dir():
            found = {}
            for name in wanted:
                if (place / name).is_file():
                    size = (place / name).stat().st_size
                    with (place / name).open("rb") as file:
                        found[name] = self._records(file, size, part, place / name)
        else:
            found = self._unpack(place, part)
        missing = [name for name in wanted if name not in found]
        if missing:
            raise MissingData(f"{place} lacks {', '.join(missing)}; fetch {self._archive.name} again")
        return found

    def _unpack(self, place: Path, part: str) -> dict[str, np.ndarray]:
        found, others = {}, set()
        with _opened(place) as stream, tarfile.open(fileobj=stream, mode="r|") as members:
            for member in members:
                path = PurePosixPath(member.name)
                others.update(path.parts[:1])
                file = members.extractfile(member) if path.name in self._archive.files[part] else None
                if file is not None and path.parent.name == self._archive.folder:
                    found[path.name] = self._records(file, member.size, part, place / path.name)
            while stream.read(1 << 20):  # to the end, where gzip keeps its checksum
                pass
        if found or not others:
            return found
        folders = ", ".join(sorted(others))
        if self._archive.pickled in others:
            raise DataError(pickles(place, self._archive))
        raise DataError(
            f"{place} holds {folders}, expected {self._archive.folder}; take {self._archive.name}"
        )

    def _records(self, file, size: int, part: str, origin: Path) -> np.ndarray:
        expected = self._archive.records[part]
        length = len(self._archive.labels) + _PIXELS
        if size != expected * length:
            raise DataError(
                f"{origin} has {size:,} bytes, expected {expected * length:,} ({expected:,} records of "
                f"{length:,} bytes); fetch {self._archive.name} again"
            )
        records = np.empty((expected, length), np.uint8)
        if file.readinto(memoryview(records).cast("B")) != size:
            raise DataError(
                f"{origin} breaks off before its {size:,} bytes; fetch {self._archive.name} again"
            )
        return records

    def _check_labels(self, origin: Path, records: np.ndarray) -> None:
        for column, classes in enumerate(self._archive.labels):
            for row in np.flatnonzero(records[:, column] >= classes)[:1]:
                raise DataError(
                    f"{origin}, record {row}: label {records[row, column]}, expected 0 to {classes - 1}; "
                    f"fetch {self._archive.name} again"
                )


def pickles(place: Path, archive: Archive) -> str:
    """What to say about the archive of Python pickles."""
    return (
        f"{place} holds Python pickles, which can run any program when opened and are never read here; take "
        f"the binary version instead, {archive.name} (or parquet files)"
    )


@contextmanager
def _opened(place: Path) -> Iterator[BinaryIO]:
    """The bytes of a .tar or .tar.gz. Damage that shows while they are read becomes a DataError."""
    with reading(f"{place} is no whole archive"):
        with place.open("rb") as file:
            packed = file.read(2) == _GZIP_MAGIC
        with gzip.open(place) if packed else place.open("rb") as stream:
            yield stream
