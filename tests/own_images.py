"""Five classes of small photographs that no row of the catalog knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("daisy", "iris", "lily", "rose", "tulip")


def write_flowers(folder: Path, size: int = 16, train: int = 12, test: int = 4) -> Path:
    """folder/train/CLASS and folder/test/CLASS with so many PNG files each: a colour a class, and noise."""
    noise = np.random.default_rng(0)
    for split, number in (("train", train), ("test", test)):
        for label, name in enumerate(CLASSES):
            (folder / split / name).mkdir(parents=True)
            for i in range(number):
                colour = np.array([40 * label, 200 - 40 * label, 100]) + noise.integers(
                    0, 40, (size, size, 3)
                )
                Image.fromarray(colour.astype(np.uint8)).save(folder / split / name / f"{i}.png")
    return folder
