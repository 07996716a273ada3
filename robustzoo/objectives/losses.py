"""Robust losses per sample, in float32 at least, whatever the network runs in.

Notation: logits `g: (B, K)` of the clean and `ga: (B, K)` of the adversarial image, labels `y: (B,)` int64.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def log_softmax(logits: Tensor) -> Tensor:
    """Log of the softmax over the last dimension, (B, K), in float32 at least (float64 stays)."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log s_y, (B,)."""
    return functional.nll_loss(log_softmax(logits), y, reduction="none")


def kl_divergence(log_s: Tensor, log_sa: Tensor) -> Tensor:
    """KL(s || s') = sum_k s_k (log s_k - log s'_k), (B,), of two log-softmax outputs (B, K).

    Its batch mean is `batchmean`, the reduction of TRADES. Gradients flow through both arguments: detach
    `log_s` to treat the clean softmax as a constant.
    """
    return (log_s.exp() * (log_s - log_sa)).sum(-1)
