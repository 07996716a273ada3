"""Asking ahead: which lanes that are not in use ask for which sample, and how many of their answers count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

    def __len__(self) -> int:
        return len(self._idle)

    def row(self, lane: Tensor, rank: Tensor) -> Tensor:
        """Lanes that ask for `lane: (m,)` what is number `rank: (m,)`, from 0, of what it asks at once."""
        if not len(self._idle):
            return lane
        given = self._position[lane] + (rank - 1).clamp_min(0) * self._going
        return torch.where(rank == 0, lane, self._idle[given.clamp_max(len(self._idle) - 1)])


@dataclass(frozen=True)
class Ahead:
    """What is asked ahead, (m,) each: in which lane, for which lane's sample, after how many others of it in
    the same batch (at least 1); number and key of the proposal."""

    row: Tensor
    lane: Tensor
    rank: Tensor
    number: Tensor
    key: Tensor

    @classmethod
    def joined(cls, parts: Sequence[Ahead]) -> Ahead:
        return cls(
            *(torch.cat(columns) for columns in zip(*(part._columns() for part in parts), strict=True))
        )

    def only(self, which: Tensor) -> Ahead:
        """Those of `which: (m,) bool`."""
        return Ahead(*(column[which] for column in self._columns()))

    def without(self, lanes: Tensor) -> Ahead:
        """Those that have nothing to do with `lanes: (L,) bool`."""
        return self.only(~lanes[self.row] & ~lanes[self.lane])

    def counted(self, own: Tensor, ahead: Tensor) -> Tensor:
        """How many of what was asked ahead count for each lane, (L,): up to the first that ends it.

        Args:
            own: (L,) bool, whether the answer to a lane's own point ends it. ahead: (m,) bool, likewise.
        """
        far = torch.iinfo(self.rank.dtype).max
        first = torch.where(own, 0, far).scatter_reduce(
            0, self.lane, self.rank.masked_fill(~ahead, far), "amin"
        )
        return torch.zeros_like(first).scatter_reduce(0, self.lane, self.rank, "amax").minimum(first)

    def _columns(self) -> tuple[Tensor, ...]:
        return self.row, self.lane, self.rank, self.number, self.key
