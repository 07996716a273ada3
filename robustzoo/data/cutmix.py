"""CutMix (Yun et al. 2019): a box of another image pasted in, and the labels mixed by the area."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from robustzoo.keyed_noise import uniform


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
