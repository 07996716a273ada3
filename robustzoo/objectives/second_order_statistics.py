"""S2O (Jin et al. 2022, "Enhancing Adversarial Training with Second-Order Statistics of Weights").

In its authors' released form: soft targets from the second moments of a batch's logits. The moments are those
of the logits at hand, one micro-batch on one rank, for clean and adversarial logits apart: with S2O,
accumulation and more ranks change the result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robustzoo.objectives.losses import log_softmax


@torch.no_grad()
def soft_targets(logits: Tensor, diagonal: float) -> Tensor:
    """A row-stochastic matrix (K, K): row k is the soft target of class k. No gradient.

    With M = Z^T Z of the logits Z (B, K) and A = -|M|: from each row of A its minimum is subtracted, the
    diagonal is set to 0, the row is scaled to the sum 1 - c, and the diagonal is set to c = `diagonal`. Where
    all others of a row are equal to its minimum, they share 1 - c equally.
    """
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    with torch.autocast(z.device.type, enabled=False):  # it would lower the product to half precision
        unlikeness = -(z.T @ z).abs()
    rest = (unlikeness - unlikeness.amin(1, keepdim=True)).fill_diagonal_(0.0)
    total = rest.sum(1, keepdim=True)
    equal = (1.0 - torch.eye(len(rest), dtype=rest.dtype, device=rest.device)) / max(len(rest) - 1, 1)
    tiny = torch.finfo(rest.dtype).tiny
    shares = torch.where(total >= tiny, rest / total.clamp_min(tiny), equal)
    return (shares * (1.0 - diagonal)).fill_diagonal_(diagonal)


def s2o_loss(g: Tensor, ga: Tensor, y: Tensor, diagonal: float) -> Tensor:
    """1/2 KL(T[y] || softmax z), summed over clean and adversarial logits with their own T, (B,).

    y: int64 (B,), or soft labels (B, K), which mix the rows of T. Gradients flow through the softmaxes only.
    """
    return 0.5 * (_half(g, y, diagonal) + _half(ga, y, diagonal))


def _half(logits: Tensor, y: Tensor, diagonal: float) -> Tensor:
    matrix = soft_targets(logits, diagonal)
    with torch.autocast(logits.device.type, enabled=False):
        target = y.to(matrix.dtype) @ matrix if y.is_floating_point() else matrix[y]
    return (torch.special.xlogy(target, target) - target * log_softmax(logits)).sum(-1)
