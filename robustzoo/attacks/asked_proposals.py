"""Which of Square's proposals a best point has had already: their answer is known, and need not be asked for.

A proposal is discrete: a side, one or two corners, an orientation and a sign for each channel. Made again
from the same best point it gives the same image. Small images have few: 98 squares of one grey pixel on 8x8.
"""

from __future__ import annotations

import torch
from torch import Tensor

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

    def note(self, lanes: Tensor, keys: Tensor) -> None:
        """The best points of `lanes: (n,)` have the proposals `keys: (n,)` now."""
        if self.remembers:
            self.stamps[lanes, keys] = self.best[lanes]
