"""Which images a result is about: fixed, nested subsets and a digest of their pixels and labels."""

from __future__ import annotations

import hashlib
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustzoo.data.image_dataset import DataError
from robustzoo.data.order import permutation

HOLDOUT_SEED = 0


@dataclass(frozen=True)
class Subset:
    """Images of one data set. indices: sorted; digest: see `pixel_digest`.

    id: "all", or "n200-seed0" for 200 drawn; of a part of a catalog's data set that has 63 images, "part63"
    and "n20-seed0-of-part63".
    """

    id: str
    indices: list[int]
    digest: str
    dataset: Any

    def __len__(self) -> int:
        return len(self.indices)


def evaluation_subset(dataset, n: int | None = None, seed: int = 0) -> Subset:
    """n images drawn uniformly without replacement, or all of them (n None or the size of the data set).

    The draw is a prefix of a permutation keyed by (seed, size of the data set): for one seed a smaller subset
    lies inside every larger one. Reads every chosen image once, for the digest.
    Raises DataError unless n and seed are whole numbers, 1 <= n <= len(dataset) and 0 <= seed < 2^64.
    """
    total = len(dataset)
    if n is not None and not (_whole(n) and 1 <= n <= total):
        raise DataError(f"n is {n!r}; expected a whole number from 1 to {total}, the images there are")
    if not (_whole(seed) and 0 <= seed < 2**64):
        raise DataError(f"seed is {seed!r}; expected a whole number in [0, 2^64)")
    complete = getattr(dataset, "complete", True)
    if n is None or n == total:
        name, indices = "all" if complete else f"part{total}", list(range(total))
    else:
        name = f"n{n}-seed{seed}{'' if complete else f'-of-part{total}'}"
        indices = sorted(permutation(total, seed)[:n].tolist())
    return Subset(name, indices, pixel_digest(dataset, indices), dataset)


def _whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def training_rows(n: int, split: str, holdout_size: int) -> np.ndarray:
    """Rows of the n training images that make up split "train" or "holdout", sorted int64.

    The holdout is the last holdout_size rows (a tenth of n where that is less) of a fixed permutation of n.
    Raises DataError where that leaves the split empty.
    """
    kept_out = min(holdout_size, n // 10)
    order = permutation(n, HOLDOUT_SEED)
    rows = np.sort(order[n - kept_out :] if split == "holdout" else order[: n - kept_out])
    if not len(rows):
        raise DataError(f"{n} training images are too few for a {split} split; give the whole training set")
    return rows


def pixel_digest(dataset, indices: Sequence[int]) -> str:
    """sha256 (hex) over the images in the order of `indices`, one image in memory at a time.

    Per image: its pixels as little-endian float32 in (C, H, W) order, then its label as little-endian int64.
    """
    digest = hashlib.sha256()
    for i in indices:
        x, label = dataset[i]
        digest.update(np.ascontiguousarray(x.detach().cpu().numpy(), dtype="<f4").tobytes())
        digest.update(np.int64(label).astype("<i8").tobytes())
    return digest.hexdigest()
