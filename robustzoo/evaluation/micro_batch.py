"""The micro-batch: images a forward pass, found by trial on a GPU and made to fit into memory everywhere."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch import Tensor

from robustzoo.evaluation import machine
from robustzoo.evaluation.engine import OutOfMemory
from robustzoo.evaluation.machine import ran_out_of_memory

# Large enough to keep one core busy on small images, small enough for a laptop at 224 pixels. On a CPU twice
# the images take twice the time from about here on, so that a trial would only make the shape, and with it
# the Evidence, depend on what else the machine was doing.
DEFAULT = 64
# Twice the images must be handled at least this much faster per image, or the smaller batch is kept: it
# leaves fewer lanes empty at the end of each attack.
_GAIN = 1.05
_LARGEST = 4096
# Tensors of an image's size that an attack keeps for each lane: image, points, best points, gradients, moves.
_COPIES = 8


def find(model: Callable[[Tensor], Tensor], x: Tensor, count: int, device: torch.device) -> int:
    """The micro-batch for `count` images such as `x: (C, H, W)`.

    On the CPU DEFAULT; on a GPU the power of two from which doubling no longer pays or no longer fits, from
    short trials of a forward with its gradient. Never more than there are images.
    """
    if device.type == "cpu":
        return min(DEFAULT, count)
    size, best = DEFAULT, _seconds(model, x, DEFAULT, device)
    while best is not None and size < min(count, _LARGEST):
        seconds = _seconds(model, x, 2 * size, device)
        if seconds is None or sum(seconds) / (2 * size) * _GAIN > sum(best) / size:
            break
        size, best = 2 * size, seconds
    return min(size, count)


def bounded(size: int, count: int) -> int:
    """A micro-batch that a file states, but no more than `count` images fill, or DEFAULT."""
    return min(size, max(count, DEFAULT))


def fit(
    model: Callable[[Tensor], Tensor],
    x: Tensor,
    size: int,
    device: torch.device,
    *,
    gradients: bool,
) -> tuple[int, tuple[float, float]]:
    """`size`, halved until one forward (with its gradient) of so many images fits into memory; and the
    seconds of a forward and a backward of that many.

    Raises:
        OutOfMemory: one image alone does not.
    """
    while (seconds := _seconds(model, x, size, device, gradients=gradients)) is None:
        if size == 1:
            raise OutOfMemory(f"memory ran out on {device} with one image: use a device with more")
        size //= 2
    return size, seconds


def within_memory(
    model: Callable[[Tensor], Tensor],
    x: Tensor,
    size: int,
    device: torch.device,
    processes: int = 1,
    *,
    gradients: bool = True,
) -> int:
    """`size`, halved until what a forward keeps for its gradient fits into the memory of this machine.

    For the CPU alone, where too large an allocation may be granted and the process killed when it is used;
    what other devices refuse is found by `fit`.

    Args:
        x: an image, (C, H, W).
        processes: how many share the memory.
        gradients: the attacks need them, and the forward can record them.
    """
    memory = machine.memory_bytes() if device.type == "cpu" else None
    if memory is None:
        return size
    # The weights are in both.
    kept = _kept_bytes(model, x, 2) - _kept_bytes(model, x, 1) if gradients else 0
    each = max(kept, 0) + _COPIES * x.numel() * x.element_size()
    while size > 1 and size * each * processes > memory:
        size //= 2
    return size


def _kept_bytes(model: Callable[[Tensor], Tensor], x: Tensor, size: int) -> int:
    """Of the tensors that autograd keeps between a forward of `size` images and its gradient."""
    storages: dict[int, tuple[Tensor, int]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = tensor, storage.nbytes()  # held, so that no address comes twice
        return tensor

    pixels = x.expand(size, *x.shape).clone().requires_grad_(True)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(pixels)
    return sum(nbytes for _, nbytes in storages.values())


def _seconds(
    model: Callable[[Tensor], Tensor], x: Tensor, size: int, device: torch.device, *, gradients: bool = True
) -> tuple[float, float] | None:
    """Of a forward and a backward of `size` images, from a trial; None where memory does not suffice."""
    try:
        batch = x.to(device).expand(size, *x.shape)
        return machine.seconds_per_pass(model, batch, gradients=gradients)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return None
