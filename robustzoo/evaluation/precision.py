"""Reduced precision and compilation for the search alone: what counts is decided in strict float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from robustzoo.evaluation.guards import GuardError

PRECISIONS = ("float32", "tf32", "bf16")


def check_precision(precision: str, device: torch.device) -> None:
    """Raise GuardError unless attacks can search in that precision on that device."""
    if precision not in PRECISIONS:
        raise GuardError(f"precision is {precision!r}; expected one of {', '.join(PRECISIONS)}")
    if precision == "tf32" and device.type != "cuda":
        raise GuardError("precision is 'tf32', which only a CUDA device has; expected float32 or bf16 here")


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Within the block products of float32 matrices on a GPU are rounded to TF32, or are not."""
    matmul, convolution = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("high" if allowed else "highest")
        torch.backends.cudnn.allow_tf32 = allowed
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolution


class Forwards:
    """The two ways in which an evaluation calls a model.

    Attributes:
        search: what the attacks climb, pixels x: (B, C, H, W) in [0, 1] to float32 logits (B, K).
        judge: the model itself in strict float32, which alone says what fools.

    Args:
        precision: of the search, one of PRECISIONS. compiled: search through torch.compile.
    """

    def __init__(
        self, model: Callable[[Tensor], Tensor], precision: str, compiled: bool, device: torch.device
    ) -> None:
        self._model, self._precision, self._device = model, precision, device
        self._forward: Callable[[Tensor], Tensor] = torch.compile(model, dynamic=False) if compiled else model
        plain = precision == "float32" and not compiled
        self.search: Callable[[Tensor], Tensor] = model if plain else self._search
        self.judge: Callable[[Tensor], Tensor] = model if precision != "tf32" else self._judge

    @contextmanager
    def searching(self) -> Iterator[None]:
        """Within the block gradients too are computed as the search asks; `judge` stays strict."""
        with tf32(self._precision == "tf32"):
            yield

    def _search(self, x: Tensor) -> Tensor:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._precision == "bf16"):
            return self._forward(x).float()

    def _judge(self, x: Tensor) -> Tensor:
        with tf32(False):
            return self._model(x)
