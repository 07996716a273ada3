"""Exact Frobenius norms of the Hessian of a ReLU network's cross-entropy, block by block, from Gram matrices.

The Hessian of the mean loss over B samples with respect to the weights of layers l <= m is, with I the input
of a layer, v_k the K - 1 rows of R dg/dz with R' R = diag(s) - s s', u = dL/dz, and P = dI_m / dz_l,

    H_lm = mean_b [ sum_k v^l_k v^m_k' (x) I_l I_m'  +  (l < m)  I_l u_m (x) P ],

because a ReLU network is piecewise linear in one layer's weight and multilinear in several. Norms of such
sums are sums over pairs of samples of products of inner products: with 10,400 weights and 500 samples that is
some matrices of 1000 x 1000, where the Hessian itself is 10,400 x 10,400.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robustzoo.diagnostics.relu_network import ReluNetwork, softmax


def block_square_norms(network: ReluNetwork, x: Tensor, y: Tensor) -> Tensor:
    """|H_lm|_F^2 for every pair of layers, of the Hessian of mean cross-entropy in the weights.

    Args:
        network: one network (no leading dimensions), L layers.
        x: (B, d) inputs.
        y: (B,) int64 labels.

    Returns:
        (L, L), symmetric, without gradient. Its sum is the square norm of the whole Hessian.
    """
    blocks = _Blocks(network, x, y)
    norms = x.new_zeros(network.depth, network.depth)
    for lower in range(network.depth):
        norms[lower, lower] = blocks.diagonal(lower)
        for upper in range(lower + 1, network.depth):
            value = blocks.neighbours(lower) if upper == lower + 1 else blocks.distant(lower, upper)
            norms[lower, upper] = norms[upper, lower] = value
    return norms


def eigenvalue_std(trace: Tensor, square_norm: Tensor, size: int | Tensor) -> Tensor:
    """Standard deviation of the `size` eigenvalues of a symmetric matrix, from its trace and |.|_F^2."""
    return (square_norm / size - (trace / size).square()).clamp_min(0.0).sqrt()


def class_root(s: Tensor) -> Tensor:
    """R with R' R = diag(s) - s s' and only K - 1 rows: (B, K - 1, K) for probabilities s (B, K).

    With q = sqrt(s), a unit vector, the matrix is diag(q) (1 - q q') diag(q), and a reflection taking q to
    the first axis turns the projection 1 - q q' into dropping that axis.
    """
    q = s.sqrt()
    w = q.clone()
    w[..., 0] += 1.0  # all entries are >= 0, so nothing cancels; w . w = 2 (1 + q_0)
    reflection = torch.eye(s.shape[-1], dtype=s.dtype, device=s.device) - w.unsqueeze(-1) * (
        w / w[..., :1]
    ).unsqueeze(-2)
    return reflection[..., 1:, :] * q.unsqueeze(-2)


class _Blocks:
    """What all blocks need, per layer: inputs I (B, n), curvature rows v (B, K - 1, out), u (B, out)."""

    def __init__(self, network: ReluNetwork, x: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            self.network = network
            self.inputs, logits = network.forward(x)
            self.active = [(value > 0).to(x.dtype) for value in self.inputs[1:]]
            s = softmax(logits)
            classes = torch.eye(s.shape[-1], dtype=s.dtype, device=s.device)
            towards = [
                jacobian * active.unsqueeze(-2)
                for jacobian, active in zip(
                    network.output_jacobians(self.inputs)[1:], self.active, strict=True
                )
            ]
            towards.append(classes.expand(len(s), *classes.shape))
            residual = (s - classes[y]).unsqueeze(-1)
            root = class_root(s)
            self.curvature = [root @ t for t in towards]
            self.gradient = [(residual * t).sum(-2) for t in towards]
            self.samples, self.rows = root.shape[:2]

    def diagonal(self, layer: int) -> Tensor:
        """|H_ll|^2 = mean_bc (I_b . I_c)^2 |V_b V_c'|^2."""
        pairs = self._over_classes(self._curvature_gram(layer).square())
        return (_gram(self.inputs[layer]).square() * pairs).mean()

    def neighbours(self, lower: int) -> Tensor:
        """|H_lm|^2 for m = l + 1, where P is diagonal: the mask of active units."""
        upper = lower + 1
        rows, active = self.curvature[lower], self.active[lower]
        newton = _gram(self.inputs[upper]) * self._over_classes(
            self._curvature_gram(lower) * self._curvature_gram(upper)
        )
        seen = (self.inputs[upper].unsqueeze(1) * rows) @ active.T  # (B, K - 1, B): I_b' P_c v_bk
        mixed = (seen * (self.curvature[upper] @ self.gradient[upper].T)).sum(1)
        residual = _gram(self.gradient[upper]) * _gram(active)
        return (_gram(self.inputs[lower]) * (newton + 2.0 * mixed + residual)).mean()

    def distant(self, lower: int, upper: int) -> Tensor:
        """|H_lm|^2 for m > l + 1, from the block itself: its size is that of the two weights multiplied."""
        weights = [weight.detach() for weight in self.network.weights]
        chain = weights[lower + 1] * self.active[lower].unsqueeze(1)  # dz_(l+1) / dz_l, (B, out_(l+1), out_l)
        for layer in range(lower + 2, upper):
            chain = weights[layer] @ (self.active[layer - 1].unsqueeze(-1) * chain)
        chain = self.active[upper - 1].unsqueeze(-1) * chain  # dI_m / dz_l
        left = self.curvature[lower].unsqueeze(-1) * self.inputs[lower].unsqueeze(1).unsqueeze(1)
        right = self.curvature[upper].unsqueeze(-1) * self.inputs[upper].unsqueeze(1).unsqueeze(1)
        block = torch.tensordot(left.flatten(0, 1), right.flatten(0, 1), dims=([0], [0]))  # (p, q, i, j)
        outer = self.inputs[lower].unsqueeze(-1) * self.gradient[upper].unsqueeze(1)
        block += torch.tensordot(chain, outer, dims=([0], [0])).permute(1, 2, 3, 0)
        return (block / self.samples).square().sum()

    def _curvature_gram(self, layer: int) -> Tensor:
        return _gram(self.curvature[layer].flatten(0, 1))

    def _over_classes(self, pairs: Tensor) -> Tensor:
        """Sum (B (K-1), B (K-1)) over the rows of both samples, (B, B)."""
        return pairs.view(self.samples, self.rows, self.samples, self.rows).sum((1, 3))


def _gram(rows: Tensor) -> Tensor:
    return rows @ rows.T
