"""Balls, boxes, starts, steepest steps and hyperplanes: the geometry of a threat model, for every attack.

Points are images `x: (B, ...) in [0, 1]` of any per-sample shape; epsilon is in the same pixel units. Every
function treats each sample alone. Norms: `"linf"`, `"l2"` and `"l1"`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robustzoo.errors import RobustzooError

NORMS = ("linf", "l2", "l1")
# A float32 point at L2 distance eps is, rounded, up to 2e-6 eps beyond it (224 x 224) and would not count.
_SAFE_SHARE = 1.0 - 4e-6


def _no_geometry(norm: object) -> RobustzooError:
    return RobustzooError(f"no attack geometry for norm {norm!r}; expected one of {', '.join(NORMS)}")


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """View `values: (B,)` as (B, 1, ..., 1), so that it broadcasts against `like: (B, ...)`."""
    return values.reshape(-1, *(1,) * (like.dim() - 1))


def perturbation_norm(delta: Tensor, norm: str) -> Tensor:
    """Norm of every sample of `delta: (B, ...)`, as (B,) in the dtype of `delta`.

    Raises:
        RobustzooError: not one of NORMS.
    """
    if norm == "linf":
        return delta.flatten(1).abs().amax(1)  # several times faster than vector_norm
    if norm == "l2":
        return torch.linalg.vector_norm(delta.flatten(1), dim=1)
    if norm == "l1":
        return torch.linalg.vector_norm(delta.flatten(1), ord=1, dim=1)
    raise _no_geometry(norm)


def dual_norm(grad: Tensor, norm: str) -> Tensor:
    """The largest slope of `grad: (B, ...)` along a move of length 1 in `norm`, (B,).

    Raises:
        RobustzooError: not one of NORMS.
    """
    return perturbation_norm(grad, {"linf": "l1", "l1": "linf"}.get(norm, norm))


def safe_radius(norm: str, eps: float) -> float:
    """The radius to search within, so that float32 points count as inside the budget eps."""
    return eps * _SAFE_SHARE if norm == "l2" else eps


def project(x_adv: Tensor, x: Tensor, norm: str, eps: float | Tensor) -> Tensor:
    """Bring `x_adv: (B, ...)` into the epsilon-ball around `x: (B, ...) in [0, 1]` and into the box [0, 1].

    Linf and L1: the nearest point of ball and box. L2: scaled back to the ball, then clamped to the box,
    which keeps it in the ball since x itself is in the box (AutoAttack's order; not in general the nearest).
    eps: a number; L1 also takes one for each sample, (B,).

    Raises:
        RobustzooError: not one of NORMS.
    """
    if norm == "linf":
        return torch.minimum(torch.maximum(x_adv, x - eps), x + eps).clamp(0.0, 1.0)
    if norm == "l2":
        delta = x_adv - x
        length = perturbation_norm(delta, norm)
        # Tensor over tensor is a true division (number / tensor is a reciprocal and a product), so the factor
        # is exactly 1 inside the ball, 0 included.
        factor = torch.full_like(length, eps) / length.clamp_min(eps)
        return (x + delta * per_sample(factor, delta)).clamp(0.0, 1.0)
    if norm == "l1":
        return nearest_in_l1_ball(x_adv, x, eps)
    raise _no_geometry(norm)


def random_start(x: Tensor, norm: str, eps: float, noise: Tensor, radius: Tensor | None = None) -> Tensor:
    """A point drawn uniformly from the epsilon-ball around `x: (B, ...) in [0, 1]`, clamped to the box.

    Args:
        noise: (B, ...) like x. Linf and L1: uniform in [0, 1). L2: standard normal. Of L2's and L1's (made
            Laplace) the direction is used.
        radius: (B,) uniform in [0, 1), for L2 and L1: |delta| = eps * radius**(1/d) is uniform in the d-ball.

    Raises:
        RobustzooError: not one of NORMS.
        ValueError: L2 or L1 without a radius.
    """
    if norm == "linf":
        return project(x + eps * (2.0 * noise - 1.0), x, norm, eps)
    if norm not in NORMS:
        raise _no_geometry(norm)
    if radius is None:
        raise ValueError(f"an {norm} start needs `radius: (B,)` uniform in [0, 1) beside the noise")
    length = eps * radius.to(x.dtype) ** (1.0 / x[0].numel())
    if norm == "l2":
        direction = steepest_step(noise, norm)
    else:
        # Laplace by its inverse; half a step of the noise away from the infinite ends.
        centred = (2.0 * noise - 1.0).clamp(-1.0 + 2.0**-24, 1.0 - 2.0**-24)
        laplace = -torch.sign(centred) * torch.log1p(-centred.abs())
        direction = laplace / per_sample(perturbation_norm(laplace, norm).clamp_min(2.0**-24), x)
    return project(x + direction * per_sample(length, x), x, norm, eps)


def steepest_step(grad: Tensor, norm: str) -> Tensor:
    """The unit step of steepest ascent for `grad: (B, ...)`: its sign (Linf), its direction (L2), or
    the sign of its largest entry (L1; of all of them where several tie, in equal parts).

    A zero gradient gives a zero step. L2 divides by the largest entry first, so that tiny and huge gradients
    neither vanish nor overflow when squared in float32.

    Raises:
        RobustzooError: not one of NORMS.
    """
    if norm == "linf":
        return grad.sign()
    if norm == "l2":
        tiny = torch.finfo(grad.dtype).tiny
        scaled = grad / per_sample(perturbation_norm(grad, "linf").clamp_min(tiny), grad)
        # The largest scaled entry is 1, so the norm is at least 1; the clamp is for zero and subnormal input.
        return scaled / per_sample(perturbation_norm(scaled, norm).clamp_min(0.5), grad)
    if norm == "l1":
        return sparse_step(grad, torch.zeros(len(grad), device=grad.device))
    raise _no_geometry(norm)


def in_ball(x_adv: Tensor, x: Tensor, norm: str, eps: float, tol: float = 1e-6) -> Tensor:
    """Whether each point of `x_adv: (B, ...)` is in [0, 1] and within eps + tol of `x: (B, ...)`: bool (B,).

    The distance is computed in float64; the box has no tolerance; a NaN is outside.

    Raises:
        RobustzooError: not one of NORMS.
    """
    distance = perturbation_norm(x_adv.double() - x.double(), norm)
    in_box = ((x_adv >= 0.0) & (x_adv <= 1.0)).flatten(1).all(dim=1)
    return (distance <= eps + tol) & in_box


# ---- The L1 ball and the box -------------------------------------------------------------------------------
# The L1 ball meets the box [0, 1]^d: the nearest point of both, and the sparse steps that suit them.
#
# The nearest point moves every pixel of a perturbation `delta` down by one common level and stops at the
# box: pixel i keeps min(max(|delta_i| - level, 0), room_i), with room_i its distance to the box in the
# direction of delta_i (the Lagrangian of the constraint; Croce & Hein 2021, "Mind the box", proposition
# 2.1). What all pixels keep together is piecewise linear and falls with the level; its kinks are |delta_i|,
# below which pixel i counts, and |delta_i| - room_i, below which it counts no further. Sorting them gives
# the piece on which it is epsilon.


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
    level = _level_to_fit(size, room, radius)
    kept = torch.minimum((size - level).clamp_min(0.0), room)
    moved = (start + torch.sign(delta) * kept).to(x_adv.dtype)
    # Rounded towards x: the roundings of many equal steps would add up and leave the ball.
    inward = torch.nextafter(moved, x.flatten(1))
    moved = torch.where((moved.double() - start).abs() > kept, inward, moved)
    return torch.where(level > 0, moved, x_adv.flatten(1)).clamp(0.0, 1.0).view_as(x)


def _level_to_fit(size: Tensor, room: Tensor, radius: Tensor) -> Tensor:
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


# ---- A hyperplane inside the box ---------------------------------------------------------------------------
# The nearest point of a hyperplane inside the box [0, 1]^d, exactly, in Linf, L2 and L1; what FAB steps
# along.
#
# Find the smallest move d with w . (t + d) = b and t + d in the box. Only the direction g = sign(r) sign(w)
# closes the gap r = b - w . t, coordinate i has room c_i in it, and at level v it moves by min(v, c_i)
# (Linf) or by min(v |w_i|, c_i) (L2: the Lagrangian). Both close the part gain(v) = sum_i a_i min(v, k_i) of
# |r|, with a = |w|, k = c (Linf) or a = w^2, k = c / |w| (L2): a concave, piecewise linear function whose
# kinks are the k_i. Newton's method from below finds the piece that holds |r|, and the level on it. Where
# even the corner falls short, it is the corner. In L1 a coordinate closes |w_i| for each unit of length, so
# that the steepest move first, each as far as its room goes; bisection finds the slope down to which they do.


def toward_hyperplane(t: Tensor, w: Tensor, gap: Tensor, norm: str) -> Tensor:
    """The smallest move d: (B, D), in `norm`, with w . d = gap and t + d in [0, 1]; or to the corner, see
    above.

    Args:
        t: (B, D) in [0, 1]. w: (B, D). gap: (B,), that is b - w . t.

    Coordinates with w_i = 0 never move (in L2 also those whose w_i^2 vanishes beside the largest).

    Raises:
        RobustzooError: not one of linf, l2, l1.
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
        raise _no_geometry(norm)
    level = _level_to_close(weight, kinks, need)
    return direction * torch.where(weight > 0, torch.minimum(level * rate, room), 0.0)


# Newton steps between two looks at whether the last one moved: a look waits for the device. 4 to 7 suffice.
_STEPS = 4


def _level_to_close(weight: Tensor, kinks: Tensor, need: Tensor) -> Tensor:
    """The smallest v with sum_i weight_i min(v, kinks_i) >= need, as (B, 1); infinity where there is none.

    A tangent of a concave function lies above it, so Newton's steps from 0 never go too far. They end when
    one stays on its piece: after at most as many as there are kinks, in practice few.
    """
    gains, level = weight * kinks, torch.zeros_like(need)
    while True:
        for _ in range(_STEPS):
            before, moving = level, kinks > level
            slope = torch.where(moving, weight, 0.0).sum(1, keepdim=True)
            left = need - torch.where(moving, 0.0, gains).sum(1, keepdim=True)
            beyond = torch.where(left > 0, torch.inf, 0.0).to(left)
            step = torch.where(slope > 0, left / slope.clamp_min(torch.finfo(slope.dtype).tiny), beyond)
            level = torch.maximum(level, step)
        if not (level > before).any():  # also where there are NaN
            return level


def _steepest_first(slope: Tensor, room: Tensor, need: Tensor) -> Tensor:
    """How far each coordinate moves, (B, D), where those of the largest slope (at most 1) close
    `need: (B, 1)` first; of equal ones the first."""
    gain = slope * room
    # Bit patterns of numbers that are not negative are in their order: `least` is the smallest slope that
    # moves, the largest number such that all slopes from it on close the need, or 0.
    bits = torch.int32 if slope.dtype == torch.float32 else torch.int64
    patterns = slope.contiguous().view(bits)
    least = torch.zeros_like(need, dtype=bits)
    beyond = torch.ones_like(need).view(bits) + 1
    for _ in range(torch.finfo(slope.dtype).bits - 2):  # the length of the pattern of 1
        middle = least + (beyond - least) // 2
        enough = torch.where(patterns >= middle, gain, 0.0).sum(1, keepdim=True) >= need
        least, beyond = torch.where(enough, middle, least), torch.where(enough, beyond, middle)
    last = patterns == least
    left = need - torch.where(patterns > least, gain, 0.0).sum(1, keepdim=True)
    tied = torch.where(last, gain, 0.0)
    left = (left - (tied.cumsum(1) - tied)).clamp_min(0.0)
    smallest = torch.finfo(slope.dtype).tiny
    moved = torch.where(last, torch.minimum(left / slope.clamp_min(smallest), room), room)
    return torch.where((slope > 0) & (patterns >= least), moved, 0.0)
