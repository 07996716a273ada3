"""APGD (Croce & Hein 2020): projected gradient ascent with momentum that finds its own step sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from robustzoo import keyed_noise
from robustzoo.attacks.lanes import Lanes, Search, select
from robustzoo.attacks.members import Member
from robustzoo.attacks.projections import per_sample, perturbation_norm, project, steepest_step


def checkpoints(member: Member) -> list[int]:
    """Iterations after which the step size is reconsidered: 22, 41, 57, 70, 80, 87, 93, 99 of 100."""
    n, constants = member.iterations, member.constants
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

    def __init__(self, member: Member, lanes: Lanes, norm: str, eps: float, seed: int) -> None:
        super().__init__(member, lanes, norm, eps, seed)
        windows = torch.zeros(member.iterations + 2, dtype=torch.int64)
        previous = 0
        for at in checkpoints(member):
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
        self.step = self.step.masked_fill(starting, self.member.constants["step_ratio"] * self.eps)
        self.iteration = self.iteration.masked_fill(starting, 0)
        self.rises = self.rises.masked_fill(starting, 0)
        self.halved = self.halved | starting

    def advance(self, logits: Tensor, loss: Tensor | None, grad: Tensor | None) -> Tensor:
        first = self.iteration == 0
        exhausted = self.iteration >= self.member.iterations
        if grad is None:
            self.iteration = (self.iteration + 1).clamp_max(self.member.iterations)
            return exhausted
        improved = first | (loss > self.loss_best)
        self.x_best = select(improved, self.points, self.x_best)
        self.grad_best = select(improved, grad, self.grad_best)
        self.loss_best = torch.where(improved, loss, self.loss_best)
        halve = self._checkpoint(first, loss)
        self.step = torch.where(halve, self.step / 2, self.step)
        here = select(halve, self.x_best, self.points)
        self._move(here, select(halve, self.grad_best, grad), first)
        self.iteration = (self.iteration + 1).clamp_max(self.member.iterations)
        return exhausted

    def _checkpoint(self, first: Tensor, loss: Tensor) -> Tensor:
        """Keep the records of the step-size rule; returns which lanes halve their step now."""
        self.rises = self.rises + ((loss > self.loss_previous) & ~first)
        self.loss_previous = loss
        window = self.windows[self.iteration]
        due = window > 0
        stalled = self.rises <= self.member.constants["rho"] * window
        halve = due & (stalled | (~self.halved & (self.loss_checked >= self.loss_best)))
        self.halved = torch.where(due, halve, self.halved)
        self.loss_checked = torch.where(due | first, self.loss_best, self.loss_checked)
        self.rises = self.rises.masked_fill(due, 0)
        return halve

    def _move(self, here: Tensor, grad: Tensor, first: Tensor) -> None:
        """One step of ascent, averaged with the last move; no momentum at the first step."""
        x, momentum = self.lanes.x, self.member.constants["momentum"]
        ascended = project(
            here + per_sample(self.step, here) * steepest_step(grad, self.norm), x, self.norm, self.eps
        )
        share = per_sample(torch.where(first, 1.0, momentum), here)
        self.points = project(
            here + share * (ascended - here) + (1 - share) * (here - self.x_previous), x, self.norm, self.eps
        )
        self.x_previous = here
