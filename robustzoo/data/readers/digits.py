"""scikit-learn's 1,797 handwritten digits, 8 x 8 pixels, real and always at hand."""

from __future__ import annotations

import json
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from robustzoo.data.image_dataset import DataError, ImageDataset
from robustzoo.data.order import permutation

SPLIT_SEED = 0
SPLIT_SIZES = {"train": 1147, "holdout": 150, "test": 500}


def drawn_split() -> dict[str, list[int]]:
    """The split as it was drawn: `permutation(1797, SPLIT_SEED)` (NumPy PCG64), cut into the sizes above.

    `digits_split.json` is what is used; it holds the result of this function, written once.
    """
    order, parts, start = permutation(sum(SPLIT_SIZES.values()), SPLIT_SEED).tolist(), {}, 0
    for split, size in SPLIT_SIZES.items():
        parts[split] = order[start : start + size]
        start += size
    return parts


class Digits(ImageDataset):
    """One split of the digits, in the order of the stored permutation. Memory: under 0.5 MB.

    Pixels are the counts 0 to 16 divided by 16, shape (1, 8, 8). Of the 1,297 training images the last 150
    are the holdout; 500 are for testing. Source: sklearn.datasets.load_digits, the test part of UCI's
    "Optical Recognition of Handwritten Digits" (CC BY 4.0). Raises DataError where the installed copy has
    another shape.
    """

    def __init__(self, split: str):
        # scikit-learn takes most of a second to import, which other data sets should not pay.
        from sklearn.datasets import load_digits

        raw = load_digits()
        if raw.images.shape != (sum(SPLIT_SIZES.values()), 8, 8):
            raise DataError(f"scikit-learn's digits have shape {raw.images.shape}, expected (1797, 8, 8)")
        stored = json.loads(files("robustzoo.data").joinpath("digits_split.json").read_text("utf-8"))
        chosen = np.array(stored[split])
        self._pixels = torch.from_numpy(raw.images[chosen]).to(torch.float32).div_(16).unsqueeze(1)
        labels = raw.target[chosen].astype(np.int64)
        super().__init__("digits", split, labels, (1, 8, 8), tuple("0123456789"))

    def _image(self, i: int) -> Tensor:
        return self._pixels[i].clone()
