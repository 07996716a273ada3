"""Feed-forward ReLU networks as plain tensors, so that many of them run at once and have closed forms."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


class NotReluNetwork(ValueError):
    """A module that is no plain chain of linear layers with ReLU between them."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"expected nn.Sequential of Linear, ReLU, Linear, ... ending with Linear; {found}. The layer "
            "relation holds for such networks alone; use `robustzoo.diagnostics.hessian` for others"
        )


@dataclass(frozen=True)
class ReluNetwork:
    """Logits g = W_L relu(... relu(W_1 x + b_1) ...) + b_L; leading dimensions are independent networks.

    Attributes:
        weights: L tensors (..., out, in), as torch's Linear stores them.
        biases: L tensors (..., out), or None for a layer without.
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]

    @classmethod
    def of(cls, module: nn.Module) -> ReluNetwork:
        """The network in an nn.Sequential; the tensors are the module's own.

        Raises:
            NotReluNetwork: anything else than Linear, ReLU, Linear, ..., Linear.
        """
        if not isinstance(module, nn.Sequential):
            raise NotReluNetwork(f"got a {type(module).__name__}")
        layers = list(module)
        for i, layer in enumerate(layers):
            wanted = nn.ReLU if i % 2 else nn.Linear
            if not isinstance(layer, wanted):
                raise NotReluNetwork(f"item {i} is a {type(layer).__name__}, not a {wanted.__name__}")
        if len(layers) % 2 == 0:
            raise NotReluNetwork(
                f"it has {len(layers)} items and ends with {layers[-1] if layers else 'none'}"
            )
        linear = layers[::2]
        return cls(tuple(layer.weight for layer in linear), tuple(layer.bias for layer in linear))

    @property
    def depth(self) -> int:
        """Number of linear layers L."""
        return len(self.weights)

    def forward(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """x: (..., B, d) -> the input of each layer, L tensors (..., B, d_i), and logits (..., B, K)."""
        inputs = [x]
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            z = inputs[-1] @ weight.mT
            if bias is not None:
                z = z + bias.unsqueeze(-2)
            if i + 1 == self.depth:
                return inputs, z
            inputs.append(z.relu())
        raise NotReluNetwork("it has no layer")

    def output_jacobians(self, inputs: list[Tensor]) -> list[Tensor]:
        """d g / d I^(i) for the input of each layer, L tensors (..., B, K, d_i), from `forward`'s inputs.

        The ReLU's derivative at 0 is taken as 0, as torch does. Differentiable in the weights.
        """
        top = self.weights[-1]
        samples = inputs[-1].shape[-2]
        jacobian = top.unsqueeze(-3).expand(*top.shape[:-2], samples, *top.shape[-2:])
        found = [jacobian]
        for weight, activation in zip(self.weights[-2::-1], inputs[:0:-1], strict=True):
            through = jacobian * (activation > 0).unsqueeze(-2)
            # One product over samples and classes together: broadcasting would copy the weight per sample.
            flat = through.flatten(-3, -2) @ weight
            jacobian = flat.unflatten(-2, through.shape[-3:-1])
            found.append(jacobian)
        return found[::-1]


def softmax(logits: Tensor) -> Tensor:
    """Class probabilities over the last dimension, in float32 at least (float64 stays)."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
