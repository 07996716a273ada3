"""The trace of the Hessian of every layer of a ReLU network, exactly, and how a layer bounds the one below.

With I^(i) the input of layer i, s the softmax of the logits g and J = d g / d I^(i), cross-entropy has

    TrH(W^(i-1)) = |I^(i-1)|^2  sum_{d: I^(i)_d > 0} [ sum_k s_k J_kd^2 - (sum_k s_k J_kd)^2 ]

for a sample; at the top layer J is the identity and this is |f|^2 sum_k s_k (1 - s_k). Biases are no part of
it, and the second derivative of the ReLU is 0. The label drops out.

The paper's theorem has only the diagonal part, sum_k s_k (1 - s_k) J_kd^2, of the class matrix
diag(s) - s s^T; below the top layer that is another number. With H^(i)_kd = s_k J_kd^2, which leaves out only
the square that is subtracted and so bounds the trace, its inequality holds:

    max H^(i) <= max H^(i+1) c^2,   c = largest sum over outputs of |weight from one input| of layer i.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robustzoo.diagnostics.relu_network import ReluNetwork, softmax


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
