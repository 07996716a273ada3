"""The L1 ball meets the box [0, 1]^d: the nearest point of both, and the sparse steps that suit them.

The nearest point moves every pixel of a perturbation `delta` down by one common level and stops at the box:
pixel i keeps min(max(|delta_i| - level, 0), room_i), with room_i its distance to the box in the direction of
delta_i (the Lagrangian of the constraint; Croce & Hein 2021, "Mind the box", proposition 2.1). What all
pixels keep together is piecewise linear and falls with the level; its kinks are |delta_i|, below which pixel
i counts, and |delta_i| - room_i, below which it counts no further. Sorting them gives the piece on which it
is epsilon.
"""

from __future__ import annotations

import torch
from torch import Tensor


def nearest_in_l1_ball(x_adv: Tensor, x: Tensor, eps: float | Tensor) -> Tensor:
    """The nearest point, in Euclidean distance, of the L1 ball around `x` and the box to `x_adv: (B, ...)`.

    Args:
        x: (B, ...) in [0, 1]. eps: radius in pixel units, a number or (B,).

    Computed in float64: the level is the difference of long sums, and far points are far longer than what is
    kept of them. Points inside stay where they are.
    """
    start = x.flatten(1).double()
    delta = x_adv.flatten(1).double() - start
    size = delta.abs()
    room = torch.where(delta > 0, 1.0 - start, start)
    radius = torch.as_tensor(eps, dtype=size.dtype, device=x.device).expand(len(x)).unsqueeze(1)
    level = _level(size, room, radius)
    kept = torch.minimum((size - level).clamp_min(0.0), room)
    moved = (start + torch.sign(delta) * kept).to(x_adv.dtype)
    # Rounded towards x: the roundings of many equal steps would add up and leave the ball.
    inward = torch.nextafter(moved, x.flatten(1))
    moved = torch.where((moved.double() - start).abs() > kept, inward, moved)
    return torch.where(level > 0, moved, x_adv.flatten(1)).clamp(0.0, 1.0).view_as(x)


def _level(size: Tensor, room: Tensor, radius: Tensor) -> Tensor:
    """The smallest level >= 0 at which sum_i min(max(size_i - level, 0), room_i) <= radius: (B, 1)."""
    kinks, order = torch.cat((size, (size - room).clamp_min(0.0)), 1).sort(dim=1, descending=True)
    signs = torch.where(order < size.shape[1], 1.0, -1.0).to(kinks.dtype)
    counting, weighted = signs.cumsum(1), (signs * kinks).cumsum(1)
    beyond = weighted - counting * kinks >= radius  # at the level of that kink
    # The level lies above the first such kink, on the piece that begins at the kink before it.
    before = (beyond.int().argmax(1, keepdim=True) - 1).clamp_min(0)
    level = (weighted.gather(1, before) - radius) / counting.gather(1, before).clamp_min(1.0)
    return torch.where(beyond.any(1, keepdim=True), level.clamp_min(0.0), 0.0)


def sparse_step(grad: Tensor, share: Tensor) -> Tensor:
    """A step of L1 norm 1 along the signs of the largest entries of `grad: (B, ...)`, all of equal length.

    share: (B,) in [0, 1], the part of the entries that may move; at least one does, and all that tie with the
    smallest of them. Entries without slope never move; a zero gradient gives a zero step.
    """
    slope = grad.flatten(1).abs()
    count = slope.shape[1]
    smallest = ((1.0 - share) * count).long().clamp(0, count - 1).unsqueeze(1)
    moving = grad.flatten(1).sign() * (slope >= slope.sort(dim=1).values.gather(1, smallest))
    return (moving / moving.abs().sum(1, keepdim=True).clamp_min(1.0)).view_as(grad)
