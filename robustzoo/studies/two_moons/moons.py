"""Two moons, the network Dense(100)-ReLU-Dense(100)-ReLU-Dense(2), and its training under each setting.

From the paper: 500 points, the network, adversarial training with epsilon 0.02 in the maximum norm and one
step, momentum SGD at 0.1 for 100 epochs, lambda 0.5 on the top layer's trace or 0.05 on that of all weights.
Ours: noise 0.1, batches of 50, momentum 0.9, the attack's uniform start and step of 2.5 epsilon (Madry et
al.'s rule), torch's default initial weights and biases. The plane has no box. Everything random is keyed by
the seed, and the settings share data, initial weights, order and starts: they differ in the penalty alone.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from sklearn.datasets import make_moons
from torch import Tensor
from torch.nn.functional import cross_entropy

from robustzoo import keyed_noise
from robustzoo.data import TrainingOrder
from robustzoo.diagnostics.relu_network import ReluNetwork, layer_traces

# Setting -> lambda of each layer's trace, from the first layer to the top.
SETTINGS = {"Standard": (0.0, 0.0, 0.0), "Top": (0.0, 0.0, 0.5), "Full": (0.05, 0.05, 0.05)}
WIDTHS = (2, 100, 100, 2)
POINTS, NOISE, BATCH, EPOCHS = 500, 0.1, 50, 100
EPSILON, STEP_RATIO = 0.02, 2.5
RATE, MOMENTUM = 0.1, 0.9


def moons(seed: int) -> tuple[Tensor, Tensor]:
    """The points (500, 2) float64, two half circles with keyed normal noise, and labels (500,) int64."""
    points, labels = make_moons(POINTS, shuffle=False)
    noise = keyed_noise.normal(seed, torch.arange(POINTS), "two-moons/points", (2,))
    return torch.from_numpy(points) + NOISE * noise.double(), torch.from_numpy(labels)


def initial_network(seed: int) -> ReluNetwork:
    """Random weights and biases of one seed, one network per setting, all equal, float64.

    Uniform within 1 / sqrt(inputs), as torch's Linear draws them.
    """
    weights, biases = [], []
    for i, (below, above) in enumerate(pairwise(WIDTHS)):
        for kind, shape, tensors in (("weights", (above, below), weights), ("biases", (above,), biases)):
            draw = keyed_noise.uniform(seed, torch.tensor([i]), f"two-moons/{kind}", shape)
            values = (2.0 * draw.double() - 1.0) / below**0.5  # (1, *shape)
            tensors.append(values.repeat(len(SETTINGS), *(1,) * len(shape)).requires_grad_())
    return ReluNetwork(tuple(weights), tuple(biases))


def attack(network: ReluNetwork, x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    """One step of projected gradient ascent on cross-entropy for each of M networks, without a box.

    Args:
        network: M networks.
        x: (B, 2) points, y: (B,) int64 labels.
        noise: (B, 2) uniform in [0, 1), the place of the start in the ball.

    Returns:
        (M, B, 2), within epsilon of x in the maximum norm, detached.
    """
    networks = len(network.weights[0])
    start = EPSILON * (2.0 * noise.to(x.dtype) - 1.0)
    x_adv = (x + start).expand(networks, *x.shape).clone().requires_grad_()
    _, logits = network.forward(x_adv)
    (gradient,) = torch.autograd.grad(losses(logits, y).sum(), x_adv)
    step = start + STEP_RATIO * EPSILON * gradient.sign()
    return x + step.clamp(-EPSILON, EPSILON)


def losses(logits: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy of each network, (M,), of logits (M, B, K) and labels (B,)."""
    networks, samples, _ = logits.shape
    flat = cross_entropy(logits.flatten(0, 1), y.repeat(networks), reduction="none")
    return flat.view(networks, samples).mean(1)


def start_noise(seed: int, ids: Tensor, purpose: str, epochs: int | Tensor) -> Tensor:
    """Where in the ball each sample's attack starts, uniform (B, 2) in [0, 1)."""
    return keyed_noise.uniform(seed, ids, f"two-moons/{purpose}", (2,), index=epochs)


def train(
    seed: int,
    epochs: int,
    on_epoch: Callable[[int, ReluNetwork, Tensor, Tensor], None],
    *,
    batch_size: int = BATCH,
) -> ReluNetwork:
    """Train one network per setting, together, and return them.

    on_epoch: called with (epochs done, networks, points, labels), first with 0 before any step.
    batch_size: a divisor of the 500 points.
    """
    x, y = moons(seed)
    network = initial_network(seed)
    parameters = [*network.weights, *network.biases]
    velocity = [torch.zeros_like(p) for p in parameters]
    penalty = torch.tensor(list(SETTINGS.values()), dtype=x.dtype)
    order = TrainingOrder(POINTS, batch_size, seed)
    steps = POINTS // batch_size
    on_epoch(0, network, x, y)
    for step in range(epochs * steps):
        passes, ids = order.batch(step)
        points, labels = x[ids], y[ids]
        x_adv = attack(network, points, labels, start_noise(seed, ids, "attack", passes))
        _, logits = network.forward(x_adv)
        loss = losses(logits, labels) + (penalty * layer_traces(network, x_adv).mean(1)).sum(1)
        gradients = torch.autograd.grad(loss.sum(), parameters)  # of M independent losses
        with torch.no_grad():
            for parameter, speed, gradient in zip(parameters, velocity, gradients, strict=True):
                parameter -= RATE * speed.mul_(MOMENTUM).add_(gradient)
        if (step + 1) % steps == 0:
            on_epoch((step + 1) // steps, network, x, y)
    return network
