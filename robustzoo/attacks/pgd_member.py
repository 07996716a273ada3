"""PGD with a fixed step (Madry et al. 2018) as a protocol member: stops at the first point that fools."""

from __future__ import annotations

from torch import Tensor

from robustzoo import keyed_noise
from robustzoo.attacks.lanes import Search, select
from robustzoo.attacks.projections import project, random_start, steepest_step


class PGD(Search):
    """Evaluates the start (uniform in the ball) and the point after every step of step_ratio * eps /
    iterations."""

    def begin(self, starting: Tensor) -> None:
        shape = tuple(self.points.shape[1:])
        noise = self.draw(starting, keyed_noise.uniform if self.norm == "linf" else keyed_noise.normal, shape)
        radius = self.draw(starting, keyed_noise.uniform, (), part="/radius") if self.norm == "l2" else None
        start = random_start(self.lanes.x, self.norm, self.eps, noise, radius)
        self.points = select(starting, start, self.points)
        self.iteration = self.iteration.masked_fill(starting, 0)

    def advance(self, logits: Tensor, loss: Tensor | None, grad: Tensor | None) -> Tensor:
        exhausted = self.iteration >= self.member.iterations
        if grad is not None:
            step = self.member.constants["step_ratio"] * self.eps / self.member.iterations
            ascended = self.points + step * steepest_step(grad, self.norm)
            self.points = project(ascended, self.lanes.x, self.norm, self.eps)
        self.iteration = (self.iteration + 1).clamp_max(self.member.iterations)
        return exhausted
