"""FAB-T (Croce & Hein 2020, "Minimally distorted adversarial examples"): walk along the decision boundary."""

from __future__ import annotations

import torch
from torch import Tensor

from robustzoo.attacks.hyperplane import toward_hyperplane
from robustzoo.attacks.lanes import Lanes, Search, select
from robustzoo.attacks.projections import per_sample, perturbation_norm
from robustzoo.attacks.protocols import Member


class FAB(Search):
    """Each iteration linearises z_t - z_y at its point, steps to where it vanishes, and looks at the new
    point: one that fools outside the budget is drawn back towards the image. One that fools inside it ends
    the attempt, so all lanes are in the same half of an iteration at all times, whichever way attempts
    end."""

    def __init__(self, member: Member, lanes: Lanes, norm: str, eps: float, seed: int) -> None:
        super().__init__(member, lanes, norm, eps, seed)
        self.differentiates, self.looks = True, False

    def begin(self, starting: Tensor) -> None:
        self.points = select(starting, self.lanes.x, self.points)
        self.iteration = self.iteration.masked_fill(starting, 0)

    def advance(self, logits: Tensor, loss: Tensor | None, grad: Tensor | None) -> Tensor:
        if self.differentiates:
            if grad is not None:
                self.points = self._step(loss, grad)
            self.iteration = self.iteration + 1
            self.differentiates, self.looks = False, True
            return torch.zeros_like(self.lanes.active)
        fooled = logits.argmax(1) != self.lanes.y
        x, beta = self.lanes.x, self.member.constants["beta"]
        self.points = select(fooled, x + beta * (self.points - x), self.points)
        self.differentiates, self.looks = True, False
        return self.iteration >= self.member.iterations

    def _step(self, loss: Tensor, grad: Tensor) -> Tensor:
        """To the linearised boundary, from the current point and, with weight alpha, from the image
        itself."""
        constants, x, points = self.member.constants, self.lanes.x, self.points
        w = grad.flatten(1)
        from_image = (w * (points - x).flatten(1)).sum(1) - loss
        here = toward_hyperplane(points.flatten(1), w, -loss, self.norm).view_as(x)
        there = toward_hyperplane(x.flatten(1), w, from_image, self.norm).view_as(x)
        length_here = perturbation_norm(here, self.norm).clamp_min(1e-8)
        length_there = perturbation_norm(there, self.norm).clamp_min(1e-8)
        alpha = per_sample((length_here / (length_here + length_there)).clamp_max(constants["alpha_max"]), x)
        eta = constants["eta"]
        return ((points + eta * here) * (1 - alpha) + (x + eta * there) * alpha).clamp(0.0, 1.0)
