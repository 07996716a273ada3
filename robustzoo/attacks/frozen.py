"""Attacks look at a model and leave no trace on it: frozen weights, eval mode, everything put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def frozen(model: nn.Module) -> Iterator[nn.Module]:
    """Within the block: eval mode, no weight needs a gradient, and pixel checks are off.

    Buffers that a forward changes (a counter, say) get their values back at the end.

    Freezing weights saves the activations and products of their gradients; eval mode keeps an inner
    maximisation deterministic under dropout and stochastic depth. Modules with a flag `validate_pixels`
    (PixelModel) have it switched off, since attacks clamp to [0, 1] themselves. Every flag of every parameter
    and module is restored at the end, also after an exception. Blocks may be nested.
    """
    parameters = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    training = [(module, module.training) for module in model.modules()]
    validating = [
        (module, module.validate_pixels) for module in model.modules() if hasattr(module, "validate_pixels")
    ]
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        model.eval()
        for parameter, _ in parameters:
            parameter.requires_grad_(False)
        for module, _ in validating:
            module.validate_pixels = False
        yield model
    finally:
        for parameter, flag in parameters:
            parameter.requires_grad_(flag)
        for module, name, buffer, before in buffers:
            buffer.data.copy_(before)  # through `data`: no graph that holds it becomes invalid
            setattr(module, name, buffer)  # a forward may have put another one there
        for module, flag in training:
            module.training = flag
        for module, flag in validating:
            module.validate_pixels = flag
