"""APGD for L1 balls (Croce & Hein 2021, "Mind the box"): steps as sparse as the best point lets them be.

The search starts in a larger ball where its schedule says so (3 eps, then 2 eps, then eps): each phase begins
at the best point of the one before, brought into its own ball.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from robustzoo import keyed_noise
from robustzoo.attacks.l1_ball import nearest_in_l1_ball, sparse_step
from robustzoo.attacks.lanes import Lanes, Search, select
from robustzoo.attacks.members import Member
from robustzoo.attacks.projections import per_sample


def phase_lengths(member: Member) -> list[int]:
    """Steps of each phase: its share of the iterations, rounded up; the last phase has the rest."""
    shares = member.constants["phase_shares"]
    lengths = [math.ceil(share * member.iterations) for share in shares[:-1]]
    lengths.append(member.iterations - sum(lengths))
    return lengths


class APGDL1(Search):
    """Evaluates the start and the point after every step of every phase. At a checkpoint the number of
    entries that move is set from the best point's; where that has become sparser, the search goes back to it
    with the full step, else the step is shortened."""

    def __init__(self, member: Member, lanes: Lanes, norm: str, eps: float, seed: int) -> None:
        super().__init__(member, lanes, norm, eps, seed)
        factors, first, last, due = [], [], [], []
        for factor, steps in zip(member.constants["phase_factors"], phase_lengths(member), strict=True):
            every = max(int(member.constants["checkpoint_every"] * steps), 1)
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
        constants = self.member.constants
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
