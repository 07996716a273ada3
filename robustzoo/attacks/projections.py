"""Balls, boxes, starts and steepest steps: the geometry of a threat model, shared by every attack.

Points are images `x: (B, ...) in [0, 1]` of any per-sample shape; epsilon is in the same pixel units. Every
function treats each sample alone. Norms: `"linf"`, `"l2"` and `"l1"`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robustzoo.attacks.l1_ball import nearest_in_l1_ball, sparse_step

NORMS = ("linf", "l2", "l1")
# A float32 point at L2 distance eps is, rounded, up to 2e-6 eps beyond it (224 x 224) and would not count.
_SAFE_SHARE = 1.0 - 4e-6


class NormError(ValueError):
    """A norm for which the attacks have no geometry."""

    def __init__(self, norm: object) -> None:
        super().__init__(f"no attack geometry for norm {norm!r}; expected one of {', '.join(NORMS)}")


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """View `values: (B,)` as (B, 1, ..., 1), so that it broadcasts against `like: (B, ...)`."""
    return values.reshape(-1, *(1,) * (like.dim() - 1))


def perturbation_norm(delta: Tensor, norm: str) -> Tensor:
    """Norm of every sample of `delta: (B, ...)`, as (B,) in the dtype of `delta`.

    Raises:
        NormError: not one of NORMS.
    """
    if norm == "linf":
        return delta.flatten(1).abs().amax(1)  # several times faster than vector_norm
    if norm == "l2":
        return torch.linalg.vector_norm(delta.flatten(1), dim=1)
    if norm == "l1":
        return torch.linalg.vector_norm(delta.flatten(1), ord=1, dim=1)
    raise NormError(norm)


def dual_norm(grad: Tensor, norm: str) -> Tensor:
    """The largest slope of `grad: (B, ...)` along a move of length 1 in `norm`, (B,).

    Raises:
        NormError: not one of NORMS.
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
        NormError: not one of NORMS.
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
    raise NormError(norm)


def random_start(x: Tensor, norm: str, eps: float, noise: Tensor, radius: Tensor | None = None) -> Tensor:
    """A point drawn uniformly from the epsilon-ball around `x: (B, ...) in [0, 1]`, clamped to the box.

    Args:
        noise: (B, ...) like x. Linf and L1: uniform in [0, 1). L2: standard normal. Of L2's and L1's (made
            Laplace) the direction is used.
        radius: (B,) uniform in [0, 1), for L2 and L1: |delta| = eps * radius**(1/d) is uniform in the d-ball.

    Raises:
        NormError: not one of NORMS.
        ValueError: L2 or L1 without a radius.
    """
    if norm == "linf":
        return project(x + eps * (2.0 * noise - 1.0), x, norm, eps)
    if norm not in NORMS:
        raise NormError(norm)
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
        NormError: not one of NORMS.
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
    raise NormError(norm)


def in_ball(x_adv: Tensor, x: Tensor, norm: str, eps: float, tol: float = 1e-6) -> Tensor:
    """Whether each point of `x_adv: (B, ...)` is in [0, 1] and within eps + tol of `x: (B, ...)`: bool (B,).

    The distance is computed in float64; the box has no tolerance; a NaN is outside.

    Raises:
        NormError: not one of NORMS.
    """
    distance = perturbation_norm(x_adv.double() - x.double(), norm)
    in_box = ((x_adv >= 0.0) & (x_adv <= 1.0)).flatten(1).all(dim=1)
    return (distance <= eps + tol) & in_box
