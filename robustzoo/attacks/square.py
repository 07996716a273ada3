"""Square Attack (Andriushchenko et al. 2020): random search with squares, no gradients.

The corner of a square of side s is drawn from rows 0 to H - s - 1, as in the published implementation, so
that small squares never touch the last row and column. Drawing from the whole image is a stronger attack on
small images (8x8 digits, L2: 112 of 200 robust instead of 124), but not the one behind published numbers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from robustzoo import keyed_noise
from robustzoo.attacks.bumps import Bumps
from robustzoo.attacks.lanes import Lanes, Search, select
from robustzoo.attacks.losses import margin
from robustzoo.attacks.members import Member
from robustzoo.attacks.projections import per_sample, perturbation_norm, project, steepest_step

# p is halved after these queries; the schedule of 10,000 queries, also where fewer are asked.
HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
# Queries for which a lane's numbers are drawn at once: the cost of a draw is its number of tensor operations.
_CHUNK = 250


def side(query: int, p_init: float, shape: tuple[int, ...], norm: str) -> int:
    """Side of the square of the query-th proposal (from 0) for images of `shape: (C, H, W)`.

    Linf: sqrt(p H W), rounded, at least 1. L2 and L1: at least 3 and made odd. Never more than the image's
    shorter side.
    """
    height, width = shape[-2:]
    p = p_init / 2 ** sum(query > at for at in HALVINGS)
    s = round(math.sqrt(p * height * width))
    s = max(s, 1) if norm == "linf" else max(s, 3) | 1
    return min(s, height, width)


class Square(Search):
    """Keeps the best point so far; a proposal that lowers the margin replaces it."""

    differentiates = False

    def __init__(self, member: Member, lanes: Lanes, norm: str, eps: float, seed: int) -> None:
        super().__init__(member, lanes, norm, eps, seed)
        channels, height, width = lanes.x.shape[1:]
        device = lanes.x.device
        sides = [
            side(q, member.constants["p_init"], lanes.x.shape[1:], norm) for q in range(member.iterations)
        ]
        self.sides = torch.tensor([*sides, sides[-1]], device=device)
        self.rows, self.columns = torch.arange(height, device=device), torch.arange(width, device=device)
        self.best = self.points.clone()
        self.margin_best = torch.zeros(len(lanes.y), device=device)
        self.numbers = 2 + channels if norm == "linf" else 5 + channels
        self.drawn = torch.zeros(len(lanes.y), _CHUNK, self.numbers, device=device)
        self.chunks = -(-member.iterations // _CHUNK)
        self.lane = torch.arange(len(lanes.y), device=device)
        if norm == "linf":
            self.lower, self.upper = self.points.clone(), self.points.clone()
        else:
            self.bumps = Bumps(sorted(set(sides)), height, width, device, norm)

    def begin(self, starting: Tensor) -> None:
        x = self.lanes.x
        channels, _, width = x.shape[1:]
        if self.norm == "linf":
            self.lower = select(starting, (x - self.eps).clamp(0.0, 1.0), self.lower)
            self.upper = select(starting, (x + self.eps).clamp(0.0, 1.0), self.upper)
            stripes = self.draw(starting, keyed_noise.uniform, (channels, 1, width), "/start")
            start = torch.where(stripes < 0.5, self.lower, self.upper)
        else:
            tiles = self.bumps.tiles
            noise = self.draw(starting, keyed_noise.uniform, (1 + channels, tiles), "/start")
            start = self._at_eps(self.bumps.grid(noise))
        self.points = select(starting, start, self.points)
        self.iteration = self.iteration.masked_fill(starting, 0)

    def advance(self, logits: Tensor, loss: Tensor | None, grad: Tensor | None) -> Tensor:
        found = margin(logits, self.lanes.y)
        improved = (self.iteration == 0) | (found < self.margin_best)
        self.margin_best = torch.where(improved, found, self.margin_best)
        self.best = select(improved, self.points, self.best)
        exhausted = self.iteration >= self.member.iterations
        going = self.lanes.active & ~exhausted
        if self.norm != "linf":
            self._redraw(going.nonzero().squeeze(1))
            numbers = self.drawn[self.lane, self.iteration % _CHUNK]
            self.points = self._propose_bump(self.sides[self.iteration], numbers)
            self.iteration = (self.iteration + 1).clamp_max(self.member.iterations)
            return exhausted
        return exhausted | self._next_linf(going)

    def _next_linf(self, going: Tensor) -> Tensor:
        """Move the lanes of `going: (L,) bool` to their next proposal that differs from their best point.

        A square drawn where the best point already lies on that face proposes the best point itself: a query
        whose answer is known, and which never replaces it. It is counted and not asked. On images of one
        channel every other proposal of the late, one-pixel squares is such a one.

        Returns the lanes that have no proposal left, (L,) bool.
        """
        spent = torch.zeros_like(going)
        # New tensors: the caller still looks at those of the point that has just been evaluated.
        self.points, self.iteration = self.points.clone(), self.iteration.clone()
        left = going.nonzero().squeeze(1)
        while len(left):
            self._redraw(left)
            iteration = self.iteration[left]
            points = self._propose_linf(left, self.sides[iteration], self.drawn[left, iteration % _CHUNK])
            self.points[left] = points
            self.iteration[left] = iteration + 1
            known = (points == self.best[left]).flatten(1).all(1)
            over = known & (iteration + 1 >= self.member.iterations)
            spent[left[over]] = True
            left = left[known & ~over]
        return spent

    def _redraw(self, lanes: Tensor) -> None:
        """Numbers for the next chunk of queries, in those of `lanes` (indices) that have used theirs up."""
        due = lanes[self.iteration[lanes] % _CHUNK == 0]
        if len(due):
            index = self.lanes.attempt[due] * self.chunks + self.iteration[due] // _CHUNK
            self.drawn[due] = keyed_noise.uniform(
                self.seed, self.lanes.ids[due], self.member.attack, (_CHUNK, self.numbers), index=index
            )

    def _window(self, sides: Tensor, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Row offsets (L, H), column offsets (L, W) from a window's corner, and the window, (L, 1, H, W)
        bool.

        row, column: (L,) uniform in [0, 1), which place the corner.
        """
        top = (row * (len(self.rows) - sides)).long()
        left = (column * (len(self.columns) - sides)).long()
        down, right = self.rows - top.unsqueeze(1), self.columns - left.unsqueeze(1)
        inside_rows = (down >= 0) & (down < sides.unsqueeze(1))
        inside_columns = (right >= 0) & (right < sides.unsqueeze(1))
        return down, right, (inside_rows.unsqueeze(2) & inside_columns.unsqueeze(1)).unsqueeze(1)

    def _propose_linf(self, lanes: Tensor, sides: Tensor, numbers: Tensor) -> Tensor:
        """In a square, every channel goes to one face of the ball (a change of 2 eps, clipped, ends
        there)."""
        window = self._window(sides, numbers[:, 0], numbers[:, 1])[2]
        face = torch.where(numbers[:, 2:, None, None] < 0.5, self.lower[lanes], self.upper[lanes])
        return torch.where(window, face, self.best[lanes])

    def _propose_bump(self, sides: Tensor, numbers: Tensor) -> Tensor:
        """Move the norm of one window, and what is unused of eps, into a signed bump in another."""
        x, l2 = self.lanes.x, self.norm == "l2"
        delta = self.best - x
        down, right, window = self._window(sides, numbers[:, 0], numbers[:, 1])
        other = self._window(sides, numbers[:, 2], numbers[:, 3])[2]
        sign = torch.where(numbers[:, 5:, None, None] < 0.5, -1.0, 1.0)
        bump = self.bumps.at(sides, numbers[:, 4] < 0.5, down, right).unsqueeze(1) * sign
        old = torch.where(window, delta, 0.0)
        bump = torch.where(window, bump + old / (self._plane_norm(old) + 1e-12), 0.0)
        freed = self._plane_norm(torch.where(window | other, delta, 0.0))
        used = perturbation_norm(delta, self.norm)
        if l2:
            unused = (self.eps**2 - used.square()).clamp_min(0.0) / x.shape[1]
            length = (per_sample(unused, x) + freed.square()).sqrt()
        else:
            unused = (self.eps - used).clamp_min(0.0)
            length = per_sample(unused, x) + freed * x.shape[1]
        bump = bump / (self._plane_norm(bump) + 1e-12) * length
        return self._at_eps(torch.where(window, bump, torch.where(other, 0.0, delta)))

    def _at_eps(self, delta: Tensor) -> Tensor:
        """A point of ball and box, (L, C, H, W): L2 at distance eps from the image in direction delta,
        clamped to the box; L1 the nearest to x + delta."""
        x = self.lanes.x
        if self.norm == "l1":
            return project(x + delta, x, self.norm, self.eps)
        return (x + self.eps * steepest_step(delta, self.norm)).clamp(0.0, 1.0)

    def _plane_norm(self, delta: Tensor) -> Tensor:
        """The norm of every channel's plane, (L, C, 1, 1)."""
        return torch.linalg.vector_norm(delta, ord=1 if self.norm == "l1" else 2, dim=(2, 3), keepdim=True)
