"""FAB (Croce & Hein 2020, "Minimally distorted adversarial examples"): walk along the decision boundary."""

from __future__ import annotations

import torch
from torch import Tensor

from robustzoo import keyed_noise
from robustzoo.attacks.answers import gradient
from robustzoo.attacks.apgd import scaled_start
from robustzoo.attacks.attack_losses import targeted_margin
from robustzoo.attacks.geometry import dual_norm, per_sample, perturbation_norm, toward_hyperplane
from robustzoo.attacks.lanes import Lanes, Search, select
from robustzoo.attacks.protocols import Attack


class FAB(Search):
    """FAB-T. Each iteration linearises z_t - z_y at its point, steps to where it vanishes, and looks at the
    new point: one that fools outside the budget is drawn back towards the image. One that fools inside it
    ends the attempt, so all lanes are in the same half of an iteration at all times, whichever way attempts
    end.

    The look is a forward of its own. It could serve as the next linearisation where the point did not fool,
    but of the points of a robust image 97 to 99 % do fool (digits, Linf and L2), and a batch with both kinds
    would need the gradient of all.
    """

    def __init__(self, attack: Attack, lanes: Lanes, norm: str, eps: float, seed: int) -> None:
        super().__init__(attack, lanes, norm, eps, seed)
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
        x, beta = self.lanes.x, self.attack.constants["beta"]
        self.points = select(fooled, x + beta * (self.points - x), self.points)
        self.differentiates, self.looks = True, False
        return self.iteration >= self.attack.iterations

    def _step(self, loss: Tensor, grad: Tensor) -> Tensor:
        """To the linearised boundary, from the current point and, with weight alpha, from the image
        itself."""
        constants, x, points = self.attack.constants, self.lanes.x, self.points
        w = grad.flatten(1)
        from_image = (w * (points - x).flatten(1)).sum(1) - loss
        moves = toward_hyperplane(
            torch.cat((points, x)).flatten(1), torch.cat((w, w)), torch.cat((-loss, from_image)), self.norm
        )
        length_here, length_there = perturbation_norm(moves, self.norm).clamp_min(1e-8).chunk(2)
        here, there = moves.view(2, *x.shape)
        alpha = per_sample((length_here / (length_here + length_there)).clamp_max(constants["alpha_max"]), x)
        eta = constants["eta"]
        return ((points + eta * here) * (1 - alpha) + (x + eta * there) * alpha).clamp(0.0, 1.0)


class UntargetedFAB(FAB):
    """Linearises every boundary of the label's region and steps to the nearest of them: one gradient for each
    other class. Restarts begin at distance eps / 2 from the image."""

    def begin(self, starting: Tensor) -> None:
        super().begin(starting)
        again = starting & (self.lanes.attempt > 0)
        if again.any():
            noise = self.draw(
                again,
                keyed_noise.uniform if self.norm == "linf" else keyed_noise.normal,
                tuple(self.points.shape[1:]),
            )
            start = scaled_start(self.lanes.x, self.norm, 0.5 * self.budget, noise)
            self.points = select(again, start, self.points)

    def gradient(self, logits: Tensor, loss: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        """z_k - z_y and its gradient, for the class k whose linearised boundary is the nearest."""
        y, classes = self.lanes.y, logits.shape[1]
        nearest, best_loss, best_grad = torch.full_like(loss, torch.inf), loss.detach(), None
        for rank in range(classes - 1):
            other = rank + (y <= rank).long()  # skips the label
            with torch.enable_grad():
                difference = targeted_margin(logits, y, other)
            grad = gradient(difference, points, keep=rank + 2 < classes)
            difference = difference.detach()
            distance = difference.abs() / (dual_norm(grad, self.norm) + 1e-12)
            nearer = distance < nearest
            nearest = torch.where(nearer, distance, nearest)
            best_loss = torch.where(nearer, difference, best_loss)
            best_grad = grad if best_grad is None else select(nearer, grad, best_grad)
        return best_loss, best_grad
