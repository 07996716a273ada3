"""The nearest point of a hyperplane inside the box [0, 1]^d, exactly, in Linf, L2 and L1; what FAB steps
along.

Find the smallest move d with w . (t + d) = b and t + d in the box. Only the direction g = sign(r) sign(w)
closes the gap r = b - w . t, coordinate i has room c_i in it, and at level v it moves by min(v, c_i) (Linf)
or by min(v |w_i|, c_i) (L2: the Lagrangian). Both close the part gain(v) = sum_i a_i min(v, k_i) of |r|, with
a = |w|, k = c (Linf) or a = w^2, k = c / |w| (L2): a concave, piecewise linear function whose kinks are the
k_i. Sorting them gives the piece that holds |r|, and the level on it. Where even the corner falls short, it
is the corner. In L1 a coordinate closes |w_i| for each unit of length, so that the steepest move first, each
as far as its room goes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robustzoo.attacks.projections import NormError


def toward_hyperplane(t: Tensor, w: Tensor, gap: Tensor, norm: str) -> Tensor:
    """The smallest move d: (B, D), in `norm`, with w . d = gap and t + d in [0, 1]; or to the corner, see
    above.

    Args:
        t: (B, D) in [0, 1]. w: (B, D). gap: (B,), that is b - w . t.

    Coordinates with w_i = 0 never move (in L2 also those whose w_i^2 vanishes beside the largest).

    Raises:
        NormError: not one of linf, l2, l1.
    """
    # Scaled by the largest |w_i|: squares neither vanish nor overflow in float32.
    scale = w.abs().amax(1, keepdim=True).clamp_min(torch.finfo(w.dtype).tiny)
    slope = w.abs() / scale
    need = gap.abs().unsqueeze(1) / scale
    direction = torch.sign(w) * torch.sign(gap).unsqueeze(1)
    room = torch.where(direction > 0, 1.0 - t, t)
    if norm == "linf":
        weight, kinks, rate = slope, room, torch.ones_like(slope)
    elif norm == "l2":
        weight, rate = slope.square(), slope
        kinks = torch.where(weight > 0, room / slope.masked_fill(weight == 0, 1.0), 0.0)
    elif norm == "l1":
        return direction * _steepest_first(slope, room, need)
    else:
        raise NormError(norm)
    level = _level(weight, kinks, need)
    return direction * torch.where(weight > 0, torch.minimum(level * rate, room), 0.0)


def _steepest_first(slope: Tensor, room: Tensor, need: Tensor) -> Tensor:
    """How far each coordinate moves, (B, D), where those of the largest slope close `need: (B, 1)` first."""
    slope, order = slope.sort(dim=1, descending=True, stable=True)
    room = room.gather(1, order)
    gain = slope * room
    left = (need - (gain.cumsum(1) - gain)).clamp_min(0.0)
    smallest = torch.finfo(slope.dtype).tiny
    moved = torch.where(slope > 0, torch.minimum(left / slope.clamp_min(smallest), room), 0.0)
    return torch.zeros_like(moved).scatter(1, order, moved)


def _level(weight: Tensor, kinks: Tensor, need: Tensor) -> Tensor:
    """The smallest v with sum_i weight_i min(v, kinks_i) >= need, as (B, 1); infinity where there is none."""
    kinks, order = kinks.sort(dim=1)
    weight = weight.gather(1, order)
    passed = (weight * kinks).cumsum(1)
    # Weight still moving at and after each kink, summed from the far end: no cancellation where it matters.
    moving = weight.flip(1).cumsum(1).flip(1)
    before = torch.cat((torch.zeros_like(passed[:, :1]), passed[:, :-1]), 1)
    gain = before + kinks * moving
    piece = (gain < need).sum(1, keepdim=True)
    inside = piece.clamp_max(kinks.shape[1] - 1)
    left = need - before.gather(1, inside)
    level = left / moving.gather(1, inside).clamp_min(torch.finfo(weight.dtype).tiny)
    return torch.where(piece < kinks.shape[1], level.clamp_min(0.0), torch.inf)
