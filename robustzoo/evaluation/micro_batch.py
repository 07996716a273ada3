"""How many images a forward pass takes: by rule, and as far as memory goes."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from robustzoo.errors import RobustzooError
from robustzoo.evaluation import machine

# What a micro-batch has where nothing speaks for another: enough to keep one core busy on small images.
DEFAULT_MICRO_BATCH = 64
# Tensors of an image's size that an attack keeps for each lane: image, points, best points, gradients, moves.
_COPIES = 8


class _Limits(NamedTuple):
    """What bounds a micro-batch on a kind of device, so that all machines of the kind choose alike.

    Attributes:
        work: floating point operations of one forward from which its calls no longer count: cheap networks
            get as many images as do so much.
        longest: operations of one forward at which a pass takes long enough (on a core, several seconds).
        kept: bytes that the forward may keep for its gradient.
        least, most: images.
        share: beyond DEFAULT_MICRO_BATCH it is at most the power of two above one in so many of the images,
            so that all workers find some, and the last batches of an attack are few among all.
    """

    work: int
    longest: int
    kept: int
    least: int
    most: int
    share: int


_CPU = _Limits(work=2**29, longest=2**37, kept=2**31, least=4, most=256, share=16)
_GPU = _Limits(work=2**41, longest=2**44, kept=2**33, least=4, most=4096, share=1)


def find_micro_batch(
    model: Callable[[Tensor], Tensor], x: Tensor, count: int, device: torch.device, *, gradients: bool = True
) -> int:
    """The micro-batch for `count` images such as `x: (C, H, W)`, by rule: no trial, so that each machine
    chooses the same. See `micro_batch_for`.

    Args:
        model: on `device`. gradients: the attacks need them, and the forward can record them.
    """
    from torch.utils.flop_counter import FlopCounterMode  # which loads triton where that is installed

    x = x.to(device)
    # Compiled code shows no operations, and warns of the counter's hooks: it runs as it was written here.
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.filterwarnings(
            "ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks"
        )
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(x.unsqueeze(0).clone())
    try:
        kept = _kept_each(model, x) if gradients else 0
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not machine.ran_out_of_memory(error):
            raise
        return 1  # two images are too many
    return micro_batch_for(counter.get_total_flops(), kept, count, device.type)


def micro_batch_for(operations: int, kept: int, count: int, kind: str) -> int:
    """The micro-batch of a network: DEFAULT_MICRO_BATCH, but more for cheap ones, whose calls would cost more
    than what they compute, and fewer for large ones; a power of two, or `count` where that is smaller.

    Args:
        operations: floating point operations of one image's forward. kept: bytes kept for its gradient.
        count: how many images there are. kind: type of the device; all but "cpu" are served as GPUs.
    """
    limits = _CPU if kind == "cpu" else _GPU
    filled = 1 << (count // limits.share).bit_length()
    size = min(limits.work // max(operations, 1), limits.most, filled)
    size = max(size, DEFAULT_MICRO_BATCH)
    size = min(size, max(limits.longest // max(operations, 1), limits.least), limits.kept // max(kept, 1))
    return min(1 << max(size, 1).bit_length() - 1, count)


def bounded_micro_batch(size: int, count: int) -> int:
    """A micro-batch that a file states, but no more than `count` images fill, or DEFAULT_MICRO_BATCH."""
    return min(size, max(count, DEFAULT_MICRO_BATCH))


def fit_micro_batch(
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
        RobustzooError: one image alone does not.
    """
    while (seconds := _seconds(model, x, size, device, gradients=gradients)) is None:
        if size == 1:
            raise RobustzooError(f"memory ran out on {device} with one image: use a device with more")
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
    what other devices refuse is found by `fit_micro_batch`.

    Args:
        x: an image, (C, H, W).
        processes: how many share the memory.
        gradients: the attacks need them, and the forward can record them.
    """
    memory = machine.memory_bytes() if device.type == "cpu" else None
    if memory is None:
        return size
    each = (_kept_each(model, x) if gradients else 0) + _COPIES * x.numel() * x.element_size()
    while size > 1 and size * each * processes > memory:
        size //= 2
    return size


def _kept_each(model: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Bytes that autograd keeps for each image such as `x: (C, H, W)`; the weights are in both counts."""
    return max(_kept_bytes(model, x, 2) - _kept_bytes(model, x, 1), 0)


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
        if not machine.ran_out_of_memory(error):
            raise
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return None
