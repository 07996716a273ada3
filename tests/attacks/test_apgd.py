"""APGD against a plain one-image implementation, and on a model with a known optimum."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from robustzoo import keyed_noise
from robustzoo.attacks.apgd import APGD, checkpoints, scaled_start
from robustzoo.attacks.geometry import perturbation_norm, project
from robustzoo.attacks.lanes import Lanes, Sample, run_attack
from robustzoo.attacks.protocols import protocol
from robustzoo.registry.threat_model import ThreatModel


def test_checkpoints_of_100_iterations():
    """22 %, then gaps of 19, 16, 13, 10, 7, 6, 6 (Croce & Hein 2020, section 3.3)."""
    (attack,) = protocol("apgd-ce", ThreatModel.parse("linf:0.1"), 10).attacks
    assert checkpoints(attack) == [22, 41, 57, 70, 80, 87, 93, 99]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_start_is_on_the_sphere(norm):
    x = torch.full((4, 1, 5, 6), 0.5)
    noise = (keyed_noise.uniform if norm == "linf" else keyed_noise.normal)(
        0, torch.arange(4), "p", (1, 5, 6)
    )
    distance = perturbation_norm(scaled_start(x, norm, 0.1, noise) - x, norm)
    torch.testing.assert_close(distance, torch.full((4,), 0.1))


def trajectory(model, x, y, start, norm, eps, iterations):
    """All 1 + iterations points of APGD on cross-entropy for one image (1, C, H, W), one step at a time."""

    def ask(point):
        point = point.clone().requires_grad_()
        loss = F.cross_entropy(model(point), y)
        (grad,) = torch.autograd.grad(loss, point)
        return loss.item(), grad

    def direction(grad):
        return grad.sign() if norm == "linf" else grad / grad.norm()

    due, gap = [], math.floor(0.22 * iterations)
    while (due[-1] if due else 0) + gap <= iterations:
        due.append((due[-1] if due else 0) + gap)
        gap = max(gap - math.floor(0.03 * iterations), math.floor(0.06 * iterations))
    losses, points, step = [], [start], 2 * eps
    loss, grad = ask(start)
    best = (loss, start, grad)
    losses.append(loss)
    best_at_check, halved, restarted, last, previous = loss, True, False, 0, start
    for i in range(iterations):
        here = best[1] if restarted else points[-1]
        a = 1.0 if i == 0 else 0.75
        z = project(here + step * direction(grad), x, norm, eps)
        new = project(here + a * (z - here) + (1 - a) * (here - previous), x, norm, eps)
        previous = here
        points.append(new)
        loss, grad = ask(new)
        losses.append(loss)
        if loss > best[0]:
            best = (loss, new, grad)
        restarted = False
        if i + 1 in due:
            window = i + 1 - last
            rises = sum(losses[j + 1] > losses[j] for j in range(last, i + 1))
            restarted = rises <= 0.75 * window or (not halved and best_at_check >= best[0])
            halved, best_at_check, last = restarted, best[0], i + 1
            if restarted:
                step, grad = step / 2, best[2]
    return torch.cat(points)


@pytest.mark.parametrize("norm, eps", [("linf", 0.02), ("l2", 0.1)])
def test_trajectory_equals_a_plain_implementation(norm, eps, tiny_vit, toys):
    """The same 101 points, also for the attempts that start late because their lane was busy."""
    model = tiny_vit.double()
    try:
        x = toys.random_images(5, (1, 8, 8), 0.2, 0.8).double()
        labels = [y for _, y in toys.labelled(model, x)]
        (attack,) = protocol("apgd-ce", ThreatModel.parse(f"{norm}:{eps}"), 10).attacks
        lanes = Lanes(2, (1, 8, 8), torch.device("cpu"))
        lanes.x = lanes.x.double()
        search = APGD(attack, lanes, norm, eps, seed=3)
        seen = {i: [] for i in range(5)}

        def watch(module, inputs, output):
            if torch.is_grad_enabled():
                for lane in lanes.active.nonzero().flatten().tolist():
                    seen[lanes.sample(lane).id].append(inputs[0][lane].detach().clone())

        handle = model.register_forward_hook(watch)
        waiting = [Sample(i, labels[i], (), lambda i=i: x[i]) for i in range(5)]
        outcomes = {o.id: o for o in run_attack(model, search, waiting)}
        handle.remove()
        compared = 0
        for i in range(5):
            if outcomes[i].broken:
                continue
            y = torch.tensor([labels[i]])
            points = torch.stack(seen[i])
            expected = trajectory(model, x[i : i + 1], y, points[:1], norm, search.eps, 100)
            torch.testing.assert_close(points, expected, rtol=0, atol=1e-9)
            compared += 1
        assert compared >= 2
    finally:
        tiny_vit.float()
