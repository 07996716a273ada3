"""What Square proposes: its shapes in L2 and L1, which proposals a best point has had already, and which
lanes ask for which sample.

A proposal is discrete: a side, one or two corners, an orientation and a sign for each channel. Made again
from the same best point it gives the same image. Small images have few: 98 squares of one grey pixel on 8x8.
"""

from __future__ import annotations

import torch
from torch import Tensor

# How fast a hill falls from its centre.
_POWER = {"l2": 2, "l1": 4}


def bump(s: int, norm: str = "l2") -> Tensor:
    """The shape (s, s), of norm 1 in `norm`: a positive hill above a negative one (its section 3.4)."""
    shape = torch.cat((_hill(s // 2, s, norm), -_hill(s - s // 2, s, norm)))
    return shape / torch.linalg.vector_norm(shape.flatten(), ord=int(norm[1:]))


def _hill(height: int, width: int, norm: str) -> Tensor:
    """(height, width) of norm 1, falling from its centre c in squares: sum over k >= |ij - c|_inf of 1 / (k +
    1)^p, with p = 2 (L2) or 4 (L1, as in the published implementation)."""
    if height == 0:
        return torch.zeros(0, width)
    levels = max(height, width) // 2 + 1
    tails = (1.0 / torch.arange(1, levels + 1, dtype=torch.float64) ** _POWER[norm]).flip(0).cumsum(0).flip(0)
    down = (torch.arange(height) - height // 2).abs().unsqueeze(1)
    right = (torch.arange(width) - width // 2).abs().unsqueeze(0)
    hill = tails[torch.maximum(down, right)]
    return (hill / torch.linalg.vector_norm(hill.flatten(), ord=int(norm[1:]))).float()


class Bumps:
    """All bumps that a run needs, on one grid, so that lanes with different sides are served in one
    look-up."""

    def __init__(
        self, sides: list[int], height: int, width: int, device: torch.device, norm: str = "l2"
    ) -> None:
        largest = max(sides)
        bank = torch.zeros(len(sides), 2, largest, largest)
        self.position = torch.zeros(largest + 1, dtype=torch.int64)
        for i, s in enumerate(sides):
            bank[i, 0, :s, :s] = bump(s, norm)
            bank[i, 1, :s, :s] = bump(s, norm).T
            self.position[s] = i
        self.bank, self.position, self.largest = bank.to(device), self.position.to(device), largest
        # The start tiles the image with bumps of a fifth of its height, centred.
        s = max(height // 5, 1)
        s = min(s, width)
        rows, columns = height // s, width // s
        self.tiles = rows * columns
        i = torch.arange(height) - (height - rows * s) // 2
        j = torch.arange(width) - (width - columns * s) // 2
        inside = ((i >= 0) & (i < rows * s)).unsqueeze(1) & ((j >= 0) & (j < columns * s)).unsqueeze(0)
        tile = i.div(s, rounding_mode="floor").unsqueeze(1) * columns + j.div(s, rounding_mode="floor")
        one = bump(s, norm)
        tiled = torch.stack([shape[i.remainder(s)][:, j.remainder(s)] for shape in (one, one.T)])
        self.tile = tile.masked_fill(~inside, 0).to(device)
        self.tiled = tiled.masked_fill(~inside, 0.0).to(device)

    def at(self, sides: Tensor, upright: Tensor, down: Tensor, right: Tensor) -> Tensor:
        """(L, H, W): each lane's bump at its window's offsets `down: (L, H)`, `right: (L, W)`; garbage
        outside."""
        row = down.clamp(0, self.largest - 1).unsqueeze(2)
        column = right.clamp(0, self.largest - 1).unsqueeze(1)
        which = self.position[sides][:, None, None], upright.long()[:, None, None]
        return self.bank[which[0], which[1], row, column]

    def grid(self, noise: Tensor) -> Tensor:
        """The start (L, C, H, W) from noise (L, 1 + C, tiles) in [0, 1): orientation, then a sign per
        channel."""
        coin = (noise < 0.5)[:, :, self.tile]
        base = torch.where(coin[:, :1], self.tiled[0], self.tiled[1])
        return torch.where(coin[:, 1:], base, -base)


# Proposals for which a lane can remember the answer, 4 bytes each; with more of them (images beyond 32x32, or
# two windows on more than 8x8), hardly one comes twice.
_MOST = 2**15


class AskedProposals:
    """A stamp for each lane and proposal: the best point, by number, that had it last."""

    def __init__(
        self, lanes: int, sides: list[int], shape: tuple[int, ...], windows: int, device: torch.device
    ) -> None:
        """sides: all that occur. shape: (C, H, W) of the images. windows: 1, or 2 (with an orientation)."""
        channels, height, width = shape
        self.bits = (1 << torch.arange(channels, device=device)).long()
        self.windows, self.signs = windows, 1 << channels
        base, wide, cells = torch.zeros(3, max(sides) + 1, dtype=torch.int64)
        total = 0
        for s in sides:
            base[s], wide[s] = total, max(width - s, 1)
            cells[s] = max(height - s, 1) * wide[s]
            total += int(cells[s]) ** windows * windows * self.signs
        self.base, self.wide, self.cells = base.to(device), wide.to(device), cells.to(device)
        self.remembers = total <= _MOST
        self.stamps = torch.zeros(lanes, total if self.remembers else 0, dtype=torch.int32, device=device)
        self.best = torch.zeros(lanes, dtype=torch.int32, device=device)

    def renew(self, improved: Tensor) -> None:
        """The lanes of `improved: (L,) bool` have another best point, of which nothing is known."""
        self.best = self.best + improved

    def keys(self, sides: Tensor, corners: Tensor, upright: Tensor, signs: Tensor) -> Tensor:
        """Number of each proposal (n, Q). sides: (n, Q), corners: (n, Q, 2 windows), upright: (n, Q), signs:
        (n, Q, C) bool."""
        key = corners[..., 0] * self.wide[sides] + corners[..., 1]
        if self.windows == 2:
            other = corners[..., 2] * self.wide[sides] + corners[..., 3]
            key = (key * self.cells[sides] + other) * 2 + upright
        return self.base[sides] + key * self.signs + (signs * self.bits).sum(2)

    def fresh(self, lanes: Tensor, keys: Tensor) -> Tensor:
        """Which proposals the best points of `lanes: (n,)` have not had. keys: (n, Q)."""
        if not self.remembers:
            return torch.ones_like(keys, dtype=torch.bool)
        return self.stamps[lanes.unsqueeze(1), keys] != self.best[lanes].unsqueeze(1)

    def forget(self, lanes: Tensor, keys: Tensor) -> None:
        """Undo `note` for proposals that no answer was kept of."""
        if self.remembers:
            self.stamps[lanes, keys] = -1

    def note(self, lanes: Tensor, keys: Tensor) -> None:
        """The best points of `lanes: (n,)` have the proposals `keys: (n,)` now."""
        if self.remembers:
            self.stamps[lanes, keys] = self.best[lanes]


def earlier_place(keys: Tensor) -> Tensor:
    """Where in its row each of `keys: (n, Q)` stands the last time before, -1 where it does not."""
    ordered, places = keys.sort(dim=1, stable=True)
    before = torch.where(ordered[:, 1:] == ordered[:, :-1], places[:, :-1], -1)
    return torch.full_like(keys, -1).scatter(1, places[:, 1:], before)


def pixels(sides: Tensor, corners: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The pixels of squares of `sides: (n,)` at `corners: (n, 2)`, one after the other: number of the square,
    row and column, (P,) each."""
    areas = sides * sides
    number = torch.repeat_interleave(areas)
    within = torch.arange(len(number), device=sides.device) - (areas.cumsum(0) - areas)[number]
    side = sides[number]
    down = within.div(side, rounding_mode="floor")
    top, left = corners[number].unbind(1)
    return number, top + down, left + within - down * side


class Squares:
    """Proposals that change the pixels of a square: row, column and `values: (P, C)` of the pixels of each.

    kept: positions of those that `changed: (P,) bool` anything.
    """

    def __init__(
        self, count: int, number: Tensor, row: Tensor, column: Tensor, values: Tensor, changed: Tensor
    ) -> None:
        self._count, self._pixels = count, (number, row, column, values)
        changes = torch.zeros(count, dtype=torch.int64, device=row.device).index_add(
            0, number, changed.long()
        )
        self.kept = changes.nonzero().squeeze(1)

    def write(self, points: Tensor, rows: Tensor) -> None:
        """Into `points[rows]`, rows: one for each of `kept`."""
        number, row, column, values = self._pixels
        to = torch.full((self._count,), -1, device=rows.device)
        to[self.kept] = rows
        at = to[number]
        if len(self.kept) < self._count:
            there = at >= 0
            at, row, column, values = at[there], row[there], column[there], values[there]
        points.permute(0, 2, 3, 1)[at, row, column] = values


class Images:
    """Proposals that are whole images (n, C, H, W), all of them kept."""

    def __init__(self, images: Tensor) -> None:
        self._images, self.kept = images, torch.arange(len(images), device=images.device)

    def write(self, points: Tensor, rows: Tensor) -> None:
        """Into `points[rows]`."""
        points[rows] = self._images


# ---- Asking ahead: lanes that are not in use ask for the samples of others ---------------------------------


class Seats:
    """Hands lanes that are not in use, `idle: (k,)`, out to the lanes `going: (n,)` as evenly as they go.

    count: (L,) how much each lane of `going` may ask at once, in its own seat and those it was given.
    """

    def __init__(self, going: Tensor, idle: Tensor, lanes: int) -> None:
        self._idle, self._going = idle, max(len(going), 1)
        self._position = torch.zeros(lanes, dtype=torch.int64, device=going.device)
        self._position[going] = torch.arange(len(going), device=going.device)
        each, rest = divmod(len(idle), self._going)
        self.count = 1 + each + (self._position < rest)

    def row(self, lane: Tensor, rank: Tensor) -> Tensor:
        """Lanes that ask for `lane: (m,)` what is number `rank: (m,)`, from 0, of what it asks at once."""
        given = self._position[lane] + (rank - 1).clamp_min(0) * self._going
        return torch.where(rank == 0, lane, self._idle[given.clamp_max(len(self._idle) - 1)])


class Ahead:
    """What lanes ask for others, (L,) each: for which lane's sample (its own where it asks for none), after
    how many others of it in the same batch (0: its own), and the number of the proposal."""

    def __init__(self, lanes: int, device: torch.device) -> None:
        self.lane = torch.arange(lanes, device=device)
        self.rank, self.number = torch.zeros(2, lanes, dtype=torch.int64, device=device)

    def enter(self, row: Tensor, lane: Tensor, rank: Tensor, number: Tensor) -> None:
        """The lanes `row: (m,)` ask for `lane: (m,)`."""
        self.lane[row], self.rank[row], self.number[row] = lane, rank, number

    def drop(self, lanes: Tensor) -> None:
        """What is asked in `lanes: (L,) bool`, or for them, is asked no more."""
        gone = lanes | lanes[self.lane]
        self.lane = torch.where(gone, torch.arange(len(gone), device=gone.device), self.lane)
        self.rank = self.rank.masked_fill(gone, 0)

    def counted(self, ends: Tensor) -> Tensor:
        """How many of what was asked ahead count for each lane, (L,): up to the first that ends it.

        ends: (L,) bool, whether the answer in a lane ends what is asked for its sample.
        """
        most = torch.zeros_like(self.rank).scatter_reduce(0, self.lane, self.rank, "amax")
        rank = torch.where(ends, self.rank, len(ends))
        return most.scatter_reduce(0, self.lane, rank, "amin")
