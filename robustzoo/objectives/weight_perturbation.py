"""AWP, adversarial weight perturbation (Wu et al. 2020), layer-wise as its authors released it.

At weights w, with d the gradient of the robust loss at the adversarial images, every layer's weight moves by
v = delta |w| d / |d|; the training gradient is taken at w + v, and w is put back before the optimizer's step.
Biases, norm scales, class token, position embedding and running statistics stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def perturbed_parameters(module: nn.Module) -> list[nn.Parameter]:
    """The weights that AWP moves, as in its release: those called "weight", of two dimensions or more.

    So not class token, position embedding, or the temperatures of attention in XCiT.
    """
    return [
        parameter
        for name, parameter in module.named_parameters()
        if parameter.dim() >= 2 and name.rpartition(".")[2] == "weight"
    ]


def perturbations(
    parameters: Sequence[Tensor], directions: Sequence[Tensor], delta: float
) -> Iterator[Tensor]:
    """v = delta |w| d / |d| for every weight w and direction d of its shape, one after the other.

    |v| = delta |w| up to rounding, however small d is; v is 0 where all of d is. A d that is not finite
    makes v NaN, so that the loss at w + v tells of it.
    """
    for weight, direction in zip(parameters, directions, strict=True):
        largest = direction.abs().amax()
        # Scaled first: the squares of small gradients would be 0 in float32.
        scaled = direction / torch.where(largest == 0, 1.0, largest)
        yield scaled * (delta * _norm(weight) / _norm(scaled).clamp_min(1.0))


def _norm(tensor: Tensor) -> Tensor:
    """|tensor|, row by row: one float32 sum over millions of squares would lose the fourth digit."""
    return torch.linalg.vector_norm(torch.linalg.vector_norm(tensor.flatten(1), dim=1))


@contextmanager
def perturbed(parameters: Sequence[nn.Parameter], directions: Sequence[Tensor], delta: float):
    """Weights at w + v inside the block; afterwards w again, bit for bit, whatever happens.

    Subtracting v again would leave rounding behind, so w is kept: memory of a copy of these weights.

    Args:
        parameters, directions: of the same shapes; float32, since at a delta of 1e-4 a bfloat16 weight would
            keep a quarter of v.
        delta: > 0, |v| / |w| of every layer.
    """
    moves = perturbations(parameters, directions, delta)  # each of its own weight, which is not moved yet
    del directions  # as large as the weights, and not needed in the block
    with moved(parameters, moves):
        yield


@contextmanager
def moved(parameters: Sequence[nn.Parameter], moves: Iterable[Tensor]):
    """Weights with these moves added inside the block; afterwards as they were, as `perturbed`."""
    kept = [parameter.detach().clone() for parameter in parameters]
    try:
        with torch.no_grad():
            for parameter, move in zip(parameters, moves, strict=True):
                parameter.add_(move)
        del moves
        yield
    finally:
        with torch.no_grad():
            for parameter, weight in zip(parameters, kept, strict=True):
                parameter.copy_(weight)
