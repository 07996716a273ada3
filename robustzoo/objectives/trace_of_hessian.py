"""Traces of the Hessian of robust losses with respect to the top-layer weight, in closed form, per sample.

With logits g = W^T f and g' = W^T f', any loss L(g, g') has

    Tr Hess_W L = sum_k [ |f|^2 d2L/dg_k^2 + 2 (f.f') d2L/dg_k dg'_k + |f'|^2 d2L/dg'_k^2 ],

so only class-diagonal second derivatives in logit space are needed: O(B (d + K)), no second backward pass.
The bias is no part of W. Every one of them follows from ds_i/dg_k = s_i (1[i=k] - s_k) and
d2s_i/dg_k^2 = s_i (1[i=k] - s_k) (1 - 2 s_k).

Arguments: penultimate features `f: (B, d)` and logits `g: (B, K)` of the clean image, `fa`, `ga` of the
adversarial one, labels `y: (B,)` int64. Every function returns (B,), computed in float32 at least (float64
stays). The traces are differentiable in features and logits, to be trained on.

`stop_gradient=True` (the paper's choice): the clean softmax is a constant of the loss, and so it is of the
trace, whose own gradient does not flow through it either. Source: the paper's propositions and appendix, with
the softmax second derivative (printed without a term), the weight of MART's KL (left out in print) and MART's
full-gradient case (left to future work in print) derived anew; all agree with automatic differentiation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robustzoo.objectives.losses import log_softmax, unlikeliness, without


class BceInputError(ValueError):
    """`bce_input` names no input of MART's boosted cross-entropy."""

    def __init__(self, value: object) -> None:
        super().__init__(f"bce_input must be 'adv' (as in MART) or 'clean' (as printed), got {value!r}")


def at(fa: Tensor, ga: Tensor) -> Tensor:
    """Adversarial training, CE(g', y): |f'|^2 sum_k h'_k with h = s (1 - s); the label drops out."""
    return cross_entropy(fa, ga)


def trades(f: Tensor, g: Tensor, fa: Tensor, ga: Tensor, weight: float, stop_gradient: bool = True) -> Tensor:
    """TRADES, CE(g, y) + weight KL(s || s')."""
    return cross_entropy(f, g) + weight * kl(f, g, fa, ga, stop_gradient)


def alp(f: Tensor, g: Tensor, fa: Tensor, ga: Tensor, weight: float, stop_gradient: bool = True) -> Tensor:
    """Adversarial logit pairing, CE(g', y) + weight |s - s'|^2."""
    return cross_entropy(fa, ga) + weight * squared_softmax_distance(f, g, fa, ga, stop_gradient)


def mart(
    f: Tensor,
    g: Tensor,
    fa: Tensor,
    ga: Tensor,
    y: Tensor,
    weight: float,
    bce_input: str = "adv",
    stop_gradient: bool = True,
) -> Tensor:
    """MART, CE - log(1 - max_{k != y} s'_k) + weight (1 - s_y) KL(s || s').

    bce_input: "adv" has the cross-entropy act on the adversarial input (MART itself), "clean" on the clean
    one (the paper's printed right-hand side).

    Raises:
        BceInputError: `bce_input` is neither.
    """
    if bce_input not in ("adv", "clean"):
        raise BceInputError(bce_input)
    boosted = cross_entropy(fa, ga) if bce_input == "adv" else cross_entropy(f, g)
    return boosted + margin(fa, ga, y) + weight * weighted_kl(f, g, fa, ga, y, stop_gradient)


def cross_entropy(f: Tensor, g: Tensor) -> Tensor:
    """CE(g, y): |f|^2 sum_k s_k (1 - s_k), the same for every label."""
    return _dot(f, f) * _h(log_softmax(g).exp()).sum(-1)


def kl(f: Tensor, g: Tensor, fa: Tensor, ga: Tensor, stop_gradient: bool = True) -> Tensor:
    """KL(s || s').

    stop_gradient: |f'|^2 sum h'. Otherwise d2/dg_k dg'_k = -h_k and
    d2/dg_k^2 = h_k + (s_k - 2 s_k^2) (r_k - KL) with r = log s - log s' come in.
    """
    trace = cross_entropy(fa, ga)
    if stop_gradient:
        return trace
    log_s, log_sa = log_softmax(g), log_softmax(ga)
    s = log_s.exp()
    h = _h(s).sum(-1)
    r = _centred(log_s - log_sa, s)
    return trace - 2.0 * _dot(f, fa) * h + _dot(f, f) * (h + (s * (1.0 - 2.0 * s) * r).sum(-1))


def squared_softmax_distance(
    f: Tensor, g: Tensor, fa: Tensor, ga: Tensor, stop_gradient: bool = True
) -> Tensor:
    """|s - s'|^2, the pairing term of ALP.

    The mixed derivative is -2 sum_i Phi_ik Phi'_ik, Phi = diag(s) - s s^T; summed over k it needs no K x K
    matrix: sum_k s_k s'_k (1 - s_k - s'_k) + (sum_k s_k s'_k)^2.
    """
    s, sa = log_softmax(g).exp(), log_softmax(ga).exp()
    if stop_gradient:
        return _dot(fa, fa) * _distance_curvature(sa, s.detach())
    product = s * sa
    mixed = (product * (1.0 - s - sa)).sum(-1) + product.sum(-1).square()
    return (
        _dot(fa, fa) * _distance_curvature(sa, s)
        + _dot(f, f) * _distance_curvature(s, sa)
        - 4.0 * _dot(f, fa) * mixed
    )


def margin(fa: Tensor, ga: Tensor, y: Tensor) -> Tensor:
    """-log(1 - s'_kappa), kappa = argmax_{k != y} s'_k held fixed: MART's boost of the margin.

    With q the softmax without class kappa, the first derivatives are u_kappa = s_kappa, u_k = -s_kappa q_k
    and the second ones u_k (1 - 2 s_k) + u_k^2. Inserting s_k = (1 - s_kappa) q_k leaves bounded terms only:
    |f'|^2 s_kappa [(1 - s_kappa) (1 + sum q^2) - sum q (1 - q)].
    """
    log_s = log_softmax(ga)
    kappa = without(log_s, y.unsqueeze(-1)).argmax(-1, keepdim=True)
    others = without(log_s, kappa)
    s_kappa, rest = log_s.gather(-1, kappa).squeeze(-1).exp(), others.logsumexp(-1).exp()
    q = others.softmax(-1)
    return _dot(fa, fa) * s_kappa * (rest * (1.0 + q.square().sum(-1)) - _h(q).sum(-1))


def weighted_kl(
    f: Tensor, g: Tensor, fa: Tensor, ga: Tensor, y: Tensor, stop_gradient: bool = True
) -> Tensor:
    """(1 - s_y) KL(s || s'), MART's divergence. stop_gradient: (1 - s_y) |f'|^2 sum h'.

    Otherwise by the product rule, with w = 1 - s_y, w_k = -s_y (1[k=y] - s_k) and w_kk = w_k (1 - 2 s_k).
    """
    log_s, log_sa = log_softmax(g), log_softmax(ga)
    label = y.unsqueeze(-1)
    w = unlikeliness(log_s, y)
    if stop_gradient:
        return w.detach() * cross_entropy(fa, ga)
    s, sa = log_s.exp(), log_sa.exp()
    h = _h(s)
    r = log_s - log_sa
    divergence = (s * r).sum(-1, keepdim=True)
    s_y = s.gather(-1, label)
    w_k = s_y * s.scatter(-1, label, -w.unsqueeze(-1))
    first = s * (r - divergence)
    second = (1.0 - 2.0 * s) * first + h
    clean = w.unsqueeze(-1) * second + 2.0 * w_k * first + divergence * w_k * (1.0 - 2.0 * s)
    mixed = w_k * (sa - s) - w.unsqueeze(-1) * h
    return w * cross_entropy(fa, ga) + 2.0 * _dot(f, fa) * mixed.sum(-1) + _dot(f, f) * clean.sum(-1)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products (B,). Not a matrix product, which autocast would lower to half precision."""
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    return (a.to(dtype) * b.to(dtype)).sum(-1)


def _h(s: Tensor) -> Tensor:
    """h = s - s^2 without rounding the square, (B, K)."""
    return s * (1.0 - s)


def _centred(r: Tensor, s: Tensor) -> Tensor:
    """r - sum_k s_k r_k, (B, K)."""
    return r - (s * r).sum(-1, keepdim=True)


def _distance_curvature(s: Tensor, other: Tensor) -> Tensor:
    """sum_k d2/dg_k^2 |s - other|^2 with s = softmax(g) and `other` constant, (B,)."""
    delta = _centred(s - other, s)
    return 2.0 * (s * s * (1.0 - 2.0 * s + (s * s).sum(-1, keepdim=True)) + (1.0 - 2.0 * s) * s * delta).sum(
        -1
    )
