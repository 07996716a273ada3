"""LIET, single-step training against catastrophic overfitting (Pan et al., ICCV 2025), from its release.

A network that overfits to one step reads the label from the perturbation. What it would read is seen on an
image that shows nothing: the sign of the gradient at a grey image, per class. The attack starts from that,
added or taken away, with a part of the pixels replaced by noise, so that the label is no longer to be read
there; and the predictions at the start and the end of the attack are held together by the mean divergence of
both from their mean. With `attack_steps` 1 and `attack_step_ratio` 1 that is their method, beside averaged
weights (`swa_decay`) and uneven label smoothing (`label_smoothing` with `random_smoothing`).

Ours: the grey images are asked in every attack (the release asks them in every twentieth step), in eval mode,
and sign and share of noise are drawn for each image, not for a batch: so the start depends on weights, image,
seed and epoch alone, and a resumed run is the same run.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from robustzoo import keyed_noise
from robustzoo.objectives.extension import Defence, Seen
from robustzoo.objectives.losses import cross_entropy, kl_divergence, log_softmax
from robustzoo.registry.threat_model import ThreatModel

GREY = 0.5
MASKED = (0.1, 0.5)  # least and largest share of the pixels that noise replaces; source: the release at 8/255
PURPOSE = "label-start"


def label_start(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    classes: int,
    threat_model: ThreatModel,
    *,
    noise: dict[str, object],
) -> Tensor:
    """Where the attack starts, (B, C, H, W) in the Linf ball of x and in [0, 1].

    Args:
        model: pixels to logits, in eval mode with frozen weights.
        y: int64 (B,), or soft labels (B, K), of which the largest counts.
        classes: K.
        noise: keywords of `keyed_noise.uniform`: seed, ids and index.
    """
    y = y.argmax(-1) if y.is_floating_point() else y
    eps, shape = threat_model.eps, tuple(x.shape[1:])
    signs = eps * grey_gradient(model, x, y, classes).sign()
    draws = [
        keyed_noise.uniform(purpose=f"{PURPOSE}-{k}", shape=of, device=x.device, **noise).to(x.dtype)
        for k, of in (("mask", shape), ("noise", shape), ("image", (2,)))
    ]
    mask, other, (share, side) = draws[0], eps * (2 * draws[1] - 1), draws[2].unbind(-1)
    share = MASKED[0] + (MASKED[1] - MASKED[0]) * share
    delta = torch.where(mask < share.view(-1, 1, 1, 1), other, signs)
    return (x + torch.where(side < 0.5, -1.0, 1.0).view(-1, 1, 1, 1) * delta).clamp(0, 1)


def grey_gradient(model: nn.Module, x: Tensor, y: Tensor, classes: int) -> Tensor:
    """Gradient of the cross-entropy of class y at a grey image, for every y, of x's shape.

    One grey image a class, or one a sample where that is fewer: the number does not depend on the labels.
    """
    asked = torch.arange(classes, device=y.device) if classes <= len(y) else y
    grey = torch.full((len(asked), *x.shape[1:]), GREY, dtype=x.dtype, device=x.device, requires_grad=True)
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(cross_entropy(model(grey), asked).sum(), grey)
    return gradient[y] if classes <= len(y) else gradient


def consistency(weight: float, total_steps: int) -> Defence:
    """weight (t + 1) / total_steps times the batch mean of (KL(p || m) + KL(q || m)) / 2, with p and q the
    predictions at start and end of the attack and m their mean: the Jensen-Shannon divergence."""

    def terms(seen: Seen) -> dict[str, Tensor]:
        log_p, log_q = log_softmax(seen.clean_logits), log_softmax(seen.logits)
        log_m = torch.logaddexp(log_p, log_q) - math.log(2.0)
        divergence = (0.5 * (kl_divergence(log_p, log_m) + kl_divergence(log_q, log_m))).mean()
        return {"consistency": weight * (seen.step + 1) / total_steps * divergence}

    return Defence(terms, needs_clean=True)
