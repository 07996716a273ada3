"""Projected gradient ascent (Madry et al. 2018): training's inner maximisation and the protocol pgd-K."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from robustzoo import keyed_noise
from robustzoo.attacks.geometry import per_sample, project, random_start, sparse_step, steepest_step
from robustzoo.attacks.lanes import Search, select
from robustzoo.registry.threat_model import ThreatModel


def pgd(
    model: nn.Module,
    x: Tensor,
    loss: Callable[[Tensor], Tensor],
    *,
    threat_model: ThreatModel,
    steps: int,
    step_size: float | Tensor,
    x_start: Tensor,
) -> Tensor:
    """The last iterate of `steps` steepest-ascent steps on `loss`, each projected to the ball and [0, 1].

    Points, steps and epsilon are float32 whatever the network runs in (bfloat16 spacing near 1 is a whole
    pixel level); float64 images stay float64. Only the image is differentiated, so no weight gets a gradient;
    wrap the call in `frozen(model)` to save their cost too. The loss is summed over the batch, so that a
    sample's step does not depend on its batch.

    Args:
        model: pixels (B, ...) to logits (B, K).
        x: (B, ...) in [0, 1], the clean images.
        loss: logits (B, K) to the quantity to maximise, (B,).
        steps: number of steps; 0 gives the start itself.
        step_size: length of a step in pixel units (Linf: per pixel; L2: Euclidean), a number or (B,).
        x_start: (B, ...), projected before use.

    Returns:
        x_adv: (B, ...) detached, in the ball and in [0, 1].

    Raises:
        ValueError: negative `steps`, or a loss that is not one number per sample.
        RobustzooError: a norm that has no attack geometry.
    """
    if steps < 0:
        raise ValueError(f"steps must be at least 0, got {steps}")
    norm, eps = threat_model.norm, threat_model.eps
    x = at_least_float32(x.detach())
    x_adv = project(at_least_float32(x_start.detach()), x, norm, eps)
    if isinstance(step_size, Tensor):
        step_size = per_sample(step_size.to(x), x)
    for _ in range(steps):
        x_adv.requires_grad_(True)
        with torch.enable_grad():
            values = loss(model(x_adv))
            if values.shape != x.shape[:1]:
                raise ValueError(
                    f"loss must return one value per sample, ({len(x)},), got {tuple(values.shape)}"
                )
            (grad,) = torch.autograd.grad(values.sum(), x_adv)
        x_adv = project(x_adv.detach() + step_size * steepest_step(grad, norm), x, norm, eps)
    return x_adv


def uniform_start(
    x: Tensor, threat_model: ThreatModel, *, seed: int, ids: Tensor, purpose: str, index: int | Tensor = 0
) -> Tensor:
    """A point drawn uniformly from the ball around `x: (B, ...) in [0, 1]`, clamped to the box.

    The draw depends on (seed, sample id, purpose, index) alone: see `robustzoo.keyed_noise`. ids: (B,).
    """
    x = at_least_float32(x)
    norm, shape = threat_model.norm, tuple(x.shape[1:])
    draw = keyed_noise.normal if norm == "l2" else keyed_noise.uniform
    noise, radius = draw(seed, ids, purpose, shape, index=index, device=x.device), None
    if norm != "linf":
        radius = keyed_noise.uniform(seed, ids, f"{purpose}/radius", (), index=index, device=x.device)
    return random_start(x, norm, threat_model.eps, noise.to(x.dtype), radius)


def at_least_float32(values: Tensor) -> Tensor:
    """Half precision is widened to float32; float32 and float64 stay as they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


class PGD(Search):
    """Evaluates the start (uniform in the ball) and the point after every step of step_ratio * eps /
    iterations."""

    def begin(self, starting: Tensor) -> None:
        shape = tuple(self.points.shape[1:])
        noise = self.draw(starting, keyed_noise.normal if self.norm == "l2" else keyed_noise.uniform, shape)
        radius = None
        if self.norm != "linf":
            radius = self.draw(starting, keyed_noise.uniform, (), part="/radius")
        start = random_start(self.lanes.x, self.norm, self.eps, noise, radius)
        self.points = select(starting, start, self.points)
        self.iteration = self.iteration.masked_fill(starting, 0)

    def advance(self, logits: Tensor, loss: Tensor | None, grad: Tensor | None) -> Tensor:
        exhausted = self.iteration >= self.attack.iterations
        if grad is not None:
            step = self.attack.constants["step_ratio"] * self.eps / self.attack.iterations
            ascended = self.points + step * self._direction(grad)
            self.points = project(ascended, self.lanes.x, self.norm, self.eps)
        self.iteration = (self.iteration + 1).clamp_max(self.attack.iterations)
        return exhausted

    def _direction(self, grad: Tensor) -> Tensor:
        """The steepest step; in L1 a sparse one, since the steepest would move one pixel an iteration.

        L1 follows Tramer & Boneh 2019 (section 3.3): a share of the largest entries, leaving out pixels that
        the box holds already.
        """
        if self.norm != "l1":
            return steepest_step(grad, self.norm)
        held = ((self.points <= 0.0) & (grad < 0)) | ((self.points >= 1.0) & (grad > 0))
        share = torch.full_like(self.lanes.x[:, 0, 0, 0], self.attack.constants["moving_share"])
        return sparse_step(grad.masked_fill(held, 0.0), share)
