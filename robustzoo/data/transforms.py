"""From photographs to network inputs: the fixed resize, the crops, and augmentation in training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor

from robustzoo.keyed_noise import integers, uniform

if TYPE_CHECKING:
    from robustzoo.registry.recipes import Recipe


def resize_short_side(image: Image.Image, size: int) -> Image.Image:
    """Scale so that the shorter side has `size` pixels, with antialiased bilinear interpolation.

    Bilinear, as in RobustBench's "Res256Crop224" (ours: the paper does not say), so that numbers compare.
    """
    width, height = image.size
    short = min(width, height)
    target = (size * width // short, size * height // short)
    return image if target == image.size else image.resize(target, Image.Resampling.BILINEAR)


def centre_crop(image: Image.Image, size: int) -> Image.Image:
    """The central size x size pixels of an image at least that large."""
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def random_crop(image: Image.Image, size: int, seed: int, epoch: int, sample: int) -> Image.Image:
    """A size x size crop, uniform over all positions and keyed by (seed, epoch, sample)."""
    ids = torch.tensor([sample])
    left = integers(seed, ids, "data.crop.left", image.width - size + 1, (), index=epoch).item()
    top = integers(seed, ids, "data.crop.top", image.height - size + 1, (), index=epoch).item()
    return image.crop((left, top, left + size, top + size))


def augment(x: Tensor, recipe: Recipe, seed: int, epochs: Tensor, ids: Tensor) -> Tensor:
    """The recipe's augmentation, every draw keyed by (seed, epoch, id): batches and ranks do not change it.

    x: (B, C, H, W) in [0, 1] and stays there; epochs, ids: int64 (B,), as TrainingOrder gives them.
    "none": x itself. "fb": a left-right flip with probability 1/2, then one brightness from U[-b, b] added to
    all pixels of an image (b = recipe.brightness), then a clamp to [0, 1] (ours).
    Raises ValueError on another augmentation.
    """
    if recipe.augmentation == "none":
        return x
    if recipe.augmentation != "fb":
        raise ValueError(
            f"augmentation must be 'none' or 'fb', got {recipe.augmentation!r}; check the recipe"
        )
    epochs, ids = epochs.to(x.device), ids.to(x.device)
    flip = integers(seed, ids, "data.flip", 2, (1, 1, 1), index=epochs).bool()
    x = torch.where(flip, x.flip(-1), x)
    if recipe.brightness > 0:
        shift = uniform(seed, ids, "data.brightness", (1, 1, 1), index=epochs).to(x.dtype)
        x = (x + recipe.brightness * (2 * shift - 1)).clamp(0, 1)
    return x
