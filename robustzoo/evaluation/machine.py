"""The machine a run happens on: strict float32 on the right device, its fingerprint, and how many images a
forward pass takes there."""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

import robustzoo
from robustzoo.errors import RobustzooError

# Large enough to keep one core busy on small images, small enough for a laptop at 224 pixels. On a CPU twice
# the images take twice the time from about here on, so that a trial would only make the shape, and with it
# the Evidence, depend on what else the machine was doing.
DEFAULT_MICRO_BATCH = 64
# Twice the images must be handled at least this much faster per image, or the smaller batch is kept: it
# leaves fewer lanes empty at the end of each attack.
_GAIN = 1.05
_LARGEST = 4096
# Tensors of an image's size that an attack keeps for each lane: image, points, best points, gradients, moves.
_COPIES = 8


def device_of(model: nn.Module) -> torch.device:
    """Device of the model's first parameter or buffer; the CPU for a model without any."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def find_device(name: str | torch.device) -> torch.device:
    """The device of that name.

    Raises:
        RobustzooError: torch does not know it, or this machine does not have it.
    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise RobustzooError(
            f"device {str(name)!r} cannot be used: {error}. Expected cpu, or cuda with a GPU"
        ) from error
    return device


def default_device(rank: int | None = None) -> str:
    """Where a command computes by itself: a GPU if there is one (of several local ranks each its own),
    else the CPU."""
    if not torch.cuda.is_available():
        return "cpu"
    return "cuda" if rank is None else f"cuda:{rank % torch.cuda.device_count()}"


@contextmanager
def strict_arithmetic(device: torch.device) -> Iterator[None]:
    """Within the block: float32 means float32, and on the CPU one thread computes; settings are put back.

    A caller's autocast, inference mode, default dtype and default device are suspended: the first would
    search in bfloat16, the second would take the gradients away, and worker processes do not have the others.

    One thread, because the order of a sum (and so its last bits) depends on how many threads share it: with
    one, a result does not depend on the core count, and processes that share the work agree with a single
    process.
    """
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    dtype, elsewhere = torch.get_default_dtype(), torch.get_default_device().type != "cpu"
    cudnn = torch.backends.cudnn
    with (
        cudnn.flags(enabled=cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=False),
        torch.autocast(device.type, enabled=False),
        torch.inference_mode(False),
        torch.device("cpu") if elsewhere else nullcontext(),
    ):
        try:
            torch.set_default_dtype(torch.float32)
            torch.set_float32_matmul_precision("highest")
            if device.type == "cpu":
                torch.set_num_threads(1)
            yield
        finally:
            torch.set_default_dtype(dtype)
            torch.set_float32_matmul_precision(precision)
            torch.set_num_threads(threads)


@contextmanager
def placed(model: nn.Module, device: torch.device) -> Iterator[nn.Module]:
    """Within the block the model is on `device`; afterwards it is back where it was."""
    before = device_of(model)
    try:
        yield model.to(device)
    finally:
        model.to(before)


def fingerprint(device: torch.device, micro_batch_size: int) -> dict[str, str | int]:
    """What float32 results may depend on: the same fingerprint gives the same verdicts.

    Call it within `strict_arithmetic`, so that `threads` is the count the run computes with.
    """
    if device.type == "cuda":
        processor = torch.cuda.get_device_name(device)
    else:
        processor = torch.backends.cpu.get_cpu_capability()
    return {
        "processor": processor,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "micro_batch_size": micro_batch_size,
    }


def versions() -> dict[str, str]:
    """Versions of what computed the result."""
    return {
        "robustzoo": robustzoo.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def memory_bytes() -> int | None:
    """The machine's memory, None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        return None


def seconds_per_pass(
    model: Callable[[Tensor], Tensor], x: Tensor, *, gradients: bool = True
) -> tuple[float, float]:
    """Seconds of one forward and of one backward of the batch `x: (B, C, H, W)`, from a short trial.

    The first call warms up (allocation, kernel choice) and is not counted; the faster of two others is.
    x may be one image expanded: the model gets copies, as a forward may write into its input.
    """
    x = x.clone(memory_format=torch.contiguous_format)

    def forward() -> float:
        start = time.perf_counter()
        with torch.no_grad():
            model(x).sum().item()
        return time.perf_counter() - start

    def both() -> float:
        start = time.perf_counter()
        pixels = x.clone().requires_grad_(True)
        with torch.enable_grad():
            total = model(pixels).sum()
            if total.requires_grad:  # a forward without gradients is refused by a guard, not by its trial
                torch.autograd.grad(total, pixels, materialize_grads=True)[0].sum().item()
        return time.perf_counter() - start

    forward()
    forward_seconds = min(forward(), forward())
    if not gradients:
        return forward_seconds, 0.0
    both()
    return forward_seconds, max(min(both(), both()) - forward_seconds, 0.0)


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether torch raised `error` because an allocation failed, on a GPU or on the CPU."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
    )


def find_micro_batch(model: Callable[[Tensor], Tensor], x: Tensor, count: int, device: torch.device) -> int:
    """The micro-batch for `count` images such as `x: (C, H, W)`.

    On the CPU DEFAULT_MICRO_BATCH; on a GPU the power of two from which doubling no longer pays or no longer
    fits, from short trials of a forward with its gradient. Never more than there are images.
    """
    if device.type == "cpu":
        return min(DEFAULT_MICRO_BATCH, count)
    size, best = DEFAULT_MICRO_BATCH, _seconds(model, x, DEFAULT_MICRO_BATCH, device)
    while best is not None and size < min(count, _LARGEST):
        seconds = _seconds(model, x, 2 * size, device)
        if seconds is None or sum(seconds) / (2 * size) * _GAIN > sum(best) / size:
            break
        size, best = 2 * size, seconds
    return min(size, count)


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
    memory = memory_bytes() if device.type == "cpu" else None
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
        return seconds_per_pass(model, batch, gradients=gradients)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return None
