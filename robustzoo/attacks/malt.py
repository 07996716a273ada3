"""APGD on the targeted margin with targets ranked by their gradients, as MALT does (Melamed et al. 2024).

AutoAttack tries the classes of the largest clean logits. Where a network is nearly linear around an image,
the class whose linearised boundary is nearest is the better first target: the classes are tried by rising
(z_y - z_t) / |grad (z_y - z_t)|_q at the clean image, q the dual of the threat model's norm. MALT ranks the
100 largest clean logits, and so does this. It is an attack of its own, in no AutoAttack protocol.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robustzoo.attacks.apgd import APGD, APGDL1
from robustzoo.attacks.geometry import dual_norm
from robustzoo.attacks.lanes import Lanes, Search, select
from robustzoo.attacks.protocols import Attack


class RankedTargets(Search):
    """Before the first attempt on a sample, one gradient at the clean image for each candidate class; then
    the attempts of the attack it is mixed into, each on the next nearest class."""

    independent = False

    def __init__(self, attack: Attack, lanes: Lanes, norm: str, eps: float, seed: int) -> None:
        super().__init__(attack, lanes, norm, eps, seed)
        shape = len(lanes.y), int(attack.constants["candidates"])
        self.candidates = torch.zeros(shape, dtype=torch.int64, device=lanes.y.device)
        self.distance = torch.zeros(shape, device=lanes.y.device)
        self.left = torch.zeros_like(lanes.y)  # candidates still to be measured

    def begin(self, starting: Tensor) -> None:
        lanes, count = self.lanes, self.candidates.shape[1]
        fresh = starting & (lanes.attempt == 0)
        for lane in fresh.nonzero().squeeze(1).tolist():
            self.candidates[lane] = torch.tensor(lanes.sample(lane).targets[:count])
        self.left = self.left.masked_fill(fresh, count)
        self._measure(fresh)
        self._attack(starting & ~fresh)

    def wants_gradient(self) -> Tensor:
        return super().wants_gradient() | (self.left > 0)

    def advance(self, logits: Tensor, loss: Tensor | None, grad: Tensor | None) -> Tensor:
        measuring = self.left > 0
        if grad is not None and measuring.any():
            distance = -loss / dual_norm(grad, self.norm).clamp_min(torch.finfo(grad.dtype).tiny)
            at = measuring.nonzero().squeeze(1)
            self.distance[at, self.candidates.shape[1] - self.left[at]] = distance[at]
        exhausted = super().advance(logits, loss, grad) & ~measuring
        if measuring.any():
            self.left = self.left - measuring.long()
            self._measure(self.left > 0)
            ready = measuring & (self.left == 0)
            order = self.distance.sort(dim=1, stable=True).indices
            self.candidates = select(ready, self.candidates.gather(1, order), self.candidates)
            self._attack(ready)
        return exhausted

    def _measure(self, which: Tensor) -> None:
        """Ask for the next candidate's gradient at the clean image, in the lanes of `which: (L,) bool`."""
        at = which.nonzero().squeeze(1)
        self.lanes.target[at] = self.candidates[at, self.candidates.shape[1] - self.left[at]]
        self.points = select(which, self.lanes.x, self.points)
        self.iteration = self.iteration.masked_fill(which, 0)

    def _attack(self, starting: Tensor) -> None:
        """Start an attempt on the target of its rank."""
        at = starting.nonzero().squeeze(1)
        self.lanes.target[at] = self.candidates[at, self.lanes.attempt[at] // self.attack.restarts]
        if len(at):
            super().begin(starting)


class MALT(RankedTargets, APGD):
    """For Linf and L2."""


class MALTL1(RankedTargets, APGDL1):
    """For L1."""
