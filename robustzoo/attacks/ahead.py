"""Asking ahead: which lanes that are not in use ask for which sample, and how many of their answers count."""

from __future__ import annotations

import torch
from torch import Tensor


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
