"""From photographs to network inputs: the fixed resize, the crops, and augmentation in training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate, one_hot, pad

from robustzoo.keyed_noise import integers, uniform

if TYPE_CHECKING:
    from robustzoo.registry.recipes import Recipe

AUGMENTATIONS = ("none", "fb", "crop", "shift")
# Of "crop": share of the image's area and ratio of width to height; torchvision's RandomResizedCrop, after
# Szegedy et al. 2015 ("Going deeper with convolutions", section 6).
CROP_SCALE = (0.08, 1.0)
CROP_RATIO = (3 / 4, 4 / 3)
_CROP_TRIES = 10
# Of "shift": pixels of zeros around the image; source: He et al. 2016 (section 4.2), common on CIFAR-10.
PADDING = 4


def check_augmentation(name: str) -> None:
    """Raises ValueError on a name that is none of AUGMENTATIONS."""
    if name not in AUGMENTATIONS:
        raise ValueError(
            f"augmentation must be one of {', '.join(AUGMENTATIONS)}, got {name!r}; check the recipe"
        )


def cover_size(image: Image.Image, height: int, width: int) -> tuple[int, int]:
    """(width, height) of the image once it is scaled so that it just covers height x width pixels.

    One side fits, the other is as long or longer; for a square that is the shorter side brought to its size.
    """
    if width * image.height >= height * image.width:
        return (width, width * image.height // image.width)
    return (height * image.width // image.height, height)


def centre_crop(image: Image.Image, height: int, width: int) -> Image.Image:
    """The central height x width pixels of an image at least that large."""
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


def random_crop(
    image: Image.Image, height: int, width: int, seed: int, epoch: int, sample: int
) -> Image.Image:
    """A height x width crop, uniform over all positions and keyed by (seed, epoch, sample)."""
    ids = torch.tensor([sample])
    left = integers(seed, ids, "data.crop.left", image.width - width + 1, (), index=epoch).item()
    top = integers(seed, ids, "data.crop.top", image.height - height + 1, (), index=epoch).item()
    return image.crop((left, top, left + width, top + height))


def crop_box(height: int, width: int, seed: int, epoch: int, sample: int) -> tuple[int, int, int, int]:
    """(top, left, height, width) of a random part of an image, keyed by (seed, epoch, sample).

    Its area is uniform in CROP_SCALE, the logarithm of its ratio uniform in CROP_RATIO, its place uniform; of
    ten drawn parts the first that fits is taken. Where none fits, the largest central one of a valid ratio.
    """
    drawn = uniform(seed, torch.tensor([sample]), "data.crop.box", (_CROP_TRIES, 4), index=epoch)
    for area, ratio, down, right in drawn[0].tolist():
        pixels = height * width * (CROP_SCALE[0] + area * (CROP_SCALE[1] - CROP_SCALE[0]))
        ratio = CROP_RATIO[0] * (CROP_RATIO[1] / CROP_RATIO[0]) ** ratio
        h, w = round(math.sqrt(pixels / ratio)), round(math.sqrt(pixels * ratio))
        if 0 < h <= height and 0 < w <= width:
            return int(down * (height - h + 1)), int(right * (width - w + 1)), h, w
    h = min(height, max(1, round(width / CROP_RATIO[0])))
    w = min(width, max(1, round(height * CROP_RATIO[1])))
    return (height - h) // 2, (width - w) // 2, h, w


def random_resized_crop(x: Tensor, seed: int, epoch: int, sample: int) -> Tensor:
    """The part `crop_box` of one image, resized to the image's own size (antialiased bilinear).

    x: float32 (C, H, W) in [0, 1], which the result keeps.
    """
    top, left, height, width = crop_box(*x.shape[1:], seed, epoch, sample)
    part = x[None, :, top : top + height, left : left + width]
    resized = interpolate(part, x.shape[1:], mode="bilinear", align_corners=False, antialias=True)
    return resized[0].clamp_(0, 1)  # the weights of a pixel add up to 1 but for rounding


def resized_crop(
    image: Image.Image, height: int, width: int, seed: int, epoch: int, sample: int
) -> Image.Image:
    """The part `crop_box` of a photograph, resized to height x width (antialiased bilinear)."""
    top, left, h, w = crop_box(image.height, image.width, seed, epoch, sample)
    part = image.crop((left, top, left + w, top + h))
    return part.resize((width, height), Image.Resampling.BILINEAR)


def augment(x: Tensor, recipe: Recipe, seed: int, epochs: Tensor, ids: Tensor) -> Tensor:
    """The recipe's augmentation, every draw keyed by (seed, epoch, id): batches and ranks do not change it.

    x: (B, C, H, W) in [0, 1] and stays there; epochs, ids: int64 (B,), as TrainingOrder gives them.
    "none": x itself. "fb": a left-right flip with probability 1/2, then one brightness from U[-b, b] added to
    all pixels of an image (b = recipe.brightness), then a clamp to [0, 1] (ours). "crop": the flip; the crop
    is cut where the image is read (`training_batches`), from the whole photograph where there is one.
    "shift": the flip, then a part of the image's size, anywhere in the image with PADDING zeros around it.
    Raises ValueError on another augmentation.
    """
    if recipe.augmentation == "none":
        return x
    check_augmentation(recipe.augmentation)
    epochs, ids = epochs.to(x.device), ids.to(x.device)
    flip = integers(seed, ids, "data.flip", 2, (1, 1, 1), index=epochs).bool()
    x = torch.where(flip, x.flip(-1), x)
    if recipe.augmentation == "shift":
        return _shifted(x, seed, epochs, ids)
    if recipe.augmentation == "fb" and recipe.brightness > 0:
        shift = uniform(seed, ids, "data.brightness", (1, 1, 1), index=epochs).to(x.dtype)
        x = (x + recipe.brightness * (2 * shift - 1)).clamp(0, 1)
    return x


def _shifted(x: Tensor, seed: int, epochs: Tensor, ids: Tensor) -> Tensor:
    """(B, C, H, W) -> the same, each image moved by up to PADDING pixels down or up, and right or left."""
    height, width = x.shape[2:]
    padded = pad(x, (PADDING,) * 4)
    moves = integers(seed, ids, "data.shift", 2 * PADDING + 1, (2,), index=epochs)
    rows = moves[:, :1] + torch.arange(height, device=x.device)
    columns = moves[:, 1:] + torch.arange(width, device=x.device)
    images = torch.arange(len(x), device=x.device)[:, None, None, None]
    channels = torch.arange(x.shape[1], device=x.device)[None, :, None, None]
    return padded[images, channels, rows[:, None, :, None], columns[:, None, None, :]]


# ---- CutMix (Yun et al. 2019): a box of another image pasted in, and the labels mixed by the area ----------


def cutmix(
    x: Tensor, y: Tensor, num_classes: int, seed: int, epochs: Tensor, ids: Tensor
) -> tuple[Tensor, Tensor]:
    """Every image with a box of its partner, and soft labels: x (B, C, H, W) in [0, 1], y float32 (B, K).

    x: (B, C, H, W) in [0, 1]; y: int64 (B,) in [0, num_classes); epochs, ids: int64 (B,).
    The partner of an image is the next one of this batch (of the last: the first), so it depends on how the
    global batch is cut into micro-batches and ranks; the box depends on (seed, epoch, id) alone. The box has
    the ratio of the image and the share 1 - lambda of its area, lambda ~ Beta(1, 1), its centre is uniform,
    and what crosses the border is cut off; the partner's label weighs the share of pixels really pasted
    (section 3.1 of the paper, whose alpha on ImageNet and CIFAR is 1). A batch of one keeps its image.
    Raises ValueError on labels that are not one class an image.
    """
    if y.shape != x.shape[:1] or y.is_floating_point():
        raise ValueError(f"labels must be one class id an image, ({len(x)},), got {y.dtype} {tuple(y.shape)}")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < num_classes:
        raise ValueError(f"labels must be in [0, {num_classes}), got {int(y.min())} to {int(y.max())}")
    rows, columns = cut_boxes(*x.shape[-2:], seed, epochs.to(x.device), ids.to(x.device))
    pasted = rows[:, :, None] & columns[:, None, :]  # (B, H, W)
    weight = pasted.float().mean((1, 2))[:, None]
    labels = one_hot(y, num_classes).float()
    mixed = torch.where(pasted[:, None], x.roll(-1, 0), x)
    return mixed, (1 - weight) * labels + weight * labels.roll(-1, 0)


def cut_boxes(height: int, width: int, seed: int, epochs: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns that a box covers, bool (B, height) and (B, width), keyed by (seed, epoch, id)."""
    drawn = uniform(seed, ids, "data.cutmix", (3,), index=epochs)
    side = drawn[:, 0].sqrt()  # sqrt(1 - lambda), where 1 - lambda is as uniform as lambda
    return _covered(height, drawn[:, 1], side), _covered(width, drawn[:, 2], side)


def _covered(size: int, centre: Tensor, side: Tensor) -> Tensor:
    """Pixels of [0, size) in a segment of floor(side * size) pixels about the pixel floor(centre * size)."""
    length = (side * size).long()
    first = (centre * size).long() - length // 2
    pixels = torch.arange(size, device=side.device)
    return (pixels >= first[:, None]) & (pixels < (first + length)[:, None])
