"""APGD (Croce & Hein 2020): projected gradient ascent with momentum that finds its own step sizes.

For L1 balls (Croce & Hein 2021, "Mind the box") its steps are as sparse as the best point lets them be. That
search starts in a larger ball where its schedule says so (3 eps, then 2 eps, then eps): each phase begins at
the best point of the one before, brought into its own ball.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from robustzoo import keyed_noise
from robustzoo.attacks.geometry import (
    nearest_in_l1_ball,
    per_sample,
    perturbation_norm,
    project,
    sparse_step,
    steepest_step,
)
from robustzoo.attacks.lanes import Lanes, Search, select
from robustzoo.attacks.protocols import Attack


def checkpoints(attack: Attack) -> list[int]:
    """Iterations after which the step size is reconsidered: 22, 41, 57, 70, 80, 87, 93, 99 of 100."""
    n, constants = attack.iterations, attack.constants
    gap = max(int(constants["first_checkpoint"] * n), 1)
    decrement = max(int(constants["checkpoint_decrement"] * n), 1)
    minimum = max(int(constants["checkpoint_minimum"] * n), 1)
    found, at = [], gap
    while at <= n:
        found.append(at)
        gap = max(gap - decrement, minimum)
        at += gap
    return found


def scaled_start(x: Tensor, norm: str, eps: float, noise: Tensor) -> Tensor:
    """A random point on the sphere of radius eps around `x: (B, ...)`, clamped to [0, 1].

    noise: (B, ...), Linf: uniform in [0, 1), recentred and scaled until its largest entry is eps; L2 and L1:
    normal, scaled.
    """
    if norm == "linf":
        centred = 2.0 * noise - 1.0
        direction = centred / per_sample(perturbation_norm(centred, norm) + 1e-12, x)
    elif norm == "l1":
        direction = noise / per_sample(perturbation_norm(noise, norm) + 1e-12, x)
    else:
        direction = steepest_step(noise, norm)
    return (x + eps * direction).clamp(0.0, 1.0)


class APGD(Search):
    """Evaluates the start and the point after every step. At a checkpoint the step is halved, and the search
    goes back to its best point, where at most `rho` of the steps since the last one raised the loss, or where
    the best loss stood still although the step was not halved at the last one."""

    def __init__(self, attack: Attack, lanes: Lanes, norm: str, eps: float, seed: int) -> None:
        super().__init__(attack, lanes, norm, eps, seed)
        windows = torch.zeros(attack.iterations + 2, dtype=torch.int64)
        previous = 0
        for at in checkpoints(attack):
            windows[at], previous = at - previous, at
        self.windows = windows.to(lanes.y.device)
        self.x_previous, self.x_best, self.grad_best = (self.points.clone() for _ in range(3))
        self.step, self.loss_previous, self.loss_best, self.loss_checked = torch.zeros(4, *lanes.y.shape).to(
            lanes.x
        )
        self.rises = torch.zeros_like(lanes.y)
        self.halved = torch.ones_like(lanes.active)

    def begin(self, starting: Tensor) -> None:
        shape = tuple(self.points.shape[1:])
        noise = self.draw(starting, keyed_noise.uniform if self.norm == "linf" else keyed_noise.normal, shape)
        self.points = select(starting, scaled_start(self.lanes.x, self.norm, self.eps, noise), self.points)
        self.x_previous = select(starting, self.points, self.x_previous)
        self.step = self.step.masked_fill(starting, self.attack.constants["step_ratio"] * self.eps)
        self.iteration = self.iteration.masked_fill(starting, 0)
        self.rises = self.rises.masked_fill(starting, 0)
        self.halved = self.halved | starting

    def advance(self, logits: Tensor, loss: Tensor | None, grad: Tensor | None) -> Tensor:
        first = self.iteration == 0
        exhausted = self.iteration >= self.attack.iterations
        if grad is None:
            self.iteration = (self.iteration + 1).clamp_max(self.attack.iterations)
            return exhausted
        improved = first | (loss > self.loss_best)
        self.x_best = select(improved, self.points, self.x_best)
        self.grad_best = select(improved, grad, self.grad_best)
        self.loss_best = torch.where(improved, loss, self.loss_best)
        halve = self._checkpoint(first, loss)
        self.step = torch.where(halve, self.step / 2, self.step)
        here = select(halve, self.x_best, self.points)
        self._move(here, select(halve, self.grad_best, grad), first)
        self.iteration = (self.iteration + 1).clamp_max(self.attack.iterations)
        return exhausted

    def _checkpoint(self, first: Tensor, loss: Tensor) -> Tensor:
        """Keep the records of the step-size rule; returns which lanes halve their step now."""
        self.rises = self.rises + ((loss > self.loss_previous) & ~first)
        self.loss_previous = loss
        window = self.windows[self.iteration]
        due = window > 0
        stalled = self.rises <= self.attack.constants["rho"] * window
        halve = due & (stalled | (~self.halved & (self.loss_checked >= self.loss_best)))
        self.halved = torch.where(due, halve, self.halved)
        self.loss_checked = torch.where(due | first, self.loss_best, self.loss_checked)
        self.rises = self.rises.masked_fill(due, 0)
        return halve

    def _move(self, here: Tensor, grad: Tensor, first: Tensor) -> None:
        """One step of ascent, averaged with the last move; no momentum at the first step."""
        x, momentum = self.lanes.x, self.attack.constants["momentum"]
        ascended = project(
            here + per_sample(self.step, here) * steepest_step(grad, self.norm), x, self.norm, self.eps
        )
        share = per_sample(torch.where(first, 1.0, momentum), here)
        self.points = project(
            here + share * (ascended - here) + (1 - share) * (here - self.x_previous), x, self.norm, self.eps
        )
        self.x_previous = here


def phase_lengths(attack: Attack) -> list[int]:
    """Steps of each phase: its share of the iterations, rounded up; the last phase has the rest."""
    shares = attack.constants["phase_shares"]
    lengths = [math.ceil(share * attack.iterations) for share in shares[:-1]]
    lengths.append(attack.iterations - sum(lengths))
    return lengths


class APGDL1(Search):
    """Evaluates the start and the point after every step of every phase. At a checkpoint the number of
    entries that move is set from the best point's; where that has become sparser, the search goes back to it
    with the full step, else the step is shortened."""

    def __init__(self, attack: Attack, lanes: Lanes, norm: str, eps: float, seed: int) -> None:
        super().__init__(attack, lanes, norm, eps, seed)
        factors, first, last, due = [], [], [], []
        for factor, steps in zip(attack.constants["phase_factors"], phase_lengths(attack), strict=True):
            every = max(int(attack.constants["checkpoint_every"] * steps), 1)
            factors += [factor] * (steps + 1)
            first += [True] + [False] * steps
            last += [False] * steps + [True]
            due += [i > 0 and i % every == 0 for i in range(steps + 1)]
        device = lanes.y.device
        self.radii = self.eps * torch.tensor([*factors, factors[-1]], device=device)
        self.firsts, self.lasts, self.due = (torch.tensor(of, device=device) for of in (first, last, due))
        self.final = len(due) - 1
        self.x_best, self.grad_best = self.points.clone(), self.points.clone()
        self.loss_best, self.step, self.share, self.count_checked = torch.zeros(4, *lanes.y.shape).to(lanes.x)

    def begin(self, starting: Tensor) -> None:
        x = self.lanes.x
        noise = self.draw(starting, keyed_noise.normal, tuple(x.shape[1:]))
        self.points = select(starting, nearest_in_l1_ball(x + noise, x, float(self.radii[0])), self.points)
        self.iteration = self.iteration.masked_fill(starting, 0)

    def wants_gradient(self) -> Tensor:
        return ~self.lasts[self.iteration]

    def advance(self, logits: Tensor, loss: Tensor | None, grad: Tensor | None) -> Tensor:
        first, last = self.firsts[self.iteration], self.lasts[self.iteration]
        exhausted = self.iteration >= self.final
        grad = torch.zeros_like(self.points) if grad is None else grad
        improved = first | (loss > self.loss_best)
        self.x_best = select(improved, self.points, self.x_best)
        self.grad_best = select(improved, grad, self.grad_best)
        self.loss_best = torch.where(improved, loss, self.loss_best)
        sparser = self._checkpoint(first)
        here, grad = select(sparser, self.x_best, self.points), select(sparser, self.grad_best, grad)
        moved = here + per_sample(self.step, here) * sparse_step(grad, self.share)
        self.iteration = (self.iteration + 1).clamp_max(self.final)
        self.points = nearest_in_l1_ball(
            select(last, self.x_best, moved), self.lanes.x, self.radii[self.iteration]
        )
        return exhausted

    def _checkpoint(self, first: Tensor) -> Tensor:
        """Adapt step and sparsity, per lane; returns which lanes go back to their best point now."""
        constants = self.attack.constants
        full = self.radii[self.iteration] * constants["step_ratio"]
        due = self.due[self.iteration]
        # At the start of a phase the best point is the start itself.
        count = (self.x_best != self.lanes.x).flatten(1).sum(1).to(self.share)
        sparser = due & (count < constants["sparser"] * self.count_checked)
        shorter = (self.step / constants["step_decrease"]).maximum(full / constants["step_range"])
        self.step = torch.where(first | sparser, full, torch.where(due, shorter, self.step))
        dimensions = self.lanes.x[0].numel()
        share = count / dimensions / constants["sparsity_decrease"]
        self.share = torch.where(first | due, share, self.share)
        self.count_checked = torch.where(first | due, count, self.count_checked)
        if len(constants["phase_factors"]) == 1:
            self.share = self.share.masked_fill(first, constants["first_share"])
            self.count_checked = self.count_checked.masked_fill(first, dimensions)
        return sparser
