"""SWA as the paper runs it: an exponential average of the weights over all steps (Izmailov et al. 2018)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from robustzoo.models.batch_norm import kept_buffers, put_back, running_statistics


class WeightAverage:
    """average = decay * average + (1 - decay) * weight after every step, from the initial weights on.

    Args:
        module: float parameters are averaged, in float32. Running statistics of batch norm are not, for an
            average of them does not fit averaged weights: `renew` has them measured.
        decay: in [0, 1).
        weights: the tensors to average by name, asked for anew at every use; default: the parameters of the
            module. A process that keeps a part of every weight gives those parts: averaging is element-wise.
        warmup: step t forgets faster than `decay` says, by (1 + t) / (10 + t), as long as that is less: the
            initial weights are gone soon.
        written: called when `in_place` has written to the weights, where copies of them must be dropped.

    Memory: a copy of the weights, or of the parts of them.

    Raises:
        ValueError: decay outside its range.
    """

    def __init__(
        self,
        module: nn.Module,
        decay: float,
        weights: Callable[[], Mapping[str, Tensor]] | None = None,
        written: Callable[[], None] = lambda: None,
        warmup: bool = False,
    ) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay is {decay}; expected a number in [0, 1), such as 0.995")
        self.decay, self.warmup = decay, warmup
        parameters = dict(module.named_parameters())
        self._weights = (lambda: parameters) if weights is None else weights
        self._written = written
        self._module = module
        self._average = {name: weight.detach().float().clone() for name, weight in self._weights().items()}
        self._statistics = self._measured()

    @torch.no_grad()
    def update(self, step: int = 0) -> None:
        """Take in the weights as they are now: once after every optimizer step (`step`, 0-based)."""
        decay = min(self.decay, (1 + step) / (10 + step)) if self.warmup else self.decay
        weights = self._weights()
        current = [weights[name].detach().float() for name in self._average]
        torch._foreach_lerp_(list(self._average.values()), current, 1.0 - decay)

    @contextmanager
    def in_place(self):
        """The averaged weights in the module inside the block; its own weights, bit for bit, afterwards."""
        kept = {name: weight.detach().clone() for name, weight in self._weights().items()}
        with kept_buffers(self._module):
            try:
                self._fill(self._average)
                put_back(self._module, self._statistics)
                yield
            finally:
                self._fill(kept)

    def renew(self, measure: Callable[[], None]) -> None:
        """Have the running statistics of the averaged weights measured: where the module has none, nothing.

        measure: runs images through the module, which holds the averaged weights then, in the way that
            `batch_norm.renew_statistics` does; its buffers are what is kept.
        """
        if self._statistics:
            with self.in_place():
                measure()
                self._statistics = self._measured()

    def state(self) -> dict[str, Tensor]:
        """The averages by parameter name and their running statistics by buffer name, float32; not copies."""
        return self._average | self._statistics

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved `state`.

        Raises:
            ValueError: other names or shapes than the module's.
        """
        expected = {name: tensor.shape for name, tensor in self.state().items()}
        if {name: tensor.shape for name, tensor in state.items()} != expected:
            raise ValueError("the saved averages are of another network: resume the run they belong to")
        for name, tensor in state.items():
            self.state()[name].copy_(tensor)

    def _measured(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in running_statistics(self._module).items()}

    @torch.no_grad()
    def _fill(self, weights: Mapping[str, Tensor]) -> None:
        self._written()  # before too: a copy that is written back later would undo what is written here
        for name, weight in self._weights().items():
            weight.copy_(weights[name])
        self._written()
