"""Batch norm in training: which images a batch is, and running statistics that are kept, shared, made anew.

An attack and an evaluation see running statistics (eval mode), the training pass those of its batch: the
images of one micro-batch on one process, clean and adversarial ones apart, as in the releases of TRADES, MART
and AWP, which call their network once for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from robustzoo.models.pixel_model import PixelModel


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Its batch norm layers that keep running statistics."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]


def stored_buffers(model: nn.Module) -> dict[str, Tensor]:
    """What a file of the model holds beside its parameters, by name: running statistics, their counters."""
    parameters = dict(model.named_parameters())
    return {name: t for name, t in model.state_dict().items() if name not in parameters}


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """The float tensors among the stored buffers, themselves."""
    return {name: tensor for name, tensor in stored_buffers(model).items() if tensor.is_floating_point()}


def apart(model: PixelModel, function: Callable[[Tensor], Tensor], x: Tensor, parts: int) -> Tensor:
    """What a function of the model, such as `model.features`, makes of x (B, C, H, W), with batch norm of
    each of so many equal parts by itself.

    A network without batch norm takes all images at once, which is the same function of them.
    """
    if parts == 1 or not model.training or not batch_norms(model):
        return function(x)
    return torch.cat([function(part) for part in x.chunk(parts)])


@contextmanager
def kept_buffers(model: nn.Module):
    """Whatever forward passes do in the block, the stored buffers have their values again afterwards."""
    before = {name: tensor.clone() for name, tensor in stored_buffers(model).items()}
    try:
        yield
    finally:
        put_back(model, before)


@torch.no_grad()
def put_back(model: nn.Module, values: dict[str, Tensor]) -> None:
    """Write values into the stored buffers of these names."""
    buffers = stored_buffers(model)
    for name, value in values.items():
        buffers[name].copy_(value)


@torch.no_grad()
def renew_statistics(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Running statistics anew, each the plain mean over these batches of images (B, C, H, W).

    As weight averaging needs them (Izmailov et al. 2018): averaged weights have never seen an image. Other
    layers are in eval mode meanwhile; modes, momenta and counters are as before afterwards.
    """
    layers = batch_norms(model)
    modes = [(module, module.training) for module in model.modules()]
    kept = [(layer, layer.momentum, layer.num_batches_tracked.clone()) for layer in layers]
    try:
        model.eval()
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # torch: the mean over all batches so far
            layer.train()
        for x in batches:
            model(x)
    finally:
        for layer, momentum, counter in kept:
            layer.momentum = momentum
            layer.num_batches_tracked.copy_(counter)
        for module, mode in modes:
            module.training = mode
