"""Balls, boxes, starts and steepest steps: the geometry of a threat model, shared by every attack.

Points are images `x: (B, ...) in [0, 1]` of any per-sample shape; epsilon is in the same pixel units. Every
function treats each sample alone. Norms: `"linf"` and `"l2"`.
"""

from __future__ import annotations

import torch
from torch import Tensor

NORMS = ("linf", "l2")


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
        NormError: the norm is neither linf nor l2.
    """
    if norm == "linf":
        return torch.linalg.vector_norm(delta.flatten(1), ord=float("inf"), dim=1)
    if norm == "l2":
        return torch.linalg.vector_norm(delta.flatten(1), dim=1)
    raise NormError(norm)


def project(x_adv: Tensor, x: Tensor, norm: str, eps: float) -> Tensor:
    """Bring `x_adv: (B, ...)` into the epsilon-ball around `x: (B, ...) in [0, 1]` and into the box [0, 1].

    Linf: the nearest point of ball and box. L2: scaled back to the ball, then clamped to the box, which keeps
    it in the ball since x itself is in the box (AutoAttack's order; not in general the nearest point).

    Raises:
        NormError: the norm is neither linf nor l2.
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
    raise NormError(norm)


def random_start(x: Tensor, norm: str, eps: float, noise: Tensor, radius: Tensor | None = None) -> Tensor:
    """A point drawn uniformly from the epsilon-ball around `x: (B, ...) in [0, 1]`, clamped to the box.

    Args:
        noise: (B, ...) like x. Linf: uniform in [0, 1). L2: standard normal, of which the direction is used.
        radius: (B,) uniform in [0, 1), for L2 alone: |delta| = eps * radius**(1/d) is uniform in the d-ball.

    Raises:
        NormError: the norm is neither linf nor l2.
        ValueError: L2 without a radius.
    """
    if norm == "linf":
        return project(x + eps * (2.0 * noise - 1.0), x, norm, eps)
    if norm == "l2":
        if radius is None:
            raise ValueError("an L2 start needs `radius: (B,)` uniform in [0, 1) beside the normal noise")
        length = eps * radius.to(x.dtype) ** (1.0 / x[0].numel())
        return project(x + steepest_step(noise, norm) * per_sample(length, x), x, norm, eps)
    raise NormError(norm)


def steepest_step(grad: Tensor, norm: str) -> Tensor:
    """The unit step of steepest ascent for `grad: (B, ...)`: its sign (Linf) or its direction (L2).

    A zero gradient gives a zero step. L2 divides by the largest entry first, so that tiny and huge gradients
    neither vanish nor overflow when squared in float32.

    Raises:
        NormError: the norm is neither linf nor l2.
    """
    if norm == "linf":
        return grad.sign()
    if norm == "l2":
        tiny = torch.finfo(grad.dtype).tiny
        scaled = grad / per_sample(perturbation_norm(grad, "linf").clamp_min(tiny), grad)
        # The largest scaled entry is 1, so the norm is at least 1; the clamp is for zero and subnormal input.
        return scaled / per_sample(perturbation_norm(scaled, norm).clamp_min(0.5), grad)
    raise NormError(norm)


def in_ball(x_adv: Tensor, x: Tensor, norm: str, eps: float, tol: float = 1e-6) -> Tensor:
    """Whether each point of `x_adv: (B, ...)` is in [0, 1] and within eps + tol of `x: (B, ...)`: bool (B,).

    The distance is computed in float64; the box has no tolerance; a NaN is outside.

    Raises:
        NormError: the norm is neither linf nor l2.
    """
    distance = perturbation_norm(x_adv.double() - x.double(), norm)
    in_box = ((x_adv >= 0.0) & (x_adv <= 1.0)).flatten(1).all(dim=1)
    return (distance <= eps + tol) & in_box
