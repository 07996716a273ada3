"""What is recorded of the networks after an epoch: traces and spreads of eigenvalues, whole and per layer.

The Hessian is that of the mean adversarial loss over all training points, in the weights (biases are left
out), at adversarial points drawn afresh after the epoch. Traces come from the layer relation and Frobenius
norms from Gram matrices, both exact; the whole network's norm is also estimated by Hutchinson probes, which
share no code with the exact one and so check it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from robustzoo import keyed_noise
from robustzoo.diagnostics.relu_network import (
    ReluNetwork,
    block_square_norms,
    eigenvalue_std,
    layer_traces,
)
from robustzoo.studies.two_moons.moons import SETTINGS, attack, losses, start_noise

ALL = "all"


@dataclass(frozen=True)
class Row:
    """One setting, epoch and layer of one seed; the last three speak of the whole network alone.

    trace: sum of the eigenvalues. eigenvalue_std: their standard deviation, exact. probe_std: the same from
    Hutchinson probes, with probe_relative_error: the standard error of the estimated square norm, relative.
    robust_accuracy: share of the training points classified correctly at the adversarial points.
    """

    seed: int
    setting: str
    epoch: int
    layer: str
    trace: float
    eigenvalue_std: float
    probe_std: float | str = ""
    probe_relative_error: float | str = ""
    robust_accuracy: float | str = ""

    def record(self) -> dict[str, int | float | str]:
        return asdict(self)


def measure(epoch: int, network: ReluNetwork, x: Tensor, y: Tensor, *, seed: int, probes: int) -> list[Row]:
    """Rows of every setting: each layer, from "1" to the top, then "all".

    Args:
        network: one network per setting.
        x: (B, 2) training points, y: (B,) labels.
        probes: number of Hutchinson probes, at least 2.
    """
    x_adv, traces = _traces(network, x, y, seed, epoch)
    with torch.no_grad():
        correct = (network.forward(x_adv)[1].argmax(-1) == y).double().mean(1)
    products = probe_square_norms(network, x_adv, y, seed=seed, epoch=epoch, probes=probes)  # (P, M)
    sizes = [weight[0].numel() for weight in network.weights]
    rows = []
    for m, setting in enumerate(SETTINGS):
        alone = ReluNetwork(
            tuple(weight[m].detach() for weight in network.weights),
            tuple(bias[m].detach() for bias in network.biases),
        )
        norms = block_square_norms(alone, x_adv[m], y)
        for i, size in enumerate(sizes):
            spread = eigenvalue_std(traces[m, i], norms[i, i], size).item()
            rows.append(Row(seed, setting, epoch, str(i + 1), traces[m, i].item(), spread))
        whole, size = traces[m].sum(), sum(sizes)
        estimate = products[:, m].mean()
        rows.append(
            Row(
                seed,
                setting,
                epoch,
                ALL,
                whole.item(),
                eigenvalue_std(whole, norms.sum(), size).item(),
                eigenvalue_std(whole, estimate, size).item(),
                (products[:, m].std() / len(products) ** 0.5 / estimate).item(),
                correct[m].item(),
            )
        )
    return rows


def whole_traces(network: ReluNetwork, x: Tensor, y: Tensor, *, seed: int, epoch: int) -> Tensor:
    """The trace of each network's whole Hessian, (M,), as in the rows of `measure`."""
    return _traces(network, x, y, seed, epoch)[1].sum(1)


def _traces(network: ReluNetwork, x: Tensor, y: Tensor, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
    """The adversarial points of an epoch's measure, (M, B, 2), and the layers' traces there, (M, L)."""
    x_adv = attack(network, x, y, start_noise(seed, torch.arange(len(x)), "measure", epoch))
    with torch.no_grad():
        return x_adv, layer_traces(network, x_adv).mean(1)


def probe_square_norms(
    network: ReluNetwork, x: Tensor, y: Tensor, *, seed: int, epoch: int, probes: int
) -> Tensor:
    """|H z|^2 of each probe and network, (P, M): unbiased for |H|_F^2 with z of independent random signs.

    x: (M, B, d), y: (B,). H z is the gradient of (gradient . z); the networks' Hessians do not mix.
    """
    weights = [weight.detach().requires_grad_() for weight in network.weights]
    given = ReluNetwork(tuple(weights), tuple(bias.detach() for bias in network.biases))
    loss = losses(given.forward(x)[1], y).sum()
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    found = []
    for probe in range(probes):
        along = x.new_zeros(())
        for i, gradient in enumerate(gradients):
            signs = keyed_noise.integers(
                seed, torch.tensor([probe]), f"two-moons/probe/{i}", 2, gradient.shape[1:], index=epoch
            )
            along = along + (gradient * (2 * signs[0] - 1)).sum()
        products = torch.autograd.grad(along, weights, retain_graph=True)
        found.append(torch.stack([product.square().sum((1, 2)) for product in products]).sum(0))
    return torch.stack(found)
