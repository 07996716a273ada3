"""Resampling of a checkpoint's convolution kernels and position embedding to another geometry."""

from __future__ import annotations

from timm.layers import resample_abs_pos_embed
from torch import Tensor
from torch.nn.functional import interpolate

# Interpolation modes of torch. nearest-exact takes the middle of each source cell; torch's plain "nearest"
# takes its upper left corner and so would shift the kernel.
_INTERPOLATIONS = {
    "cubic": {"mode": "bicubic", "antialias": True},
    "bilinear": {"mode": "bilinear", "antialias": True},
    "nearest": {"mode": "nearest-exact"},
}
METHODS = (*_INTERPOLATIONS, "block_sum")


class AdaptationError(ValueError):
    """Tensors that cannot be resampled as asked."""


def resample_kernel(weight: Tensor, size: int, method: str) -> Tensor:
    """A convolution kernel (O, I, h, h) for a smaller receptive field: (O, I, size, size), float32.

    - "cubic", "bilinear", "nearest": the kernel as an image, resized with antialiasing (cubic: a = -0.5),
      times (h / size)^2, so that a constant kernel keeps its response to a constant patch. The factor is
      ours: the paper names only the interpolation, and without it activations shrink by as much.
    - "block_sum": the sum over blocks of side h / size, which is exactly the original kernel applied to a
      patch whose pixels are repeated: sum_ij W_ij x_(i/f, j/f) = sum_kl (sum of block kl of W) x_kl.

    Args:
        weight: square kernels.
        size: new side in pixels, 1..h.
        method: one of `METHODS`.

    Raises:
        AdaptationError: an unknown method, kernels that are not square, a size that is not in 1..h, or for
            block_sum does not divide h.
    """
    if method not in METHODS:
        raise AdaptationError(f"kernel_downsampling is {method!r}; expected one of {', '.join(METHODS)}")
    if weight.dim() != 4 or weight.shape[2] != weight.shape[3]:
        raise AdaptationError(
            f"a kernel has shape {tuple(weight.shape)}; expected (outputs, inputs, side, side)"
        )
    side = weight.shape[-1]
    if not 1 <= size <= side:
        raise AdaptationError(f"a kernel of side {side} cannot be downsampled to side {size}")
    weight = weight.float()
    if method == "block_sum":
        if side % size:
            fitting = ", ".join(_INTERPOLATIONS)
            raise AdaptationError(
                f"block_sum cannot turn a kernel of side {side} into side {size}, which does not divide it; "
                f"use another kernel_downsampling: {fitting}"
            )
        block = side // size
        return weight.unflatten(3, (size, block)).unflatten(2, (size, block)).sum((3, 5))
    if size == side:
        return weight.clone()
    return interpolate(weight, size=(size, size), **_INTERPOLATIONS[method]) * (side / size) ** 2


def resize_position_embedding(embedding: Tensor, grid: tuple[int, int], prefix: int = 1) -> Tensor:
    """Position embedding (1, prefix + g * g, d) for another grid: (1, prefix + rows * columns, d).

    The grid part is resized as an image (bicubic with antialiasing), the prefix (class token) kept.

    Raises:
        AdaptationError: the tokens after the prefix are no square grid.
    """
    tokens = embedding.shape[1] - prefix if embedding.dim() == 3 else -1
    side = round(max(tokens, 0) ** 0.5)
    if side < 1 or side * side != tokens or embedding.shape[0] != 1:
        raise AdaptationError(
            f"a position embedding has shape {tuple(embedding.shape)}; expected (1, {prefix} + g * g, width)"
        )
    if (side, side) == tuple(grid):
        return embedding
    return resample_abs_pos_embed(embedding, list(grid), [side, side], num_prefix_tokens=prefix)
