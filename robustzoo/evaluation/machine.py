"""The machine a run happens on: strict float32 on the right device, its fingerprint, and how fast it is."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

import robustzoo
from robustzoo.errors import RobustzooError


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
