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
from robustzoo.attacks.attack_losses import margin
from robustzoo.attacks.geometry import per_sample, perturbation_norm, project, steepest_step
from robustzoo.attacks.lanes import Lanes, Search, select
from robustzoo.attacks.proposals import AskedProposals, Bumps
from robustzoo.attacks.protocols import Attack

# p is halved after these queries; the schedule of 10,000 queries, also where fewer are asked.
HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
# Queries for which a lane's numbers are drawn at once, and which are looked through at once for one whose
# answer is not known: the cost of either is its number of tensor operations.
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

    def __init__(self, attack: Attack, lanes: Lanes, norm: str, eps: float, seed: int) -> None:
        super().__init__(attack, lanes, norm, eps, seed)
        channels, height, width = shape = tuple(lanes.x.shape[1:])
        count, device = len(lanes.y), lanes.x.device
        sides = [side(q, attack.constants["p_init"], shape, norm) for q in range(attack.iterations)]
        self.chunks = -(-attack.iterations // _CHUNK)
        padding = [sides[-1]] * (self.chunks * _CHUNK - attack.iterations)
        self.sides = torch.tensor([*sides, *padding], device=device).view(-1, _CHUNK)
        self.rows, self.columns = torch.arange(height, device=device), torch.arange(width, device=device)
        self.ahead = torch.arange(_CHUNK, device=device)
        self.best = self.points.clone()
        self.margin_best = torch.zeros(count, device=device)
        # One chunk of proposals for every lane; a bump has a second window and an orientation.
        windows = 1 if norm == "linf" else 2
        self.corners = torch.zeros(count, _CHUNK, 2 * windows, dtype=torch.int64, device=device)
        self.signs = torch.zeros(count, _CHUNK, channels, dtype=torch.bool, device=device)
        self.upright = torch.zeros(count, _CHUNK, dtype=torch.bool, device=device)
        self.keys = torch.zeros(count, _CHUNK, dtype=torch.int64, device=device)
        self.asked = AskedProposals(count, sorted(set(sides)), shape, windows, device)
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
            noise = self.draw(starting, keyed_noise.uniform, (1 + channels, self.bumps.tiles), "/start")
            start = self._at_eps(self.bumps.grid(noise), x)
        self.points = select(starting, start, self.points)
        self.iteration = self.iteration.masked_fill(starting, 0)

    def advance(self, logits: Tensor, loss: Tensor | None, grad: Tensor | None) -> Tensor:
        found = margin(logits, self.lanes.y)
        improved = (self.iteration == 0) | (found < self.margin_best)
        self.margin_best = torch.where(improved, found, self.margin_best)
        self.best = select(improved, self.points, self.best)
        self.asked.renew(improved)
        exhausted = self.iteration >= self.attack.iterations
        return exhausted | self._next(self.lanes.active & ~exhausted)

    def _next(self, going: Tensor) -> Tensor:
        """Move the lanes of `going: (L,) bool` to their next proposal whose answer is not known.

        Known are proposals that the same best point has had, and squares (Linf) drawn where it already lies
        on that face, which propose the best point itself: neither replaces it. They count and are not asked.

        Returns the lanes that have no proposal left, (L,) bool.
        """
        spent = torch.zeros_like(going)
        # New tensors: the caller still looks at those of the point that has just been evaluated.
        self.points, self.iteration = self.points.clone(), self.iteration.clone()
        left, last = going.nonzero().squeeze(1), self.attack.iterations
        while len(left):
            number, found = self._first_fresh(left)
            self.iteration[left] = number + found
            lanes, chunk, place = left[found], number[found] // _CHUNK, number[found] % _CHUNK
            self.asked.note(lanes, self.keys[lanes, place])
            points = self._propose(lanes, self.sides[chunk, place], place)
            self.points[lanes] = points
            if self.norm == "linf":
                found[found.clone()] = (points != self.best[lanes]).flatten(1).any(1)
            over = ~found & (self.iteration[left] >= last)
            spent[left[over]] = True
            left = left[~found & ~over]
        return spent

    def _first_fresh(self, lanes: Tensor) -> tuple[Tensor, Tensor]:
        """Number of the next proposal in their chunks of `lanes` (indices) whose answer is not known: (n,).

        Also whether there is one, (n,) bool. Where there is none, the number is that of the proposal to look
        on from.
        """
        chunk, place = self.iteration[lanes] // _CHUNK, self.iteration[lanes] % _CHUNK
        due = place == 0
        if due.any():
            self._redraw(lanes[due], chunk[due])
        end = (self.attack.iterations - chunk * _CHUNK).clamp_max(_CHUNK)
        places = place.unsqueeze(1) + self.ahead
        keys = self.keys[lanes.unsqueeze(1), places.clamp_max(_CHUNK - 1)]
        fresh = self.asked.fresh(lanes, keys) & (places < end.unsqueeze(1))
        found = fresh.any(1)
        step = torch.where(found, fresh.int().argmax(1), len(self.ahead))
        return chunk * _CHUNK + torch.minimum(place + step, end), found

    def _redraw(self, lanes: Tensor, chunk: Tensor) -> None:
        """The proposals of the next chunk, for `lanes` (indices) that have used theirs up."""
        coordinates = self.corners.shape[2]
        extra = int(coordinates == 4)
        numbers = keyed_noise.uniform(
            self.seed,
            self.lanes.ids[lanes],
            self.attack.name,
            (_CHUNK, coordinates + extra + self.signs.shape[2]),
            index=self.lanes.attempt[lanes] * self.chunks + chunk,
        )
        sides = self.sides[chunk]
        room = torch.stack((len(self.rows) - sides, len(self.columns) - sides), 2).repeat(1, 1, 1 + extra)
        self.corners[lanes] = (numbers[:, :, :coordinates] * room).long()
        if extra:
            self.upright[lanes] = numbers[:, :, coordinates] < 0.5
        self.signs[lanes] = numbers[:, :, coordinates + extra :] < 0.5
        self.keys[lanes] = self.asked.keys(sides, self.corners[lanes], self.upright[lanes], self.signs[lanes])

    def _propose(self, lanes: Tensor, sides: Tensor, place: Tensor) -> Tensor:
        """Points (n, C, H, W) of the proposals at `place: (n,)` of the chunks of `lanes: (n,)`."""
        corners, negative = self.corners[lanes, place], self.signs[lanes, place][:, :, None, None]
        down, right, window = self._window(sides, corners[:, 0], corners[:, 1])
        best = self.best[lanes]
        if self.norm == "linf":
            # Every channel goes to one face of the ball (a change of 2 eps, clipped, ends there).
            return torch.where(window, torch.where(negative, self.lower[lanes], self.upper[lanes]), best)
        x = self.lanes.x[lanes]
        other = self._window(sides, corners[:, 2], corners[:, 3])[2]
        shape = self.bumps.at(sides, self.upright[lanes, place], down, right).unsqueeze(1)
        return self._bump(best - x, torch.where(negative, -shape, shape), window, other, x)

    def _window(self, sides: Tensor, top: Tensor, left: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Row offsets (n, H), column offsets (n, W) from a window's corner, and the window, (n, 1, H, W)
        bool."""
        down, right = self.rows - top.unsqueeze(1), self.columns - left.unsqueeze(1)
        inside_rows = (down >= 0) & (down < sides.unsqueeze(1))
        inside_columns = (right >= 0) & (right < sides.unsqueeze(1))
        return down, right, (inside_rows.unsqueeze(2) & inside_columns.unsqueeze(1)).unsqueeze(1)

    def _bump(self, delta: Tensor, bump: Tensor, window: Tensor, other: Tensor, x: Tensor) -> Tensor:
        """Move the norm of one window, and what is unused of eps, into a signed bump in another."""
        old = torch.where(window, delta, 0.0)
        bump = torch.where(window, bump + old / (self._plane_norm(old) + 1e-12), 0.0)
        freed = self._plane_norm(torch.where(window | other, delta, 0.0))
        used = perturbation_norm(delta, self.norm)
        if self.norm == "l2":
            unused = (self.eps**2 - used.square()).clamp_min(0.0) / x.shape[1]
            length = (per_sample(unused, x) + freed.square()).sqrt()
        else:
            length = per_sample((self.eps - used).clamp_min(0.0), x) + freed * x.shape[1]
        bump = bump / (self._plane_norm(bump) + 1e-12) * length
        return self._at_eps(torch.where(window, bump, torch.where(other, 0.0, delta)), x)

    def _at_eps(self, delta: Tensor, x: Tensor) -> Tensor:
        """A point of ball and box, (n, C, H, W): L2 at distance eps from the image in direction delta,
        clamped to the box; L1 the nearest to x + delta."""
        if self.norm == "l1":
            return project(x + delta, x, self.norm, self.eps)
        return (x + self.eps * steepest_step(delta, self.norm)).clamp(0.0, 1.0)

    def _plane_norm(self, delta: Tensor) -> Tensor:
        """The norm of every channel's plane, (n, C, 1, 1)."""
        return torch.linalg.vector_norm(delta, ord=1 if self.norm == "l1" else 2, dim=(2, 3), keepdim=True)
