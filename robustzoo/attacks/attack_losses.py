"""What the attacks climb: per-sample functions of the logits, all larger where the attack is closer to
success.

`logits: (B, K)`, `y` and `target: (B,)` class indices; every function returns (B,).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_TINY = 1e-12


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """z_y - max_{i != y} z_i: positive where y is predicted, negative where the sample is fooled."""
    own = logits.gather(1, y.unsqueeze(1)).squeeze(1)
    return own - logits.scatter(1, y.unsqueeze(1), -torch.inf).amax(1)


def targeted_margin(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """z_t - z_y."""
    pair = logits.gather(1, torch.stack((y, target), 1))
    return pair[:, 1] - pair[:, 0]


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """-(z_y - max_{i != y} z_i) / (z_(1) - z_(3)); needs K >= 3 (Croce & Hein 2020, equation 6)."""
    top = logits.topk(3, dim=1).values
    own = logits.gather(1, y.unsqueeze(1)).squeeze(1)
    other = torch.where(logits.argmax(1) == y, top[:, 1], top[:, 0])
    return -(own - other) / (top[:, 0] - top[:, 2] + _TINY)


def targeted_dlr(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """(z_t - z_y) / (z_(1) - (z_(3) + z_(4)) / 2); needs K >= 4 (Croce & Hein 2020, equation 7)."""
    top = logits.topk(4, dim=1).values
    return targeted_margin(logits, y, target) / (top[:, 0] - 0.5 * (top[:, 2] + top[:, 3]) + _TINY)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log softmax(z)_y, and where that is 0 in float32, log sum_{i != y} exp(z_i) - z_y, which is negative.

    Cross-entropy is log(1 + exp(u)) of this u: it grows with u, and its gradient is that of u times a number.
    Below u = -17 or so float32 rounds 1 + exp(u) to 1, and the gradient loses the label's part or vanishes,
    though the attacks, which use its direction alone, have as much to follow as in any other place.
    """
    entropy = F.cross_entropy(logits, y, reduction="none")
    vanished = entropy <= 0
    if not vanished.any():
        return entropy
    own = logits.gather(1, y.unsqueeze(1)).squeeze(1)
    others = logits.scatter(1, y.unsqueeze(1), -torch.inf).logsumexp(1)
    return torch.where(vanished, others - own, entropy)


def attack_loss(name: str, logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """The loss that an attack of a protocol names. Untargeted losses ignore `target`.

    Raises:
        ValueError: no loss of that name.
    """
    if name == "cross-entropy":
        return cross_entropy(logits, y)
    if name in ("margin", "nearest-boundary"):  # the latter also weighs gradients: see fab.py
        return -margin(logits, y)
    if name == "dlr":
        return dlr(logits, y)
    if name == "targeted-margin":
        return targeted_margin(logits, y, target)
    if name == "targeted-dlr":
        return targeted_dlr(logits, y, target)
    raise ValueError(f"no attack loss called {name!r}")
