"""SWA: an exponential average of the weights, divided among the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from robustzoo.attacks.pgd import at_least_float32


def shares(sizes: Mapping[str, int], world_size: int) -> dict[str, int]:
    """The rank that keeps each tensor: the largest first, each to the rank with the least so far."""
    load = [0] * world_size
    owners = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owners[name] = load.index(min(load))
        load[owners[name]] += sizes[name]
    return owners


def _alone(tensor: Tensor, source: int) -> None:
    """The broadcast of a single process."""


class WeightAverage:
    """theta_avg = d theta_avg + (1 - d) theta after every optimizer step, starting at the initial weights.

    Each rank averages its share only, in float32 at least; weights are gathered where they are used. Buffers
    are not averaged.

    Args:
        module: whose parameters are averaged, the same on every rank.
        decay: d, in (0, 1).
        rank, world_size: of this process.
        broadcast: (tensor, source rank) -> None, overwrites the tensor by the source's on every rank.
    """

    def __init__(
        self,
        module: nn.Module,
        decay: float,
        *,
        rank: int = 0,
        world_size: int = 1,
        broadcast: Callable[[Tensor, int], None] = _alone,
    ) -> None:
        self.decay = decay
        self._parameters = dict(module.named_parameters())
        self._owners = shares({name: p.numel() for name, p in self._parameters.items()}, world_size)
        self._broadcast = broadcast
        self._share = {
            name: at_least_float32(parameter.detach()).clone()
            for name, parameter in self._parameters.items()
            if self._owners[name] == rank
        }

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights of the step just made."""
        for name, average in self._share.items():
            average.lerp_(self._parameters[name].to(average.dtype), 1 - self.decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within the block the module has the averaged weights; then its own again, bit for bit.

        Every rank must enter. Costs a copy of the weights for as long as the block lasts.
        """
        own = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        try:
            with torch.no_grad():
                for name, parameter in self._parameters.items():
                    if name in self._share:
                        parameter.copy_(self._share[name])
                    self._broadcast(parameter.data, self._owners[name])
            yield
        finally:
            with torch.no_grad():
                for name, parameter in self._parameters.items():
                    parameter.copy_(own[name])

    def state(self) -> dict[str, Tensor]:
        """This rank's share by parameter name, not a copy."""
        return dict(self._share)

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `state` gave on this rank.

        Raises:
            ValueError: another share: of other parameters, shapes, or another number of ranks.
        """
        found = {name: tuple(tensor.shape) for name, tensor in state.items()}
        wanted = {name: tuple(tensor.shape) for name, tensor in self._share.items()}
        if found != wanted:
            names = sorted(found.keys() ^ wanted.keys()) or sorted(n for n in found if found[n] != wanted[n])
            raise ValueError(
                f"these are not this rank's averaged weights ({names[0]} differs): continue a run with the "
                "model and the number of processes that it was started with"
            )
        for name, average in self._share.items():
            average.copy_(state[name])
