"""Attacks look at a model and leave no trace on it: frozen weights, eval mode, everything put back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

_CONTAINERS = (dict, OrderedDict, list, set)
_REGISTERED = ("_parameters", "_buffers", "_modules")


@contextmanager
def frozen(model: nn.Module) -> Iterator[nn.Module]:
    """Within the block: eval mode, no weight needs a gradient, and pixel checks are off.

    Buffers, and tensors in plain attributes, that a forward changes (a counter, say) get their values back at
    the end. Where a forward kept tensors in its modules (a table by size, a buffer set on the first call),
    their attributes are put back: made here, such a tensor has no gradient to the weights, and may be on
    another device.

    Freezing weights saves the activations and products of their gradients; eval mode keeps an inner
    maximisation deterministic under dropout and stochastic depth. Modules with a flag `validate_pixels`
    (PixelModel) have it switched off, since attacks clamp to [0, 1] themselves. Every flag of every parameter
    and module is restored at the end, also after an exception. Blocks may be nested.
    """
    parameters = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    training = [(module, module.training) for _, module in with_mode(model)]
    validating = [
        (module, module.validate_pixels) for module in model.modules() if hasattr(module, "validate_pixels")
    ]
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    plain = _plain_tensors(model)
    kept = [_Attributes(module) for module in model.modules()]
    try:
        if any(flag for _, flag in training):
            model.eval()
        for parameter, _ in parameters:
            parameter.requires_grad_(False)
        for module, _ in validating:
            module.validate_pixels = False
        yield model
    finally:
        # All or none: a flag in one module may say that there is a table in another.
        if any(attributes.has_new_tensors() for attributes in kept):
            for attributes in kept:
                attributes.put_back()
        for parameter, flag in parameters:
            parameter.requires_grad_(flag)
        for module, name, buffer, before in buffers:
            buffer.data.copy_(before)  # through `data`: no graph that holds it becomes invalid
            setattr(module, name, buffer)  # a forward may have put another one there
        for tensor, version, before in plain:
            if tensor._version != version:
                tensor.data.copy_(before)
        for module, flag in training:
            module.training = flag
        for module, flag in validating:
            module.validate_pixels = flag


def _plain_tensors(model: nn.Module) -> list[tuple[Tensor, int, Tensor]]:
    """Tensors in attributes that are no parameters or buffers, with their version and a copy."""
    found = {
        id(tensor): tensor
        for module in model.modules()
        for name, value in vars(module).items()
        if name not in _REGISTERED
        for tensor in _tensors(value)
    }
    return [(t, t._version, t.detach().clone()) for t in found.values() if not t.is_inference()]


def with_mode(model: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules that have a mode, training or eval, with their names.

    What torch.export made has its mode in its graph, and only refuses train() and eval() by functions of its
    own; what torch.jit.freeze made has no flag.
    """
    if "train" in vars(model) and "eval" in vars(model):
        return
    if hasattr(model, "training"):
        yield name, model
    for inner, module in model.named_children():
        yield from with_mode(module, f"{name}.{inner}" if name else inner)


class _Attributes:
    """What the attributes of one module were, and what its containers held."""

    def __init__(self, module: nn.Module) -> None:
        self._now: dict[str, Any] = vars(module)
        self._before = dict(self._now)
        self._contents = {
            name: value.copy() for name, value in self._now.items() if type(value) in _CONTAINERS
        }
        self._tensors = list(_tensors(self._now))  # held, so that none of their ids comes twice

    def has_new_tensors(self) -> bool:
        """Whether there are tensors that were not there."""
        known = {id(tensor) for tensor in self._tensors}
        return any(id(tensor) not in known for tensor in _tensors(self._now))

    def put_back(self) -> None:
        """Every attribute as it was, containers with what they held."""
        self._now.clear()
        self._now.update(self._before)
        for name, contents in self._contents.items():
            value = self._before[name]
            value.clear()
            value.extend(contents) if isinstance(value, list) else value.update(contents)


def _tensors(value: Any, depth: int = 3) -> Iterator[Tensor]:
    """The tensors in containers, so many levels deep."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, dict):
        for inner in value.values():
            yield from _tensors(inner, depth - 1)
    elif depth and isinstance(value, list | tuple | set):
        for inner in value:
            yield from _tensors(inner, depth - 1)
