"""Robust losses per sample, in float32 at least, whatever the network runs in.

Notation: logits `g: (B, K)` of the clean and `ga: (B, K)` of the adversarial image; labels `y`, int64 (B,)
or soft: floating point (B, K) with rows that sum to 1 (CutMix).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def log_softmax(logits: Tensor) -> Tensor:
    """Log of the softmax over the last dimension, (B, K), in float32 at least (float64 stays)."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-sum_k y_k log s_k, (B,): -log s_y for a hard label."""
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
    """|s - s'|^2, (B,), ALP's pairing of two log-softmax outputs (B, K)."""
    return (log_s.exp() - log_sa.exp()).square().sum(-1)


def margin(ga: Tensor, y: Tensor) -> Tensor:
    """-log(1 - max_{k != y} s'_k), (B,), for hard labels: MART's boost of the cross-entropy.

    1 - s'_kappa is the sum of the other classes, taken in the log domain: exact, and finite, where s'_kappa
    rounds to 1.
    """
    log_sa = log_softmax(ga)
    kappa = without(log_sa, y.unsqueeze(-1)).argmax(-1, keepdim=True)
    return -without(log_sa, kappa).logsumexp(-1)


def unlikeliness(log_s: Tensor, y: Tensor) -> Tensor:
    """1 - s_y, (B,), for hard labels, as the sum of the others: no cancellation where s_y rounds to 1."""
    return without(log_s, y.unsqueeze(-1)).logsumexp(-1).exp()


def without(log_s: Tensor, classes: Tensor) -> Tensor:
    """`log_s: (B, K)` with -inf at `classes: (B, 1)`."""
    return log_s.scatter(-1, classes, float("-inf"))
