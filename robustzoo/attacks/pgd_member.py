"""PGD with a fixed step (Madry et al. 2018) as a protocol member: stops at the first point that fools."""

from __future__ import annotations

import torch
from torch import Tensor

from robustzoo import keyed_noise
from robustzoo.attacks.l1_ball import sparse_step
from robustzoo.attacks.lanes import Search, select
from robustzoo.attacks.projections import project, random_start, steepest_step


class PGD(Search):
    """Evaluates the start (uniform in the ball) and the point after every step of step_ratio * eps /
    iterations."""

    def begin(self, starting: Tensor) -> None:
        shape = tuple(self.points.shape[1:])
        noise = self.draw(starting, keyed_noise.normal if self.norm == "l2" else keyed_noise.uniform, shape)
        radius = None
        if self.norm != "linf":
            radius = self.draw(starting, keyed_noise.uniform, (), part="/radius")
        start = random_start(self.lanes.x, self.norm, self.eps, noise, radius)
        self.points = select(starting, start, self.points)
        self.iteration = self.iteration.masked_fill(starting, 0)

    def advance(self, logits: Tensor, loss: Tensor | None, grad: Tensor | None) -> Tensor:
        exhausted = self.iteration >= self.member.iterations
        if grad is not None:
            step = self.member.constants["step_ratio"] * self.eps / self.member.iterations
            ascended = self.points + step * self._direction(grad)
            self.points = project(ascended, self.lanes.x, self.norm, self.eps)
        self.iteration = (self.iteration + 1).clamp_max(self.member.iterations)
        return exhausted

    def _direction(self, grad: Tensor) -> Tensor:
        """The steepest step; in L1 a sparse one, since the steepest would move one pixel an iteration.

        L1 follows Tramer & Boneh 2019 (section 3.3): a share of the largest entries, leaving out pixels that
        the box holds already.
        """
        if self.norm != "l1":
            return steepest_step(grad, self.norm)
        held = ((self.points <= 0.0) & (grad < 0)) | ((self.points >= 1.0) & (grad > 0))
        share = torch.full_like(self.lanes.x[:, 0, 0, 0], self.member.constants["moving_share"])
        return sparse_step(grad.masked_fill(held, 0.0), share)
