"""Robust losses per sample, in float32 at least, whatever the network runs in.

Notation: logits `g: (B, K)` of the clean and `ga: (B, K)` of the adversarial image; labels `y`, int64
(B,), or where the text says so also soft ones, float (B, K) with rows that sum to 1.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def log_softmax(logits: Tensor) -> Tensor:
    """Log of the softmax over the last dimension, (B, K), in float32 at least (float64 stays)."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log s_y, (B,); of soft labels -sum_k y_k log s_k."""
    log_s = log_softmax(logits)
    if y.is_floating_point():
        return -(y.to(log_s.dtype) * log_s).sum(-1)
    return functional.nll_loss(log_s, y, reduction="none")


def kl_divergence(log_s: Tensor, log_sa: Tensor) -> Tensor:
    """KL(s || s') = sum_k s_k (log s_k - log s'_k), (B,), of two log-softmax outputs (B, K).

    Its batch mean is `batchmean`, the reduction of TRADES. Gradients flow through both arguments: detach
    `log_s` to treat the clean softmax as a constant.
    """
    return (log_s.exp() * (log_s - log_sa)).sum(-1)


def squared_softmax_distance(log_s: Tensor, log_sa: Tensor) -> Tensor:
    """|s - s'|^2, (B,), of two log-softmax outputs (B, K): the pairing term of ALP as the paper has it."""
    return (log_s.exp() - log_sa.exp()).square().sum(-1)


def runner_up_margin(logits: Tensor, y: Tensor) -> Tensor:
    """-log(1 - max_{k != y} s_k), (B,): the margin term of MART's boosted cross-entropy (Wang et al. 2020).

    y: int64 (B,).
    """
    log_s = log_softmax(logits)
    others = log_s.scatter(-1, y.unsqueeze(-1), -torch.inf)
    return -log_rest(log_s, others.argmax(-1))


def log_rest(log_s: Tensor, classes: Tensor) -> Tensor:
    """log(1 - s_k), (B,), of a log-softmax output (B, K) and one class k a sample, int64 (B,).

    The log-sum-exp of the other classes: 1 - s_k itself would lose its digits where s_k is near 1.
    """
    return log_s.scatter(-1, classes.unsqueeze(-1), -torch.inf).logsumexp(-1)


def smoothed(y: Tensor, classes: int, share: float, *, random: bool = False) -> Tensor:
    """Labels int64 (B,) or soft (B, K) as soft ones, (1 - share) y + share / K, float (B, K).

    random: `share` goes to the classes of no label alone, in parts that torch's generator draws, as in LIET.
    """
    hot = y if y.is_floating_point() else functional.one_hot(y, classes).float()
    if not random:
        return (1.0 - share) * hot + share / classes
    others = torch.rand_like(hot) * (hot == 0)
    return (1.0 - share) * hot + share * others / others.sum(-1, keepdim=True).clamp_min(1e-12)
