"""The micro-batch: images a forward pass, found by trial on a GPU and made to fit into memory everywhere."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch import Tensor

from robustzoo.evaluation import machine
from robustzoo.evaluation.stages import OutOfMemory, ran_out_of_memory

# Large enough to keep one core busy on small images, small enough for a laptop at 224 pixels. On a CPU twice
# the images take twice the time from about here on, so that a trial would only make the shape, and with it
# the Evidence, depend on what else the machine was doing.
DEFAULT = 64
# Twice the images must be handled at least this much faster per image, or the smaller batch is kept: it
# leaves fewer lanes empty at the end of each attack.
_GAIN = 1.05
_LARGEST = 4096


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
