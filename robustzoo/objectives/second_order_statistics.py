"""S2O (Jin et al. 2022): soft targets from the second-order statistics of a batch's logits.

The steps are those of its authors' release. The statistics are those of the rows given, one micro-batch of
one rank: with S2O the number of ranks and of accumulated micro-batches changes the result.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from robustzoo.attacks.pgd import at_least_float32
from robustzoo.objectives.losses import log_softmax


@torch.no_grad()
def soft_targets(logits: Tensor, diagonal: float) -> Tensor:
    """One target distribution per class, (K, K), rows sum to 1, no gradient; float32 at least.

    With M = Z^T Z of the logits Z and A = -|M|: every row less its minimum, 0 on the diagonal, scaled to the
    sum 1 - c, and c on the diagonal. Classes whose logits are less related to the row's get more. A row
    without any difference is spread evenly over the other classes.

    Args:
        logits: (B, K), K >= 2.
        diagonal: c, in (0, 1).
    """
    z = at_least_float32(logits)
    classes = z.shape[-1]
    a = -(z.T @ z).abs()
    a = (a - a.amin(dim=1, keepdim=True)).fill_diagonal_(0)
    total = a.sum(dim=1, keepdim=True)
    even = torch.full_like(a, 1 / (classes - 1)).fill_diagonal_(0)
    rows = torch.where(total > 0, a / total.where(total > 0, 1), even)
    return ((1 - diagonal) * rows).fill_diagonal_(diagonal)


def second_order_loss(g: Tensor, ga: Tensor, y: Tensor, diagonal: float) -> Tensor:
    """Half of KL(T[y] || softmax), summed over clean and adversarial logits, each with its own T: (B,).

    Args:
        g, ga: logits of the clean and the adversarial images, (B, K).
        y: int64 (B,), or soft (B, K), which mixes the rows of T.
        diagonal: c of `soft_targets`.
    """
    return 0.5 * (_to_targets(g, y, diagonal) + _to_targets(ga, y, diagonal))


def _to_targets(logits: Tensor, y: Tensor, diagonal: float) -> Tensor:
    table = soft_targets(logits, diagonal)
    targets = y.to(table.dtype) @ table if y.is_floating_point() else table[y]
    return functional.kl_div(log_softmax(logits), targets, reduction="none").sum(-1)
