"""SWA as the paper runs it: an exponential average of the weights over all steps (Izmailov et al. 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """average = decay * average + (1 - decay) * weight after every step, from the initial weights on.

    Args:
        module: float parameters are averaged, in float32; it must have no float buffers in its state, which
            an average of weights would not fit (batch norm statistics).
        decay: in [0, 1).

    Memory: a copy of the weights, on every rank.

    Raises:
        ValueError: decay outside its range, or a float buffer.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay is {decay}; expected a number in [0, 1), such as 0.995")
        self.decay = decay
        self._parameters = dict(module.named_parameters())
        stray = [
            name
            for name, tensor in module.state_dict().items()
            if tensor.is_floating_point() and name not in self._parameters
        ]
        if stray:
            raise ValueError(f"{stray[0]} is a buffer, not a weight: averaging would leave it as it is")
        self._average = {name: p.detach().float().clone() for name, p in self._parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are now: once after every optimizer step."""
        weights = [parameter.detach().float() for parameter in self._parameters.values()]
        torch._foreach_lerp_(list(self._average.values()), weights, 1.0 - self.decay)

    @contextmanager
    def in_place(self):
        """The averaged weights in the module inside the block; its own weights, bit for bit, afterwards."""
        kept = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        try:
            self._fill(self._average)
            yield
        finally:
            self._fill(kept)

    def state(self) -> dict[str, Tensor]:
        """The averages by parameter name, float32; not copies."""
        return dict(self._average)

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved `state`.

        Raises:
            ValueError: other names or shapes than the module's.
        """
        expected = {name: tensor.shape for name, tensor in self._average.items()}
        if {name: tensor.shape for name, tensor in state.items()} != expected:
            raise ValueError("the saved averages are of another network: resume the run they belong to")
        for name, tensor in state.items():
            self._average[name].copy_(tensor)

    @torch.no_grad()
    def _fill(self, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(weights[name])
