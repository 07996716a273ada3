"""Resampled kernels against interpolation matrices written out here, and block_sum against its meaning."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import conv2d, interpolate

from robustzoo.errors import RobustzooError
from robustzoo.models.initial import METHODS, resample_kernel, resize_position_embedding

SIZES = [(16, 4), (7, 3), (14, 8), (6, 6)]


def cubic(t: float, a: float = -0.5) -> float:
    """Keys' cubic convolution kernel."""
    t = abs(t)
    if t < 1:
        return ((a + 2) * t - (a + 3)) * t * t + 1
    return (((t - 5) * t + 8) * t - 4) * a if t < 2 else 0.0


def triangle(t: float) -> float:
    return max(0.0, 1 - abs(t))


def matrix(source: int, target: int, method: str) -> np.ndarray:
    """(target, source): row i is the filter, stretched, around the centre of target cell i."""
    scale = source / target
    made = np.zeros((target, source))
    for i in range(target):
        centre = (i + 0.5) * scale
        if method == "nearest":
            made[i, int(centre)] = 1
            continue
        kernel = {"cubic": cubic, "bilinear": triangle}[method]
        stretch = max(scale, 1)
        made[i] = [kernel((j + 0.5 - centre) / stretch) for j in range(source)]
        made[i] /= made[i].sum()
    return made


@pytest.fixture
def kernel():
    """kernel(h): weights (5, 3, h, h)."""
    return lambda side: torch.randn(5, 3, side, side, generator=torch.Generator().manual_seed(side))


@pytest.mark.parametrize(("side", "size"), SIZES)
@pytest.mark.parametrize("method", ["cubic", "bilinear", "nearest"])
def test_interpolations_are_their_explicit_matrices(kernel, side, size, method):
    weight = kernel(side)
    rows = matrix(side, size, method)
    assert rows.shape == (size, side)
    wanted = np.einsum("ki,ocij,lj->ockl", rows, weight, rows)
    found = resample_kernel(weight, size, method)
    assert found.dtype == torch.float32 and found.shape == (5, 3, size, size)
    assert np.abs(found.numpy() - wanted * (side / size) ** 2).max() < 1e-5


@pytest.mark.parametrize(("side", "size"), [(16, 4), (16, 2), (6, 3), (6, 6), (7, 1)])
def test_block_sum_is_the_original_kernel_on_repeated_pixels(kernel, side, size):
    weight = kernel(side) / side
    patches = torch.rand(4, 3, size, size, generator=torch.Generator().manual_seed(0))
    original = conv2d(interpolate(patches, scale_factor=side // size, mode="nearest"), weight)
    assert torch.allclose(conv2d(patches, resample_kernel(weight, size, "block_sum")), original, atol=1e-5)


def test_block_sum_of_a_whole_image_at_stride_is_the_original_on_the_upsampled_image(kernel):
    """Kernel 16, stride 8 on 128 pixels are kernel 4, stride 2 on the 32 that were repeated."""
    weight = kernel(16) / 16
    image = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    small = conv2d(image, resample_kernel(weight, 4, "block_sum"), stride=2)
    large = conv2d(interpolate(image, scale_factor=4, mode="nearest"), weight, stride=8)
    assert small.shape == (2, 5, 15, 15)
    assert torch.allclose(small, large, atol=1e-5)


def response(weight: torch.Tensor) -> torch.Tensor:
    """To a patch of ones."""
    return weight.double().sum((1, 2, 3))


@pytest.mark.parametrize("method", METHODS)
def test_who_keeps_the_response_to_a_constant_patch(kernel, method):
    constant = torch.full((5, 3, 16, 16), 0.7)
    assert torch.allclose(response(resample_kernel(constant, 4, method)), response(constant), rtol=1e-6)
    any_kernel = kernel(16)
    kept = torch.allclose(response(resample_kernel(any_kernel, 4, method)), response(any_kernel), atol=1e-3)
    assert kept == (method == "block_sum")


def test_nearest_does_not_shift_the_kernel(kernel):
    weight = kernel(7)
    assert torch.allclose(
        resample_kernel(weight, 3, "nearest"), weight[:, :, 1::2, 1::2] * (7 / 3) ** 2, atol=1e-6
    )


def test_the_same_size_is_the_same_kernel(kernel):
    weight = kernel(6)
    for method in METHODS:
        assert torch.equal(resample_kernel(weight, 6, method), weight)


def test_half_precision_becomes_float32(kernel):
    assert resample_kernel(kernel(16).half(), 4, "cubic").dtype == torch.float32


@pytest.mark.parametrize(
    ("shape", "size", "method", "words"),
    [
        ((1, 1, 16, 16), 4, "bicubic", "'bicubic'; expected one of cubic, bilinear, nearest, block_sum"),
        ((1, 1, 16, 16), 4, None, "kernel_downsampling is None"),
        ((1, 1, 7, 7), 3, "block_sum", "side 7 into side 3.*cubic, bilinear, nearest"),
        ((1, 1, 16, 8), 4, "cubic", r"shape \(1, 1, 16, 8\)"),
        ((16, 16), 4, "cubic", r"shape \(16, 16\)"),
        ((1, 1, 4, 4), 16, "cubic", "side 4 cannot be downsampled to side 16"),
        ((1, 1, 4, 4), 0, "cubic", "to side 0"),
    ],
)
def test_refused_kernels(shape, size, method, words):
    with pytest.raises(RobustzooError, match=words):
        resample_kernel(torch.zeros(shape), size, method)


@pytest.mark.parametrize("grid", [(15, 15), (8, 8), (3, 5)])
@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_position_embeddings_are_resized_as_images(grid, prefix):
    embedding = torch.randn(1, prefix + 14 * 14, 6, generator=torch.Generator().manual_seed(0))
    found = resize_position_embedding(embedding, grid, prefix)
    assert torch.equal(found[:, :prefix], embedding[:, :prefix])  # the class token is no place in the grid
    image = embedding[0, prefix:].reshape(14, 14, 6)
    wanted = np.einsum("ij,jkd,lk->ild", matrix(14, grid[0], "cubic"), image, matrix(14, grid[1], "cubic"))
    assert np.abs(found[0, prefix:].numpy() - wanted.reshape(-1, 6)).max() < 1e-5


def test_a_fitting_position_embedding_stays():
    embedding = torch.randn(1, 17, 6)
    assert resize_position_embedding(embedding, (4, 4)) is embedding


@pytest.mark.parametrize("shape", [(1, 12, 6), (1, 1, 6), (2, 17, 6), (17, 6)])
def test_refused_position_embeddings(shape):
    with pytest.raises(RobustzooError, match="a position embedding has shape"):
        resize_position_embedding(torch.zeros(shape), (4, 4))
