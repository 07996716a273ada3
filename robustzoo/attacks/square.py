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
from robustzoo.attacks.proposals import (
    Ahead,
    AskedProposals,
    Bumps,
    Images,
    Seats,
    Squares,
    earlier_place,
    pixels,
)
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
    """Keeps the best point so far; a proposal that lowers the margin replaces it.

    What it proposes next does not depend on the answers, until one is accepted. So lanes that are not in use
    ask ahead: they take later proposals of a sample that is in one, from its present best point. What comes
    after the first that is accepted is dropped, and was never asked as far as the sample is concerned.
    """

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
        self.channels, self.places = (torch.arange(n, device=device) for n in (channels, _CHUNK))
        self.best = self.points.clone()
        self.margin_best = torch.zeros(count, device=device)
        # One chunk of proposals for every lane; a bump has a second window and an orientation.
        windows = 1 if norm == "linf" else 2
        self.corners = torch.zeros(count, _CHUNK, 2 * windows, dtype=torch.int64, device=device)
        self.signs = torch.zeros(count, _CHUNK, channels, dtype=torch.bool, device=device)
        self.upright = torch.zeros(count, _CHUNK, dtype=torch.bool, device=device)
        self.keys = torch.zeros(count, _CHUNK, dtype=torch.int64, device=device)
        self.earlier = torch.full_like(self.keys, -1)
        self.asked = AskedProposals(count, sorted(set(sides)), shape, windows, device)
        self.ahead: Ahead | None = None
        if norm != "linf":
            self.bumps = Bumps(sorted(set(sides)), height, width, device, norm)

    def begin(self, starting: Tensor) -> None:
        x = self.lanes.x
        channels, _, width = x.shape[1:]
        if self.norm == "linf":
            stripes = self.draw(starting, keyed_noise.uniform, (channels, 1, width), "/start")
            start = self._face(x, stripes < 0.5)
        else:
            noise = self.draw(starting, keyed_noise.uniform, (1 + channels, self.bumps.tiles), "/start")
            start = self._at_eps(self.bumps.grid(noise), x)
        self.points = select(starting, start, self.points)
        self.iteration = self.iteration.masked_fill(starting, 0)
        if self.ahead is not None:
            self.ahead.drop(starting)

    def gather(self, logits: Tensor) -> Tensor:
        ahead, lanes = self.ahead, self.lanes
        if ahead is None:
            return logits
        # What may end the asking from a best point: a proposal that is accepted, fools, or gives no number.
        y = lanes.y[ahead.lane]
        ends = margin(logits, y) < self.margin_best[ahead.lane]
        counted = ahead.counted(ends | (logits.argmax(1) != y) | ~logits.isfinite().all(1))
        lanes.forwards += counted * self.attack.draws
        beyond = ahead.rank - counted[ahead.lane]
        row = ((beyond == 0) & (ahead.rank > 0)).nonzero().squeeze(1)
        lane = ahead.lane[row]
        self.iteration = self.iteration.scatter(0, lane, ahead.number[row])
        self.points[lane] = self.points[row]
        if self.asked.remembers:
            dropped = (beyond > 0).nonzero().squeeze(1)
            place = (ahead.number[dropped] - 1) % _CHUNK
            self.asked.forget(ahead.lane[dropped], self.keys[ahead.lane[dropped], place])
        return logits.index_put((lane,), logits[row])

    def advance(self, logits: Tensor, loss: Tensor | None, grad: Tensor | None) -> Tensor:
        found = margin(logits, self.lanes.y)
        improved = (self.iteration == 0) | (found < self.margin_best)
        self.margin_best = torch.where(improved, found, self.margin_best)
        torch.where(per_sample(improved, self.best), self.points, self.best, out=self.best)
        self.asked.renew(improved)
        exhausted = self.iteration >= self.attack.iterations
        return exhausted | self._next(self.lanes.active & ~exhausted)

    def _next(self, going: Tensor) -> Tensor:
        """Move the lanes of `going: (L,) bool` to their next proposal whose answer is not known, and lanes
        that are not in use to those after it.

        Known are proposals that the same best point has had, and squares (Linf) drawn where it already lies
        on that face, which propose the best point itself: neither replaces it. They count and are not asked.

        Returns the lanes that have no proposal left, (L,) bool.
        """
        spent = torch.zeros_like(going)
        # New tensors: the caller still looks at those of the point that has just been evaluated.
        self.points, self.iteration = self.best.clone(), self.iteration.clone()
        left, last = going.nonzero().squeeze(1), self.attack.iterations
        idle = (~self.lanes.active).nonzero().squeeze(1)
        seats = Seats(left, idle, len(going))
        self.ahead = Ahead(len(going), going.device) if len(idle) else None
        while len(left):
            which, place, resume = self._first_fresh(left, seats.count[left])
            chunk = self.iteration[left] // _CHUNK
            lane, side = left[which], self.sides[chunk[which], place]
            self.asked.note(lane, self.keys[lane, place])
            new = self._proposed(lane, side, place)
            if len(new.kept) < len(which):
                which, place, lane = (values[new.kept] for values in (which, place, lane))
            found = torch.zeros_like(left).index_add(0, which, torch.ones_like(which))
            self.iteration[left] = chunk * _CHUNK + resume
            row, number = lane, chunk[which] * _CHUNK + place + 1
            if self.ahead is None:
                self.iteration[lane] = number
            else:
                rank = torch.arange(len(which), device=which.device) - (found.cumsum(0) - found)[which]
                row = seats.row(lane, rank)
                self.ahead.enter(row, lane, rank, number)
                if self.norm == "linf":  # squares are written into the best point, bumps are whole images
                    self.points[row] = self.best[lane]
                self.iteration[left] = torch.where(found > 0, self.ahead.number[left], self.iteration[left])
            new.write(self.points, row)
            none, over = found == 0, self.iteration[left] >= last
            spent[left] = none & over
            left = left[none & ~over]
        return spent

    def _first_fresh(self, lanes: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The next proposals in their chunks of `lanes: (n,)` whose answers are not known, at most `count:
        (n,)` of each: their position in `lanes` and place in the chunk, (m,) each, in order; and the place
        (n,) from which to look on."""
        chunk, place = self.iteration[lanes] // _CHUNK, self.iteration[lanes] % _CHUNK
        due = (place == 0).nonzero().squeeze(1)
        if len(due):
            self._redraw(lanes[due], chunk[due])
        end = (self.attack.iterations - chunk * _CHUNK).clamp_max(_CHUNK)
        place = place.unsqueeze(1)
        fresh = (self.places >= place) & (self.places < end.unsqueeze(1))
        if self.asked.remembers:
            fresh &= self.asked.fresh(lanes, self.keys[lanes]) & (self.earlier[lanes] < place)
        taken = fresh & (fresh.cumsum(1, dtype=torch.int32) <= count.unsqueeze(1))
        resume = torch.where(taken, self.places + 1, 0).amax(1)
        return *taken.nonzero(as_tuple=True), torch.where(resume > 0, resume, end)

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
        if self.asked.remembers:
            keys = self.asked.keys(sides, self.corners[lanes], self.upright[lanes], self.signs[lanes])
            self.keys[lanes], self.earlier[lanes] = keys, earlier_place(keys)

    def _proposed(self, lanes: Tensor, sides: Tensor, place: Tensor) -> Squares | Images:
        """The proposals at `place: (n,)` of the chunks of `lanes: (n,)`."""
        corners, signs = self.corners[lanes, place], self.signs[lanes, place]
        if self.norm == "linf":
            # Every channel goes to one face of the ball (a change of 2 eps, clipped, ends there).
            number, row, column = pixels(sides, corners)
            at = lanes[number].unsqueeze(1), self.channels, row.unsqueeze(1), column.unsqueeze(1)
            values = self._face(self.lanes.x[at], signs[number])
            return Squares(len(lanes), number, row, column, values, (values != self.best[at]).any(1))
        down, right, window = self._window(sides, corners[:, 0], corners[:, 1])
        x = self.lanes.x[lanes]
        other = self._window(sides, corners[:, 2], corners[:, 3])[2]
        shape = self.bumps.at(sides, self.upright[lanes, place], down, right).unsqueeze(1)
        bump = torch.where(signs[:, :, None, None], -shape, shape)
        return Images(self._bump(self.best[lanes] - x, bump, window, other, x))

    def _face(self, x: Tensor, negative: Tensor) -> Tensor:
        """The lower (where `negative`) or upper end of the ball around pixels x, within the box."""
        return (x + torch.where(negative, -self.eps, self.eps).to(x)).clamp(0.0, 1.0)

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
