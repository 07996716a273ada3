"""ReLU networks as plain tensors, so that many of them run at once, and closed forms of their Hessian.

**Traces.** With I^(i) the input of layer i, s the softmax of the logits g and J = d g / d I^(i),
cross-entropy has

    TrH(W^(i-1)) = |I^(i-1)|^2  sum_{d: I^(i)_d > 0} [ sum_k s_k J_kd^2 - (sum_k s_k J_kd)^2 ]

for a sample; at the top layer J is the identity and this is |f|^2 sum_k s_k (1 - s_k). Biases are no part of
it, and the second derivative of the ReLU is 0. The label drops out.

The paper's theorem has only the diagonal part, sum_k s_k (1 - s_k) J_kd^2, of the class matrix
diag(s) - s s^T; below the top layer that is another number. With H^(i)_kd = s_k J_kd^2, which leaves out only
the square that is subtracted and so bounds the trace, its inequality holds:

    max H^(i) <= max H^(i+1) c^2,   c = largest sum over outputs of |weight from one input| of layer i.

**Norms.** The Hessian of the mean loss over B samples with respect to the weights of layers l <= m is, with I
the input of a layer, v_k the K - 1 rows of R dg/dz with R' R = diag(s) - s s', u = dL/dz, and
P = dI_m / dz_l,

    H_lm = mean_b [ sum_k v^l_k v^m_k' (x) I_l I_m'  +  (l < m)  I_l u_m (x) P ],

because a ReLU network is piecewise linear in one layer's weight and multilinear in several. Norms of such
sums are sums over pairs of samples of products of inner products: with 10,400 weights and 500 samples that is
some matrices of 1000 x 1000, where the Hessian itself is 10,400 x 10,400.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from robustzoo.errors import RobustzooError


@dataclass(frozen=True)
class ReluNetwork:
    """Logits g = W_L relu(... relu(W_1 x + b_1) ...) + b_L; leading dimensions are independent networks.

    Attributes:
        weights: L tensors (..., out, in), as torch's Linear stores them.
        biases: L tensors (..., out), or None for a layer without.
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]

    @classmethod
    def of(cls, module: nn.Module) -> ReluNetwork:
        """The network in an nn.Sequential; the tensors are the module's own.

        Raises:
            RobustzooError: anything else than Linear, ReLU, Linear, ..., Linear.
        """
        if not isinstance(module, nn.Sequential):
            raise _refusal(f"got a {type(module).__name__}")
        layers = list(module)
        for i, layer in enumerate(layers):
            wanted = nn.ReLU if i % 2 else nn.Linear
            if not isinstance(layer, wanted):
                raise _refusal(f"item {i} is a {type(layer).__name__}, not a {wanted.__name__}")
        if len(layers) % 2 == 0:
            raise _refusal(f"it has {len(layers)} items and ends with {layers[-1] if layers else 'none'}")
        linear = layers[::2]
        return cls(tuple(layer.weight for layer in linear), tuple(layer.bias for layer in linear))

    @property
    def depth(self) -> int:
        """Number of linear layers L."""
        return len(self.weights)

    def forward(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """x: (..., B, d) -> the input of each layer, L tensors (..., B, d_i), and logits (..., B, K)."""
        inputs = [x]
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            z = inputs[-1] @ weight.mT
            if bias is not None:
                z = z + bias.unsqueeze(-2)
            if i + 1 == self.depth:
                return inputs, z
            inputs.append(z.relu())
        raise _refusal("it has no layer")

    def output_jacobians(self, inputs: list[Tensor]) -> list[Tensor]:
        """d g / d I^(i) for the input of each layer, L tensors (..., B, K, d_i), from `forward`'s inputs.

        The ReLU's derivative at 0 is taken as 0, as torch does. Differentiable in the weights.
        """
        top = self.weights[-1]
        samples = inputs[-1].shape[-2]
        jacobian = top.unsqueeze(-3).expand(*top.shape[:-2], samples, *top.shape[-2:])
        found = [jacobian]
        for weight, activation in zip(self.weights[-2::-1], inputs[:0:-1], strict=True):
            through = jacobian * (activation > 0).unsqueeze(-2)
            # One product over samples and classes together: broadcasting would copy the weight per sample.
            flat = through.flatten(-3, -2) @ weight
            jacobian = flat.unflatten(-2, through.shape[-3:-1])
            found.append(jacobian)
        return found[::-1]


def _refusal(found: str) -> RobustzooError:
    """The error for a module that is no plain chain of linear layers with ReLU between them."""
    return RobustzooError(
        f"expected nn.Sequential of Linear, ReLU, Linear, ... ending with Linear; {found}. The layer "
        "relation holds for such networks alone; use `robustzoo.diagnostics.hessian` for others"
    )


def softmax(logits: Tensor) -> Tensor:
    """Class probabilities over the last dimension, in float32 at least (float64 stays)."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)


def layer_traces(network: ReluNetwork, x: Tensor) -> Tensor:
    """Trace of the Hessian of cross-entropy with respect to each layer's weight, per sample.

    Args:
        network: L layers; leading dimensions are independent networks.
        x: (..., B, d) inputs.

    Returns:
        (..., B, L), differentiable in weights, biases and x. Summed over layers it is the trace of the whole
        network's weights.
    """
    inputs, logits = network.forward(x)
    s = softmax(logits)
    traces = [inputs[-1].square().sum(-1) * (s * (1.0 - s)).sum(-1)]
    jacobians = network.output_jacobians(inputs)
    for below, above, jacobian in zip(inputs[-2::-1], inputs[:0:-1], jacobians[:0:-1], strict=True):
        curvature = (class_variance(s, jacobian) * (above > 0)).sum(-1)
        traces.append(below.square().sum(-1) * curvature)
    return torch.stack(traces[::-1], -1)


def class_variance(s: Tensor, jacobian: Tensor) -> Tensor:
    """sum_k s_k J_kd^2 - (sum_k s_k J_kd)^2, (..., B, d), without cancellation; J: (..., B, K, d)."""
    weights = s.unsqueeze(-1)
    centred = jacobian - (weights * jacobian).sum(-2, keepdim=True)
    return (weights * centred.square()).sum(-2)


def largest_entries(network: ReluNetwork, x: Tensor) -> Tensor:
    """max over k and d of H^(i)_kd = s_k J_kd^2, (..., B, L + 1): layers' inputs, then the logits (J = 1)."""
    inputs, logits = network.forward(x)
    s = softmax(logits)
    entries = [
        (s.unsqueeze(-1) * jacobian.square()).flatten(-2).amax(-1)
        for jacobian in network.output_jacobians(inputs)
    ]
    return torch.stack([*entries, s.amax(-1)], -1)


def column_sums(network: ReluNetwork) -> Tensor:
    """c of each layer, (..., L): the largest column sum of absolute values of its weight (out, in).

    The relation is `largest_entries[..., i] <= largest_entries[..., i + 1] * column_sums[..., i]**2`.
    """
    return torch.stack([weight.abs().sum(-2).amax(-1) for weight in network.weights], -1)


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
